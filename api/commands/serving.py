"""The work of `muniment serve`: the socket is bound before anything is started."""

from __future__ import annotations

import gc
import signal
import socket
import sys
import threading
from pathlib import Path

import click
import uvicorn

from api import folder
from api.app import create_app
from api.commands.opening import opened
from api.commands.options import CannotRun
from api.heads import BoundedHeads
from api.telemetry import forward, quiet_libraries
from api.wiring import Services

SWITCH_SECONDS = 0.001
"""After so long a thread that works lets one go on whose wait for disk, database or socket is over; Python's 0.005 is
longer than most of these waits."""


class _Server(uvicorn.Server):
    """Says `ready` when it answers, and not before."""

    def __init__(self, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts and reports."""
        await super().startup(sockets=sockets)
        if self.started:
            click.echo(f"ready {self._url}")


def serve_folder(data: Path, *, host: str | None, port: int | None, roles: frozenset[str]) -> int:
    """Serves a folder until the process is told to stop. Raises: CannotRun, FolderMissing, FolderLocked."""
    with opened(data, host=host, port=port) as services:
        quiet_libraries()
        forward("uvicorn.error", "server", services.telemetry.log)
        if "api" not in roles:
            return _work_only(services, roles)
        bound = bind(services.settings.host, services.settings.port)
        url = address_of(bound, services.settings.host)
        config = uvicorn.Config(
            create_app(services),
            http=BoundedHeads,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=10,
            lifespan="on",
        )
        spare_collections()
        sys.setswitchinterval(SWITCH_SECONDS)
        # Until this has ended a signal ends the process as ever: to apply a record to a restored database may take
        # long, and goes on at the next start.
        services.start(sole=True, roles=roles)
        server = _Server(config, url)

        def end(*_: object) -> None:
            server.should_exit = True

        # The server ends gracefully on these and then raises them again: ours lets what follows it happen.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        with folder.announced(services.settings.data, url):
            server.run(sockets=[bound])
    return 0


def spare_collections() -> None:
    """Lets the collector skip what was made at start and run less often: a call of 1,000 entries makes many values.

    Measured: half of the time of taking in entries went into collections that found nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def bind(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Raises CannotRun when the port is taken or the address is not ours."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = error.strerror or "no such address"
        message = f"cannot listen on {host}:{port} ({reason.lower()}): choose another with --port, or stop what uses it"
        raise CannotRun(message) from None


def address_of(bound: socket.socket, host: str) -> str:
    """The address other commands use to reach a socket bound to `host`."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - compared
    return f"http://{shown}:{bound.getsockname()[1]}"


def _work_only(services: Services, roles: frozenset[str]) -> int:
    """Runs the threads until the process is told to stop."""
    stop = threading.Event()
    services.start(sole=True, roles=roles)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    click.echo(f"ready {','.join(sorted(roles))}")
    stop.wait()
    return 0

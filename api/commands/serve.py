"""`muniment serve`: the service in one process; the socket is bound before anything is started."""

from __future__ import annotations

import gc
import signal
import socket
import threading
from pathlib import Path

import click
import uvicorn

from api import folder
from api.app import create_app
from api.commands.opening import opened
from api.commands.options import CannotRun, data_option
from api.telemetry import quiet_libraries
from api.wiring import Services

ROLES = frozenset({"api", "worker", "scheduler"})


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


def _roles(_context: click.Context, _parameter: click.Parameter, value: str) -> frozenset[str]:
    roles = frozenset(part.strip() for part in value.split(",") if part.strip())
    if not roles or not roles <= ROLES:
        message = f"choose from {', '.join(sorted(ROLES))}"
        raise click.BadParameter(message)
    return roles


@click.command()
@data_option
@click.option("--tenant", default=None, hidden=True)
@click.option("--host", default=None, help="Address to bind to.")
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="Port; 0 picks a free one.")
@click.option("--roles", callback=_roles, default="api,worker,scheduler", help="What this process does.")
def serve(data: Path, tenant: str | None, host: str | None, port: int | None, roles: frozenset[str]) -> int:
    """Runs the service and prints `ready http://H:P` when it answers."""
    del tenant  # every tenant is served; the option exists because every command takes it
    with opened(data, host=host, port=port) as services:
        quiet_libraries()
        if "api" not in roles:
            return _work_only(services, roles)
        bound = bind(services.settings.host, services.settings.port)
        url = address_of(bound, services.settings.host)
        config = uvicorn.Config(
            create_app(services),
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=10,
            lifespan="on",
        )
        # The server ends gracefully on these and then raises them again: ours lets what follows it happen.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        spare_collections()
        services.start(sole=True, roles=roles)
        with folder.announced(services.settings.data, url):
            _Server(config, url).run(sockets=[bound])
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
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    services.start(sole=True, roles=roles)
    click.echo(f"ready {','.join(sorted(roles))}")
    stop.wait()
    return 0


COMMANDS = {"serve": serve}

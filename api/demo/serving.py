"""A service of the demonstration's own: opened on its data folder, served on a socket beside it, closed again.

Guarantees: the same application, jobs and settings as `muniment serve`; only the clock's offset and the allow-list are
the demonstration's. Two of them on one folder, one after the other, are a restart.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import uvicorn
import yaml

from api import administration, folder, migrate, settings, telemetry
from api.app import create_app
from api.telemetry import quiet_libraries
from api.verification import logs_of, read_only, stores_of, verify_log
from api.wiring import Services, build
from audit.findings import report_json
from audit.verify import Options
from erasure.report_check import check
from muniment import Recorder
from muniment.errors import ApiProblem
from muniment.recorder import FlushResult
from muniment.registry import Client

_TOKENS = "tokens.json"
_PATIENCE_SECONDS = 60.0
_LONGEST_SOCKET_PATH = 100
_ENDED = frozenset(
    {"completed", "completed_with_retained", "completed_with_exceptions", "partially_failed", "no_match"}
)
_RUN_ENDED = frozenset({"completed", "awaiting_approval", "stopped"})


class Served:
    """One tenant's desk of a running service: a client for each principal, and what the story asks for."""

    def __init__(self, services: Services, url: str, made: dict[str, Any]) -> None:
        self.services = services
        self.url = url
        self._made = made
        self._clients: dict[str, Client] = {}
        self._recorders: list[Recorder] = []

    def client(self, principal: str) -> Client:
        """Return the client of a principal."""
        if principal not in self._clients:
            self._clients[principal] = Client(self.url, self._made["tokens"][principal], timeout=_PATIENCE_SECONDS)
        return self._clients[principal]

    def call(self, principal: str, method: str, path: str, body: object = None, *, purpose: str | None = None) -> Any:
        """Send a request as a principal. Raises: ApiProblem."""
        return self.client(principal).request(method, path, body, purpose=purpose)

    def refused(self, principal: str, method: str, path: str, body: object) -> int:
        """Return the status with which a call is refused; 0 when it is not."""
        try:
            self.call(principal, method, path, body)
        except ApiProblem as problem:
            return problem.status
        return 0

    def recorder(self, spool: Path) -> Recorder:
        """Return the agent's recorder, with its spool in that folder."""
        made = Recorder(self.url, self._made["tokens"]["writer"], spool=spool, name="screen-1")
        self._recorders.append(made)
        return made

    def flush(self) -> FlushResult:
        """Wait until everything recorded is stored."""
        return self._recorders[-1].flush(timeout=_PATIENCE_SECONDS)

    def apply_classes(self, file: Path) -> list[str]:
        """Register the declarations of a file; returns their names."""
        declared: dict[str, Any] = yaml.safe_load(file.read_text())
        for name, spec in declared.items():
            self.call("platform", "PUT", f"/v1/data-classes/{name}", spec)
        return list(declared)

    def counts(self) -> dict[str, int]:
        """Return how many entries of streams and live copies there are."""
        entries = 0
        cursor = ""
        while True:
            page = self.call("auditor", "POST", f"/v1/record:search?limit=1000{cursor}", {})
            entries += len(page["items"])
            if page["next_cursor"] is None:
                return {"entries": entries, "artifacts": self.count_artifacts()}
            cursor = f"&cursor={page['next_cursor']}"

    def count_artifacts(self) -> int:
        """Return how many copies of personal data are live."""
        total, cursor = 0, ""
        while True:
            page = self.call("auditor", "POST", f"/v1/artifacts:search?limit=1000{cursor}", {"status": "live"})
            total += len(page["items"])
            if page["next_cursor"] is None:
                return total
            cursor = f"&cursor={page['next_cursor']}"

    def copies(self, subject: str) -> list[dict[str, Any]]:
        """Return every copy about a person."""
        found = self.call("auditor", "POST", "/v1/subjects:copies?limit=1000", {"subjects": [subject]})
        items: list[dict[str, Any]] = found["items"]
        return items

    def wait_for_end(self, path: str) -> dict[str, Any]:
        """Return the request once it has ended."""
        return self._wait(lambda: self.call("legal", "GET", path), _ENDED)

    def wait_for_run(self, run_id: str) -> dict[str, Any]:
        """Return the retention run once it has ended or waits for approval."""
        return self._wait(lambda: self.call("legal", "GET", f"/v1/retention/runs/{run_id}"), _RUN_ENDED)

    @property
    def pins(self) -> tuple[str, str]:
        """The certificate key and the log key that were noted when the folder was made."""
        return self._made["certificate_key"], self._made["log_key"]

    def check_certificate(self, file: Path) -> list[str]:
        """Return what the offline check of a certificate proved, with both keys pinned. Raises: ReportError."""
        return check(file.read_bytes(), self._made["certificate_key"], self._made["log_key"])

    def verify(self) -> dict[str, Any]:
        """Return the verdict of `muniment verify --key` on the data folder, with the key pinned at the start."""
        chosen = self.services.settings
        with stores_of(chosen) as (bucket, hot), read_only(chosen) as sessions:
            log = logs_of(chosen, sessions, bucket)[0]
            report = verify_log(
                log,
                bucket=bucket,
                hot=hot,
                keys=[self._made["log_key"]],
                certificate_keys=[self._made["certificate_key"]],
                options=Options(known_size=log.size),
                sessions=sessions,
                progress=lambda _done: None,
            )
        return report_json(report)

    def close(self) -> None:
        """End recorders and connections."""
        for recorder in self._recorders:
            recorder.close()
        for client in self._clients.values():
            client.close()

    def _wait(self, read: Any, ended: frozenset[str]) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            found: dict[str, Any] = read()
            if found["state"] in ended or time.monotonic() > end:
                return found
            time.sleep(0.05)


@contextmanager
def served(data: Path, *, stores: Path, offset: timedelta, new: bool) -> Iterator[Served]:
    """Serve a data folder on a socket file with a clock `offset` ahead; `new` makes the folder and its tenant."""
    chosen = settings.given(
        data, allow_targets=f"file:{stores}/**,sqlite:{stores}/**", clock_offset=offset, kek_grace=timedelta(0)
    )
    folder.make(chosen.data)
    with folder.lock(chosen.data), _listening(data.parent) as (bound, url):
        services = build(chosen, telemetry=telemetry.build(stream=StringIO()))
        migrate.upgrade(services.database)
        quiet_libraries()
        services.start(sole=True)
        config = uvicorn.Config(create_app(services), log_config=None, access_log=False, lifespan="on")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        desk = Served(services, url, _tenant(services, data, new=new))
        try:
            while not server.started:
                time.sleep(0.01)
            yield desk
        finally:
            desk.close()
            server.should_exit = True
            thread.join(timeout=20)
            services.close()


@contextmanager
def _listening(folder: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket to serve on and its address: a file in the folder, so that it works where there is no network at all.

    The system allows the name of such a file about a hundred bytes; a deeper folder is named by its open descriptor.
    """
    file = folder / "s"
    held, named = None, file
    if len(os.fsencode(file)) > _LONGEST_SOCKET_PATH:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        named = Path(f"/proc/self/fd/{held}/s")
    file.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(str(named))
        bound.listen(128)
        yield bound, f"unix:{named}"
    finally:
        bound.close()
        file.unlink(missing_ok=True)
        if held is not None:
            os.close(held)


def _tenant(services: Services, data: Path, *, new: bool) -> dict[str, Any]:
    """Return tenant, tokens and keys: made at the first start, read again at the next."""
    file = data.parent / _TOKENS
    if new:
        made = administration.create_tenant(services, administration.DEFAULT_TENANT).as_json()
        file.touch(mode=0o600)
        file.write_text(json.dumps(made))
    found: dict[str, Any] = json.loads(file.read_text())
    return found

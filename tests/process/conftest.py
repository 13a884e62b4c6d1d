"""A whole service for process tests: embedded (SQLite, files) and on servers (PostgreSQL, S3 with Object Lock).

The same tests run on both. Each test gets a tenant of its own in a service that the test module shares.
"""

from __future__ import annotations

import itertools
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
import uvicorn
from botocore.config import Config

from api import administration, folder, migrate, telemetry
from api.app import create_app
from api.commands.serving import bind
from api.settings import Settings, load
from api.wiring import Services, build
from muniment.registry import Client
from tests import schema

_names = itertools.count()


class LogFile:
    """The service's log as a file beside its data, where a scan finds it, and on stderr, where a reader does."""

    def __init__(self, path: Path) -> None:
        self._file, self._shown = path.open("a", encoding="utf-8"), sys.stderr

    def write(self, text: str) -> None:
        self._file.write(text)
        self._shown.write(text)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        with suppress(OSError):  # a test filled the disk on purpose
            self._file.close()


class Running:
    """One service in this process, behind a real socket; can be stopped and started again on the same data."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.start()

    def start(self, *, port: int = 0, **overrides: Any) -> None:
        """Open the folder and serve it, with some settings changed; `port` 0 picks a free one."""
        if overrides:
            self.settings = self.settings.model_copy(update=overrides)
        folder.make(self.settings.data)
        self._lock = folder.lock(self.settings.data)
        self._lock.__enter__()
        self._log = LogFile(self.settings.data.with_name("service.log"))
        told = telemetry.build(level=self.settings.log_level, stream=self._log)
        self.services: Services = build(self.settings, telemetry=told)
        if migrate.current(self.services.database) is None:
            schema.bring(self.services.database)
        self.services.start(sole=True)
        self._socket = bind("127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(create_app(self.services), log_config=None, access_log=False, lifespan="on")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.01)

    def stop(self) -> None:
        """End the server and everything it holds."""
        self._server.should_exit = True
        self._thread.join(timeout=20)
        self._socket.close()
        self.services.close()
        self._lock.__exit__(None, None, None)
        self._log.close()


@dataclass(slots=True, kw_only=True)
class Desk:
    """One tenant of a running service: a client for each principal."""

    running: Running
    tenant: str
    tokens: dict[str, str]
    log_key: str
    certificate_key: str
    clients: dict[str, Client] = field(default_factory=dict)

    def client(self, principal: str) -> Client:
        """The client of a principal; reconnects where the service was started again."""
        key = f"{principal}@{self.running.url}"
        if key not in self.clients:
            self.clients[key] = Client(self.running.url, self.tokens[principal], timeout=60)
        return self.clients[key]

    def call(self, principal: str, method: str, path: str, body: object = None, **more: Any) -> Any:
        """Send a request as a principal; raises ApiProblem."""
        return self.client(principal).request(method, path, body, **more)

    def close(self) -> None:
        """Close the connections."""
        for client in self.clients.values():
            client.close()


def wait_for(read: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Return the first truthy value of `read`, asked again until the time is over."""
    end = time.monotonic() + seconds
    while True:
        value = read()
        if value:
            return value
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def _embedded(base: Path) -> Settings:
    return load(base / "data", allow_targets=f"file:{base}/stores/**,sqlite:{base}/stores/**,127.0.0.1:*,localhost:*")


def _on_servers(base: Path, request: pytest.FixtureRequest, patch: pytest.MonkeyPatch) -> Settings:
    service = request.getfixturevalue("s3_service")
    url = request.getfixturevalue("make_postgres_database")(schema.prepare)
    patch.setenv("AWS_ACCESS_KEY_ID", service.access_key)
    patch.setenv("AWS_SECRET_ACCESS_KEY", service.secret_key)
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3 = boto3.client("s3", endpoint_url=service.endpoint, config=Config(request_checksum_calculation="when_required"))
    name = secrets.token_hex(4)
    s3.create_bucket(Bucket=f"locked-{name}", ObjectLockEnabledForBucket=True)
    s3.create_bucket(Bucket=f"hot-{name}")
    s3.close()
    return load(
        base / "data",
        allow_targets=f"file:{base}/stores/**,sqlite:{base}/stores/**,127.0.0.1:*,localhost:*",
        database_url=url,
        object_store=f"s3://locked-{name}/m",
        hot_store=f"s3://hot-{name}/m",
        s3_endpoint_url=service.endpoint,
        lock_unit="second",
    )


@pytest.fixture(
    scope="module",
    params=["embedded", pytest.param("servers", marks=[pytest.mark.postgres, pytest.mark.s3])],
)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service shared by a module's tests."""
    base = tmp_path_factory.mktemp(f"service-{request.param}")
    (base / "stores").mkdir()
    os.umask(0o077)
    with pytest.MonkeyPatch.context() as patch:
        settings = _embedded(base) if request.param == "embedded" else _on_servers(base, request, patch)
        made = Running(settings)
        yield made
        made.stop()


def new_desk(running: Running) -> Desk:
    """A new tenant of the service with its first tokens."""
    made = administration.create_tenant(running.services, f"t{next(_names)}-{secrets.token_hex(3)}")
    return Desk(
        running=running,
        tenant=made.tenant,
        tokens=made.tokens,
        log_key=made.log_key,
        certificate_key=made.certificate_key,
    )


@pytest.fixture
def desk(running: Running) -> Iterator[Desk]:
    """A tenant of this test's own."""
    made = new_desk(running)
    yield made
    made.close()


_LONG_ON = {
    "[servers": frozenset(
        {
            "test_process_action_references.py",
            "test_process_actions.py",
            "test_process_agent.py",
            "test_process_airline.py",
            "test_process_backups.py",
            "test_process_bad_input.py",
            "test_process_bad_requests.py",
            "test_process_certificate.py",
            "test_process_certificate_store.py",
            "test_process_classes.py",
            "test_process_copies.py",
            "test_process_damaged.py",
            "test_process_desk.py",
            "test_process_doctor.py",
            "test_process_embedded.py",
            "test_process_erased_names.py",
            "test_process_erased_proofs.py",
            "test_process_governed.py",
            "test_process_holds.py",
            "test_process_holds_parted.py",
            "test_process_keeping.py",
            "test_process_keeping_lost.py",
            "test_process_keys.py",
            "test_process_killed.py",
            "test_process_langgraph.py",
            "test_process_lists.py",
            "test_process_machines.py",
            "test_process_memory.py",
            "test_process_outbox.py",
            "test_process_payload.py",
            "test_process_place.py",
            "test_process_preparing.py",
            "test_process_rebuild.py",
            "test_process_rebuild_held.py",
            "test_process_receipts.py",
            "test_process_recorders.py",
            "test_process_replay.py",
            "test_process_restore.py",
            "test_process_rights.py",
            "test_process_scan.py",
            "test_process_words_left.py",
        }
    ),
    "[embedded-old keys kept": frozenset({"test_process_restore.py"}),
    "[embedded": frozenset({"test_process_isolation.py", "test_process_keeping_lost.py"}),
}
"""Tests that `make test` runs on one kind of store only, because they are long; `make test-all` runs them on both."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-all` what lasts long and is shown on the other kind of stores in `make test`."""
    for item in items:
        if any(item.path.name in names and kind in item.name for kind, names in _LONG_ON.items()):
            item.add_marker(pytest.mark.slow)

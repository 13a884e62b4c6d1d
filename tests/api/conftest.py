"""A real service on a real socket, on SQLite and on PostgreSQL; nothing of ours is replaced."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import httpx
import pytest
import uvicorn

from api import settings, telemetry
from api.administration import NewTenant, create_tenant
from api.app import create_app
from api.wiring import Services, build
from tests import schema

_CERTIFICATES = httpx.create_ssl_context()
"""Read once; no test uses them, and reading them takes longer than most calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service that answers at `url`, with the tokens of two tenants and what it logged."""

    url: str
    services: Services
    tokens: dict[str, str]
    other: dict[str, str]
    made: NewTenant
    log: StringIO
    clients: list[httpx.Client] = field(default_factory=list)

    def client(self, token: str | None = None) -> httpx.Client:
        """A client with a token, or without one."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.Client(base_url=self.url, headers=headers, timeout=30, verify=_CERTIFICATES)
        self.clients.append(client)
        return client

    def role(self, name: str) -> httpx.Client:
        """A client of the first tenant's principal."""
        return self.client(self.tokens[name])


@contextmanager
def running(folder: Path, database_url: str | None = None) -> Iterator[Running]:
    """Runs a service with two tenants; no scheduler and no worker, so that tests say when something runs."""
    log = StringIO()
    chosen = settings.load(folder, database_url=database_url, allow_targets=f"file:{folder.parent}/stores/**")
    services = build(chosen, telemetry=telemetry.build(stream=log))
    schema.bring(services.database)
    services.lease.take(services.clock.now(), force=True)
    services.heal()
    made = create_tenant(services, "default")
    other = create_tenant(services, "other")
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(services), log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    service = Running(
        url=f"http://127.0.0.1:{bound.getsockname()[1]}",
        services=services,
        tokens=made.tokens,
        other=other.tokens,
        made=made,
        log=log,
    )
    try:
        yield service
    finally:
        for client in service.clients:
            client.close()
        server.should_exit = True
        thread.join(10)
        bound.close()
        services.close()


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yields a running service, once on each database."""
    url = None
    if request.param == "postgres":
        make: Callable[..., str] = request.getfixturevalue("make_postgres_database")
        url = make(schema.prepare)
    with running(tmp_path_factory.mktemp("service") / "data", url) as service:
        yield service

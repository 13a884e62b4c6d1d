"""A registry on a SQLite file with real keys: two tenants, classes, stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import Session, SQLModel

from registry.acting import Acting
from registry.artifacts import register
from registry.classes import STARTER_CLASSES, put_class
from registry.stores import put_store
from registry.targets import Targets
from registry.tenants import create_tenant
from registry.tokens import authenticate, mint
from tests import schema
from vault.keks import KekStore
from vault.providers import FileRoot
from vault.vault import Vault

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class House:
    """One deployment under test."""

    def __init__(self, engine: sa.Engine, vault: Vault, folder: Path) -> None:
        self.now = NOW
        self.engine = engine
        self.vault = vault
        self.folder = folder
        self.targets = Targets(allowed=[f"file:{folder}/**", f"sqlite:{folder}/**"], own=[str(folder / "own")])
        self.alice = self.tenant("alice")

    def tenant(self, name: str) -> Acting:
        """A tenant with the starter classes, one table store and one file store; returns its writer."""
        with self.session() as session:
            tenant = create_tenant(session, name, NOW)
            secret, _ = mint(session, tenant.id, f"{name}-agent", ["writer", "platform"], now=NOW)
            acting = authenticate(session, secret)
            for class_name, spec in STARTER_CLASSES.items():
                put_class(session, acting, class_name, spec, NOW)
            for store, declared in self.stores().items():
                put_store(session, acting, store, declared, NOW, check_target=self.targets.check)
            session.commit()
        return acting

    def stores(self) -> dict[str, dict[str, Any]]:
        """The stores of each tenant."""
        return {
            "app": {"kind": "sql", "config": {"url": f"sqlite:///{self.folder}/app.db", "owner_field": "owner"}},
            "files": {"kind": "files", "config": {"root": f"{self.folder}/files"}},
        }

    @staticmethod
    def item(number: int = 1, **more: Any) -> dict[str, Any]:
        """A registration about one person; None leaves a field out."""
        base: dict[str, Any] = {
            "data_class": "memory",
            "store": "app",
            "locator": {"table": "memories", "key": {"id": number}},
            "subjects": ["user:ada"],
        }
        return {name: value for name, value in (base | more).items() if value is not None}

    def register(
        self, items: list[dict[str, Any]], acting: Acting | None = None, now: datetime = NOW
    ) -> list[dict[str, Any]]:
        """Register and commit."""
        with self.session() as session:
            results = register(session, self.vault, acting or self.alice, items, now)
            session.commit()
        return results

    def session(self) -> Session:
        """A session of the database."""
        return Session(self.engine, expire_on_commit=False)

    def other_token(self, acting: Acting, **scope: Any) -> Acting:
        """Another writer of the same tenant."""
        with self.session() as session:
            secret, _ = mint(session, acting.tenant_id, "other-agent", ["writer"], now=NOW, **scope)
            other = authenticate(session, secret)
            session.commit()
        return other


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A fresh deployment."""
    built = build(tmp_path)
    yield built
    built.engine.dispose()


@pytest.fixture
def make_house() -> Callable[..., House]:
    """Builds deployments, for tests that need one per example."""
    return build


def build(folder: Path, url: str = "") -> House:
    """A deployment in a folder, its database there too unless an address is given."""
    engine = sa.create_engine(url or f"sqlite:///{folder}/muniment.db")
    if not url:

        @sa.event.listens_for(engine, "connect")
        def _pragmas(connection: Any, _: object) -> None:
            connection.execute("PRAGMA secure_delete=ON")
            connection.execute("PRAGMA journal_mode=WAL")

    if url:
        SQLModel.metadata.create_all(engine)
    else:
        schema.copy_newest(engine)
    keys = folder / "keys"
    vault = Vault(KekStore(keys, FileRoot(keys, clock=lambda: NOW)), clock=lambda: NOW)
    return House(engine, vault, folder)

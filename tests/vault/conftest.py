"""A key folder, a database of each kind, and a clock that only the test moves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlmodel import Session, SQLModel, create_engine

from vault import models
from vault.keks import KekStore
from vault.providers import FileRoot
from vault.vault import Vault

TENANT = 7
TABLES = [
    SQLModel.metadata.tables[str(table.__tablename__)]
    for table in (
        models.DataKey,
        models.PartKey,
        models.KeyGroup,
        models.RetiredKek,
        models.KeyFence,
        models.CacheFence,
        models.KeyProcess,
    )
]


@dataclass
class Clock:
    now: datetime = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
    seconds: float = 1000.0

    def __call__(self) -> datetime:
        return self.now

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, step: timedelta) -> None:
        self.now += step
        self.seconds += step.total_seconds()


@dataclass
class World:
    engine: Engine
    folder: Path
    clock: Clock = field(default_factory=Clock)

    def vault(self, **options: Any) -> Vault:
        """A process that starts with empty caches."""
        root = FileRoot(self.folder, clock=self.clock)
        keks = KekStore(self.folder, root, monotonic=self.clock.monotonic)
        return Vault(keks, clock=self.clock, monotonic=self.clock.monotonic, **options)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        with Session(self.engine) as session:
            yield session
            session.commit()


def sqlite_engine(path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 30})

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: object) -> None:
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "secure_delete=ON", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    SQLModel.metadata.create_all(engine, tables=TABLES)
    return engine


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    engine = sqlite_engine(tmp_path / "data.sqlite")
    yield World(engine, tmp_path / "data.keys")
    engine.dispose()


def _prepare(url: str) -> None:
    engine = create_engine(url)
    SQLModel.metadata.create_all(engine, tables=TABLES)
    engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def any_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "sqlite":
        engine = sqlite_engine(tmp_path / "data.sqlite")
    else:
        make: Callable[..., str] = request.getfixturevalue("make_postgres_database")
        engine = create_engine(make(_prepare))
    yield World(engine, tmp_path / "data.keys")
    engine.dispose()

"""What every test needs again and again, made once in a pytest process: the newest schema, and compiled statements."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Engine
from sqlalchemy.util import LRUCache

from api import migrate
from api.database import Database

STATEMENTS_KEPT = 4000


def bring(database: Database) -> None:
    """Bring an empty database to the newest schema: on SQLite a copy of one that the migrations made before."""
    if database.on_sqlite:
        copy_newest(database.engine)
    else:
        migrate.upgrade(database)


def copy_newest(engine: Engine) -> None:
    """Fill an empty SQLite database with the newest schema."""
    with engine.connect() as connection:
        held = connection.connection.driver_connection
        assert isinstance(held, sqlite3.Connection)
        _newest().backup(held)


def prepare(url: str) -> None:
    """Bring an empty PostgreSQL database to the newest schema, to be the template of others."""
    database = Database(url)
    migrate.upgrade(database)
    database.close()


@functools.cache
def _newest() -> sqlite3.Connection:
    """Return a database in memory that went through every migration."""
    kept = sqlite3.connect(":memory:", check_same_thread=False)
    with tempfile.TemporaryDirectory(prefix="muniment-schema-") as folder:
        file = Path(folder) / "newest.db"
        database = Database(f"sqlite:///{file}")
        migrate.upgrade(database)
        database.close()
        made = sqlite3.connect(file)
        made.backup(kept)
        made.close()
    return kept


class _SharedStatements(LRUCache[Any, Any]):
    """Compiled statements by kind of database instead of by engine: each test has an engine of its own."""

    @staticmethod
    def _shared(key: Any) -> Any:
        dialect, *rest = key
        return (dialect.name, dialect.driver, *rest)

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(self._shared(key), default)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._shared(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(self._shared(key), value)


def share_compiled_statements() -> None:
    """Let every engine that is made from now on use the same cache of compiled statements."""
    shared = _SharedStatements(STATEMENTS_KEPT)
    make = Engine.__init__

    def init(self: Engine, *arguments: Any, **keywords: Any) -> None:
        make(self, *arguments, **keywords)
        self._compiled_cache = shared

    Engine.__init__ = init  # type: ignore[method-assign]

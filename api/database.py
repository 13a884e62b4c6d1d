"""The database: one transaction at a time for one tenant, on SQLite or PostgreSQL.

Guarantees: a session from `transaction` sees and writes rows of its tenant only. On PostgreSQL that is row-level
security under a role that owns nothing, set again at every BEGIN; on SQLite it is the WHERE of every query, so tests
run on both. A write on SQLite takes the write lock at BEGIN (never an upgrade in the middle) and one at a time in this
process. Deleted bytes are zeroed in the file (`secure_delete`), and `truncate_wal` empties the log of old pages.
Does not retry: a caller that meets a serialisation failure runs its idempotent step again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import SessionTransaction
from sqlmodel import Session

from registry.models import Tenant

APP_ROLE = "muniment_app"
AUTH_ROLE = "muniment_auth"
_BEGIN = "muniment_begin"
_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",
    "foreign_keys = ON",
    "busy_timeout = 30000",
    "wal_autocheckpoint = 16000",
    "cache_size = -32000",  # KiB; a batch of thousands touches a random page of an index for each row
    "temp_store = MEMORY",
)
_NO_TENANT = 0
_SET_TENANT = sa.text("SELECT set_config('muniment.tenant', :tenant, true)")


class NestedTransaction(Exception):
    """A write transaction was opened inside another one of the same thread: a fault of the program."""


class DatabaseUnavailable(Exception):
    """The database does not answer; `detail` never holds the address, which may hold a password."""

    problem = "unavailable"

    def __init__(self, detail: str) -> None:
        super().__init__(f"the database does not answer: {detail}")
        self.detail = detail


class DatabaseDamaged(DatabaseUnavailable):
    """The file is there and is no database, or not a whole one."""

    def __init__(self) -> None:
        super().__init__("its file is no database or is damaged; bring a copy back, or run muniment rebuild")


class Database:
    """Opens transactions. One instance a process; `close` ends its connections."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.on_sqlite = url.startswith("sqlite")
        self.engine = _sqlite_engine(url) if self.on_sqlite else _postgres_engine(url)
        self._reader = self.engine.execution_options(**{_BEGIN: "BEGIN"})
        self._writer_lock = threading.Lock()
        self._writer: int | None = None

    @contextmanager
    def transaction(self, tenant_id: int, *, write: bool = True) -> Iterator[Session]:
        """Yields a session of one tenant; commits at the end, rolls back on any error.

        Raises:
            NestedTransaction: this thread is already inside a write transaction (SQLite would wait for itself).
        """
        if not self.on_sqlite:
            yield from _run(self._session(self.engine, APP_ROLE, tenant_id), commit=write)
        elif not write:
            yield from _run(Session(self._reader, expire_on_commit=False), commit=False)
        else:
            with self._only_writer():
                yield from _run(Session(self.engine, expire_on_commit=False), commit=True)

    @contextmanager
    def unscoped(self) -> Iterator[Session]:
        """Yields a read-only session over all tenants' `tenant` and `token` rows: for log-in and listing tenants."""
        session = (
            Session(self._reader, expire_on_commit=False)
            if self.on_sqlite
            else self._session(self.engine, AUTH_ROLE, _NO_TENANT)
        )
        yield from _run(session, commit=False)

    @contextmanager
    def founding(self) -> Iterator[Session]:
        """Yields a session in which one tenant is made: its rows are that tenant's as soon as it is flushed."""
        if self.on_sqlite:
            with self.transaction(_NO_TENANT) as session:
                yield session
            return
        session = self._session(self.engine, APP_ROLE, _NO_TENANT)

        @event.listens_for(session, "before_flush")
        def scope(flushing: Session, *_: object) -> None:
            for row in flushing.new:
                if isinstance(row, Tenant):
                    flushing.connection().execute(_SET_TENANT, {"tenant": str(row.id)})

        yield from _run(session, commit=True)

    @contextmanager
    def shared(self, *, write: bool = True) -> Iterator[Session]:
        """Yields a session for the tables that belong to no tenant: ticks and leases."""
        with self.transaction(_NO_TENANT, write=write) as session:
            yield session

    def truncate_wal(self, *, deadline_s: float = 5.0) -> bool:
        """Returns True once SQLite's write-ahead log is copied and emptied, so that no deleted page is left in it.

        False when readers kept it busy until the deadline. PostgreSQL recycles its own log: always True there.
        """
        if not self.on_sqlite:
            return True
        limit = time.monotonic() + deadline_s
        while True:
            connection = self.engine.raw_connection()
            try:
                busy, _, _ = connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.close()
            if not busy:
                return True
            if time.monotonic() >= limit:
                return False
            time.sleep(0.02)

    def ping(self) -> None:
        """Asks the database for nothing. Raises DatabaseUnavailable or DatabaseDamaged."""
        try:
            with self._reader.connect() as connection:
                connection.execute(sa.text("SELECT 1"))
        except sa.exc.SQLAlchemyError as error:
            # SQLite's errors of other kinds are of classes below this one.
            if isinstance(error, sa.exc.DBAPIError) and type(error.orig) is sqlite3.DatabaseError:
                raise DatabaseDamaged from None
            raise DatabaseUnavailable(type(error).__name__) from None

    def close(self) -> None:
        """Ends every connection."""
        self.engine.dispose()

    @contextmanager
    def _only_writer(self) -> Iterator[None]:
        me = threading.get_ident()
        if self._writer == me:
            message = "a write transaction inside a write transaction: pass the session instead"
            raise NestedTransaction(message)
        with self._writer_lock:
            self._writer = me
            try:
                yield
            finally:
                self._writer = None

    @staticmethod
    def _session(engine: sa.Engine, role: str, tenant_id: int) -> Session:
        session = Session(engine, expire_on_commit=False)

        # At every BEGIN, not once: a commit in the middle ends SET LOCAL, and a query after it would see nothing.
        @event.listens_for(session, "after_begin")
        def scope(_session: Session, _transaction: SessionTransaction, connection: sa.Connection) -> None:
            connection.execute(
                sa.text("SELECT set_config('muniment.tenant', :tenant, true), set_config('role', :role, true)"),
                {"tenant": str(tenant_id), "role": role},
            )

        return session


def _run(session: Session, *, commit: bool) -> Iterator[Session]:
    try:
        yield session
        if commit:
            session.commit()
    except BaseException:
        session.rollback()
        raise
    finally:
        session.close()


def _postgres_engine(url: str) -> sa.Engine:
    return sa.create_engine(
        url, pool_size=10, max_overflow=40, pool_pre_ping=True, connect_args={"application_name": "muniment"}
    )


def _sqlite_engine(url: str) -> sa.Engine:
    engine = sa.create_engine(
        url, pool_size=10, max_overflow=90, connect_args={"check_same_thread": False, "timeout": 30}
    )

    # The driver's own transaction handling starts deferred ones and upgrades them, which fails under load: we begin.
    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN IMMEDIATE"))

    return engine

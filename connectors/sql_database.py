"""The port between the `sql` connector and one kind of database, and the errors drivers raise.

Guarantees: whatever a driver says becomes one of our errors without its text, since drivers print row values and
connection strings. The port has the few things that differ; everything else of `sql.py` is the same for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    import sqlalchemy as sa

    from connectors.base import Deadline, Level, ReclaimReport, Residue
    from connectors.errors import ConnectorError
    from connectors.sql_catalog import Key, Table


def is_plain(keys: Sequence[Key]) -> bool:
    """Tell whether keys are texts and whole numbers alone, which every form of a list keeps as they are."""
    values = [value for key in keys for value in key]
    texts = [value for value in values if type(value) is str]
    if len(texts) == len(values):
        return "".join(texts).isprintable()  # a zero byte is not
    return all(
        (type(value) is str and "\0" not in value and value.isprintable())
        or (type(value) is int and -(2**63) <= value < 2**63)
        for value in values
    )


class Refused(Exception):
    """The database refused a statement because of the data; `reason` names the kind of refusal, never the values."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """What a look at the files showed: canaries found, or why nobody could look, and in which way it was looked."""

    found: frozenset[int]
    how: str
    could_not_check: str | None = None


class Database(Protocol):
    """One database. Connections are in autocommit; transactions are begun by hand."""

    kind: str
    locks: str
    row_lock: str
    """What a SELECT appends so that nobody changes the rows until the transaction ends."""
    begin: str
    at_once: str | None
    """Where one DELETE can compare owners and say which rows it took: the query that looks at rows afterwards.

    It returns `{counted}`, whether rows of a table may be hidden, and whether a delete from it may have changed other
    tables. Asked in the transaction that deleted, whose lock keeps away who would make or drop a trigger. None where
    locking rows costs no more than reading them.
    """

    def connect(self, limit: Deadline, *, read_only: bool) -> sa.Connection:
        """Return an open connection. Raises: StoreUnreachable, WrongCredentials, Timeout."""

    def arm(self, connection: sa.Connection, limit: Deadline) -> None:
        """Bound every statement until the next call by what is left. Raises: Timeout."""

    def marks(self, table: Table, columns: Sequence[str], connection: sa.Connection) -> list[str]:
        """Return the parameter marks for values of these columns, with the casts they need."""

    def listed(self, marks: Sequence[str], keys: Sequence[Key]) -> tuple[str, tuple[Any, ...]]:
        """Return a query of (position, value, …) of these plain keys, with their marks, and its few parameters."""

    def among(self, columns: Sequence[str], marks: Sequence[str], keys: Sequence[Key]) -> tuple[str, tuple[Any, ...]]:
        """Return the condition that quoted columns have one of these plain keys, and its few parameters."""

    def explain(self, error: sa.exc.DBAPIError, limit: Deadline) -> ConnectorError | Refused:
        """Return what a driver's error means, without its text."""

    def guard(self, connection: sa.Connection, limit: Deadline) -> AbstractContextManager[None]:
        """Cut the connection when the database itself stops answering past the limit."""

    def hides_rows(self, connection: sa.Connection, table: Table) -> bool:
        """Tell whether rows may exist that this connection cannot see."""

    def changed(self, connection: sa.Connection) -> list[tuple[str, str]]:
        """Return schema and name of the tables of which rows went or changed in this transaction: by triggers too."""

    def reclaim(
        self, connection: sa.Connection, tables: Mapping[str, Table], level: Level, now: datetime, limit: Deadline
    ) -> ReclaimReport:
        """Remove freed bytes of these tables."""

    def look(
        self,
        connection: sa.Connection,
        tables: Sequence[Table],
        canaries: Sequence[bytes],
        reclaimed: ReclaimReport | None,
        limit: Deadline,
    ) -> Bytes:
        """Look for canaries in the files that hold these tables. Raises: Timeout."""

    def residue(
        self, connection: sa.Connection, tables: Sequence[Table], canaries: Sequence[bytes], limit: Deadline
    ) -> list[Residue]:
        """Look for canaries in all files of the database. Raises: Timeout."""


def options_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that concerns the database itself."""
    return {name: value for name, value in config.items() if name not in {"url", "owner_field", "children"}}

"""Kind `sql`: rows of SQLite and PostgreSQL tables.

Config: `{"url": "sqlite:////absolute/file.db" | "postgresql+psycopg://…", "owner_field"?: column, "children"?:
"refuse" | "delete"}`, for PostgreSQL also `statement_timeout` and `wal_retention` (seconds or P7D). Locator:
`{"table", "key": {column: value}}` with exactly the columns of one unique key.

Guarantees, beyond the contract of `base`: a batch is one transaction that selects by key, checks the owner, deletes and
reads again; a batch that the database refuses is halved until the refused rows stand alone; rows that reference an
erased row stop it unless `children` is "delete" or the schema cascades, and are counted in the receipt either way.
Details of each database are in `sql_sqlite` and `sql_postgres`; what they leave behind is said there and in docs.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from typing_extensions import override

from connectors.base import (
    Capabilities,
    CheckReport,
    Connector,
    Correction,
    Deadline,
    FenceReport,
    Finding,
    Item,
    Level,
    Locator,
    Outcome,
    Receipt,
    ReclaimReport,
    Residue,
    Selector,
    is_one_of,
    owner_forms,
)
from connectors.checking import check_report, try_out
from connectors.errors import BadConfig, BadLocator, ConnectorError, ReadOnlyConnector, Timeout
from connectors.residue import samples
from connectors.sql_answers import (
    ABSENT,
    ANOTHERS,
    ERASED,
    KEPT,
    Answer,
    finding_in_files,
    findings_by_key,
    json_value,
    plain_key,
    receipts_of,
    texts_of,
)
from connectors.sql_catalog import Catalog, Key, Table, key_of, owner_column
from connectors.sql_database import Database, Refused, options_of
from connectors.sql_postgres import PostgresDatabase
from connectors.sql_rows import Batch, Rows
from connectors.sql_sqlite import SqliteDatabase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

BATCH = 500
_PAGE = 1000
Candidate = tuple[bytes, tuple[bytes, ...]]
"""A byte string that no other row may show as text, and the canaries to keep when none does."""


@dataclass(slots=True)
class _Open:
    """One open connection and what was read of its catalog."""

    connection: sa.Connection
    catalog: Catalog
    rows: Rows


def open_store(config: Mapping[str, Any], *, read_only: bool) -> SqlConnector:
    """Return the connector of a database. Raises: BadConfig."""
    children = config.get("children", "refuse")
    if children not in {"refuse", "delete"}:
        raise BadConfig('children is "refuse" or "delete"')
    owner, database = owner_of(config), open_database(config)
    return SqlConnector(database, owner_field=owner, delete_children=children == "delete", read_only=read_only)


def owner_of(config: Mapping[str, Any]) -> str | None:
    """Return the configured name of what says whose item it is. Raises: BadConfig."""
    owner = config.get("owner_field")
    if owner is not None and (not isinstance(owner, str) or not owner):
        raise BadConfig("owner_field is a column name")
    return owner


def open_database(config: Mapping[str, Any]) -> Database:
    """Return the database that `url` names, without contacting it. Raises: BadConfig."""
    try:
        url = sa.make_url(config["url"])
    except (KeyError, sa.exc.ArgumentError):
        raise BadConfig("url is a database address") from None
    if url.get_backend_name() == "sqlite" and url.drivername in {"sqlite", "sqlite+pysqlite"} and not url.query:
        return SqliteDatabase(url.database or "", options_of(config))
    if url.drivername in {"postgresql", "postgresql+psycopg"}:
        return PostgresDatabase(url.set(drivername="postgresql+psycopg"), options_of(config))
    raise BadConfig("url is of sqlite:////absolute/path or postgresql+psycopg://")


class SqlConnector(Connector):
    """Drives one database."""

    def __init__(self, database: Database, *, owner_field: str | None, delete_children: bool, read_only: bool) -> None:
        self._database = database
        self._owner_field = owner_field
        self._delete_children = delete_children
        self._read_only = read_only
        self._writer: _Open | None = None
        self._reader: _Open | None = None
        self._touched: dict[str, Table] = {}

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind="sql",
            erase_level=Level.L1,
            reclaim_level=Level.L2,
            verify_level=Level.L2,
            batch_size=BATCH,
            locks=self._database.locks,
            fence=False,
            search=False,
            owner_check=self._owner_field is not None,
            discover=self._owner_field is not None,
            read_only=self._read_only,
            seeks_from=Level.L2,
        )

    @override
    def check_locator(self, locator: Locator) -> None:
        with self._session(Deadline("check_locator", 10), read_only=True) as now_open:
            table = now_open.catalog.table(locator.get("table"))
            key_of(table, locator)
            owner_column(table, self._owner_field)

    @contextmanager
    def _session(self, limit: Deadline, *, read_only: bool) -> Iterator[_Open]:
        """Give the open connection, bounded by the limit; drop it when anything goes wrong. Raises: ConnectorError."""
        current = self._reader if read_only else self._writer
        try:
            if current is None:
                connection = self._database.connect(limit, read_only=read_only)
                with self._database.guard(connection, limit):
                    catalog = Catalog(connection)
                current = _Open(connection, catalog, Rows(self._database, connection, catalog))
                if read_only:
                    self._reader = current
                else:
                    self._writer = current
            with self._database.guard(current.connection, limit):
                self._database.arm(current.connection, limit)
                yield current
        except sa.exc.DBAPIError as error:
            self._drop(current)
            problem = self._database.explain(error, limit)
            raise (BadLocator(problem.reason) if isinstance(problem, Refused) else problem) from None
        except BaseException:
            # Whatever was begun is rolled back with the connection; the next call opens a new one.
            self._drop(current)
            raise

    def _drop(self, current: _Open | None) -> None:
        if current is None:
            return
        current.connection.invalidate()
        current.connection.close()
        if self._writer is current:
            self._writer = None
        if self._reader is current:
            self._reader = None

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("discover", deadline)
        if self._owner_field is None:
            raise BadConfig("discover needs owner_field")
        forms = sorted(owner_forms(selector.identifiers))
        with self._session(limit, read_only=True) as now_open:
            owned = [table for table in now_open.catalog.tables() if self._owner_field in table.columns]
            for table in owned:
                if not table.primary:
                    raise BadLocator(
                        f"{table.label} has the owner column and no unique key, so its rows cannot be named"
                    )
                if self._database.hides_rows(now_open.connection, table):
                    raise BadLocator(f"row security hides rows of {table.label} from this role")
        for table in owned if forms else ():
            yield from self._discover_table(table, forms, limit)

    def _discover_table(self, table: Table, forms: list[str], limit: Deadline) -> Iterator[dict[str, Any]]:
        """Page through one table by its key, so that no snapshot stays open between pages."""
        after: Key | None = None
        while True:
            with self._session(limit, read_only=True) as now_open:
                page = now_open.rows.page(table, str(self._owner_field), forms, after, limit=1000)
            for key in page:
                values = {name: plain_key(value) for name, value in zip(table.primary, key, strict=True)}
                yield {"table": table.label, "key": values}
            if len(page) < 1000:  # noqa: PLR2004 -- the page size above
                return
            after = page[-1]

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("walk", deadline)
        with self._session(limit, read_only=True) as now_open:
            # A row without a unique key could not be registered, so it cannot have come back.
            tables = [table for table in now_open.catalog.tables() if table.primary]
            names = {table.label: now_open.catalog.written(table) for table in tables}
            if any(self._database.hides_rows(now_open.connection, table) for table in tables):
                raise BadLocator("row security hides rows from this role")
        for table in tables:
            after: Key | None = None
            while True:
                with self._session(limit, read_only=True) as now_open:
                    page = now_open.rows.after(table, after, limit=_PAGE)
                for row in page:
                    for key in sorted(sorted(key) for key in table.keys):
                        if not any(isinstance(row[name], bytes | memoryview | float | None) for name in key):
                            values = {name: plain_key(row[name]) for name in key}
                            yield from ({"table": name, "key": values} for name in names[table.label])
                if len(page) < _PAGE:
                    break
                after = tuple(page[-1][name] for name in table.primary)

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        limit = Deadline("capture", deadline)
        held: dict[str, list[bytes]] = {item.copy_id: [] for item in items}
        with self._session(limit, read_only=True) as now_open:
            for batches in self._by_table(now_open, items, refuse=True):
                candidates: list[tuple[str, Candidate]] = []
                for numbers, batch in batches:
                    self._database.arm(now_open.connection, limit)
                    names = list(batch.table.columns)
                    for number, row in now_open.rows.select(batch, names):
                        values = dict(zip(names, row, strict=True))
                        pieces = self._telling(batch.table, values)
                        candidates += [(items[numbers[number]].copy_id, piece) for piece in pieces]
                probes = [probe for _, (probe, _) in candidates]
                held_by = [batch for _, batch in batches]
                shared = now_open.rows.shared(held_by, probes, limit, owner=self._owner_field)
                for position, (copy_id, (_, canaries)) in enumerate(candidates):
                    if position not in shared:
                        held[copy_id] += canaries
        return held

    def _telling(self, table: Table, values: Mapping[str, object]) -> list[Candidate]:
        """Return what of a row to look for later, but for the owner's name: what stays may hold it too."""
        found = dict.fromkeys(piece for name, value in values.items() for piece in self._pieces(table, name, value))
        owner = values.get(self._owner_field) if self._owner_field is not None else None
        named = set(samples(str(owner).encode(errors="surrogateescape"))) if owner is not None else set()
        return [piece for piece in found if piece[0] not in named]

    def _pieces(self, table: Table, column: str, value: object) -> Iterator[Candidate]:
        """Yield what of a column's value to look for later."""
        for text in texts_of(value):
            for piece in samples(text):
                yield piece, (piece,)

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        limit = Deadline("export", deadline)
        with self._session(limit, read_only=True) as now_open:
            batches = [each for group in self._by_table(now_open, items, refuse=True) for each in group]
        for numbers, batch in batches:
            names = list(batch.table.columns)
            with self._session(limit, read_only=True) as now_open:
                found = dict(now_open.rows.select(batch, names))
            for position, number in enumerate(numbers):
                row = found.get(position)
                content = None if row is None else json.dumps(dict(zip(names, row, strict=True)), default=json_value)
                yield items[number].copy_id, None if content is None else content.encode()

    @override
    def fence(self, scope: Locator) -> FenceReport:
        return FenceReport(held=False, detail="a table cannot refuse writes of a scope; late rows must be looked for")

    def _by_table(
        self, now_open: _Open, items: Sequence[Item], *, refuse: bool, bad: dict[int, str] | None = None
    ) -> list[list[tuple[list[int], Batch]]]:
        """Return the items' batches by table. Raises: BadLocator when `refuse`, else fills `bad`."""
        if usual := self._of_one_text_key(now_open, items):
            return [usual]
        groups: defaultdict[tuple[str, tuple[str, ...]], list[tuple[int, Key]]] = defaultdict(list)
        tables: dict[str, Table] = {}
        named: object = None
        table: Table | None = None
        for number, item in enumerate(items):
            try:
                if table is None or item.locator.get("table") != named:
                    # Both or neither: a name that leads nowhere keeps the pair from before.
                    table, named = now_open.catalog.table(item.locator.get("table")), item.locator.get("table")
                    tables[table.label] = table
                columns, values = key_of(table, item.locator)
            except BadLocator as problem:
                if refuse:
                    raise
                if bad is not None:
                    bad[number] = problem.detail
                continue
            groups[table.label, columns].append((number, values))
        found: dict[str, list[tuple[list[int], Batch]]] = {}
        for (label, columns), members in groups.items():
            for start in range(0, len(members), BATCH):
                part = members[start : start + BATCH]
                batch = Batch(table=tables[label], columns=columns, keys=tuple(key for _, key in part))
                found.setdefault(label, []).append(([number for number, _ in part], batch))
        return list(found.values())

    @staticmethod
    def _of_one_text_key(now_open: _Open, items: Sequence[Item]) -> list[tuple[list[int], Batch]]:
        """Return the batches of items that are named by one text column of one table, as most are; else nothing.

        What `key_of` says of each, told of ten thousand at once.
        """
        first = items[0].locator if items else {}
        named, key = first.get("table"), first.get("key")
        if type(named) is not str or type(key) is not dict or len(key) != 1:
            return []
        (column,) = key
        try:
            table = now_open.catalog.table(named)
        except BadLocator:
            return []
        if column not in table.texts or (column,) not in table.named:
            return []
        values = []
        for item in items:
            locator = item.locator
            key = locator.get("key")
            value = key.get(column) if type(key) is dict and len(key) == 1 else None
            if type(value) is not str or len(locator) != 2 or locator.get("table") != named:  # noqa: PLR2004 -- both
                return []
            values.append(value)
        if "\0" in "".join(values):
            return []
        return [
            (
                list(range(start, min(start + BATCH, len(values)))),
                Batch(table=table, columns=(column,), keys=tuple(zip(values[start : start + BATCH], strict=True))),
            )
            for start in range(0, len(values), BATCH)
        ]

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        if self._read_only:
            raise ReadOnlyConnector("erase")
        limit = Deadline("erase", deadline)
        forms = owner_forms(owner_identifiers)
        answers: dict[int, Answer] = {}
        bad: dict[int, str] = {}
        with self._session(limit, read_only=False) as now_open:
            batches = [each for group in self._by_table(now_open, items, refuse=False, bad=bad) for each in group]
            for numbers, batch in batches:
                given = self._erase_batch(now_open, batch, forms, limit)
                answers.update(zip(numbers, given, strict=True))
        answers.update((number, (Outcome.FAILED, detail)) for number, detail in bad.items())
        at = now + timedelta(seconds=limit.spent())
        return receipts_of(items, [answers[number] for number in range(len(items))], at)

    def correct(
        self, item: Item, values: Mapping[str, Any], *, owner_identifiers: Sequence[str], deadline: float
    ) -> Correction:
        """Set named columns of one row, in one transaction that checks the owner and reads the row again.

        Raises: as `erase`; BadLocator for a bad place or a column that is not there.
        """
        if self._read_only:
            raise ReadOnlyConnector("correct")
        limit = Deadline("correct", deadline)
        with self._session(limit, read_only=False) as now_open:
            _, batch = self._by_table(now_open, [item], refuse=True)[0][0]
            missing = sorted(set(values) - set(batch.table.columns))
            if missing:
                raise BadLocator(f"the table has no column {', '.join(missing)}")
            owner = owner_column(batch.table, self._owner_field)
            run, rows = now_open.connection.exec_driver_sql, now_open.rows
            run(self._database.begin)
            found = rows.select(batch, [owner] if owner else [], lock=True)
            if not found or (owner and not is_one_of(found[0][1][0], owner_forms(owner_identifiers))):
                run("ROLLBACK")
                return Correction(
                    corrected=False, detail="the row names another owner, or none" if found else "no row of this key"
                )
            if rows.update(batch, values) != 1:
                run("ROLLBACK")
                return Correction(corrected=False, detail="the update hit more or less than the one row")
            run("COMMIT")
            again = rows.select(batch, list(values))
        kept = bool(again) and again[0][1] == tuple(values.values())
        detail = "updated by key and read again" if kept else "the row reads otherwise: a trigger or type changed it"
        return Correction(corrected=kept, detail=detail)

    def _erase_batch(
        self, now_open: _Open, batch: Batch, forms: frozenset[str], limit: Deadline, *, step_by_step: bool = False
    ) -> list[Answer]:
        """Erase a batch in one transaction; halve it when the database refuses, until the refused rows stand alone."""
        size = len(batch.keys)
        at_once = not step_by_step and self._may_at_once(now_open, batch)
        try:
            self._database.arm(now_open.connection, limit)
            return (self._at_once if at_once else self._transact)(now_open, batch, forms)
        except Timeout:
            self._roll_back(now_open)
            return [(Outcome.FAILED, "not finished before the deadline")] * size
        except Refused as refused:
            self._roll_back(now_open)
            if size == 1 and not at_once:
                return [(Outcome.FAILED, refused.reason)]
        except sa.exc.DBAPIError as error:
            problem = self._database.explain(error, limit)
            if not isinstance(problem, Refused | Timeout):
                raise problem from None
            self._roll_back(now_open)
            if isinstance(problem, Timeout):
                return [(Outcome.FAILED, "not finished before the deadline")] * size
            if size == 1 and not at_once:
                return [(Outcome.FAILED, problem.reason)]
        if at_once:
            return self._erase_batch(now_open, batch, forms, limit, step_by_step=True)
        half = size // 2
        first, second = batch.only(range(half)), batch.only(range(half, size))
        return [
            *self._erase_batch(now_open, first, forms, limit),
            *self._erase_batch(now_open, second, forms, limit),
        ]

    @staticmethod
    def _roll_back(now_open: _Open) -> None:
        try:
            now_open.connection.exec_driver_sql("ROLLBACK")
        except sa.exc.DBAPIError:
            # The database has ended the transaction itself, or the connection: then nothing was committed either.
            return

    def _may_at_once(self, now_open: _Open, batch: Batch) -> bool:
        """Tell whether one statement can do what `_transact` does in steps.

        So it is where nothing references the rows, no row is named twice, and the database compares owners as we do.
        """
        return (
            self._database.at_once is not None
            and batch.is_plain
            and len(set(batch.keys)) == len(batch.keys)
            and (self._owner_field is None or self._owner_field in batch.table.compared)
            and not now_open.catalog.children(batch.table)
        )

    def _at_once(self, now_open: _Open, batch: Batch, forms: frozenset[str]) -> list[Answer]:
        """Do what `_transact` does, by one statement. Raises: Refused, DBAPIError: then nothing changed.

        1. delete by key what names one of these owners; 2. read again by key, with the owner of what is left; 3. ask
        whether the role sees all, and what else the delete may have changed; 4. commit.
        """
        run, owner = now_open.connection.exec_driver_sql, self._owner_field
        run(self._database.begin)
        went = now_open.rows.delete_owned(batch, owner, forms)  # 1
        gone = set(went)
        if len(gone) < len(went):
            raise Refused("the delete hit more rows than were named")
        seen = now_open.rows.look(batch)  # 2, 3
        left = dict(now_open.rows.select(batch, [owner] if owner else [])) if seen.rows else {}
        if seen.may_be_hidden:
            raise Refused("row security hides rows of the table from this role, so absence cannot be read")
        self._touch(now_open, batch.table, with_children=False)
        if seen.may_change_others:
            self._touch_changed(now_open)
        run("COMMIT")  # 4
        if not left and len(gone) == len(batch.keys):
            return [ERASED] * len(gone)
        return [
            (KEPT if owner is None or number in gone or is_one_of(left[number][0], forms) else ANOTHERS)
            if number in left
            else (ERASED if number in gone else ABSENT)
            for number in range(len(batch.keys))
        ]

    def _transact(self, now_open: _Open, batch: Batch, forms: frozenset[str]) -> list[Answer]:
        """Select, check, delete and read again in one transaction. Raises: Refused, DBAPIError: then nothing changed.

        1. lock the rows by key; 2. compare owners; 3. treat the rows that reference them; 4. delete by key; 5. read
        again by key; 6. commit. A crash before 6 changes nothing, after 6 the next call finds the rows absent.
        """
        run, rows = now_open.connection.exec_driver_sql, now_open.rows
        try:
            owner = owner_column(batch.table, self._owner_field)
        except BadLocator as problem:
            return [(Outcome.FAILED, problem.detail)] * len(batch.keys)
        run(self._database.begin)
        if self._database.hides_rows(now_open.connection, batch.table):
            raise Refused("row security hides rows of the table from this role, so absence cannot be read")
        found = dict(rows.select(batch, [owner] if owner else [], lock=True))  # 1
        answers: dict[int, Answer] = {}
        wanted: list[int] = []
        for number in range(len(batch.keys)):
            if number not in found:
                answers[number] = ABSENT
            elif owner and not is_one_of(found[number][0], forms):  # 2
                answers[number] = ANOTHERS
            else:
                wanted.append(number)
        self._touch(now_open, batch.table, with_children=len(found) < len(batch.keys))
        answers |= self._delete(now_open, batch, wanted, forms)
        self._touch_changed(now_open)
        run("COMMIT")  # 6
        return [answers[number] for number in range(len(batch.keys))]

    def _delete(self, now_open: _Open, batch: Batch, wanted: list[int], forms: frozenset[str]) -> dict[int, Answer]:
        """Steps 3 to 5: answers for the wanted items of a batch. Raises: Refused."""
        if not wanted:
            return {}
        rows = now_open.rows
        refused, note = self._treat_children(now_open, batch.only(wanted), forms)  # 3
        answers: dict[int, Answer] = {wanted[place]: (Outcome.FAILED, why) for place, why in refused.items()}
        going = [number for place, number in enumerate(wanted) if place not in refused]
        if going:
            part = batch.only(going)
            if rows.delete(part) > len(set(part.keys)):  # 4
                raise Refused("the delete hit more rows than were named")
            left = {number for number, _ in rows.select(part, [])}  # 5
            gone: Answer = (Outcome.ERASED, f"{ERASED[1]}{note}") if note else ERASED
            answers |= {number: KEPT if place in left else gone for place, number in enumerate(going)}
        return answers

    def _treat_children(self, now_open: _Open, batch: Batch, forms: frozenset[str]) -> tuple[dict[int, str], str]:
        """Return which items other rows stop, and what happens to referencing rows. Raises: Refused."""
        if self._delete_children and now_open.catalog.children(batch.table):
            self._touch(now_open, batch.table, with_children=True)
            counts = now_open.rows.delete_children(batch, self._owner_field, forms)
            listed = ", ".join(f"{count} of {label}" for label, count in sorted(counts.items()))
            return {}, f"; referencing rows of the batch deleted: {listed}" if listed else ""
        refused: dict[int, str] = {}
        notes = []
        for child in now_open.catalog.children(batch.table):
            found = now_open.rows.referencing(batch, child)
            if not found:
                continue
            if child.blocks:
                for number, keys in found.items():
                    refused[number] = f"{len(keys)} rows of {child.table.label} reference the row; erase them first"
                continue
            self._touch(now_open, child.table, with_children=True)
            total = sum(len(keys) for keys in found.values())
            notes.append(f"{total} rows of {child.table.label} by {child.on_delete}")
        return refused, f"; in the batch also {', '.join(notes)}" if notes else ""

    def _touch_changed(self, now_open: _Open) -> None:
        """Remember the tables that the database says this transaction changed, whatever made it do so."""
        for schema, name in self._database.changed(now_open.connection):
            self._touch(now_open, now_open.catalog.at(schema, name), with_children=False)

    def _touch(self, now_open: _Open, table: Table, *, with_children: bool) -> None:
        """Remember what `reclaim` has to rewrite; children too where rows of them went, or may have before a crash."""
        waiting = [table]
        seen: set[str] = set()
        while waiting:
            each = waiting.pop()
            if each.label in seen:
                continue
            seen.add(each.label)
            self._touched[each.label] = each
            if with_children:
                waiting += [child.table for child in now_open.catalog.children(each)]

    @override
    def await_done(self, *, deadline: float) -> bool:
        return True

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        if self._read_only:
            raise ReadOnlyConnector("reclaim")
        limit = Deadline("reclaim", deadline)
        with self._session(limit, read_only=False) as now_open:
            return self._database.reclaim(now_open.connection, self._touched, level, now, limit)

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        limit = Deadline("verify", deadline)
        findings: dict[int, Finding] = {}
        bad: dict[int, str] = {}
        with self._session(limit, read_only=True) as now_open:
            for group in self._by_table(now_open, items, refuse=False, bad=bad):
                absent = []
                for numbers, batch in group:
                    self._database.arm(now_open.connection, limit)
                    here, hidden = self._present(now_open, batch)
                    seen = findings_by_key([items[number] for number in numbers], here, is_hidden=hidden)
                    findings.update(zip(numbers, seen, strict=True))
                    absent += [number for number, each in zip(numbers, seen, strict=True) if each.present is False]
                if level >= Level.L2 and absent:
                    tables = [group[0][1].table]
                    gone = {number: items[number] for number in absent}
                    findings |= self._look(now_open, tables, gone, level=level, reclaimed=reclaimed, limit=limit)
        for number, why in bad.items():
            item = items[number]
            findings[number] = Finding(copy_id=item.copy_id, level=None, present=None, how="none", could_not_check=why)
        return [findings[number] for number in range(len(items))]

    def _present(self, now_open: _Open, batch: Batch) -> tuple[set[int], bool]:
        """Return the numbers of the rows that are there, and whether others may be hidden."""
        if self._database.at_once is not None and batch.is_plain:
            seen = now_open.rows.look(batch, is_settled=True)
            if not seen.rows:
                return set(), seen.may_be_hidden
        hidden = self._database.hides_rows(now_open.connection, batch.table)
        return {number for number, _ in now_open.rows.select(batch, [])}, hidden

    def _look(
        self,
        now_open: _Open,
        tables: Sequence[Table],
        items: Mapping[int, Item],
        *,
        level: Level,
        reclaimed: ReclaimReport | None,
        limit: Deadline,
    ) -> dict[int, Finding]:
        """Return the findings of absent rows of these tables at L2: of those with canaries, then of those without."""
        findings = {}
        for group in (
            {n: i for n, i in items.items() if i.canaries},
            {n: i for n, i in items.items() if not i.canaries},
        ):
            if not group:
                continue
            pairs = [(number, canary) for number, item in group.items() for canary in item.canaries]
            seen = self._database.look(now_open.connection, tables, [each for _, each in pairs], reclaimed, limit)
            dirty = {pairs[position][0] for position in seen.found}
            for number, item in group.items():
                findings[number] = finding_in_files(
                    item, level, seen.how, seen.could_not_check, is_dirty=number in dirty
                )
        return findings

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        limit = Deadline("residue", deadline)
        with self._session(limit, read_only=True) as now_open:
            tables = now_open.catalog.tables()
            return self._database.residue(now_open.connection, tables, canaries, limit) if canaries else []

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        limit = Deadline("check", deadline)
        name = f"muniment_check_{secrets.token_hex(8)}"
        owner = self._owner_field or "owner"
        try:
            with self._session(limit, read_only=False) as now_open:
                quoted = now_open.catalog.quote(owner)
                run = now_open.connection.exec_driver_sql
                run(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, canary TEXT NOT NULL, {quoted} TEXT NOT NULL)")
                run(f"INSERT INTO {name} VALUES (1, 'muniment canary {secrets.token_hex(16)}', 'check:self')")
        except (ConnectorError, BadLocator) as problem:
            reachable = isinstance(problem, BadLocator) or self._answers(limit)
            return check_report(limit, now, reachable=reachable, problems=(str(problem),))
        try:
            with SqlConnector(
                self._database, owner_field=self._owner_field, delete_children=False, read_only=False
            ) as probe:
                return try_out(probe, Item(copy_id="check", locator={"table": name, "key": {"id": 1}}), limit, now)
        except ConnectorError as problem:
            return check_report(limit, now, reachable=True, problems=(str(problem),))
        finally:
            with self._session(Deadline("check", 10), read_only=False) as now_open:
                now_open.connection.exec_driver_sql(f"DROP TABLE {name}")

    def _answers(self, limit: Deadline) -> bool:
        try:
            with self._session(limit, read_only=True):
                return True
        except ConnectorError:
            return False

    @override
    def close(self) -> None:
        self._drop(self._writer)
        self._drop(self._reader)

"""Items that are rows of several tables under one name: a thread of a LangGraph saver, a memory of a LangGraph store.

Guarantees, beyond the contract of `base`: the name is compared whole, in every table, never by pattern. A batch is one
transaction that reads whose the items are and deletes leaves first, the root last; rows that are there after the commit
were written meanwhile and go in another round, and an item that keeps coming back is `failed`. Rows whose root is gone
(late writes, orphan vectors) are the item: reported as present, and erased, though they name no owner. An item of which
any root row names somebody else is left untouched as a whole. `verify` counts the rows anew: what came late is seen.

Does not parse what frameworks wrote except to read the owner and to know texts to look for; see `serialized`.
"""

from __future__ import annotations

import json
import secrets
from abc import abstractmethod
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from msgspec import structs
from typing_extensions import override

from connectors.base import (
    Capabilities,
    CheckReport,
    Deadline,
    FenceReport,
    Finding,
    Item,
    Level,
    Outcome,
    Receipt,
    owner_forms,
)
from connectors.checking import check_report, try_out
from connectors.errors import BadConfig, BadLocator, ConnectorError, ReadOnlyConnector
from connectors.residue import MIN_CANARY, samples
from connectors.serialized import plain, shown, texts
from connectors.sql import SqlConnector, _Open
from connectors.sql_answers import Answer
from connectors.sql_database import Database, Refused
from connectors.sql_fence import SqlFence
from connectors.sql_rows import Batch
from connectors.vectors import PROBE, HalfVectorType, forms, is_vector, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from connectors.base import Locator, ReclaimReport, Selector
    from connectors.sql import Candidate
    from connectors.sql_catalog import Key, Table

BATCH = 100
_ROUNDS = 3
_PAGE = 1000
_CANDIDATES, _CANARIES = 200, 48
"""Texts of an item that are compared with other items, and canaries that are kept: the longest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One table of an item: the columns with content, and the column that says how they are written.

    The owner's column is always JSON.
    """

    table: str
    content: tuple[str, ...]
    written: str | None = None
    optional: bool = False
    """True where a store without that table is whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How an item lies in a database: leaves first, the root last."""

    kind: str
    noun: str
    columns: tuple[str, ...]
    """The columns that name the item, alike in every table."""
    parts: tuple[Part, ...]
    owner: str
    """The JSON column of the root that holds `owner_field`."""

    @property
    def root(self) -> Part:
        """Return the table without which the item is not listed."""
        return self.parts[-1]


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one item looked like: rows by table, and the owners that its root rows name."""

    rows: Counter[str] = field(default_factory=Counter)
    owners: set[str | None] = field(default_factory=set)
    is_leftover: bool = False
    """Whether the rows are what a broken-off erasure of the item left, so that their owner was compared before."""
    why_not: str | None = None
    """Why the item cannot be erased as it lies."""


class UnitConnector(SqlConnector):
    """Drives one shape in one database."""

    def __init__(
        self, database: Database, shape: Shape, *, owner_field: str | None, read_only: bool, fenced: bool = False
    ) -> None:
        super().__init__(database, owner_field=owner_field, delete_children=False, read_only=read_only)
        if owner_field is not None and '"' in owner_field:
            raise BadConfig("owner_field holds a quotation mark")
        self._shape = shape
        self._fenced = fenced

    @abstractmethod
    def key_of(self, locator: Locator) -> Key:
        """Return the values of the shape's columns. Raises: BadLocator."""

    @abstractmethod
    def locator_of(self, key: Key) -> dict[str, Any]:
        """Return the locator of these values."""

    @override
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), kind=self._shape.kind, batch_size=BATCH, fence=self._fenced)

    @override
    def check_locator(self, locator: Locator) -> None:
        self.key_of(locator)
        with self._session(Deadline("check_locator", 10), read_only=True) as now_open:
            self._tables(now_open)

    def _tables(self, now_open: _Open) -> list[tuple[Part, Table]]:
        """Return the tables that are there, leaves first. Raises: BadLocator."""
        found = []
        for part in self._shape.parts:
            try:
                table = now_open.catalog.table(part.table)
            except BadLocator:
                if part.optional:
                    continue
                raise
            if not set(self._shape.columns) <= set(table.columns):
                raise BadLocator(f"the tables are not those of a {self._shape.kind} store")
            found.append((part, table))
        return found

    @override
    def _by_table(
        self, now_open: _Open, items: Sequence[Item], *, refuse: bool, bad: dict[int, str] | None = None
    ) -> list[list[tuple[list[int], Batch]]]:
        """Return the items in batches; each batch names its rows in the root table."""
        keyed: list[tuple[int, Key]] = []
        tables = self._tables(now_open) if refuse else None
        for number, item in enumerate(items):
            try:
                tables = tables or self._tables(now_open)
                keyed.append((number, self.key_of(item.locator)))
            except BadLocator as problem:
                if refuse:
                    raise
                if bad is not None:
                    bad[number] = problem.detail
        batches = []
        for start in range(0, len(keyed), BATCH):
            page = keyed[start : start + BATCH]
            root = (tables or [])[-1][1]
            batch = Batch(table=root, columns=self._shape.columns, keys=tuple(key for _, key in page))
            batches.append(([number for number, _ in page], batch))
        return [batches] if batches else []

    def _fence_of(self, now_open: _Open) -> SqlFence:
        return SqlFence(now_open.connection, now_open.catalog, self._shape.kind, self._shape.columns)

    @override
    def fence(self, scope: Locator) -> FenceReport:
        if not self._fenced:
            return super().fence(scope)
        if self._read_only:
            raise ReadOnlyConnector("fence")
        key = self.key_of(scope)
        with self._session(Deadline("fence", 10), read_only=False) as now_open:
            tables = [table for _, table in self._tables(now_open)]
            self._fence_of(now_open).install(tables)
            self._fence_of(now_open).add(tables[-1], [key])
        return FenceReport(held=True, detail=f"triggers refuse new rows of the {self._shape.noun}")

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("discover", deadline)
        if self._owner_field is None:
            raise BadConfig("discover needs owner_field")
        with self._session(limit, read_only=True) as now_open:
            for _, table in self._tables(now_open):
                if self._database.hides_rows(now_open.connection, table):
                    raise BadLocator(f"row security hides rows of {table.label} from this role")
        wanted = sorted(owner_forms(selector.identifiers))
        after: Key | None = None
        while wanted:
            with self._session(limit, read_only=True) as now_open:
                page = self._owned(now_open, wanted, after)
            yield from (self.locator_of(key) for key in page)
            if len(page) < _PAGE:
                return
            after = page[-1]

    def _owned(self, now_open: _Open, wanted: Sequence[str], after: Key | None) -> list[Key]:
        """Return the next names of items of which a root row names one of these owners."""
        quote = now_open.catalog.quote
        root = self._tables(now_open)[-1][1]
        names = ", ".join(quote(name) for name in self._shape.columns)
        document = quote(self._shape.owner)
        if now_open.connection.dialect.name == "sqlite":
            text = f"CAST({document} AS TEXT)"
            owner = f"CASE WHEN json_valid({text}) THEN CAST(json_extract({text}, ?) AS TEXT) END"
            mark, path = "?", f'$."{self._owner_field}"'
        else:
            owner, mark, path = f"CAST({document} AS jsonb) ->> %s", "%s", str(self._owner_field)
        later, values = "", (path, *wanted)
        if after is not None:
            later, values = f" AND ({names}) > ({', '.join([mark] * len(after))})", (*values, *after)
        rows = now_open.connection.exec_driver_sql(
            f"SELECT DISTINCT {names} FROM {root.quoted} WHERE {owner} IN ({', '.join([mark] * len(wanted))}){later}"
            f" ORDER BY {names} LIMIT {_PAGE}",
            values,
        )
        return [tuple(row) for row in rows]

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("walk", deadline)
        with self._session(limit, read_only=True) as now_open:
            tables = [table for _, table in reversed(self._tables(now_open))]
            for table in tables:
                if self._database.hides_rows(now_open.connection, table):
                    raise BadLocator(f"row security hides rows of {table.label} from this role")
        for table in tables:
            after: Key | None = None
            while True:
                with self._session(limit, read_only=True) as now_open:
                    page = self._named(now_open, table, None if table is tables[0] else tables[0], after)
                for key in page:
                    try:
                        yield self.locator_of(key)
                    except BadLocator:
                        continue  # no item can be registered under such a name
                if len(page) < _PAGE:
                    break
                after = page[-1]

    def _named(self, now_open: _Open, table: Table, root: Table | None, after: Key | None) -> list[Key]:
        """Return the next names in a table, each once; with `root`, those that have no row there."""
        quote = now_open.catalog.quote
        names = ", ".join(f"t.{quote(name)}" for name in self._shape.columns)
        conditions, values = [], ()
        if root is not None:
            same = " AND ".join(f"r.{quote(name)} = t.{quote(name)}" for name in self._shape.columns)
            conditions.append(f"NOT EXISTS (SELECT 1 FROM {root.quoted} AS r WHERE {same})")
        if after is not None:
            mark = "?" if now_open.connection.dialect.name == "sqlite" else "%s"
            conditions.append(f"({names}) > ({', '.join([mark] * len(after))})")
            values = after
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        rows = now_open.connection.exec_driver_sql(
            f"SELECT DISTINCT {names} FROM {table.quoted} AS t{where} ORDER BY {names} LIMIT {_PAGE}", values
        )
        return [tuple(row) for row in rows]

    def _look_at(self, now_open: _Open, batch: Batch, *, lock: bool = False) -> list[Seen]:
        """Return what there is of each item now; with `lock`, so that nobody changes the root rows meanwhile."""
        seen = [Seen() for _ in batch.keys]
        for part, table in self._tables(now_open):
            is_root = part is self._shape.root
            wanted = [self._shape.owner] if is_root and self._owner_field is not None else []
            for number, values in now_open.rows.select(replace(batch, table=table), wanted, lock=lock and is_root):
                seen[number].rows[table.name] += 1
                if wanted:
                    seen[number].owners.add(self._owner(values[0]))
        return seen

    def _owner(self, document: object) -> str | None:
        read = plain(document)
        owner = read.get(self._owner_field) if isinstance(read, dict) else None
        return None if owner is None else str(owner)

    @override
    def _may_at_once(self, now_open: _Open, batch: Batch) -> bool:
        return False  # an item is rows of several tables

    @override
    def _transact(self, now_open: _Open, batch: Batch, forms: frozenset[str]) -> list[Answer]:
        """Delete whole items; again what was written meanwhile. Raises: Refused, DBAPIError."""
        if self._fenced:
            self._fence_of(now_open).install([table for _, table in self._tables(now_open)])
        answers = self._round(now_open, batch, forms)
        again: list[int] = []
        for _ in range(_ROUNDS):
            again = [
                number
                for number, each in enumerate(self._look_at(now_open, batch))
                if each.rows and answers[number][0] in {Outcome.ERASED, Outcome.ALREADY_ABSENT}
            ]
            if not again:
                return answers
            for number, (outcome, detail) in zip(again, self._round(now_open, batch.only(again), forms), strict=True):
                answers[number] = (outcome, detail)
        for number in again:
            answers[number] = (Outcome.FAILED, f"the {self._shape.noun} is written again while it is erased")
        return answers

    def _round(self, now_open: _Open, batch: Batch, forms: frozenset[str]) -> list[Answer]:
        """One transaction: 1. read and lock; 2. compare owners; 3. delete, leaves first; 4. commit."""
        run, tables = now_open.connection.exec_driver_sql, self._tables(now_open)
        # What is committed after the snapshot is no longer deleted unseen; the next round reads its owner first.
        is_sqlite = now_open.connection.dialect.name == "sqlite"
        run(self._database.begin if is_sqlite else "BEGIN ISOLATION LEVEL REPEATABLE READ")
        if any(self._database.hides_rows(now_open.connection, table) for _, table in tables):
            raise Refused("row security hides rows from this role, so absence cannot be read")
        answers: dict[int, Answer] = {}
        wanted = []
        for number, seen in enumerate(self._look_at(now_open, batch, lock=True)):  # 1
            answers[number] = self._judge(seen, forms)  # 2
            wanted += [number] if answers[number][0] is Outcome.ERASED else []
        for _, table in tables:
            self._touch(now_open, table, with_children=True)
            if wanted:
                now_open.rows.delete(replace(batch.only(wanted), table=table))  # 3
        if wanted:
            self._before_commit(now_open, batch.only(wanted))
        self._touch_changed(now_open)
        run("COMMIT")  # 4
        return [answers[number] for number in range(len(batch.keys))]

    def _before_commit(self, now_open: _Open, gone: Batch) -> None:
        """Do what must not be missing once these items are gone. Raises: Refused, DBAPIError: then nothing is gone."""
        if self._fenced:
            self._fence_of(now_open).add(self._tables(now_open)[-1][1], gone.keys)

    def judge(self, item: Item, forms: frozenset[str], limit: Deadline) -> Answer:
        """Return what `erase` would answer now, from reading alone. Raises: ConnectorError."""
        with self._session(limit, read_only=True) as now_open:
            batch = self._by_table(now_open, [item], refuse=True)[0][0][1]
            return self._judge(self._look_at(now_open, batch)[0], forms)

    def _judge(self, seen: Seen, forms: frozenset[str]) -> Answer:
        if not seen.rows.total():
            return Outcome.ALREADY_ABSENT, f"no row of the {self._shape.noun} in any table"
        counted = ", ".join(f"{count} of {name}" for name, count in seen.rows.items())
        if not seen.rows[self._shape.root.table]:
            return Outcome.ERASED, f"late or orphan rows deleted by name and read again: {counted}"
        if self._owner_field is not None:
            named = seen.owners - {None}
            if not named:
                return Outcome.OWNER_MISMATCH, f"the {self._shape.noun} names no owner"
            if not named <= forms:
                whose = "somebody else too" if named & forms else "another owner"
                return Outcome.OWNER_MISMATCH, f"the {self._shape.noun} names {whose}"
        return Outcome.ERASED, f"deleted by name and read again: {counted}"

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        given = super().erase(items, owner_identifiers=owner_identifiers, now=now, deadline=deadline)
        return [
            structs.replace(receipt, method="DELETE by exact name in every table, leaves first") for receipt in given
        ]

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        limit = Deadline("capture", deadline)
        with self._session(limit, read_only=True) as now_open:
            batches = [each for group in self._by_table(now_open, items, refuse=True) for each in group]
            found: list[dict[Candidate, None]] = [{} for _ in items]
            for numbers, batch in batches:
                for place, number in enumerate(numbers):
                    self._database.arm(now_open.connection, limit)
                    found[number] = self._candidates(now_open, batch.only([place]))
            every = [(number, piece) for number, pieces in enumerate(found) for piece in pieces]
            probes = [probe for _, (probe, _) in every]
            shared: set[int] = set()
            for _, table in self._tables(now_open) if batches else ():
                own = [replace(batch, table=table) for _, batch in batches]
                shared |= now_open.rows.shared(own, probes, limit)
        held: dict[str, list[bytes]] = {item.copy_id: [] for item in items}
        for position, (number, (_, canaries)) in enumerate(every):
            kept = held[items[number].copy_id]
            if position not in shared and len(kept) < _CANARIES:
                kept += canaries
        return held

    def _candidates(self, now_open: _Open, batch: Batch) -> dict[Candidate, None]:
        """Return what to look for later of one item: its vectors, then its longest texts."""
        told: dict[Candidate, None] = {}
        said: set[bytes] = set()
        for part, table in self._tables(now_open):
            written = [part.written] if part.written else []
            for _, row in now_open.rows.select(replace(batch, table=table), [*part.content, *written]):
                for name, value in zip(part.content, row, strict=False):
                    if is_vector(table.columns[name]):
                        found = forms(numbers_of(value), half=isinstance(table.columns[name], HalfVectorType))
                        told |= {(str(value)[:PROBE].encode(), tuple(found)): None} if found else {}
                        continue
                    kind = str(row[-1]) if written and name != self._shape.owner else None
                    read = self._plain(value, kind, batch.keys[0])
                    if isinstance(read, dict) and name == self._shape.owner:
                        read = {each: content for each, content in read.items() if each != self._owner_field}
                    said |= {each if isinstance(each, bytes) else _encoded(each) for each in _contents(read)}
        said -= {_encoded(str(value)) for value in batch.keys[0]}
        longest = sorted((text for text in said if len(text) >= MIN_CANARY), key=len, reverse=True)
        return told | {(piece, (piece,)): None for text in longest[:_CANDIDATES] for piece in samples(text)}

    def _plain(self, value: object, written: str | None, name: Key) -> Any:
        """Return a column's value of the item of this name as plain data, opened as far as it can be."""
        return plain(value, written)

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        limit = Deadline("export", deadline)
        for item in items:
            with self._session(limit, read_only=True) as now_open:
                batch = self._by_table(now_open, [item], refuse=True)[0][0][1]
                content = self._exported(now_open, batch)
            yield item.copy_id, json.dumps(content, ensure_ascii=False).encode() if content else None

    def _exported(self, now_open: _Open, batch: Batch) -> dict[str, list[Any]]:
        """Return every row of one item by table, opened as far as it can be."""
        found: defaultdict[str, list[Any]] = defaultdict(list)
        for part, table in reversed(self._tables(now_open)):
            names = list(table.columns)
            for _, row in now_open.rows.select(replace(batch, table=table), names):
                values = dict(zip(names, row, strict=True))
                kinds = {name: str(values[part.written]) for name in part.content if part.written}
                kinds.pop(self._shape.owner, None)
                opened = {name: self._plain(values[name], kinds.get(name), batch.keys[0]) for name in part.content}
                found[table.name].append({name: shown(opened.get(name, value)) for name, value in values.items()})
        return dict(found)

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        limit = Deadline("verify", deadline)
        bad: dict[int, str] = {}
        findings: dict[int, Finding] = {}
        tables: list[Table] = []
        with self._session(limit, read_only=True) as now_open:
            for numbers, batch in [
                b for group in self._by_table(now_open, items, refuse=False, bad=bad) for b in group
            ]:
                self._database.arm(now_open.connection, limit)
                tables = [table for _, table in self._tables(now_open)]
                hidden = any(self._database.hides_rows(now_open.connection, table) for table in tables)
                for number, seen in zip(numbers, self._look_at(now_open, batch), strict=True):
                    findings[number] = self._by_name(items[number], seen, is_hidden=hidden)
            absent = {number: items[number] for number, each in findings.items() if each.present is False}
            if level >= Level.L2 and absent:
                findings |= self._look(now_open, tables, absent, level=level, reclaimed=reclaimed, limit=limit)
        for number, why in bad.items():
            name = items[number].copy_id
            findings[number] = Finding(copy_id=name, level=None, present=None, how="none", could_not_check=why)
        return [findings[number] for number in range(len(items))]

    def _by_name(self, item: Item, seen: Seen, *, is_hidden: bool) -> Finding:
        how = f"rows of the {self._shape.noun} counted in every table on a connection that cannot write"
        if seen.rows:
            counted = ", ".join(f"{count} of {name}" for name, count in seen.rows.items())
            late = "" if seen.rows[self._shape.root.table] else ", late or orphan rows"
            return Finding(copy_id=item.copy_id, level=None, present=True, how=f"{how}: {counted}{late}")
        if is_hidden:
            why = "row security hides rows from this role"
            return Finding(copy_id=item.copy_id, level=None, present=None, how=how, could_not_check=why)
        return Finding(copy_id=item.copy_id, level=Level.L1, present=False, how=how)

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        limit = Deadline("check", deadline)
        scratch = f"muniment_check_{secrets.token_hex(8)}"
        parts = tuple(replace(p, table=f"{scratch}_{n}", optional=False) for n, p in enumerate(self._shape.parts))
        shape = replace(self._shape, parts=parts)
        try:
            with self._session(limit, read_only=True) as now_open:
                self._tables(now_open)
        except ConnectorError as problem:
            reachable = isinstance(problem, BadLocator)
            return check_report(limit, now, reachable=reachable, problems=(str(problem),))
        try:
            locator = self._fill(shape, limit)
            with self._probe(shape) as probe:
                return try_out(probe, Item(copy_id="check", locator=locator), limit, now)
        except ConnectorError as problem:
            return check_report(limit, now, reachable=True, problems=(str(problem),))
        finally:
            with self._session(Deadline("check", 10), read_only=False) as now_open:
                for part in parts:
                    now_open.connection.exec_driver_sql(f"DROP TABLE IF EXISTS {part.table}")

    def _probe(self, shape: Shape) -> UnitConnector:
        """Return a connector of the same class on scratch tables."""
        made = type(self).__new__(type(self))
        UnitConnector.__init__(made, self._database, shape, owner_field=self._owner_field, read_only=False)
        return made

    def _fill(self, shape: Shape, limit: Deadline) -> dict[str, Any]:
        """Make scratch tables of the shape with one item of ours, and return its locator."""
        values = tuple(f"check-{secrets.token_hex(4)}" for _ in shape.columns)
        document = json.dumps({self._owner_field or "owner": "check:self", "n": secrets.token_hex(16)})
        with self._session(limit, read_only=False) as now_open:
            run, quote = now_open.connection.exec_driver_sql, now_open.catalog.quote
            mark = "?" if now_open.connection.dialect.name == "sqlite" else "%s"
            names = ", ".join(quote(name) for name in shape.columns)
            for part in shape.parts:
                columns = list(dict.fromkeys([*part.content, *([shape.owner] if part is shape.root else [])]))
                more = [*columns, *([part.written] if part.written else [])]
                typed = ", ".join(f"{quote(name)} TEXT" for name in [*shape.columns, *more])
                run(f"CREATE TABLE {part.table} ({typed}, n INTEGER, PRIMARY KEY ({names}, n))")
                canary = [f"muniment canary {secrets.token_hex(16)}" for _ in more]
                if part is shape.root:
                    canary[columns.index(shape.owner)] = document
                marks = ", ".join([mark] * (len(values) + len(more)))
                run(f"INSERT INTO {part.table} VALUES ({marks}, 1)", (*values, *canary))
        return self.locator_of(values)


def _contents(read: object) -> Iterator[str | bytes]:
    """Yield the texts of a plain value; of bytes that nothing could read, themselves and the texts that lie open."""
    if isinstance(read, bytes):
        yield read
    yield from texts(read)


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")

"""What a lost database is rebuilt from: its rows, sealed, in the unlocked store, before the record needs them.

Guarantees: before a batch is stored, every row that its entries refer to (wrapped data keys, subjects and their names,
sets, streams, runs, recorders, the class in force) lies in the unlocked store under `<log id>/rows/<uuid7>`, sealed
under a key of the tenant that is kept with the key-encryption keys. Rows of the same key groups, wrapped anew after a
destruction, follow before the old key-encryption key goes. Once a day all of the registry goes to
`<log id>/registry/<date>-<uuid7>/`; three such snapshots are kept, and rows older than the oldest of them are removed,
because it holds them. Nothing here opens by itself: wrapped keys stay wrapped, names stay sealed under the keys of
their people, so they end with these keys.

Not here: putting any of it back (`registry.rebuild`), the log's own index (`ledger.head`), announcements that were not
in the log yet when the database was lost.

A crash between the rows and the batch leaves rows that nobody refers to. A snapshot without its `end` does not count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec
import sqlalchemy as sa
import zstandard
from sqlmodel import Session, col, select

from ledger.draft import Draft
from ledger.entry import Kind, uuid7
from ledger.errors import ObjectMissing
from ledger.head import Transactions
from ledger.models import LogState
from ledger.objects import HotStore
from registry.errors import JournalNotWritten, JournalUnreadable, UnknownTenant
from registry.keyed import IDENTITY_CLASS, NOBODY, chunks
from registry.models import (
    RecorderRow,
    RunRow,
    StreamRow,
    Subject,
    SubjectIdentifier,
    SubjectSet,
    SubjectSetMember,
    Tenant,
)
from registry.sets import EMPTY_SET, members
from vault.envelope import context, seal, unseal
from vault.errors import VaultError
from vault.keks import KekStore
from vault.models import DataKey, PartKey
from vault.vault import Vault

ROWS = "rows/"
SNAPSHOTS = "registry/"
END = "end"
KEPT_SNAPSHOTS = 3
MARGIN = timedelta(hours=1)
"""Rows are written with the time of the call that made them; none is younger than its transaction by more."""
TENANT_TABLE = "tenant"
CONTROL = (TENANT_TABLE, "token", "data_class", "kind", "machine", "store", "hold")
"""Small tables without which nothing can be served: written again whenever a row of them changed."""
REBUILT = frozenset(
    {
        "entry",
        "part_places",
        "payload_object",
        "payload_walk",
        "log_state",
        "log_stream",
        "recorder_range",
        "recorder_beat",
        "staged",
    }
)
"""Tables that come from the bucket."""
LEFT_OUT = frozenset({"outbox", "idempotency"})
"""Announcements on their way to the log, and answers kept for a day."""
VAULT_ROWS = frozenset({"vault_data_key", "vault_part_key", "vault_key_group", "vault_retired_kek"})
"""Tables that the vault writes and reads itself."""

_VERSION = 1
_LABEL = "journal"
_REMEMBERED = 100_000
_PAGE = 2_000
_PAGE_OF = {"certificate_piece": 8}
"""Rows of up to a megabyte each."""
_OBJECT_ROWS = 5_000
_OBJECT_BYTES = 8 << 20
"""Bytes in columns of bytes after which an object is written, whatever the number of its rows."""
_KEY_PAGE = 1_000
_LEVEL = 3
# Events that follow no change of a small table.
_QUIET = frozenset(
    {
        Kind.CONTENT_READ,
        Kind.COPY_ERASED,
        Kind.COPY_VERIFIED,
        Kind.COPY_STATE,
        Kind.REQUEST_STATE,
        Kind.MACHINE_VIOLATED,
    }
)

Row = dict[str, Any]
Ref = tuple[str, int | str, int]
Tables = Callable[[], Sequence[sa.Table]]


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What one object holds: snapshots of the vault's own format, and rows by table. Append-only."""

    at: datetime
    keys: tuple[bytes, ...] = ()
    tables: dict[str, list[Row]] = {}
    parts: int = 0
    outbox_counter: int = 0


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """The tenant is named in clear, because whoever rebuilds must know whose key opens the rest."""

    version: int
    tenant_id: int
    sealed: bytes


def pack(keks: KekStore, tenant_id: int, log_id: str, path: str, content: Content) -> bytes:
    """Return an object's bytes, bound to tenant, log and path."""
    plain = zstandard.ZstdCompressor(level=_LEVEL).compress(msgspec.msgpack.encode(content))
    bound = context(str(tenant_id), log_id, path, _LABEL)
    sealed = seal(keks.journal_key(str(tenant_id)), plain, bound)
    return msgspec.msgpack.encode(_Envelope(version=_VERSION, tenant_id=tenant_id, sealed=sealed))


def tenant_of(path: str, data: bytes) -> int:
    """Return whose object this says it is. Raises: JournalUnreadable."""
    return _opened(path, data).tenant_id


def unpack(keks: KekStore, log_id: str, path: str, data: bytes) -> Content:
    """Return what an object holds. Raises: JournalUnreadable; KekUnknown where the tenant's key is not there."""
    envelope = _opened(path, data)
    key = keks.journal_key(str(envelope.tenant_id), make=False)
    try:
        plain = unseal(key, envelope.sealed, context(str(envelope.tenant_id), log_id, path, _LABEL))
        packed = zstandard.ZstdDecompressor().decompress(plain)
        return msgspec.msgpack.decode(packed, type=Content)
    except (VaultError, zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise JournalUnreadable(path) from error


def _opened(path: str, data: bytes) -> _Envelope:
    try:
        envelope = msgspec.msgpack.decode(data, type=_Envelope)
    except msgspec.MsgspecError as error:
        raise JournalUnreadable(path) from error
    if envelope.version != _VERSION:
        raise JournalUnreadable(path)
    return envelope


def tenant_column(table: sa.Table) -> sa.Column[Any] | None:
    """Return the column that says whose a row is, None for a table of no tenant."""
    return table.c.id if table.name == TENANT_TABLE else table.c.get("tenant_id")


@dataclass(slots=True)
class _Memory:
    """What this process wrote lately, in two halves: the older one is forgotten when the younger is full."""

    young: set[object] = field(default_factory=set)
    old: set[object] = field(default_factory=set)

    def new(self, refs: Iterable[Any]) -> set[Any]:
        """Return those that were not written, as far as is remembered."""
        return {ref for ref in refs if ref not in self.young and ref not in self.old}

    def add(self, refs: Iterable[object]) -> None:
        """Remember these."""
        self.young.update(refs)
        if len(self.young) > _REMEMBERED:
            self.old, self.young = self.young, set()


class Journal:
    """Writes rows to the unlocked store. One instance a process."""

    def __init__(self, *, vault: Vault, transactions: Transactions, hot: HotStore, tables: Tables) -> None:
        """`tables` gives every table of the deployment, when it is asked."""
        self._vault = vault
        self._transactions = transactions
        self._hot = hot
        self._tables = tables
        self._memory: dict[int, _Memory] = {}
        self._lock = threading.Lock()

    def before(self, tenant_id: int, log_id: str, drafts: Sequence[Draft], now: datetime) -> None:
        """Write what these entries refer to and this process has not written yet. Raises what store and database do.

        After the transaction that made the rows, before the log is given the drafts.
        """
        with self._lock:
            new = self._of(tenant_id).new(_refs(drafts))
        changed = any(ref[0] == "class" for ref in new) or any(_may_change(draft) for draft in drafts)
        if not new and not changed:
            return
        with self._transactions(tenant_id, write=False) as session:
            content, written = self._gather(session, tenant_id, new, now)
            if changed:
                rows, marks = self._changed(session, tenant_id)
                content.tables.update(rows)
                written |= marks
        self._write(tenant_id, log_id, content, written, now)

    def changed(self, tenant_id: int, now: datetime) -> None:
        """Write the rows of the small tables that changed; for a job, since some change after their event."""
        with self._transactions(tenant_id, write=False) as session:
            log_id = _log_id(session, tenant_id)
            rows, marks = self._changed(session, tenant_id)
        self._write(tenant_id, log_id, Content(at=now, tables=rows), marks, now)

    def snapshot_groups(self, tenant_id: int, groups: Iterable[int], now: datetime) -> int:
        """Write the live rows of key groups and read them back; returns how many objects that made.

        To be called after a rotation's commit and before its old key-encryption keys are destroyed: what was written
        earlier opens under these only. Raises: JournalNotWritten, and what the store raises.
        """
        written = 0
        with self._transactions(tenant_id, write=False) as session:
            log_id = _log_id(session, tenant_id)
        for group_no in sorted(set(groups)):
            with self._transactions(tenant_id, write=False) as session:
                found = self._vault.snapshot_group(session, tenant_id, group_no)
            self._put(tenant_id, log_id, f"{ROWS}{uuid7(now)}", Content(at=now, keys=(found,)), read_back=True)
            written += 1
        return written

    def snapshot_parts(self, tenant_id: int, names: Sequence[tuple[str, int]], now: datetime) -> int:
        """Write the rows of part keys (entry id, number) and read them back; returns how many objects that made.

        To be called before their data keys go: from then on nothing else opens these parts. Raises: JournalNotWritten,
        and what the store raises.
        """
        written = 0
        with self._transactions(tenant_id, write=False) as session:
            log_id = _log_id(session, tenant_id)
        for start in range(0, len(names), _KEY_PAGE):
            with self._transactions(tenant_id, write=False) as session:
                found = self._vault.snapshot_rows(session, tenant_id, [], names[start : start + _KEY_PAGE])
            self._put(tenant_id, log_id, f"{ROWS}{uuid7(now)}", Content(at=now, keys=(found,)), read_back=True)
            written += 1
        return written

    def snapshot_if_due(self, tenant_id: int, now: datetime) -> bool:
        """Write today's snapshot unless it is there; returns whether it was written now."""
        with self._transactions(tenant_id, write=False) as session:
            log_id = _log_id(session, tenant_id)
        today = f"{SNAPSHOTS}{now:%Y-%m-%d}"
        if any(name.startswith(today) for name in complete_snapshots(self._hot, log_id)):
            return False
        self.snapshot(tenant_id, now)
        return True

    def snapshot(self, tenant_id: int, now: datetime) -> str:
        """Write all rows of the tenant that do not come from the bucket, page by page; returns the snapshot's name.

        Each page is a transaction of its own, so that nothing waits for it; rows that change meanwhile are in it as
        they were before or after. What is older than the kept snapshots is then removed.
        """
        with self._transactions(tenant_id, write=False) as session:
            log_id = _log_id(session, tenant_id)
            state = session.get(LogState, tenant_id)
            counter = 0 if state is None else state.outbox_counter
        name = f"{SNAPSHOTS}{now:%Y-%m-%d}-{uuid7(now)}"
        number = 0
        for content in self._pages(tenant_id, now):
            self._put(tenant_id, log_id, f"{name}/{number:08d}", content)
            number += 1
        self._put(
            tenant_id, log_id, f"{name}/{END}", Content(at=now, parts=number, outbox_counter=counter), read_back=True
        )
        self._remove_old(log_id)
        return name

    def _of(self, tenant_id: int) -> _Memory:
        return self._memory.setdefault(tenant_id, _Memory())

    def _write(self, tenant_id: int, log_id: str, content: Content, written: set[object], now: datetime) -> None:
        if content.keys or any(content.tables.values()):
            self._put(tenant_id, log_id, f"{ROWS}{uuid7(now)}", content)
        with self._lock:
            self._of(tenant_id).add(written)

    def _put(self, tenant_id: int, log_id: str, path: str, content: Content, *, read_back: bool = False) -> None:
        key = f"{log_id}/{path}"
        data = pack(self._vault.keks, tenant_id, log_id, path, content)
        self._hot.replace(key, data)
        if read_back and self._hot.get(key) != data:
            raise JournalNotWritten(path)

    def _gather(self, session: Session, tenant_id: int, new: set[Ref], now: datetime) -> tuple[Content, set[object]]:
        """Return the rows behind new references, with what these refer to in turn."""
        written: set[object] = set(new)
        rows: dict[str, list[Row]] = {}
        streams = _pick(session, tenant_id, StreamRow, "stream_no", _numbers(new, "stream"))
        runs = _pick(session, tenant_id, RunRow, "run_no", _numbers(new, "run"))
        set_ids = _numbers(new, "set") | {row["set_id"] for row in streams if row["set_id"] != EMPTY_SET}
        people = _numbers(new, "person").union(*members(session, tenant_id, set_ids).values())
        holders = {row["holder_no"] for row in (*streams, *runs)}
        with self._lock:
            people = {ref[1] for ref in self._of(tenant_id).new(("person", number, 0) for number in people | holders)}
        written.update(("person", number, 0) for number in people)
        written.update(("set", number, 0) for number in set_ids)
        rows["stream"], rows["run"] = streams, runs
        rows["subject_set"] = _pick(session, tenant_id, SubjectSet, "set_id", set_ids)
        rows["subject_set_member"] = _pick(session, tenant_id, SubjectSetMember, "set_id", set_ids)
        rows["subject"] = _pick(session, tenant_id, Subject, "subject_no", people - {NOBODY})
        rows["subject_identifier"] = _pick(session, tenant_id, SubjectIdentifier, "subject_no", people - {NOBODY})
        recorders = {ref[1] for ref in new if ref[0] == "recorder"}
        rows["recorder"] = _pick(session, tenant_id, RecorderRow, "recorder_id", recorders)
        key_ids = {str(ref[1]) for ref in new if ref[0] == "key"} | _identity_keys(session, tenant_id, people)
        found = (self._vault.snapshot_rows(session, tenant_id, sorted(key_ids)),) if key_ids else ()
        tables = {name: found_rows for name, found_rows in rows.items() if found_rows}
        return Content(at=now, keys=found, tables=tables), written

    def _changed(self, session: Session, tenant_id: int) -> tuple[dict[str, list[Row]], set[object]]:
        rows: dict[str, list[Row]] = {}
        marks: set[object] = set()
        for table in self._tables():
            if table.name not in CONTROL:
                continue
            for row in _page(session, table, tenant_id, None, limit=None):
                mark = (table.name, sha256(msgspec.msgpack.encode(row)).digest())
                with self._lock:
                    is_new = bool(self._of(tenant_id).new([mark]))
                if is_new:
                    rows.setdefault(table.name, []).append(row)
                    marks.add(mark)
        return rows, marks

    def _pages(self, tenant_id: int, now: datetime) -> Iterator[Content]:
        for keys in self._key_pages(tenant_id):
            yield Content(at=now, keys=(keys,))
        gathered: dict[str, list[Row]] = {}
        size = 0
        for table in self._tables():
            if tenant_column(table) is None or table.name in REBUILT | LEFT_OUT | VAULT_ROWS:
                continue
            after: Row | None = None
            limit = _PAGE_OF.get(table.name, _PAGE)
            while True:
                with self._transactions(tenant_id, write=False) as session:
                    page = _page(session, table, tenant_id, after, limit=limit)
                if page:
                    gathered.setdefault(table.name, []).extend(page)
                    size += sum(len(value) for row in page for value in row.values() if isinstance(value, bytes))
                if sum(map(len, gathered.values())) >= _OBJECT_ROWS or size >= _OBJECT_BYTES:
                    yield Content(at=now, tables=gathered)
                    gathered, size = {}, 0
                if len(page) < limit:
                    break
                after = page[-1]
        if gathered:
            yield Content(at=now, tables=gathered)

    def _key_pages(self, tenant_id: int) -> Iterator[bytes]:
        """Yield every row of the vault, tombstones included."""
        after = ""
        while True:
            with self._transactions(tenant_id, write=False) as session:
                query = select(DataKey.key_id).where(DataKey.tenant_id == tenant_id, col(DataKey.key_id) > after)
                ids = list(session.exec(query.order_by(col(DataKey.key_id)).limit(_KEY_PAGE)))
                if ids:
                    yield self._vault.snapshot_rows(session, tenant_id, ids)
            if len(ids) < _KEY_PAGE:
                break
            after = ids[-1]
        last = ("", 0)
        while True:
            with self._transactions(tenant_id, write=False) as session:
                where = sa.tuple_(col(PartKey.entry_id), col(PartKey.part)) > sa.tuple_(*map(sa.literal, last))
                found = session.exec(
                    select(PartKey.entry_id, PartKey.part)
                    .where(PartKey.tenant_id == tenant_id, where)
                    .order_by(col(PartKey.entry_id), col(PartKey.part))
                    .limit(_KEY_PAGE)
                ).all()
                names = [(entry_id, part) for entry_id, part in found]
                if names:
                    yield self._vault.snapshot_rows(session, tenant_id, [], names)
            if len(names) < _KEY_PAGE:
                break
            last = names[-1]

    def _remove_old(self, log_id: str) -> None:
        """Remove snapshots beyond those kept, unfinished older ones, and rows that every kept snapshot holds."""
        complete = complete_snapshots(self._hot, log_id)
        kept = complete[-KEPT_SNAPSHOTS:]
        for key in list(self._hot.list(f"{log_id}/{SNAPSHOTS}")):
            name = "/".join(key.split("/")[1:3])
            if name not in kept and name < kept[-1]:
                self._hot.delete(key)
        if len(kept) < KEPT_SNAPSHOTS:
            return
        oldest = read_object(self._hot, self._vault.keks, log_id, f"{kept[0]}/{END}")
        if oldest is None:
            return
        limit = uuid7(oldest.at - MARGIN, bytes(10))
        for key in list(self._hot.list(f"{log_id}/{ROWS}")):
            if key.rpartition("/")[2] < limit:
                self._hot.delete(key)


def complete_snapshots(hot: HotStore, log_id: str) -> list[str]:
    """Return the names of the finished snapshots of a log, oldest first."""
    ends = (key.split("/") for key in hot.list(f"{log_id}/{SNAPSHOTS}"))
    return sorted("/".join(parts[1:3]) for parts in ends if parts[-1] == END)


def row_objects(hot: HotStore, log_id: str) -> list[str]:
    """Return the paths of the row objects of a log, below its prefix, oldest first."""
    return sorted(key.partition("/")[2] for key in hot.list(f"{log_id}/{ROWS}"))


def read_object(hot: HotStore, keks: KekStore, log_id: str, path: str) -> Content | None:
    """Return what an object holds, None where it is gone. Raises: JournalUnreadable, KekUnknown."""
    try:
        data = hot.get(f"{log_id}/{path}")
    except ObjectMissing:
        return None
    return unpack(keks, log_id, path, data)


def _refs(drafts: Sequence[Draft]) -> set[Ref]:
    """Return what these entries refer to, each once. A stream is named with the entry's people: it may have grown."""
    # A call names the same keys and people again and again: equal groups first, then who is in them.
    keys = {part.key_ids for draft in drafts for part in draft.parts}
    people = {part for draft in drafts for part in draft.subjects}
    refs: set[Ref] = {("key", key_id, 0) for group in keys for key_id in group}
    refs.update(("person", number, 0) for group in people for number in group)
    refs.update(("stream", draft.stream_no, draft.set_id) for draft in drafts if draft.stream_no)
    refs.update(("run", draft.run_no, 0) for draft in drafts if draft.run_no is not None)
    refs.update(("set", draft.set_id, 0) for draft in drafts if draft.set_id != EMPTY_SET)
    refs.update(("recorder", draft.recorder, 0) for draft in drafts if draft.recorder is not None)
    refs.update(("class", draft.data_class, draft.class_version) for draft in drafts)
    return refs


def _may_change(draft: Draft) -> bool:
    return not draft.stream_no and draft.kind not in _QUIET


def _numbers(refs: Iterable[Ref], kind: str) -> set[int]:
    return {int(ref[1]) for ref in refs if ref[0] == kind}


def _log_id(session: Session, tenant_id: int) -> str:
    tenant = session.get(Tenant, tenant_id)
    if tenant is None:
        raise UnknownTenant
    return tenant.log_id


def _identity_keys(session: Session, tenant_id: int, people: Iterable[int]) -> set[str]:
    found: set[str] = set()
    for chunk in chunks(sorted({*people, NOBODY})):
        query = select(DataKey.key_id).where(
            DataKey.tenant_id == tenant_id,
            col(DataKey.subject_id).in_(chunk),
            DataKey.data_class == IDENTITY_CLASS,
        )
        found.update(session.exec(query))
    return found


def _pick(session: Session, tenant_id: int, model: type[Any], column: str, values: Iterable[Any]) -> list[Row]:
    table: sa.Table = model.__table__
    found: list[Row] = []
    for chunk in chunks(sorted(set(values))):
        query = sa.select(table).where(table.c.tenant_id == tenant_id, table.c[column].in_(chunk))
        found.extend(dict(row) for row in session.execute(query).mappings())
    return found


def _page(
    session: Session, table: sa.Table, tenant_id: int, after: Mapping[str, Any] | None, *, limit: int | None
) -> list[Row]:
    """Return rows of a tenant in the order of the primary key, after a row."""
    key = list(table.primary_key.columns)
    query = sa.select(table).order_by(*key)
    if (tenant := tenant_column(table)) is not None:
        query = query.where(tenant == tenant_id)
    if after is not None:
        query = query.where(sa.tuple_(*key) > sa.tuple_(*(sa.literal(after[c.name], c.type) for c in key)))
    return [dict(row) for row in session.execute(query if limit is None else query.limit(limit)).mappings()]

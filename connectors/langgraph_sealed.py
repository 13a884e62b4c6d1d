"""Kind `langgraph` with `url` and `keys`: threads whose values the SDK's `govern` sealed, each under a key of its own.

Config: as of a saver's database, and `keys`, the absolute path of the folder of keys. Locator: `{"thread_id": text}`.

Guarantees, beyond `langgraph`: whose a thread is, its key says, and where rows name somebody openly they too. The key
is unlinked inside the transaction that deletes the rows, after both were compared and before the commit, while no agent
uses the thread; from then on the saver refuses it. A crash in between leaves rows that nobody can open, which the next
call deletes. A thread counts as gone only without rows and without key.

`reclaim` rewrites nothing where every value of every erased thread was sealed: of what came before the key that says so
itself, of each row that is told by reading it in the transaction that deletes. What lies in free pages, logs, replicas
and backups of the database then opens under no key. Else it does what `langgraph` does. `verify` shows L2 by the key's
absence, also of copies in its folder, the word beside it that everything was sealed, and a scan for the texts. A key
with a second name is not unlinked. Copies of the folder of keys are L3 and `unknown`; ids, names of channels and sizes
were never sealed.
"""

from __future__ import annotations

import secrets
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import structs
from typing_extensions import override

from connectors.base import (
    Capabilities,
    CheckReport,
    Deadline,
    FenceReport,
    Finding,
    Level,
    Outcome,
    Receipt,
    ReclaimReport,
    Residue,
    owner_forms,
)
from connectors.checking import check_report
from connectors.errors import BadConfig, ConnectorError, ReadOnlyConnector, StoreUnreachable
from connectors.langgraph import LangGraphConnector
from connectors.residue import samples
from connectors.serialized import plain
from connectors.sql_answers import finding_in_files
from connectors.sql_database import Refused
from connectors.sql_units import UnitConnector
from connectors.thread_folder import DRAFT, KEY, METADATA, OPEN, ThreadFolder, is_sealed, key_names, unsealed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from connectors.base import Item, Locator, Selector
    from connectors.sql import Candidate, _Open
    from connectors.sql_answers import Answer
    from connectors.sql_catalog import Key, Table
    from connectors.sql_database import Database
    from connectors.sql_rows import Batch
    from connectors.sql_units import Seen, Shape
    from connectors.thread_folder import Key as ThreadKey

_KEYS = "keys"
"""What a thread's key is counted as, beside its rows; and in evidence, that nothing had to be rewritten."""


class SealedConnector(LangGraphConnector):
    """Drives one saver's tables and the folder of its threads' keys."""

    def __init__(
        self,
        database: Database,
        shape: Shape,
        *,
        owner_field: str | None,
        read_only: bool,
        folder: ThreadFolder,
    ) -> None:
        super().__init__(database, shape, owner_field=owner_field, read_only=read_only)
        self._folder = folder
        self._limit = Deadline("erase", 0)
        self._all_sealed = True
        self._is_capturing = False
        self._in_the_open: set[str] = set()

    @override
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), fence=True)

    @override
    def check_locator(self, locator: Locator) -> None:
        self._folder.check()
        super().check_locator(locator)

    @override
    def fence(self, scope: Locator) -> FenceReport:
        if self._read_only:
            raise ReadOnlyConnector("fence")
        (thread,) = self.key_of(scope)
        with self._folder.alone([self._folder.path(thread, KEY)], Deadline("fence", 10)):
            sealed = self._is_sealed(self._folder.path(thread, KEY))
            self._folder.close(thread, sealed=sealed, keep=True)
        return FenceReport(held=True, detail="the agent's saver refuses the thread")

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("discover", deadline)
        if self._owner_field is None:
            raise BadConfig("discover needs owner_field")
        wanted, given = owner_forms(selector.identifiers), set()
        for path in self._folder.files(KEY):
            limit.check()
            key = self._folder.key(path)
            if key is not None and wanted & set(key.owners):
                given.add(key.thread)
                yield self.locator_of((key.thread,))
        # Threads from before sealing began name somebody in their rows.
        for locator in super().discover(selector, deadline=limit.left()):
            if locator["thread_id"] not in given:
                yield locator

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("walk", deadline)
        for path in self._folder.files(KEY):
            limit.check()
            key = self._folder.key(path)
            if key is not None:
                yield self.locator_of((key.thread,))
        yield from super().walk(deadline=limit.left())

    # Erasing

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        self._folder.check()
        self._limit = Deadline("erase", deadline)
        given = super().erase(items, owner_identifiers=owner_identifiers, now=now, deadline=deadline)
        return [structs.replace(receipt, method=f"key unlinked; {receipt.method}") for receipt in given]

    @override
    def _transact(self, now_open: _Open, batch: Batch, forms: frozenset[str]) -> list[Answer]:
        with self._folder.alone([self._folder.path(thread, KEY) for (thread,) in batch.keys], self._limit):
            answers = super()._transact(now_open, batch, forms)
            for (thread,), (outcome, _) in zip(batch.keys, answers, strict=True):
                # Of what is absent and was never erased by us, nobody knows how it was stored.
                if outcome in {Outcome.ERASED, Outcome.ALREADY_ABSENT}:
                    self._all_sealed &= self._folder.was_sealed(thread) is True
        return answers

    @override
    def _look_at(self, now_open: _Open, batch: Batch, *, lock: bool = False) -> list[Seen]:
        found = super()._look_at(now_open, batch, lock=lock)
        for (thread,), seen in zip(batch.keys, found, strict=True):
            path = self._folder.path(thread, KEY)
            owners = self._owners(path)
            if owners is not None:
                seen.rows[_KEYS] += 1
                seen.owners |= owners
            seen.is_leftover = owners is None and self._folder.was_sealed(thread) is not None
            seen.why_not = self._folder.elsewhere(thread)
        if lock:
            self._in_the_open = {
                thread for n, (thread,) in enumerate(batch.keys) if not self._is_all_sealed(now_open, batch.only([n]))
            }
        return found

    def _is_all_sealed(self, now_open: _Open, batch: Batch) -> bool:
        """Tell whether every value that one thread stored is sealed, under its key where that is there."""
        key = self._readable(self._folder.path(str(batch.keys[0][0]), KEY))
        for part, table in self._tables(now_open):
            for _, row in now_open.rows.select(replace(batch, table=table), [*part.content, str(part.written)]):
                for name, value in zip(part.content, row, strict=False):
                    kind = None if name == self._shape.owner else str(row[-1])
                    if not _lies_sealed(plain(value, kind), key):
                        return False
        return True

    def _owners(self, path: Path) -> set[str] | None:
        """Return whom a key names, None where there is none; a key that cannot be read is there and names nobody.

        What a crash left of a key before it had its name names somebody too.
        """
        try:
            key = self._folder.key(path) or self._folder.key(path.with_suffix(DRAFT))
        except StoreUnreachable:
            return set()
        return None if key is None else set(key.owners)

    def _is_sealed(self, path: Path) -> bool:
        """Tell whether a key says that everything of its thread is sealed under it."""
        key = self._readable(path)
        return key is not None and key.from_the_start

    def _readable(self, path: Path) -> ThreadKey | None:
        """Return a key, None where there is none or it cannot be read: then what it sealed stays sealed."""
        try:
            return self._folder.key(path)
        except StoreUnreachable:
            return None

    @override
    def _judge(self, seen: Seen, forms: frozenset[str]) -> Answer:
        if seen.why_not is not None:
            return Outcome.FAILED, seen.why_not
        if seen.is_leftover and seen.rows.total():
            counted = ", ".join(f"{count} of {name}" for name, count in seen.rows.items())
            return Outcome.ERASED, f"rows of a thread whose key was destroyed deleted and read again: {counted}"
        if self._owner_field is not None and seen.rows[_KEYS]:
            named = seen.owners - {None}
            if not named:
                return Outcome.OWNER_MISMATCH, "the key cannot be read, so nobody can say whose it is"
            if not named <= forms:
                return Outcome.OWNER_MISMATCH, f"the {self._shape.noun} names somebody else"
        return super()._judge(seen, forms)

    @override
    def _before_commit(self, now_open: _Open, gone: Batch) -> None:
        super()._before_commit(now_open, gone)
        for (thread,) in gone.keys:
            path = self._folder.path(thread, KEY)
            sealed: bool | None = None if self._owners(path) is None else self._is_sealed(path)
            if thread in self._in_the_open:
                sealed = False
            try:
                self._folder.close(thread, sealed=sealed)
            except OSError:
                raise Refused("a key could not be unlinked") from None
            if self._folder.has_files(thread):
                raise Refused("a key is there again")

    # Freeing and looking

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        if self._read_only:
            raise ReadOnlyConnector("reclaim")
        self._folder.check()
        if level <= Level.L1 or not self._all_sealed:
            return super().reclaim(level, now=now, deadline=deadline)
        return ReclaimReport(
            level=Level.L2,
            residual_until="unknown",
            detail="everything was sealed and the keys are gone; copies of the folder of keys were not looked at",
            method="none: keys destroyed",
            evidence={_KEYS: "destroyed"},
            freed_bytes=0,
        )

    @override
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
        if reclaimed is None or _KEYS not in reclaimed.evidence:
            found = super()._look(now_open, tables, items, level=level, reclaimed=reclaimed, limit=limit)
            return found | self._copied(items, limit)
        pairs = [(number, canary) for number, item in items.items() for canary in item.canaries]
        canaries = [canary for _, canary in pairs]
        # A copy of the key says whose it is; that is looked for among the keys alone, the id stays readable elsewhere.
        pairs += [(number, key_names(self.key_of(item.locator)[0])) for number, item in items.items()]
        dirty = {pairs[number][0] for number, _ in self._folder.scan([each for _, each in pairs], limit)}
        if canaries:
            tables_now = now_open.catalog.tables()
            hits = self._database.residue(now_open.connection, tables_now, canaries, limit)
            dirty |= {pairs[each.canary][0] for each in hits}
        how = "key looked for, and that everything was sealed under it; byte scan of the database and of the keys"
        found = {}
        for number, item in items.items():
            (thread,) = self.key_of(item.locator)
            why = None if self._folder.was_sealed(thread) is True else "not everything of the thread was sealed"
            found[number] = finding_in_files(item, level, how, why, is_dirty=number in dirty)
        return found

    def _copied(self, items: Mapping[int, Item], limit: Deadline) -> dict[int, Finding]:
        """Return what is to be said of items of whose key a copy lies in the folder, under whatever name."""
        numbers = list(items)
        names = [key_names(self.key_of(items[number].locator)[0]) for number in numbers]
        how = "a copy of the key lies in the folder of keys"
        return {
            numbers[place]: Finding(copy_id=items[numbers[place]].copy_id, level=Level.L1, present=True, how=how)
            for place, _ in self._folder.scan(names, limit)
        }

    def _residue(self, now_open: _Open, canaries: Sequence[bytes], limit: Deadline) -> list[Residue]:
        if not canaries:
            return []
        found = self._database.residue(now_open.connection, now_open.catalog.tables(), canaries, limit)
        hits = self._folder.scan(canaries, limit)
        return found + [
            Residue(where="folder of keys", count=count, encoding=form, canary=number)
            for (number, form), count in hits.items()
        ]

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        limit = Deadline("residue", deadline)
        with self._session(limit, read_only=True) as now_open:
            return self._residue(now_open, canaries, limit)

    # Reading what is sealed

    @override
    def _candidates(self, now_open: _Open, batch: Batch) -> dict[Candidate, None]:
        # Ids, versions and times of a thread were never sealed and stay in free pages; nobody said them.
        self._is_capturing = True
        try:
            found = super()._candidates(now_open, batch)
        finally:
            self._is_capturing = False
        # Whose it was, keys of the person's other threads say as well.
        key = self._readable(self._folder.path(str(batch.keys[0][0]), KEY))
        owners = () if key is None else key.owners
        named = {piece for owner in owners for piece in samples(owner.encode(errors="surrogateescape"))}
        return {one: None for one in found if one[0] not in named}

    @override
    def _plain(self, value: object, written: str | None, name: Key) -> Any:
        key = self._readable(self._folder.path(str(name[0]), KEY))
        read = super()._plain(value, written, name)
        if self._is_capturing and (key is None or key.from_the_start):
            return _said(read, key)
        return read if key is None else _opened(read, key)

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        limit = Deadline("check", deadline)
        try:
            # A scratch thread shows that the folder can be written; the tables are tried as of any saver.
            self._folder.forget(f"muniment-check-{secrets.token_hex(8)}")
        except (ConnectorError, OSError) as problem:
            said = str(problem) if isinstance(problem, ConnectorError) else "the folder of keys cannot be written"
            return check_report(limit, now, reachable=isinstance(problem, OSError), problems=[said])
        return super().check(now=now, deadline=limit.left())

    @override
    def _probe(self, shape: Shape) -> UnitConnector:
        return LangGraphConnector(self._database, shape, owner_field=self._owner_field, read_only=False)


def _lies_sealed(read: Any, key: ThreadKey | None) -> bool:
    """Tell whether a column's value, as plain data, holds nothing that a seal should cover and does not."""
    if isinstance(read, Mapping):
        if "channel_values" not in read:
            return set(read) <= OPEN | {METADATA}
        return not read.get("pending_sends") and all(
            _lies_sealed(each, key) for each in read["channel_values"].values()
        )
    if read is None or read == b"":
        return True
    return is_sealed(read) if key is None else unsealed(key.key, read) is not None


def _said(read: Any, key: ThreadKey | None) -> Any:
    """Return what of a plain value somebody may have said, opened; nothing of what opens no more."""
    if isinstance(read, Mapping):
        if "channel_values" in read:
            return _said(list(read["channel_values"].values()), key)
        sealed = {METADATA: _opened({METADATA: read[METADATA]}, key)} if key and METADATA in read else {}
        return sealed | {name: _said(each, key) for name, each in read.items() if name not in OPEN | {METADATA}}
    if isinstance(read, list):
        return [_said(each, key) for each in read]
    opened = read if key is None else _opened(read, key)
    return None if is_sealed(opened) else opened


def _opened(read: Any, key: ThreadKey) -> Any:
    """Return a plain value with everything in it opened that this key seals."""
    if isinstance(read, bytes) and (found := unsealed(key.key, read)) is not None:
        return plain(found[1], found[0])
    if isinstance(read, Mapping):
        sealed = read.get(METADATA)
        rest = {name: _opened(value, key) for name, value in read.items() if name != METADATA}
        more = _opened(b64decode(sealed), key) if isinstance(sealed, str) else {}
        return rest | (more if isinstance(more, dict) else {METADATA: more})
    return [_opened(each, key) for each in read] if isinstance(read, list) else read

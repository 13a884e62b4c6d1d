"""A store in memory that keeps the contract, or breaks it on demand: the opponent for tests of planning and execution.

Guarantees: enforces what `base` promises (ownership, idempotence, levels, read-only, fence) like a real store, with
three layers of bytes: rows (L1), freed bytes (L2) and logs (L3). `Faults` makes it fail before or after persisting,
fail for some items, hang until the deadline, or lie. Not reachable through `open_connector`: it is no registrable kind.

    store = MemoryStore()
    store.put("a", b"text of mia", owner="user:mia")
    connector = MemoryConnector(store, faults=Faults(keeps=frozenset({"a"})))   # says erased, and keeps it
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from connectors.base import (
    Capabilities,
    CheckReport,
    Connector,
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
    owner_forms,
)
from connectors.checking import check_report
from connectors.errors import BadConfig, BadLocator, ConnectorError, ReadOnlyConnector, StoreUnreachable, Timeout
from connectors.residue import Needles, samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime


class FencedScope(ConnectorError):
    """A write of a fenced scope was refused by the store."""

    def __init__(self) -> None:
        super().__init__("the scope is fenced")


@dataclass(slots=True)
class MemoryRow:
    """One item: what it holds, whose it is, and the scope a fence would name."""

    content: bytes = field(repr=False)
    owner: str | None = field(default=None, repr=False)
    scope: tuple[tuple[str, Any], ...] = ()
    locked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong. Counters are calls of `erase`, from 1; keys are those of items."""

    fail_before: frozenset[int] = frozenset()
    """These calls of `erase` raise before anything is deleted."""
    fail_after: frozenset[int] = frozenset()
    """These calls delete everything and raise instead of answering."""
    refuses: frozenset[str] = frozenset()
    """Deletes of these keys fail; the rest of the batch goes on."""
    keeps: frozenset[str] = frozenset()
    """A lie: reported erased, still there."""
    soft_deletes: frozenset[str] = frozenset()
    """A lie: hidden from reads by id, still in the rows (a `deleted` flag)."""
    search_returns: frozenset[str] = frozenset()
    """A lie: rows gone, the search index still answers with the text."""
    reclaim_does_nothing: bool = False
    """A lie: reclaim reports L2 and leaves the freed bytes."""
    hangs: frozenset[str] = frozenset()
    """Verbs that do not answer until their deadline."""
    unreachable: bool = False


class MemoryStore:
    """The bytes, shared by every connector opened on them, so that a verifier sees what the executor left."""

    def __init__(self) -> None:
        self.rows: dict[str, MemoryRow] = {}
        self.hidden: dict[str, MemoryRow] = {}
        self.search: dict[str, bytes] = {}
        self.freed: list[bytes] = []
        self.log: list[bytes] = []
        self.fenced: list[dict[str, Any]] = []

    def put(
        self, key: str, content: bytes, *, owner: str | None = None, locked: bool = False, **scope: str | int
    ) -> None:
        """Write an item, its search entry and its log line. Raises: FencedScope."""
        for fenced in self.fenced:
            if fenced == {"key": key} or (fenced and fenced.items() <= scope.items()):
                raise FencedScope
        self.rows[key] = MemoryRow(content, owner, tuple(sorted(scope.items())), locked)
        self.search[key] = content
        self.log.append(content)

    def delete(self, key: str) -> None:
        """Drop an item as stores do: the row goes, the freed bytes stay until they are reclaimed."""
        self.freed.append(self.rows.pop(key).content)
        self.search.pop(key, None)


class MemoryConnector(Connector):
    """Drives a `MemoryStore`; locators are `{"key": text}`."""

    def __init__(
        self,
        store: MemoryStore,
        config: Mapping[str, Any] | None = None,
        *,
        faults: Faults | None = None,
        read_only: bool = False,
    ) -> None:
        self._store = store
        self._owner_field = (config or {}).get("owner_field")
        self._faults = faults or Faults()
        self._read_only = read_only
        self.erase_calls = 0

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind="memory",
            erase_level=Level.L1,
            reclaim_level=Level.L3,
            verify_level=Level.L3,
            batch_size=100,
            locks="nothing",
            fence=True,
            search=True,
            owner_check=self._owner_field is not None,
            discover=self._owner_field is not None,
            read_only=self._read_only,
        )

    @override
    def check_locator(self, locator: Locator) -> None:
        self._key(locator)

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        self._meet("discover", deadline)
        if self._owner_field is None:
            raise BadConfig("discover needs owner_field")
        forms = owner_forms(selector.identifiers)
        yield from [{"key": key} for key, row in self._store.rows.items() if row.owner in forms]

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        self._meet("walk", deadline)
        yield from [{"key": key} for key in self._store.rows]

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        self._meet("capture", deadline)
        found = {item.copy_id: self._store.rows.get(self._key(item.locator)) for item in items}
        return {copy_id: samples(row.content) if row else [] for copy_id, row in found.items()}

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        self._meet("export", deadline)
        for item in items:
            row = self._store.rows.get(self._key(item.locator))
            yield item.copy_id, row.content if row else None

    @override
    def fence(self, scope: Locator) -> FenceReport:
        self._writable("fence")
        self._store.fenced.append(dict(scope))
        return FenceReport(held=True, detail="the store refuses writes of the scope")

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        self._writable("erase")
        limit = self._meet("erase", deadline)
        self.erase_calls += 1
        if self.erase_calls in self._faults.fail_before:
            raise StoreUnreachable("memory", "failed before persisting")
        forms = owner_forms(owner_identifiers)
        receipts = []
        for item in items:
            outcome, detail = self._erase_one(item, forms)
            reached = Level.L1 if outcome in {Outcome.ERASED, Outcome.ALREADY_ABSENT} else None
            at = now + timedelta(seconds=limit.spent())
            receipts.append(
                Receipt(copy_id=item.copy_id, outcome=outcome, level=reached, method="delete", detail=detail, at=at)
            )
        if self.erase_calls in self._faults.fail_after:
            raise StoreUnreachable("memory", "failed after persisting")
        return receipts

    def _erase_one(self, item: Item, forms: frozenset[str]) -> tuple[Outcome, str]:
        try:
            key = self._key(item.locator)
        except BadLocator as bad:
            return Outcome.FAILED, bad.detail
        row = self._store.rows.get(key)
        if row is None:
            return Outcome.ALREADY_ABSENT, "read in the same store"
        if self._owner_field is not None and row.owner not in forms:
            return Outcome.OWNER_MISMATCH, "the item names another owner"
        if row.locked:
            return Outcome.LOCKED, "the store protects the item"
        if key in self._faults.refuses:
            return Outcome.FAILED, "the store refused the delete"
        self._delete(key, row)
        return Outcome.ERASED, "deleted and read again"

    def _delete(self, key: str, row: MemoryRow) -> None:
        if key in self._faults.keeps:
            return
        if key in self._faults.soft_deletes:
            self._store.hidden[key] = self._store.rows.pop(key)
            return
        self._store.delete(key)
        if key in self._faults.search_returns:
            self._store.search[key] = row.content

    @override
    def await_done(self, *, deadline: float) -> bool:
        self._meet("await_done", deadline)
        return True

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        self._writable("reclaim")
        self._meet("reclaim", deadline)
        if level >= Level.L2 and not self._faults.reclaim_does_nothing:
            self._store.freed.clear()
        if level >= Level.L3 and not self._faults.reclaim_does_nothing:
            self._store.log = [row.content for row in self._store.rows.values()]
        residual: Literal["unknown"] | None = None if level is Level.L3 else "unknown"
        return ReclaimReport(level=max(level, Level.L1), residual_until=residual, detail="freed", method="clear")

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        self._meet("verify", deadline)
        return [self._verify_one(item, level, Deadline("verify", deadline)) for item in items]

    def _verify_one(self, item: Item, level: Level, limit: Deadline) -> Finding:
        key = self._key(item.locator)
        if key in self._store.rows:
            return Finding(copy_id=item.copy_id, level=None, present=True, how="read by key")
        if key in self._store.search:
            return Finding(copy_id=item.copy_id, level=None, present=True, how="search")
        if level <= Level.L1:
            return Finding(copy_id=item.copy_id, level=Level.L1, present=False, how="read by key, search")
        if not item.canaries:
            why = "no canary was captured"
            return Finding(copy_id=item.copy_id, level=Level.L1, present=None, how="read", could_not_check=why)
        if self._hits(item.canaries, self._files(), limit):
            return Finding(copy_id=item.copy_id, level=Level.L1, present=True, how="byte scan")
        if level is Level.L3 and self._hits(item.canaries, self._store.log, limit):
            return Finding(copy_id=item.copy_id, level=Level.L2, present=True, how="byte scan of the log")
        return Finding(copy_id=item.copy_id, level=level, present=False, how="read by key, search, byte scan")

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        limit = self._meet("residue", deadline)
        found = []
        for where, pieces in (("rows and freed bytes", self._files()), ("log", self._store.log)):
            for (number, encoding), count in self._hits(canaries, pieces, limit).items():
                found.append(Residue(where=where, count=count, encoding=encoding, canary=number))
        return found

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        try:
            limit = self._meet("check", deadline)
        except (StoreUnreachable, Timeout) as gone:
            return check_report(Deadline("check", deadline), now, reachable=False, problems=[str(gone)])
        key, canary, owner = "muniment check", b"muniment check canary", "check:self"
        item = Item(copy_id="check", locator={"key": key}, canaries=(canary,))
        self._store.put(key, canary, owner=owner)
        refused = self.erase([item], owner_identifiers=["check:other"], now=now, deadline=limit.left())[0]
        erased = self.erase([item], owner_identifiers=[owner], now=now, deadline=limit.left())[0]
        self.reclaim(Level.L3, now=now, deadline=limit.left())
        finding = self.verify([item], Level.L3, deadline=limit.left())[0]
        enforced = refused.outcome is Outcome.OWNER_MISMATCH
        checked: Literal["enforced", "failed"] = "enforced" if enforced else "failed"
        return CheckReport(
            reachable=True,
            can_erase=erased.outcome is Outcome.ERASED and not finding.present,
            level_reached=finding.level,
            owner_check=checked if self._owner_field else "not_configured",
            took_ms=int(limit.spent() * 1000),
            findings=() if not finding.present else (f"the canary is still there: {finding.how}",),
            checked_at=now,
        )

    @override
    def close(self) -> None:
        """Nothing is held open."""

    def _files(self) -> list[bytes]:
        rows = [row.content for row in (*self._store.rows.values(), *self._store.hidden.values())]
        return [*rows, *self._store.search.values(), *self._store.freed]

    @staticmethod
    def _hits(canaries: Sequence[bytes], pieces: list[bytes], limit: Deadline) -> dict[tuple[int, str], int]:
        separated = (part for piece in pieces for part in (piece, b"\0"))
        return dict(Needles(canaries).count_chunks(separated, limit))

    @staticmethod
    def _key(locator: Locator) -> str:
        key = locator.get("key")
        if set(locator) != {"key"} or not isinstance(key, str) or not key:
            raise BadLocator("a memory locator is {key: text}")
        return key

    def _writable(self, operation: str) -> None:
        if self._read_only:
            raise ReadOnlyConnector(operation)

    def _meet(self, operation: str, deadline: float) -> Deadline:
        limit = Deadline(operation, deadline)
        if self._faults.unreachable:
            raise StoreUnreachable("memory")
        if operation in self._faults.hangs:
            time.sleep(limit.left())
        limit.check()
        return limit

"""A store whose items are read and deleted one after the other, and whose own bytes can be read here.

Guarantees: what the contract of `base` asks of every connector, made of the few things that only the kind knows:
`place` (and with it what a locator may be), `read`, `remove`, `locators`, `hits` and `write`. Owner, delete and second
reading of one item follow each other; a kind whose items others may change meanwhile overrides `erase_one` and keeps
them away. L2 is shown by `hits`, so the store must keep nothing elsewhere and pack nothing.
Example: `examples/connector/threads.py`.
"""

from __future__ import annotations

import json
import secrets
from abc import abstractmethod
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

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
    is_one_of,
    owner_forms,
)
from connectors.checking import check_report, try_out
from connectors.errors import (
    BadConfig,
    BadLocator,
    ConnectorError,
    ReadOnlyConnector,
    StoreUnreachable,
    Timeout,
    WrongCredentials,
)
from connectors.residue import samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from connectors.residue import Hits

BATCH = 100
Answer = tuple[Outcome, str]
GONE = frozenset({Outcome.ERASED, Outcome.ALREADY_ABSENT})


class OneByOne(Connector):
    """Drives one store."""

    kind: ClassVar[str]
    method: ClassVar[str]
    """What an erasure does, in a word or two."""
    freeing: ClassVar[str] = "none: nothing is left to free"
    locks: ClassVar[str] = "nothing"
    fences: ClassVar[bool] = False

    def __init__(self, *, owner_field: str | None, read_only: bool) -> None:
        self.owner_field = owner_field
        self.read_only = read_only

    @abstractmethod
    def place(self, locator: Locator) -> Any:
        """Return where a locator leads. Raises: BadLocator; StoreUnreachable where the store itself is not there."""

    @abstractmethod
    def read(self, place: Any, limit: Deadline) -> bytes | None:
        """Return what lies at a place, None where nothing does. Raises: ConnectorError."""

    @abstractmethod
    def remove(self, place: Any) -> None:
        """Delete what lies at a place, durably. Raises: OSError, ConnectorError."""

    @abstractmethod
    def locators(self, limit: Deadline) -> Iterator[dict[str, Any]]:
        """Yield the locator of every item there is. Raises: StoreUnreachable, Timeout."""

    @abstractmethod
    def hits(self, canaries: Sequence[bytes], limit: Deadline) -> Hits:
        """Count canaries in every byte of the store's own files. Raises: StoreUnreachable, Timeout."""

    @abstractmethod
    def write(self, name: str, canary: str, owner: str) -> Locator:
        """Write a scratch item that only this name leads to; return its locator. Raises: OSError, ConnectorError."""

    def owner_of(self, content: bytes) -> object:
        """Return whose the content is, None where it names nobody: a member of the JSON object that it is."""
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            return None
        return document.get(self.owner_field) if isinstance(document, dict) and self.owner_field else None

    def text_of(self, content: bytes) -> bytes:
        """Return what of an item's content is worth looking for later."""
        return content

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind=self.kind,
            erase_level=Level.L1,
            reclaim_level=Level.L2,
            verify_level=Level.L2,
            batch_size=BATCH,
            locks=self.locks,
            fence=self.fences,
            search=False,
            owner_check=self.owner_field is not None,
            discover=self.owner_field is not None,
            read_only=self.read_only,
        )

    @override
    def check_locator(self, locator: Locator) -> None:
        self.place(locator)

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit, forms = Deadline("discover", deadline), owner_forms(selector.identifiers)
        if self.owner_field is None:
            raise BadConfig("discover needs owner_field")
        for locator in self._listed(limit):
            content = self._seen(self.place(locator), limit)
            if content is not None and is_one_of(self.owner_of(content), forms):
                yield locator

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        yield from self._listed(Deadline("walk", deadline))

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        found = self.export(items, deadline=deadline)
        return {copy: [] if content is None else samples(self.text_of(content)) for copy, content in found}

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        limit = Deadline("export", deadline)
        for item in items:
            limit.check()
            yield item.copy_id, self._seen(self.place(item.locator), limit)

    @override
    def fence(self, scope: Locator) -> FenceReport:
        return FenceReport(held=False, detail="the store cannot refuse writes; late copies have to be looked for")

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        if self.read_only:
            raise ReadOnlyConnector("erase")
        limit, forms, receipts = Deadline("erase", deadline), owner_forms(owner_identifiers), []
        for item in items:
            outcome, detail = self._answer(item, forms, limit)
            receipts.append(
                Receipt(
                    copy_id=item.copy_id,
                    outcome=outcome,
                    level=Level.L1 if outcome in GONE else None,
                    method=self.method,
                    detail=detail,
                    at=now + timedelta(seconds=limit.spent()),
                )
            )
        return receipts

    def _answer(self, item: Item, forms: frozenset[str], limit: Deadline) -> Answer:
        try:
            limit.check()
            return self.erase_one(item, forms, limit)
        except BadLocator as bad:
            return Outcome.FAILED, bad.detail
        except Timeout:
            return Outcome.FAILED, "not finished before the deadline"
        except OSError:
            return Outcome.FAILED, "the store refused the delete"

    def erase_one(self, item: Item, forms: frozenset[str], limit: Deadline) -> Answer:
        """Erase one item: 1. read; 2. compare owners; 3. delete; 4. read again. Raises: ConnectorError, OSError."""
        place = self.place(item.locator)
        content = self.read(place, limit)  # 1
        if content is None:
            return Outcome.ALREADY_ABSENT, "looked for by name"
        if self.owner_field is not None and not is_one_of(self.owner_of(content), forms):  # 2
            return Outcome.OWNER_MISMATCH, "the item names another owner, or none"
        self.remove(place)  # 3
        if self.read(place, limit) is not None:  # 4
            return Outcome.FAILED, "there again after the delete"
        return Outcome.ERASED, "deleted by name and looked for again"

    @override
    def await_done(self, *, deadline: float) -> bool:
        return True

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        if self.read_only:
            raise ReadOnlyConnector("reclaim")
        detail = "no other item was touched; freed disk blocks and copies of the store were not looked at"
        return ReclaimReport(
            level=min(level, Level.L2), residual_until="unknown", detail=detail, method=self.freeing, freed_bytes=None
        )

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        limit = Deadline("verify", deadline)
        findings = [self._by_name(item, limit) for item in items]
        absent = [item for item, each in zip(items, findings, strict=True) if each.present is False]
        pairs = [(item.copy_id, canary) for item in absent for canary in item.canaries] if level >= Level.L2 else []
        hits = self._counted([canary for _, canary in pairs], limit) if pairs else {}
        dirty = {pairs[number][0] for number, _ in hits}
        return [
            each if level <= Level.L1 or each.present is not False else _in_files(each, level, dirty)
            for each in findings
        ]

    def _by_name(self, item: Item, limit: Deadline) -> Finding:
        how = "looked for by name"
        try:
            if self.is_there(item, limit):
                return Finding(copy_id=item.copy_id, level=None, present=True, how=how)
        except BadLocator as bad:
            return Finding(copy_id=item.copy_id, level=None, present=None, how="none", could_not_check=bad.detail)
        return Finding(copy_id=item.copy_id, level=Level.L1, present=False, how=how)

    def is_there(self, item: Item, limit: Deadline) -> bool:
        """Tell whether anything of an item can be seen by its name. Raises: ConnectorError."""
        return self._seen(self.place(item.locator), limit) is not None

    def _seen(self, place: Any, limit: Deadline) -> bytes | None:
        with self._in_our_words():
            return self.read(place, limit)

    def _listed(self, limit: Deadline) -> Iterator[dict[str, Any]]:
        with self._in_our_words():
            yield from self.locators(limit)

    def _counted(self, canaries: Sequence[bytes], limit: Deadline) -> Hits:
        with self._in_our_words():
            return self.hits(canaries, limit)

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        """Say what the system refused without the path that it names. Raises: WrongCredentials, StoreUnreachable."""
        try:
            yield
        except PermissionError:
            raise WrongCredentials(self.kind, "this process may not look there") from None
        except OSError:
            raise StoreUnreachable(self.kind, "what lies there cannot be read") from None

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        found = self._counted(canaries, Deadline("residue", deadline)) if canaries else {}
        return [
            Residue(where="files of the store", count=count, encoding=form, canary=number)
            for (number, form), count in found.items()
        ]

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        limit = Deadline("check", deadline)
        name, canary = f"muniment-check-{secrets.token_hex(8)}", f"muniment canary {secrets.token_hex(16)}"
        try:
            item = Item(copy_id="check", locator=self.write(name, canary, "check:self"), canaries=(canary.encode(),))
            try:
                return try_out(self, item, limit, now)
            finally:
                self.take_away(item)
        except (ConnectorError, OSError) as problem:
            said = str(problem) if isinstance(problem, ConnectorError) else "nothing can be written there"
            reachable = not isinstance(problem, StoreUnreachable | Timeout)
            return check_report(limit, now, reachable=reachable, problems=[said])

    def take_away(self, item: Item) -> None:
        """Remove a scratch item, whatever became of it. Raises: OSError, ConnectorError."""
        place = self.place(item.locator)
        if self.read(place, Deadline("check", 10)) is not None:
            self.remove(place)

    @override
    def close(self) -> None:
        """Nothing is held open between calls."""


def _in_files(found: Finding, level: Level, dirty: set[str]) -> Finding:
    how = f"{found.how}; byte scan of every file of the store"
    if found.copy_id in dirty:
        return Finding(copy_id=found.copy_id, level=Level.L1, present=True, how=how)
    if level is Level.L3:
        why = "disk blocks, copies and backups cannot be read here"
        return Finding(copy_id=found.copy_id, level=Level.L2, present=None, how=how, could_not_check=why)
    return Finding(copy_id=found.copy_id, level=Level.L2, present=False, how=how)

"""A connector of your own: one thread, one JSON file in one folder; `{"thread": name}`. See docs/connectors.md."""

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

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
from connectors.checking import try_out
from connectors.errors import BadLocator, ReadOnlyConnector, StoreUnreachable
from connectors.residue import Needles, samples


class Threads(Connector):
    """Drives one folder."""

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self.root, self.read_only = root, read_only

    def _file(self, locator: Locator) -> Path:
        name = locator.get("thread")
        if set(locator) != {"thread"} or not isinstance(name, str) or not re.fullmatch(r"[\w-]{1,100}", name):
            raise BadLocator("a locator is {thread}, letters and digits")
        if not self.root.is_dir():  # a folder that is not there proves no absence
            raise StoreUnreachable("threads", "there is no folder")
        return self.root / f"{name}.json"

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(kind="threads", erase_level=Level.L1, reclaim_level=Level.L2, verify_level=Level.L2,
                            batch_size=500, locks="nothing", fence=False, search=False, owner_check=True,
                            discover=True, read_only=self.read_only)  # fmt: skip

    @override
    def check_locator(self, locator: Locator) -> None:
        self._file(locator)

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        forms, limit = owner_forms(selector.identifiers), Deadline("discover", deadline)
        for file in self.root.glob("*.json"):
            limit.check()
            if is_one_of(json.loads(file.read_bytes()).get("owner"), forms):
                yield {"thread": file.stem}

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        limit = Deadline("export", deadline)
        for item in items:
            limit.check()
            file = self._file(item.locator)
            yield item.copy_id, file.read_bytes() if file.exists() else None

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        found = self.export(items, deadline=deadline)
        return {copy: samples(json.loads(content or b'{"text": ""}')["text"].encode()) for copy, content in found}

    @override
    def fence(self, scope: Locator) -> FenceReport:
        return FenceReport(held=False, detail="a folder cannot refuse a thread")

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        if self.read_only:
            raise ReadOnlyConnector("erase")
        forms, limit, receipts = owner_forms(owner_identifiers), Deadline("erase", deadline), []
        for item in items:
            outcome, detail = self._erase(item.locator, forms) if not limit.is_over() else (Outcome.FAILED, "too late")
            level = Level.L1 if outcome in {Outcome.ERASED, Outcome.ALREADY_ABSENT} else None
            receipts.append(
                Receipt(copy_id=item.copy_id, outcome=outcome, level=level, method="unlink", detail=detail, at=now)
            )
        return receipts

    def _erase(self, locator: Locator, forms: frozenset[str]) -> tuple[Outcome, str]:
        try:
            file = self._file(locator)
            if not is_one_of(json.loads(file.read_bytes()).get("owner"), forms):
                return Outcome.OWNER_MISMATCH, "the thread names another owner, or none"
            file.unlink()
        except BadLocator as bad:
            return Outcome.FAILED, bad.detail
        except FileNotFoundError:
            return Outcome.ALREADY_ABSENT, "no such file in the folder"
        return (Outcome.FAILED, "there again") if file.exists() else (Outcome.ERASED, "unlinked and looked for again")

    @override
    def await_done(self, *, deadline: float) -> bool:
        return True

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        if self.read_only:
            raise ReadOnlyConnector("reclaim")
        return ReclaimReport(
            level=min(level, Level.L2), residual_until="unknown", method="none", detail="no file is left"
        )

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        left = {copy for copy, content in self.export(items, deadline=deadline) if content is not None}
        pairs = [(item.copy_id, canary) for item in items for canary in item.canaries] if level >= Level.L2 else []
        hits = self.residue([canary for _, canary in pairs], deadline=deadline)
        dirty = {pairs[hit.canary][0] for hit in hits}
        copies = [item.copy_id for item in items]
        return [self._finding(copy, level, is_there=copy in left, is_dirty=copy in dirty) for copy in copies]

    @staticmethod
    def _finding(copy: str, level: Level, *, is_there: bool, is_dirty: bool) -> Finding:
        how, why = "looked for by name, every file of the folder read", "backups cannot be read here"
        if is_there or is_dirty:
            return Finding(copy_id=copy, level=None if is_there else Level.L1, present=True, how=how)
        if level is Level.L3:
            return Finding(copy_id=copy, level=Level.L2, present=None, how=how, could_not_check=why)
        return Finding(copy_id=copy, level=level, present=False, how=how)

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        limit, wanted = Deadline("residue", deadline), Needles(canaries)
        hits = wanted.count_chunks((file.read_bytes() for file in self.root.rglob("*") if file.is_file()), limit)
        return [Residue(where="files", count=n, encoding=form, canary=number) for (number, form), n in hits.items()]

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        name, canary = f"muniment-check-{secrets.token_hex(8)}", f"muniment canary {secrets.token_hex(16)}"
        file = self._file({"thread": name})
        file.write_text(json.dumps({"owner": "check:self", "text": canary}), "utf-8")
        try:
            return try_out(self, Item(copy_id="check", locator={"thread": name}), Deadline("check", deadline), now)
        finally:
            file.unlink(missing_ok=True)

    @override
    def close(self) -> None:
        """Nothing is held open."""

"""A batch of artifacts on its way into the registry: its lines, and what all steps of `registry.registration` share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlmodel import Session

from registry import bulk
from registry.acting import Acting
from registry.declaration import DataClass
from registry.ends import EndsAt, HeldClasses
from registry.graph import Parent
from registry.item import Item
from registry.keyed import Lookups, Seals
from registry.present import Known, Present
from registry.sets import Members
from registry.subjects import Fence
from vault.vault import Vault

LABEL = "artifact"
GONE = ("erasing", "erased")


@dataclass(slots=True, kw_only=True)
class Line:
    """One item of the batch on its way."""

    item: Item | None = None
    result: dict[str, Any] | None = None
    node: int = 0
    known: Known | None = None
    first: bool = False
    stops: bool = False
    """Whether the people of its sources do not reach its artifact."""
    parents: set[Parent] = field(default_factory=set)
    requests: set[str] = field(default_factory=set)
    held: dict[str, Any] = field(default_factory=dict)
    """What a human decides of the sources that another token named, as a review wants it."""
    subjects: Members = frozenset()


class Batch:
    """One call of `register`: what it was given, what it found, and what each step decided."""

    def __init__(
        self,
        session: Session,
        vault: Vault,
        acting: Acting,
        now: datetime,
        *,
        ends_at: EndsAt,
        held: HeldClasses = (),
    ) -> None:
        self.session = session
        self.vault = vault
        self.acting = acting
        self.tenant_id = acting.tenant_id
        self.now = now
        self.created = bulk.instant(now)
        self.ends_at = ends_at
        self.held = held
        self.lookups = Lookups(vault, acting.tenant_id)
        self.seals = Seals(session, vault, acting.tenant_id)
        self.present = Present(session, acting.tenant_id)
        self.lines: list[Line] = []
        self.opened: list[tuple[Line, Item]] | None = None
        """What `open_lines` gave last, unless something was refused since."""
        self.classes: Mapping[str, DataClass] = {}
        self.new_places: dict[tuple[str, bytes], Line] = {}
        self.new_given: dict[str, Line] = {}
        self.sets: dict[int, Members] = {}
        self.entry_sets: dict[int, int] = {}
        self.closed: dict[int, Fence] = {}
        self.taken: dict[int, str] = {}
        self.over: Mapping[str, datetime] = {}
        """Since when the runs of working items are over."""
        self.plain_ends: dict[str, int | None] = {}
        """Ends by class of items that bring no date of their own: the same for all of a batch."""

    def open_lines(self) -> list[tuple[Line, Item]]:
        """The lines that nothing speaks against so far."""
        if self.opened is None:
            self.opened = [(line, line.item) for line in self.lines if line.item is not None and line.result is None]
        return self.opened

    def refuse(self, line: Line, problem: str, detail: str, pointer: str) -> None:
        """Give the line this result; it counts no more."""
        given = line.item.given_id if line.item is not None else None
        line.result = rejected(problem, detail, pointer, given)
        self.opened = None

    def named(self, name: str) -> int | None:
        """The artifact of a public id, existing or made by this batch."""
        if (number := self.present.by_name.get(name)) is not None:
            return number
        line = self.new_given.get(name)
        return None if line is None else line.node

    def is_own(self, line: Line) -> bool:
        """Whether the line may change its artifact: it makes it, or the same token registered it."""
        return line.known is None or line.known.registered_by == self.acting.token_id


def rejected(problem: str, detail: str, pointer: str, given_id: str | None = None) -> dict[str, Any]:
    """The result of an item that a step refused."""
    title = problem.replace("-", " ")
    shown: dict[str, Any] = {"type": f"/problems/{problem}", "title": title, "detail": detail}
    shown["errors"] = [{"pointer": pointer, "detail": detail}]
    return {"id": given_id, "status": "rejected", "problem": shown}


def erased(name: str, request: str) -> dict[str, Any]:
    """The result of an item that goes at once, under the request that stands behind it."""
    return {"id": name, "status": "erased", **({"request": request} if request else {})}

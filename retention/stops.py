"""What stands against an end: holds, restrictions, open requests for an export; and who knows of them.

Guarantees: read in the caller's transaction, so that a decision made there sees every hold that was committed before.
Requests live above this package; `Desk` is how their side tells what retention must respect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.entry import Kind
from registry.graph import ARTIFACT, ENTRY, Parent, children_of, made_from_entries, parents_of
from registry.keyed import hold_writer
from registry.people import groups
from retention.decide import Claim, Hold, Restriction
from retention.models import HoldRow

ANCESTORS = 20_000
_LOCK_SPACE = 0x6D76  # "mv": the advisory locks of holds and of decisions by them
_LOCK_RANGE = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """Everything in force that may keep an item although its time has come."""

    holds: Sequence[Hold] = ()
    restrictions: Sequence[Restriction] = ()
    claims: Sequence[Claim] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A copy that a request left to a hold. `then`: `erased` at once, `awaiting_human`, or `retained` by `rule`.

    `collateral` counts the others that it is about, None where there are none.
    """

    ref: str
    then: str
    rule: str
    collateral: Mapping[str, int] | None


class Desk(Protocol):
    """The side of requests and executions, as far as retention needs it; `erasure.request_desk` is the one there is."""

    def stops(self, session: Session, tenant_id: int, about: Collection[int] | None = None) -> Stops:
        """Everything in force; holds with all that was made from what they name, or with what of it is in `about`.

        `about` are the artifacts that a decision is made about.
        """
        ...

    def sent(self, session: Session, tenant_id: int, artifact_ids: Collection[int]) -> list[str]:
        """Public ids of those artifacts whose delete was already sent to their store."""
        ...

    def busy(
        self, session: Session, tenant_id: int, artifact_ids: Collection[int], key_ids: Collection[str]
    ) -> frozenset[int | str]:
        """Those artifacts and keys that an open run has in its plan."""
        ...

    def deferred(
        self, session: Session, tenant_id: int, hold_id: str, now: datetime
    ) -> Mapping[str, Sequence[Resumed]]:
        """Requests that wait for a hold, each with the copies it will take up again and what happens to them then."""
        ...

    def last_answer(self, session: Session, tenant_id: int, artifact_id: int) -> str | None:
        """What an artifact's store answered when a pass last failed to end it."""
        ...


class EventRecord(Protocol):
    """The record, as far as retention writes it; `registry.record.Record` is the one there is."""

    def event(self, tenant_id: int, kind: Kind, body: Mapping[str, Any], now: datetime) -> str:
        """Store a binding event and return its entry id; never inside a transaction."""
        ...

    def announce(self, session: Session, tenant_id: int, kind: Kind, body: Mapping[str, Any], now: datetime) -> str:
        """Write an announcing event in the caller's transaction and return its entry id."""
        ...


def holds_in_force(session: Session, tenant_id: int) -> tuple[Hold, ...]:
    """Every hold that was not released, as it was placed; one on a person holds everybody merged with them.

    One on an artifact or an entry holds what was made from it as well: `held_among`, and `with_copies` for all of it.
    """
    rows = session.exec(select(HoldRow).where(HoldRow.tenant_id == tenant_id, col(HoldRow.released_at).is_(None))).all()
    one_person = groups(session, tenant_id, {number for row in rows for number in row.subjects})
    return tuple(_hold(row, frozenset[int]().union(*(one_person[number] for number in row.subjects))) for row in rows)


def keep_holds_out(session: Session, tenant_id: int) -> None:
    """From here to the end of the transaction no hold is placed: what is decided is seen by the next one as sent.

    Called before holds are read by whoever then destroys by them; any number may at once. SQLite has one writer anyway.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(sa.select(sa.func.pg_advisory_xact_lock_shared(_LOCK_SPACE, tenant_id % _LOCK_RANGE)))


def wait_for_decisions(session: Session, tenant_id: int) -> None:
    """Wait until nobody decides by the holds of before, and let nobody begin; for who places one.

    Takes no other lock afterwards, since those who are waited for may have it.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_SPACE, tenant_id % _LOCK_RANGE)))


def held_classes(session: Session, tenant_id: int) -> list[frozenset[str]]:
    """The classes that each hold in force names, of holds that name any, for who changes an item's class.

    A hold is there before the change, or finds the item in its new class: `keep_holds_out`.
    """
    hold_writer(session, tenant_id)  # first, as in every transaction that takes both
    keep_holds_out(session, tenant_id)
    rows = session.scalars(
        sa.select(col(HoldRow.data_classes)).where(
            col(HoldRow.tenant_id) == tenant_id, col(HoldRow.released_at).is_(None)
        )
    )
    return [frozenset(names) for names in rows if names]


def held_among(
    session: Session, tenant_id: int, holds: Sequence[Hold], artifact_ids: Collection[int]
) -> tuple[Hold, ...]:
    """The holds with those of these artifacts that were made, at any depth, from what they name.

    Looks up from the artifacts, so that it costs what they were made from and not how much was made from what is held;
    where they have more than `ANCESTORS` sources it looks down.
    """
    if not artifact_ids or not any(hold.artifacts or hold.entries for hold in holds):
        return tuple(holds)
    below: dict[Parent, set[int]] = {}
    seen: set[int] = set()
    frontier = set(artifact_ids)
    while frontier:
        seen |= frontier
        if len(seen) > len(artifact_ids) + ANCESTORS:
            return tuple(with_copies(session, tenant_id, hold) for hold in holds)
        for child, sources in parents_of(session, tenant_id, frontier).items():
            for source in sources:
                below.setdefault(source, set()).add(child)
        frontier = {source.number for source in below if source.kind == ARTIFACT} - seen
    return tuple(_with_reached(hold, below) for hold in holds)


def _with_reached(hold: Hold, below: Mapping[Parent, set[int]]) -> Hold:
    """The hold with what lies below the artifacts and entries that it names."""
    named = [Parent(ARTIFACT, number) for number in hold.artifacts] + [Parent(ENTRY, idx) for idx in hold.entries]
    reached: set[int] = set()
    frontier = [source for source in named if source in below]
    while frontier:
        fresh = below.get(frontier.pop(), set()) - reached
        reached |= fresh
        frontier += [Parent(ARTIFACT, number) for number in fresh]
    return hold._replace(artifacts=hold.artifacts | reached) if reached else hold


def with_copies(session: Session, tenant_id: int, hold: Hold) -> Hold:
    """The hold with everything that was made from the artifacts and entries it names, at any depth, as of now."""
    made = made_from_entries(session, tenant_id, hold.entries)
    found = set(hold.artifacts).union(*made.values())
    frontier = set(found)
    while frontier:
        frontier = set[int]().union(*children_of(session, tenant_id, frontier).values()) - found
        found |= frontier
    return hold._replace(artifacts=frozenset(found)) if found != hold.artifacts else hold


def _hold(row: HoldRow, people: frozenset[int]) -> Hold:
    return Hold(
        row.hold_id,
        people,
        frozenset(row.data_classes),
        frozenset(row.scopes),
        frozenset(row.artifacts),
        frozenset(row.entries),
    )

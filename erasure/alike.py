"""Which of many copies a person's request ends, decided once for all whose decisions cannot differ.

Most copies of a request differ in nothing that decides about them. What they have in common is one look-up, and their
decision is one call of `retention.decide.decide`.

Guarantees: a copy is named here only where `decide` would end it if it were asked about this copy alone, and where it
is about nobody but the request's persons. Whatever tells single items apart (a hold or restriction of a conversation,
an artifact or an entry, a duty that counts from an item's date, a derived item that stays while other sources live)
leaves the copy to be decided by itself. Not here: copies of a sweep, where every date matters.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlmodel import Session

from erasure.standing import Standing
from registry import bulk
from registry.sets import members
from retention.decide import DESTRUCTIVE, Claim, Hold, Item, Restriction, Rules, SourceEnd, decide

ERASING = "erasure"
_ROWS = "SELECT id, data_class, set_id, own_set_id FROM artifact WHERE tenant_id = ? AND id"
# One row for all that are alike, since ten thousand cost more to send than to find. Each is looked up by itself: asked
# for a list of numbers, PostgreSQL without statistics takes an index of the tenant, and reads all there is of it.
_PACKED = """
    SELECT string_agg(int8send(a.id), ''), a.data_class, a.set_id, a.own_set_id
    FROM unnest(?::int8[]) AS wanted (id) CROSS JOIN LATERAL (
        SELECT id, data_class, set_id, own_set_id FROM artifact WHERE tenant_id = ? AND id = wanted.id LIMIT 1
    ) AS a GROUP BY a.data_class, a.set_id, a.own_set_id
"""
_ROOT_OR_DERIVED = ((), (SourceEnd("live", None),))
"""The sources that make a difference: none, or one that lives and so speaks for what was made from it."""


class Kin(NamedTuple):
    """What the decision about an item looks at, where nothing in force names items, conversations or dates."""

    data_class: str
    subjects: frozenset[int]
    own_subjects: frozenset[int]


def are_told_apart(claim: Claim, holds: Sequence[Hold], restrictions: Sequence[Restriction]) -> bool:
    """Whether something in force may say of one item what it does not say of another of its `Kin`."""
    return (
        claim.scopes is not None
        or claim.artifacts is not None
        or any(hold.artifacts or hold.entries or hold.scopes for hold in holds)
        or any(restriction.scopes is not None for restriction in restrictions)
    )


def all_go(  # noqa: PLR0917 - as `decide`, which is asked
    kin: Kin,
    rules: Rules | None,
    claim: Claim,
    holds: Sequence[Hold],
    restrictions: Sequence[Restriction],
    now: datetime,
) -> bool:
    """Whether the request ends every item of that `Kin`, made from others or not, and takes it from nobody else.

    Only of what `are_told_apart` does not tell apart.
    """
    if rules is None or rules.floor_for is not None or rules.on_request == "retain":
        return False
    if claim.right != ERASING or not kin.subjects <= claim.subjects:
        return False
    for sources in _ROOT_OR_DERIVED:
        item = Item(
            item_id=0,
            data_class=kin.data_class,
            created=now,
            subjects=kin.subjects,
            own_subjects=kin.own_subjects,
            sources=sources,
        )
        decision = decide(item, rules, holds, restrictions, (claim,), now)
        if decision.action not in DESTRUCTIVE or decision.rule != "request":
            return False
    return True


def ended_by(
    session: Session, tenant_id: int, artifact_ids: Collection[int], *, claim: Claim, known: Standing, now: datetime
) -> set[int]:
    """Those of these artifacts that the request ends by what is in force in this transaction, as far as told at once.

    None of them is a package of an export: a hold may keep those for what is in them (`erasure.packages`).
    """
    if not artifact_ids or are_told_apart(claim, known.holds, known.restrictions):
        return set()
    found = _kin_of(session, tenant_id, sorted(artifact_ids))
    going: set[int] = set()
    for kin, numbers in found.items():
        fact = known.classes.get(kin.data_class)
        rules = None if fact is None else fact.rules
        if all_go(kin, rules, claim, known.holds, known.restrictions, now):
            going.update(numbers)
    return going


def _kin_of(session: Session, tenant_id: int, artifact_ids: Sequence[int]) -> Mapping[Kin, list[int]]:
    """The artifacts that are there, by what is decided about them."""
    groups: dict[tuple[str, int, int], list[int]] = {}
    if session.get_bind().dialect.name == "postgresql":
        wanted = bulk.array(session.connection(), "int8", artifact_ids)
        for data, data_class, set_id, own_set_id in bulk.select(session, _PACKED, (wanted, tenant_id)):
            groups[data_class, set_id, own_set_id] = list(struct.unpack(f">{len(data) // 8}q", data))
    else:
        for number, *kin in bulk.select_in(session, _ROWS, (tenant_id,), artifact_ids, "int8"):
            groups.setdefault(tuple(kin), []).append(number)
    people = members(session, tenant_id, {number for _, *sets in groups for number in sets})
    found: dict[Kin, list[int]] = {}
    for (data_class, set_id, own_set_id), numbers in groups.items():
        found.setdefault(Kin(data_class, people[set_id], people[own_set_id]), []).extend(numbers)
    return found

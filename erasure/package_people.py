"""Who else a package is about: the people in the copies that a human released to somebody else.

A package is a copy of what lies in it, so it is registered as about everybody in there: a later erasure of one of them
finds it like any other copy, and a hold or restriction keeps it.

Guarantees: reads in the caller's transaction. What is about somebody whose erasure is approved, whom no name leads to
any more, or about more people than an item of the registry can name, goes into no package, whoever released it before.
Not here: who releases (`erasure.desk`), and the file (`erasure.exporting`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sqlmodel import Session

from erasure import copies
from erasure.handout import ERASING
from erasure.request import CopyState
from registry import subjects
from registry.artifact_rows import by_numbers
from registry.item import MAX_SUBJECTS
from registry.sets import members
from retention.parts import load_parts, places_of
from vault.vault import Vault

TOO_MANY = "about more people than a package can name"
NAMELESS = "about somebody whose names are not known any more"
_IN_THE_PACKAGE = (CopyState.PENDING.value, CopyState.EXPORTED.value)
_MOST = MAX_SUBJECTS // 2
"""Of others; the rest is for the names under which the person asks."""


class Going(NamedTuple):
    """A copy that is in a package, or on its way into it, and about others too."""

    copy_no: int
    kind: str
    ref: str
    artifact_id: int | None
    state: str
    collateral: dict[str, Any] | None


def others_of(session: Session, tenant_id: int, request_id: str, mine: Iterable[int]) -> dict[int, frozenset[int]]:
    """The other people of those copies that are in the package or on their way into it, by the copy's number.

    In the order of the copies.
    """
    people = frozenset(mine)
    found: dict[int, frozenset[int]] = {}
    for going in _going(session, tenant_id, request_id):
        rows = by_numbers(session, tenant_id, {copy.artifact_id for copy in going if copy.artifact_id is not None})
        sets = members(session, tenant_id, {row.set_id for row in rows.values()})
        places = places_of(session, tenant_id, [copy.ref for copy in going if copy.kind == "entry"])
        parts = load_parts(session, tenant_id, places)
        said = {ref: parts[place].subjects for place, ref in places.items() if place in parts}
        for copy in going:
            row = rows.get(copy.artifact_id or 0)
            about = said.get(copy.ref, frozenset()) if row is None else sets.get(row.set_id, frozenset())
            found[copy.copy_no] = frozenset(about) - people
    return found


def _going(session: Session, tenant_id: int, request_id: str) -> Iterator[list[Going]]:
    for page in copies.pages(session, Going, copies.of(tenant_id, request_id, *_IN_THE_PACKAGE)):
        if going := [copy for copy in page if copy.collateral]:
            yield going


def leave_out_who_goes(
    session: Session, vault: Vault, tenant_id: int, request_id: str, others: Mapping[int, frozenset[int]]
) -> None:
    """Withhold what is about somebody who goes or has no name, or about too many; in the order of the copies."""
    erasing = subjects.fenced(session, tenant_id, everybody(others)).keys()
    named: set[int] = set()
    left_out: dict[int, str] = {}
    for number, people in others.items():
        if people & erasing:
            left_out[number] = ERASING
        elif len(named | people) > _MOST:
            left_out[number] = TOO_MANY
        else:
            named |= people
    nameless = named - known_names(session, vault, tenant_id, named).keys()
    left_out |= {number: NAMELESS for number, people in others.items() if people & nameless and number not in left_out}
    withheld = {number: {"state": CopyState.WITHHELD.value, "detail": why} for number, why in left_out.items()}
    copies.write(session, tenant_id, request_id, withheld)


def begin_again(session: Session, tenant_id: int, request_id: str, about: Collection[int]) -> None:
    """Let these copies, at least one, be decided about once more by the next pass."""
    copies.update(session, copies.among(session, tenant_id, request_id, about), state=CopyState.PENDING.value)


def everybody(others: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """The people of all these copies."""
    return frozenset[int]().union(*others.values())


def names_for(session: Session, vault: Vault, tenant_id: int, people: Iterable[int]) -> list[str]:
    """A name of each of these people that is still known, as registrations give it."""
    return list(known_names(session, vault, tenant_id, people).values())


def known_names(session: Session, vault: Vault, tenant_id: int, people: Iterable[int]) -> dict[int, str]:
    """The same by their numbers: whoever is missing has no name that anybody could be asked for."""
    found = subjects.names_of(session, vault, tenant_id, people)
    return {number: names[0].text for number, names in sorted(found.items()) if names}

"""Who else a package is about: the people in the copies that a human released to somebody else.

A package is a copy of what lies in it, so it is registered as about everybody in there: a later erasure of one of them
finds it like any other copy, and a hold or restriction keeps it.

Guarantees: reads in the caller's transaction. What is about somebody whose erasure is approved, or about more people
than an item of the registry can name, goes into no package, whoever released it before. Not here: who releases
(`erasure.desk`), and the file (`erasure.exporting`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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


def leave_out_who_goes(session: Session, tenant_id: int, request_id: str, others: Mapping[int, frozenset[int]]) -> None:
    """Withhold what is about somebody whose erasure is approved, or about too many; in the order of the copies."""
    named: set[int] = set()
    left_out: dict[int, dict[str, str]] = {}
    for number, people in others.items():
        if not people:
            continue
        why = None
        if subjects.fenced(session, tenant_id, people):
            why = ERASING
        elif len(named | people) > _MOST:
            why = TOO_MANY
        if why is None:
            named |= people
        else:
            left_out[number] = {"state": CopyState.WITHHELD.value, "detail": why}
    copies.write(session, tenant_id, request_id, left_out)


def names_for(session: Session, vault: Vault, tenant_id: int, people: Iterable[int]) -> list[str]:
    """A name of each of these people that is still known, as registrations give it."""
    found = subjects.names_of(session, vault, tenant_id, people)
    return [names[0].text for _, names in sorted(found.items()) if names]

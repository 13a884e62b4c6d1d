"""Reads, before anything is touched, what later steps need: where each copy lies and what it held.

Guarantees: locators come from the registry's sealed details, canaries from the store itself, both only through here and
sealed at once. A store that does not answer costs canaries, never the plan: its copies are captured again before they
are erased. What nothing will look for is not read: a store reads all that others hold to tell what is a copy's own.
Called outside transactions, since stores may be slow.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sqlmodel import Session

from connectors.base import Connector, Level
from erasure.parts import Parts
from erasure.plan import PlanCopy
from erasure.sealed import Capture, RequestSeal
from registry import artifacts, stores, subjects
from registry.models import StoreRow

CAPTURE_CHUNK = 10_000
"""Items a connector is asked for at once: it tells canaries of one item from those that others share."""
_PLACES = 1_000
"""Items whose places are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A copy whose place and content are to be captured."""

    ref: str
    artifact_id: int
    store: str
    built: bool
    goes: bool = True
    """Whether it is to be erased at once; what stays or waits still shows what it shares with the others."""
    level: Level = Level.L2
    """What its absence is to be shown at."""
    compared: bool = True
    """Whether something may be made anew that has to be free of what it held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Every readable name of the plan's people, as stores may hold them as owners."""

    identifiers: tuple[str, ...] = field(repr=False)


def names_of(parts: Parts, tenant_id: int, subject_nos: Iterable[int]) -> Names:
    """The readable names, as given and as normalised."""
    with parts.transactions(tenant_id, write=False) as session:
        found = subjects.names_of(session, parts.vault, tenant_id, subject_nos)
    texts = {text for names in found.values() for name in names for text in (name.text, name.given)}
    return Names(identifiers=tuple(sorted(texts)))


def places_of(parts: Parts, tenant_id: int, wanted: Sequence[Wanted]) -> dict[str, Mapping[str, Any]]:
    """Where each copy lies, by its public id; copies whose place is unknown are left out."""
    found: dict[str, Mapping[str, Any]] = {}
    for start in range(0, len(wanted), _PLACES):
        some = wanted[start : start + _PLACES]
        # A session holds every row that it read until it ends.
        with parts.transactions(tenant_id, write=False) as session:
            items = artifacts.by_numbers(session, tenant_id, [copy.artifact_id for copy in some])
            details = artifacts.open_details(session, parts.vault, tenant_id, list(items.values()))
        found |= {copy.ref: details[copy.artifact_id].locator for copy in some if copy.artifact_id in details}
    return found


def sealed_places(
    session: Session, parts: Parts, tenant_id: int, seal: RequestSeal, lines: Sequence[PlanCopy]
) -> dict[str, bytes]:
    """Captures of the places alone, by public id, in the caller's transaction: no store is asked.

    For lines that join a plan: what they held is read before they are erased, but their rows may lose their places
    before that, when another request erases them too.
    """
    found: dict[str, bytes] = {}
    for start in range(0, len(lines), _PLACES):
        some = lines[start : start + _PLACES]
        items = artifacts.by_numbers(session, tenant_id, [line.artifact_id for line in some if line.artifact_id])
        details = artifacts.open_details(session, parts.vault, tenant_id, list(items.values()))
        known = {line.ref: details[line.artifact_id] for line in some if line.artifact_id in details}
        found |= {ref: seal.seal_capture(Capture(one.locator), ref) for ref, one in known.items()}
    return found


def capture(parts: Parts, tenant_id: int, wanted: Sequence[Wanted]) -> dict[str, Capture]:
    """The capture of each copy by its public id; copies whose place is unknown are left out."""
    return {wanted[place].ref: one for some in capture_in_pieces(parts, tenant_id, wanted) for place, one in some}


def capture_in_pieces(
    parts: Parts, tenant_id: int, wanted: Sequence[Wanted]
) -> Iterator[Iterator[tuple[int, Capture]]]:
    """`capture` by place in `wanted`, as many copies at a time as one store is asked for at once."""
    with parts.transactions(tenant_id, write=False) as session:
        rows = stores.in_force(session, tenant_id)
    groups: dict[tuple[str, bool], array[int]] = defaultdict(partial(array, "I"))
    built: set[tuple[str, bool]] = set()
    for place, copy in enumerate(wanted):
        groups[copy.store, copy.goes].append(place)
        if copy.built:
            built.add((copy.store, copy.goes))
    for (name, goes), members in sorted(groups.items()):
        with ExitStack() as stack:
            connector = _opened(parts, stack, rows.get(name)) if (name, goes) in built else None
            seeks_from = Level.L1 if connector is None else connector.capabilities().seeks_from
            is_read = connector is not None and any(_is_sought(wanted[place], seeks_from) for place in members)
            size = CAPTURE_CHUNK if is_read else _PLACES
            for start in range(0, len(members), size):
                numbers = members[start : start + size]
                chunk = [wanted[place] for place in numbers]
                places = places_of(parts, tenant_id, chunk)
                found = {ref: Capture(place) for ref, place in places.items()}
                if connector is not None:
                    here = [copy for copy in chunk if copy.built and copy.ref in places]
                    aside = {copy.ref for copy in here if not _is_sought(copy, seeks_from)}
                    found |= {ref: replace(found[ref], captured=True) for ref in aside}
                    here = [copy for copy in here if copy.ref not in aside]
                    held = _canaries(parts, connector, here, places)
                    # What was not read now is read before the erase; a store that stays silent cannot be erased either.
                    connector = None if held is None else connector
                    found |= held or {}
                yield (
                    (place, found[copy.ref]) for place, copy in zip(numbers, chunk, strict=True) if copy.ref in found
                )


def _is_sought(copy: Wanted, seeks_from: Level) -> bool:
    """Whether something looks later for what a copy held."""
    return copy.level >= seeks_from or copy.compared


def _opened(parts: Parts, stack: ExitStack, store: StoreRow | None) -> Connector | None:
    if store is None:
        return None
    try:
        connector = parts.connect(store, True)
    except Exception:  # noqa: BLE001 - whatever a driver raises costs its own store's canaries only
        return None
    stack.callback(_close, connector)
    return connector


def _close(connector: Connector) -> None:
    with suppress(Exception):  # what it read is read
        connector.close()


def _canaries(
    parts: Parts, connector: Connector, copies: Sequence[Wanted], places: Mapping[str, Mapping[str, Any]]
) -> dict[str, Capture] | None:
    """What the store holds of these copies; None where it does not answer."""
    items = [Capture(places[copy.ref]).item(number) for number, copy in enumerate(copies)]
    try:
        held = connector.capture(items, deadline=parts.store_seconds) if items else {}
    except Exception:  # noqa: BLE001 - as above
        return None
    return {
        copy.ref: Capture(places[copy.ref], tuple(held.get(str(number), ())), captured=True)
        for number, copy in enumerate(copies)
    }

"""Reads, before anything is touched, what later steps need: where each copy lies and what it held.

Guarantees: locators come from the registry's sealed details, canaries from the store itself, both only through here and
sealed at once. A store that does not answer costs canaries, never the plan: its copies are captured again before they
are erased. Called outside transactions, since stores may be slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from erasure.parts import Parts
from erasure.sealed import Capture
from registry import artifacts, stores, subjects
from registry.models import StoreRow

CAPTURE_CHUNK = 5_000
"""Items a connector is asked for at once: it tells canaries of one item from those that others share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A copy whose place and content are to be captured."""

    ref: str
    artifact_id: int
    store: str
    built: bool
    goes: bool = True
    """Whether it is to be erased at once; what stays or waits still shows what it shares with the others."""


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
    with parts.transactions(tenant_id, write=False) as session:
        items = artifacts.by_numbers(session, tenant_id, [copy.artifact_id for copy in wanted])
        details = artifacts.open_details(session, parts.vault, tenant_id, list(items.values()))
    return {copy.ref: details[copy.artifact_id].locator for copy in wanted if copy.artifact_id in details}


def capture(parts: Parts, tenant_id: int, wanted: Sequence[Wanted]) -> dict[str, Capture]:
    """The capture of each copy by its public id; copies whose place is unknown are left out."""
    with parts.transactions(tenant_id, write=False) as session:
        items = artifacts.by_numbers(session, tenant_id, [copy.artifact_id for copy in wanted])
        details = artifacts.open_details(session, parts.vault, tenant_id, list(items.values()))
        rows = stores.in_force(session, tenant_id)
    found: dict[str, Capture] = {}
    by_store: dict[tuple[str, bool], list[Wanted]] = defaultdict(list)
    places: dict[str, Mapping[str, Any]] = {}
    for copy in wanted:
        known = details.get(copy.artifact_id)
        if known is None:
            continue
        places[copy.ref] = known.locator
        found[copy.ref] = Capture(known.locator)
        if copy.built:
            by_store[copy.store, copy.goes].append(copy)
    for (name, _), copies in sorted(by_store.items()):
        if name in rows:
            found |= _canaries(parts, rows[name], copies, places)
    return found


def _canaries(
    parts: Parts, store: StoreRow, copies: Sequence[Wanted], places: Mapping[str, Mapping[str, Any]]
) -> dict[str, Capture]:
    found: dict[str, Capture] = {}
    try:
        with parts.connect(store, True) as connector:
            for start in range(0, len(copies), CAPTURE_CHUNK):
                chunk = copies[start : start + CAPTURE_CHUNK]
                items = [Capture(places[copy.ref]).item(number) for number, copy in enumerate(chunk)]
                held = connector.capture(items, deadline=parts.store_seconds)
                for number, copy in enumerate(chunk):
                    canaries = tuple(held.get(str(number), ()))
                    found[copy.ref] = Capture(places[copy.ref], canaries, captured=True)
    except Exception:  # noqa: BLE001 - whatever a driver raises costs its own store's canaries only
        # What was not read now is read before the erase; a store that stays silent cannot be erased either.
        return found
    return found

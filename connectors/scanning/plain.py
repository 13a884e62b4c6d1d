"""A scan in words: lines for a terminal, and what would happen if a deletion request came today, in three sentences.

Guarantees: numbers come from the scan alone; what a connector would reach is asked of the connector itself, which
contacts nothing for that. Where nothing can be said, the sentence says so. Holds no names of people.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from connectors.base import open_connector
from connectors.errors import ConnectorError
from connectors.scanning.advice import plain

if TYPE_CHECKING:
    from connectors.scanning.report import Place, Scan

_KILO = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """To which level this version would erase at a place; `because` where it would not, or only under a condition."""

    level: str | None
    because: str | None
    locks: str | None = None


def reach_of(place: Place) -> Reach:
    """Return what this version can do at a place."""
    if place.kind is None:
        return Reach(level=None, because="no kind of store reaches this; it is for the team that owns it")
    if place.needs:
        return Reach(level=None, because=f"register kind {place.kind} with {place.needs}")
    try:
        with open_connector(place.kind, place.store_config(), secrets=str, read_only=True) as connector:
            can = connector.capabilities()
    except ConnectorError as error:
        return Reach(level=None, because=str(error))
    return Reach(level=can.verify_level.value, because=None, locks=can.locks)


def as_json(scan: Scan, *, names: bool) -> dict[str, Any]:
    """Return the whole scan as one JSON document."""
    count, complete = scan.people()
    places = []
    for place in scan.places:
        reach = reach_of(place)
        erasable = {"level": reach.level, "because": reach.because, "locks": reach.locks}
        places.append({**place.as_json(names=names), "erasable": erasable})
    found: dict[str, Any] = {
        "target": scan.target,
        "scanned_at": scan.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "verdict": scan.verdict(),
        "subjects": {"count": count, "complete": complete},
        "threads": sum(place.threads or 0 for place in scan.places),
        "rows": sum(place.rows for place in scan.places),
        "bytes": sum(place.bytes for place in scan.places),
        "orphans": sum(orphan.count for place in scan.places for orphan in place.orphans),
        "multi_subject_threads": sum(place.several for place in scan.places),
        "places": places,
        "if_a_deletion_request_came_today": sentences(scan),
        "could_not_read": scan.could_not_read(),
        "notes": scan.notes,
    }
    asked = [place.dry_run for place in scan.places if place.dry_run is not None]
    if asked or scan.hits is not None:
        found["dry_run"] = {
            **{name: sum(getattr(each, name) for each in asked) for name in ("items", "shared", "mentions", "unread")},
            "raw_byte_hits": scan.hits,
            "changed": "nothing",
        }
    cleaned: dict[str, Any] = _clean(found)
    return cleaned


def _clean(value: Any) -> Any:
    """Return a value whose texts can be written as UTF-8; names in a store may be anything."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_clean(name): _clean(each) for name, each in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list | tuple) else value


def sentences(scan: Scan) -> list[str]:
    """Return what would happen if a deletion request came today, in three plain sentences."""
    if not scan.places:
        return [
            "Nothing that this version recognises lies here, so nobody can say whom it is about.",
            "A deletion request would not be led here by anything.",
            "Muniment would print the place as not covered.",
        ]
    return [_who(scan), _what_stays(scan), _what_we_would_do(scan)]


def _who(scan: Scan) -> str:
    count, complete = scan.people()
    nobody = sum(place.nobody for place in scan.places)
    fields = sorted({field for place in scan.places if (field := place.owner_field())})
    if not any(place.rows or place.nobody or place.unread or any(place.parts.values()) for place in scan.places):
        return "No item lies here now, so nobody's data would be found; whose later items are cannot be seen yet."
    if not count:
        return "No field says whose anything here is, so a person's data could not even be found."
    told = f"{'' if complete else 'At least '}{_n(count, 'person', 'people')} can be told apart by {', '.join(fields)}"
    if not nobody:
        return f"{told}, and everything here names somebody."
    return f"{told}; {_n(nobody, 'item names', 'items name')} nobody, and a request would miss them."


def _what_stays(scan: Scan) -> str:
    orphans = sum(orphan.count for place in scan.places for orphan in place.orphans)
    kinds = list(dict.fromkeys(line for place in scan.places for line in place.leaves))
    stays = (
        f"The stores' own delete would leave {kinds[0]}" if kinds else "What the stores' own delete leaves is not known"
    )
    if len(kinds) > 1:
        stays += f", and {len(kinds) - 1} more {'kind' if len(kinds) == 2 else 'kinds'} of residue"  # noqa: PLR2004 -- one more
    if not orphans:
        return f"{stays}."
    lies = "lies" if orphans == 1 else "lie"
    return f"{stays}; {_n(orphans, 'piece', 'pieces')} of what was deleted or forgotten before {lies} here already."


def _what_we_would_do(scan: Scan) -> str:
    reached: dict[str, int] = {}
    missed = 0
    for place in scan.places:
        level = reach_of(place).level
        if level is None:
            missed += 1
        else:
            reached[level] = reached.get(level, 0) + 1
    parts = [f"{_n(count, 'place', 'places')} to {level}" for level, count in sorted(reached.items())]
    several = sum(place.several for place in scan.places)
    what = f"Once it is registered, Muniment could erase {' and '.join(parts)} with evidence"
    said = what if parts else "Muniment could erase nothing here"
    if missed:
        said += f", {_n(missed, 'place', 'places')} would be printed as not covered"
    if several:
        said += f", and {_n(several, 'thread', 'threads')} of several people would be left and reported"
    return f"{said}."


def _n(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def lines(scan: Scan, *, names: bool) -> Iterator[str]:
    """Yield the scan for a reader."""
    return map(plain, _lines(scan, names=names))


def _lines(scan: Scan, *, names: bool) -> Iterator[str]:
    yield f"{scan.target}: {scan.verdict().replace('_', ' ')}; nothing was changed"
    for place in scan.places:
        yield ""
        yield from _place(place, names=names)
    for line in scan.unread:
        yield f"could not read: {line}"
    for line in scan.notes:
        yield f"note: {line}"
    yield ""
    yield "If a deletion request came today:"
    yield from (f"  {number}. {sentence}" for number, sentence in enumerate(sentences(scan), 1))
    if any(place.dry_run is not None for place in scan.places) or scan.hits is not None:
        yield ""
        yield from _dry_run(scan)


def _place(place: Place, *, names: bool) -> Iterator[str]:
    reach = reach_of(place)
    can = f"kind {place.kind}, erasable to {reach.level}" if reach.level else f"not erasable: {reach.because}"
    yield f"{place.what}  {place.label}  ({can})"
    people = f"{'' if place.people.complete else 'at least '}{_n(len(place.people), 'subject', 'subjects')}"
    by = f" by {place.owner_field()}" if place.owner_field() else ""
    threads = "" if place.threads is None else f", {_n(place.threads, 'thread', 'threads')}"
    yield f"  {people}{by}{threads}, {_n(place.rows, 'row', 'rows')}, {_size(place.bytes)}"
    ages = place.ages.as_json()
    spans = ", ".join(f"{count:,} {span}" for span, count in ages["histogram"].items() if count)
    if ages["oldest"]:
        yield f"  from {ages['oldest'][:10]} to {ages['newest'][:10]}"
    yield f"  ages: {spans or 'none'}"
    if place.parts:
        yield f"  {', '.join(f'{name}: {count:,}' for name, count in place.parts.items())}"
    if names:
        yield from (f"    {name}: {count:,}" for name, count in place.people.largest(100))
    if place.nobody:
        yield f"  ! {_n(place.nobody, 'item names', 'items name')} nobody"
    if place.several:
        yield f"  ! {_n(place.several, 'thread', 'threads')} of several people"
    yield from (f"  ! orphans: {each.count:,} {each.what}: {each.why}" for each in place.orphans)
    for each in place.settings:
        yield f"  {'!' if each.dangerous else '-'} {each.name}: {each.value}; {each.why}"
    yield from (f"  - own delete leaves: {line}" for line in place.leaves)
    yield from (f"  - {line}" for line in place.notes)
    yield from (f"  could not read: {line}" for line in place.unread)


def _dry_run(scan: Scan) -> Iterator[str]:
    yield "Erasure dry run for the person asked for (nothing was changed):"
    for place in scan.places:
        run = place.dry_run
        if run is None:
            continue
        reach = reach_of(place)
        end = f"to {reach.level}" if reach.level else f"not covered: {reach.because}"
        yield f"  {place.what}  {place.label}: {_n(run.items - run.shared, 'item', 'items')} would go, {end}"
        if run.shared:
            yield f"    {_n(run.shared, 'item names', 'items name')} others too: left and reported"
        if run.mentions:
            one, many = "item of others or of nobody mentions", "items of others or of nobody mention"
            yield f"    {_n(run.mentions, one, many)} them"
        if run.unread:
            yield f"    {_n(run.unread, 'item', 'items')} could not be looked into"
    if scan.hits is not None:
        told = ", ".join(f"{count} as {encoding}" for encoding, count in scan.hits.items()) or "none"
        yield f"  in the raw bytes of the files: {told} (compressed and encrypted bytes are not seen through)"


def _size(number: int) -> str:
    if number < _KILO:
        return _n(number, "byte", "bytes")
    value = number / _KILO
    for unit in ("KB", "MB"):
        if value < _KILO:
            return f"{value:,.1f} {unit}"
        value /= _KILO
    return f"{value:,.1f} GB"

"""What a scan found, as plain values: places, people, ages, orphans, settings, and what could not be read.

Guarantees: names of people are kept up to `LIMIT`, then counting goes on as "at least" and `complete` says so; a report
as JSON holds numbers and labels of the schema, and names of people only where they were asked for. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LIMIT = 100_000
"""Different names that one tally keeps; about 15 MB."""

AGES = (
    ("under a day", timedelta(days=1)),
    ("under a week", timedelta(days=7)),
    ("under 30 days", timedelta(days=30)),
    ("under 90 days", timedelta(days=90)),
    ("under a year", timedelta(days=365)),
)
"""Upper bounds of the histogram; what is older is "a year and more", what has no time "unknown"."""
_SKEW = timedelta(hours=1)
"""Clocks differ, and stores are written to while they are read."""
OLDER, UNKNOWN, FUTURE = "a year and more", "unknown", "in the future"

IMPLIED = frozenset({"namespace", "session_scope", "several columns"})
"""Where a name was read that no connector can compare before it deletes."""


class Names:
    """Different names and how often each occurs, in bounded memory."""

    __slots__ = ("_counts", "complete")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.complete = True

    def add(self, names: Iterable[str]) -> None:
        """Count names; past the limit the known ones only."""
        if self.complete:
            self._counts.update(names)
            self.complete = len(self._counts) <= LIMIT
        else:
            known = self._counts
            known.update(name for name in names if name in known)

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Count names that were counted already."""
        if self.complete:
            self._counts.update(counts)
            self.complete = len(self._counts) <= LIMIT
        else:
            known = self._counts
            known.update({name: count for name, count in counts.items() if name in known})

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, name: object) -> bool:
        return name in self._counts

    def largest(self, most: int) -> list[tuple[str, int]]:
        """Return names with their counts, most frequent first."""
        return self._counts.most_common(most)

    def as_json(self) -> dict[str, Any]:
        """Return how many there are, and whether that is all of them."""
        return {"count": len(self), "complete": self.complete}


class Ages:
    """When things were written: oldest, newest, and how many lie in each span before `now`."""

    __slots__ = ("_now", "newest", "oldest", "spans")

    def __init__(self, now: datetime) -> None:
        self._now = now
        self.oldest: datetime | None = None
        self.newest: datetime | None = None
        self.spans: Counter[str] = Counter()

    def add(self, at: datetime | None, count: int = 1) -> None:
        """Count `count` things of one time; None is unknown."""
        if at is None:
            self.spans[UNKNOWN] += count
            return
        self.oldest = at if self.oldest is None else min(self.oldest, at)
        self.newest = at if self.newest is None else max(self.newest, at)
        self.spans[self._span(self._now - at)] += count

    def add_sorted(self, numbers: Sequence[float], unit: float) -> None:
        """Count times given as sorted numbers since 1970, `unit` of them a second; all of them are times."""
        now = self._now.timestamp() * unit
        bounds = [(name, now - bound.total_seconds() * unit) for name, bound in AGES]
        end = bisect_right(numbers, now + _SKEW.total_seconds() * unit)
        self.spans[FUTURE] += len(numbers) - end
        for name, bound in bounds:
            start = bisect_right(numbers, bound, 0, end)
            self.spans[name] += end - start
            end = start
        self.spans[OLDER] += end
        for edge in (numbers[0], numbers[-1]):
            at = datetime.fromtimestamp(edge / unit, UTC)
            self.oldest = at if self.oldest is None else min(self.oldest, at)
            self.newest = at if self.newest is None else max(self.newest, at)

    def join(self, others: Ages) -> None:
        """Add what others counted before the same `now`."""
        self.spans.update(others.spans)
        known = [each for each in (self.oldest, others.oldest) if each is not None]
        self.oldest = min(known, default=None)
        known = [each for each in (self.newest, others.newest) if each is not None]
        self.newest = max(known, default=None)

    @staticmethod
    def _span(age: timedelta) -> str:
        if age < -_SKEW:
            return FUTURE
        return next((name for name, bound in AGES if age < bound), OLDER)

    def as_json(self) -> dict[str, Any]:
        """Return oldest, newest and the histogram, every span named."""
        order = [*(name for name, _ in AGES), OLDER, UNKNOWN]
        spans = {name: self.spans[name] for name in order}
        if self.spans[FUTURE]:
            spans[FUTURE] = self.spans[FUTURE]
        return {"oldest": _text(self.oldest), "newest": _text(self.newest), "histogram": spans}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a store: whether it lets deleted data lie, and why."""

    name: str
    value: str
    dangerous: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """Data that nothing refers to any more, so that nobody who looks for a person finds it."""

    what: str
    count: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What an erasure of the asked person would meet at one place."""

    items: int = 0
    """Items that name the person as owner."""
    shared: int = 0
    """Of these, items that name others too: left untouched and reported."""
    mentions: int = 0
    """Items that name somebody else, or nobody, and hold the person's name."""
    unread: int = 0
    """Items that could not be looked into."""


@dataclass(slots=True, kw_only=True)
class Place:
    """One recognised store: what it is, what lies in it, and what is wrong with it."""

    what: str
    """As recognised, such as `langgraph-sqlite`."""
    label: str
    """Where, relative to the target."""
    kind: str | None
    """The kind of connector that would drive it; None where there is none."""
    ages: Ages
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    data_class: str | None = None
    needs: str = ""
    """What a store of this kind has to be told beside what lies here; its connector cannot be opened without."""
    registrable: bool = True
    """Whether its items are handed out one by one; those of some places go with another place's."""
    rows: int = 0
    bytes: int = 0
    people: Names = field(default_factory=Names)
    owner_fields: Counter[str] = field(default_factory=Counter)
    threads: int | None = None
    several: int = 0
    """Threads (or shared files) that name more than one person."""
    nobody: int = 0
    """Items that name nobody."""
    parts: dict[str, int] = field(default_factory=dict)
    """Rows by table, collection or the like."""
    orphans: list[Orphan] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    leaves: list[str] = field(default_factory=list)
    """What the store's own delete leaves behind here."""
    notes: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """What could not be read, in words."""
    dry_run: DryRun | None = None

    def orphan(self, what: str, count: int, why: str) -> None:
        """Note orphans, when there are any."""
        if count:
            self.orphans.append(Orphan(what=what, count=count, why=why))

    def owner_field(self) -> str | None:
        """Return the name of the field that names most owners."""
        return self.owner_fields.most_common(1)[0][0] if self.owner_fields else None

    def store_config(self) -> dict[str, Any]:
        """Return the configuration to register this place with; the owner's field where a connector can read it."""
        field = self.owner_field()
        return {**self.config, **({"owner_field": field} if field is not None and field not in IMPLIED else {})}

    def as_json(self, *, names: bool) -> dict[str, Any]:
        """Return the place as JSON; `names` adds the people found."""
        found: dict[str, Any] = {
            "what": self.what,
            "label": self.label,
            "kind": self.kind,
            "rows": self.rows,
            "bytes": self.bytes,
            "subjects": {**self.people.as_json(), "by": self.owner_field(), "items_of_nobody": self.nobody},
            "threads": self.threads,
            "multi_subject_threads": self.several,
            "ages": self.ages.as_json(),
            "parts": self.parts,
            "orphans": [{"what": each.what, "count": each.count, "why": each.why} for each in self.orphans],
            "settings": [
                {"name": each.name, "value": each.value, "dangerous": each.dangerous, "why": each.why}
                for each in self.settings
            ],
            "own_delete_leaves": self.leaves,
            "notes": self.notes,
            "could_not_read": self.unread,
        }
        if names:
            found["subjects"]["names"] = dict(self.people.largest(LIMIT))
        if self.dry_run is not None:
            found["dry_run"] = {name: getattr(self.dry_run, name) for name in DryRun.__slots__}
        return found


@dataclass(slots=True, kw_only=True)
class Scan:
    """Everything one call of `scan` found."""

    target: str
    at: datetime
    places: list[Place] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hits: dict[str, int] | None = None
    """With a person asked for: where the raw bytes hold the name, by file kind and encoding."""
    bytes_read: int = 0

    def could_not_read(self) -> list[str]:
        """Return everything that could not be read, of the target and of its places."""
        return [*self.unread, *(f"{place.label}: {line}" for place in self.places for line in place.unread)]

    def verdict(self) -> str:
        """Return `unreadable`, `partly_read`, `nothing_recognised`, `findings` or `clean`."""
        if self.could_not_read():
            return "partly_read" if self.places else "unreadable"
        if not self.places:
            return "nothing_recognised"
        troubled = any(
            place.orphans or place.several or place.nobody or any(each.dangerous for each in place.settings)
            for place in self.places
        )
        return "findings" if troubled else "clean"

    def people(self) -> tuple[int, bool]:
        """Return how many different people were found in all places, and whether that is all of them."""
        together = Names()
        for place in self.places:
            together.add(name for name, _ in place.people.largest(LIMIT))
        return len(together), together.complete and all(place.people.complete for place in self.places)


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

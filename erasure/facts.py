"""What a plan is made from, as values: artifacts, keys and parts of the record with what decides about them.

Guarantees: no identifier of a person, no locator: opaque ids, names of classes and stores, dates and numbers of people.
Not here: how it is read (`erasure.selector`) and what follows from it (`erasure.plan`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, overload

from registry.ids import artifact_name
from retention.decide import Claim, Hold, Item, Restriction, Rules
from retention.parts import part_ref


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFact:
    """What the plan needs of a class in force: its rules and the level its copies must reach."""

    name: str
    version: int
    required: str
    rules: Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFact:
    """A registered store. `not_covered` says why nothing can be erased there, None where it can."""

    name: str
    kind: str
    not_covered: str | None = None
    checks_owner: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFact:
    """A parent of an artifact, by public name: an artifact (`a`) or an entry of the record (`e`)."""

    kind: str
    ref: int
    name: str
    status: str
    ends_at: datetime | None = None
    about_subjects: bool = False
    """Whether an entry is about the plan's persons, so that its content ends with their keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactFact:
    """One artifact; `item.sources` is filled by the plan from `sources`."""

    artifact_id: int
    name: str
    store: str
    item: Item
    sources: tuple[SourceFact, ...] = ()
    asserted_by: str | None = None
    """The token that registered it, where the store cannot check an owner itself."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NEVER = -(1 << 63)
_MOMENTS = 6
AS_COLUMNS = 5_000
"""Of more artifacts facts and lines are kept as columns: a third of the memory, and some microseconds more for each."""


def follows(name: str, artifact_id: int) -> bool:
    """Whether an artifact's name is the one that follows from its number."""
    return name == artifact_name(artifact_id)


class Packed(Sequence[str]):
    """Texts, one behind the other: each takes its bytes and four more."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = array("Q")

    def append(self, text: str) -> None:
        """One more."""
        self._bytes += text.encode()
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        start = self._ends[place - 1] if place else 0
        return self._bytes[start : self._ends[place]].decode()


class ArtifactFacts(Sequence[ArtifactFact]):
    """Facts by the hundred thousand, as columns; each is made anew when it is looked at.

    As the selector makes them: the sources of their items are the plan's to fill. A fact costs about 70 bytes, and what
    nothing else has in common with it: a conversation, its sources.
    """

    def __init__(self) -> None:
        self._alike: list[ArtifactFact] = []
        self._known: dict[tuple[Any, ...], int] = {}
        self._kinds, self._names = array("I"), Packed()
        self.ids = array("q")
        """The artifacts' numbers, in their order."""
        self._moments = array("q")
        self._sources: dict[int, tuple[SourceFact, ...]] = {}

    def append(self, fact: ArtifactFact) -> None:
        """One more."""
        kind = self._known.setdefault(_in_common(fact), len(self._alike))
        if kind == len(self._alike):
            self._alike.append(fact)
        if fact.sources:
            self._sources[len(self.ids)] = fact.sources
        self._kinds.append(kind)
        self.ids.append(fact.artifact_id)
        self._names.append("" if follows(fact.name, fact.artifact_id) else fact.name)
        self._moments.extend(_NEVER if at is None else (at - _EPOCH) // _MICROSECOND for at in _moments_of(fact.item))

    def stores(self) -> set[str]:
        """The stores in which they lie."""
        return {fact.store for fact in self._alike}

    def derived(self) -> Iterator[ArtifactFact]:
        """Those that have sources."""
        return map(self._fact, self._sources)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> ArtifactFact: ...

    @overload
    def __getitem__(self, place: slice) -> list[ArtifactFact]: ...

    def __getitem__(self, place: int | slice) -> ArtifactFact | list[ArtifactFact]:
        if isinstance(place, slice):
            return [self._fact(one) for one in range(*place.indices(len(self)))]
        return self._fact(range(len(self))[place])

    def __iter__(self) -> Iterator[ArtifactFact]:
        return map(self._fact, range(len(self)))

    def _fact(self, place: int) -> ArtifactFact:
        alike, artifact = self._alike[self._kinds[place]], self.ids[place]
        created, observed, last_activity, consent_until, expires_at, confirmed = (
            None if at == _NEVER else _EPOCH + timedelta(microseconds=at)
            for at in self._moments[place * _MOMENTS : (place + 1) * _MOMENTS]
        )
        item = alike.item
        return ArtifactFact(
            artifact_id=artifact,
            name=self._names[place] or artifact_name(artifact),
            store=alike.store,
            item=Item(
                item_id=artifact,
                data_class=item.data_class,
                created=created or item.created,
                subjects=item.subjects,
                own_subjects=item.own_subjects,
                observed=observed,
                last_activity=last_activity,
                consent_until=consent_until,
                events=item.events,
                expires_at=expires_at,
                scopes=item.scopes,
                entry=item.entry,
                kept_until=item.kept_until,
                confidence=item.confidence,
                confirmed=confirmed,
            ),
            sources=self._sources.get(place, ()),
            asserted_by=alike.asserted_by,
        )


def _moments_of(item: Item) -> tuple[datetime | None, ...]:
    return item.created, item.observed, item.last_activity, item.consent_until, item.expires_at, item.confirmed


def _in_common(fact: ArtifactFact) -> tuple[Any, ...]:
    """Everything of a fact that a column of its own does not hold."""
    item = fact.item
    events = tuple(sorted(item.events.items())) if item.events else ()
    return (
        fact.store, fact.asserted_by, item.data_class, item.subjects, item.own_subjects, events, item.scopes,
        item.confidence, item.entry, item.kept_until,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFact:
    """A part of the record that may meet another fate than the key that seals it."""

    entry_id: str
    entry_idx: int
    part: int
    item: Item
    key_ids: tuple[str, ...] = ()

    @property
    def ref(self) -> str:
        """The id by which lines name it."""
        return part_ref(self.entry_id, self.part)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFact:
    """A data key of a person, and the parts under it that others share or a scope selects.

    `dated`: all parts under it, where a duty keeps the key for its youngest part and the oldest may go. `total`: how
    many parts it seals, known where some are listed.
    """

    key_id: str
    month: str
    item: Item
    outside: int = 0
    """How many entries under this key lie outside a request's conversation."""
    joint_parts: int = 0
    joint_subjects: int = 0
    parts: tuple[PartFact, ...] = ()
    dated: tuple[PartFact, ...] = ()
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """Everything a plan is made from. `claim` is None for a sweep of retention."""

    owner: str
    subjects: frozenset[int]
    claim: Claim | None
    artifacts: Sequence[ArtifactFact]
    keys: Sequence[KeyFact]
    kept: Sequence[PartFact] = ()
    """Parts as items of their own: those with keys of their own, and those that are asked about."""
    classes: Mapping[str, ClassFact]
    stores: Mapping[str, StoreFact]
    holds: Sequence[Hold] = ()
    restrictions: Sequence[Restriction] = ()
    claims: Sequence[Claim] = ()
    now: datetime

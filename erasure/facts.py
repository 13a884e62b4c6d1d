"""What a plan is made from, as values: artifacts, keys and parts of the record with what decides about them.

Guarantees: no identifier of a person, no locator: opaque ids, names of classes and stores, dates and numbers of people.
Not here: how it is read (`erasure.selector`) and what follows from it (`erasure.plan`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

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

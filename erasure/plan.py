"""The plan of an erasure: every copy, what happens to it and by which rule, before anything is touched.

Guarantees: a function of values. Each line comes from `retention.decide.decide` and from nothing else; leaves stand
before what they were made from; the same values give the same bytes and the same hash. The canonical form holds opaque
ids, counts and names of classes, stores and rules: no identifier of a person, no locator. Not decided here: who
approves, and whether a decision still holds when the delete is dispatched (`erasure.execute` asks again).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from erasure.collateral import of_others
from erasure.facts import AS_COLUMNS, ArtifactFact, ArtifactFacts, KeyFact, PartFact, PlanInput, SourceFact
from erasure.lineage import Lineage, depths_of
from erasure.lines import Lines, PlanCopy, instant_text, line_of
from erasure.request import CopyState
from ledger import canonical
from retention.decide import (
    DESTRUCTIVE,
    Because,
    Claim,
    Decision,
    Item,
    Rules,
    SourceEnd,
    concerns,
    decide,
)

__all__ = ["PlanCopy", "depths_of", "instant_text", "line_of"]
SCHEMA = "muniment-plan/v1"
VAULT = "vault"
"""The store of keys, as plans and certificates name it."""
IDENTITY = "identity"
"""The class of a person's identity key: identifiers, locators and stream names are sealed under it."""
MAX_PATH = 20
_PIECE = 1_000
IDENTITY_RULES = Rules(name=IDENTITY, keep=None, starts="created", derived="keep_if_other_sources")
"""It was made from what there is of the person: when nothing is left, a pass of retention ends it."""
_ASKED = ("request", "source_end")
_STAYING = frozenset({"keep", "restrict"})
_STATES = {
    "erase": CopyState.PENDING,
    "regenerate": CopyState.AWAITING_EXTERNAL,
    "review": CopyState.AWAITING_HUMAN,
    "keep": CopyState.RETAINED,
    "restrict": CopyState.RETAINED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The frozen plan: lines, registered stores that cannot be examined, and what others would lose."""

    owner: str
    copies: Sequence[PlanCopy]
    not_covered: tuple[Mapping[str, str], ...]
    coverage: tuple[Mapping[str, str], ...]
    collateral: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, keep or report."""
        return not self.copies

    def pieces(self) -> Iterator[bytes]:
        """The RFC 8785 bytes that are hashed into the log, in pieces: together they are as large as the plan."""
        yield b'{"collateral":' + canonical.dumps(dict(self.collateral)) + b',"copies":['
        for start in range(0, len(self.copies), _PIECE):
            lines = [line_of(copy) for copy in self.copies[start : start + _PIECE]]
            yield (b"," if start else b"") + canonical.dumps(lines)[1:-1]
        rest = {"not_covered": [dict(item) for item in self.not_covered], "owner": self.owner, "schema": SCHEMA}
        yield b"]," + canonical.dumps(rest)[1:]

    def canonical(self) -> bytes:
        """The RFC 8785 bytes as one."""
        return b"".join(self.pieces())

    @property
    def hash(self) -> str:
        """Lower-case hexadecimal SHA-256 of `canonical`."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.hexdigest()


def build(given: PlanInput) -> Plan:
    """The plan that follows from the values; a sweep's plan leaves out what simply stays."""
    return framed(given, (line for line, item in _lines(given) if _belongs(line, item, given)))


def framed(given: PlanInput, lines: Iterable[PlanCopy]) -> Plan:
    """Lines in their order and numbered, with what was and was not examined."""
    copies = in_order(lines)
    return Plan(
        owner=given.owner,
        copies=copies,
        not_covered=_not_covered(given),
        coverage=_coverage(given, copies),
        collateral=_collateral(copies, given),
    )


def in_order(lines: Iterable[PlanCopy], *, most: int = AS_COLUMNS) -> Sequence[PlanCopy]:
    """Lines in the order of a plan and numbered from one; of more than `most` as columns."""
    more = iter(lines)
    first = list(itertools.islice(more, most + 1))
    if len(first) > most:
        return Lines(itertools.chain(first, more), _rank)
    ordered = sorted(first, key=lambda line: (_rank(line), line.ref))
    return tuple(replace(line, copy_no=number) for number, line in enumerate(ordered, start=1))


def _rank(line: PlanCopy) -> tuple[bool, bool, int, str]:
    """Leaves before what they were made from, keys behind copies, and last what opens a person's names."""
    return line.data_class == IDENTITY, line.kind == "key", -line.depth, line.store


def redecide(given: PlanInput) -> dict[str, PlanCopy]:
    """Each item's line as it would be planned now, by public id; asked again in the transaction that dispatches."""
    return {line.ref: line for line, _ in _lines(given)}


class _Decided(NamedTuple):
    fact: ArtifactFact
    item: Item
    decision: Decision
    depth: int


def _decided(given: PlanInput, lineage: Lineage | None = None) -> Iterator[_Decided]:
    """The decision about each artifact, roots first: a derived item knows which of its sources the plan ends."""
    lineage = lineage or Lineage(given.artifacts)
    ending: set[int] = set()
    for fact in _roots_first(given.artifacts, lineage.depths):
        item = fact.item
        if fact.sources:
            ends = (SourceEnd(one.status, one.ends_at, _ends_in_plan(one, ending)) for one in fact.sources)
            item = replace(item, sources=tuple(ends))
        known = given.classes.get(item.data_class)
        decision = _decide(item, None if known is None else known.rules, given)
        if decision.action in DESTRUCTIVE and fact.artifact_id in lineage.places:
            ending.add(fact.artifact_id)
        yield _Decided(fact, item, decision, lineage.depths.get(fact.artifact_id, 0))


def _roots_first(artifacts: Sequence[ArtifactFact], depths: Mapping[int, int]) -> Iterator[ArtifactFact]:
    """The artifacts by their depths. Whoever is deep is derived, so that all others need no place in a list."""
    deep = []
    for place, fact in enumerate(artifacts):
        if depth := depths.get(fact.artifact_id, 0):
            deep.append((depth, fact.artifact_id, place))
        else:
            yield fact
    for _, _, place in sorted(deep):
        yield artifacts[place]


def going_plainly(given: PlanInput) -> frozenset[str]:
    """The artifacts, by public id, that would be planned to go without anybody else losing anything by it.

    Their lines are not made: `redecide` makes those of the others.
    """
    return frozenset(
        one.fact.name
        for one in _decided(given)
        if one.decision.action in DESTRUCTIVE and _shared(one.item, given) is None
    )


def _lines(given: PlanInput) -> Iterator[tuple[PlanCopy, Item]]:
    """Artifacts, then keys and the parts under them, then what opens a person's names."""
    lineage, staying = Lineage(given.artifacts), _Staying()
    for one in _decided(given, lineage):
        path = _path(one.fact, given.artifacts, lineage.places)
        line = _artifact_line(one.fact, one.decision, given, path=path, depth=one.depth)
        if line.state == CopyState.RETAINED and _belongs(line, one.item, given):
            staying.add(line)
        yield line, one.item
    more: list[tuple[PlanCopy, Item]] = []
    parts = {part.ref: (part_line(part, _part_decision(part, given), given), part.item) for part in given.kept}
    for key in given.keys:
        if key.item.data_class == IDENTITY:
            continue
        decision, kept = decide_key(key, given)
        more.append((_key_line(key, decision, kept, given), key.item))
        for part, found in kept:
            parts.setdefault(part.ref, (part_line(part, found, given), part.item))
    more += parts.values()
    for line, item in more:
        if line.state == CopyState.RETAINED and _belongs(line, item, given):
            staying.add(line)
    identity = [key for key in given.keys if key.item.data_class == IDENTITY]
    yield from more
    yield from ((_identity_line(key, given, staying), key.item) for key in identity)


class _Staying:
    """What there is to say of the lines that stay."""

    def __init__(self) -> None:
        self.count = 0
        self.rule: str | None = None
        self.until: datetime | None = None
        self._first: tuple[bool, int, int, int] | None = None
        self._has_no_end = False

    def add(self, line: PlanCopy) -> None:
        """Count one more line. The rule is that of the first artifact, roots first; the last date tells when all go."""
        self.count += 1
        place = line.artifact_id is None, line.depth, line.artifact_id or 0, self.count
        if self._first is None or place < self._first:
            self._first, self.rule = place, line.rule
        self._has_no_end = self._has_no_end or line.until is None
        if self._has_no_end or line.until is None:
            self.until = None
        else:
            self.until = line.until if self.until is None else max(self.until, line.until)


def _belongs(line: PlanCopy, item: Item, given: PlanInput) -> bool:
    """Whether a line is part of the plan: what is asked for or ends; a sweep lists nothing that simply stays."""
    if line.action in DESTRUCTIVE or line.action == "review":
        # What merely comes due is the sweep's; a request that is limited to a scope does not take it along.
        return given.claim is None or not _is_limited(given.claim) or line.rule in _ASKED or concerns(given.claim, item)
    return given.claim is not None and concerns(given.claim, item)


def _is_limited(claim: Claim) -> bool:
    return claim.data_classes is not None or claim.scopes is not None or claim.artifacts is not None


def _artifact_line(
    fact: ArtifactFact, decision: Decision, given: PlanInput, *, path: tuple[str, ...], depth: int
) -> PlanCopy:
    known = given.classes.get(fact.item.data_class)
    store = given.stores.get(fact.store)
    missing = "the store is not registered any more" if store is None else store.not_covered
    state, detail = _STATES[decision.action], None
    if known is None and decision.rule == "none":
        state, detail = CopyState.NOT_COVERED, "no data class of this name is in force"
    if missing is not None and state is not CopyState.RETAINED:
        state, detail = CopyState.NOT_COVERED, missing
    return PlanCopy(
        copy_no=0,
        kind="artifact",
        ref=fact.name,
        artifact_id=fact.artifact_id,
        data_class=fact.item.data_class,
        store=fact.store,
        action=decision.action,
        rule=decision.rule,
        because=decision.because,
        until=decision.until,
        path=path,
        collateral=_shared(fact.item, given),
        depth=depth,
        required="L2" if known is None else known.required,
        state=state,
        detail=detail,
    )


def _ends_in_plan(source: SourceFact, ending: set[int]) -> bool:
    return source.about_subjects if source.kind == "e" else source.ref in ending


def _decide(item: Item, rules: Rules | None, given: PlanInput) -> Decision:
    claims = given.claims if given.claim is None else [given.claim, *given.claims]
    return decide(item, rules, given.holds, given.restrictions, claims, given.now)


def _path(fact: ArtifactFact, artifacts: Sequence[ArtifactFact], places: Mapping[int, int]) -> tuple[str, ...]:
    """Opaque ids from a root to the item's direct source, along first sources; cut at `MAX_PATH`."""
    path: list[str] = []
    seen = {fact.artifact_id}
    current: ArtifactFact | None = fact
    while current is not None and current.sources and len(path) < MAX_PATH:
        source = current.sources[0]
        if source.kind == "a" and source.ref in seen:
            break
        seen.add(source.ref)
        path.append(source.name)
        place = places.get(source.ref) if source.kind == "a" else None
        current = None if place is None else artifacts[place]
    return tuple(reversed(path))


def decide_key(key: KeyFact, given: PlanInput) -> tuple[Decision, list[tuple[PartFact, Decision]]]:
    """What happens to a key, and which parts under it stay when it goes, each by its own decision.

    A key all of whose parts stay is not taken apart.
    """
    known = given.classes.get(key.item.data_class)
    decision = _erased(_decide(key.item, None if known is None else known.rules, given))
    # A key under review goes when a human said so, and then what must stay under it is kept like under any other.
    may_go = decision.action in DESTRUCTIVE or decision.action == "review"
    if not may_go and not key.dated:
        return decision, []
    found = {part.ref: (part, _part_decision(part, given)) for part in (*key.parts, *key.dated)}
    staying = [one for one in found.values() if one[1].action in _STAYING and _is_asked(one[0], given)]
    if not may_go:
        going = [one for _, one in found.values() if one.action in DESTRUCTIVE]
        if not going:
            return decision, []
        decision = going[0]
    if staying and len(staying) == key.total:
        return max((one for _, one in staying), key=lambda one: (one.until is None, one.until or key.item.created)), []
    return decision, staying


def _part_decision(part: PartFact, given: PlanInput) -> Decision:
    known = given.classes.get(part.item.data_class)
    return _erased(_decide(part.item, None if known is None else known.rules, given))


def _erased(decision: Decision) -> Decision:
    """What was recorded is not made anew: a class that regenerates its copies still loses its record."""
    return decision._replace(action="erase") if decision.action == "regenerate" else decision


def _is_asked(part: PartFact, given: PlanInput) -> bool:
    """Whether the request is about this part at all: others under its key stay because nobody asked for them."""
    return given.claim is None or concerns(given.claim, part.item)


def part_line(part: PartFact, decision: Decision, given: PlanInput) -> PlanCopy:
    """The line of one part of the record: what its key's end does not settle."""
    return PlanCopy(
        copy_no=0,
        kind="entry",
        ref=part.ref,
        entry_idx=part.entry_idx,
        data_class=part.item.data_class,
        store=VAULT,
        action=decision.action,
        rule=decision.rule,
        because=decision.because,
        until=decision.until,
        path=(),
        collateral=_shared(part.item, given),
        depth=0,
        required="key",
        state=_STATES[decision.action],
    )


def _shared(item: Item, given: PlanInput) -> dict[str, int] | None:
    """Which others the item is about too, whatever happens to it now: a copy that stays may go when its ground ends.

    Retention ends an item for everybody it is about, so a sweep has no collateral.
    """
    if given.claim is None or item.subjects <= given.subjects:
        return None
    return of_others(item.subjects - given.subjects)


def _key_line(
    key: KeyFact, decision: Decision, staying: Sequence[tuple[PartFact, Decision]], given: PlanInput
) -> PlanCopy:
    told = [f"{len(staying)} parts under this key stay, each with a key of its own"] if staying else []
    if key.outside and decision.action in DESTRUCTIVE:
        told.append(f"{key.outside} entries outside the request's conversation stay, with keys of their own")
    return _key_copy(key, decision, "; ".join(told) or None, given)


def _identity_line(key: KeyFact, given: PlanInput, staying: _Staying) -> PlanCopy:
    decision = _decide(key.item, IDENTITY_RULES, given)
    detail = None
    if decision.action in DESTRUCTIVE and staying.count:
        # What stays must be found again when its ground ends, and only the identity key opens where it lies.
        detail = f"needed by {staying.count} retained copies"
        reason = Because(decision.rule, "keep", detail)
        decision = Decision("keep", staying.rule, staying.until, (reason,))  # type: ignore[arg-type]  # a rule by its origin
    return _key_copy(key, decision, detail, given)


def _key_copy(key: KeyFact, decision: Decision, detail: str | None, given: PlanInput) -> PlanCopy:
    joint = key.joint_parts and given.claim is not None
    collateral = {"parts": key.joint_parts, "subjects": key.joint_subjects} if joint else None
    return PlanCopy(
        copy_no=0,
        kind="key",
        ref=key.key_id,
        key_id=key.key_id,
        data_class=key.item.data_class,
        store=VAULT,
        action=decision.action,
        rule=decision.rule,
        because=decision.because,
        until=decision.until,
        path=(),
        collateral=collateral,
        depth=0,
        required="key",
        state=_STATES[decision.action],
        detail=detail,
    )


def _not_covered(given: PlanInput) -> tuple[Mapping[str, str], ...]:
    found = [
        {"store": store.name, "kind": store.kind, "why": store.not_covered}
        for store in given.stores.values()
        if store.not_covered is not None
    ]
    facts = given.artifacts
    named = facts.stores() if isinstance(facts, ArtifactFacts) else {fact.store for fact in facts}
    unknown = named - given.stores.keys()
    found += [{"store": name, "kind": "unknown", "why": "the store is not registered any more"} for name in unknown]
    return tuple(sorted(found, key=lambda line: line["store"]))


def _coverage(given: PlanInput, copies: Sequence[PlanCopy]) -> tuple[Mapping[str, str], ...]:
    """Every registered store and class: whether it was examined, and how."""
    lines: list[Mapping[str, str]] = [
        {
            "kind": "store",
            "name": store.name,
            "examined": "no" if store.not_covered else "yes",
            "why": store.not_covered or "registered copies of the person were looked up by id",
        }
        for store in sorted(given.stores.values(), key=lambda store: store.name)
    ]
    lines.append({"kind": "store", "name": VAULT, "examined": "yes", "why": "keys of the person were looked up"})
    found = {copy.data_class for copy in copies}
    lines += [
        {
            "kind": "class",
            "name": name,
            "examined": "yes",
            "why": "copies found" if name in found else "no copy of the person is registered",
        }
        for name in sorted(given.classes)
    ]
    return tuple(lines)


def _collateral(copies: Sequence[PlanCopy], given: PlanInput) -> dict[str, int]:
    """What others would lose by the plan as it stands: copies, parts of the record, and how many people they are."""
    touched = [copy for copy in copies if copy.collateral is not None and copy.action not in _STAYING]
    if not touched:
        return {}
    shared = {copy.artifact_id for copy in touched}
    artifacts = {fact.artifact_id: fact.item.subjects for fact in given.artifacts if fact.artifact_id in shared}
    keys = {key.key_id: frozenset[int]().union(*(part.item.subjects for part in key.parts)) for key in given.keys}
    parts = {part.ref: part.item.subjects for part in (*given.kept, *(one for key in given.keys for one in key.parts))}
    people: set[int] = set()
    for copy in touched:
        found = artifacts.get(copy.artifact_id or 0) or keys.get(copy.key_id or "") or parts.get(copy.ref)
        people |= found or frozenset()
    counts = [copy.collateral or {} for copy in touched]
    return {
        "copies": len(touched),
        "parts": sum(line.get("parts", 0) for line in counts),
        "subjects": max(len(people - given.subjects), *(line.get("subjects", 0) for line in counts)),
    }

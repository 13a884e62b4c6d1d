"""Keys of their own for parts that stay when the data key that seals them goes, and the end of these keys.

Before a data key goes, in order; the caller then says which key goes and lets it go (`erasure.execute`):
 1. The executor closes a key that a limited request takes from under other conversations: it seals nothing new.
 2. The record is told how many parts get keys of their own, on which grounds. What was sealed before 1 is in the log
    by then, since the log takes one flush after the other.
 3. Derive the keys from what is stored, outside any transaction; keep them in the vault, page by page.
 4. Write these rows to the unlocked store and read them back: a rebuild finds the parts readable.
A crash after any step leaves at most keys for parts that a data key still opens; the next run finds them kept, and
whatever has no ground any more goes with the data key.

Guarantees: `uncovered` tells, in the transaction that lets a data key go, whether a part that must stay would be lost
with it; such a key is not let go. A part that cannot be read cannot be kept: its key stays, and the copy says why.
Which parts stay is decided by `retention.decide` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col

from erasure import history
from erasure.facts import PartFact, PlanInput
from erasure.fences import is_limited
from erasure.models import CopyRow, RequestRow
from erasure.parts import Parts
from erasure.plan import PlanCopy, decide_key, instant_text, part_line
from erasure.request import CopyState
from erasure.standing import claim_of
from erasure.work import PART, Work, facts_now, load_work
from ledger import index
from ledger.entry import Kind
from ledger.models import STRETCH, EntryRow, PartPlaces, PartRef
from registry.keeping import PartUnderKeys
from registry.keyed import chunks
from retention.decide import Decision
from retention.parts import places_of, streams_of
from vault.models import DataKey, KeyState, PartKey
from vault.parts import MAX_GROUND, KeptPart

PAGE = 5_000
"""Parts whose keys are derived and kept at a time."""
NOT_ASKED = "not_in_scope"
"""The ground of parts that a limited request is not about."""
_NAMED = 1_000
_PLACE_WIDTH = 4
"""Characters of a place in a row of `PartPlaces`, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    """What stays under some keys: by key the parts with their decisions, as lines of a plan name them."""

    given: PlanInput
    by_key: Mapping[str, Sequence[tuple[PartFact, Decision]]] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, tuple[PartFact, Decision]]:
        """Every part once, by its id."""
        return {part.ref: (part, found) for some in self.by_key.values() for part, found in some}


def staying(given: PlanInput, key_ids: Collection[str]) -> Staying:
    """The parts under these keys that stay when the keys go."""
    wanted = set(key_ids)
    some = {key.key_id: decide_key(key, given)[1] for key in given.keys if key.key_id in wanted}
    return Staying(given=given, by_key=some)


class Keeping:
    """Steps 2 to 4 for one request or sweep; the executor takes the first."""

    def __init__(self, parts: Parts, tenant_id: int, owner: str, now: datetime) -> None:
        self._parts = parts
        self._tenant_id = tenant_id
        self._owner = owner
        self._now = now

    def give(self, key_ids: Sequence[str]) -> dict[str, str]:
        """Steps 2 to 4. Returns the keys under which a part that must stay cannot be kept, and why."""
        with self._parts.transactions(self._tenant_id, write=False) as session:
            work = load_work(session, self._tenant_id, self._owner)
            rows = [copy for copy in _pending(session, work) if copy.key_id in set(key_ids)]
            found = staying(facts_now(session, work, rows, self._now), key_ids)
            missing = self._without_key(session, found)
            outside = Outside.of(session, work)
            count = 0 if outside is None else outside.count(session, key_ids)
        if not missing and not count:
            return {}
        self._tell(key_ids, missing, count)  # 2
        faults: dict[str, str] = {}
        going = frozenset(key_ids)
        for start in range(0, len(missing), PAGE):
            some = [(_sealed(part), _ground(found), found.until) for part, found in missing[start : start + PAGE]]
            faults |= self._keep(some, going)
        if outside is not None:
            ground = f"{NOT_ASKED}:{self._owner}"
            for key_id in key_ids:
                for page in self._pages(outside, key_id):
                    faults |= self._keep([(part, ground, None) for part in page], going)
        return faults

    def _without_key(self, session: Session, found: Staying) -> list[tuple[PartFact, Decision]]:
        """Those without a key of their own, or with one on another ground."""
        parts = found.parts
        names = {(part.entry_id, part.part): ref for ref, (part, _) in parts.items()}
        kept = self._parts.vault.part_infos(session, self._tenant_id, list(names))
        for name, info in kept.items():
            _, decision = parts[names[name]]
            same = info.ground == _ground(decision) and info.until == decision.until
            if info.state != KeyState.LIVE or same:
                del parts[names[name]]
        return list(parts.values())

    def _tell(self, key_ids: Sequence[str], missing: Sequence[tuple[PartFact, Decision]], outside: int) -> None:
        grounds = Counter(found.rule for _, found in missing)
        body: dict[str, Any] = {
            "owner": self._owner,
            "keys": len(key_ids),
            "parts": len(missing) + outside,
            "grounds": {**grounds, **({NOT_ASKED: outside} if outside else {})},
            "named": [
                {"part": part.ref, "rule": found.rule, "until": found.until and instant_text(found.until)}
                for part, found in missing[:_NAMED]
            ],
        }  # fmt: skip
        self._parts.record.event(self._tenant_id, Kind.PART_KEPT, body, self._now)

    def _pages(self, outside: Outside, key_id: str) -> Iterator[list[PartUnderKeys]]:
        after = (-1, -1)
        while True:
            with self._parts.transactions(self._tenant_id, write=False) as session:
                page = outside.page(session, key_id, after)
            if page:
                yield page
                after = page[-1].place
            else:
                return

    def _keep(
        self, wanted: Sequence[tuple[PartUnderKeys, str, datetime | None]], going: frozenset[str]
    ) -> dict[str, str]:
        """Steps 3 and 4 for a page; the keys that must not go since a part could not be kept, with the reason."""
        derived = self._parts.part_keys(self._tenant_id, [part for part, _, _ in wanted])
        kept = [
            KeptPart(
                entry_id=part.entry_id,
                part=part.part,
                idx=part.idx,
                key_id=next(key_id for key_id in part.key_ids if key_id in going),
                part_key=derived.keys[part.place],
                ground=ground,
                until=until,
            )
            for part, ground, until in wanted
            if part.place in derived.keys
        ]
        with self._parts.transactions(self._tenant_id) as session:
            self._parts.vault.keep_parts(session, self._tenant_id, kept)
        self._parts.keep_part_rows(self._tenant_id, [part.name for part in kept], self._now)
        return {
            key_id: f"a part that must stay cannot be kept: {derived.faults[part.place]}"
            for part, _, _ in wanted
            if part.place in derived.faults
            for key_id in part.key_ids
            if key_id in going
        }


def uncovered(session: Session, work: Work, found: Staying, key_ids: Sequence[str]) -> set[str]:
    """Those of these keys that seal a part which stays and has no live key of its own."""
    parts = found.parts
    names = {(part.entry_id, part.part): part for part, _ in parts.values()}
    live: set[tuple[str, int]] = set()
    for chunk in chunks(sorted({entry_id for entry_id, _ in names})):
        rows = session.execute(
            sa.select(col(PartKey.entry_id), col(PartKey.part)).where(
                col(PartKey.tenant_id) == work.tenant_id,
                col(PartKey.entry_id).in_(chunk),
                col(PartKey.state) == KeyState.LIVE.value,
            )
        )
        live.update((entry_id, number) for entry_id, number in rows)
    going = set(key_ids)
    bare = [part for name, part in names.items() if name not in live]
    lost = _ended(session, work.tenant_id, [_sealed(part) for part in bare])
    open_keys = {
        key_id for part in bare if (part.entry_idx, part.part) not in lost for key_id in part.key_ids if key_id in going
    }
    outside = Outside.of(session, work)
    return open_keys if outside is None else open_keys | outside.open_keys(session, key_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What a limited request leaves under its keys: other conversations, and words after its approval."""

    tenant_id: int
    streams: frozenset[int] | None
    since: datetime | None

    @classmethod
    def of(cls, session: Session, work: Work) -> Outside | None:
        """None where nothing under a key is outside: a sweep, or a request about whole persons."""
        if not (isinstance(work.row, RequestRow) and is_limited(work.row)):
            return None
        claim = claim_of(work.row)
        streams = None if claim.scopes is None else streams_of(session, work.tenant_id, claim.scopes)
        return cls(tenant_id=work.tenant_id, streams=streams, since=work.row.fence_at)

    def count(self, session: Session, key_ids: Sequence[str]) -> int:
        """How many parts outside have no key of their own yet."""
        return sum(int(session.scalar(self._query(chunk, sa.func.count())) or 0) for chunk in chunks(sorted(key_ids)))

    def page(self, session: Session, key_id: str, after: tuple[int, int]) -> list[PartUnderKeys]:
        """The next parts outside without keys of their own, in the order of the log, with every key that seals each."""
        columns = (col(PartRef.idx), col(PartRef.part), col(EntryRow.entry_id))
        place = (col(PartRef.idx), col(PartRef.part))
        found: dict[tuple[int, int], bytes] = {}
        for starts in self._stretches(session, key_id, after[0]):
            query = self._query([key_id], *columns).where(
                col(PartRef.start).in_(starts), sa.tuple_(*place) > sa.tuple_(*map(sa.literal, after))
            )
            rows = session.execute(query.order_by(*place).limit(PAGE))
            found = {(idx, number): entry_id for idx, number, entry_id in rows}
            if found:
                break
        sealed = _sealing(session, self.tenant_id, list(found))
        return [
            PartUnderKeys(idx=idx, part=number, entry_id=_uuid(entry_id), key_ids=sealed[idx, number])
            for (idx, number), entry_id in found.items()
        ]

    def _stretches(self, session: Session, key_id: str, after: int) -> Iterator[list[int]]:
        """Where the key seals something behind an index, in order, a page's worth or a little more at a time."""
        last = after - STRETCH
        while True:
            rows = session.execute(
                sa.select(col(PartPlaces.start), sa.func.length(col(PartPlaces.places)))
                .where(
                    col(PartPlaces.tenant_id) == self.tenant_id,
                    col(PartPlaces.key_id) == key_id,
                    col(PartPlaces.start) > last,
                )
                .order_by(col(PartPlaces.start))
                .limit(PAGE)
            ).all()
            starts: list[int] = []
            room = PAGE * _PLACE_WIDTH
            for start, length in rows:
                if room <= 0 and start != starts[-1]:
                    yield starts
                    starts, room = [], PAGE * _PLACE_WIDTH
                starts.append(start)
                room -= length
            if starts:
                yield starts
            if len(rows) < PAGE:
                return
            last = rows[-1][0]

    def open_keys(self, session: Session, key_ids: Sequence[str]) -> set[str]:
        """The keys that seal a part outside which nothing else opens, and which is not lost already."""
        found: dict[tuple[int, int], set[str]] = {}
        for chunk in chunks(sorted(key_ids)):
            query = self._query(chunk, col(PartRef.idx), col(PartRef.part), col(PartRef.key_id))
            for idx, number, key_id in session.execute(query.limit(PAGE)):
                found.setdefault((idx, number), set()).add(key_id)
        sealed = _sealing(session, self.tenant_id, sorted(found))
        parts = [PartUnderKeys(idx=idx, part=part, entry_id="", key_ids=keys) for (idx, part), keys in sealed.items()]
        lost = _ended(session, self.tenant_id, parts)
        return {key_id for place, keys in found.items() if place not in lost for key_id in keys}

    def _query(self, key_ids: Sequence[str], *columns: sa.SQLColumnExpression[Any]) -> sa.Select[*tuple[Any, ...]]:
        outside: list[sa.ColumnElement[bool]] = []
        if self.streams is not None:
            outside.append(col(EntryRow.stream_no).not_in(sorted(self.streams)))
        if self.since is not None:
            outside.append(col(EntryRow.at) > self.since)
        return (
            sa.select(*columns)
            .select_from(PartRef)
            .join(
                EntryRow,
                sa.and_(col(EntryRow.tenant_id) == col(PartRef.tenant_id), col(EntryRow.idx) == col(PartRef.idx)),
            )
            .outerjoin(
                PartKey,
                sa.and_(
                    col(PartKey.tenant_id) == col(PartRef.tenant_id),
                    col(PartKey.idx) == col(PartRef.idx),
                    col(PartKey.part) == col(PartRef.part),
                ),
            )
            .where(
                col(PartRef.tenant_id) == self.tenant_id,
                col(PartRef.key_id).in_(key_ids),
                # A part whose own key went has ended, whatever seals it still.
                col(PartKey.idx).is_(None),
                sa.or_(sa.false(), *outside),
            )
        )


def sealed_still(session: Session, tenant_id: int, refs: Collection[str]) -> set[str]:
    """Those of these parts that would open although their own key is gone: no data key of theirs was destroyed."""
    places = places_of(session, tenant_id, refs)
    sealed = _sealing(session, tenant_id, sorted(places))
    parts = [PartUnderKeys(idx=idx, part=number, entry_id="", key_ids=keys) for (idx, number), keys in sealed.items()]
    ended = _ended(session, tenant_id, parts)
    return {ref for place, ref in places.items() if place not in ended}


def list_kept(  # noqa: PLR0917 - the end of one transaction
    session: Session, parts: Parts, work: Work, found: Staying, key_ids: Collection[str], now: datetime
) -> None:
    """Put the parts that stay after these keys into the plan as retained, each by its ground and end.

    What the approved plan did not list is a logged addendum.
    """
    lines = {
        part.ref: part_line(part, decision, found.given)
        for key_id, some in found.by_key.items()
        if key_id in key_ids
        for part, decision in some
    }
    if not lines:
        return
    rows = history.copies_of(session, work.tenant_id, work.owner, kind=PART)
    for copy in rows:
        line = lines.pop(history.ref_of(copy), None)
        if line is not None:
            copy.state, copy.action, copy.rule, copy.until = CopyState.RETAINED, line.action, line.rule, line.until
            copy.because = [reason._asdict() for reason in line.because]
            copy.collateral = None if line.collateral is None else dict(line.collateral)
            copy.detail = None
            session.add(copy)
    _add(session, parts, work, list(lines.values()), now)


def _add(session: Session, parts: Parts, work: Work, lines: Sequence[PlanCopy], now: datetime) -> None:
    if not lines:
        return
    last = session.scalar(
        sa.select(sa.func.max(col(CopyRow.copy_no))).where(
            col(CopyRow.tenant_id) == work.tenant_id, col(CopyRow.owner) == work.owner
        )
    )
    history.put_copies(session, work.tenant_id, work.owner, history.numbered(lines, after=last or 0), {})
    if isinstance(work.row, RequestRow):
        body = {"request": work.owner, "addendum": [line.ref for line in lines]}
        entry_id = parts.record.announce(session, work.tenant_id, Kind.REQUEST_STATE, body, now)
        work.put_facts(session, addenda=[*work.facts().get("addenda", []), entry_id])


def _pending(session: Session, work: Work) -> list[CopyRow]:
    return history.copies_of(session, work.tenant_id, work.owner, CopyState.PENDING, kind="key")


def _sealed(part: PartFact) -> PartUnderKeys:
    return PartUnderKeys(idx=part.entry_idx, part=part.part, entry_id=part.entry_id, key_ids=part.key_ids)


def _sealing(
    session: Session, tenant_id: int, places: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], tuple[str, ...]]:
    found: dict[tuple[int, int], list[str]] = {place: [] for place in places}
    for idx, number, key_id in index.refs_of(session, tenant_id, {idx for idx, _ in places}):
        if (idx, number) in found:
            found[idx, number].append(key_id)
    return {place: tuple(sorted(keys)) for place, keys in found.items()}


def _ended(session: Session, tenant_id: int, parts: Sequence[PartUnderKeys]) -> set[tuple[int, int]]:
    """Those of these parts, which have no key of their own, that ended with an earlier data key."""
    ids = sorted({key_id for part in parts for key_id in part.key_ids})
    gone: set[str] = set()
    for chunk in chunks(ids):
        gone.update(
            session.scalars(
                sa.select(col(DataKey.key_id)).where(
                    col(DataKey.tenant_id) == tenant_id,
                    col(DataKey.key_id).in_(chunk),
                    col(DataKey.state) == KeyState.DESTROYED.value,
                )
            )
        )
    return {part.place for part in parts if not gone.isdisjoint(part.key_ids)}


def _uuid(raw: bytes) -> str:
    """As `uuid.UUID` writes it, in a tenth of the time."""
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _ground(decision: Decision) -> str:
    """The rule that keeps it, and the name of what it goes by: a hold, a basis in law, a request."""
    name = next((reason.detail for reason in decision.because if reason.rule == decision.rule), "")
    return f"{decision.rule}:{name}"[:MAX_GROUND]

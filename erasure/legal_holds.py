"""Legal holds carried into the stores: on the record's payload objects, and on artifacts in stores that can hold them.

A hold is in force from the moment it is placed, because every decision asks for it; the store's own legal hold comes
after it, as a second lock against whoever deletes past us, and goes after the hold is released.

One look, in order, each step bounded and run again from where it ended:

 1. Artifacts that a hold names and whose store has legal holds: set, what was set is noted by version.
 2. Artifacts that no hold names any more: lifted from the versions that were set here, and from no other.
 3. The record, from the place reached to its end, and from its beginning when the holds changed: objects with a part
    that a hold concerns are held, others let go. An object that the store refuses is told at the end of the look, which
    goes on behind it, and tried again when the walk has come to its end.
 4. Locks of held objects that would end soon are prolonged, whatever became of the steps before; behind them, since a
    lock that was prolonged for a hold that is over would keep the object for nothing.

Guarantees: somebody else's hold in a registered store is never lifted, nor one that was on an object of the record
before ours (`ledger.holding`). A store keeps one flag, so that a hold that is set while ours is on cannot be seen: ours
is left, and that is noted, where anything shows that others set holds there too (ADR 39). A store that refuses is noted
with its answer and asked again a day later.
Not here: whether anything may be erased (`retention.decide`).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session, col, select

from connectors.base import Connector, Held, Holder
from connectors.errors import ConnectorError
from erasure.captures import Wanted, places_of
from erasure.errors import HoldNotCarried
from erasure.parts import Parts
from erasure.sealed import Capture
from ledger import expiry
from ledger.models import STRETCH, EntryRow, Instant, LogState, PartRef, PayloadWalk
from registry import stores
from registry.keyed import chunks
from registry.models import Artifact, ScopeKey, StoreRow, StreamRow
from retention.decide import Hold
from retention.due import schedules_in_force
from retention.holding import conditions_of, is_held
from retention.items import STREAM_KIND, load_artifacts
from retention.models import StoreHoldRow
from retention.stops import holds_in_force, with_copies
from vault.models import DataKey, KeyState, PartKey

KINDS = ("s3",)
"""Kinds of stores whose connector has legal holds."""
CONTESTED = "contested"
"""The state of a hold of ours that somebody lifted while it was in force; it was set again."""
LIMIT = 500
"""How many artifacts one look sets or lifts."""
SPAN = 20_000
"""How many entries of the record are looked through at once, and how many times in one look."""
SPANS = 10
AGAIN = timedelta(days=1)
"""After so long an artifact is looked at again: a new version may lie over the one that is held."""
WALK, LIFTS = expiry.HOLDS, "lifts"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    artifact_id: int
    store: str
    versions: tuple[str, ...] = ()
    doubted: bool = False


class LegalHolds:
    """The holds of every tenant, as their stores are to keep them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._holding = parts.holding

    def mark(self, tenant_id: int) -> str:
        """What the holds in force select, in 16 characters that change with it."""
        with self._parts.transactions(tenant_id, write=False) as session:
            return _fingerprint(holds_in_force(session, tenant_id))

    def run(self, tenant_id: int, now: datetime) -> int:
        """One look; how much changed, so that 0 means that everything is as it should be.

        Raises: HoldNotCarried, at the end of the look, for objects of the record that their store did not take it for;
        StoreUnavailable.
        """
        with self._parts.transactions(tenant_id, write=False) as session:
            placed = holds_in_force(session, tenant_id)
            holds = [with_copies(session, tenant_id, hold) for hold in placed]
            # What holds name, without the copies: a new copy is no reason to look through the whole record again.
            mark = _fingerprint(placed)
            known = {name: row for name, row in stores.in_force(session, tenant_id).items() if row.kind in KINDS}
        try:
            done = self._set(tenant_id, holds, known, now)  # 1
            done += self._lift(tenant_id, holds, known, mark, now)  # 2
            return done + self._walk(tenant_id, holds, mark)  # 3
        finally:
            if self._holding is not None:
                self._holding.prolong(tenant_id, now)  # 4

    # ── artifacts ──

    def _set(self, tenant_id: int, holds: Sequence[Hold], known: dict[str, StoreRow], now: datetime) -> int:
        if not holds or not known:
            return 0
        with self._parts.transactions(tenant_id, write=False) as session:
            wanted: dict[int, _Copy] = {}
            for condition in (one for hold in holds for one in conditions_of(session, tenant_id, hold)):
                query = (
                    sa.select(col(Artifact.id), col(Artifact.store))
                    .outerjoin(
                        StoreHoldRow,
                        sa.and_(
                            col(StoreHoldRow.tenant_id) == col(Artifact.tenant_id),
                            col(StoreHoldRow.artifact_id) == col(Artifact.id),
                        ),
                    )
                    .where(
                        col(Artifact.tenant_id) == tenant_id,
                        col(Artifact.status) != "erased",
                        col(Artifact.store).in_(sorted(known)),
                        condition,
                        sa.or_(
                            col(StoreHoldRow.artifact_id).is_(None),
                            col(StoreHoldRow.at) <= sa.literal(now - AGAIN, Instant()),
                        ),
                    )
                    .order_by(col(Artifact.id))
                    .limit(LIMIT)
                )
                wanted.update({row.id: _Copy(artifact_id=row.id, store=row.store) for row in session.execute(query)})
        chosen = list(wanted.values())[:LIMIT]
        return sum(self._at_store(tenant_id, known[name], some, now, on=True) for name, some in _by_store(chosen))

    def _lift(self, tenant_id: int, holds: Sequence[Hold], known: dict[str, StoreRow], mark: str, now: datetime) -> int:
        with self._parts.transactions(tenant_id, write=False) as session:
            walk = session.get(PayloadWalk, (tenant_id, LIFTS))
            place, at = ("", None) if walk is None else (walk.place, walk.at)
            same, _, reached = place.partition(":")
            if same == mark and at is not None and now - at < AGAIN:
                return 0
            after = int(reached) if same == mark and reached else 0
            query = select(StoreHoldRow).where(
                StoreHoldRow.tenant_id == tenant_id, col(StoreHoldRow.artifact_id) > after
            )
            rows = list(session.exec(query.order_by(col(StoreHoldRow.artifact_id)).limit(LIMIT)))
            free = _no_longer_held(session, tenant_id, holds, rows)
        done = sum(
            self._at_store(tenant_id, known[name], some, now, on=False)
            for doubted in (False, True)
            for name, some in _by_store([copy for copy in free if copy.doubted is doubted])
            if name in known
        )
        if done < sum(copy.store in known for copy in free):
            return done  # A store did not answer: the next look begins here again.
        with self._parts.transactions(tenant_id) as session:
            gone = [copy.artifact_id for copy in free if copy.store not in known]
            for some in chunks(gone):
                session.connection().execute(_forget(tenant_id, some))
            walk = expiry.seen(session, tenant_id, LIFTS)
            ended = len(rows) < LIMIT
            walk.place = f"{mark}:" if ended else f"{mark}:{rows[-1].artifact_id}"
            walk.at = now if ended else None
        return done

    def _at_store(self, tenant_id: int, store: StoreRow, copies: Sequence[_Copy], now: datetime, *, on: bool) -> int:
        """Set or lift at one store and note it, all of them doubted or none.

        A store that does not answer is asked again by the next look.
        """
        places = places_of(self._parts, tenant_id, [_wanted(copy) for copy in copies])
        there = [copy for copy in copies if str(copy.artifact_id) in places]
        items = [Capture(places[str(copy.artifact_id)]).item(number) for number, copy in enumerate(there)]
        try:
            with self._parts.connect(store, False) as connector:
                if on:
                    answers = _holder(connector).hold(items, deadline=self._parts.store_seconds)
                else:
                    pairs = [(item, copy.versions) for item, copy in zip(items, there, strict=True)]
                    doubted = any(copy.doubted for copy in copies)
                    answers = _holder(connector).lift(pairs, deadline=self._parts.store_seconds, doubted=doubted)
        except ConnectorError as error:
            why = f"the store does not answer: {type(error).__name__}"
            if not on:
                return 0
            answers = [
                Held(copy_id=str(number), state="refused", versions=(), detail=why) for number in range(len(there))
            ]
        lost = [copy for copy in copies if str(copy.artifact_id) not in places]
        with self._parts.transactions(tenant_id) as session:
            for copy, answer in zip(there, answers, strict=True):
                _note(session, tenant_id, copy, answer, now)
            for copy in lost:
                why = "its place is not known any more"
                _note(session, tenant_id, copy, Held(copy_id="", state="absent", versions=(), detail=why), now)
        return len(copies)

    # ── the record ──

    def _walk(self, tenant_id: int, holds: Sequence[Hold], mark: str) -> int:
        holding = self._holding
        if holding is None or not holding.can_hold:
            return 0
        changed, refused = 0, dict[str, str]()
        start = size = 0
        again: int | None = None
        for _ in range(SPANS):
            with self._parts.transactions(tenant_id, write=False) as session:
                state = session.get(LogState, tenant_id)
                size = 0 if state is None else state.size
                start, again = _reached(session, tenant_id, mark)
                if start >= size:
                    break
                idle = not holds and not holding.is_holding(session, tenant_id)
                end = size if idle else _batch_end(session, tenant_id, min(size, start + SPAN), size)
                concerned = {} if idle else _concerned(session, tenant_id, holds, start, end)
                held = set() if idle else holding.held_between(session, tenant_id, start, end)
            wanted = holding.objects_with(tenant_id, concerned)
            for names, on in ((wanted - held, True), (held - wanted, False)):
                told = holding.set(tenant_id, names, on=on)
                changed += len(told.names)
                refused |= told.refused
                if told.refused and again is None:
                    again = start
            self._note_reached(tenant_id, mark, end, again)
        else:
            changed += 1  # not at the end yet: look again
        if start >= size and again is not None:
            self._note_reached(tenant_id, mark, again, None)
        if refused:
            raise HoldNotCarried(refused)
        return changed

    def _note_reached(self, tenant_id: int, mark: str, end: int, again: int | None) -> None:
        with self._parts.transactions(tenant_id) as session:
            place = f"{mark}:{end}" if again is None else f"{mark}:{end}:{again}"
            expiry.seen(session, tenant_id, WALK).place = place


def _fingerprint(holds: Sequence[Hold]) -> str:
    """What the holds in force select, in 16 characters: it changes with a hold, and with who is one person."""
    lines = sorted(
        f"{one.hold_id} {sorted(one.subjects)} {sorted(one.data_classes)} {sorted(one.scopes)} {sorted(one.artifacts)}"
        f" {sorted(one.entries)}"
        for one in holds
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _by_store(copies: Sequence[_Copy]) -> Iterator[tuple[str, list[_Copy]]]:
    found: defaultdict[str, list[_Copy]] = defaultdict(list)
    for copy in copies:
        found[copy.store].append(copy)
    yield from sorted(found.items())


def _wanted(copy: _Copy) -> Wanted:
    return Wanted(ref=str(copy.artifact_id), artifact_id=copy.artifact_id, store=copy.store, built=True)


def _holder(connector: Connector) -> Holder:
    if not isinstance(connector, Holder):
        message = "a kind that is listed as holding has no legal holds"
        raise TypeError(message)
    return connector


def _no_longer_held(
    session: Session, tenant_id: int, holds: Sequence[Hold], rows: Sequence[StoreHoldRow]
) -> list[_Copy]:
    query = select(Artifact).where(
        Artifact.tenant_id == tenant_id, col(Artifact.id).in_([row.artifact_id for row in rows])
    )
    live = [one for one in session.exec(query) if one.status != "erased"] if rows else []
    loaded = load_artifacts(session, tenant_id, live, schedules_in_force(session, tenant_id)) if live else []
    held = {one.artifact_id for one in loaded if is_held(one.item, holds)}
    return [
        _Copy(
            artifact_id=row.artifact_id,
            store=row.store,
            versions=tuple(row.versions),
            doubted=row.state == CONTESTED,
        )
        for row in rows
        if row.artifact_id not in held
    ]


def _note(session: Session, tenant_id: int, copy: _Copy, answer: Held, now: datetime) -> None:
    row = session.get(StoreHoldRow, (tenant_id, copy.artifact_id))
    if answer.state == "lifted":
        if row is not None:
            session.delete(row)
        return
    if row is None:
        row = StoreHoldRow(
            tenant_id=tenant_id, artifact_id=copy.artifact_id, store=copy.store, state="", detail="", at=now
        )
    # A lift that is refused leaves the hold: it is noted as such and tried again. What was set once and had to be set
    # again was lifted by somebody, and stays doubtful.
    doubtful = row.state == CONTESTED or (answer.state == "set" and not set(answer.versions).isdisjoint(row.versions))
    row.state, row.detail, row.at = CONTESTED if doubtful else answer.state, answer.detail[:256], now
    row.versions = sorted({*row.versions, *answer.versions})
    session.add(row)


def _forget(tenant_id: int, artifact_ids: Sequence[int]) -> sa.Delete:
    return sa.delete(StoreHoldRow).where(
        col(StoreHoldRow.tenant_id) == tenant_id, col(StoreHoldRow.artifact_id).in_(artifact_ids)
    )


def _reached(session: Session, tenant_id: int, mark: str) -> tuple[int, int | None]:
    """From which entry on the record is still to be looked through under these holds, and from which on once more."""
    walk = session.get(PayloadWalk, (tenant_id, WALK))
    known, _, rest = ("" if walk is None else walk.place).partition(":")
    at, _, again = rest.partition(":")
    return (int(at), int(again) if again else None) if known == mark and at else (0, None)


def _batch_end(session: Session, tenant_id: int, end: int, size: int) -> int:
    """The end of the batch in which an index lies, so that a batch is never looked at in halves."""
    if end >= size:
        return size
    first = session.scalar(
        sa.select(sa.func.min(col(EntryRow.idx))).where(
            col(EntryRow.tenant_id) == tenant_id,
            col(EntryRow.idx) >= end,
            col(EntryRow.idx) == col(EntryRow.batch_first),
        )
    )
    return size if first is None else first


def _concerned(
    session: Session, tenant_id: int, holds: Sequence[Hold], start: int, end: int
) -> dict[int, set[tuple[int, int]]]:
    """The parts that a hold concerns and that a key still opens, by batch."""
    # What a hold keeps may have a key of its own by now, its data key being gone.
    own_key = sa.exists(
        sa.select(col(PartKey.part)).where(
            col(PartKey.tenant_id) == PartRef.tenant_id,
            col(PartKey.idx) == PartRef.idx,
            col(PartKey.part) == PartRef.part,
            col(PartKey.state) != KeyState.DESTROYED.value,
        )
    )
    parts = (
        sa.select(col(PartRef.idx), col(PartRef.part), col(EntryRow.batch_first))
        .join(EntryRow, sa.and_(col(EntryRow.tenant_id) == PartRef.tenant_id, col(EntryRow.idx) == PartRef.idx))
        .join(DataKey, sa.and_(col(DataKey.tenant_id) == PartRef.tenant_id, col(DataKey.key_id) == PartRef.key_id))
        .where(
            col(PartRef.within) == tenant_id,
            col(PartRef.start) > start - STRETCH,
            col(PartRef.start) < end,
            col(PartRef.idx) >= start,
            col(PartRef.idx) < end,
            sa.or_(col(DataKey.state) != KeyState.DESTROYED.value, own_key),
        )
    )
    found: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    for condition in _selections(tenant_id, holds):
        for idx, number, first in session.execute(parts.where(condition)):
            found[first].add((idx, number))
    return dict(found)


def _selections(tenant_id: int, holds: Sequence[Hold]) -> Iterator[sa.ColumnElement[bool]]:
    people = sorted({number for hold in holds for number in hold.subjects})
    for some in chunks(people):
        yield col(DataKey.subject_id).in_(some)
    names = sorted({name for hold in holds for name in hold.data_classes})
    if names:
        yield col(DataKey.data_class).in_(names)
    for places in chunks(sorted({place for hold in holds for place in hold.entries})):
        yield col(PartRef.idx).in_(places)
    for few in chunks(sorted({bytes.fromhex(scope) for hold in holds for scope in hold.scopes})):
        # A conversation is named by the stream's own look-up, any other scope by its key.
        yield col(EntryRow.stream_no).in_(
            sa.select(col(StreamRow.stream_no)).where(
                col(StreamRow.tenant_id) == tenant_id, col(StreamRow.lookup).in_(few)
            )
        )
        yield col(EntryRow.stream_no).in_(
            sa.select(col(ScopeKey.item)).where(
                col(ScopeKey.tenant_id) == tenant_id,
                col(ScopeKey.kind) == STREAM_KIND,
                col(ScopeKey.lookup).in_(few),
            )
        )

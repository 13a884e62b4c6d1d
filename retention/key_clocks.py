"""Clocks of record keys that wait: for an event in the conversations they seal, or for their person's consent.

A key seals one person's month of a class, in several conversations. Its clock starts when the last of them has its
event (the last consent for it has ended), and never before the month's last instant; until then the class's cap counts.

Guarantees: a key is worked out once when its month is over, when nothing more is sealed under it, and again when an
event of its conversations or a consent of its person is recorded; `retention.decide` reads the same facts afresh.
Walks are bounded and go on where they ended. Ends nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger import index
from ledger.models import EntryRow, Instant, PartRef
from registry.ids import first_id
from registry.keyed import NO_MONTH, NOBODY, chunks
from registry.limited import scopes_of
from registry.models import Derivation, ScopeKey, StreamRow
from registry.people import groups
from registry.sets import members
from retention.consents import CLOCK, covered_until
from retention.decide import Item, class_end
from retention.events import STREAM_KIND, write_hints
from retention.models import EventRow, KeyHintRow, WalkRow
from retention.schedule import Schedule, month_end, month_of
from vault.models import OPENING, DataKey, KeyState, PartKey

BATCH = 2_000
EVENTS = 100
SKEW = timedelta(hours=1)
"""A month counts as over so long after its end: another process's clock may still be in it."""
OVERLAP = timedelta(hours=2)
"""A destruction is dated at its beginning and committed later: so far back each look starts again."""
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
SKELETON = "skeleton"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyClock:
    """What a key's clock waits for: per conversation when its event happened, and until when consent covers all."""

    events: Mapping[str, datetime | None] = field(default_factory=dict)
    consent_until: datetime | None = None


NO_CLOCK = KeyClock()


def waits(starts: str) -> bool:
    """Whether a clock waits for something that a key's month does not tell."""
    return starts == CLOCK or starts.startswith("event:")


def clocks_of(
    session: Session, tenant_id: int, rows: Sequence[DataKey], starts: Mapping[str, str]
) -> dict[str, KeyClock]:
    """The clocks of those of these keys whose class waits; `starts` names each class's clock."""
    waiting = [row for row in rows if row.month != NO_MONTH and waits(starts.get(row.data_class, ""))]
    if not waiting:
        return {}
    streams = _streams(session, tenant_id, [row.key_id for row in waiting])
    scopes = scopes_of(session, tenant_id, {one for some in streams.values() for one in some})
    consents = _consents(
        session, tenant_id, [row for row in waiting if starts[row.data_class] == CLOCK], streams, scopes
    )
    found = {}
    timed = [row for row in waiting if starts[row.data_class] != CLOCK]
    last = _happened(session, tenant_id, {starts[row.data_class].removeprefix("event:") for row in timed}, scopes)
    one_person = groups(session, tenant_id, {row.subject_id for row in timed})
    for row in timed:
        name, people = starts[row.data_class].removeprefix("event:"), one_person.get(row.subject_id, frozenset())
        found[row.key_id] = KeyClock(
            events={
                str(stream): _clamped(_newest(last, name, scopes.get(stream, frozenset()), people), row.month)
                for stream in streams.get(row.key_id, ())
            }
        )
    for row in waiting:
        if row.key_id in consents:
            found[row.key_id] = KeyClock(consent_until=_clamped(consents[row.key_id], row.month))
    return found


def due_keys(
    session: Session, tenant_id: int, *, before: datetime, after: tuple[datetime, str] | None, limit: int
) -> tuple[list[DataKey], tuple[datetime, str] | None]:
    """Live keys whose worked out end has come, and where to go on; None at the end."""
    end, key_id = col(KeyHintRow.ends_at), col(KeyHintRow.key_id)
    query: Any = (
        sa.select(DataKey, end.label("end"))
        .join(KeyHintRow, sa.and_(col(KeyHintRow.tenant_id) == col(DataKey.tenant_id), key_id == col(DataKey.key_id)))
        .where(
            col(KeyHintRow.tenant_id) == tenant_id,
            end <= sa.literal(before, Instant()),
            col(DataKey.state).in_(OPENING),
        )
    )
    if after is not None:
        at = sa.literal(after[0], Instant())
        query = query.where(end >= at, sa.or_(end > at, key_id > after[1]))
    rows = session.execute(query.order_by(end, key_id).limit(limit)).all()
    return [row[0] for row in rows], (rows[-1].end, rows[-1][0].key_id) if len(rows) == limit else None


# ── keeping the hints right ──


def refresh_keys(session: Session, tenant_id: int, schedules: Mapping[str, Schedule], now: datetime) -> bool:
    """Work out keys of months that ended, then those that an event concerns; whether there is more to do."""
    more = False
    for name, schedule in sorted(schedules.items()):
        if waits(schedule.rules.starts):
            more |= _walk_months(session, tenant_id, name, schedules, now)
        else:
            _forget_class(session, tenant_id, name)
    return _walk_events(session, tenant_id, schedules, now) or more


def renew_keys_of(session: Session, tenant_id: int, people: Collection[int], schedules: Mapping[str, Schedule]) -> None:
    """Work out again the keys of these persons, those whose class waits; they are few a person."""
    names = sorted(name for name, one in schedules.items() if waits(one.rules.starts))
    for some in chunks(sorted(people)):
        rows = session.exec(
            select(DataKey).where(
                DataKey.tenant_id == tenant_id,
                col(DataKey.subject_id).in_(some),
                col(DataKey.data_class).in_(names),
                col(DataKey.state).in_(OPENING),
            )
        ).all()
        known = _with_hints(session, tenant_id, [row.key_id for row in rows])
        _work_out(session, tenant_id, [row for row in rows if row.key_id in known], schedules)


def mark_children(session: Session, tenant_id: int, now: datetime) -> int:
    """Have artifacts looked at that were made from entries whose content ended since the last look; how many.

    Hints of the keys that went are dropped with them.
    """
    walk = walk_of(session, tenant_id, "children")
    since = _BEGINNING if walk.at is None else min(walk.at, now) - OVERLAP
    indexes = _ended_entries(session, tenant_id, since)
    children: set[int] = set()
    for some in chunks(sorted(indexes)):
        children.update(
            session.scalars(
                sa.select(col(Derivation.child)).where(
                    col(Derivation.tenant_id) == tenant_id,
                    col(Derivation.parent_kind) == "e",
                    col(Derivation.parent).in_(some),
                )
            )
        )
    walk.at = now
    session.flush()
    write_hints(session, tenant_id, dict.fromkeys(sorted(children), now))
    return len(children)


def entry_states(session: Session, tenant_id: int, indexes: Iterable[int]) -> dict[int, str]:
    """`erased` for entries of which no content opens any more, by index; the others are not in the answer."""
    wanted = sorted(set(indexes))
    parts: dict[int, dict[int, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    kept: set[tuple[int, int]] = set()
    for some in chunks(wanted):
        refs = list(index.refs_of(session, tenant_id, some))
        keys = _classes_and_states(session, tenant_id, {key_id for _, _, key_id in refs})
        for idx, number, key_id in refs:
            if key_id in keys:
                parts[idx][number].append(keys[key_id])
        own = session.execute(
            sa.select(col(PartKey.idx), col(PartKey.part)).where(
                col(PartKey.tenant_id) == tenant_id,
                col(PartKey.idx).in_(some),
                col(PartKey.state) != KeyState.DESTROYED.value,
            )
        )
        kept.update((idx, number) for idx, number in own)
    found = {}
    for idx, numbers in parts.items():
        content = {number: keys for number, keys in numbers.items() if keys[0][0] != SKELETON}
        gone = [
            (idx, number) not in kept and any(state == KeyState.DESTROYED.value for _, state in keys)
            for number, keys in content.items()
        ]
        if gone and all(gone):
            found[idx] = "erased"
    return found


def _classes_and_states(session: Session, tenant_id: int, key_ids: Collection[str]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for some in chunks(sorted(key_ids)):
        query = sa.select(col(DataKey.key_id), col(DataKey.data_class), col(DataKey.state)).where(
            col(DataKey.tenant_id) == tenant_id, col(DataKey.key_id).in_(some)
        )
        found.update((key_id, (data_class, state)) for key_id, data_class, state in session.execute(query))
    return found


def walk_of(session: Session, tenant_id: int, what: str) -> WalkRow:
    """Where a walk stands; made where there is none."""
    row = session.get(WalkRow, (tenant_id, what))
    if row is None:
        row = WalkRow(tenant_id=tenant_id, what=what)
        session.add(row)
    return row


# ── inside ──


def _clamped(at: datetime | None, month: str) -> datetime | None:
    return None if at is None else max(at, month_end(month))


def _streams(session: Session, tenant_id: int, key_ids: Sequence[str]) -> dict[str, list[int]]:
    """The conversations in which each key seals something."""
    found: dict[str, list[int]] = defaultdict(list)
    for some in chunks(sorted(set(key_ids))):
        rows = session.execute(
            sa.select(col(PartRef.key_id), col(EntryRow.stream_no))
            .join(EntryRow, sa.and_(col(EntryRow.tenant_id) == PartRef.tenant_id, col(EntryRow.idx) == PartRef.idx))
            .where(col(PartRef.tenant_id) == tenant_id, col(PartRef.key_id).in_(some))
            .distinct()
        )
        for key_id, stream in rows:
            found[key_id].append(stream)
    return found


_Happened = dict[tuple[str, str], list[tuple[int | None, datetime]]]


def _happened(
    session: Session, tenant_id: int, names: Collection[str], scopes: Mapping[int, frozenset[str]]
) -> _Happened:
    """The last time each event happened for each of these scopes: for all, and for each person it was narrowed to."""
    lookups = sorted({bytes.fromhex(scope) for some in scopes.values() for scope in some})
    found: _Happened = defaultdict(list)
    for some in chunks(lookups) if names else ():
        rows = session.execute(
            sa.select(col(EventRow.name), col(EventRow.lookup), col(EventRow.subject_no), sa.func.max(col(EventRow.at)))
            .where(
                col(EventRow.tenant_id) == tenant_id,
                col(EventRow.name).in_(sorted(names)),
                col(EventRow.lookup).in_(some),
            )
            .group_by(col(EventRow.name), col(EventRow.lookup), col(EventRow.subject_no))
        )
        for name, lookup, subject, at in rows:
            found[name, lookup.hex()].append((subject, at))
    return found


def _newest(last: _Happened, name: str, scopes: frozenset[str], people: frozenset[int]) -> datetime | None:
    known = [
        at for scope in scopes for subject, at in last.get((name, scope), ()) if subject is None or subject in people
    ]
    return max(known, default=None)


def _consents(
    session: Session,
    tenant_id: int,
    rows: Sequence[DataKey],
    streams: Mapping[str, Sequence[int]],
    scopes: Mapping[int, frozenset[str]],
) -> dict[str, datetime]:
    """Until when consent covers everything under each key: the last of its conversations, where all have an end."""
    asked: dict[int | str, tuple[str, Iterable[int], frozenset[str]]] = {}
    for row in rows:
        people = () if row.subject_id == NOBODY else (row.subject_id,)
        for stream in streams.get(row.key_id, ()):
            asked[f"{row.key_id} {stream}"] = (row.data_class, people, scopes.get(stream, frozenset()))
    ends = covered_until(session, tenant_id, asked)
    found: dict[str, list[datetime | None]] = defaultdict(list)
    for name in asked:
        found[str(name).partition(" ")[0]].append(ends.get(name))
    known = {key_id: [end for end in some if end is not None] for key_id, some in found.items()}
    return {key_id: max(some) for key_id, some in known.items() if some and len(some) == len(found[key_id])}


def _walk_months(session: Session, tenant_id: int, name: str, schedules: Mapping[str, Schedule], now: datetime) -> bool:
    """Work out the keys of months that ended; a new version of the class begins again."""
    version = str(schedules[name].version)
    walk = walk_of(session, tenant_id, f"months:{name}")
    known, _, place = walk.place.partition(" ")
    month, _, key_id = (place if known == version else "").partition(" ")
    rows = session.exec(
        select(DataKey)
        .where(
            DataKey.tenant_id == tenant_id,
            DataKey.data_class == name,
            DataKey.month != NO_MONTH,
            col(DataKey.month) < month_of(now - SKEW),
            col(DataKey.month) >= month,
            sa.or_(col(DataKey.month) > month, col(DataKey.key_id) > key_id),
            col(DataKey.state).in_(OPENING),
        )
        .order_by(col(DataKey.month), col(DataKey.key_id))
        .limit(BATCH)
    ).all()
    _work_out(session, tenant_id, rows, schedules)
    walk.place = f"{version} {rows[-1].month} {rows[-1].key_id}" if rows else f"{version} {month} {key_id}"
    session.add(walk)
    session.flush()
    return len(rows) == BATCH


def _forget_class(session: Session, tenant_id: int, name: str) -> None:
    """Drop the hints of a class whose clock waited once and runs by itself now: its keys are found by month."""
    walk = session.get(WalkRow, (tenant_id, f"months:{name}"))
    if walk is None:
        return
    mine = sa.select(col(DataKey.key_id)).where(col(DataKey.tenant_id) == tenant_id, col(DataKey.data_class) == name)
    session.connection().execute(
        sa.delete(KeyHintRow).where(col(KeyHintRow.tenant_id) == tenant_id, col(KeyHintRow.key_id).in_(mine))
    )
    session.delete(walk)
    session.flush()


def _walk_events(session: Session, tenant_id: int, schedules: Mapping[str, Schedule], now: datetime) -> bool:
    """Work out the keys that events recorded since the last look concern, some conversations at a time."""
    names = sorted({one.event for one in schedules.values() if one.event is not None})
    walk = walk_of(session, tenant_id, "events")
    number, _, stream = walk.place.partition(" ")
    start = int(number) if number else first_id(_BEGINNING if walk.at is None else min(walk.at, now) - OVERLAP)
    after = int(stream or -1)
    rows = session.execute(
        sa.select(col(EventRow.id), col(EventRow.lookup))
        .where(col(EventRow.tenant_id) == tenant_id, col(EventRow.id) >= start, col(EventRow.name).in_(names))
        .order_by(col(EventRow.id))
        .limit(EVENTS)
    ).all()
    for event_id, lookup in rows:
        streams = _streams_of(session, tenant_id, lookup, after if str(event_id) == number else -1)
        _renew_streams(session, tenant_id, streams, schedules)
        if len(streams) == BATCH:
            return _stand_at(session, walk, f"{event_id} {streams[-1]}")
    if len(rows) == EVENTS:
        return _stand_at(session, walk, f"{rows[-1].id + 1}")
    walk.at = now
    _stand_at(session, walk, "")
    return False


def _stand_at(session: Session, walk: WalkRow, place: str) -> bool:
    walk.place = place
    session.add(walk)
    session.flush()
    return True


def _streams_of(session: Session, tenant_id: int, lookup: bytes, after: int) -> list[int]:
    query = (
        sa.select(col(ScopeKey.item))
        .where(
            col(ScopeKey.tenant_id) == tenant_id,
            col(ScopeKey.lookup) == lookup,
            col(ScopeKey.kind) == STREAM_KIND,
            col(ScopeKey.item) > after,
        )
        .order_by(col(ScopeKey.item))
        .limit(BATCH)
    )
    found = list(session.scalars(query))
    named = sa.select(col(StreamRow.stream_no)).where(
        col(StreamRow.tenant_id) == tenant_id, col(StreamRow.lookup) == lookup
    )
    # One stream has that name; in a full page it is found again with the rest.
    return found if len(found) == BATCH else sorted({*found, *session.scalars(named)})


def _renew_streams(session: Session, tenant_id: int, streams: Sequence[int], schedules: Mapping[str, Schedule]) -> None:
    sets: set[int] = set()
    for some in chunks(streams):
        query = sa.select(col(StreamRow.set_id)).where(
            col(StreamRow.tenant_id) == tenant_id, col(StreamRow.stream_no).in_(some)
        )
        sets.update(session.scalars(query))
    people = {one for group in members(session, tenant_id, sets).values() for one in group}
    renew_keys_of(session, tenant_id, people | {NOBODY}, schedules)


def _work_out(session: Session, tenant_id: int, rows: Sequence[DataKey], schedules: Mapping[str, Schedule]) -> None:
    clocks = clocks_of(session, tenant_id, rows, {name: one.rules.starts for name, one in schedules.items()})
    ends = {}
    for row in rows:
        clock = clocks.get(row.key_id, NO_CLOCK)
        item = Item(
            item_id=0,
            data_class=row.data_class,
            created=month_end(row.month),
            events=clock.events,
            consent_until=clock.consent_until,
        )
        end = class_end(item, schedules[row.data_class].rules)
        if end is not None:
            ends[row.key_id] = end
    for some in chunks(sorted(row.key_id for row in rows)):
        session.connection().execute(
            sa.delete(KeyHintRow).where(col(KeyHintRow.tenant_id) == tenant_id, col(KeyHintRow.key_id).in_(some))
        )
    if ends:
        values = [{"tenant_id": tenant_id, "key_id": key_id, "ends_at": end} for key_id, end in sorted(ends.items())]
        session.connection().execute(sa.insert(KeyHintRow), values)


def _with_hints(session: Session, tenant_id: int, key_ids: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for some in chunks(sorted(key_ids)):
        query = sa.select(col(KeyHintRow.key_id)).where(
            col(KeyHintRow.tenant_id) == tenant_id, col(KeyHintRow.key_id).in_(some)
        )
        found.update(session.scalars(query))
    return found


def _ended_entries(session: Session, tenant_id: int, since: datetime) -> set[int]:
    """Entries with a part whose key, or whose own key, was destroyed since."""
    keys = sa.select(col(DataKey.key_id)).where(
        col(DataKey.tenant_id) == tenant_id, col(DataKey.destroyed_at) > since, col(DataKey.month) != NO_MONTH
    )
    found: set[int] = set()
    for some in chunks(sorted(session.scalars(keys))):
        query = sa.select(col(PartRef.idx)).where(col(PartRef.tenant_id) == tenant_id, col(PartRef.key_id).in_(some))
        found.update(session.scalars(query))
        session.connection().execute(
            sa.delete(KeyHintRow).where(col(KeyHintRow.tenant_id) == tenant_id, col(KeyHintRow.key_id).in_(some))
        )
    own = sa.select(col(PartKey.idx)).where(col(PartKey.tenant_id) == tenant_id, col(PartKey.destroyed_at) > since)
    found.update(session.scalars(own))
    return found

"""Finds what may be due, by index look-ups in bounded batches, and keeps the dates by which it is found right.

Guarantees: nothing that is due is missed: items are found by their end date, items of a clock that waits for an event
by the event itself (also when they were registered after it happened), record keys by class and month. What is found
here is a candidate; `retention.decide` has the last word. A class that changed has the end dates of its items worked
out again before the next sweep looks. Source: DESIGN §9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.models import Instant
from registry import bulk, classes
from registry.artifacts import by_numbers
from registry.declaration import DataClass
from registry.ends import dates_of
from registry.ids import first_id
from registry.keyed import NO_MONTH
from registry.models import Artifact, ScopeKey
from retention.consents import CLOCK, until_of
from retention.decide import Item, class_end
from retention.events import ARTIFACT_KIND, ENDED, happened, scopes_of, write_hints
from retention.items import DATED, Candidate, Dated, load_artifacts, load_kept, load_keys
from retention.key_clocks import OVERLAP, due_keys, waits, walk_of
from retention.models import EventRow, HintRow
from retention.parts import any_kept, due_kept
from retention.schedule import Schedule, ends_at, month_end, month_of, newest_start, schedule_of
from vault.models import OPENING, DataKey

BATCH = 10_000
PHASES = ("dates", "events", "keys", "months", "kept")
"""What a listing goes through, in order."""
OWN_CLOCKS = ("created", "observed", "last_activity")
"""Clocks that start with dates of the item itself."""
_DUE = (
    f"SELECT {', '.join(DATED)} FROM artifact WHERE tenant_id = ? AND ends_at <= ? "  # noqa: S608 - names of ours
    f"AND status NOT IN ({', '.join('?' * len(ENDED))}) {{more}} ORDER BY ends_at, id LIMIT ?"
)
_DAY = timedelta(days=1)
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a listing of what is due goes on: the phase, and the last key of that phase."""

    phase: str = "dates"
    group: str = ""
    at: datetime | None = None
    number: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Candidates in their order, and where the next batch starts; None at the end."""

    candidates: list[Candidate]
    following: Place | None


def schedules_in_force(session: Session, tenant_id: int) -> dict[str, Schedule]:
    """The schedule of every class in force, by name."""
    return {name: schedule_of(spec) for name, spec in classes.in_force(session, tenant_id).items()}


def due(
    session: Session,
    tenant_id: int,
    schedules: Mapping[str, Schedule],
    *,
    before: datetime,
    limit: int = BATCH,
    place: Place | None = None,
) -> Batch:
    """The next candidates whose end lies at or before an instant, at most `limit` of them."""
    place = place or Place()
    if place.phase == "dates":
        with bulk.without_collector():
            return _by_date(session, tenant_id, schedules, before, limit=limit, place=place)
    if place.phase == "events":
        return _by_event(session, tenant_id, schedules, before, limit=limit, place=place)
    if place.phase == "keys":
        return _by_clock(session, tenant_id, schedules, before, limit=limit, place=place)
    if place.phase == "kept":
        return _by_part(session, tenant_id, schedules, before, limit=limit, place=place)
    return _by_month(session, tenant_id, schedules, before, limit=limit, place=place)


def every_due(
    session: Session, tenant_id: int, schedules: Mapping[str, Schedule], *, before: datetime, batch: int = BATCH
) -> Iterator[list[Candidate]]:
    """All candidates, batch by batch."""
    place: Place | None = Place()
    while place is not None:
        found = due(session, tenant_id, schedules, before=before, limit=batch, place=place)
        yield found.candidates
        place = found.following


def due_month(schedule: Schedule, before: datetime) -> str | None:
    """The newest month whose record keys have reached their class's end; None where no month has.

    A clock that waits for something a key cannot know (event, consent) is counted to its cap.
    """
    starts = []
    if schedule.rules.starts in OWN_CLOCKS:
        starts.append(newest_start(schedule.keep, before))
    if schedule.latest is not None:
        starts.append(newest_start(schedule.latest, before))
    if schedule.ceiling is not None:
        starts.append(newest_start(schedule.ceiling, before))
    if not starts:
        return None
    month = month_of(max(starts))
    if month_end(month) > max(starts):
        month = month_of(datetime.fromisoformat(f"{month}-01T00:00:00+00:00") - _DAY)
    end = class_end(Item(item_id=0, data_class=schedule.name, created=month_end(month)), schedule.rules)
    return month if end is not None and end <= before else None


def refresh_hints(session: Session, tenant_id: int, *, limit: int = BATCH, after: int = 0) -> int | None:
    """Work out again the end dates of items whose class changed; where to go on, None when all are right.

    Walks the registry in the order of its primary key, `limit` rows a call, only when a class has a new version.
    """
    in_force = classes.in_force(session, tenant_id)
    known = {row.data_class: row for row in session.exec(select(HintRow).where(HintRow.tenant_id == tenant_id))}
    changed = {}
    for name, spec in in_force.items():
        row = known.get(name)
        if row is None and spec.version == 1:
            session.add(HintRow(tenant_id=tenant_id, data_class=name, version=1))
        elif row is None or row.version != spec.version:
            changed[name] = spec
    if not changed:
        session.flush()
        return None
    rows = session.exec(
        select(Artifact)
        .where(
            Artifact.tenant_id == tenant_id,
            col(Artifact.id) > after,
            col(Artifact.data_class).in_(sorted(changed)),
            col(Artifact.status).not_in(ENDED),
        )
        .order_by(col(Artifact.id))
        .limit(limit)
    ).all()
    last = rows[-1].id if len(rows) == limit else None
    _work_out(session, tenant_id, list(rows), changed)
    if last is not None:
        return last
    for name, spec in changed.items():
        session.merge(HintRow(tenant_id=tenant_id, data_class=name, version=spec.version))
    session.flush()
    return None


def refresh_undated(session: Session, tenant_id: int, *, limit: int = BATCH) -> bool:
    """Give a date to items that have none, as their class says; whether more wait.

    Imported rows come without, and items of a class that waits for consent lose theirs when somebody joins them.
    """
    in_force = classes.in_force(session, tenant_id)
    rows = session.exec(
        select(Artifact)
        .where(
            Artifact.tenant_id == tenant_id,
            col(Artifact.ends_at).is_(None),
            col(Artifact.status).not_in(ENDED),
            col(Artifact.data_class).in_(sorted(in_force)),
        )
        .limit(limit)
    ).all()
    dated = _work_out(session, tenant_id, list(rows), in_force)
    return len(rows) == limit and dated > 0


def refresh_new(session: Session, tenant_id: int, now: datetime, *, limit: int = BATCH) -> bool:
    """Date items that came since the last look, of classes whose end a registration does not know; whether more wait.

    These are classes that wait for consent, which may have ended before, and classes whose memories fade.
    """
    in_force = classes.in_force(session, tenant_id)
    specs = {name: one for name, one in in_force.items() if one.keep_from == CLOCK or one.decay is not None}
    walk = walk_of(session, tenant_id, "new")
    since = _BEGINNING if walk.at is None else min(walk.at, now) - OVERLAP
    start = int(walk.place) if walk.place else first_id(since)
    rows: Sequence[Artifact] = []
    if specs:
        rows = session.exec(
            select(Artifact)
            .where(
                Artifact.tenant_id == tenant_id,
                col(Artifact.id) >= start,
                col(Artifact.data_class).in_(sorted(specs)),
                col(Artifact.status).not_in(ENDED),
            )
            .order_by(col(Artifact.id))
            .limit(limit)
        ).all()
    more = len(rows) == limit
    walk.place = str(rows[-1].id + 1) if more else ""
    walk.at = walk.at if more else now
    session.add(walk)
    session.flush()
    _work_out(session, tenant_id, list(rows), specs)
    return more


def _work_out(session: Session, tenant_id: int, rows: list[Artifact], specs: Mapping[str, DataClass]) -> int:
    """Write the end dates of these rows; how many have one."""
    ids = [row.id for row in rows]
    scopes = scopes_of(session, tenant_id, ARTIFACT_KIND, ids)
    wanted = {
        row.id: (event, scopes.get(row.id, frozenset()))
        for row in rows
        if (event := specs[row.data_class].event) is not None
    }
    events = happened(session, tenant_id, wanted)
    consents = until_of(session, tenant_id, rows, [name for name, one in specs.items() if one.keep_from == CLOCK])
    ends = {
        row.id: ends_at(
            specs[row.data_class],
            dates_of(row),
            events.get(row.id, {}),
            consent_until=consents.get(row.id),
        )
        for row in rows
    }
    known = {number: end for number, end in ends.items() if end is not None}
    write_hints(session, tenant_id, known)
    return len(known)


def _by_date(
    session: Session,
    tenant_id: int,
    schedules: Mapping[str, Schedule],
    before: datetime,
    *,
    limit: int,
    place: Place,
) -> Batch:
    values: tuple[object, ...] = (tenant_id, bulk.instant(before), *ENDED)
    if place.at is not None:
        at = bulk.instant(place.at)
        values += (at, at, place.number)
    query = _DUE.format(more="" if place.at is None else "AND ends_at >= ? AND (ends_at > ? OR id > ?)")
    rows = [Dated._make(row) for row in bulk.select(session, query, (*values, limit))]
    following = Place(phase="events")
    if len(rows) == limit:
        following = Place(phase="dates", at=bulk.moment(rows[-1].ends_us), number=rows[-1].id)
    return Batch(candidates=load_artifacts(session, tenant_id, rows, schedules), following=following)


def _by_event(
    session: Session,
    tenant_id: int,
    schedules: Mapping[str, Schedule],
    before: datetime,
    *,
    limit: int,
    place: Place,
) -> Batch:
    """Items whose event happened long enough ago although their date is later: registered after it."""
    waiting = sorted(name for name, one in schedules.items() if one.event is not None and name >= place.group)
    if not waiting:
        return Batch(candidates=[], following=Place(phase="keys"))
    schedule = schedules[waiting[0]]
    since = place.number if schedule.name == place.group else 0
    query = (
        sa.select(col(Artifact.id))
        .join(
            ScopeKey,
            sa.and_(
                col(ScopeKey.tenant_id) == col(Artifact.tenant_id),
                col(ScopeKey.kind) == ARTIFACT_KIND,
                col(ScopeKey.item) == col(Artifact.id),
            ),
        )
        .join(
            EventRow,
            sa.and_(col(EventRow.tenant_id) == col(ScopeKey.tenant_id), col(EventRow.lookup) == col(ScopeKey.lookup)),
        )
        .where(
            col(Artifact.tenant_id) == tenant_id,
            col(EventRow.name) == schedule.event,
            col(EventRow.at) <= sa.literal(newest_start(schedule.keep, before), Instant()),
            col(Artifact.data_class) == schedule.name,
            col(Artifact.status).not_in(ENDED),
            sa.or_(col(Artifact.ends_at).is_(None), col(Artifact.ends_at) > sa.literal(before, Instant())),
            col(Artifact.id) > since,
        )
        .distinct()
        .order_by(col(Artifact.id))
        .limit(limit)
    )
    ids = list(session.scalars(query))
    rows = by_numbers(session, tenant_id, ids)
    candidates = load_artifacts(session, tenant_id, [rows[number] for number in ids], schedules)
    if len(ids) == limit:
        return Batch(candidates=candidates, following=Place(phase="events", group=schedule.name, number=ids[-1]))
    if len(waiting) > 1:
        return Batch(candidates=candidates, following=Place(phase="events", group=waiting[1]))
    return Batch(candidates=candidates, following=Place(phase="keys"))


def _by_clock(
    session: Session,
    tenant_id: int,
    schedules: Mapping[str, Schedule],
    before: datetime,
    *,
    limit: int,
    place: Place,
) -> Batch:
    """Record keys whose event happened, or whose consent ended, long enough ago; the cap of the others is by month."""
    after = None if place.at is None else (place.at, place.key)
    rows, at = due_keys(session, tenant_id, before=before, after=after, limit=limit)
    capped = {name: due_month(one, before) or "" for name, one in schedules.items()}
    mine = [row for row in rows if row.data_class in capped and row.month > capped[row.data_class]]
    following = Place(phase="months") if at is None else Place(phase="keys", at=at[0], key=at[1])
    return Batch(candidates=load_keys(session, tenant_id, mine, schedules), following=following)


def _by_month(
    session: Session,
    tenant_id: int,
    schedules: Mapping[str, Schedule],
    before: datetime,
    *,
    limit: int,
    place: Place,
) -> Batch:
    """Keys of the record whose whole month has reached the class's end."""
    waiting = sorted(name for name in schedules if name >= place.group)
    while waiting:
        name = waiting.pop(0)
        month = due_month(schedules[name], before)
        if month is None:
            continue
        query = select(DataKey).where(
            DataKey.tenant_id == tenant_id,
            DataKey.data_class == name,
            col(DataKey.month) <= month,
            DataKey.month != NO_MONTH,
            col(DataKey.state).in_(OPENING),
            DataKey.key_id > (place.key if name == place.group else ""),
        )
        rows = session.exec(query.order_by(col(DataKey.key_id)).limit(limit)).all()
        if not rows:
            continue
        following = Place(phase="months", group=waiting[0]) if waiting else Place(phase="kept")
        if len(rows) == limit:
            following = Place(phase="months", group=name, key=rows[-1].key_id)
        return Batch(candidates=load_keys(session, tenant_id, rows, schedules), following=following)
    return Batch(candidates=[], following=Place(phase="kept"))


def _by_part(
    session: Session,
    tenant_id: int,
    schedules: Mapping[str, Schedule],
    before: datetime,
    *,
    limit: int,
    place: Place,
) -> Batch:
    """Parts with keys of their own whose month has reached the class's end: they outlived their data keys."""
    if not place.group and not any_kept(session, tenant_id):
        return Batch(candidates=[], following=None)
    waiting = sorted(name for name in schedules if name >= place.group)
    while waiting:
        name = waiting.pop(0)
        # A clock that waits has no month of its own: there are few such parts, and each is decided.
        month = month_of(before) if waits(schedules[name].rules.starts) else due_month(schedules[name], before)
        if month is None:
            continue
        after = place.key if name == place.group else ""
        found = due_kept(session, tenant_id, name, month, after=after, limit=limit)
        if not found:
            continue
        candidates = load_kept(session, tenant_id, found, schedules)
        following = Place(phase="kept", group=waiting[0]) if waiting else None
        if len(found) == limit:
            following = Place(phase="kept", group=name, key=found[-1].ref)
        return Batch(candidates=candidates, following=following)
    return Batch(candidates=[], following=None)

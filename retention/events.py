"""Named events that start clocks: "role.closed" for `role=role-14`, recorded once, found by every item of that scope.

Guarantees: the key is kept as the same keyed look-up as an item's scope, so that it is matched without being readable.
The same event with the same key again counts from the last time it happened. An event of one person reaches that
person's items of the scope and nobody else's: those registered by then; later ones end at their class's cap. End dates
of the items concerned are worked out again, at most `MAX_HINTS` of them in the caller's transaction; the sweep finds
the rest by the event itself. Ends nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, SQLModel, col, select

from ledger.models import Instant
from registry import bulk, classes, streams, subjects
from registry.acting import Acting
from registry.declaration import DataClass
from registry.ends import dates_of
from registry.errors import Fault, InvalidDeclaration
from registry.identifiers import parse_subject
from registry.ids import new_id
from registry.keyed import Lookups, chunks, hold_writer
from registry.models import Artifact, ScopeKey, StreamRow
from registry.people import expand
from registry.sets import sets_of
from retention.errors import EventNotListed
from retention.models import EventRow, WalkRow
from retention.schedule import ends_at, newest_start
from vault.vault import Vault

NAME = re.compile(r"[a-z][a-z0-9_.-]{0,58}")
SCOPE_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_KEY_LIMIT = 512
ANY_NAME = ("legal", "platform")
"""Roles that may report any event; a writer only those its classes wait for."""
ARTIFACT_KIND = "a"
STREAM_KIND = "s"
SESSION_EXPIRED = "session.expired"
CONVERSATION = "conversation"
"""The scope that streams of the record answer to by their names."""
MAX_HINTS = 20_000
_SCOPES = "SELECT item, lookup FROM scope_key WHERE tenant_id = ? AND kind = ? AND item"
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
ENDED = ("erased", "erasing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """An event as it was kept, and how many items it reached at once."""

    event_id: int
    name: str
    at: datetime
    items: int


def record_event(
    session: Session,
    vault: Vault,
    acting: Acting,
    name: str,
    key: Mapping[str, Any],
    *,
    at: datetime,
    subject: str | None = None,
    now: datetime,
) -> Recorded:
    """The event, recorded; the same name, key and instant again is the same event.

    Raises: InvalidDeclaration, MalformedSubject, EventNotListed for a writer outside its classes.
    """
    key_name, key_value = _checked(name, key, at, now)
    in_force = classes.in_force(session, acting.tenant_id)
    waiting = {one.name: one for one in in_force.values() if one.event == name}
    if not acting.has_role(*ANY_NAME) and not any(acting.may_use_class(one) for one in waiting):
        raise EventNotListed(name)
    lookups = Lookups(vault, acting.tenant_id)
    lookup = lookups.scope(key_name, key_value)
    hold_writer(session, acting.tenant_id)
    person = None
    if subject is not None:
        [person] = subjects.resolve(session, vault, acting, [parse_subject(subject)], now)
        lookup = _narrow(session, acting.tenant_id, lookups, lookup, person)
    known = session.scalar(
        sa.select(col(EventRow.id)).where(
            col(EventRow.tenant_id) == acting.tenant_id,
            col(EventRow.name) == name,
            col(EventRow.lookup) == lookup,
            col(EventRow.at) == sa.literal(at, Instant()),
        )
    )
    if known is not None:
        return Recorded(event_id=known, name=name, at=at, items=0)
    event_id = new_id(now)
    row = {
        "tenant_id": acting.tenant_id,
        "id": event_id,
        "name": name,
        "lookup": lookup,
        "at": at,
        "subject_no": person,
        "recorded_at": now,
    }
    rows = [row]
    if key_name == CONVERSATION and person is None:
        # A stream of the record is found by its own name.
        rows.append({**row, "id": new_id(now), "lookup": lookups.of("stream", key_value)})
    session.connection().execute(sa.insert(EventRow), rows)
    items = _renew_hints(session, acting.tenant_id, lookup, waiting)
    return Recorded(event_id=event_id, name=name, at=at, items=items)


def expire_sessions(session: Session, vault: Vault, acting: Acting, now: datetime, *, limit: int = 1_000) -> bool:
    """Record `session.expired` for conversations whose class's timer ran out since the last look; whether more wait.

    It happened when the timer ran out, not when it was noticed. A conversation that is taken up again and falls silent
    once more expires again, and the last time counts. One whose name is gone names nothing any more.
    """
    more = False
    in_force = classes.in_force(session, acting.tenant_id)
    if not any(one.event == SESSION_EXPIRED for one in in_force.values()):
        return False  # The walk stands still, so that the first class that waits for it finds all of them.
    for name, spec in sorted(in_force.items()):
        if spec.session is None:
            continue
        walk = session.get(WalkRow, (acting.tenant_id, f"sessions:{name}"))
        walk = walk or WalkRow(tenant_id=acting.tenant_id, what=f"sessions:{name}")
        silent = newest_start(spec.session.expire, now)
        since = walk.at or _BEGINNING
        rows = session.exec(
            select(StreamRow)
            .where(
                StreamRow.tenant_id == acting.tenant_id,
                StreamRow.data_class == name,
                col(StreamRow.last_activity_at) > sa.literal(since, Instant()),
                col(StreamRow.last_activity_at) <= sa.literal(silent, Instant()),
            )
            .order_by(col(StreamRow.last_activity_at))
            .limit(limit)
        ).all()
        names = streams.open_names(session, vault, acting.tenant_id, rows)
        for row in rows:
            if known := names[row.stream_id].name:
                at = spec.session.expire.add_to(row.last_activity_at)
                record_event(session, vault, acting, SESSION_EXPIRED, {CONVERSATION: known}, at=at, now=now)
        more |= len(rows) == limit
        # Of several with the same last activity some may be left by the limit: the last one is looked at again.
        walk.at = rows[-1].last_activity_at - _MICROSECOND if len(rows) == limit else silent
        session.add(walk)
        session.flush()
    return more


def happened(
    session: Session, tenant_id: int, wanted: Mapping[int, tuple[str, frozenset[str]]]
) -> dict[int, dict[str, datetime | None]]:
    """For each item, by its class's event and its scope look-ups in hexadecimal: the last time of each that happened.

    An item without an event has no entry. One query per five hundred look-ups, whatever the number of items.
    """
    names = sorted({name for name, _ in wanted.values()})
    lookups = sorted({bytes.fromhex(scope) for _, scopes in wanted.values() for scope in scopes})
    last: dict[tuple[str, str], datetime] = {}
    for chunk in chunks(lookups):
        rows = session.execute(
            sa.select(col(EventRow.name), col(EventRow.lookup), sa.func.max(col(EventRow.at)))
            .where(col(EventRow.tenant_id) == tenant_id, col(EventRow.name).in_(names), col(EventRow.lookup).in_(chunk))
            .group_by(col(EventRow.name), col(EventRow.lookup))
        )
        last.update({(name, lookup.hex()): at for name, lookup, at in rows})
    found: dict[int, dict[str, datetime | None]] = {}
    for item, (name, scopes) in wanted.items():
        mine: dict[str, datetime | None] = {scope: last[name, scope] for scope in scopes if (name, scope) in last}
        if mine:
            found[item] = mine
    return found


def scopes_of(session: Session, tenant_id: int, kind: str, items: Sequence[int]) -> dict[int, frozenset[str]]:
    """The scope look-ups of artifacts (`a`) or streams (`s`) in hexadecimal."""
    found: dict[int, set[str]] = defaultdict(set)
    for item, lookup in bulk.select_in(session, _SCOPES, (tenant_id, kind), sorted(set(items)), "int8"):
        found[item].add(lookup.hex())
    return {item: frozenset(lookups) for item, lookups in found.items()}


def _checked(name: str, key: Mapping[str, Any], at: datetime, now: datetime) -> tuple[str, str]:
    faults = []
    if not NAME.fullmatch(name):
        faults.append(Fault(pointer="/name", detail=f"expected {NAME.pattern}"))
    if at > now:
        faults.append(Fault(pointer="/at", detail="lies in the future: an event is reported when it has happened"))
    pair = next(iter(key.items()), ("", ""))
    if len(key) != 1:
        faults.append(Fault(pointer="/key", detail=f"expected exactly one name and value, got {len(key)}"))
    elif not SCOPE_NAME.fullmatch(pair[0]):
        faults.append(Fault(pointer="/key", detail=f"expected a name matching {SCOPE_NAME.pattern}"))
    elif not isinstance(pair[1], str) or not 1 <= len(pair[1]) <= _KEY_LIMIT:
        faults.append(Fault(pointer=f"/key/{pair[0]}", detail=f"expected a text of 1 to {_KEY_LIMIT} characters"))
    if faults:
        raise InvalidDeclaration("event", faults)
    return pair


def _narrow(session: Session, tenant_id: int, lookups: Lookups, lookup: bytes, person: int) -> bytes:
    """A look-up of its own for one person's items of a scope, put beside their other scope keys."""
    own = lookups.of("event-subject", lookup, str(person))
    sets = sorted(sets_of(session, tenant_id, expand(session, tenant_id, (person,))))
    present = set(_items_of(session, tenant_id, own))
    items: set[int] = set()
    for chunk in chunks(sets):
        items.update(
            session.scalars(
                sa.select(col(Artifact.id))
                .join(
                    ScopeKey,
                    sa.and_(
                        col(ScopeKey.tenant_id) == col(Artifact.tenant_id),
                        col(ScopeKey.kind) == ARTIFACT_KIND,
                        col(ScopeKey.item) == col(Artifact.id),
                    ),
                )
                .where(
                    col(Artifact.tenant_id) == tenant_id,
                    col(Artifact.set_id).in_(chunk),
                    col(ScopeKey.lookup) == lookup,
                )
            )
        )
    rows = [{"tenant_id": tenant_id, "lookup": own, "kind": ARTIFACT_KIND, "item": item} for item in items - present]
    if rows:
        session.connection().execute(sa.insert(ScopeKey), rows)
    _narrow_streams(session, tenant_id, lookup, own, sets)
    return own


def _narrow_streams(session: Session, tenant_id: int, lookup: bytes, own: bytes, sets: Sequence[int]) -> None:
    """The same for the conversations that the person is part of: keys of the record wait for what happens there."""
    streams: set[int] = set()
    for chunk in chunks(sets):
        streams.update(
            session.scalars(
                sa.select(col(StreamRow.stream_no))
                .join(
                    ScopeKey,
                    sa.and_(
                        col(ScopeKey.tenant_id) == col(StreamRow.tenant_id),
                        col(ScopeKey.kind) == STREAM_KIND,
                        col(ScopeKey.item) == col(StreamRow.stream_no),
                    ),
                )
                .where(
                    col(StreamRow.tenant_id) == tenant_id,
                    col(StreamRow.set_id).in_(chunk),
                    col(ScopeKey.lookup) == lookup,
                )
            )
        )
    present = set(
        session.scalars(
            sa.select(col(ScopeKey.item)).where(
                col(ScopeKey.tenant_id) == tenant_id, col(ScopeKey.lookup) == own, col(ScopeKey.kind) == STREAM_KIND
            )
        )
    )
    rows = [
        {"tenant_id": tenant_id, "lookup": own, "kind": STREAM_KIND, "item": item} for item in sorted(streams - present)
    ]
    if rows:
        session.connection().execute(sa.insert(ScopeKey), rows)


def _items_of(session: Session, tenant_id: int, lookup: bytes, limit: int | None = None) -> list[int]:
    query = (
        sa.select(col(ScopeKey.item))
        .where(
            col(ScopeKey.tenant_id) == tenant_id, col(ScopeKey.lookup) == lookup, col(ScopeKey.kind) == ARTIFACT_KIND
        )
        .order_by(col(ScopeKey.item))
    )
    return list(session.scalars(query if limit is None else query.limit(limit)))


def _renew_hints(session: Session, tenant_id: int, lookup: bytes, waiting: Mapping[str, DataClass]) -> int:
    """The end dates of the items that wait for the event, worked out again; returns how many."""
    if not waiting:
        return 0
    touched = 0
    for chunk in chunks(_items_of(session, tenant_id, lookup, MAX_HINTS)):
        rows = session.execute(
            sa.select(
                col(Artifact.id),
                col(Artifact.data_class),
                col(Artifact.created_at),
                col(Artifact.observed_at),
                col(Artifact.last_activity_at),
                col(Artifact.expires_at),
                col(Artifact.confidence),
                col(Artifact.confirmed_at),
            ).where(
                col(Artifact.tenant_id) == tenant_id,
                col(Artifact.id).in_(chunk),
                col(Artifact.data_class).in_(sorted(waiting)),
                col(Artifact.status).not_in(ENDED),
            )
        ).all()
        scopes = scopes_of(session, tenant_id, ARTIFACT_KIND, [row.id for row in rows])
        events = happened(
            session,
            tenant_id,
            {row.id: (waiting[row.data_class].event or "", scopes.get(row.id, frozenset())) for row in rows},
        )
        write_hints(
            session,
            tenant_id,
            {
                row.id: ends_at(
                    waiting[row.data_class],
                    dates_of(row),
                    events.get(row.id, {}),
                )
                for row in rows
            },
        )
        touched += len(rows)
    return touched


def write_hints(session: Session, tenant_id: int, ends: Mapping[int, datetime | None]) -> None:
    """Set the end dates by which sweeps find items."""
    if not ends:
        return
    table = SQLModel.metadata.tables["artifact"]
    session.connection().execute(
        sa.update(table)
        .where(table.c.tenant_id == tenant_id, table.c.id == sa.bindparam("item"))
        .values(ends_at=sa.bindparam("ends")),
        [{"item": item, "ends": end} for item, end in ends.items()],
    )
    session.expire_all()

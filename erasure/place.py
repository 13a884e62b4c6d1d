"""Whether a store's address leads to the place where its items are: absence anywhere else is none.

Another database of the same server, a folder beside the right one, a server restored empty: in each of them whatever
was registered is absent by every way of looking. So before copies that a store answered as «already absent» are
forgotten it is asked what shows the place, in this order: something of the same plan was erased there; another
registered item is there now; nothing else is registered there, and one of the copies was read there while planning. One
copy alone, in a store where nothing else is registered and whose address is the one it was registered by, is taken as
absent, and says that nothing shows the place. Otherwise the copies wait for a human, with the reason.

What the plan itself keeps, for a hold or a floor, counts as another registered item: found by its identifier now it
shows the place as well as anybody's, and where it is gone too somebody has to look.

Guarantees: reads only; what was seen before the store's declaration in force was made shows nothing. Not covered:
stores in an agent's process; an address that changes behind a secret's reference while a plan is carried out.
"""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col

from connectors.agent import AGENT
from connectors.base import Item, Level
from connectors.errors import BadLocator
from erasure import copies, history
from erasure.captures import Wanted, places_of
from erasure.models import CopyRow, RequestRow
from erasure.packages import STORE as EXPORTS
from erasure.parts import Parts
from erasure.request import CopyState
from erasure.work import BY_HAND, captures_of, end_of_try, load_work
from ledger.entry import Kind
from ledger.models import Instant
from registry import stores
from registry.artifact_rows import by_numbers
from registry.models import Artifact, StoreRow

FIRST_LOOK = "absent at the first look"
"""What the words on a copy begin with that nobody erased."""
_BESIDE = f"{FIRST_LOOK}, beside others of the same plan that were erased there"
_OTHERS = f"{FIRST_LOOK}, where another registered item is"
_READ = f"{FIRST_LOOK}, where it was read while planning"
_ALONE = f"{FIRST_LOOK}; nothing else is registered there that shows the place"
DOUBTED = "nothing of what is registered was found there: is this the right place?"
_SAMPLE = 20
"""Registered items that are looked for to tell a place, and captures that are opened: the newest, the first."""
_THERE = ("live", "retained", "quarantined", "revoked")
_ERASED = (CopyState.ERASED_LOGICAL, CopyState.ERASED_PHYSICAL, CopyState.REGENERATED)


class _Read(NamedTuple):
    copy_no: int
    ref: str
    sealed: bytes | None


class _Tried(NamedTuple):
    copy_no: int
    attempts: int


def look_at_places(parts: Parts, tenant_id: int, owner: str, now: datetime) -> None:
    """Ask of each store with copies that are absent by their first look what shows that this is the right place.

    What shows it stands on the copies. Where nothing does they wait for a human; where the store falls silent they are
    tried again. Called before anything is forgotten of where they lie.
    """
    with parts.transactions(tenant_id, write=False) as session:
        where = sa.and_(copies.of(tenant_id, owner, CopyState.ALREADY_ABSENT, kind="artifact"), _is_new())
        names = session.scalars(sa.select(col(CopyRow.store)).where(where).distinct()).all()
        known = stores.in_force(session, tenant_id) if names else {}
    for name in sorted(names):
        store = known.get(name)
        if store is None or store.kind == AGENT or name == EXPORTS:
            continue
        try:
            shown = _shown_by(parts, tenant_id, owner, store)
        except Exception as error:  # noqa: BLE001 - whatever a driver raises leaves its own store's copies untold only
            _try_again(parts, tenant_id, owner, name, type(error).__name__)
            continue
        if shown is None:
            _doubt(parts, tenant_id, owner, name, now)
            continue
        with parts.transactions(tenant_id) as session:
            copies.update(session, sa.and_(_absent(tenant_id, owner, name), _is_new()), detail=shown)


def as_absent(how: str, earlier: str | None) -> str:
    """How the absence of what nobody erased was seen, with what showed the place at the first look."""
    _, mark, shown = (earlier or "").partition(FIRST_LOOK)
    return f"{how}; {mark}{shown}" if mark else how


def _shown_by(parts: Parts, tenant_id: int, owner: str, store: StoreRow) -> str | None:
    """What shows that absences are read at the right place, as a certificate says it; None where nothing does."""
    with parts.transactions(tenant_id, write=False) as session:
        if _erased_there(session, tenant_id, owner, store):
            return _BESIDE
        is_alone = _is_alone(session, tenant_id, owner, store)
        others = _others(session, tenant_id, owner, store.name)
    if others:
        return _OTHERS if _is_any_there(parts, tenant_id, others, store) else None
    if _was_read(parts, tenant_id, owner, store):
        return _READ
    return _ALONE if is_alone else None


def _doubt(parts: Parts, tenant_id: int, owner: str, name: str, now: datetime) -> None:
    """Let a human say of the copies that a store showed as absent whether it was the right one."""
    state = CopyState.AWAITING_HUMAN.value
    with parts.transactions(tenant_id) as session:
        where = sa.and_(_absent(tenant_id, owner, name), _is_new())
        number = copies.update(session, where, state=state, level=None, detail=DOUBTED)
        at = parts.instant(now)
        detail: dict[str, Any] = {"store": name, "copies": number}
        body = {"owner": owner, "state": state, "nothing_found": True, **detail}
        entry_id = parts.record.announce(session, tenant_id, Kind.COPY_STATE, body, at)
        row = session.get(RequestRow, (tenant_id, owner))
        if row is not None:
            history.add_event(
                session, row, event="place_doubted", actor="worker", now=at, detail=detail, entry_id=entry_id
            )


def _try_again(parts: Parts, tenant_id: int, owner: str, name: str, why: str) -> None:
    with parts.transactions(tenant_id) as session:
        some = copies.read(session, _Tried, sa.and_(_absent(tenant_id, owner, name), _is_new()), lock=True)
        ends = {copy.copy_no: end_of_try(copy.attempts, parts, CopyState.UNREACHABLE).value for copy in some}
        changes = {number: {"state": state, "level": None, "detail": why} for number, state in ends.items()}
        copies.write(session, tenant_id, owner, changes)


def _is_new() -> sa.ColumnElement[bool]:
    """Whether nothing was said yet of what shows the place of an absent copy."""
    told = sa.func.coalesce(col(CopyRow.detail), "").startswith(FIRST_LOOK)
    return sa.and_(col(CopyRow.verified_at).is_(None), ~told)


def _absent(tenant_id: int, owner: str, name: str) -> sa.ColumnElement[bool]:
    absent = copies.of(tenant_id, owner, CopyState.ALREADY_ABSENT, kind="artifact")
    return sa.and_(absent, col(CopyRow.store) == name)


def _erased_there(session: Session, tenant_id: int, owner: str, store: StoreRow) -> bool:
    query = sa.select(col(CopyRow.copy_no)).where(
        copies.of(tenant_id, owner, *_ERASED, kind="artifact"),
        col(CopyRow.store) == store.name,
        sa.func.coalesce(col(CopyRow.method), "") != BY_HAND,
        col(CopyRow.finished_at) >= sa.literal(store.created_at, Instant()),
    )
    return session.execute(query.limit(1)).first() is not None


def _is_alone(session: Session, tenant_id: int, owner: str, store: StoreRow) -> bool:
    """Whether the plan has one copy there, registered when the store was declared as it is now."""
    where = sa.and_(copies.of(tenant_id, owner, kind="artifact"), col(CopyRow.store) == store.name)
    numbers = session.scalars(sa.select(col(CopyRow.artifact_id)).where(where).limit(2)).all()
    rows = by_numbers(session, tenant_id, [number for number in numbers if number is not None])
    return len(numbers) == 1 and all(row.created_at >= store.created_at for row in rows.values())


def _others(session: Session, tenant_id: int, owner: str, name: str) -> list[int]:
    """The newest items of the store that this plan does not end: others, and those of its own that it keeps."""
    ended = sa.select(col(CopyRow.copy_no)).where(
        col(CopyRow.tenant_id) == col(Artifact.tenant_id),
        col(CopyRow.artifact_id) == col(Artifact.id),
        col(CopyRow.owner).concat("") == owner,
        col(CopyRow.state) != CopyState.RETAINED.value,
    )
    query = (
        sa.select(col(Artifact.id))
        .where(
            col(Artifact.tenant_id) == tenant_id,
            col(Artifact.store) == name,
            col(Artifact.status).in_(_THERE),
            ~ended.exists(),
        )
        .order_by(col(Artifact.id).desc())
        .limit(_SAMPLE)
    )
    return [int(number) for number in session.scalars(query)]


def _is_any_there(parts: Parts, tenant_id: int, numbers: list[int], store: StoreRow) -> bool:
    wanted = [Wanted(ref=str(number), artifact_id=number, store=store.name, built=True) for number in numbers]
    places = places_of(parts, tenant_id, wanted)
    with closing(parts.connect(store, True)) as connector:
        items = []
        for ref, locator in places.items():
            with suppress(BadLocator):
                connector.check_locator(locator)
                items.append(Item(copy_id=ref, locator=locator))
        size = connector.capabilities().batch_size
        for start in range(0, len(items), size):
            found = connector.verify(items[start : start + size], Level.L1, deadline=parts.store_seconds)
            if any(finding.present for finding in found):
                return True
    return False


def _was_read(parts: Parts, tenant_id: int, owner: str, store: StoreRow) -> bool:
    """Whether one of the absent copies was read while planning, by the declaration that is in force now."""
    with parts.transactions(tenant_id, write=False) as session:
        work = load_work(session, tenant_id, owner)
        if store.created_at > work.row.created_at:
            return False
        where = sa.and_(_absent(tenant_id, owner, store.name), _is_new())
        some = next(copies.pages(session, _Read, where, size=_SAMPLE), [])
        return any(capture.canaries for capture in captures_of(session, parts, work, some).values())

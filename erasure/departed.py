"""People of whom nothing is left: their names and identity keys end with a pass of retention, like all else of theirs.

Something of a person is left while any of these is there, of them or of whoever is one person with them: a copy that is
not erased; a record key or the key of a single part; an open request, or a registration review that names them; a
consent that is in force or ended less than `CONSENTS_STAY` ago, because what comes late is still refused by it; a
conversation they took part in that was active within `QUIET` or whose timers still run; an erasure that has begun.
Holds, restrictions and open exports are `retention.decide`'s, which is asked like for any item: the identity key was
made from what there was of the person, by the rule «keep while there are other sources».

Guarantees: whoever comes back under such a name is somebody new, who inherits nothing and is refused nothing. The walk
over all people is bounded and goes on where it ended. Nothing is decided here about people whose erasure was asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure.models import RequestRow
from erasure.plan import IDENTITY, IDENTITY_RULES, VAULT
from erasure.request import OPEN
from ledger.models import LogState, PartRef
from registry import bulk, classes, streams, subjects
from registry.keyed import NO_MONTH, chunks, hold_writer
from registry.models import Subject
from registry.people import groups
from registry.review_models import ReviewRow
from retention.consents import ended_at
from retention.decide import DESTRUCTIVE, Item, SourceEnd, decide
from retention.key_clocks import walk_of
from retention.models import ConsentRow
from retention.stops import Stops
from retention.sweep import SweepItem
from vault.models import DataKey, KeyState, PartKey
from vault.vault import Vault

QUIET = timedelta(days=31)
"""So long after a person was first named, or the timers of a conversation ran out, the person is not looked at."""
CONSENTS_STAY = timedelta(days=366)
LIMIT = 5_000
"""How many people one pass looks at."""
_WALK = "people"
# Not EXISTS: PostgreSQL would make a join of it and read all copies, where one look-up a set is enough.
_WITH_COPIES = (
    "SELECT DISTINCT m.subject_no FROM subject_set_member m WHERE m.tenant_id = ? AND (SELECT 1 FROM artifact a "
    "WHERE a.tenant_id = m.tenant_id AND a.set_id = m.set_id AND a.status <> 'erased' LIMIT 1) = 1 AND m.subject_no"
)
_TALKING = (
    "SELECT DISTINCT m.subject_no FROM subject_set_member m WHERE m.tenant_id = ? AND (SELECT 1 FROM stream s "
    "WHERE s.tenant_id = m.tenant_id AND s.set_id = m.set_id AND s.last_activity_at > ? LIMIT 1) = 1 AND m.subject_no"
)
_WITH_KEYS = (
    "SELECT DISTINCT subject_id FROM vault_data_key WHERE tenant_id = ? AND data_class <> ? AND state <> ? "
    "AND subject_id"
)


def next_people(session: Session, tenant_id: int, now: datetime, *, limit: int = LIMIT) -> list[int]:
    """The people that this pass looks at, in the order of their numbers; after the last the walk begins again."""
    walk = walk_of(session, tenant_id, _WALK)
    query = (
        sa.select(col(Subject.subject_no), col(Subject.state), col(Subject.created_at))
        .where(col(Subject.tenant_id) == tenant_id, col(Subject.subject_no) > int(walk.place or 0))
        .order_by(col(Subject.subject_no))
        .limit(limit)
    )
    rows = session.execute(query).all()
    walk.place, walk.at = (str(rows[-1].subject_no) if len(rows) == limit else ""), now
    session.add(walk)
    session.flush()
    return [row.subject_no for row in rows if row.state == subjects.LIVE and row.created_at <= now - QUIET]


def items_of(session: Session, tenant_id: int, people: Sequence[int], stops: Stops, now: datetime) -> list[SweepItem]:
    """The identity keys that a pass ends: of those people of whom nothing is left and whom no stop keeps."""
    gone = frozenset(people) - left(session, tenant_id, people, now)
    found = []
    for some in chunks(sorted(gone)):
        rows = session.exec(
            select(DataKey)
            .where(
                DataKey.tenant_id == tenant_id,
                col(DataKey.subject_id).in_(some),
                DataKey.data_class == IDENTITY,
                DataKey.month == NO_MONTH,
                DataKey.state == KeyState.LIVE.value,
            )
            .order_by(col(DataKey.key_id))
        )
        for row in rows:
            item = identity_item(row, is_left=False)
            decision = decide(item, IDENTITY_RULES, stops.holds, stops.restrictions, stops.claims, now)
            if decision.action in DESTRUCTIVE:
                found.append(
                    SweepItem(
                        kind="key", ref=row.key_id, artifact_id=None, key_id=row.key_id, data_class=IDENTITY,
                        store=VAULT, decision=decision, path=(), depth=0, required="key",
                    )
                )  # fmt: skip
    return found


def identity_item(row: DataKey, *, is_left: bool) -> Item:
    """A person's identity key as a pass decides it: made from what there was of them, and from what is left."""
    person = frozenset({row.subject_id})
    sources = (SourceEnd("erased", None), *((SourceEnd("live", None),) if is_left else ()))
    return Item(
        item_id=0, data_class=IDENTITY, created=row.created_at, subjects=person, own_subjects=person, sources=sources
    )


def left(session: Session, tenant_id: int, people: Iterable[int], now: datetime) -> frozenset[int]:
    """Those of these people of whom something is left."""
    one_person = groups(session, tenant_id, people)
    everybody = sorted(frozenset[int]().union(*one_person.values()))
    found: set[int] = set()
    for query, known in (
        (_WITH_COPIES, ()),
        (_WITH_KEYS, (IDENTITY, KeyState.DESTROYED.value)),
        (_TALKING, (bulk.instant(now - _silence(session, tenant_id)),)),
    ):
        rows = bulk.select_in(session, query, (tenant_id, *known), everybody, "int8")
        found.update(number for (number,) in rows)
    found |= _with_parts(session, tenant_id, set(everybody) - found)
    found |= subjects.fenced(session, tenant_id, everybody).keys()
    found |= _asking(session, tenant_id) | _consenting(session, tenant_id, everybody, now)
    return frozenset(number for number, names in one_person.items() if not names.isdisjoint(found))


def _with_parts(session: Session, tenant_id: int, people: Collection[int]) -> set[int]:
    """Those of these people, who have no record key any more, of whom a part has a key of its own."""
    found: set[int] = set()
    for some in chunks(sorted(people)) if _any_part_key(session, tenant_id) else ():
        query = (
            sa.select(col(DataKey.subject_id))
            .join(
                PartRef,
                sa.and_(col(PartRef.tenant_id) == col(DataKey.tenant_id), col(PartRef.key_id) == col(DataKey.key_id)),
            )
            .join(
                PartKey,
                sa.and_(
                    col(PartKey.tenant_id) == col(PartRef.tenant_id),
                    col(PartKey.idx) == col(PartRef.idx),
                    col(PartKey.part) == col(PartRef.part),
                ),
            )
            .where(
                col(DataKey.tenant_id) == tenant_id,
                col(DataKey.subject_id).in_(some),
                col(PartRef.tenant_id) == tenant_id,
                col(PartKey.state) != KeyState.DESTROYED.value,
            )
            .distinct()
        )
        found.update(session.scalars(query))
    return found


def _any_part_key(session: Session, tenant_id: int) -> bool:
    query = sa.select(sa.literal(1)).where(
        col(PartKey.tenant_id) == tenant_id,
        col(PartKey.destroyed_at).is_(None),
        col(PartKey.state) != KeyState.DESTROYED.value,
    )
    return session.scalars(query.limit(1)).first() is not None


def _silence(session: Session, tenant_id: int) -> timedelta:
    """How long a conversation is silent before nobody in it is waited for: its own timers need its name until then."""
    timers = [one.session.expire for one in classes.in_force(session, tenant_id).values() if one.session is not None]
    return max((one.upper_bound() for one in timers), default=timedelta()) + QUIET


def _asking(session: Session, tenant_id: int) -> set[int]:
    """The people of open requests and of registration reviews that nobody decided."""
    requests = session.scalars(
        sa.select(col(RequestRow.subjects)).where(
            col(RequestRow.tenant_id) == tenant_id, col(RequestRow.state).in_(sorted(OPEN))
        )
    )
    reviews = session.scalars(
        sa.select(col(ReviewRow.wanted)).where(col(ReviewRow.tenant_id) == tenant_id, col(ReviewRow.decision).is_(None))
    )
    named = {number for some in requests for number in some or ()}
    return named | {number for wanted in reviews for number in wanted.get("subjects", ())}


def _consenting(session: Session, tenant_id: int, people: Sequence[int], now: datetime) -> set[int]:
    found = set()
    for some in chunks(people):
        query = select(ConsentRow).where(ConsentRow.tenant_id == tenant_id, col(ConsentRow.subject_no).in_(some))
        for row in session.exec(query):
            end = ended_at(row)
            if end is None or end > now - CONSENTS_STAY:
                found.add(row.subject_no)
    return found


def close(session: Session, tenant_id: int) -> None:
    """Let nobody register or record anything until this transaction ends, so that what is left now is what is left."""
    hold_writer(session, tenant_id)
    session.get(LogState, tenant_id, with_for_update=True)


def end(  # noqa: PLR0917 - called once
    session: Session, vault: Vault, tenant_id: int, key_ids: Collection[str], sweep_id: str, now: datetime
) -> None:
    """Forget the people whose identity keys these were; in the transaction that deletes the keys."""
    people = sorted({info.spec.subject_id for info in vault.info(session, tenant_id, key_ids).values()})
    streams.forget_names(session, tenant_id, people)
    subjects.end(session, tenant_id, people, sweep_id, now)

"""Legal holds: placed, listed, previewed, released. A hold beats everything and deletes nothing.

Guarantees: a hold is in the record before it takes effect, and so is its end. Selectors are kept resolved (numbers of
people and items, names of classes, keyed look-ups of scopes) and are evaluated at decision time, so that later copies
are held too, and so is what was made from an artifact or entry that a hold names; several alternatives hold what any
of them names. What a running sweep had already sent is answered as `too_late`, and so is what a hold names by its id
and nothing is left of; one that keeps nothing when it is placed says so, and so does one on somebody who was erased: it
does not reach whoever comes back by that name. Another principal than the one who placed a hold releases it, and sees
before what becomes due. Free text is sealed under the tenant's own key.

Placing: 1 resolve the selector. 2 The record (binding). 3 One transaction: the hold, what it holds, what came too late.
What ends between 2 and 3, crash or not, is applied by the next look at the record: at a start, and every few minutes.
The caller got no answer then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.entry import Kind
from ledger.head import Transactions
from ledger.models import EntryRow
from registry import classes, subjects
from registry.acting import Acting
from registry.artifacts import by_numbers, find_artifacts, public_name
from registry.errors import InvalidDeclaration, MalformedSubject
from registry.identifiers import Identifier, parse_subject
from registry.ids import random_hex
from registry.keyed import NOBODY, Lookups, Seals, canonical_json, chunks
from registry.models import Artifact
from registry.people import expand
from registry.reading import Faults, Reader, is_list
from retention.decide import Hold
from retention.due import schedules_in_force
from retention.errors import NotKnown, NotOpen, SecondPersonNeeded
from retention.events import CONVERSATION, SCOPE_NAME
from retention.holding import conditions_of, is_held
from retention.items import load_artifacts
from retention.key_clocks import entry_states
from retention.models import HoldRow, StoreHoldRow
from retention.parts import places_of, split_ref, streams_of
from retention.releases import freed_by_release
from retention.stops import Desk, EventRecord, wait_for_decisions
from vault.models import OPENING, DataKey
from vault.vault import Vault

LABEL = "hold"
_MAX_NAMED = 1_000
_AT_ONCE = 1_000
"""Entries of a conversation that are asked together whether anything is left of them."""
_LISTED = 200
"""Entries of its conversations that a list asks about, for each hold; there may be as many holds as fit a page."""
WENT_BEFORE = "it keeps nothing now: what it names is gone, and no hold brings it back; what comes later is kept"
NOT_KNOWN = "it keeps nothing now: nothing of what it names was ever here, check the names; what comes later is kept"
ERASED_BEFORE = (
    "of those whom it names {erased} of {people} were erased before: nothing more is taken about them, and whoever is "
    "opened again by that name needs another hold"
)
_SELECTORS = ("subjects", "data_classes", "scope", "artifacts", "entries")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A hold as asked for, parsed."""

    name: str
    matter: str = field(repr=False)
    reason: str = field(repr=False)
    subjects: tuple[Identifier, ...] = field(repr=False)
    data_classes: tuple[str, ...]
    scope: Mapping[str, str] = field(repr=False)
    artifacts: tuple[str, ...]
    entries: tuple[str, ...]


class Holds:
    """The verbs of API §7 about holds."""

    def __init__(
        self, *, vault: Vault, record: EventRecord, transactions: Transactions, desk: Desk, approval: str = "dual"
    ) -> None:
        self._vault = vault
        self._record = record
        self._transactions = transactions
        self._desk = desk
        self._approval = approval

    def place(self, acting: Acting, spec: Mapping[str, Any], now: datetime) -> dict[str, Any]:
        """The hold with the number of items it holds now and those that came too late.

        With a `warning` where it keeps less than whoever placed it may believe.
        Raises: InvalidDeclaration with every fault.
        """
        wanted = parse_hold(spec)
        hold_id = f"hold_{random_hex()}"
        with self._transactions(acting.tenant_id) as session:  # 1
            hold = self._resolve(session, acting, hold_id, wanted, now)
            opaque = subjects.opaque_ids(session, acting.tenant_id, hold.subjects)
            said = canonical_json({"matter": wanted.matter, "reason": wanted.reason})
            sealed = Seals(session, self._vault, acting.tenant_id).seal(NOBODY, LABEL, hold_id, said)
        body = {
            "hold": hold_id,
            "by": acting.principal,
            "subjects": sorted(opaque.values()),
            "data_classes": sorted(hold.data_classes),
            "scopes": sorted(hold.scopes),
            "artifacts": sorted(f"{number:016x}" for number in hold.artifacts),
            "entries": sorted(hold.entries),
        }
        self._record.event(acting.tenant_id, Kind.HOLD_PLACED, body, now)  # 2
        try:
            return self._put(acting, hold, wanted.name, sealed, now)  # 3
        except Exception:  # noqa: BLE001 - whatever it was, the second attempt raises it again
            # The record has it in force. If this fails too, the next look at the record applies it (`api.wiring`).
            return self._put(acting, hold, wanted.name, sealed, now)

    def _put(self, acting: Acting, hold: Hold, name: str, sealed: bytes, now: datetime) -> dict[str, Any]:
        """Write the row, or complete the one that was made of the event meanwhile, and say what is held."""
        with self._transactions(acting.tenant_id) as session:
            wait_for_decisions(session, acting.tenant_id)
            row = session.get(HoldRow, (acting.tenant_id, hold.hold_id)) or HoldRow(
                tenant_id=acting.tenant_id,
                hold_id=hold.hold_id,
                name=name,
                subjects=sorted(hold.subjects),
                data_classes=sorted(hold.data_classes),
                scopes=sorted(hold.scopes),
                artifacts=sorted(hold.artifacts),
                entries=sorted(hold.entries),
                created_by=acting.principal,
                created_at=now,
            )
            row.name, row.sealed = name, sealed
            session.add(row)
            session.flush()
            late = _gone(session, acting.tenant_id, hold)
            hold = self._known(session, acting.tenant_id)[hold.hold_id]
            late |= set(self._sent(session, acting.tenant_id, hold))
            counts = {**_copies_and_keys(session, acting.tenant_id, hold), "entries": 0}
            counts["entries"], _ = _entries_left(session, acting.tenant_id, hold)
            answer = {**view_of(row), **counts, "too_late": sorted(late)}
            if warning := _warning(session, acting.tenant_id, hold, keeps=any(counts.values()), late=bool(late)):
                answer["warning"] = warning
            return answer

    def release(self, acting: Acting, hold_id: str, *, preview: bool, now: datetime) -> dict[str, Any]:
        """What becomes due when the hold ends; without `preview` it ends.

        Raises: NotKnown, NotOpen, SecondPersonNeeded.
        """
        with self._transactions(acting.tenant_id, write=False) as session:
            row = self._open(session, acting.tenant_id, hold_id)
            hold = self._known(session, acting.tenant_id)[hold_id]
            found = freed_by_release(session, acting.tenant_id, self._desk, hold, now)
            if preview:
                return {**view_of(row), **found, "released": False, "next": _next_of(hold_id)}
            if self._approval != "single" and acting.principal == row.created_by:
                raise SecondPersonNeeded("release the hold", "placement")
        body = {"hold": hold_id, "by": acting.principal, "due": found["due"]}
        self._record.event(acting.tenant_id, Kind.HOLD_RELEASED, body, now)
        try:
            view = self._end(acting, hold_id, now)
        except Exception:  # noqa: BLE001 - as for placing
            view = self._end(acting, hold_id, now)
        return {**view, **found, "released": True}

    def _end(self, acting: Acting, hold_id: str, now: datetime) -> dict[str, Any]:
        with self._transactions(acting.tenant_id) as session:
            row = self._open(session, acting.tenant_id, hold_id, lock=True)
            row.released_by, row.released_at = acting.principal, now
            session.add(row)
            return view_of(row)

    def holds(
        self, acting: Acting, *, released: bool | None = None, after: str = "", limit: int = 50
    ) -> list[dict[str, Any]]:
        """Holds in the order of their ids, with what they hold now and what was said.

        Where a hold has longer conversations than a list looks through, `entries` are those that were found:
        `entries_at_least` is there and true.
        """
        query = select(HoldRow).where(HoldRow.tenant_id == acting.tenant_id, HoldRow.hold_id > after)
        if released is not None:
            ended = col(HoldRow.released_at)
            query = query.where(ended.is_not(None) if released else ended.is_(None))
        with self._transactions(acting.tenant_id, write=False) as session:
            seals = Seals(session, self._vault, acting.tenant_id)
            known = self._known(session, acting.tenant_id)
            return [
                {
                    **view_of(row),
                    **self._said(seals, row),
                    **(_now(session, acting.tenant_id, known[row.hold_id]) if row.released_at is None else {}),
                }
                for row in session.exec(query.order_by(col(HoldRow.hold_id)).limit(limit))
            ]

    def _known(self, session: Session, tenant_id: int) -> dict[str, Hold]:
        """Every hold in force by its id, as decisions see it: with what was made from what it names."""
        return {hold.hold_id: hold for hold in self._desk.stops(session, tenant_id).holds}

    def _said(self, seals: Seals, row: HoldRow) -> dict[str, Any]:
        opened = seals.open(NOBODY, LABEL, row.hold_id, row.sealed)
        return {} if opened is None else dict(json.loads(opened))

    def _open(self, session: Session, tenant_id: int, hold_id: str, *, lock: bool = False) -> HoldRow:
        row = session.get(HoldRow, (tenant_id, hold_id), with_for_update=True if lock else None)
        if row is None:
            raise NotKnown("hold", hold_id if hold_id.startswith("hold_") else "")
        if row.released_at is not None:
            raise NotOpen("hold", hold_id, "released", "released")
        return row

    def _resolve(self, session: Session, acting: Acting, hold_id: str, wanted: _Wanted, now: datetime) -> Hold:
        faults = Faults("hold")
        known = classes.in_force(session, acting.tenant_id)
        for number, name in enumerate(wanted.data_classes):
            if name not in known:
                faults.add(f"/selector/data_classes/{number}", "no data class of that name is in force")
        found = find_artifacts(session, acting.tenant_id, wanted.artifacts)
        for number, name in enumerate(wanted.artifacts):
            if name not in found:
                faults.add(f"/selector/artifacts/{number}", "no artifact of that id in this tenant")
        entries = _entries(session, acting.tenant_id, wanted.entries)
        for number, name in enumerate(wanted.entries):
            if name not in entries:
                faults.add(f"/selector/entries/{number}", "no entry of that id in this tenant")
        faults.raise_any()
        # Somebody nobody knows yet is made known, so that what is registered about them later is held.
        people = subjects.resolve(session, self._vault, acting, wanted.subjects, now) if wanted.subjects else []
        lookups = Lookups(self._vault, acting.tenant_id)
        return Hold(
            hold_id,
            frozenset(people),
            frozenset(wanted.data_classes),
            frozenset(
                {lookups.scope(name, value).hex() for name, value in wanted.scope.items()}
                # An artifact says its conversation in its scope, a stream of the record by its own name.
                | {lookups.of("stream", value).hex() for name, value in wanted.scope.items() if name == CONVERSATION}
            ),
            frozenset(row.id for row in found.values()),
            frozenset(entries.values()),
        )

    def _sent(self, session: Session, tenant_id: int, hold: Hold) -> list[str]:
        """What the hold names and was already sent to its store: in no state to be stopped any more."""
        rows = session.exec(
            select(Artifact).where(
                Artifact.tenant_id == tenant_id, col(Artifact.status) == sa.literal_column("'erasing'")
            )
        ).all()
        loaded = load_artifacts(session, tenant_id, rows, schedules_in_force(session, tenant_id))
        held = [one.artifact_id for one in loaded if one.artifact_id is not None and is_held(one.item, (hold,))]
        return self._desk.sent(session, tenant_id, held) if held else []


def _now(session: Session, tenant_id: int, hold: Hold) -> dict[str, Any]:
    entries, are_all = _entries_left(session, tenant_id, hold, most=_LISTED)
    return {
        **_copies_and_keys(session, tenant_id, hold),
        "entries": entries,
        **({} if are_all else {"entries_at_least": True}),
        "at_stores": at_stores(session, tenant_id, hold),
    }


def _next_of(hold_id: str) -> str:
    return (
        f"nothing was released: this shows what the release would do. POST /v1/holds/{hold_id}/release?preview=false, "
        "as another principal than the one who placed the hold, releases it"
    )


def parse_hold(spec: Mapping[str, Any]) -> _Wanted:
    """A hold as asked for. Raises: InvalidDeclaration with every fault, MalformedSubject."""
    faults = Faults("hold")
    top = Reader(spec, faults)
    name = top.text("name", required="by this name people speak of the hold", limit=128)
    matter = top.text("matter", required="the proceeding or matter that the hold serves", limit=2_000)
    reason = top.text("reason", required="why this data must be kept", limit=2_000)
    selector = top.inner("selector")
    top.done()
    if selector is None:
        top.add("selector", f"missing: a hold names {', '.join(_SELECTORS)}")
        faults.raise_any()
        raise InvalidDeclaration("hold", faults.invalid)
    people = []
    for number, text in enumerate(_names(selector, "subjects")):
        try:
            people.append(parse_subject(text))
        except MalformedSubject as error:
            selector.add("subjects", error.detail, number)
    scope = selector.raw("scope")
    if scope is not None and (
        not isinstance(scope, Mapping)
        or not scope
        or not all(isinstance(value, str) and value for value in scope.values())
    ):
        selector.add("scope", "expected an object of names and texts")
        scope = None
    for name_in_scope in scope or {}:
        if not SCOPE_NAME.fullmatch(name_in_scope):
            selector.add("scope", f"no item has a scope of this name: expected one matching {SCOPE_NAME.pattern}")
    wanted = _Wanted(
        name=name,
        matter=matter,
        reason=reason,
        subjects=tuple(dict.fromkeys(people)),
        data_classes=tuple(dict.fromkeys(_names(selector, "data_classes"))),
        scope=dict(scope or {}),
        artifacts=tuple(dict.fromkeys(_names(selector, "artifacts"))),
        entries=tuple(dict.fromkeys(_names(selector, "entries"))),
    )
    selector.done()
    if not faults.invalid and not (people or wanted.data_classes or wanted.scope or wanted.artifacts or wanted.entries):
        selector.add("", f"selects nothing: name {', '.join(_SELECTORS)}; a hold on everything is one on every class")
    faults.raise_any()
    return wanted


def _names(selector: Reader, name: str) -> list[str]:
    raw = selector.raw(name)
    if raw is None:
        return []
    if not is_list(raw) or not 0 < len(raw) <= _MAX_NAMED or not all(isinstance(one, str) for one in raw):
        selector.add(name, f"expected a list of 1 to {_MAX_NAMED} texts")
        return []
    return list(raw)


def view_of(row: HoldRow) -> dict[str, Any]:
    """A hold as the contract shows it: counts of what it names, no name of anybody."""
    return {
        "id": row.hold_id,
        "name": row.name,
        "state": "in_force" if row.released_at is None else "released",
        "selector": {
            "subjects": len(row.subjects),
            "data_classes": list(row.data_classes),
            "scopes": len(row.scopes),
            "artifacts": len(row.artifacts),
            "entries": len(row.entries),
        },
        "created_by": row.created_by,
        "created_at": row.created_at,
        "released_by": row.released_by,
        "released_at": row.released_at,
    }


def _copies_and_keys(session: Session, tenant_id: int, hold: Hold) -> dict[str, int]:
    """How many artifacts and whole keys of the record a hold keeps now."""
    ids: set[int] = set()
    for condition in conditions_of(session, tenant_id, hold):
        query = sa.select(col(Artifact.id)).where(
            col(Artifact.tenant_id) == tenant_id, col(Artifact.status) != "erased", condition
        )
        ids.update(session.scalars(query))
    keys = session.scalar(
        sa.select(sa.func.count())
        .select_from(DataKey)
        .where(_keys_of(session, tenant_id, hold), col(DataKey.state).in_(OPENING))
    )
    return {"items": len(ids), "keys": int(keys or 0)}


def _keys_of(session: Session, tenant_id: int, hold: Hold) -> sa.ColumnElement[bool]:
    return sa.and_(
        col(DataKey.tenant_id) == tenant_id,
        sa.or_(
            col(DataKey.subject_id).in_(sorted(expand(session, tenant_id, hold.subjects))),
            col(DataKey.data_class).in_(sorted(hold.data_classes)),
        ),
    )


def _warning(session: Session, tenant_id: int, hold: Hold, *, keeps: bool, late: bool) -> str:
    """What somebody who placed this hold has to know of what it does not keep; empty where there is nothing to say."""
    erased = sum(fence.erased for fence in subjects.fenced(session, tenant_id, hold.subjects).values())
    found = [ERASED_BEFORE.format(erased=erased, people=len(hold.subjects))] if erased else []
    others = len(hold.subjects) - erased or hold.data_classes or hold.scopes or hold.artifacts or hold.entries
    if not keeps and others:
        found.append(WENT_BEFORE if late or _was_anything(session, tenant_id, hold) else NOT_KNOWN)
    return "; ".join(found)


def _was_anything(session: Session, tenant_id: int, hold: Hold) -> bool:
    """Whether there ever was anything that the hold would have kept."""
    streams = sorted(streams_of(session, tenant_id, hold.scopes))
    queries: list[sa.Select[Any]] = [
        sa.select(col(Artifact.id)).where(col(Artifact.tenant_id) == tenant_id, condition)
        for condition in conditions_of(session, tenant_id, hold)
    ]
    queries.append(sa.select(col(DataKey.key_id)).where(_keys_of(session, tenant_id, hold)))
    in_streams = sa.and_(col(EntryRow.tenant_id) == tenant_id, col(EntryRow.stream_no).in_(streams))
    queries.append(sa.select(col(EntryRow.idx)).where(in_streams))
    return any(session.execute(query.limit(1)).first() is not None for query in queries)


def _entries_left(session: Session, tenant_id: int, hold: Hold, *, most: int | None = None) -> tuple[int, bool]:
    """How many entries a hold names, itself or by their conversation, of which something is left.

    And whether these are all: of conversations with more entries than `most` only so many are looked at.
    """
    left = len(hold.entries - entry_states(session, tenant_id, hold.entries).keys())
    looked_at = 0
    for stream_no in sorted(streams_of(session, tenant_id, hold.scopes)):
        for page in _pages_of(session, tenant_id, stream_no, _AT_ONCE if most is None else most + 1):
            some = page if most is None else page[: most - looked_at]
            left += len(set(some) - hold.entries - entry_states(session, tenant_id, some).keys())
            if len(some) < len(page):
                return left, False
            looked_at += len(some)
    return left, True


def _pages_of(session: Session, tenant_id: int, stream_no: int, size: int) -> Iterator[Sequence[int]]:
    """Where the entries of a stream stand in the log, in the order in which they were said."""
    after = -1
    while True:
        query = (
            sa.select(col(EntryRow.position), col(EntryRow.idx))
            .where(
                col(EntryRow.tenant_id) == tenant_id,
                col(EntryRow.stream_no) == stream_no,
                col(EntryRow.position) > after,
            )
            .order_by(col(EntryRow.position))
            .limit(size)
        )
        rows = session.execute(query).all()
        if not rows:
            return
        yield [idx for _, idx in rows]
        after = rows[-1].position


def _gone(session: Session, tenant_id: int, named: Hold) -> set[str]:
    """What a hold names one by one and nothing is left of: nobody may take it for kept."""
    rows = by_numbers(session, tenant_id, named.artifacts).values()
    ended = entry_states(session, tenant_id, named.entries)
    entries: set[str] = set()
    for some in chunks(sorted(ended)):
        query = sa.select(col(EntryRow.entry_id)).where(
            col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx).in_(some)
        )
        entries.update(str(UUID(bytes=raw)) for raw in session.scalars(query))
    return entries | {public_name(row) for row in rows if row.status == "erased"}


def _entries(session: Session, tenant_id: int, names: Sequence[str]) -> dict[str, int]:
    """Where these entries stand in the log; those that are not there, or no ids, are left out."""
    found: dict[str, int] = {}
    sound = []
    for name in names:
        with suppress(ValueError):
            sound.append(str(UUID(name)))
    for place, ref in places_of(session, tenant_id, sound).items():
        found[split_ref(ref)[0]] = place[0]
    return {name: found[name.lower()] for name in names if name.lower() in found}


def at_stores(session: Session, tenant_id: int, hold: Hold) -> dict[str, int]:
    """Of the artifacts a hold names, in how many places the store itself keeps them, has none, or refused."""
    found: dict[int, str] = {}
    for condition in conditions_of(session, tenant_id, hold):
        query = (
            sa.select(col(StoreHoldRow.artifact_id), col(StoreHoldRow.state))
            .join(
                Artifact,
                sa.and_(
                    col(Artifact.tenant_id) == col(StoreHoldRow.tenant_id),
                    col(Artifact.id) == col(StoreHoldRow.artifact_id),
                ),
            )
            .where(col(StoreHoldRow.tenant_id) == tenant_id, condition)
        )
        found.update((number, state) for number, state in session.execute(query))
    states = list(found.values())
    return {state: states.count(state) for state in sorted(set(states))}

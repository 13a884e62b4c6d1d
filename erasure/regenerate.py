"""Derived copies that are made anew without the person: asks their owner, checks the answer, and only then lets go.

In order, for each copy whose class says `regenerate`:

 1. Ask: a signed call with ids only says which copy, without which sources, and by when. Asked again until answered.
 2. Check the answer: an artifact that is new since the approval, alive, none of whose sources, however far up, is what
    the request ends, that is about nobody the request is about, and that holds no canary of the sources that end.
 3. Only then the old copy is pending like any other; when its absence was shown it counts as `regenerated`.
 4. Past the deadline it has failed, and the legal desk decides.

Guarantees: nothing that names a person leaves in a call; an answer is believed in nothing that was not looked at here.
No more is claimed than provenance and canaries show: a text may say the same in other words. Not here: how a call is
made (`api.callbacks`), what a class declares (`registry.declaration`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import rfc8785
from sqlmodel import Session

from connectors.base import Deadline, Item, Level
from connectors.errors import ConnectorError
from connectors.residue import Needles
from erasure import history
from erasure.errors import CallbackFailed
from erasure.models import CopyRow, RequestRow
from erasure.parts import Call, Parts
from erasure.plan import instant_text
from erasure.request import CopyState
from erasure.work import Work, captures_of, load_work
from ledger.entry import Kind
from registry import artifacts, stores
from registry.classes import in_force
from registry.declaration import Callback
from registry.errors import RegistryError
from registry.graph import ARTIFACT, Parent, parents_of
from registry.models import Artifact
from registry.sets import members

SCHEMA = "muniment-regenerate/v1"
ANEW = "made anew as "
"""How the method of an old copy begins once its successor was accepted."""
ASK_AGAIN = timedelta(minutes=5)
_MOST_ANCESTORS = 100_000
_TOO_MANY = "too much lies above it to be looked at"
_SCAN_SECONDS = 60.0
_WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One copy to ask about, as it was read."""

    copy_no: int
    artifact_id: int
    ref: str
    store: str
    callback: Callback
    without: tuple[str, ...]
    deadline: datetime


def regenerate(parts: Parts, tenant_id: int, owner: str, now: datetime) -> int:
    """Ask and check for every copy that waits for its successor; how many changed. No store is asked in a transaction.

    Raises: UnknownRequest, and what the database raises.
    """
    changed = 0
    for asked in _waiting(parts, tenant_id, owner, now):
        if now >= asked.deadline:
            _settle(parts, tenant_id, owner, asked, now, state=CopyState.FAILED, detail="nothing new by the deadline")
            changed += 1
            continue
        try:
            answer = parts.call(tenant_id, _call(asked, owner))
        except CallbackFailed as error:
            _note(parts, tenant_id, owner, asked, now, detail=error.detail)
            continue
        if answer is None:
            _note(parts, tenant_id, owner, asked, now, detail="asked; not answered yet")
            continue
        refusal = check(parts, tenant_id, owner, asked.copy_no, answer)
        if refusal is not None:
            _note(parts, tenant_id, owner, asked, now, detail=refusal)
            continue
        _settle(parts, tenant_id, owner, asked, now, state=CopyState.PENDING, detail=None, method=f"{ANEW}{answer}")
        changed += 1
    return changed


def is_asked(copy: CopyRow) -> bool:
    """Whether a copy waits for its successor, and not for somebody else's word or for a store that deletes later."""
    waits = copy.state == CopyState.AWAITING_EXTERNAL and copy.level != Level.L0.value
    return waits and copy.action == "regenerate" and copy.artifact_id is not None


def is_due(copy: CopyRow, now: datetime) -> bool:
    """Whether it is time to ask, or ask again."""
    return is_asked(copy) and (copy.started_at is None or now >= copy.started_at + ASK_AGAIN)


def _waiting(parts: Parts, tenant_id: int, owner: str, now: datetime) -> list[_Asked]:
    with parts.transactions(tenant_id) as session:
        waiting = history.copies_of(session, tenant_id, owner, CopyState.AWAITING_EXTERNAL, kind="artifact")
        due = [copy for copy in waiting if is_due(copy, now)]
        if not due:
            return []
        copies = history.copies_of(session, tenant_id, owner)
        ending = {copy.artifact_id: copy for copy in copies if copy.artifact_id is not None and _ends(copy)}
        known = in_force(session, tenant_id)
        parents = parents_of(session, tenant_id, [copy.artifact_id or 0 for copy in due])
        found = []
        for copy in due:
            spec = known.get(copy.data_class)
            if spec is None or spec.callback is None or copy.artifact_id is None:
                copy.state, copy.detail = CopyState.AWAITING_HUMAN, "its class says nobody to ask for a new one"
                session.add(copy)
                continue
            first = copy.started_at is None
            copy.started_at = parts.instant(now)
            if first:
                # The deadline counts from the first call; a class that changes later moves nothing.
                copy.until = spec.callback.deadline.add_to(copy.started_at)
            session.add(copy)
            without = sorted(
                ending[parent.number].ref
                for parent in parents.get(copy.artifact_id, ())
                if parent.kind == ARTIFACT and parent.number in ending
            )
            found.append(
                _Asked(
                    copy_no=copy.copy_no,
                    artifact_id=copy.artifact_id,
                    ref=copy.ref,
                    store=copy.store,
                    callback=spec.callback,
                    without=tuple(without),
                    deadline=copy.until or spec.callback.deadline.add_to(copy.started_at),
                )
            )
        return found


def _ends(copy: CopyRow) -> bool:
    return copy.action in ("erase", "regenerate") and copy.state != CopyState.RETAINED


def _call(asked: _Asked, owner: str) -> Call:
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "request": owner,
        "copy": asked.copy_no,
        "artifact": asked.ref,
        "store": asked.store,
        "without": list(asked.without),
        "deadline": instant_text(asked.deadline),
    }
    return Call(url=asked.callback.url, secret=asked.callback.secret, body=rfc8785.dumps(body))


def check(parts: Parts, tenant_id: int, owner: str, copy_no: int, answer: str) -> str | None:
    """Why an artifact is no successor of a copy, None where it is one."""
    with parts.transactions(tenant_id, write=False) as session:
        work = load_work(session, tenant_id, owner)
        copies = history.copies_of(session, tenant_id, owner)
        old = next(copy for copy in copies if copy.copy_no == copy_no)
        try:
            new = artifacts.find_artifact(session, tenant_id, answer)
        except RegistryError:
            return "the answer names no registered artifact"
        ending = {copy.artifact_id: copy for copy in copies if copy.artifact_id is not None and _ends(copy)}
        refusal = _provenance(session, tenant_id, work, old, new, ending)
        if refusal is not None:
            return refusal
        above = _ancestors(session, tenant_id, old.artifact_id or 0)
        if above is None:
            return _TOO_MANY
        sources = [copy for number, copy in ending.items() if number in above]
        canaries = [piece for held in captures_of(session, parts, work, sources).values() for piece in held.canaries]
        place = artifacts.open_details(session, parts.vault, tenant_id, [new]).get(new.id)
        store = stores.in_force(session, tenant_id).get(new.store)
    if place is None or store is None:
        return "where the new artifact lies cannot be read"
    try:
        with parts.connect(store, True) as connector:
            item = Item(copy_id="0", locator=place.locator)
            content = dict(connector.export([item], deadline=parts.store_seconds)).get("0")
    except (ConnectorError, RegistryError, OSError) as error:
        return f"the new artifact could not be read ({type(error).__name__})"
    if content is None:
        return "the new artifact is registered and not in its store"
    return "the new artifact still holds what was erased" if _holds(content, canaries) else None


def _provenance(  # noqa: PLR0917 - the values of one check
    session: Session,
    tenant_id: int,
    work: Work,
    old: CopyRow,
    new: Artifact,
    ending: Mapping[int, CopyRow],
) -> str | None:
    if new.id == old.artifact_id or new.id in ending:
        return "the answer is no new artifact"
    if new.status != "live":
        return f"the new artifact is {new.status}"
    approved = work.row.fence_at if isinstance(work.row, RequestRow) else None
    if approved is not None and new.created_at < approved:
        return "the new artifact was there before the request was approved: nothing was made anew"
    about = members(session, tenant_id, {new.set_id}).get(new.set_id, frozenset())
    if work.people & about:
        return "the new artifact is about a person who is erased"
    above = _ancestors(session, tenant_id, new.id)
    if above is None:
        return _TOO_MANY
    if not above:
        return "the new artifact names no source"
    if above & set(ending) or any(row.status == "erased" for row in _rows(session, tenant_id, above)):
        return "the new artifact was made from something that is erased"
    return None


def _rows(session: Session, tenant_id: int, numbers: set[int]) -> list[Artifact]:
    return list(artifacts.by_numbers(session, tenant_id, numbers).values())


def _ancestors(session: Session, tenant_id: int, number: int) -> set[int] | None:
    """Every artifact above one; entries of the record are ends of their own kind and stand as negative numbers.

    None where they are more than are looked at: what is above those is not known, so nothing is shown by it.
    """
    seen: set[int] = set()
    frontier = {number}
    while frontier:
        if len(seen) >= _MOST_ANCESTORS:
            return None
        found: set[Parent] = set().union(*parents_of(session, tenant_id, sorted(frontier)).values())
        seen |= {-1 - parent.number for parent in found if parent.kind != ARTIFACT}
        frontier = {parent.number for parent in found if parent.kind == ARTIFACT} - seen
        seen |= frontier
    return seen


def _holds(content: bytes, canaries: Sequence[bytes]) -> bool:
    return bool(canaries) and bool(Needles(canaries).count_chunks([content], Deadline("check", _SCAN_SECONDS)))


def _note(parts: Parts, tenant_id: int, owner: str, asked: _Asked, now: datetime, *, detail: str) -> None:
    """Keep why a copy still waits, once for each new reason."""
    with parts.transactions(tenant_id) as session:
        copy = session.get_one(CopyRow, (tenant_id, owner, asked.copy_no), with_for_update=True)
        if copy.state != CopyState.AWAITING_EXTERNAL:
            return
        copy.attempts += 1
        if copy.detail != detail:
            copy.detail = detail
            _tell(session, parts, tenant_id, owner, copy, now)
        session.add(copy)


def _settle(
    parts: Parts, tenant_id: int, owner: str, asked: _Asked, now: datetime, *,
    state: CopyState, detail: str | None, method: str | None = None,
) -> None:  # fmt: skip
    with parts.transactions(tenant_id) as session:
        copy = session.get_one(CopyRow, (tenant_id, owner, asked.copy_no), with_for_update=True)
        if copy.state != CopyState.AWAITING_EXTERNAL:
            return  # a human was faster
        copy.state, copy.detail, copy.method = state, detail, method or copy.method
        copy.until = None
        if state == CopyState.PENDING:
            copy.attempts, copy.started_at = 0, None
        session.add(copy)
        _tell(session, parts, tenant_id, owner, copy, now)


def _tell(  # noqa: PLR0917 - one line of a history
    session: Session, parts: Parts, tenant_id: int, owner: str, copy: CopyRow, now: datetime
) -> None:
    body: dict[str, Any] = {"owner": owner, "copies": [{"copy": copy.copy_no, "state": copy.state}]}
    entry_id = parts.record.announce(session, tenant_id, Kind.COPY_STATE, body, now)
    copy.evidence = entry_id
    work = load_work(session, tenant_id, owner)
    if work.is_request:
        row = history.load(session, tenant_id, owner)
        detail = {"state": row.state, "copy": copy.copy_no, "copy_state": copy.state, "detail": copy.detail}
        history.add_event(session, row, event="regenerate", actor=_WORKER, now=now, detail=detail, entry_id=entry_id)

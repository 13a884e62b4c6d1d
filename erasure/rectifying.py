"""Plans and carries out a rectification: reads each copy, sets fields where stores can, quarantines memories.

Guarantees: a store is asked outside transactions; a copy is read again right before its fields are set, so that a
second run changes nothing twice. The corrections themselves stay sealed with the request; the record gets an event with
ids and a person's own entry, sealed like all they say, beside what stays as it was said. Not here: telling recipients
(`erasure.recipients`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from connectors.base import Corrector, Item
from connectors.errors import ConnectorError
from erasure import history
from erasure.errors import NotBuilt
from erasure.facts import ArtifactFact, PlanInput
from erasure.models import CopyRow, RequestRow
from erasure.parts import Parts, Tenant
from erasure.plan import Plan, PlanCopy, depths_of, framed
from erasure.rectify import CORRECT, QUARANTINE, REVIEW, Corrections, Verdict, judge, values_for
from erasure.request import CopyState
from erasure.sealed import RequestSeal
from erasure.work import failed, is_ready
from ledger.entry import Kind, uuid7
from registry import artifacts, classes, stores
from registry.acting import Acting
from registry.errors import RegistryError
from registry.models import StoreRow
from retention.decide import Because, Claim, concerns

READ_CHUNK = 200
_SETTING_KINDS = ("sql",)
"""Stores whose connector can set fields."""
_ENTRY_CLASSES = ("decision", "transcript")
"""The classes in which a correction is kept in the record, the first that is in force."""
_UNREACHED = (ConnectorError, RegistryError, OSError)


def plan(parts: Parts, tenant_id: int, given: PlanInput, corrections: Corrections, now: datetime) -> Plan:
    """The plan: a line for each copy that holds what is wrong, was made from such a copy, or could not be read."""
    del now  # the same decision at any time
    claim = given.claim
    if claim is None:
        message = "a correction answers a request"
        raise ValueError(message)
    with parts.transactions(tenant_id, write=False) as session:
        known = stores.in_force(session, tenant_id)
        memories = {name for name, spec in classes.in_force(session, tenant_id).items() if spec.state == "memory"}
    depths = depths_of(given.artifacts)
    ordered = sorted((fact for fact in given.artifacts if concerns(claim, fact.item)), key=_by_depth(depths))
    contents = _Contents(parts, tenant_id, known)
    lines: list[PlanCopy] = []
    corrected: set[int] = set()
    for start in range(0, len(ordered), READ_CHUNK):
        chunk = ordered[start : start + READ_CHUNK]
        read = contents.of(chunk, given)
        for fact in chunk:
            content = read.get(fact.artifact_id)
            verdict: Verdict | None
            if isinstance(content, bytes):
                verdict = judge(
                    content,
                    corrections,
                    is_memory=fact.item.data_class in memories,
                    can_set=fact.store in known and known[fact.store].kind in _SETTING_KINDS,
                    made_from_corrected=any(one.kind == "a" and one.ref in corrected for one in fact.sources),
                )
            else:
                verdict = content
            if verdict is not None:
                corrected.add(fact.artifact_id)
                lines.append(_line(fact, verdict, claim, depths[fact.artifact_id]))
    return framed(given, lines)


def _by_depth(depths: Mapping[int, int]) -> Any:
    return lambda fact: (depths[fact.artifact_id], fact.artifact_id)


def _line(fact: ArtifactFact, verdict: Verdict, claim: Claim, depth: int) -> PlanCopy:
    return PlanCopy(
        copy_no=0,
        kind="artifact",
        ref=fact.name,
        artifact_id=fact.artifact_id,
        data_class=fact.item.data_class,
        store=fact.store,
        action=verdict.action,
        rule="request",
        because=(Because("request", verdict.action, claim.request_id),),
        until=None,
        path=(),
        collateral=None,
        depth=depth,
        required="L1",
        state=verdict.state,
        detail=verdict.detail,
    )


class _Contents:
    """Reads copies from their stores."""

    def __init__(self, parts: Parts, tenant_id: int, known: Mapping[str, StoreRow]) -> None:
        self._parts = parts
        self._tenant_id = tenant_id
        self._known = known

    def of(self, facts: Sequence[ArtifactFact], given: PlanInput) -> dict[int, bytes | Verdict]:
        """Each copy's content, or why it could not be read; what is absent is left out."""
        items = places(self._parts, self._tenant_id, [fact.artifact_id for fact in facts])
        by_store: dict[str, list[ArtifactFact]] = defaultdict(list)
        found: dict[int, bytes | Verdict] = {}
        for fact in facts:
            store = given.stores.get(fact.store)
            if store is None or store.not_covered is not None:
                why = "the store is not registered any more" if store is None else store.not_covered
                found[fact.artifact_id] = Verdict(action=REVIEW, state=CopyState.NOT_COVERED, detail=why)
            elif fact.artifact_id in items:
                by_store[fact.store].append(fact)
        for name, those in sorted(by_store.items()):
            wanted = [items[fact.artifact_id] for fact in those]
            try:
                with self._parts.connect(self._known[name], True) as connector:
                    for copy_id, content in connector.export(wanted, deadline=self._parts.store_seconds):
                        if content is not None:
                            found[int(copy_id)] = content
            except _UNREACHED:
                for fact in those:
                    silent = Verdict(action=REVIEW, state=CopyState.UNREACHABLE, detail="the store did not answer")
                    found.setdefault(fact.artifact_id, silent)
        return found


def places(parts: Parts, tenant_id: int, artifact_ids: Sequence[int]) -> dict[int, Item]:
    """Where each artifact lies, as an item named by its surrogate; those whose place is forgotten are left out."""
    with parts.transactions(tenant_id, write=False) as session:
        rows = artifacts.by_numbers(session, tenant_id, artifact_ids)
        details = artifacts.open_details(session, parts.vault, tenant_id, list(rows.values()))
    return {number: Item(copy_id=str(number), locator=one.locator) for number, one in details.items()}


def apply(parts: Parts, tenant: Tenant, request_id: str, now: datetime) -> None:
    """Set what stores can set, quarantine memories, and keep the correction in the record once nothing is pending."""
    with parts.transactions(tenant.tenant_id, write=False) as session:
        row = history.load(session, tenant.tenant_id, request_id)
        said = _seal(session, parts, row).open("said", row.sealed)
        pending = [
            copy
            for copy in history.copies_of(session, tenant.tenant_id, request_id, CopyState.PENDING)
            if is_ready(copy, now)
        ]
        todo = {
            action: [(copy.copy_no, copy.artifact_id or 0, copy.store) for copy in pending if copy.action == action]
            for action in (CORRECT, QUARANTINE, REVIEW)
        }
        known = stores.in_force(session, tenant.tenant_id)
    corrections: Corrections = said.get("corrections") or {}
    names = tuple(said.get("names", ()))
    fates: dict[int, tuple[CopyState, str]] = {}
    for store in sorted({name for _, _, name in todo[CORRECT]}):
        those = [(number, artifact) for number, artifact, name in todo[CORRECT] if name == store]
        fates |= _set_fields(parts, tenant.tenant_id, known.get(store), those, corrections=corrections, names=names)
    for number, _, _ in todo[REVIEW]:
        # Tried again after it could not be read: who looks at it decides.
        fates[number] = (CopyState.AWAITING_HUMAN, "could not be read; look at it, or plan again")
    with parts.transactions(tenant.tenant_id) as session:
        artifacts.mark_status(session, tenant.tenant_id, [number for _, number, _ in todo[QUARANTINE]], "quarantined")
        for number, _, _ in todo[QUARANTINE]:
            fates[number] = (CopyState.CORRECTED, "quarantined until somebody confirms it")
        row = history.load(session, tenant.tenant_id, request_id, lock=True)
        done = _write(session, parts, row, fates, now)
        if done:
            body = {"request": request_id, "fields": len(corrections), "copies": done}
            entry_id = parts.record.announce(session, tenant.tenant_id, Kind.CORRECTION_MADE, body, now)
            for copy in history.copies_of(session, tenant.tenant_id, request_id, CopyState.CORRECTED):
                copy.evidence = copy.evidence or entry_id
                session.add(copy)
    _keep_in_record(parts, tenant, request_id, said, now)


def _write(
    session: Any, parts: Parts, row: RequestRow, fates: Mapping[int, tuple[CopyState, str]], now: datetime
) -> list[int]:
    """Write the fate of each copy; the numbers of those that are corrected."""
    done = []
    for copy in history.copies_of(session, row.tenant_id, row.request_id, CopyState.PENDING):
        if copy.copy_no not in fates:
            continue
        state, detail = fates[copy.copy_no]
        copy.attempts += 1
        copy.started_at = now
        if state in (CopyState.FAILED, CopyState.UNREACHABLE):
            failed(session, copy, parts, detail=detail, end=state)
        elif state is CopyState.AWAITING_HUMAN:
            copy.state, copy.detail = state, detail
        else:
            _ended(copy, state, detail, now)
            done.append(copy.copy_no)
        session.add(copy)
    return done


def _ended(copy: CopyRow, state: CopyState, detail: str, now: datetime) -> None:
    copy.state, copy.detail, copy.finished_at, copy.verified_at = state, detail, now, now
    copy.method = copy.verified_how = detail


def _set_fields(
    parts: Parts,
    tenant_id: int,
    store: StoreRow | None,
    wanted: Sequence[tuple[int, int]],
    *,
    corrections: Corrections,
    names: Sequence[str],
) -> dict[int, tuple[CopyState, str]]:
    """What became of each copy of one store. A copy that reads as asked already is corrected."""
    items = places(parts, tenant_id, [artifact for _, artifact in wanted])
    fates: dict[int, tuple[CopyState, str]] = {}
    try:
        if store is None:
            return {number: (CopyState.FAILED, "the store is not registered any more") for number, _ in wanted}
        with parts.connect(store, False) as connector:
            if not isinstance(connector, Corrector):
                return {number: (CopyState.FAILED, "this store cannot set fields") for number, _ in wanted}
            for number, artifact in wanted:
                item = items.get(artifact)
                content = None if item is None else dict(connector.export([item], deadline=parts.store_seconds))
                found = None if content is None else content[str(artifact)]
                if item is None or found is None:
                    fates[number] = (CopyState.FAILED, "not in its store any more")
                    continue
                values = values_for(found, corrections)
                if not values:
                    fates[number] = (CopyState.CORRECTED, "reads as asked")
                    continue
                result = connector.correct(item, values, owner_identifiers=names, deadline=parts.store_seconds)
                fates[number] = (CopyState.CORRECTED if result.corrected else CopyState.FAILED, result.detail)
    except _UNREACHED as error:
        for number, _ in wanted:
            fates.setdefault(number, (CopyState.UNREACHABLE, type(error).__name__))
    return fates


def _keep_in_record(parts: Parts, tenant: Tenant, request_id: str, said: Mapping[str, Any], now: datetime) -> None:
    """Put the correction beside what was said, as the person's own entry; once, by an id kept with the request."""
    if parts.append is None:
        raise NotBuilt("a correction without a record to keep it in")
    with parts.transactions(tenant.tenant_id) as session:
        row = history.load(session, tenant.tenant_id, request_id, lock=True)
        if row.details.get("correction_kept"):
            return
        entry = row.details.get("correction_entry") or uuid7(now)
        row.details = {**row.details, "correction_entry": entry}
        session.add(row)
        known = classes.in_force(session, tenant.tenant_id)
    name = next((one for one in _ENTRY_CLASSES if one in known), None)
    if name is None:
        name = next((one for one, spec in sorted(known.items()) if spec.state == "record" and spec.personal), None)
    if name is not None:
        verified = sorted({line["subject"] for line in said["identity"]})
        sent = {
            "id": entry,
            "stream": f"rectification/{request_id}",
            "kind": Kind.NOTE.value,
            "at": _first_told(said) or now.isoformat(),
            "data_class": name,
            "subjects": [said["subjects"][place]["text"] for place in verified],
            "body": {"correction": said.get("corrections"), "request": request_id},
        }
        acting = Acting.system(tenant_id=tenant.tenant_id, tenant=tenant.name, log_id=tenant.log_id)
        parts.append(acting, [json.dumps(sent).encode()], now)
    with parts.transactions(tenant.tenant_id) as session:
        row = history.load(session, tenant.tenant_id, request_id, lock=True)
        row.details = {**row.details, "correction_kept": True}
        session.add(row)


def _first_told(said: Mapping[str, Any]) -> str | None:
    """When identity was first verified: an instant of the request, so that a repeat is byte for byte the same entry."""
    return next((str(line["at"]) for line in said.get("identity", [])), None)


def _seal(session: Any, parts: Parts, row: RequestRow) -> RequestSeal:
    return RequestSeal(session, parts.vault, row.tenant_id, owner=row.request_id, key_no=row.request_no)

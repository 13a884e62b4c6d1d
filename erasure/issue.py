"""Issues certificates: gathers what the tables and the record say, builds, signs, keeps.

Guarantees: one per version and event, its bytes never changed; the state of the request and its certificate are
written in one transaction, after a look that no copy changed meanwhile. The person's names are committed with fresh
salts, whose openings lie sealed with the request and go into the letter alone.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col

from erasure import certificate, copies, history
from erasure.certificate import Lines, Listed, LogEvidence, Proof
from erasure.certificate_rows import (
    CertificateCut,
    CertificateKey,
    add_certificate,
    newest_certificate,
    open_certificate,
)
from erasure.certificate_store import CertificateDiffers
from erasure.collateral import view_of
from erasure.confirm import INDEPENDENCE
from erasure.copies import Outline
from erasure.footprint import ENDED
from erasure.history import fact_of
from erasure.models import CertificateRow, CopyRow, RequestEvent, RequestRow
from erasure.parts import Parts, Tenant
from erasure.payload_expiry import SWEEP_EVERY, sealed_until
from erasure.plan import instant_text
from erasure.planning import request_seal
from erasure.recipients import begin_to_tell, certificate_lines
from erasure.rendering.blocks import local_day
from erasure.request import BROKEN, GONE, CopyState, State, completion
from erasure.signed_file import SignedFile
from ledger.entry import Kind
from ledger.errors import LedgerError
from ledger.models import PartRef
from registry import stores
from registry.duration import Duration
from registry.models import StoreRow
from registry.models import Tenant as TenantRow

_SALT_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a certificate will say beside its copies, with what has to be unchanged when it is written."""

    facts: dict[str, Any]
    entries: list[str]
    number: int
    stand: str


class _Stated(NamedTuple):
    """What a certificate says of a copy, and by which key it can be known."""

    copy_no: int
    kind: str
    ref: str
    key_id: str | None
    data_class: str
    store: str
    path: list[str]
    action: str
    rule: str
    state: str
    required: str
    level: str | None
    key_state: str | None
    method: str | None
    detail: str | None
    attempts: int
    collateral: dict[str, Any] | None
    started_at: datetime | None
    finished_at: datetime | None
    verified_at: datetime | None
    verified_how: str | None
    residual_until: str | None
    evidence: str | None
    verify_evidence: str | None


class _Summary:
    """What the rest of a certificate needs of its copies; keys and failures are few."""

    def __init__(self) -> None:
        self.stores: set[str] = set()
        self.keys: list[str] = []
        self.gone_keys: list[str] = []
        self.broken: dict[int, _Stated] = {}

    def add(self, page: Iterable[_Stated]) -> None:
        """Take in some copies."""
        for copy in page:
            if copy.kind == "artifact":
                self.stores.add(copy.store)
            if copy.key_id is not None:
                self.keys.append(copy.key_id)
                if copy.state in GONE:
                    self.gone_keys.append(copy.key_id)
            if copy.state in BROKEN:
                self.broken[copy.copy_no] = copy


class _Kept(NamedTuple):
    """Why a copy stays."""

    copy_no: int
    rule: str
    because: list[dict[str, Any]]
    until: datetime | None


class _Standing(NamedTuple):
    copy_no: int
    state: str
    level: str | None
    key_state: str | None
    verified_at: datetime | None


def issue(parts: Parts, tenant: Tenant, request_id: str, now: datetime, *, version: str, state: State) -> str | None:
    """Sign a certificate, keep it together with the request's state, and return the SHA-256 of the file.

    None when the state or a copy changed meanwhile. Raises: NotVerified, and what the log raises.
    """
    parts.record.ship_outbox(tenant.tenant_id, now)
    with parts.transactions(tenant.tenant_id) as session:
        row = history.load(session, tenant.tenant_id, request_id, lock=True)
        _commit_to_names(session, parts, row)
    with Lines() as lines, Listed() as kept, Listed() as proofs, ExitStack() as stack:
        with parts.transactions(tenant.tenant_id, write=False) as session:
            row = history.load(session, tenant.tenant_id, request_id)
            # A certificate is younger than everything it says.
            now = parts.instant(now, _last_seen(session, row))
            draft = _draft(session, parts, tenant, row, lines, kept, now=now, state=state)
        evidence = _evidence(parts, tenant, draft.entries, proofs, now)
        facts = {**draft.facts, "copies": lines, "retained": kept}
        said = certificate.build(facts, evidence, version=version)
        signed = stack.enter_context(certificate.sign(said, parts.signer(tenant.log_id)))
        with parts.transactions(tenant.tenant_id) as session:
            row = history.load(session, tenant.tenant_id, request_id, lock=True)
            if _stand(session, row) != draft.stand:
                return None
            sha256 = _keep(session, parts, row, signed, now=now, version=version, state=state, number=draft.number)
    if parts.certificates is not None:
        # It is issued already: a store that is away must not undo that, and the next pass writes it.
        with suppress(LedgerError, CertificateDiffers, CertificateCut):
            parts.certificates.store_due(tenant.tenant_id, tenant.log_id, now)
    return sha256


def _evidence(parts: Parts, tenant: Tenant, entries: Sequence[str], proofs: Listed, now: datetime) -> LogEvidence:
    """What the log proves of the events that a certificate leans on; a page of them is in memory at a time."""
    found = parts.record.evidence(tenant.tenant_id, list(entries), now)
    for one in found.entries:
        proof = Proof(
            entry=one.entry_id,
            index=one.index,
            header=one.header,
            inclusion=tuple(one.inclusion),
            part=one.part,
            part_key=one.part_key,
        )
        proofs.add([proof.as_json()])
    return LogEvidence(checkpoint=found.checkpoint, key=parts.record.log_vkey(tenant.tenant_id), proofs=proofs)


def _last_seen(session: Session, row: RequestRow) -> datetime | None:
    mine = (col(CopyRow.tenant_id) == row.tenant_id) & (col(CopyRow.owner) == row.request_id)
    found: datetime | None = session.scalar(sa.select(sa.func.max(col(CopyRow.verified_at))).where(mine))
    return found


def opening_of(session: Session, parts: Parts, row: RequestRow) -> list[dict[str, str]]:
    """The salts and names behind a certificate's commitments: for the person's letter, and nowhere else."""
    said = request_seal(session, parts, row).open("said", row.sealed)
    found: list[dict[str, str]] = said.get("commitments", [])
    return found


def _commit_to_names(session: Session, parts: Parts, row: RequestRow) -> None:
    if ENDED in row.details:
        return  # the words are gone; a later certificate repeats the commitments of the one before
    seal = request_seal(session, parts, row)
    said = seal.open("said", row.sealed)
    if "commitments" in said:
        return
    verified = sorted({line["subject"] for line in said["identity"]})
    said["commitments"] = [
        {"salt": secrets.token_hex(_SALT_BYTES), "subject": said["subjects"][place]["text"]} for place in verified
    ]
    row.sealed = seal.seal("said", said)
    session.add(row)


def _draft(  # noqa: PLR0917 - called once
    session: Session,
    parts: Parts,
    tenant: Tenant,
    row: RequestRow,
    lines: Lines,
    kept: Listed,
    *,
    now: datetime,
    state: State,
) -> Draft:
    stand, rows = _stand(session, row), _Summary()
    for page in copies.pages(session, _Stated, copies.of(row.tenant_id, row.request_id)):
        lines.add([_line(copy) for copy in page])
        rows.add(page)
    for some in copies.pages(session, _Kept, copies.of(row.tenant_id, row.request_id, CopyState.RETAINED)):
        kept.add([_retained(copy) for copy in some])
    known = stores.in_force(session, row.tenant_id)
    earlier = _newest(session, parts, row, tenant.log_id)
    events = history.events_of(session, row.tenant_id, row.request_id)
    received = next(line.entry_id for line in events if line.event == "received")
    issued = None if earlier is None else _issuing(events, earlier)
    details = row.details
    facts = {
        "supersedes": None if earlier is None else earlier.sha256,
        "tenant": tenant.name,
        "controller": _controller(session, row.tenant_id),
        "request": row.request_id,
        "right": row.right,
        "scope": certificate.scope_of(details),
        "regulation": row.regulation,
        "received_at": instant_text(row.received_at),
        "jurisdiction": row.jurisdiction,
        "timezone": row.timezone,
        "due_at": instant_text(row.extended_until or row.due_at),
        "due_on": local_day(row.extended_until or row.due_at, row.timezone).isoformat(),
        "answered_at": None if row.answered_at is None else instant_text(row.answered_at),
        "issued_at": instant_text(now),
        "completed_at": instant_text(row.completed_at or now),
        "state": state.value,
        "plan_hash": row.plan_hash,
        "approval": details.get("approval", parts.approval),
        "subject_commitments": _commitments(session, parts, row, earlier),
        "approvals": [{name: line[name] for name in ("by", "at", "entry")} for line in row.approvals],
        "coverage": details.get("plan", {}).get("coverage", []),
        "not_covered": details.get("plan", {}).get("not_covered", []),
        "skeleton": _skeleton(session, row.tenant_id, rows.keys),
        "recipients": certificate_lines(session, row),
        "residuals": [
            *_residuals(rows.stores, known, details, now),
            *_sealed_bytes(session, row.tenant_id, rows.gone_keys),
        ],
        "exceptions": _exceptions(rows.broken, details),
        "verifier": {
            "independence": INDEPENDENCE,
            "key_store": parts.vault.keks.root.kind,
            "anchor": parts.anchored(tenant.log_id),
        },
    }
    entries = lines.evidence_ids(
        received,
        details.get("planned_entry"),
        details.get("fence_entry"),
        *(str(line["entry"]) for line in row.approvals),
        *details.get("addenda", []),
        issued,
    )
    number = 1 if earlier is None else earlier.number + 1
    return Draft(facts=facts, entries=entries, number=number, stand=stand)


def _issuing(events: Sequence[RequestEvent], earlier: _Earlier) -> str | None:
    """The event that told the record of a certificate; a restored database may not name it."""
    said = f"certificate_{earlier.version}"
    return next((line.entry_id for line in events if line.event == said and line.at == earlier.issued_at), None)


def _keep(
    session: Session,
    parts: Parts,
    row: RequestRow,
    signed: SignedFile,
    *,
    now: datetime,
    version: str,
    state: State,
    number: int,
) -> str:
    sha256 = add_certificate(session, CertificateKey(row.tenant_id, row.request_id, version, number), signed, now)
    row.state = state
    row.completed_at = row.completed_at or now
    if version == "interim":
        begin_to_tell(session, row, now)
        due = row.details.get("kek_due")
        quiet = now + parts.quiet_period
        row.final_due_at = quiet if due is None else max(quiet, datetime.fromisoformat(due))
    else:
        row.details, row.final_due_at = {**row.details, "final_issued": True}, None
    session.add(row)
    told = {"request": row.request_id, "version": version, "state": state.value, "sha256": sha256}
    entry_id = parts.record.announce(session, row.tenant_id, Kind.CERTIFICATE_ISSUED, told, now)
    history.add_event(
        session,
        row,
        event=f"certificate_{version}",
        actor="worker",
        now=now,
        detail={"state": state.value},
        entry_id=entry_id,
    )
    return sha256


def state_of(session: Session, row: RequestRow) -> State | None:
    """The state that a request's copies allow now; None while something waits or is unverified."""
    pages = copies.pages(session, Outline, copies.of(row.tenant_id, row.request_id))
    found = completion(fact_of(copy) for page in pages for copy in page)
    accepted = row.details.get("exceptions")
    if found.state is State.PARTIALLY_FAILED and accepted and set(found.broken) <= set(accepted["copies"]):
        return State.COMPLETED_WITH_EXCEPTIONS
    return found.state


class _Earlier(NamedTuple):
    """What a certificate takes from the one before it."""

    number: int
    version: str
    issued_at: datetime
    sha256: str
    commitments: list[str]


class _Said(msgspec.Struct):
    subject_commitments: list[str]


class _Signed(msgspec.Struct):
    certificate: _Said


def _newest(session: Session, parts: Parts, row: RequestRow, log_id: str) -> _Earlier | None:
    found = newest_certificate(session, row.tenant_id, row.request_id)
    if found is None:
        return None
    row_of = session.get_one(CertificateRow, found)
    kept = parts.certificates
    with open_certificate(session, found) if kept is None else kept.open(session, found, log_id) as signed:
        said = msgspec.json.decode(signed.view(), type=_Signed).certificate
        return _Earlier(found.number, found.version, row_of.issued_at, signed.sha256(), said.subject_commitments)


def _commitments(session: Session, parts: Parts, row: RequestRow, earlier: _Earlier | None) -> list[str]:
    if ENDED in row.details and earlier is not None:
        return earlier.commitments
    return [
        certificate.commitment(bytes.fromhex(line["salt"]), line["subject"]) for line in opening_of(session, parts, row)
    ]


def _controller(session: Session, tenant_id: int) -> dict[str, Any]:
    """Who answers for the data, as an organisation; empty while nobody said so."""
    tenant = session.get(TenantRow, tenant_id)
    known = {} if tenant is None else tenant.controller
    return {name: known[name] for name in ("name", "contact", "dpo", "complaint_body") if known.get(name)}


def _line(copy: _Stated) -> dict[str, Any]:
    return {
        "copy": copy.copy_no,
        "kind": copy.kind,
        "id": copy.ref,
        "data_class": copy.data_class,
        "store": copy.store,
        "path": list(copy.path),
        "action": copy.action,
        "rule": copy.rule,
        "state": copy.state,
        "required": copy.required,
        "level": copy.level,
        "key": copy.key_state,
        "method": copy.method,
        "detail": copy.detail,
        "attempts": copy.attempts,
        "collateral": view_of(copy.collateral),
        "started_at": _text(copy.started_at),
        "finished_at": _text(copy.finished_at),
        "verified_at": _text(copy.verified_at),
        "verified_how": copy.verified_how,
        "residual_until": copy.residual_until,
        "evidence": [entry for entry in (copy.evidence, copy.verify_evidence) if entry],
    }


def _retained(copy: _Kept) -> dict[str, Any]:
    reasons = [reason for reason in history.becauses_of(copy) if reason.detail]
    # The rule that keeps it is the ground; what it is kept against stands in the plan.
    grounds = [reason.detail for reason in reasons if reason.rule == copy.rule] or [one.detail for one in reasons]
    return {"copy": copy.copy_no, "rule": copy.rule, "ground": grounds, "until": _text(copy.until)}


def _skeleton(session: Session, tenant_id: int, ids: Sequence[str]) -> dict[str, Any]:
    """How many headers stay: of entries that a key of the plan sealed."""
    headers = 0
    for start in range(0, len(ids), copies.CHUNK // 2):
        chunk = ids[start : start + copies.CHUNK // 2]
        headers += (
            session.scalar(
                sa.select(sa.func.count(sa.distinct(col(PartRef.idx)))).where(
                    col(PartRef.tenant_id) == tenant_id, col(PartRef.key_id).in_(chunk)
                )
            )
            or 0
        )
    return {
        "headers": headers,
        "ground": "headers name nobody; they keep the record provable",
        "ends_at": "with the term of the log",
    }


def _residuals(
    names: Collection[str], known: dict[str, StoreRow], details: dict[str, Any], now: datetime
) -> list[dict[str, Any]]:
    """Where bytes may remain, and until when; `unknown` is printed, never left out."""
    found: list[dict[str, Any]] = []
    for name in sorted(names):
        about = known[name].about if name in known else {}
        for what in ("backup_retention", "log_retention", "cache_ttl", "provider_retention"):
            value = about.get(what)
            until = "unknown" if value is None or value == "unknown" else _later(str(value), now)
            found.append({"store": name, "what": what, "until": until})
    if details.get("kek_due") is not None:
        until = instant_text(datetime.fromisoformat(details["kek_due"]))
        found.append({"store": "vault", "what": "backups of wrapped keys", "until": until})
    return found


def _sealed_bytes(session: Session, tenant_id: int, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Until when bytes of the record lie in the object store that no key opens any more."""
    end = sealed_until(session, tenant_id, ids, lag=2 * SWEEP_EVERY)
    if end is None:
        return []
    until = end if isinstance(end, str) else instant_text(end)
    return [{"store": "record", "what": "sealed_bytes", "until": until}]


def _later(duration: str, now: datetime) -> str:
    return instant_text(Duration.parse(duration).add_to(now))


def _exceptions(broken: Mapping[int, _Stated], details: dict[str, Any]) -> list[dict[str, Any]]:
    accepted = details.get("exceptions")
    if accepted is None:
        return []
    return [
        {
            "copy": number,
            "state": broken[number].state,
            "detail": broken[number].detail,
            "accepted_by": accepted["by"],
            "accepted_at": accepted["at"],
        }
        for number in accepted["copies"]
        if number in broken
    ]


def _stand(session: Session, row: RequestRow) -> str:
    """What must not change between a look and the certificate: another worker may reopen a request, or issue first."""
    said = f"{row.state} {row.completed_at} {row.final_due_at} {bool(row.details.get('final_issued'))}"
    digest = hashlib.sha256(said.encode())
    for page in copies.pages(session, _Standing, copies.of(row.tenant_id, row.request_id)):
        for copy in page:
            digest.update("\n{} {} {} {} {}".format(*copy).encode())
    return digest.hexdigest()


def _text(at: datetime | None) -> str | None:
    return None if at is None else instant_text(at)

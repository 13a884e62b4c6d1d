"""Writes the letters of a request: gathers what it may say, and tells the record that somebody read it.

Guarantees: only what the person said, the request's own dates and its newest certificate go in. A letter is made on
request and kept nowhere. Once the request's data are destroyed there is no letter any more (`RequestDataGone`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sqlmodel import Session

from erasure import history
from erasure.certificate import scope_of
from erasure.certificate_rows import newest_certificate, open_certificate
from erasure.errors import InvalidRequest, LetterNotReady, RequestDataGone
from erasure.export import EARLIER_EXPORT, NOT_PORTABLE
from erasure.footprint import ENDED
from erasure.handout import ERASING, EXPIRED, package_lines
from erasure.models import RequestRow
from erasure.parts import Parts
from erasure.planning import request_seal
from erasure.recipients import CONCERNED, recipients_of
from erasure.rendering.blocks import local_day
from erasure.rendering.letter import KINDS, LetterFacts, letter_of
from erasure.rendering.opened import document_of
from erasure.rendering.wording import LANGUAGES
from erasure.request import DONE, FINAL, CopyState, State
from ledger.entry import Kind
from registry import classes
from registry.acting import Acting
from registry.models import Tenant

_GERMAN = ("DE", "AT", "CH", "LI", "DEU", "AUT", "CHE", "LIE")
"""Countries, by both codes that a jurisdiction may begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which letter; None is the one that the request's state calls for, in the language of its jurisdiction."""

    kind: str | None = None
    language: str | None = None


def write(parts: Parts, acting: Acting, request_id: str, asked: Asked, now: datetime) -> dict[str, Any]:
    """The letter's paper, for `erasure.rendering.paper` or `letter.plain`.

    Raises: UnknownRequest, LetterNotReady, RequestDataGone, InvalidRequest.
    """
    if asked.kind is not None and asked.kind not in KINDS:
        raise InvalidRequest("/kind", f"expected one of {', '.join(KINDS)}")
    if asked.language is not None and asked.language not in LANGUAGES:
        raise InvalidRequest("/language", f"expected one of {', '.join(LANGUAGES)}")
    with parts.transactions(acting.tenant_id) as session:
        row = history.load(session, acting.tenant_id, request_id)
        kind = asked.kind or _kind_of(row)
        _check_kind(row, kind)
        if ENDED in row.details:
            raise RequestDataGone(request_id)
        facts = _facts(session, parts, row, kind=kind, lang=asked.language or _language_of(row), now=now)
        body = {"request": request_id, "what": f"letter {kind}", "by": acting.principal, "names": len(facts.names)}
        parts.record.announce(session, acting.tenant_id, Kind.CONTENT_READ, body, now)
    return letter_of(facts)


def _kind_of(row: RequestRow) -> str:
    if row.state in DONE:
        return "answer"
    if row.state == State.REFUSED:
        return "refusal"
    if row.state == State.NO_MATCH:
        return "no_match"
    return "acknowledgement" if row.extended_until is None else "extension"


def _check_kind(row: RequestRow, kind: str) -> None:
    state = State(row.state)
    fits = {
        "acknowledgement": state not in (State.CANCELLED, State.DUPLICATE),
        "extension": row.extended_until is not None,
        "refusal": state is State.REFUSED,
        "no_match": state is State.NO_MATCH,
        "restriction_lifting": row.right in ("restriction", "objection") and state not in FINAL,
        "answer": state in DONE,
        "recipients": row.right in CONCERNED and state in (*DONE, State.EXECUTING, State.VERIFYING),
    }
    if not fits[kind]:
        detail = f"its letters are those of {row.duplicate_of}" if row.duplicate_of else ""
        raise LetterNotReady(kind, row.state, detail)


def _language_of(row: RequestRow) -> str:
    return "de" if (row.jurisdiction or "").partition("-")[0] in _GERMAN else "en"


def _facts(session: Session, parts: Parts, row: RequestRow, *, kind: str, lang: str, now: datetime) -> LetterFacts:
    said = request_seal(session, parts, row).open("said", row.sealed)
    verified = sorted({one["subject"] for one in said["identity"]})
    names = [said["subjects"][place]["given"] for place in verified or range(len(said["subjects"]))]
    tenant = session.get(Tenant, row.tenant_id)
    has_export = kind == "answer" and row.right in ("access", "portability")
    exported, left_out = _told(package_lines(session, parts, row) if has_export else ())
    certificate = _certificate(session, row) if kind == "answer" else None
    reasons = [one["text"] for one in said.get("notes", []) if one["name"] == "extend"]
    return LetterFacts(
        kind=kind,
        lang=lang,
        request=row.request_id,
        right=row.right,
        regulation=row.regulation,
        at=now,
        today=local_day(now, row.timezone),
        received=local_day(row.received_at, row.timezone),
        due=local_day(row.extended_until or row.due_at, row.timezone),
        first_due=local_day(row.due_at, row.timezone),
        controller={} if tenant is None else tenant.controller,
        tenant="" if tenant is None else tenant.name,
        names=names,
        unverified=[one["given"] for place, one in enumerate(said["subjects"]) if verified and place not in verified],
        scope=scope_of(row.details),
        verified=bool(verified),
        ground=row.details.get("ground"),
        reason=reasons[-1] if kind == "extension" and reasons else None,
        statement=row.details.get("statement"),
        certificate=certificate,
        openings=said.get("commitments", []) if certificate is not None else [],
        final_due=_final_due(row),
        has_export=has_export,
        exported=exported,
        left_out=left_out,
        recipients=[one.as_json() for one in recipients_of(session, row)] if kind == "recipients" else [],
        descriptions={name: one.description for name, one in classes.in_force(session, row.tenant_id).items()},
    )


def _told(lines: Iterable[Mapping[str, Any]]) -> tuple[int, Counter[str]]:
    """How many copies are in a package, and how many are not, by why."""
    exported, left_out = 0, Counter[str]()
    for line in lines:
        if line["state"] != CopyState.EXPORTED:
            left_out[_why(line)] += 1
        elif line["kind"] != "request":
            exported += 1
    return exported, left_out


def _why(line: Mapping[str, Any]) -> str:
    """Why a copy is not in a package: one of `LEFT_OUT`."""
    if line["state"] == CopyState.ALREADY_ABSENT:
        return "absent"
    if line["state"] != CopyState.WITHHELD:
        return "failed"
    if line["detail"] in NOT_PORTABLE:
        return "not_portable"
    known = {EXPIRED: "expired", ERASING: "erasing", EARLIER_EXPORT: "earlier"}
    if line["detail"] in known:
        return known[line["detail"]]
    return "others" if line["collateral"] else "withheld"


def _final_due(row: RequestRow) -> date | None:
    return None if row.final_due_at is None else local_day(row.final_due_at, row.timezone)


def _certificate(session: Session, row: RequestRow) -> dict[str, Any] | None:
    found = newest_certificate(session, row.tenant_id, row.request_id)
    if found is None:
        return None
    with open_certificate(session, found) as signed:
        certificate: dict[str, Any] = document_of(signed.view())["certificate"]
    return certificate

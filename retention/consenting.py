"""Recording what a person consented to, and that they took it back.

Guarantees: a withdrawal ends a consent from its instant and is never undone; a new consent is a new record. Both stand
in the record in the same transaction, without a name. The words are sealed under the person's own key, so they end with
it. End dates of the person's items and keys are worked out again, at most `MAX_HINTS` items at once; the next pass
finds the rest. Source: GDPR Art. 7(1) and (3).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.entry import Kind
from registry import classes, subjects
from registry.acting import Acting
from registry.errors import InvalidDeclaration, MalformedSubject
from registry.identifiers import Identifier, parse_subject
from registry.ids import random_hex
from registry.keyed import Lookups, Seals, canonical_json, chunks, hold_writer
from registry.models import Artifact
from registry.people import expand, groups
from registry.reading import Faults, Reader, is_list
from registry.sets import sets_of
from retention.consents import CLOCK, consent_ends, ended_at
from retention.errors import NotKnown, NotOpen
from retention.events import CONVERSATION, ENDED, SCOPE_NAME, write_hints
from retention.key_clocks import renew_keys_of
from retention.models import ConsentRow
from retention.schedule import schedule_of
from retention.stops import EventRecord
from vault.vault import Vault

LABEL = "consent"
MAX_HINTS = 20_000
_MAX_NAMED = 200


def record_consent(  # noqa: PLR0917 - as every verb that records
    session: Session, vault: Vault, record: EventRecord, acting: Acting, spec: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """The consent as it was kept. Raises: InvalidDeclaration with every fault, SealRefused for an erased person."""
    faults = Faults("consent")
    top = Reader(spec, faults)
    who = _subject(top)
    given_at = top.instant("given_at") or now
    until = top.instant("until")
    words = top.text("words", required="what the person agreed to, or where that is kept", limit=4_000)
    named = _names(top, "data_classes")
    scope = _scope(top)
    top.done()
    if given_at > now:
        top.add("given_at", "lies in the future: a consent is recorded when it was given")
    if until is not None and until <= given_at:
        top.add("until", "ends before it begins")
    waiting = {name for name, one in classes.in_force(session, acting.tenant_id).items() if one.keep_from == CLOCK}
    for number, name in enumerate(named):
        if name not in waiting:
            top.add("data_classes", f"no class in force has the clock {CLOCK} under this name", number)
    faults.raise_any()
    if who is None:
        raise InvalidDeclaration("consent", faults.invalid)
    hold_writer(session, acting.tenant_id)
    [subject_no] = subjects.resolve(session, vault, acting, [who], now)
    consent_id = f"cns_{random_hex()}"
    lookups = Lookups(vault, acting.tenant_id)
    said = {"words": words, "by": acting.principal}
    row = ConsentRow(
        tenant_id=acting.tenant_id,
        consent_id=consent_id,
        subject_no=subject_no,
        data_classes=sorted(set(named)),
        scopes=sorted(
            {lookups.scope(name, value).hex() for name, value in scope.items()}
            | {lookups.of("stream", value).hex() for name, value in scope.items() if name == CONVERSATION}
        ),
        given_at=given_at,
        until=until,
        sealed=Seals(session, vault, acting.tenant_id).seal(subject_no, LABEL, consent_id, canonical_json(said)),
        recorded_at=now,
    )
    session.add(row)
    session.flush()
    whose = subjects.public_id(session, acting.tenant_id, subject_no)
    record.announce(session, acting.tenant_id, Kind.CONSENT_GIVEN, {**_body(row), "subject": whose}, now)
    renew(session, acting.tenant_id, (subject_no,))
    return view_of(row)


def withdraw_consent(
    session: Session, record: EventRecord, acting: Acting, consent_id: str, *, at: datetime, now: datetime
) -> dict[str, Any]:
    """The consent, ended. Raises: NotKnown, NotOpen when it was withdrawn before, InvalidDeclaration."""
    row = session.get(ConsentRow, (acting.tenant_id, consent_id), with_for_update=True)
    if row is None:
        raise NotKnown("consent", consent_id if consent_id.startswith("cns_") else "")
    if row.withdrawn_at is not None:
        raise NotOpen("consent", consent_id, "withdrawn", "withdrawn")
    faults = Faults("consent")
    if at > now or at < row.given_at:
        faults.add("/at", "a withdrawal lies between the consent and now")
    faults.raise_any()
    row.withdrawn_at = at
    session.add(row)
    session.flush()
    record.announce(session, acting.tenant_id, Kind.CONSENT_WITHDRAWN, _body(row), now)
    renew(session, acting.tenant_id, (row.subject_no,))
    return view_of(row)


def consents_about(session: Session, vault: Vault, acting: Acting, subject: str, now: datetime) -> list[dict[str, Any]]:
    """Every consent of a person, oldest first, with its words. Raises: MalformedSubject."""
    numbers = subjects.resolve(session, vault, acting, [parse_subject(subject)], now)
    everybody = sorted({one for people in groups(session, acting.tenant_id, numbers).values() for one in people})
    seals = Seals(session, vault, acting.tenant_id)
    query = select(ConsentRow).where(
        ConsentRow.tenant_id == acting.tenant_id, col(ConsentRow.subject_no).in_(everybody)
    )
    rows = session.exec(query.order_by(col(ConsentRow.given_at), col(ConsentRow.consent_id))).all()
    return [{**view_of(row), **_said(seals, row)} for row in rows]


def view_of(row: ConsentRow) -> dict[str, Any]:
    """A consent as the contract shows it, without a name of anybody."""
    return {
        "id": row.consent_id,
        "data_classes": list(row.data_classes),
        "scoped": bool(row.scopes),
        "given_at": row.given_at,
        "until": row.until,
        "withdrawn_at": row.withdrawn_at,
        "ends_at": ended_at(row),
    }


def renew(session: Session, tenant_id: int, people: Iterable[int]) -> None:
    """Work out again the end dates of these people's items whose clock is consent, and of those merged with them.

    Called when a consent changes, and when people become one or are told apart. Past `MAX_HINTS` items the others lose
    their date, and the next pass gives them one.
    """
    specs = {name: one for name, one in classes.in_force(session, tenant_id).items() if one.keep_from == CLOCK}
    if not specs:
        return
    everybody = expand(session, tenant_id, people)
    renew_keys_of(session, tenant_id, everybody, {name: schedule_of(one) for name, one in specs.items()})
    room = MAX_HINTS
    for some in chunks(sorted(sets_of(session, tenant_id, everybody))):
        concerned = (
            col(Artifact.tenant_id) == tenant_id,
            col(Artifact.set_id).in_(some),
            col(Artifact.data_class).in_(sorted(specs)),
            col(Artifact.status).not_in(ENDED),
        )
        rows = session.exec(select(Artifact).where(*concerned).order_by(col(Artifact.id)).limit(room)).all()
        if len(rows) == room:
            session.connection().execute(sa.update(Artifact).where(*concerned).values(ends_at=None))
        write_hints(session, tenant_id, consent_ends(session, tenant_id, rows, specs))
        room -= len(rows)


def _subject(top: Reader) -> Identifier | None:
    text = top.text("subject", required="who consented", limit=600)
    try:
        return parse_subject(text) if text else None
    except MalformedSubject as error:
        top.add("subject", error.detail)
        return None


def _names(top: Reader, name: str) -> list[str]:
    raw = top.raw(name)
    if raw is None:
        return []
    if not is_list(raw) or not 0 < len(raw) <= _MAX_NAMED or not all(isinstance(one, str) for one in raw):
        top.add(name, f"expected a list of 1 to {_MAX_NAMED} texts")
        return []
    return list(raw)


def _scope(top: Reader) -> dict[str, str]:
    raw = top.raw("scope")
    if raw is None:
        return {}
    if not isinstance(raw, Mapping) or not raw or not all(isinstance(one, str) and one for one in raw.values()):
        top.add("scope", "expected an object of names and texts")
        return {}
    if not all(SCOPE_NAME.fullmatch(str(name)) for name in raw):
        top.add("scope", f"no item has a scope of this name: expected one matching {SCOPE_NAME.pattern}")
        return {}
    return {str(name): str(value) for name, value in raw.items()}


def _body(row: ConsentRow) -> dict[str, Any]:
    return {
        "consent": row.consent_id,
        "data_classes": list(row.data_classes),
        "scoped": bool(row.scopes),
        "given_at": row.given_at.isoformat(),
        "until": None if row.until is None else row.until.isoformat(),
        "withdrawn_at": None if row.withdrawn_at is None else row.withdrawn_at.isoformat(),
        "ends_at": None if (end := ended_at(row)) is None else end.isoformat(),
    }


def _said(seals: Seals, row: ConsentRow) -> dict[str, Any]:
    opened = seals.open(row.subject_no, LABEL, row.consent_id, row.sealed)
    return {} if opened is None else dict(json.loads(opened))

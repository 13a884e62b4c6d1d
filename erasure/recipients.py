"""Who outside received the data of a request's copies, and what they were told of it. Source: GDPR Art. 19.

A recipient is a party that a registered store names: who runs a vendor's index, a partner's database. Each is told of
an erasure, a correction or a restriction, by the request's own date; a request that ends later tells at once. Whoever
cannot be told, or only with disproportionate effort, is noted as that. The person is told who they are when they ask.

Guarantees: the list follows from the plan's copies and the stores' registrations, removed stores included; what was
noted stays. All of it is somebody's word, and certificates print it as stated. Not here: sending, and recipients that
no store names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure.errors import InvalidRequest
from erasure.models import CopyRow, RequestRow
from erasure.plan import instant_text
from erasure.request import CopyState, Right
from registry.models import StoreRow

CONCERNED = (Right.ERASURE, Right.RECTIFICATION, Right.RESTRICTION, Right.OBJECTION)
"""The rights whose fulfilment recipients are told of. Source: GDPR Art. 16, 17(1), 18 and 21(1)."""
TOLD, REPLIED, NOT_TOLD = "recipient_told", "recipient_answered", "recipient_not_told"
ANSWERS: Mapping[str, tuple[str, ...]] = {
    TOLD: (),
    REPLIED: ("done", "nothing_held", "refused"),
    NOT_TOLD: ("impossible", "disproportionate"),
}
"""What is noted with each kind of notice. Source of the last: GDPR Art. 19, first sentence."""
TELL_BY = "tell_by"
_NOTED = "recipients"
_STAYS = (CopyState.RETAINED, CopyState.UNCHANGED, CopyState.WITHHELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """One recipient: in which stores it holds copies, and what was noted of it."""

    name: str
    country: str | None
    stores: tuple[str, ...]
    told_at: str | None = None
    answer: str | None = None
    answered_at: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether nobody told it, and nobody said why not."""
        return self.told_at is None and self.answer not in ANSWERS[NOT_TOLD]

    def as_json(self) -> dict[str, Any]:
        """As views show it."""
        return {
            "recipient": self.name, "country": self.country, "stores": list(self.stores), "told_at": self.told_at,
            "answer": self.answer, "answered_at": self.answered_at,
        }  # fmt: skip


def recipients_of(session: Session, row: RequestRow) -> list[Recipient]:
    """The recipients of what the request ends, corrects or restricts, by name; none for another right."""
    if row.right not in CONCERNED:
        return []
    query = sa.select(col(CopyRow.store)).where(
        col(CopyRow.tenant_id) == row.tenant_id,
        col(CopyRow.owner) == row.request_id,
        col(CopyRow.kind) == "artifact",
        col(CopyRow.state).not_in(_STAYS),
    )
    abouts = _abouts(session, row.tenant_id, sorted(session.scalars(query.distinct())))
    noted: Mapping[str, Mapping[str, Any]] = row.details.get(_NOTED, {})
    places: dict[str, list[str]] = {}
    for store, about in abouts.items():
        places.setdefault(str(about["recipient"]), []).append(store)
    countries = {str(about["recipient"]): about.get("country") for about in abouts.values()}
    return [
        Recipient(name=name, country=countries[name], stores=tuple(stores), **noted.get(name, {}))
        for name, stores in sorted(places.items())
    ]


def _abouts(session: Session, tenant_id: int, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """What each of these stores says of itself, in its newest version that names a recipient."""
    rows = session.exec(
        select(StoreRow)
        .where(StoreRow.tenant_id == tenant_id, col(StoreRow.name).in_(names))
        .order_by(col(StoreRow.name), col(StoreRow.version))
    )
    return {row.name: row.about for row in rows if row.about.get("recipient")}


def begin_to_tell(session: Session, row: RequestRow, now: datetime) -> None:
    """Set until when the recipients are to be told, where anybody is; called when the request ends."""
    details = {name: value for name, value in row.details.items() if name != TELL_BY}
    if any(one.is_open for one in recipients_of(session, row)):
        details[TELL_BY] = instant_text(max(row.extended_until or row.due_at, now))
    row.details = details
    session.add(row)


def note(
    session: Session, row: RequestRow, *, kind: str, recipient: str | None, answer: str | None, at: datetime
) -> tuple[str, ...]:
    """Keep that a recipient was told, what it answered, or why it is not told; returns the stores it holds.

    Raises: InvalidRequest for a recipient that no store of the request names, and for an answer that does not fit.
    """
    known = {one.name: one for one in recipients_of(session, row)}
    if recipient not in known:
        names = ", ".join(known) or "nobody"
        raise InvalidRequest("/recipient", f"the stores of this request name: {names}")
    if (answer or "") not in (ANSWERS[kind] or ("",)):
        raise InvalidRequest("/answer", f"expected {' or '.join(ANSWERS[kind]) or 'none'} with this kind")
    one = known[recipient]
    if kind == REPLIED and one.told_at is None:
        raise InvalidRequest("/kind", "this recipient is not noted as told yet")
    text = instant_text(at)
    noted = {"told_at": text} if kind == TOLD else {"answer": answer, "answered_at": text}
    before: Mapping[str, Mapping[str, Any]] = row.details.get(_NOTED, {})
    row.details = {**row.details, _NOTED: {**before, recipient: {**before.get(recipient, {}), **noted}}}
    if not any(one.is_open for one in recipients_of(session, row)):
        row.details = {name: value for name, value in row.details.items() if name != TELL_BY}
    session.add(row)
    return one.stores


def certificate_lines(session: Session, row: RequestRow) -> list[dict[str, Any]]:
    """A line for each store of a recipient, as certificates state it."""
    return [
        {
            "store": store, "recipient": one.name, "country": one.country, "told_at": one.told_at,
            "answer": one.answer, "answered_at": one.answered_at,
        }
        for one in recipients_of(session, row)
        for store in one.stores
    ]  # fmt: skip


def to_be_told(session: Session, tenant_id: int) -> list[tuple[str, datetime]]:
    """The requests that ended and whose recipients were not all told, each with its date."""
    by = col(RequestRow.details)[TELL_BY].as_string()
    rows = session.execute(
        sa.select(col(RequestRow.request_id), by).where(col(RequestRow.tenant_id) == tenant_id, by.is_not(None))
    )
    return [(request_id, datetime.fromisoformat(text)) for request_id, text in rows]

"""Consents of a database that came back older, from what the record says of them since.

Guarantees: a withdrawal that the record knows is in force again, from its instant; a consent whose row is lost is in
force again where its event says whose and of what it is. What had been worked out from consents is worked out anew by
the next pass. Not brought back: the words, and a consent that is limited to conversations, which are named in no event;
the caller is told. The caller commits.

The table is retention's, which stands above this package, so it is named and not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session

from vault import rows as vault_rows

CONSENTS, WALKS = "consent", "retention_walk"


def give_again(session: Session, table: sa.Table, tenant_id: int, body: Mapping[str, Any], of: int | None) -> str:
    """Put back a lost consent of the person `of`; what of it stays lost, nothing where it was never lost."""
    known = sa.select(table.c.consent_id).where(table.c.tenant_id == tenant_id, table.c.consent_id == body["consent"])
    if session.execute(known).first() is not None:
        return ""
    if of is None or body["scoped"] or "given_at" not in body:
        return "consents that must be recorded again"
    until = body.get("until")
    row = {
        "tenant_id": tenant_id,
        "consent_id": body["consent"],
        "subject_no": of,
        "data_classes": list(body["data_classes"]),
        "scopes": [],
        "given_at": datetime.fromisoformat(body["given_at"]),
        "until": None if until is None else datetime.fromisoformat(until),
        "withdrawn_at": None,
        "sealed": None,
        "recorded_at": datetime.fromisoformat(body["given_at"]),
    }
    vault_rows.insert_missing(session.connection(), table, [row])
    return "words of consents, which are in force"


def withdraw_again(session: Session, table: sa.Table, tenant_id: int, body: Mapping[str, Any], at: datetime) -> None:
    """End a consent as the record says; `at` is when it was told, for events that do not say from when."""
    said = body.get("withdrawn_at")
    ended = at if said is None else datetime.fromisoformat(said)
    session.execute(
        sa.update(table)
        .where(
            table.c.tenant_id == tenant_id,
            table.c.consent_id == body["consent"],
            table.c.withdrawn_at.is_(None),
        )
        .values(withdrawn_at=ended)
    )


def date_again(session: Session, walks: sa.Table, tenant_id: int) -> None:
    """Let the next pass work out again what ends by a consent: its walks over items and over keys begin anew."""
    what = walks.c.what
    session.execute(
        sa.delete(walks).where(walks.c.tenant_id == tenant_id, sa.or_(what == "new", what.like("months:%")))
    )

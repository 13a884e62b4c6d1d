"""Reads what the legal desk hands in: a request, strictly, before anything is stored.

Guarantees: pure; every refusal names the field and never repeats a value. Not decided here: who is known by these
names, and whether the request is a duplicate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from erasure.errors import InvalidRequest, NotBuilt
from erasure.request import Right
from registry.errors import MalformedSubject
from registry.identifiers import Identifier, parse_subject
from retention.calendar import REGULATIONS, Deadlines, deadlines

MAX_SUBJECTS = 100
MAX_TEXT = 10_000
CLOCK_SKEW = timedelta(minutes=5)
_FIELDS = frozenset(
    {
        "right", "subjects", "scope", "regulation", "jurisdiction", "timezone", "received_at", "channel",
        "corrections", "note",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """A well-formed request with its legal dates."""

    right: Right
    identifiers: tuple[Identifier, ...] = field(repr=False)
    regulation: str
    jurisdiction: str | None
    timezone: str
    received_at: datetime
    dates: Deadlines
    channel: str | None
    note: str | None = field(repr=False)
    corrections: Mapping[str, Any] | None = field(repr=False)


def parse(spec: Mapping[str, Any], now: datetime, *, timezone: str = "UTC", jurisdiction: str | None = None) -> Intake:
    """The request in these values; zone and jurisdiction are the controller's where it names none.

    Raises: InvalidRequest, NotBuilt, and what the calendar raises. Source: API §6.
    """
    for name in sorted(spec.keys() - _FIELDS):
        raise InvalidRequest(f"/{name}", "unknown field")
    right = _choice(spec, "right", tuple(Right))
    regulation = _choice(spec, "regulation", REGULATIONS)
    if spec.get("scope") is not None:
        # A limited erasure needs a limited fence: without it the person's next words would meet a destroyed key.
        raise NotBuilt("a request limited to a scope or to data classes")
    zone = _text(spec, "timezone") or timezone
    place = _text(spec, "jurisdiction") or jurisdiction
    received = _received_at(spec, now)
    corrections = spec.get("corrections")
    if corrections is not None and not isinstance(corrections, Mapping):
        raise InvalidRequest("/corrections", "expected an object")
    return Intake(
        right=Right(right),
        identifiers=_subjects(spec),
        regulation=regulation,
        jurisdiction=place,
        timezone=zone,
        received_at=received,
        dates=deadlines(regulation, received, timezone=zone, jurisdiction=place),
        channel=_text(spec, "channel"),
        note=_text(spec, "note"),
        corrections=corrections,
    )


def _choice(spec: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = spec.get(name)
    if not isinstance(value, str) or value not in allowed:
        raise InvalidRequest(f"/{name}", f"expected one of {', '.join(allowed)}")
    return value


def _text(spec: Mapping[str, Any], name: str) -> str | None:
    value = spec.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise InvalidRequest(f"/{name}", f"expected a text of 1 to {MAX_TEXT} characters")
    return value


def _received_at(spec: Mapping[str, Any], now: datetime) -> datetime:
    value = spec.get("received_at")
    if value is None:
        return now
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            raise InvalidRequest("/received_at", "expected an RFC 3339 time with a zone") from error
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidRequest("/received_at", "expected an RFC 3339 time with a zone")
    if value > now + CLOCK_SKEW:
        raise InvalidRequest("/received_at", "lies in the future")
    return value.astimezone(UTC)


def _subjects(spec: Mapping[str, Any]) -> tuple[Identifier, ...]:
    texts = spec.get("subjects")
    if not isinstance(texts, list | tuple) or not 1 <= len(texts) <= MAX_SUBJECTS:
        raise InvalidRequest("/subjects", f"expected 1 to {MAX_SUBJECTS} subjects")
    found: dict[str, Identifier] = {}
    for number, text in enumerate(texts):
        try:
            one = parse_subject(text)
        except MalformedSubject as error:
            raise InvalidRequest(f"/subjects/{number}", error.detail) from error
        found.setdefault(one.text, one)
    return tuple(found.values())

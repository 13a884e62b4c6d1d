"""Reads what the legal desk hands in: a request, strictly, before anything is stored.

Guarantees: pure; every refusal names the field and never repeats a value. Not decided here: who is known by these
names, and whether the request is a duplicate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from erasure.errors import InvalidRequest
from erasure.request import Right
from registry.errors import MalformedSubject
from registry.identifiers import Identifier, parse_subject
from retention.calendar import REGULATIONS, Deadlines, deadlines

MAX_SUBJECTS = 100
MAX_TEXT = 10_000
MAX_NAME = 512
MAX_CORRECTIONS = 100
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
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
    corrections: Mapping[str, Mapping[str, Any]] = field(repr=False)
    """Field → `to`, and `from` where the person said what is wrong."""
    conversation: str | None = field(repr=False)
    data_classes: tuple[str, ...] | None


def parse(spec: Mapping[str, Any], now: datetime, *, timezone: str = "UTC", jurisdiction: str | None = None) -> Intake:
    """The request in these values; zone and jurisdiction are the controller's where it names none.

    Raises: InvalidRequest, and what the calendar raises. Source: API §6.
    """
    for name in sorted(spec.keys() - _FIELDS):
        raise InvalidRequest(f"/{name}", "unknown field")
    right = _choice(spec, "right", tuple(Right))
    regulation = _choice(spec, "regulation", REGULATIONS)
    conversation, data_classes = _scope(spec.get("scope"))
    zone = _text(spec, "timezone") or timezone
    place = _text(spec, "jurisdiction") or jurisdiction
    received = _received_at(spec, now)
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
        corrections=_corrections(spec.get("corrections"), right),
        conversation=conversation,
        data_classes=data_classes,
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


def _scope(value: object) -> tuple[str | None, tuple[str, ...] | None]:
    """The conversation or the data classes that a request is limited to. Source: API §6."""
    if value is None:
        return None, None
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in ("conversation", "data_classes"):
        raise InvalidRequest("/scope", "expected either a conversation or data_classes")
    if "conversation" in value:
        name = value["conversation"]
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise InvalidRequest("/scope/conversation", f"expected a name of 1 to {MAX_NAME} characters")
        return name, None
    names = value["data_classes"]
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidRequest("/scope/data_classes", "expected a list of names of data classes")
    return None, tuple(sorted(set(names)))


def _corrections(value: object, right: str) -> dict[str, dict[str, Any]]:
    """What is to be corrected: `field: new value`, or `field: {"from": …, "to": …}`."""
    if value is None:
        if right == Right.RECTIFICATION:
            raise InvalidRequest("/corrections", "a rectification says which field is to read what")
        return {}
    if not isinstance(value, Mapping) or not 1 <= len(value) <= MAX_CORRECTIONS:
        raise InvalidRequest("/corrections", f"expected an object of 1 to {MAX_CORRECTIONS} fields")
    found: dict[str, dict[str, Any]] = {}
    for name, wanted in value.items():
        if not isinstance(name, str) or not _FIELD.fullmatch(name):
            raise InvalidRequest("/corrections", f"expected names of fields matching {_FIELD.pattern}")
        change = dict(wanted) if isinstance(wanted, Mapping) else {"to": wanted}
        if not {"to"} <= change.keys() <= {"from", "to"} or not all(_is_plain(one) for one in change.values()):
            raise InvalidRequest("/corrections", 'expected a plain value, or {"from": …, "to": …}, for each field')
        found[name] = change
    return found


def _is_plain(value: object) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= MAX_TEXT) or isinstance(value, bool | int | float)


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

"""What every recogniser is given: the time, the limits, whom to look for, and where to hand what can be registered.

Guarantees: which field of a row or a document names its owner is decided here, once, for every kind of store. Times in
any usual form are read here; a value that is no time is unknown, never a guess. Pure but for the deadline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from connectors.base import owner_forms
from connectors.scanning.report import Ages, Place

if TYPE_CHECKING:
    from connectors.base import Deadline

OWNERS = (
    "user_id", "userid", "user", "end_user_id", "enduser_id", "enduser.id", "user.id", "subject_id",
    "langgraph_auth_user_id",
    "customer_id", "customer", "owner_id", "owner", "account_id", "member_id", "person_id", "patient_id",
    "applicant_id", "contact_id", "user_email", "email", "email_address", "phone",
)  # fmt: skip
"""Names of fields that say whose something is, most telling first. Not `subject`, which mails and tickets have too."""
THREADS = ("thread_id", "conversation_id", "session_id", "conversation", "chat_id", "session", "stream")
TIMES = (
    "created_at", "inserted_at", "created", "timestamp", "time", "ts", "start_time", "updated_at", "date", "at",
)  # fmt: skip
SHORTEST = 4
"""Characters below which a name is found in texts that have nothing to do with it."""
_TYPED = re.compile(r"[a-z][a-z0-9_]{0,62}:.+", re.DOTALL)
_MAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_ISO = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2})?)(?:[.,]\d+)?)?\s*(Z|UTC|[+-]\d{2}:?\d{2})?")
_DAY = 86_400
_EARLIEST, _LATEST = 631_152_000, 4_102_444_800
"""1990 and 2100 in seconds: numbers outside are no times of today's agents."""
_LONGEST = 512
_GREGORIAN = 0x01B21DD213814000
"""100 ns steps between 1582-10-15 and 1970-01-01. Source: RFC 9562 §5.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One item that can be registered: where it lies and whose it is."""

    locator: Mapping[str, Any] = field(repr=False)
    owners: tuple[tuple[str, str], ...] = field(repr=False)
    """(name of the field, value)."""
    at: datetime | None = None


Sink = Callable[[Place, Found], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How to look."""

    now: datetime
    limit: Deadline
    owner_field: str | None = None
    """The one field that names owners, where the caller knows it."""
    subject: str | None = field(default=None, repr=False)
    """The person to try an erasure for, as `type:value` or as the store writes it."""
    sink: Sink | None = None

    def ages(self) -> Ages:
        """Return an empty histogram before now."""
        return Ages(self.now)

    def owner_names(self) -> tuple[str, ...]:
        """Return the fields that may name an owner, in order."""
        return (self.owner_field,) if self.owner_field is not None else OWNERS

    def owner_in(self, fields: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return (field, value) of the owner a document names, None where it names nobody."""
        for name in self.owner_names():
            value = fields.get(name)
            if value is not None and (shown := name_of(value)) is not None:
                return name, shown
        return None

    def owners_in(self, fields: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """Return (field, value as it stands) of everybody a document names: several where the field holds a list."""
        for name in self.owner_names():
            value = fields.get(name)
            named = value if isinstance(value, list | tuple) else (value,)
            if found := tuple((name, each) for each in named if each is not None and name_of(each) is not None):
                return found
        return ()

    def owner_column(self, columns: Mapping[str, str]) -> str | None:
        """Return the column that names owners, among lower-case → real names."""
        return next((columns[name.lower()] for name in self.owner_names() if name.lower() in columns), None)

    def is_subject(self, value: str) -> bool:
        """Tell whether an owner's value is the person asked for."""
        return self.subject is not None and value in self.forms()

    def forms(self) -> frozenset[str]:
        """Return how a store may write the person asked for: whole and bare."""
        return frozenset() if self.subject is None else owner_forms([self.subject])

    def bare(self) -> str:
        """Return the bare value of the person asked for; empty where nobody is."""
        whole = self.subject or ""
        return whole.split(":", 1)[1] if _TYPED.fullmatch(whole) else whole

    def text(self) -> str | None:
        """Return what to look for in texts: the bare value, None for nobody and for what is in everybody's texts."""
        bare = self.bare()
        return bare if len(bare) >= SHORTEST else None


def name_of(value: object) -> str | None:
    """Return an owner's value as text, None for what names nobody: empty, a flag, a structure, a page of text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, bytes):
        value = value.decode(errors="surrogateescape")
    if isinstance(value, str):
        return value if 0 < len(value) <= _LONGEST and value.strip() else None
    return str(value) if isinstance(value, int) else None


def subject_of(owner: tuple[str, str], default_type: str) -> str:
    """Return an owner as `type:value`."""
    name, value = owner
    if _TYPED.fullmatch(value) and not value.startswith(("http:", "https:")):
        return value
    if "mail" in name.lower() or _MAIL.fullmatch(value):
        return f"email:{value}"
    return f"phone:{value}" if name.lower() == "phone" else f"{default_type}:{value}"


def time_of(value: object) -> datetime | None:
    """Return a time from ISO text or from seconds, milliseconds or microseconds since 1970, None for anything else."""
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _epoch(float(value))
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if not isinstance(value, str):
        return None
    found = _ISO.match(value[:40])
    if found is None:
        return _epoch(float(value)) if value[:20].replace(".", "", 1).isdigit() and len(value) < len("9" * 20) else None
    day, clock, zone = found.groups()
    return _parsed(day, clock or "00:00:00", zone or "Z")


def _parsed(day: str, clock: str, zone: str) -> datetime | None:
    zone = "+00:00" if zone in {"Z", "UTC"} else zone
    try:
        at = datetime.fromisoformat(f"{day}T{clock if clock.count(':') > 1 else clock + ':00'}{zone}")
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _epoch(number: float) -> datetime | None:
    unit = unit_of(number, number)
    return None if unit is None else datetime.fromtimestamp(number / unit, UTC)


def unit_of(least: float, most: float) -> float | None:
    """Return how many of these numbers a second has, None where they are no times since 1970 of one unit."""
    return next((unit for unit in (1.0, 1e3, 1e6, 1e9) if _EARLIEST <= least / unit <= most / unit <= _LATEST), None)


def time_of_uuid(text: object) -> datetime | None:
    """Return when a UUID of version 1, 6 or 7 was made, None for any other text. Source: RFC 9562 §5.1, §5.6, §5.7."""
    plain = text.replace("-", "") if isinstance(text, str) else ""
    try:
        number = int(plain, 16) if len(plain) == 32 else -1  # noqa: PLR2004 -- digits of a UUID
    except ValueError:
        return None
    if number < 0:
        return None
    version = number >> 76 & 0xF
    if version == 7:  # noqa: PLR2004 -- the version's number
        return _epoch((number >> 80) / 1000)
    if version == 6:  # noqa: PLR2004 -- as above
        ticks = (number >> 80) << 12 | number >> 64 & 0xFFF
    elif version == 1:
        ticks = (number >> 64 & 0xFFF) << 48 | (number >> 80 & 0xFFFF) << 32 | number >> 96
    else:
        return None
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=(ticks - _GREGORIAN) // 10)
    except OverflowError:
        return None
    return at if _EARLIEST <= at.timestamp() <= _LATEST else None


def day_of(number: int) -> datetime | None:
    """Return the day that lies so many days after 1970, None outside of what can be."""
    return _epoch(float(number * _DAY))

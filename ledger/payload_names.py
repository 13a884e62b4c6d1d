"""What the name of a payload object says: `payload/<lock month>/<uuid7>`, or `payload/none/<uuid7>` without a lock.

Guarantees: pure. An object of any other name was not written by this program, and is never deleted by it.

    >>> lock_end_of("payload/2041-12/x").isoformat()
    '2042-01-01T00:00:00+00:00'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from ledger.entry import Header

PREFIX = "payload/"
NO_LOCK = "none"
_MONTHS_A_YEAR = 12
_NAME = re.compile(
    r"payload/(?:none|[0-9]{4}-(?:0[1-9]|1[0-2]))/"
    r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
)


def is_ours(name: str) -> bool:
    """Whether a name below the log's prefix is one that this program gives to a payload object."""
    return _NAME.fullmatch(name) is not None


def lock_end_of(name: str) -> datetime | None:
    """The end of the month that an object's name says it is locked for; None for an unlocked one."""
    month = name.removeprefix(PREFIX).partition("/")[0]
    if month == NO_LOCK:
        return None
    year, number = int(month[:4]), int(month[5:])
    return datetime(year + number // _MONTHS_A_YEAR, number % _MONTHS_A_YEAR + 1, 1, tzinfo=UTC)


def rows_of(tenant_id: int, first: int, headers: Sequence[Header]) -> list[dict[str, object]]:
    """The rows of the objects that a batch's headers name, for the index."""
    # An object of any other name was not written by this program: it is never deleted by it.
    names = filter(is_ours, {part.object for header in headers for part in header.parts})
    return [
        {"tenant_id": tenant_id, "name": name, "batch_first": first, "until": lock_end_of(name)}
        for name in sorted(names)
    ]

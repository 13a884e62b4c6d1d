"""A note in the unlocked store: this database was behind its record, and from which entry on.

Guarantees: it is there before the first missing batch is indexed, and names the lowest size at which the database was
met since it was last removed. Indexing alone makes the two look equal, while what the batches decided (a fence, a
destroyed key, a revoked token) was not applied: whoever applies it begins at the note and removes it at the end.
Does not say what was decided (see `erasure.recover`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from ledger.errors import ObjectMissing
from ledger.objects import HotStore

NAME = "recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """How many entries the database knew, and until when it was written where that is known."""

    size: int
    since: datetime | None = None


def noted(hot: HotStore, log_id: str) -> Behind | None:
    """Return the note of a log, if there is one. Raises what the store raises."""
    try:
        found = json.loads(hot.get(f"{log_id}/{NAME}"))
    except ObjectMissing:
        return None
    since = found.get("since")
    return Behind(size=int(found["size"]), since=None if since is None else datetime.fromisoformat(since))


def note(hot: HotStore, log_id: str, behind: Behind) -> bool:
    """Write the note unless there is one that begins no later; returns whether it was written."""
    known = noted(hot, log_id)
    if known is not None and known.size <= behind.size:
        return False
    since = None if behind.since is None else behind.since.isoformat()
    hot.replace(f"{log_id}/{NAME}", json.dumps({"size": behind.size, "since": since}).encode())
    return True


def settle(hot: HotStore, log_id: str) -> None:
    """Remove the note: what the record decided has taken effect."""
    hot.delete(f"{log_id}/{NAME}")

"""What stores gave back after an erasure or a pass of retention: bytes by store, and a warning where there were none.

Guarantees: every store of which copies are gone is named; a number is what its connector measured of the store's own
files, and None where nobody measured. Rows that are gone and files that stay as large are told apart: the bytes lie in
dead rows and free pages until the store is rewritten. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from erasure.models import CopyRow
from erasure.request import GONE

NOT_ASKED = (
    "nothing was rewritten: the class asks for no more than the store's own delete, and its files keep the bytes"
)
NOTHING_FREED = "the store was rewritten and its files did not shrink: look at what holds them"


def freed_of(copies: Iterable[CopyRow], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return for each store how many copies are gone, the bytes that its files shrank by, and a warning where 0."""
    gone = Counter(copy.store for copy in copies if copy.kind == "artifact" and copy.state in GONE)
    reports: Mapping[str, Mapping[str, Any]] = facts.get("reclaim", {})
    found = []
    for store, count in sorted(gone.items()):
        report = reports.get(store)
        freed = 0 if report is None else report.get("freed_bytes")
        line: dict[str, Any] = {"store": store, "copies": count, "freed_bytes": freed}
        if freed == 0:
            line["warning"] = NOT_ASKED if report is None else NOTHING_FREED
        found.append(line)
    return found

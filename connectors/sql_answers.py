"""What is said of a row: receipts and findings, and what of its values can be written down or looked for.

Guarantees: no answer holds a value or a key; a level is never above what its arguments showed.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from connectors.base import Finding, Item, Level, Outcome, Receipt
from connectors.errors import BadLocator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

Answer = tuple[Outcome, str]
ERASED: Answer = (Outcome.ERASED, "deleted by key and read again")
ABSENT: Answer = (Outcome.ALREADY_ABSENT, "read by key")
ANOTHERS: Answer = (Outcome.OWNER_MISMATCH, "the row names another owner, or none")
KEPT: Answer = (Outcome.FAILED, "still there after the delete: a trigger or rule keeps the row")


def receipt_of(item: Item, answer: Answer, at: datetime) -> Receipt:
    """Return the receipt of a row that was read by its key."""
    outcome, detail = answer
    reached = Level.L1 if outcome in {Outcome.ERASED, Outcome.ALREADY_ABSENT} else None
    return Receipt(
        copy_id=item.copy_id, outcome=outcome, level=reached, method="DELETE by unique key", detail=detail, at=at
    )


def finding_by_key(item: Item, *, is_present: bool, is_hidden: bool) -> Finding:
    """Return what a read by key showed."""
    how = "read by unique key on a connection that cannot write"
    if is_present:
        return Finding(copy_id=item.copy_id, level=None, present=True, how=how)
    if is_hidden:
        why = "row security hides rows from this role"
        return Finding(copy_id=item.copy_id, level=None, present=None, how=how, could_not_check=why)
    return Finding(copy_id=item.copy_id, level=Level.L1, present=False, how=how)


def finding_in_files(item: Item, level: Level, how: str, could_not_check: str | None, *, is_dirty: bool) -> Finding:
    """Return what a look at the files showed of a row that is absent by key."""
    how = f"read by unique key; {how}"
    if is_dirty:
        return Finding(copy_id=item.copy_id, level=Level.L1, present=True, how=how)
    if could_not_check is not None:
        return Finding(copy_id=item.copy_id, level=Level.L1, present=None, how=how, could_not_check=could_not_check)
    if level is Level.L3:
        why = "logs, replicas and backups cannot be read here"
        return Finding(copy_id=item.copy_id, level=Level.L2, present=None, how=how, could_not_check=why)
    return Finding(copy_id=item.copy_id, level=Level.L2, present=False, how=how)


def texts_of(value: object) -> Iterator[bytes]:
    """Yield the texts and byte strings of a column's value, also from inside a JSON document."""
    if isinstance(value, str):
        yield value.encode(errors="surrogateescape")
    elif isinstance(value, bytes | memoryview):
        yield bytes(value)
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_of(each)


def json_value(value: object) -> object:
    """Return what JSON can hold of a driver's value."""
    if isinstance(value, bytes | memoryview):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    return str(value)


def plain_key(value: object) -> str | int:
    """Return a key value as a locator holds it. Raises: BadLocator."""
    if isinstance(value, str | int):
        return value
    if isinstance(value, bytes | memoryview | float) or value is None:
        raise BadLocator("a row of the owner has a key that no locator can hold")
    return str(value)

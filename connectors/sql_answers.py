"""What is said of a row: receipts and findings, and what of its values can be written down or looked for.

Guarantees: no answer holds a value or a key; a level is never above what its arguments showed.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from connectors.base import Finding, Item, Level, Outcome, Receipt
from connectors.errors import BadLocator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

Answer = tuple[Outcome, str]
ERASED: Answer = (Outcome.ERASED, "deleted by key and read again")
ABSENT: Answer = (Outcome.ALREADY_ABSENT, "read by key")
ANOTHERS: Answer = (Outcome.OWNER_MISMATCH, "the row names another owner, or none")
KEPT: Answer = (Outcome.FAILED, "still there after the delete: a trigger or rule keeps the row")


def receipts_of(items: Sequence[Item], answers: Sequence[Answer], at: datetime) -> list[Receipt]:
    """Return the receipts of rows that were read by their keys, in order."""
    method, reached, erased, absent = "DELETE by unique key", Level.L1, Outcome.ERASED, Outcome.ALREADY_ABSENT
    return [
        Receipt(
            copy_id=item.copy_id,
            outcome=outcome,
            level=reached if outcome is erased or outcome is absent else None,
            method=method,
            detail=detail,
            at=at,
        )
        for item, (outcome, detail) in zip(items, answers, strict=True)
    ]


def findings_by_key(items: Sequence[Item], present: AbstractSet[int], *, is_hidden: bool) -> list[Finding]:
    """Return what a read by key showed of rows, in order; `present` are the positions of those that are there."""
    how, reached = "read by unique key on a connection that cannot write", Level.L1
    if not present and not is_hidden:
        return [Finding(copy_id=item.copy_id, level=reached, present=False, how=how) for item in items]
    why = "row security hides rows from this role" if is_hidden else None
    return [
        Finding(copy_id=item.copy_id, level=None, present=True, how=how)
        if place in present
        else Finding(
            copy_id=item.copy_id,
            level=None if is_hidden else reached,
            present=None if is_hidden else False,
            how=how,
            could_not_check=why,
        )
        for place, item in enumerate(items)
    ]


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

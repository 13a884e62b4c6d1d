"""Whether the database's index says of each entry what the record says of it.

Guarantees: reads only. The record is the truth: each row is compared with the header in its batch and with the line
that the unlocked store keeps for a rebuild, so a row or a line that was changed is named by its entry, and one that is
gone as missing. Rows of entries that came while it reads are left out. Does not judge the record: `audit` does, and a
batch that it named is skipped here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col

from audit.findings import MAX_FINDINGS, Findings, Report, Verdict, worst
from audit.reader import Reader
from ledger.batches import PREFIX, decode_batch
from ledger.errors import LedgerError, MalformedBatch, ObjectMissing
from ledger.head import index_key
from ledger.index import IndexLine, decode_lines
from ledger.models import EntryRow, PartRef

Sessions = Callable[[int], AbstractContextManager[Session]]
_ADVICE = "the record stands; muniment rebuild makes the index anew"
_COLUMNS = (
    "idx", "entry_id", "batch_first", "stream_no", "position", "kind", "data_class", "class_version", "run_no",
    "set_id", "at", "received", "digest", "noncanonical",
)  # fmt: skip


class _Header(msgspec.Struct, frozen=True, rename={"data_class": "class"}):
    """What the index repeats of a header."""

    id: str
    kind: str
    data_class: str
    at: str
    received: str
    position: int


_HEADER = msgspec.json.Decoder(_Header)


def check_index(
    report: Report, *, sessions: Sessions, tenant_id: int, size: int, bucket: Reader, hot: Reader
) -> Report:  # fmt: skip
    """Returns the report with what is wrong about the index of the first `size` entries."""
    found = Findings()
    prefix = f"{report.log_id}/"
    named = {finding.object for finding in report.findings}
    for key in bucket.list(prefix + PREFIX):
        if key in named:
            continue
        try:
            data = bucket.get(key)
            batch = decode_batch(data)
            headers = [_HEADER.decode(raw) for raw in batch.headers]
        except (LedgerError, MalformedBatch, msgspec.MsgspecError):
            continue
        if batch.end > size:
            break
        lines = _lines(hot, prefix + index_key(batch.first, sha256(data).digest()), headers, batch.first, found)
        with sessions(tenant_id) as session:
            rows = _rows(session, tenant_id, batch.first, batch.end, found)
            refs = _refs(session, tenant_id, batch.first, batch.end)
        for number, header in enumerate(headers):
            idx = batch.first + number
            line = None if lines is None else lines[number]
            row = rows.get(idx)
            if row is None:
                detail = f"no index row names this entry; {_ADVICE}"
                found.add(Verdict.MISSING, detail, object="entry", entry=header.id, index=idx)
            elif row:
                wrong = _wrong(row, refs.get(idx, ()), header, line, batch.first)
                if wrong:
                    detail = f"the index says another {', '.join(wrong)} than the record; {_ADVICE}"
                    found.add(Verdict.ALTERED, detail, object="entry", entry=header.id, index=idx)
    return _joined(report, found)


def _lines(
    hot: Reader, key: str, headers: Sequence[_Header], first: int, found: Findings
) -> Sequence[IndexLine] | None:  # fmt: skip
    """The lines of one batch; None, and a finding, where they cannot be believed."""
    try:
        lines = decode_lines(hot.get(key))
    except ObjectMissing:
        # The name carries the digest of the batch: lines under another one were written for other bytes of it.
        if next(iter(hot.list(key.rpartition("-")[0] + "-")), None) is None:
            found.add(Verdict.MISSING, "what a rebuild needs of this batch is not there", object=key, index=first)
        else:
            detail = "what a rebuild needs of this batch was written for other bytes of it"
            found.add(Verdict.ALTERED, detail, object=key, index=first)
        return None
    except LedgerError as error:
        found.add(Verdict.UNREADABLE, str(error), object=key, index=first)
        return None
    except msgspec.MsgspecError:
        found.add(Verdict.ALTERED, "not what was written: a rebuild cannot use it", object=key, index=first)
        return None
    if [line.entry_id for line in lines] != [header.id for header in headers]:
        found.add(Verdict.ALTERED, "its lines are not those of the batch", object=key, index=first)
        return None
    return lines


def _rows(session: Session, tenant_id: int, first: int, end: int, found: Findings) -> dict[int, Mapping[str, Any]]:
    query = sa.select(*(getattr(EntryRow, name) for name in _COLUMNS)).where(
        col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx) >= first, col(EntryRow.idx) < end
    )
    try:
        return {int(row["idx"]): dict(row) for row in session.execute(query).mappings()}
    except (ValueError, TypeError):
        # One row holds what is none of its type: find out which one.
        return dict(_one_by_one(session, query, first, end, found))


def _one_by_one(
    session: Session, query: sa.Select[Any], first: int, end: int, found: Findings
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for idx in range(first, end):
        try:
            for row in session.execute(query.where(col(EntryRow.idx) == idx)).mappings():
                yield idx, dict(row)
        except (ValueError, TypeError):
            found.add(
                Verdict.ALTERED, f"a column of the index row is not of its type; {_ADVICE}", object="entry", index=idx
            )
            yield idx, {}


def _refs(session: Session, tenant_id: int, first: int, end: int) -> dict[int, list[tuple[int, str]]]:
    query = sa.select(col(PartRef.idx), col(PartRef.part), col(PartRef.key_id)).where(
        col(PartRef.tenant_id) == tenant_id, col(PartRef.idx) >= first, col(PartRef.idx) < end
    )
    made: dict[int, list[tuple[int, str]]] = {}
    for idx, part, key_id in session.execute(query):
        made.setdefault(idx, []).append((part, key_id))
    return made


def _wrong(
    row: Mapping[str, Any], refs: Sequence[tuple[int, str]], header: _Header, line: IndexLine | None, first: int
) -> list[str]:
    """The columns of a row that do not say what the record says."""
    expected: dict[str, Any] = {
        "entry_id": UUID(header.id).bytes,
        "batch_first": first,
        "position": header.position,
        "kind": header.kind,
        "data_class": header.data_class,
        "at": datetime.fromisoformat(header.at),
        "received": datetime.fromisoformat(header.received),
    }
    if line is not None:
        expected |= {
            "stream_no": line.stream_no,
            "run_no": line.run_no,
            "set_id": line.set_id,
            "class_version": line.class_version,
            "digest": line.digest,
            "noncanonical": line.noncanonical,
        }
    wrong = [name for name, value in expected.items() if not _same(row[name], value)]
    if line is not None and sorted(refs) != sorted(
        (number, key_id) for number, ids in enumerate(line.key_ids) for key_id in ids
    ):
        wrong.append("keys of its parts")
    return wrong


def _same(stored: object, expected: object) -> bool:
    return bool(stored == expected) and isinstance(stored, bytes) == isinstance(expected, bytes)


def _joined(report: Report, found: Findings) -> Report:
    if not found.counts:
        return report
    findings = (*report.findings, *found.sorted())
    return replace(
        report,
        verdict=worst((report.verdict, found.verdict)),
        findings=findings[:MAX_FINDINGS],
        more_findings=report.more_findings + found.left_out + max(0, len(findings) - MAX_FINDINGS),
    )

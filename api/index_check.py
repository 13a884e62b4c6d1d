"""Whether the database's index says of each entry what the record says of it.

Guarantees: reads only. The record is the truth: each row is compared with the header in its batch and with the line
that the unlocked store keeps for a rebuild, so a row or a line that was changed is named by its entry, and one that is
gone as missing. Rows of entries that came while it reads are left out. The tables beside it are `api.tables_check`'s.
Does not judge the record: `audit` does, and a batch that it named is skipped here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from api.tables_check import SeenHeader, TablesCheck
from audit.findings import Findings, Report, Verdict, with_findings
from audit.reader import Reader
from ledger.batches import PREFIX, decode_batch
from ledger.errors import LedgerError, MalformedBatch, ObjectMissing, RecordDamaged
from ledger.head import index_key
from ledger.index import IndexLine, decode_lines, pack_refs, unpack_places
from ledger.models import microseconds

Sessions = Callable[[int], AbstractContextManager[Session]]
_ADVICE = "the record stands; muniment rebuild makes the index anew"
# The first ones repeat the header, the others come from the line.
_OF_HEADER = ("idx", "entry_id", "batch_first", "position", "kind", "data_class", "at", "received")
_OF_LINE = ("stream_no", "run_no", "set_id", "class_version", "digest", "noncanonical")
_COLUMNS = (*_OF_HEADER, *_OF_LINE)
# As they are stored, without any conversion: what is not of a column's type differs like any other value.
_ROWS = sa.text(f"SELECT {', '.join(_COLUMNS)} FROM entry WHERE tenant_id = :t AND idx >= :first AND idx < :end")  # noqa: S608 (names of ours)
_REFS = sa.text(
    "SELECT start, key_id, part, places FROM part_places WHERE tenant_id = :t AND start >= :first AND start < :end"
)
_OUTSIDE = sa.text(
    "SELECT DISTINCT p.start FROM part_places p LEFT JOIN entry e ON e.tenant_id = p.tenant_id AND e.idx = p.start "
    "WHERE p.tenant_id = :t AND (p.start < 0 OR p.start >= :size) AND e.idx IS NULL ORDER BY p.start"
)
"""Of entries that came meanwhile there are both rows."""


_HEADER = msgspec.json.Decoder(SeenHeader)


def check_index(
    report: Report, *, sessions: Sessions, tenant_id: int, size: int, bucket: Reader, hot: Reader
) -> Report:  # fmt: skip
    """Returns the report with what is wrong about the index of the first `size` entries."""
    found = Findings()
    prefix = f"{report.log_id}/"
    named = {finding.object for finding in report.findings}
    tables = TablesCheck(tenant_id=tenant_id, log_id=report.log_id, bucket=bucket, found=found)
    for key in bucket.list(prefix + PREFIX):
        if key in named:
            tables.passed_over()
            continue
        try:
            data = bucket.get(key)
            batch = decode_batch(data)
            headers = [_HEADER.decode(raw) for raw in batch.headers]
        except (LedgerError, MalformedBatch, msgspec.MsgspecError):
            tables.passed_over()
            continue
        if batch.end > size:
            break
        lines = _lines(hot, prefix + index_key(batch.first, sha256(data).digest()), headers, batch.first, found)
        span = {"t": tenant_id, "first": batch.first, "end": batch.end}
        with sessions(tenant_id) as session:
            rows = {row[0]: row for row in map(tuple, session.connection().execute(_ROWS, span).all())}
            refs = list(map(tuple, session.connection().execute(_REFS, span).all()))
            tables.batch(session, batch, headers, lines)
        astray = set() if lines is None else _astray(refs, lines, batch.first)
        for want, header in zip(_expected(headers, lines, batch.first), headers, strict=True):
            _compare(want, rows.get(want[0]), header.id, want[0] in astray, found)
    with sessions(tenant_id) as session:
        for start in session.scalars(_OUTSIDE, {"t": tenant_id, "size": size}):
            detail = f"the index names keys of parts where the record has no entry; {_ADVICE}"
            found.add(Verdict.ALTERED, detail, object="part_places", index=start if isinstance(start, int) else None)
        tables.end(session)
    return with_findings(report, found)


def _lines(
    hot: Reader, key: str, headers: Sequence[SeenHeader], first: int, found: Findings
) -> Sequence[IndexLine] | None:  # fmt: skip
    """The lines of one batch; None, and a finding, where they cannot be believed."""
    try:
        return decode_lines(hot.get(key), [header.id for header in headers])
    except ObjectMissing:
        # The name carries the digest of the batch: lines under another one were written for other bytes of it.
        if next(iter(hot.list(key.rpartition("-")[0] + "-")), None) is None:
            found.add(Verdict.MISSING, "what a rebuild needs of this batch is not there", object=key, index=first)
        else:
            detail = "what a rebuild needs of this batch was written for other bytes of it"
            found.add(Verdict.ALTERED, detail, object=key, index=first)
    except LedgerError as error:
        found.add(Verdict.UNREADABLE, str(error), object=key, index=first)
    except msgspec.MsgspecError:
        found.add(Verdict.ALTERED, "not what was written: a rebuild cannot use it", object=key, index=first)
    return None


def _expected(
    headers: Sequence[SeenHeader], lines: Sequence[IndexLine] | None, first: int
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """Yield what each row should hold, without the columns of the line where there is none."""
    for number, header in enumerate(headers):
        whole: tuple[Any, ...] = (
            first + number,
            bytes.fromhex(header.id.replace("-", "")),
            first,
            header.position,
            header.kind,
            header.data_class,
            microseconds(datetime.fromisoformat(header.at)),
            microseconds(datetime.fromisoformat(header.received)),
        )
        if lines is not None:
            line = lines[number]
            whole += (line.stream_no, line.run_no, line.set_id, line.class_version, line.digest, line.noncanonical)
        yield whole


def _astray(refs: Sequence[tuple[Any, ...]], lines: Sequence[IndexLine], first: int) -> set[int]:
    """The entries whose parts stand under other keys than their lines say, or in another spelling than we write.

    What a row says of no entry of this batch, or in no way that can be read, is put down to the entry it begins with.
    """
    end = first + len(lines)
    said: dict[tuple[int, str, int], list[int]] = {}
    unread: set[int] = set()
    for start, key_id, part, places in set(refs) ^ set(pack_refs(first, lines)):
        begins = int(start)  # whatever stands there is in this batch
        read = read_places(places)
        if not read:
            unread.add(begins)
        for place in read:
            said.setdefault((begins + place, key_id, part), []).append(begins)
    # What both sides say is right, unless they say all of it in two spellings.
    wrong = {where: starts for where, starts in said.items() if len(starts) == 1} or said
    return unread | {idx if first <= idx < end else starts[0] for (idx, _, _), starts in wrong.items()}


def read_places(places: object) -> list[int]:
    """What a row of `PartPlaces` says, if it says anything: a damaged one is named by `check_index`, not here."""
    try:
        return unpack_places(places) if isinstance(places, str) else []
    except RecordDamaged:
        return []


def _compare(
    want: tuple[Any, ...], row: tuple[Any, ...] | None, entry_id: str, keys_astray: bool, found: Findings  # noqa: FBT001
) -> None:  # fmt: skip
    if row is None:
        detail = f"no index row names this entry; {_ADVICE}"
        found.add(Verdict.MISSING, detail, object="entry", entry=entry_id, index=want[0])
        return
    here = row[: len(want)]
    if here == want and not keys_astray:
        return
    wrong = [name for name, value, expected in zip(_COLUMNS, here, want, strict=False) if value != expected]
    told = ", ".join([*wrong, *(["keys of its parts"] if keys_astray else [])])
    detail = f"the index says another {told} than the record; {_ADVICE}"
    found.add(Verdict.ALTERED, detail, object="entry", entry=entry_id, index=want[0])

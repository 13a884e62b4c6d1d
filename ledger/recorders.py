"""What the index knows of recorders: which numbers of each are in the log, and where its heartbeats stand.

A recorder counts over all its streams, so a hole inside one stream is a gap only if no stream holds the numbers. The
numbers are kept as ranges, one row for a recorder that lost nothing. Rebuilt with the index; runs in the caller's
transaction. Not here: what a gap means (`audit.replay`), what silence is (`audit.silence`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.entry import Header, Kind
from ledger.models import EntryRow, RecorderBeat, RecorderRange
from ledger.ranges import Range, joined


def note(session: Session, tenant_id: int, headers: Sequence[Header], stream_nos: Sequence[int]) -> None:
    """Take in the numbers and heartbeats of one batch; the same batch again changes nothing."""
    numbers: dict[str, set[int]] = {}
    beats: dict[str, int] = {}
    for header, stream_no in zip(headers, stream_nos, strict=True):
        if header.recorder is None:
            continue
        if header.seq is not None:
            numbers.setdefault(header.recorder, set()).add(header.seq)
        if header.kind == Kind.RECORDER_HEARTBEAT:
            beats[header.recorder] = stream_no
    for recorder, found in numbers.items():
        _add(session, tenant_id, recorder, joined((number, number) for number in found))
    for recorder, stream_no in beats.items():
        if session.get(RecorderBeat, (tenant_id, recorder, stream_no)) is None:
            session.add(RecorderBeat(tenant_id=tenant_id, recorder_id=recorder, stream_no=stream_no))


def dropped(session: Session, tenant_id: int, numbers: Mapping[str, set[int]]) -> None:
    """Account for numbers whose entries were not taken in, because they are about somebody who is fenced."""
    for recorder, found in numbers.items():
        _add(session, tenant_id, recorder, joined((number, number) for number in found))


def held(session: Session, tenant_id: int, recorder: str, first: int, last: int) -> int:
    """Return how many of a recorder's numbers from `first` to `last` are accounted for, whatever the stream."""
    query = select(RecorderRange.first, RecorderRange.last).where(
        RecorderRange.tenant_id == tenant_id,
        RecorderRange.recorder_id == recorder,
        RecorderRange.first <= last,
        RecorderRange.last >= first,
    )
    return sum(min(end, last) - max(start, first) + 1 for start, end in session.exec(query))


def recorders_with_beats(session: Session, tenant_id: int) -> list[str]:
    """Return the recorders that ever sent a heartbeat."""
    query = select(RecorderBeat.recorder_id).where(RecorderBeat.tenant_id == tenant_id)
    return sorted(set(session.exec(query)))


def beats(
    session: Session, tenant_id: int, recorder: str, *, since: datetime | None = None, until: datetime | None = None
) -> list[datetime]:
    """Return the claimed times of a recorder's heartbeats, in order, of a span of time if given.

    A stream of heartbeats is one recorder's own; where several share one, the pauses of all count together.
    """
    streams = session.exec(
        select(RecorderBeat.stream_no).where(RecorderBeat.tenant_id == tenant_id, RecorderBeat.recorder_id == recorder)
    ).all()
    query = select(EntryRow.at).where(
        EntryRow.tenant_id == tenant_id,
        col(EntryRow.stream_no).in_(streams),
        EntryRow.kind == Kind.RECORDER_HEARTBEAT.value,
    )
    if since is not None:
        query = query.where(EntryRow.at >= since)
    if until is not None:
        query = query.where(EntryRow.at <= until)
    return list(session.exec(query.order_by(col(EntryRow.at))))


def _add(session: Session, tenant_id: int, recorder: str, new: Sequence[Range]) -> None:
    """Join new ranges with those they touch."""
    here = sa.and_(col(RecorderRange.tenant_id) == tenant_id, col(RecorderRange.recorder_id) == recorder)
    touched = sa.and_(here, col(RecorderRange.first) <= new[-1][1] + 1, col(RecorderRange.last) >= new[0][0] - 1)
    old: list[Range] = [
        (start, end)
        for start, end in session.execute(sa.select(col(RecorderRange.first), col(RecorderRange.last)).where(touched))
    ]
    whole = joined([*old, *new])
    if sorted(old) == whole:
        return
    session.execute(sa.delete(RecorderRange).where(touched))
    rows = [{"tenant_id": tenant_id, "recorder_id": recorder, "first": start, "last": end} for start, end in whole]
    session.execute(sa.insert(RecorderRange), rows)

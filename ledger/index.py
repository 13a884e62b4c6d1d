"""The SQL index of a log: everything that `ledger.log` asks the database, in one place.

Guarantees: each function runs in the caller's transaction and never commits. Not here: objects, hashes, keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from itertools import accumulate
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import sqlalchemy as sa
import zstandard
from sqlmodel import Session, col, select

from ledger import recorders, statements
from ledger.entry import Header
from ledger.errors import RecordDamaged
from ledger.models import STRETCH, EntryRow, LogState, LogStream, PartPlaces, PartRef, PayloadRow, microseconds
from ledger.payload_names import rows_of

_IN_LIMIT = 500
_STRETCHES = 100
"""Stretches whose rows are read together: a row for each person in them, a thousand at the worst."""


_KNOWN = "SELECT entry_id FROM entry WHERE tenant_id = ? AND entry_id"
_STANDING = (
    "SELECT stream_no, position, stream_id, (SELECT e.position FROM entry e WHERE e.tenant_id = ? AND "
    "e.stream_no = log_stream.stream_no ORDER BY e.position DESC LIMIT 1) "
    "FROM log_stream WHERE tenant_id = ? AND stream_no"
)
_SPOKEN = "SELECT DISTINCT stream_no FROM entry WHERE tenant_id = ? AND stream_no"
_NEXT = "(tenant_id, stream_no) DO UPDATE SET position = excluded.position, stream_id = excluded.stream_id"
_ENTRY = (
    "tenant_id", "idx", "entry_id", "batch_first", "stream_no", "position", "kind", "data_class", "class_version",
    "run_no", "set_id", "at", "received", "digest", "noncanonical",
)  # fmt: skip
MAX_INDEX_BYTES = 256 * 1024 * 1024
_COLUMNS = b"\x02"
_OTHERS = "the index object of other entries"
_NUMBERS = msgspec.json.Encoder()
_PLACES = msgspec.json.Decoder(list[int])
_T = TypeVar("_T")


class IndexLine(msgspec.Struct, frozen=True, array_like=True):
    """What the index knows of an entry beside its header. Encoded into the unlocked store before the batch.

    Append-only: new fields at the end, with a default, and in `_Shared` likewise.
    """

    entry_id: str
    class_version: int
    stream_no: int
    run_no: int | None
    set_id: int
    digest: bytes
    noncanonical: bool
    key_ids: tuple[tuple[str, ...], ...]


class _Shared(msgspec.Struct, frozen=True, array_like=True):
    """What many lines of a batch have in common."""

    class_version: int
    stream_no: int
    run_no: int | None
    set_id: int
    noncanonical: bool
    key_ids: tuple[tuple[str, ...], ...]


class _Columns(msgspec.Struct, frozen=True, array_like=True):
    """The lines of a batch: `which` names what each shares. `ids` is a digest of their ids, which the headers hold."""

    ids: bytes
    shared: list[_Shared]
    which: list[int]
    digests: bytes
    widths: list[int]


def encode_lines(lines: Sequence[IndexLine]) -> bytes:
    """Return the bytes of an index object, in the order of the batch's headers.

    A byte that names the version, then msgpack under zstd. Version 1, without that byte, held line after line.
    """
    shared: dict[_Shared, int] = {}
    which = []
    for line in lines:
        one = _Shared(line.class_version, line.stream_no, line.run_no, line.set_id, line.noncanonical, line.key_ids)
        which.append(shared.setdefault(one, len(shared)))
    digests = [line.digest for line in lines]
    ids = _digest_of_ids([line.entry_id for line in lines])
    columns = _Columns(ids, list(shared), which, b"".join(digests), list(map(len, digests)))
    packed = msgspec.msgpack.encode(columns)
    return _COLUMNS + zstandard.ZstdCompressor(level=3, write_checksum=True).compress(packed)


def decode_lines(data: bytes, entry_ids: Sequence[str]) -> list[IndexLine]:
    """Return the lines of an index object; `entry_ids` are those of the batch's headers.

    Raises: msgspec.MsgspecError for any other bytes, and for the lines of other entries.
    """
    if not data.startswith(_COLUMNS):
        lines = msgspec.msgpack.decode(_opened(data), type=list[IndexLine])
        if [line.entry_id for line in lines] != list(entry_ids):
            raise msgspec.DecodeError(_OTHERS)
        return lines
    columns = msgspec.msgpack.decode(_opened(data[len(_COLUMNS) :]), type=_Columns)
    ends = list(accumulate(columns.widths))
    if columns.ids != _digest_of_ids(entry_ids) or not len(ends) == len(columns.which) == len(entry_ids):
        raise msgspec.DecodeError(_OTHERS)
    if (
        not all(0 <= number < len(columns.shared) for number in columns.which)
        or min(columns.widths, default=0) < 0
        or sum(columns.widths) != len(columns.digests)
    ):
        message = "an index object that names what it does not hold"
        raise msgspec.DecodeError(message)
    return [
        _line(entry_id, columns.shared[number], columns.digests[end - width : end])
        for entry_id, number, end, width in zip(entry_ids, columns.which, ends, columns.widths, strict=True)
    ]


def _line(entry_id: str, shared: _Shared, digest: bytes) -> IndexLine:
    return IndexLine(
        entry_id=entry_id,
        class_version=shared.class_version,
        stream_no=shared.stream_no,
        run_no=shared.run_no,
        set_id=shared.set_id,
        digest=digest,
        noncanonical=shared.noncanonical,
        key_ids=shared.key_ids,
    )


def _digest_of_ids(entry_ids: Sequence[str]) -> bytes:
    return sha256("\n".join(entry_ids).encode()).digest()


def _opened(frame: bytes) -> bytes:
    try:
        size = zstandard.get_frame_parameters(frame).content_size
        if size > MAX_INDEX_BYTES:
            message = f"an index object of {size} bytes, at most {MAX_INDEX_BYTES} are read"
            raise msgspec.DecodeError(message)
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        message = "not an index object"
        raise msgspec.DecodeError(message) from error


def chunks(values: Sequence[_T], size: int = _IN_LIMIT) -> Iterator[Sequence[_T]]:
    """Yield slices that fit the number of variables a statement may have on every database."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def state_of(session: Session, tenant_id: int) -> LogState | None:
    """Return the head of a tenant's log as this database knows it."""
    return session.get(LogState, tenant_id)


def known(session: Session, tenant_id: int, entry_ids: Iterable[str]) -> dict[str, EntryRow]:
    """Return the rows of those entry ids that are in the log already."""
    asked = list({raw_id(entry_id) for entry_id in entry_ids})
    # Most of a flush is new: a row is only made for what is there.
    wanted = [entry_id for (entry_id,) in statements.select_in(session, _KNOWN, (tenant_id,), asked, "bytea")]
    found: dict[str, EntryRow] = {}
    for part in chunks(wanted):
        rows = session.exec(select(EntryRow).where(EntryRow.tenant_id == tenant_id, col(EntryRow.entry_id).in_(part)))
        found.update({str(UUID(bytes=row.entry_id)): row for row in rows})
    return found


def raw_id(entry_id: str) -> bytes:
    """Return the 16 bytes of a UUID in its usual form."""
    return bytes.fromhex(entry_id.replace("-", ""))


def rows(session: Session, tenant_id: int, indexes: Sequence[int]) -> list[EntryRow]:
    """Return the rows at these indexes of the log, in no order."""
    found: list[EntryRow] = []
    for part in chunks(indexes):
        found.extend(session.exec(select(EntryRow).where(EntryRow.tenant_id == tenant_id, col(EntryRow.idx).in_(part))))
    return found


def batches_of(session: Session, tenant_id: int, indexes: Sequence[int]) -> dict[int, int]:
    """Return the first index of the batch that each of these entries lies in."""
    found: dict[int, int] = {}
    for part in chunks(indexes):
        query = select(EntryRow.idx, EntryRow.batch_first).where(
            EntryRow.tenant_id == tenant_id, col(EntryRow.idx).in_(part)
        )
        found.update(dict(session.exec(query).all()))
    return found


def standing(
    session: Session, tenant_id: int, stream_nos: Sequence[int]
) -> dict[int, tuple[int | None, str | None, int | None]]:  # fmt: skip
    """Return what two tables say of streams: next position and id of one, the newest position of the other.

    A stream that neither knows is not in the answer.
    """
    rows = statements.select_in(session, _STANDING, (tenant_id, tenant_id), stream_nos, "int8")
    found: dict[int, tuple[int | None, str | None, int | None]] = {
        number: (position, stream_id, newest) for number, position, stream_id, newest in rows
    }
    new = [number for number in stream_nos if number not in found]
    for (number,) in statements.select_in(session, _SPOKEN, (tenant_id,), new, "int8"):
        found[number] = (None, None, None)
    return found


def drop_strays(session: Session, tenant_id: int, headers: Sequence[Header], lines: Sequence[IndexLine]) -> None:
    """Remove rows that give a stream of this batch another number than the batch: they would keep it out."""
    streams = {header.stream: line.stream_no for header, line in zip(headers, lines, strict=True)}
    for part in chunks(sorted(streams)):
        numbers = [streams[stream_id] for stream_id in part]
        here = (col(LogStream.tenant_id) == tenant_id) & col(LogStream.stream_id).in_(part)
        session.connection().execute(sa.delete(LogStream).where(here & col(LogStream.stream_no).not_in(numbers)))


def put_streams(session: Session, tenant_id: int, streams: Mapping[int, str], positions: Mapping[int, int]) -> None:
    """Write the rows of streams anew, each with its next position; one without a position has no row."""
    here = col(LogStream.tenant_id) == tenant_id
    for part in chunks(sorted(streams)):
        ids = [streams[number] for number in part]
        mine = col(LogStream.stream_no).in_(part) | col(LogStream.stream_id).in_(ids)
        session.connection().execute(sa.delete(LogStream).where(here & mine))
    names = ("tenant_id", "stream_no", "stream_id", "position")
    rows = [(tenant_id, number, streams[number], position) for number, position in positions.items()]
    statements.insert(session, LogStream, names, rows)


def insert(session: Session, tenant_id: int, first: int, headers: Sequence[Header], lines: Sequence[IndexLine]) -> None:
    """Index one batch: entries, part references, stream heads."""
    _insert_entries(session, tenant_id, first, headers, lines)
    heads = {
        line.stream_no: (tenant_id, line.stream_no, header.stream, header.position + 1)
        for header, line in zip(headers, lines, strict=True)
    }
    packed = [(tenant_id, *row) for row in pack_refs(first, lines)]
    statements.insert(session, PartPlaces, ("tenant_id", "start", "key_id", "part", "places"), packed)
    objects = rows_of(tenant_id, first, headers)
    if objects:
        session.connection().execute(sa.insert(PayloadRow), objects)
    names = ("tenant_id", "stream_no", "stream_id", "position")
    statements.insert(session, LogStream, names, list(heads.values()), conflict=_NEXT)
    recorders.note(session, tenant_id, headers, [line.stream_no for line in lines])


def write_anew(
    session: Session, tenant_id: int, first: int, headers: Sequence[Header], lines: Sequence[IndexLine]
) -> None:
    """Put the entries of a batch in the place of whatever rows stand at their indexes or under their ids."""
    here = col(EntryRow.tenant_id) == tenant_id
    there = col(EntryRow.idx).between(first, first + len(headers) - 1)
    session.connection().execute(sa.delete(EntryRow).where(here & there))
    for part in chunks([raw_id(header.id) for header in headers]):
        session.connection().execute(sa.delete(EntryRow).where(here & col(EntryRow.entry_id).in_(part)))
    _insert_entries(session, tenant_id, first, headers, lines)


def _insert_entries(
    session: Session, tenant_id: int, first: int, headers: Sequence[Header], lines: Sequence[IndexLine]
) -> None:
    entries: list[tuple[Any, ...]] = []
    received: dict[datetime, int] = {}
    for idx, (header, line) in enumerate(zip(headers, lines, strict=True), start=first):
        at = received.get(header.received)
        if at is None:
            at = received[header.received] = microseconds(header.received)
        entries.append(
            (tenant_id, idx, raw_id(header.id), first, line.stream_no, header.position, header.kind, header.data_class,
             line.class_version, line.run_no, line.set_id, microseconds(header.at), at, line.digest, line.noncanonical)
        )  # fmt: skip
    statements.insert(session, EntryRow, _ENTRY, entries)


def stream_entries(
    session: Session,
    tenant_id: int,
    stream_no: int,
    *,
    after: int = -1,
    limit: int | None = None,
    before: int | None = None,
) -> list[EntryRow]:
    """Return a stream's rows in order of position, after a position, below a tree size if given."""
    query = select(EntryRow).where(
        EntryRow.tenant_id == tenant_id, EntryRow.stream_no == stream_no, EntryRow.position > after
    )
    if before is not None:
        query = query.where(EntryRow.idx < before)
    query = query.order_by(col(EntryRow.position))
    return list(session.exec(query if limit is None else query.limit(limit)))


def keys_of(session: Session, tenant_id: int, indexes: Sequence[int]) -> dict[tuple[int, int], list[str]]:
    """Return the key ids that seal each (entry index, part number)."""
    found: dict[tuple[int, int], list[str]] = {}
    for idx, number, key_id in refs_of(session, tenant_id, indexes):
        found.setdefault((idx, number), []).append(key_id)
    return found


def refs_of(session: Session, tenant_id: int, indexes: Collection[int]) -> Iterator[tuple[int, int, str]]:
    """Yield index, part number and key id of what is sealed of these entries; a part's keys in their order."""
    wanted = frozenset(indexes)
    starts = {
        first + (idx - first) // STRETCH * STRETCH
        for idx, first in batches_of(session, tenant_id, sorted(wanted)).items()
    }
    for some in chunks(sorted(starts), _STRETCHES):
        query = (
            sa.select(col(PartPlaces.start), col(PartPlaces.part), col(PartPlaces.key_id), col(PartPlaces.places))
            .where(col(PartPlaces.tenant_id) == tenant_id, col(PartPlaces.start).in_(some))
            .order_by(col(PartPlaces.start), col(PartPlaces.key_id), col(PartPlaces.part))
        )
        for start, number, key_id, places in session.execute(query):
            for place in unpack_places(places):
                if start + place in wanted:
                    yield start + place, number, key_id


def pack_refs(first: int, lines: Sequence[IndexLine]) -> list[tuple[int, str, int, str]]:
    """Return the rows of `PartPlaces` of one batch, without their tenant, in the order of their key."""
    packed: dict[tuple[int, str, int], list[int]] = {}
    for start in range(0, len(lines), STRETCH):
        for place, line in enumerate(lines[start : start + STRETCH]):
            for number, key_ids in enumerate(line.key_ids):
                for key_id in key_ids:
                    packed.setdefault((first + start, key_id, number), []).append(place)
    return [(*key, _NUMBERS.encode(places).decode()) for key, places in sorted(packed.items())]


def unpack_places(places: str) -> list[int]:
    """Return the distances in a row of `PartPlaces`. Raises: RecordDamaged for any other text."""
    try:
        return _PLACES.decode(places)
    except msgspec.MsgspecError as error:
        raise RecordDamaged(
            "altered", "a row of the index is not what was written; muniment rebuild makes it anew"
        ) from error


def sealed_by(session: Session, tenant_id: int, key_ids: Sequence[str]) -> list[PartRef]:
    """Return every reference to these keys: what becomes unreadable with them."""
    found: list[PartRef] = []
    for part in chunks(key_ids):
        query = select(PartRef).where(PartRef.tenant_id == tenant_id, col(PartRef.key_id).in_(part))
        found.extend(session.exec(query))
    return found

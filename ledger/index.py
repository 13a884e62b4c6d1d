"""The SQL index of a log: everything that `ledger.log` asks the database, in one place.

Guarantees: each function runs in the caller's transaction and never commits. Not here: objects, hashes, keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import sqlalchemy as sa
import zstandard
from sqlmodel import Session, SQLModel, col, select

from ledger import recorders
from ledger.entry import Header
from ledger.models import EntryRow, LogState, LogStream, PartRef, PayloadRow, microseconds
from ledger.payload_names import rows_of

_IN_LIMIT = 500


def _plain(model: type[SQLModel]) -> sa.Insert:
    """Return an insert whose values go to the driver as they are: types cost as much as the rows themselves."""
    table = model.__table__  # type: ignore[attr-defined]
    return sa.insert(sa.table(table.name, *(sa.column(column.name) for column in table.columns)))


_ENTRY, _PART_REF = _plain(EntryRow), _plain(PartRef)
MAX_INDEX_BYTES = 256 * 1024 * 1024
_T = TypeVar("_T")


class IndexLine(msgspec.Struct, frozen=True, array_like=True):
    """What the index knows of an entry beside its header. Encoded into the unlocked store before the batch.

    Append-only: new fields at the end, with a default.
    """

    entry_id: str
    class_version: int
    stream_no: int
    run_no: int | None
    set_id: int
    digest: bytes
    noncanonical: bool
    key_ids: tuple[tuple[str, ...], ...]


def encode_lines(lines: Sequence[IndexLine]) -> bytes:
    """Return the bytes of an index object: msgpack under zstd, in the order of the batch's headers."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(msgspec.msgpack.encode(lines))


def decode_lines(data: bytes) -> list[IndexLine]:
    """Return the lines of an index object. Raises: msgspec.MsgspecError for any other bytes."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > MAX_INDEX_BYTES:
            message = f"an index object of {size} bytes, at most {MAX_INDEX_BYTES} are read"
            raise msgspec.DecodeError(message)
        plain = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        message = "not an index object"
        raise msgspec.DecodeError(message) from error
    return msgspec.msgpack.decode(plain, type=list[IndexLine])


def chunks(values: Sequence[_T], size: int = _IN_LIMIT) -> Iterator[Sequence[_T]]:
    """Yield slices that fit the number of variables a statement may have on every database."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def state_of(session: Session, tenant_id: int) -> LogState | None:
    """Return the head of a tenant's log as this database knows it."""
    return session.get(LogState, tenant_id)


def known(session: Session, tenant_id: int, entry_ids: Iterable[str]) -> dict[str, EntryRow]:
    """Return the rows of those entry ids that are in the log already."""
    wanted = list({UUID(entry_id).bytes for entry_id in entry_ids})
    found: dict[str, EntryRow] = {}
    for part in chunks(wanted):
        rows = session.exec(select(EntryRow).where(EntryRow.tenant_id == tenant_id, col(EntryRow.entry_id).in_(part)))
        found.update({str(UUID(bytes=row.entry_id)): row for row in rows})
    return found


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


def positions(session: Session, tenant_id: int, stream_nos: Iterable[int]) -> dict[int, int]:
    """Return the next position of each stream; a stream that has none yet is not in the answer."""
    found: dict[int, int] = {}
    for part in chunks(sorted(set(stream_nos))):
        query = select(LogStream.stream_no, LogStream.position).where(
            LogStream.tenant_id == tenant_id, col(LogStream.stream_no).in_(part)
        )
        found.update(dict(session.exec(query).all()))
    return found


def insert(session: Session, tenant_id: int, first: int, headers: Sequence[Header], lines: Sequence[IndexLine]) -> None:
    """Index one batch: entries, part references, stream heads."""
    entries: list[dict[str, Any]] = []
    refs: list[dict[str, Any]] = []
    received: dict[datetime, int] = {}
    heads: dict[int, dict[str, Any]] = {}
    for idx, (header, line) in enumerate(zip(headers, lines, strict=True), start=first):
        entries.append(
            {
                "tenant_id": tenant_id,
                "idx": idx,
                "entry_id": UUID(header.id).bytes,
                "batch_first": first,
                "stream_no": line.stream_no,
                "position": header.position,
                "kind": header.kind,
                "data_class": header.data_class,
                "class_version": line.class_version,
                "run_no": line.run_no,
                "set_id": line.set_id,
                "at": microseconds(header.at),
                "received": received.get(header.received)
                or received.setdefault(header.received, microseconds(header.received)),
                "digest": line.digest,
                "noncanonical": line.noncanonical,
            }
        )
        refs.extend(
            {"tenant_id": tenant_id, "idx": idx, "part": number, "key_id": key_id}
            for number, key_ids in enumerate(line.key_ids)
            for key_id in key_ids
        )
        heads[line.stream_no] = {
            "tenant_id": tenant_id,
            "stream_no": line.stream_no,
            "stream_id": header.stream,
            "position": header.position + 1,
        }
    connection = session.connection()
    connection.execute(_ENTRY, entries)
    if refs:
        connection.execute(_PART_REF, refs)
    objects = rows_of(tenant_id, first, headers)
    if objects:
        connection.execute(sa.insert(PayloadRow), objects)
    _raise_heads(session, tenant_id, heads)
    recorders.note(session, tenant_id, headers, [line.stream_no for line in lines])


def _raise_heads(session: Session, tenant_id: int, heads: Mapping[int, dict[str, Any]]) -> None:
    there = positions(session, tenant_id, heads)
    new = [head for number, head in heads.items() if number not in there]
    if new:
        session.connection().execute(sa.insert(LogStream), new)
    old = [
        {"tenant": tenant_id, "number": number, "next": head["position"]}
        for number, head in heads.items()
        if number in there
    ]
    if old:
        statement = (
            sa.update(LogStream)
            .where(
                col(LogStream.tenant_id) == sa.bindparam("tenant"),
                col(LogStream.stream_no) == sa.bindparam("number"),
            )
            .values(position=sa.bindparam("next"))
        )
        session.connection().execute(statement, old)


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
    for part in chunks(indexes):
        query = select(PartRef).where(PartRef.tenant_id == tenant_id, col(PartRef.idx).in_(part))
        for row in session.exec(query):
            found.setdefault((row.idx, row.part), []).append(row.key_id)
    return found


def sealed_by(session: Session, tenant_id: int, key_ids: Sequence[str]) -> list[PartRef]:
    """Return every reference to these keys: what becomes unreadable with them."""
    found: list[PartRef] = []
    for part in chunks(key_ids):
        query = select(PartRef).where(PartRef.tenant_id == tenant_id, col(PartRef.key_id).in_(part))
        found.extend(session.exec(query))
    return found

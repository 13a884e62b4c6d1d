"""Which position each stream of a log comes to next, held by the one process that sequences.

Guarantees: a position that goes into a header is one that this process wrote before, or one of which two tables say
the same; where they do not, the batches decide, and the row is written as they say. So one changed row or byte of the
database is never chained into the log. The batches are read one after the other then, from the newest on. Not here:
who edits both tables to agree; replay tells of the gap.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

import msgspec
from sqlmodel import Session

from ledger import index
from ledger.batches import Batch, batch_key, decode_batch
from ledger.entry import Header
from ledger.errors import MalformedBatch, ObjectMissing, RecordDamaged

HELD = 16_384
"""Streams whose position is kept in memory, of one log: about two megabytes."""


class _Place(msgspec.Struct, frozen=True):
    stream: str
    position: int


_PLACE = msgspec.json.Decoder(_Place)


class Positions:
    """The next position of the streams that were asked for lately. Only the holder of the head's lock uses it."""

    def __init__(self) -> None:
        self._next: OrderedDict[int, int] = OrderedDict()

    def of(self, session: Session, tenant_id: int, streams: Mapping[int, str]) -> tuple[dict[int, int], list[int]]:
        """Return the next positions of streams, given with their random ids, and the streams that are in doubt.

        A stream without an entry is in neither.
        """
        found = {number: self._next[number] for number in streams if number in self._next}
        unknown = sorted(streams.keys() - found.keys())
        if not unknown:
            return found, []
        standing = index.standing(session, tenant_id, unknown)
        doubts = []
        for number in unknown:
            if number not in standing:
                continue
            position, stream_id, newest = standing[number]
            if position == (-1 if newest is None else newest) + 1 and stream_id == streams[number]:
                found[number] = position
            else:
                doubts.append(number)
        return found, doubts

    def moved(self, stream_nos: Iterable[int], headers: Sequence[Header]) -> None:
        """Take in what was sequenced."""
        for number, header in zip(stream_nos, headers, strict=True):
            self._next[number] = header.position + 1
            self._next.move_to_end(number)
        while len(self._next) > HELD:
            self._next.popitem(last=False)


def settle(
    session: Session, tenant_id: int, streams: Mapping[int, str], batches: Iterator[Batch]
) -> dict[int, int]:  # fmt: skip
    """Return the next positions of streams as the batches say, the newest first, and write the rows anew.

    Raises: RecordDamaged where the log knows a stream's number under another id: what it is given as is altered.
    """
    standing = index.standing(session, tenant_id, sorted(streams))
    # The id of a number under which nobody spoke came there by a change of the row.
    named = {
        number: stream_id
        for number, (_, stream_id, newest) in standing.items()
        if stream_id is not None and newest is not None
    }
    wanted = {*streams.values(), *named.values()}
    ends: dict[str, int] = {}
    for batch in batches:
        for raw in reversed(batch.headers):
            place = _PLACE.decode(raw)
            if place.stream in wanted:
                ends[place.stream] = place.position + 1
                wanted.discard(place.stream)
        if not wanted:
            break
    for number, stream_id in streams.items():
        known = named.get(number, stream_id)
        if known != stream_id and known in ends:
            raise RecordDamaged("altered", f"the database gives stream {number} an id that the log does not know it by")
    found = {number: ends[stream_id] for number, stream_id in streams.items() if stream_id in ends}
    index.put_streams(session, tenant_id, streams, found)
    return found


def backwards(
    get: Callable[[str], bytes], log_id: str, first: int | None, digest: bytes
) -> Iterator[Batch]:  # fmt: skip
    """Yield the batches of a log from its newest to its first, each the one that the batch after it names.

    Raises: RecordDamaged, and what `get` raises for a store that does not answer.
    """
    key: str | None = None if first is None else batch_key(first)
    while key is not None:
        try:
            data = get(key)
            batch = decode_batch(data)
        except ObjectMissing as error:
            raise RecordDamaged("missing", f"{key} is gone") from error
        except MalformedBatch as error:
            raise RecordDamaged("altered", f"{key} is not what the log writes ({error.reason})") from error
        if batch.log_id != log_id or sha256(data).digest() != digest:
            raise RecordDamaged("altered", f"{key} is not the batch that the log names")
        yield batch
        key, digest = batch.previous_key, batch.previous_digest or b""

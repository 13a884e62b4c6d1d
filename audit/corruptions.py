"""Every way we know to tamper with a log, each by name, as a function over a copy in memory.

Guarantees: a corruption changes the copy or says that this log has nothing it could change (`NotApplicable`). Those
that leave a history which is sound in itself name what is needed to notice them: `since` (the auditor's own head) or
`hot` (the unlocked store). New attacks are added here first; `prove` and the tests take them from this list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import structs

from audit.forge import (
    History,
    MemoryBucket,
    StandInKey,
    batch_name,
    chained,
    cut,
    hot_objects,
    note_of,
    without,
    written,
)
from ledger.batches import batch_key, decode_batch, encode_batch
from ledger.checkpoint import format_note, parse_note
from ledger.entry import Header, Kind, Part, encode_header

SINCE, HOT = "since", "hot"


class NotApplicable(Exception):
    """This log has nothing that the corruption could change: too few batches, checkpoints, tiles or parts."""


@dataclass(slots=True, kw_only=True)
class Copy:
    """A sound log in memory, and the two keys: the stand-in for its own, and a forger's under the same name."""

    history: History
    bucket: MemoryBucket
    hot: MemoryBucket
    key: StandInKey
    forger: StandInKey

    def fresh(self) -> Copy:
        """Return an independent copy to corrupt."""
        return replace(self, bucket=self.bucket.copy(), hot=self.hot.copy())

    def write(self, history: History, key: StandInKey, *, hot: bool = True) -> None:
        """Write the log anew with another history, signed by a key; payload stays."""
        rest = without(without(self.bucket.objects, f"{history.prefix}batch/"), f"{history.prefix}checkpoint/")
        self.bucket.objects = rest | written(history, key)
        if hot:
            self.hot.objects = hot_objects(history, key)

    def checkpoint(self, at: int) -> str:
        """Return the key of checkpoint number `at`."""
        _require(len(self.history.sizes) > (at if at >= 0 else -at - 1))
        return f"{self.history.prefix}checkpoint/{self.history.sizes[at]:020d}"

    def batch(self, at: int) -> str:
        """Return the key of batch number `at`."""
        _require(len(self.history.starts) > (at if at >= 0 else -at - 1))
        return batch_name(self.history, at)

    def part(self) -> tuple[str, Part]:
        """Return the object key of a part in the middle of the log, and the part."""
        parts = [part for header in self.history.headers for part in header.parts]
        there = [part for part in parts if self.history.prefix + part.object in self.bucket.objects and part.length]
        _require(bool(there))
        part = there[len(there) // 2]
        return self.history.prefix + part.object, part


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """One way to tamper. `needs` says what an auditor must have to notice it; empty: nothing but the log's key."""

    name: str
    apply: Callable[[Copy], None]
    needs: frozenset[str] = frozenset()


def _require(condition: bool) -> None:  # noqa: FBT001 - reads as an assertion
    if not condition:
        raise NotApplicable


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _flip_in_frame(copy: Copy, at: int, offset: int) -> None:
    """Flip a bit of the compressed headers of a batch."""
    key = copy.batch(at)
    data = copy.bucket.objects[key]
    start = data.index(b"\n") + 1
    copy.bucket.objects[key] = _flip(data, start + offset % (len(data) - start))


def _exchange_header(copy: Copy, at: int, offset: int, change: Callable[[Header], Header]) -> None:
    """Put another well-formed header into a batch, with nothing else adapted."""
    key = copy.batch(at)
    batch = decode_batch(copy.bucket.objects[key])
    headers = list(batch.headers)
    number = offset % len(headers)
    headers[number] = encode_header(change(copy.history.headers[batch.first + number]))
    copy.bucket.objects[key] = encode_batch(replace(batch, headers=tuple(headers)))


def _other_kind(header: Header) -> Header:
    return structs.replace(header, kind=Kind.NOTE if header.kind != Kind.NOTE else Kind.DECISION)


def _rewritten(history: History, at: int) -> History:
    """Return the history with entry `at` changed and everything behind it chained anew."""
    headers = list(history.headers)
    headers[at] = _other_kind(headers[at])
    return replace(history, headers=chained(headers))


def _change_previous(copy: Copy) -> None:
    _exchange_header(
        copy, len(copy.history.starts) // 2, 1, lambda header: structs.replace(header, previous=bytes(31) + b"x")
    )


def _unknown_field(copy: Copy) -> None:
    key = copy.batch(0)
    raw = encode_header(copy.history.headers[0])
    batch = decode_batch(copy.bucket.objects[key])
    changed = replace(batch, headers=(raw[:-1] + b',"z":1}', *batch.headers[1:]))
    copy.bucket.objects[key] = encode_batch(changed)


def _edit_envelope(copy: Copy, at: int, **changes: object) -> None:
    key = copy.batch(at)
    copy.bucket.objects[key] = encode_batch(replace(decode_batch(copy.bucket.objects[key]), **changes))  # type: ignore[arg-type]  # fields of Batch, by name


def _wrong_count(copy: Copy) -> None:
    key = copy.batch(-1)
    data = copy.bucket.objects[key]
    start, end = copy.history.spans()[-1]
    copy.bucket.objects[key] = data.replace(b'"count":%d' % (end - start), b'"count":%d' % (end - start + 1))


def _older_fence(copy: Copy) -> None:
    _require(len(copy.history.starts) > 1)
    _require(len(copy.history.fences) > 1)
    newest = copy.history.fences[-1]
    fences = (*(newest + 1 for _ in copy.history.fences[:-1]), newest)
    copy.write(replace(copy.history, fences=fences), copy.key)


def _wrong_checkpoint_named(copy: Copy) -> None:
    named = [at for at, size in enumerate(copy.history.names) if size]
    _require(bool(named))
    _edit_envelope(copy, named[-1], checkpoint_digest=bytes(32))


def _cut_batch(copy: Copy) -> None:
    key = copy.batch(len(copy.history.starts) // 2)
    copy.bucket.objects[key] = copy.bucket.objects[key][: len(copy.bucket.objects[key]) // 2]


def _set(copy: Copy, key: str, data: bytes) -> None:
    copy.bucket.objects[key] = data


def _drop(copy: Copy, key: str) -> None:
    del copy.bucket.objects[key]


def _drop_middle(copy: Copy) -> None:
    _require(len(copy.history.starts) > 2)  # noqa: PLR2004 - one on each side
    _drop(copy, copy.batch(len(copy.history.starts) // 2))


def _drop_first(copy: Copy) -> None:
    _require(len(copy.history.starts) > 1)
    _drop(copy, copy.batch(0))


def _drop_last(copy: Copy) -> None:
    _require(len(copy.history.starts) > 1 and copy.history.sizes[-1] > copy.history.starts[-1])
    _drop(copy, copy.batch(-1))


def _earlier(copy: Copy) -> History:
    """Return the history at its last checkpoint but one."""
    _require(len(copy.history.sizes) > 1 and copy.history.sizes[-2] in copy.history.starts)
    return cut(copy.history, copy.history.sizes[-2])


def _drop_last_with_checkpoints(copy: Copy) -> None:
    copy.write(_earlier(copy), copy.key, hot=False)


def _roll_everything_back(copy: Copy) -> None:
    copy.write(_earlier(copy), copy.key)


def _swap(copy: Copy, first: str, second: str) -> None:
    _require(first != second)
    objects = copy.bucket.objects
    objects[first], objects[second] = objects[second], objects[first]


def _duplicate_batch(copy: Copy) -> None:
    key = f"{copy.history.prefix}{batch_key(len(copy.history.headers))}"
    _set(copy, key, copy.bucket.objects[copy.batch(-1)])


def _second_batch(copy: Copy) -> None:
    """Lay a batch over an index that another one holds, as a second writer would."""
    spans = [(start, end) for start, end in copy.history.spans() if end - start > 1]
    _require(bool(spans))
    start, _ = spans[0]
    batch = decode_batch(copy.bucket.objects[f"{copy.history.prefix}{batch_key(start)}"])
    rest = replace(
        batch,
        first=start + 1,
        count=batch.count - 1,
        headers=batch.headers[1:],
        previous_key=batch_key(start),
        previous_count=1,
        previous_digest=bytes(32),
    )
    _set(copy, f"{copy.history.prefix}{batch_key(start + 1)}", encode_batch(rest))


def _remove_entry(copy: Copy) -> None:
    key = copy.batch(len(copy.history.starts) // 2)
    batch = decode_batch(copy.bucket.objects[key])
    _require(batch.count > 1)
    headers = batch.headers[: batch.count // 2] + batch.headers[batch.count // 2 + 1 :]
    copy.bucket.objects[key] = encode_batch(replace(batch, count=batch.count - 1, headers=headers))


def _insert_entry(copy: Copy) -> None:
    key = copy.batch(len(copy.history.starts) // 2)
    batch = decode_batch(copy.bucket.objects[key])
    headers = (batch.headers[0], *batch.headers)
    copy.bucket.objects[key] = encode_batch(replace(batch, count=batch.count + 1, headers=headers))


def _reorder_entries(copy: Copy) -> None:
    spans = [at for at, (start, end) in enumerate(copy.history.spans()) if end - start > 1]
    _require(bool(spans))
    key = copy.batch(spans[-1])
    batch = decode_batch(copy.bucket.objects[key])
    headers = (*batch.headers[:-2], batch.headers[-1], batch.headers[-2])
    copy.bucket.objects[key] = encode_batch(replace(batch, headers=headers))


def _rewrite_tail(copy: Copy) -> None:
    """Write a consistent other end of the log, without the key: the old checkpoints stay as they are."""
    before = {key: data for key, data in copy.bucket.objects.items() if "/checkpoint/" in key}
    copy.write(_rewritten(copy.history, len(copy.history.headers) // 2), copy.key, hot=False)
    copy.bucket.objects |= before


def _forge_with_own_key(copy: Copy) -> None:
    copy.write(_rewritten(copy.history, 0), copy.forger)


def _resign_everything(copy: Copy) -> None:
    copy.write(copy.history, copy.forger)


def _rewrite_with_the_key(copy: Copy) -> None:
    copy.write(_rewritten(copy.history, 0), copy.key)


def _equivocate(copy: Copy) -> None:
    """Sign a second history at a size where a later checkpoint confirms the first one."""
    _require(len(copy.history.sizes) > 1)
    key, size = copy.checkpoint(0), copy.history.sizes[0]
    names = tuple(0 if name == size else name for name in copy.history.names)
    floor = tuple(max([0, *names[: at + 1]]) for at in range(len(names)))
    copy.write(replace(copy.history, names=floor), copy.key)
    _set(copy, key, note_of(_rewritten(copy.history, size - 1), size, copy.key))


def _flip_root(copy: Copy) -> None:
    key = copy.checkpoint(-1)
    data = copy.bucket.objects[key]
    second = data.index(b"\n", data.index(b"\n") + 1)
    _set(copy, key, data[: second + 1] + (b"B" if data[second + 1 : second + 2] != b"B" else b"C") + data[second + 2 :])


def _resign_newest(copy: Copy) -> None:
    _set(copy, copy.checkpoint(-1), note_of(copy.history, copy.history.sizes[-1], copy.forger))


def _break_signature(copy: Copy) -> None:
    key = copy.checkpoint(-1)
    note = parse_note(copy.bucket.objects[key])
    line = replace(note.signatures[0], signature=_flip(note.signatures[0].signature, 9))
    _set(copy, key, format_note(replace(note, signatures=(line,))))


def _no_checkpoints(copy: Copy) -> None:
    copy.bucket.objects = without(copy.bucket.objects, f"{copy.history.prefix}checkpoint/")


def _drop_named_checkpoint(copy: Copy) -> None:
    named = [size for size in copy.history.names if size]
    _require(bool(named))
    _drop(copy, f"{copy.history.prefix}checkpoint/{named[-1]:020d}")


def _payload_bit(copy: Copy) -> None:
    key, part = copy.part()
    _set(copy, key, _flip(copy.bucket.objects[key], part.offset + part.length // 2))


def _payload_cut(copy: Copy) -> None:
    key, part = copy.part()
    _set(copy, key, copy.bucket.objects[key][: part.offset + part.length - 1])


def _payload_of_another(copy: Copy) -> None:
    key, part = copy.part()
    everything = [one for header in copy.history.headers for one in header.parts if one.sha256 != part.sha256]
    others = [one for one in everything if copy.history.prefix + one.object in copy.bucket.objects]
    _require(bool(others))
    other = others[0]
    source = copy.bucket.objects[copy.history.prefix + other.object][other.offset : other.offset + other.length]
    data = copy.bucket.objects[key]
    put = (source * (part.length // max(1, len(source)) + 1))[: part.length]
    _set(copy, key, data[: part.offset] + put + data[part.offset + part.length :])


def _part_elsewhere(copy: Copy) -> None:
    """Let a header, chained and signed, name an object that is no payload."""
    at = next((at for at, header in enumerate(copy.history.headers) if header.parts), None)
    _require(at is not None)
    headers = list(copy.history.headers)
    header = headers[at or 0]
    parts = (structs.replace(header.parts[0], object="batch/00000000000000000000"), *header.parts[1:])
    headers[at or 0] = structs.replace(header, parts=parts)
    copy.write(replace(copy.history, headers=chained(headers)), copy.key)


def _second_genesis(copy: Copy) -> None:
    headers = list(copy.history.headers)
    headers[-1] = structs.replace(headers[-1], kind=Kind.SYSTEM_GENESIS)
    _require(len(headers) > 1)
    copy.write(replace(copy.history, headers=chained(headers)), copy.key)


def _skip_position(copy: Copy) -> None:
    """Leave an entry out from the beginning, as an operator with the key can: the stream's positions tell."""
    seen: set[str] = set()
    at = None
    for index, header in enumerate(copy.history.headers):
        if header.stream in seen:
            at = index
        seen.add(header.stream)
    _require(at is not None)
    headers = list(copy.history.headers)
    headers[at or 0] = structs.replace(headers[at or 0], position=headers[at or 0].position + 1)
    copy.write(replace(copy.history, headers=chained(headers)), copy.key)


def _another_log(copy: Copy) -> None:
    _edit_envelope(copy, -1, log_id=f"{copy.history.log_id}x")


def _tile(copy: Copy) -> str:
    tiles = [key for key in copy.hot.objects if "/tile/0/" in key]
    _require(bool(tiles))
    return tiles[0]


def _tile_bit(copy: Copy) -> None:
    key = _tile(copy)
    copy.hot.objects[key] = _flip(copy.hot.objects[key], 100)


def _tile_gone(copy: Copy) -> None:
    del copy.hot.objects[_tile(copy)]


def _of(name: str, apply: Callable[[Copy], None], *needs: str) -> Corruption:
    return Corruption(name=name, apply=apply, needs=frozenset(needs))


CORRUPTIONS: tuple[Corruption, ...] = (
    _of("flip a bit in the headers of a batch", lambda copy: _flip_in_frame(copy, len(copy.history.starts) // 2, 1)),
    _of("flip the first bits of a batch's headers", lambda copy: _flip_in_frame(copy, 0, 0)),
    _of("flip the last bits of the last batch's headers", lambda copy: _flip_in_frame(copy, -1, -1)),
    _of("exchange a header in the middle", lambda copy: _exchange_header(copy, 0, 1, _other_kind)),
    _of("exchange the last header", lambda copy: _exchange_header(copy, -1, -1, _other_kind)),
    _of("exchange the last header of a batch", lambda copy: _exchange_header(copy, 0, -1, _other_kind)),
    _of("change what a header names before it", _change_previous),
    _of("add an unknown field to a header", _unknown_field),
    _of("change the count of a batch", _wrong_count),
    _of("give the last batch an older fence", _older_fence),
    _of("let a batch name another checkpoint", _wrong_checkpoint_named),
    _of("put a batch of another log at the end", _another_log),
    _of("cut a batch in half", _cut_batch),
    _of("empty a batch", lambda copy: _set(copy, copy.batch(0), b"")),
    _of(
        "add white space to a batch", lambda copy: _set(copy, copy.batch(0), copy.bucket.objects[copy.batch(0)] + b"\n")
    ),
    _of("drop the first batch", _drop_first),
    _of("drop a batch in the middle", _drop_middle),
    _of("drop the last batch", _drop_last),
    _of("drop the last batches with their checkpoints", _drop_last_with_checkpoints, HOT),
    _of("roll everything back to an earlier head", _roll_everything_back, SINCE),
    _of("swap two batches", lambda copy: _swap(copy, copy.batch(0), copy.batch(-1))),
    _of("append a batch a second time", _duplicate_batch),
    _of("lay a second batch over an index", _second_batch),
    _of("put a foreign object among the batches", lambda copy: _set(copy, f"{copy.history.prefix}batch/x", b"x")),
    _of("remove an entry from a batch", _remove_entry),
    _of("insert an entry into a batch", _insert_entry),
    _of("exchange the order of two entries", _reorder_entries),
    _of("write another end of the log without the key", _rewrite_tail),
    _of("forge the whole log with another key", _forge_with_own_key),
    _of("sign everything again with another key", _resign_everything),
    _of("rewrite the whole log with the log's own key", _rewrite_with_the_key, SINCE),
    _of("sign two histories with the log's own key", _equivocate),
    _of("leave an entry of a stream out from the beginning", _skip_position),
    _of("splice in a second genesis", _second_genesis),
    _of("change the root in a checkpoint", _flip_root),
    _of("sign the newest checkpoint with another key", _resign_newest),
    _of("break the signature of a checkpoint", _break_signature),
    _of("swap two checkpoints", lambda copy: _swap(copy, copy.checkpoint(0), copy.checkpoint(-1))),
    _of("drop a checkpoint that a batch names", _drop_named_checkpoint),
    _of("drop the newest checkpoint", lambda copy: _drop(copy, copy.checkpoint(-1)), HOT),
    _of("drop all checkpoints", _no_checkpoints),
    _of("flip a bit in a payload", _payload_bit),
    _of("cut a payload off", _payload_cut),
    _of("empty a payload", lambda copy: _set(copy, copy.part()[0], b"")),
    _of("drop a payload", lambda copy: _drop(copy, copy.part()[0])),
    _of("put the part of another entry in its place", _payload_of_another),
    _of("let a header name an object that is no payload", _part_elsewhere),
    _of("hide a batch under a delete marker", lambda copy: copy.bucket.hidden.add(copy.batch(0))),
    _of("hide the last batch under a delete marker", lambda copy: copy.bucket.hidden.add(copy.batch(-1))),
    _of("hide a checkpoint under a delete marker", lambda copy: copy.bucket.hidden.add(copy.checkpoint(-1))),
    _of("hide a payload under a delete marker", lambda copy: copy.bucket.hidden.add(copy.part()[0])),
    _of("lay a second version over a batch", lambda copy: copy.bucket.covered.update({copy.batch(0): b"x"})),
    _of("lay a second version over a checkpoint", lambda copy: copy.bucket.covered.update({copy.checkpoint(0): b"x"})),
    _of("lay a second version over a payload", lambda copy: copy.bucket.covered.update({copy.part()[0]: b"x"})),
    _of("let the store refuse a batch", lambda copy: copy.bucket.denied.add(copy.batch(0))),
    _of("let the store refuse a payload", lambda copy: copy.bucket.denied.add(copy.part()[0])),
    _of("change a tile", _tile_bit, HOT),
    _of("drop a tile", _tile_gone, HOT),
)
"""In the order in which they are shown. Only appended to."""

"""A small log in memory that can be written anew: what a forger, or the operator with the log's own key, would do.

Guarantees: nothing here touches a real bucket; keys are made for the occasion and signed with nowhere else. A copy is
the beginning of a real log up to one of its checkpoints, signed again by a stand-in for the log's key, so that the
same history exists with a key that the proof may use. Only `prove` and tests use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import structs

from audit.reader import Reader
from ledger.batches import Batch, batch_digest, batch_key, decode_batch, encode_batch
from ledger.checkpoint import SignatureType, format_checkpoint, key_id, sign_note, vkey
from ledger.entry import NO_PREVIOUS, Header, decode_header, encode_header, header_hash
from ledger.errors import ObjectHidden, ObjectMissing, StoreDenied
from ledger.merkle import Frontier, root
from ledger.objects import ObjectInfo
from ledger.tiles import TILE_WIDTH, tile_bytes, tile_path

COPY_ENTRIES = 2_000
"""A copy ends at the first checkpoint with so many entries."""


class StandInKey:
    """A fresh Ed25519 key under a log's name; a `ledger.checkpoint.Signer`."""

    algorithm = int(SignatureType.ED25519)

    def __init__(self, name: str) -> None:
        self._key = Ed25519PrivateKey.generate()
        public = self._key.public_key().public_bytes_raw()
        self.name = name
        self.key_id = key_id(name, self.algorithm, public)
        self.vkey = vkey(name, self.algorithm, public)

    def sign(self, message: bytes | memoryview) -> bytes:
        """Return the signature of 64 bytes."""
        return self._key.sign(message)


@dataclass(slots=True)
class MemoryBucket:
    """Objects in memory: `hidden` by a delete marker, `covered` by a second version, `denied` without an answer."""

    objects: dict[str, bytes] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    covered: dict[str, bytes] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of the newest version. Raises: see `audit.reader.Reader`."""
        self._require(key)
        if key in self.hidden:
            raise ObjectHidden(key)
        return self.covered.get(key, self.objects[key])[offset : None if length is None else offset + length]

    def head(self, key: str) -> ObjectInfo:
        """Return size and versions. Raises: see `audit.reader.Reader`."""
        self._require(key)
        versions = 2 if key in self.covered else 1
        hidden = key in self.hidden or versions > 1
        return ObjectInfo(size=len(self.objects[key]), locked_until=None, mode=None, hidden=hidden, versions=versions)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Yield the keys that are not hidden, in order."""
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key not in self.hidden)
        return (key for key in keys if after is None or key > after)

    def copy(self) -> MemoryBucket:
        """Return an independent bucket with the same objects."""
        return MemoryBucket(dict(self.objects), set(self.hidden), dict(self.covered), set(self.denied))

    def _require(self, key: str) -> None:
        if key in self.denied:
            raise StoreDenied("as asked")
        if key not in self.objects:
            raise ObjectMissing(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What a log says without its signatures: headers, where batches start, what they name, which sizes were signed."""

    log_id: str
    headers: tuple[Header, ...]
    starts: tuple[int, ...]
    fences: tuple[int, ...]
    names: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def prefix(self) -> str:
        """What all its keys start with."""
        return f"{self.log_id}/"

    def spans(self) -> list[tuple[int, int]]:
        """Return start and end of every batch."""
        return list(zip(self.starts, (*self.starts[1:], len(self.headers)), strict=True))


def chained(headers: Sequence[Header]) -> tuple[Header, ...]:
    """Return the headers with every `previous` set to the hash of the one before."""
    made: list[Header] = []
    previous = NO_PREVIOUS
    for header in headers:
        linked = header if header.previous == previous else structs.replace(header, previous=previous)
        previous = header_hash(encode_header(linked))
        made.append(linked)
    return tuple(made)


def cut(history: History, size: int) -> History:
    """Return the history as it was when it had `size` entries."""
    kept = [at for at, (start, _) in enumerate(history.spans()) if start < size]
    return replace(
        history,
        headers=history.headers[:size],
        starts=tuple(history.starts[at] for at in kept),
        fences=tuple(history.fences[at] for at in kept),
        names=tuple(history.names[at] for at in kept),
        sizes=tuple(one for one in history.sizes if one <= size),
    )


def note_of(history: History, size: int, key: StandInKey) -> bytes:
    """Return the checkpoint of a size of this history, signed with a key."""
    leaves = (header_hash(encode_header(header)) for header in history.headers[:size])
    return sign_note(format_checkpoint(key.name, size, root(leaves)), [key])


def written(history: History, key: StandInKey) -> dict[str, bytes]:
    """Return batches and checkpoints of a history as a log with this key would have written them."""
    objects: dict[str, bytes] = {}
    raws = [encode_header(header) for header in history.headers]
    notes: dict[int, bytes] = {}
    tree = Frontier()
    for size in sorted(history.sizes):
        tree.append_many(header_hash(raw) for raw in raws[tree.size : size])
        notes[size] = sign_note(format_checkpoint(key.name, size, tree.root()), [key])
        objects[f"{history.prefix}checkpoint/{size:020d}"] = notes[size]
    previous: tuple[str | None, int, bytes | None] = (None, 0, None)
    for (start, end), fence, named in zip(history.spans(), history.fences, history.names, strict=True):
        batch = Batch(
            log_id=history.log_id,
            first=start,
            count=end - start,
            previous_key=previous[0],
            previous_count=previous[1],
            previous_digest=previous[2],
            checkpoint_size=named,
            checkpoint_digest=sha256(notes[named]).digest() if named else None,
            fence=fence,
            headers=tuple(raws[start:end]),
        )
        data = encode_batch(batch)
        objects[f"{history.prefix}{batch.key}"] = data
        previous = (batch.key, batch.count, batch_digest(data))
    return objects


def hot_objects(history: History, key: StandInKey) -> dict[str, bytes]:
    """Return the full tiles under the newest head of a history, and the pointer to that head."""
    size = max(history.sizes, default=0)
    hashes = [header_hash(encode_header(header)) for header in history.headers[:size]]
    objects: dict[str, bytes] = {}
    level = 0
    while len(hashes) >= TILE_WIDTH:
        full = [hashes[at : at + TILE_WIDTH] for at in range(0, len(hashes) - TILE_WIDTH + 1, TILE_WIDTH)]
        for number, tile in enumerate(full):
            objects[f"{history.prefix}{tile_path(level, number)}"] = tile_bytes(tile)
        hashes, level = [root(tile) for tile in full], level + 1
    if size:
        objects[f"{history.prefix}checkpoint"] = note_of(history, size, key)
    return objects


def read_history(reader: Reader, log_id: str, sizes: Sequence[int]) -> History:
    """Return the history of a sound log up to one of its signed sizes. Raises what reading and decoding raise."""
    enough = [size for size in sizes if size >= COPY_ENTRIES]
    end = min(enough) if enough else max(sizes)
    headers: list[Header] = []
    starts, fences, names = [], [], []
    for key in reader.list(f"{log_id}/batch/"):
        batch = decode_batch(reader.get(key))
        if batch.first >= end:
            break
        starts.append(batch.first)
        fences.append(batch.fence)
        names.append(batch.checkpoint_size)
        headers.extend(decode_header(raw) for raw in batch.headers)
    kept = {size for size in sizes if size <= end}
    history = History(
        log_id=log_id,
        headers=tuple(headers),
        starts=tuple(starts),
        fences=tuple(fences),
        names=tuple(name if name in kept else 0 for name in names),
        sizes=tuple(sorted(kept)),
    )
    return cut(history, end)


def payload_of(reader: Reader, history: History) -> dict[str, bytes]:
    """Return the payload objects that a history names; what is gone is left out."""
    objects: dict[str, bytes] = {}
    for name in {part.object for header in history.headers for part in header.parts}:
        try:
            objects[f"{history.prefix}{name}"] = reader.get(f"{history.prefix}{name}")
        except ObjectMissing:
            continue
    return objects


def batch_name(history: History, at: int) -> str:
    """Return the object key of batch number `at`."""
    return f"{history.prefix}{batch_key(history.starts[at])}"


def without(objects: Mapping[str, bytes], prefix: str) -> dict[str, bytes]:
    """Return the objects whose keys do not start with a prefix."""
    return {key: data for key, data in objects.items() if not key.startswith(prefix)}

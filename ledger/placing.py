"""From sealed drafts to the bytes of a batch: which object holds which part, who comes after whom.

Guarantees: values in, values out; what stands here is a function of drafts, the log's end and the fencing number, so it
can be made again behind another end. Not here: stores, the database, duplicates, fences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from ledger.batches import MAX_HEADERS_BYTES, Batch, batch_key
from ledger.checkpoint import sign_note
from ledger.draft import Draft, SealedPart
from ledger.entry import Header, Part, encode_header, header_hash, uuid7, with_place
from ledger.head import Head
from ledger.index import IndexLine

Fresh = Sequence[tuple[Draft, frozenset[int]]]
"""Drafts that are not in the log yet, each with the numbers of the parts that a fence closed."""

Stored = dict[int, Part]
"""Where parts lie that are in the bucket already, by the identity of the sealed part."""


Objects = Sequence[tuple[str, bytes, datetime | None]]
"""Payload objects: name, bytes, end of the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Headers with their places, their bytes and their leaf hashes, in order."""

    headers: list[Header]
    raws: list[bytes]
    leaves: list[bytes]


def pack_objects(fresh: Fresh, stored: Stored, now: datetime) -> tuple[Objects, Stored]:
    """Return the payload objects to write (key, bytes, lock end), one per lock end, and where each part will lie."""
    objects: dict[datetime | None, tuple[str, bytearray]] = {}
    places: Stored = {}
    for draft, dropped in fresh:
        for number, part in enumerate(draft.parts):
            if number in dropped or id(part) in stored:
                continue
            until = part.lock_until
            found = objects.get(until)
            if found is None:
                month = "none" if until is None else f"{until - timedelta(microseconds=1):%Y-%m}"
                found = objects[until] = (f"payload/{month}/{uuid7(now)}", bytearray())
            places[id(part)] = _part(part, found[0], len(found[1]))
            found[1].extend(part.ciphertext)
    return [(key, bytes(data), until) for until, (key, data) in objects.items()], places


def chain(fresh: Fresh, stored: Mapping[int, Part], *, previous: bytes, positions: Mapping[int, int]) -> Chain:
    """Give each draft the next position of its stream and the hash of the header before it.

    It ends with the last one whose header still fits into a batch; the others come into the batch after it.
    """
    size = 0
    following = dict(positions)
    made = Chain(headers=[], raws=[], leaves=[])
    for draft, dropped in fresh:
        position = following.get(draft.stream_no, 0)
        following[draft.stream_no] = position + 1
        parts = [stored[id(part)] for number, part in enumerate(draft.parts) if number not in dropped]
        header = Header(
            id=draft.entry_id,
            kind=draft.kind,
            data_class=draft.data_class,
            at=draft.at,
            received=draft.received,
            recorder=draft.recorder,
            seq=draft.seq,
            stream=draft.stream_id,
            position=position,
            previous=previous,
            sources_count=draft.sources_count,
            sources_root=draft.sources_root,
            parts=tuple(parts),
        )
        if draft.stem is None or dropped:
            raw = encode_header(header)
        else:
            raw = with_place(draft.stem, parts, position, previous)
        size += len(raw) + 1
        if size > MAX_HEADERS_BYTES:
            break
        previous = header_hash(raw)
        made.headers.append(header)
        made.raws.append(raw)
        made.leaves.append(previous)
    return made


def index_lines(fresh: Fresh) -> list[IndexLine]:
    """Return what the index knows of these entries beside their headers."""
    return [
        IndexLine(
            entry_id=draft.entry_id,
            class_version=draft.class_version,
            stream_no=draft.stream_no,
            run_no=draft.run_no,
            set_id=draft.set_id,
            digest=draft.digest,
            noncanonical=draft.noncanonical,
            key_ids=tuple([part.key_ids for number, part in enumerate(draft.parts) if number not in dropped]),
        )
        for draft, dropped in fresh
    ]


def batch_of(head: Head, raws: Sequence[bytes], fence: int) -> Batch:
    """Return the batch that continues the log of `head`."""
    return Batch(
        log_id=head.log_id,
        first=head.size,
        count=len(raws),
        previous_key=None if head.batch_first is None else batch_key(head.batch_first),
        previous_count=head.batch_count,
        previous_digest=head.batch_digest or None,
        checkpoint_size=head.checkpoint_size,
        checkpoint_digest=head.checkpoint_digest or None,
        fence=fence,
        headers=tuple(raws),
    )


def receipt_of(head: Head, first: int, batch: Batch, data: bytes, now: datetime) -> str:
    """Return a signed note over a flush, from the index `first` to its last batch.

    It commits to every header of the flush: to those of the last batch by its digest, to those of earlier ones because
    each batch names the digest of the one before it.
    """
    text = receipt_text(head.origin, first, batch.end - first, sha256(data).digest(), now)
    return sign_note(text, head.signers).decode()


def receipt_text(origin: str, first: int, count: int, digest: bytes, now: datetime) -> str:
    """Return the text of a receipt for `count` entries, whose last batch has this digest; `now` is in UTC."""
    return f"muniment-receipt/v1\n{origin}\n{first}\n{count}\n{digest.hex()}\n{now:%Y-%m-%dT%H:%M:%S.%fZ}\n"


def personal(draft: Draft) -> int:
    """Return the number of parts that hold somebody's data."""
    return sum(1 for subjects in draft.subjects if subjects)


def weight(drafts: Iterable[Draft]) -> int:
    """Return the bytes of ciphertext in drafts."""
    return sum(len(part.ciphertext) for draft in drafts for part in draft.parts)


def _part(part: SealedPart, key: str, offset: int) -> Part:
    return Part(
        role=part.role,
        algorithm=part.algorithm,
        length=len(part.ciphertext),
        sha256=part.sha256 or sha256(part.ciphertext).digest(),
        object=key,
        offset=offset,
    )

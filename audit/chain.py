"""One batch after the other: strict decoding, and which exact entry breaks the chain of headers.

Guarantees: every header commits to the one before it, so one changed header breaks the link to its successor, and a
changed link breaks both of its sides; that tells which of two entries was changed. The leaf of a changed entry is
healed from the `previous` of its successor, so that a good signature behind it still proves all the others.
Pure: reads nothing. Does not know whether a checkpoint agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from audit.findings import Findings, Verdict
from audit.headers import ReadHeader, read_header, read_headers
from ledger.batches import Batch, batch_digest, decode_batch, open_envelope, open_frame, salvage_headers
from ledger.entry import NO_PREVIOUS, Kind, header_hash
from ledger.errors import MalformedBatch, MalformedHeader
from ledger.merkle import leaf_hashes

RESTORE = "restore the object from an earlier version or a copy of the bucket; nothing else brings its bytes back"


@dataclass(slots=True, kw_only=True)
class Taken:
    """A batch as it was read. Lists run over its entries; `spoiled` are the offsets that a finding names already."""

    key: str
    first: int
    digest: bytes
    envelope: Batch | None
    raws: Sequence[bytes | None]
    headers: list[ReadHeader | None] = field(default_factory=list)
    leaves: list[bytes | None] = field(default_factory=list)
    spoiled: set[int] = field(default_factory=set)

    @property
    def end(self) -> int:
        """The index after its last entry."""
        return self.first + len(self.raws)

    @property
    def first_previous(self) -> bytes | None:
        """The leaf hash that its first header names as the one before it, None when that header cannot be read."""
        header = self.headers[0]
        return None if header is None else header.previous_hash

    def entries(self) -> Iterator[tuple[int, ReadHeader]]:
        """Yield index and header of every entry that can be read and is not blamed."""
        for offset, header in enumerate(self.headers):
            if header is not None and offset not in self.spoiled:
                yield self.first + offset, header


def take(key: str, first: int, data: bytes, findings: Findings) -> Taken | None:
    """Return the batch in these bytes; None when not even its entries can be told apart.

    What is wrong with the envelope or a header is added to the findings, with the exact index where there is one.
    """
    try:
        batch = decode_batch(data)
    except MalformedBatch as error:
        return _salvage(key, first, data, error, findings)
    if batch.first != first:
        detail = f"the key stands for index {first}, the batch inside starts at {batch.first}: it was moved; {RESTORE}"
        findings.add(Verdict.ALTERED, detail, object=key, index=first)
        return None
    taken = Taken(key=key, first=first, digest=batch_digest(data), envelope=batch, raws=batch.headers)
    _decode(taken, findings)
    return taken


def blame(taken: Taken, before: bytes | None, after: bytes | None, *, link_holds: bool) -> tuple[set[int], bool]:
    """Return the offsets of the entries that break the chain, and whether the next batch's first entry does.

    `before` is the leaf before the batch, `after` what the next batch's first header names; None for unknown.
    `link_holds`: the next batch names this one's digest, so a break between the two is the next one's fault.
    """
    if _holds(taken, before, after):
        return set(), False
    count = len(taken.headers)
    named = [None if header is None else header.previous_hash for header in taken.headers]
    lefts = [before, *taken.leaves]
    rights = [*named, after]
    broken = [
        lefts[at] is not None
        and rights[at] is not None
        and lefts[at] != rights[at]
        and at not in taken.spoiled
        and at - 1 not in taken.spoiled
        for at in range(count + 1)
    ]
    blamed: set[int] = set()
    for at in range(1, count):
        if not broken[at] or at - 1 in blamed:
            continue
        blamed.add(at if broken[at + 1] and (at + 1 < count or not link_holds) else at - 1)
    # Any other link to the batch before was judged there; before the very first entry nobody else can be at fault.
    if broken[0] and before == NO_PREVIOUS:
        blamed.add(0)
    next_is_blamed = broken[count] and count - 1 not in blamed and link_holds
    if broken[count] and not next_is_blamed:
        blamed.add(count - 1)
    return blamed, next_is_blamed


def _holds(taken: Taken, before: bytes | None, after: bytes | None) -> bool:
    """Whether every header names the leaf before it: nearly always, and then one comparison says so."""
    named = [header.previous for header in taken.headers if header is not None]
    leaves = [leaf for leaf in (before, *taken.leaves) if leaf is not None]
    return (
        not taken.spoiled
        and len(named) + 1 == len(leaves) == len(taken.headers) + 1
        and "".join(named) == b"".join(leaves[:-1]).hex()
        and after in (None, leaves[-1])
    )


def heal(taken: Taken, after: bytes | None) -> None:
    """Give every blamed entry the leaf that its successor names; None where there is no successor to ask."""
    for offset in sorted(taken.spoiled):
        if offset + 1 < len(taken.headers):
            successor = taken.headers[offset + 1]
            known = successor is not None and offset + 1 not in taken.spoiled
            taken.leaves[offset] = successor.previous_hash if successor is not None and known else None
        else:
            taken.leaves[offset] = after


def _decode(taken: Taken, findings: Findings) -> None:
    """Read the headers: all at once where nothing is wrong with any, else each for itself."""
    raws = [raw for raw in taken.raws if raw is not None]
    headers = read_headers(raws) if len(raws) == len(taken.raws) else None
    if headers is not None and all(header.kind != Kind.SYSTEM_GENESIS for header in headers[not taken.first :]):
        taken.headers += headers
        taken.leaves += leaf_hashes(raws)
        return
    for offset, raw in enumerate(taken.raws):
        header: ReadHeader | None = None
        if raw is not None:
            try:
                header = read_header(raw)
            except MalformedHeader as error:
                detail = f"the header is not what the log writes ({error.reason}); {RESTORE}"
                findings.add(Verdict.ALTERED, detail, object=taken.key, index=taken.first + offset)
        if header is None:
            taken.spoiled.add(offset)
        elif header.kind == Kind.SYSTEM_GENESIS and taken.first + offset:
            detail = "a second genesis: another log was spliced in here"
            findings.add(Verdict.FORKED, detail, object=taken.key, entry=header.id, index=taken.first + offset)
        taken.headers.append(header)
        taken.leaves.append(None if raw is None else header_hash(raw))


def _salvage(key: str, first: int, data: bytes, error: MalformedBatch, findings: Findings) -> Taken | None:
    """Take of a damaged batch what can be.

    Of version 1 every entry but a damaged one; else its entries where the envelope is damaged, their number where the
    frame is.
    """
    raws: Sequence[bytes | None] = salvage_headers(data)
    if raws:
        # Which header is damaged, where one is; else it is the envelope.
        lost = [first + offset for offset, raw in enumerate(raws) if raw is None]
        what = "header of this entry" if lost else "envelope of the batch"
        for index in lost or [first]:
            detail = f"the {what} is damaged ({error.reason}); {RESTORE}"
            findings.add(Verdict.ALTERED, detail, object=key, index=index)
        return _loose(key, first, data, raws, findings)
    with suppress(MalformedBatch):
        raws = open_frame(data)
    try:
        count = open_envelope(data).count
    except MalformedBatch:
        detail = f"the envelope of the batch is damaged ({error.reason}); {RESTORE}"
        if not raws:
            findings.add(Verdict.ALTERED, detail, object=key, index=first)
            return None
    else:
        detail = f"the headers of entries {first} to {first + count - 1} are damaged ({error.reason}); {RESTORE}"
        # A frame with a changed byte may still open, to headers that nobody wrote: nothing is judged by them.
        raws = [None] * count
    findings.add(Verdict.ALTERED, detail, object=key, index=first)
    return _loose(key, first, data, raws, findings)


def _loose(key: str, first: int, data: bytes, raws: Sequence[bytes | None], findings: Findings) -> Taken:
    """Take entries whose envelope says nothing any more."""
    taken = Taken(key=key, first=first, digest=batch_digest(data), envelope=None, raws=raws)
    _decode(taken, findings)
    return taken

"""A call's entries as a sheet: what they say alike once, and what each says of its own in columns.

Most entries of a call name the same few people, streams and classes. A sheet holds that once as a `Saying`, so that the
process that looks things up needs no bodies, and the one that reads and seals bodies needs no database and no key of
its own: it is given the keys of one call with the order to seal, and keeps none.

Guarantees: what is refused is refused as `registry.entries` refuses it; a sealed part is what `vault.sealing` makes of
the bytes that arrived. A sheet holds no body, but of the kinds that machines listen to. Pure. Not here: processes
(`registry.preparing`), what a saying means (`registry.sheet_drafting`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec

from ledger.entry import NO_PREVIOUS, Header, Part, stem_of
from registry.entries import BODY, JSON, EntryIn, MalformedEntry, Parsed, PartIn, parse_entry, split_batch, split_lines
from registry.machines import KINDS
from vault.envelope import entry_of
from vault.mac import Mac
from vault.sealing import Job, Sealed, seal_parts

DIGEST_BYTES = 16
"""Of the keyed digest that tells a repeat from another content under the same id."""
DIGEST_LABEL = "entry"


class SaidPart(msgspec.Struct, frozen=True, array_like=True):
    """A part without its bytes. `subjects` None means the entry's."""

    name: str
    form: str
    subjects: tuple[str, ...] | None
    data_class: str | None
    pinned: bool


class Saying(msgspec.Struct, frozen=True, array_like=True):
    """What entries have in common that differ in id, time, number and content alone."""

    stream: str
    kind: str
    data_class: str
    recorder: str | None
    actor: str | None
    run: str | None
    agent: str | None
    model: str | None
    prompt_version: str | None
    policy: str | None
    subjects: tuple[str, ...]
    sources: tuple[str, ...]
    parts: tuple[SaidPart, ...]


class Refused(msgspec.Struct, frozen=True, array_like=True):
    """An item that is no entry: its number in the call, its id where it could be read, and why."""

    number: int
    entry_id: str | None
    problem: dict[str, Any]


class Sheet(msgspec.Struct, frozen=True, array_like=True):
    """A call: how many items it has, which are refused, and of the others, in order, what each says.

    `says` are numbers of `sayings`. `odd` are the places, in these columns, of entries with a body that not every
    reader understands alike; `heard` are bodies that machines listen to, by place.
    """

    count: int
    refused: list[Refused]
    sayings: list[Saying]
    numbers: list[int]
    says: list[int]
    ids: list[str]
    ats: list[datetime]
    seqs: list[int | None]
    odd: list[int]
    heard: dict[int, bytes]


class ShapedHeader(msgspec.Struct, frozen=True, array_like=True):
    """What the headers of entries of one saying have in common; `roles` are those of the parts, in order."""

    kind: str
    data_class: str
    recorder: str | None
    stream: str
    sources_count: int
    sources_root: bytes | None
    algorithm: str
    roles: tuple[str, ...]


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """How entries of one saying are sealed: for each part the number of its key and how its context ends.

    The parts are those that were sent, in order, then the actor where `spoken` says a name, then the skeleton, whose
    packed bytes are `facts`.
    """

    parts: tuple[tuple[int, bytes], ...]
    spoken: bytes | None
    facts: bytes
    header: ShapedHeader


class SealOrder(msgspec.Struct, frozen=True, array_like=True):
    """What it takes to seal a sheet; None stands for a saying whose entries are not taken."""

    tenant: str
    log_id: str
    received: datetime
    digest_key: bytes
    keys: list[bytes]
    shapes: list[Shape | None]


class SealedSheet(msgspec.Struct, frozen=True, array_like=True):
    """Ciphertexts and their SHA-256, entry by entry and part by part.

    Of each entry the keyed digest of its bytes and the stem of its header (`ledger.entry.stem_of`).
    """

    ciphertexts: list[bytes]
    hashes: list[bytes]
    digests: list[bytes]
    stems: list[tuple[str, ...]]


class Content(msgspec.Struct, frozen=True):
    """What one entry of a sheet consists of: its saying, id, time and number, its bytes and those of its parts."""

    says: int
    entry_id: str
    at: datetime
    seq: int | None
    raw: bytes
    parts: list[bytes]


_ALIKE = attrgetter(
    "stream", "kind", "data_class", "recorder", "actor", "run", "agent", "model", "prompt_version", "policy"
)
_WHOLE = (SaidPart(BODY, JSON, None, None, False),)


def read_sheet(data: bytes, *, lines: bool, most: int) -> tuple[Sheet, list[Content]] | None:
    """Return the sheet of a call and the contents of its entries; None for more than `most` items.

    Raises: MalformedEntry for a body that cannot be taken apart.
    """
    raws = split_lines(data) if lines else split_batch(data)
    if len(raws) > most:
        return None
    sheet = Sheet(len(raws), [], [], [], [], [], [], [], [], {})
    contents: list[Content] = []
    known: dict[tuple[Any, ...], int] = {}
    for number, raw in enumerate(raws):
        try:
            parsed = parse_entry(raw)
        except MalformedEntry as error:
            sheet.refused.append(
                Refused(number, error.entry_id, problem_of(error.problem, error.detail, error.pointer))
            )
            continue
        sent = parsed.sent
        parts = _WHOLE if sent.parts is None else _said_parts(parsed)
        key = (*_ALIKE(sent), tuple(sent.subjects), tuple(sent.sources), parts)
        says = known.get(key)
        if says is None:
            says = known[key] = len(sheet.sayings)
            sheet.sayings.append(Saying(*key))
        here = len(contents)
        contents.append(Content(says, sent.id, parsed.at, sent.seq, raw, [part.data for part in parsed.parts]))
        sheet.numbers.append(number)
        sheet.says.append(says)
        sheet.ids.append(sent.id)
        sheet.ats.append(parsed.at)
        sheet.seqs.append(sent.seq)
        if parsed.noncanonical:
            sheet.odd.append(here)
        if sent.kind in KINDS and (body := heard_body(parsed)) is not None:
            sheet.heard[here] = body
    return sheet, contents


def seal_sheet(contents: Sequence[Content], order: SealOrder) -> SealedSheet:
    """Return what is sealed of a sheet's contents. Raises: TooLarge, NotDecryptable for a key of another length."""
    jobs: list[Job] = []
    digests: list[bytes] = []
    digest = Digests(order.digest_key)
    for content in contents:
        shape = order.shapes[content.says]
        if shape is None:
            continue
        entry = entry_of(order.tenant, order.log_id, content.entry_id)
        spoken = () if shape.spoken is None else (shape.spoken,)
        jobs += [
            (key, entry + bound, data, False)
            for (key, bound), data in zip(shape.parts[:-1], (*content.parts, *spoken), strict=True)
        ]
        key, bound = shape.parts[-1]
        jobs.append((key, entry + bound, shape.facts, True))
        digests.append(digest.of(content.entry_id, content.raw))
    sealed = seal_parts(order.keys, jobs)
    parts = iter(sealed)
    stems = [
        _stem(content, shape.header, order.received, parts)
        for content in contents
        if (shape := order.shapes[content.says]) is not None
    ]
    return SealedSheet([one for one, _ in sealed], [one for _, one in sealed], digests, stems)


def _stem(content: Content, shaped: ShapedHeader, received: datetime, sealed: Iterator[Sealed]) -> tuple[str, ...]:
    parts = tuple(
        [
            Part(role=role, algorithm=shaped.algorithm, length=len(ciphertext), sha256=digest, object="", offset=0)
            # The roles come first: where they end, what was sealed of the next entry stays.
            for role, (ciphertext, digest) in zip(shaped.roles, sealed, strict=False)
        ]
    )
    return stem_of(
        Header(
            id=content.entry_id,
            kind=shaped.kind,
            data_class=shaped.data_class,
            at=content.at,
            received=received,
            recorder=shaped.recorder,
            seq=content.seq,
            stream=shaped.stream,
            position=0,
            previous=NO_PREVIOUS,
            sources_count=shaped.sources_count,
            sources_root=shaped.sources_root,
            parts=parts,
        )
    )


class Digests:
    """Keyed digests of entries, as a repeat is known by."""

    __slots__ = ("_mac",)

    def __init__(self, key: bytes) -> None:
        self._mac = Mac(key)

    def of(self, entry_id: str, raw: bytes) -> bytes:
        """Return the digest of an entry's bytes."""
        label, name = DIGEST_LABEL.encode(), entry_id.encode()
        message = b"".join(
            (_length(label), label, _length(name), name, _length(raw), raw),
        )
        return self._mac.of(message)[:DIGEST_BYTES]


def problem_of(kind: str, detail: str, pointer: str) -> dict[str, Any]:
    """Return a refusal as it is answered."""
    made: dict[str, Any] = {"type": f"/problems/{kind}", "title": kind.replace("-", " "), "detail": detail}
    made["errors"] = [{"pointer": pointer, "detail": detail}]
    return made


def heard_body(parsed: Parsed) -> bytes | None:
    """Return the body that a machine listens to: the first that is JSON."""
    return next((part.data for part in parsed.parts if part.form == JSON), None)


def spoken_for(saying: Saying, entry_id: str) -> EntryIn:
    """Return an entry that says this, without a content and a number; its parts say whose they are, and no more."""
    return EntryIn(
        id=entry_id,
        at="",
        **{name: getattr(saying, name) for name in _NAMES},
        subjects=list(saying.subjects),
        sources=list(saying.sources),
        parts=None if saying.parts == _WHOLE else [_spoken_part(part) for part in saying.parts],
    )


def _spoken_part(part: SaidPart) -> PartIn:
    subjects = None if part.subjects is None else list(part.subjects)
    return PartIn(name=part.name, subjects=subjects, data_class=part.data_class, pinned=part.pinned)


_NAMES = (
    "stream", "kind", "data_class", "recorder", "actor", "run", "agent", "model", "prompt_version", "policy",
)  # fmt: skip


def _said_parts(parsed: Parsed) -> tuple[SaidPart, ...]:
    return tuple(SaidPart(part.name, part.form, part.subjects, part.data_class, part.pinned) for part in parsed.parts)


def _length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big")

"""Stores of vectors as one connector: points with a payload and vectors, under an id in a collection.

Guarantees, beyond the contract of `base`: a point is deleted by its id, and where an owner is configured only together
with the owner that was compared; an id that several rows share is refused. Texts and vectors (in their byte forms, see
`vectors`) of a point are captured unless another point holds them too. `verify` reads by id, then has the kind look
through everything that lies in the store's files, decoded where bytes alone show nothing.

Does not know any product: what a store's files hold and how they are freed is said by the kind (`lancedb`, `chroma`,
`qdrant`), through `Places` and the four hooks of `VectorConnector`.
"""

from __future__ import annotations

import json
import secrets
import struct
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from connectors.apart import done_apart
from connectors.base import (
    Capabilities,
    CheckReport,
    Connector,
    Deadline,
    FenceReport,
    Finding,
    Item,
    Level,
    Locator,
    Outcome,
    Receipt,
    ReclaimReport,
    Residue,
    Selector,
    owner_forms,
)
from connectors.checking import check_report, try_out
from connectors.errors import BadConfig, BadLocator, ConnectorError, ReadOnlyConnector
from connectors.residue import Hits, Needles, samples
from connectors.serialized import shown, texts
from connectors.sql_answers import Answer
from connectors.vectors import forms

if TYPE_CHECKING:
    from datetime import datetime

BATCH = 500
_CANARIES = 48
"""Byte strings of a point that are kept: vectors first, then the longest texts."""
_SOUGHT = 100_000
"""Byte strings that one connector remembers between erasing and freeing."""
PointId = str | int
NO_COLLECTION = "no collection of this name: another scope, or dropped as a whole"
UNPROVEN = "logs, snapshots and backups of the folder cannot be read here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One row: its payload as plain values (the text is one of them), and its vectors."""

    id: PointId
    payload: Any = field(repr=False)
    vectors: tuple[tuple[float, ...], ...] = field(default=(), repr=False)

    def content(self) -> Iterator[bytes]:
        """Yield what another point's canary is compared with: texts, and vectors as float32."""
        for text in payload_texts(self.payload):
            yield text
            yield b"\0"
        for vector in self.vectors:
            yield struct.pack(f"<{len(vector)}f", *vector)
            yield b"\0"


class Places(ABC):
    """One open store, for the length of one call."""

    @abstractmethod
    def collections(self) -> list[str]:
        """Return the names of all collections."""

    @abstractmethod
    def identify(self, collection: str, given: object) -> PointId:
        """Return the id as the collection writes it. Raises: BadLocator."""

    @abstractmethod
    def read(self, collection: str, ids: Sequence[PointId]) -> dict[PointId, list[Point]]:
        """Return the rows of each id that has any."""

    @abstractmethod
    def pages(self, collection: str) -> Iterator[list[Point]]:
        """Yield all points of a collection, in pages."""

    def hides(self, collection: str, owners: frozenset[str]) -> bool:
        """Tell whether an owner has rows there that no id names."""
        return False

    @abstractmethod
    def delete(self, collection: str, ids: Sequence[PointId], owners: frozenset[str] | None) -> None:
        """Delete these ids; where `owners` is given only rows that name one of them, in one step of the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look through the files showed: canaries found, and for which collections nobody could look, and why."""

    found: frozenset[int]
    how: str
    unproven: Mapping[str, str] = field(default_factory=dict)
    traces: frozenset[tuple[str, PointId]] = frozenset()
    """Places whose id still stands somewhere beside the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorConfig:
    """What a store was registered with."""

    path: Path | None
    url: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    owner_field: str | None = None


def vector_config(config: Mapping[str, Any]) -> VectorConfig:
    """Return the settings that all kinds of vector stores share. Raises: BadConfig."""
    if unknown := set(config) - {"path", "url", "api_key", "owner_field"}:
        raise BadConfig(f"unknown setting {', '.join(sorted(unknown))}")
    path, url, owner = config.get("path"), config.get("url"), config.get("owner_field")
    if (path is None) == (url is None):
        raise BadConfig("one of path and url is given")
    if path is not None and (not isinstance(path, str) or not PurePosixPath(path).is_absolute()):
        raise BadConfig("path is an absolute path")
    if url is not None and (not isinstance(url, str) or not url.startswith(("http://", "https://"))):
        raise BadConfig("url is of http:// or https://")
    if owner is not None and (not isinstance(owner, str) or not owner or any(sign in owner for sign in "\"'`\\\0")):
        raise BadConfig("owner_field is a name")
    key = config.get("api_key")
    if key is not None and (not isinstance(key, str) or url is None):
        raise BadConfig("api_key is a text and goes with url")
    return VectorConfig(path=None if path is None else Path(path), url=url, api_key=key, owner_field=owner)


class VectorConnector(Connector):
    """Drives the collections of one store."""

    kind: ClassVar[str]
    method: ClassVar[str]
    locks: ClassVar[str]

    def __init__(self, config: VectorConfig, *, read_only: bool) -> None:
        self._config = config
        self._read_only = read_only
        self._touched: set[str] = set()
        self._sought: dict[bytes, None] = {}
        """What the erased points held, for kinds that free more than the collections that were touched."""

    @abstractmethod
    def _open(self, limit: Deadline, *, read_only: bool) -> AbstractContextManager[Places]:
        """Open the store. Raises: StoreUnreachable, WrongCredentials, Timeout."""

    @abstractmethod
    def _free(self, collections: Sequence[str], limit: Deadline) -> ReclaimReport:
        """Free the bytes of what was deleted in these collections. Raises: ConnectorError."""

    @abstractmethod
    def _look(
        self, items: Sequence[tuple[str, PointId]], canaries: Sequence[bytes], reclaimed: ReclaimReport | None,
        limit: Deadline,
    ) -> Look:  # fmt: skip
        """Look for canaries, and for traces of these ids, in everything that lies in the files. Raises: Timeout."""

    @abstractmethod
    def _hits(self, canaries: Sequence[bytes], limit: Deadline) -> list[tuple[str, Hits]]:
        """Return the hits in the files by place, decoded ones too. Raises: Timeout."""

    @abstractmethod
    def _scratch(self, document: Mapping[str, str], vector: Sequence[float], limit: Deadline) -> AbstractContextManager[
        dict[str, Any]
    ]:  # fmt: skip
        """Write one point into a collection of our own and give its locator; remove the collection at the end."""

    @override
    def capabilities(self) -> Capabilities:
        owner = self._config.owner_field is not None
        return Capabilities(
            kind=self.kind, erase_level=Level.L1, reclaim_level=Level.L2, verify_level=Level.L2, batch_size=BATCH,
            locks=self.locks, fence=False, search=False, owner_check=owner, discover=owner, read_only=self._read_only,
        )  # fmt: skip

    @override
    def check_locator(self, locator: Locator) -> None:
        with self._open(Deadline("check_locator", 10), read_only=True) as places:
            collection, given = _named(locator)
            if collection not in places.collections():
                raise BadLocator(NO_COLLECTION)
            places.identify(collection, given)

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        if self._config.owner_field is None:
            raise BadConfig("discover needs owner_field")
        wanted, limit = owner_forms(selector.identifiers), Deadline("discover", deadline)
        with self._open(limit, read_only=True) as places:
            if any(places.hides(collection, wanted) for collection in places.collections()):
                raise BadLocator("rows of the owner have no id, so they cannot be named one by one")
        for collection, point in self._all(limit):
            if self.owner(point) in wanted:
                yield {"collection": collection, "id": point.id}

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        for collection, point in self._all(Deadline("walk", deadline)):
            yield {"collection": collection, "id": point.id}

    def _all(self, limit: Deadline) -> Iterator[tuple[str, Point]]:
        with self._open(limit, read_only=True) as places:
            for collection in places.collections():
                for page in places.pages(collection):
                    limit.check()
                    yield from ((collection, point) for point in page)

    def owner(self, point: Point) -> str | None:
        """Return whom a point names as its owner."""
        return owner_named(point.payload, str(self._config.owner_field))

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        limit = Deadline("capture", deadline)
        own: defaultdict[str, dict[PointId, list[str]]] = defaultdict(dict)
        candidates: list[tuple[str, bytes, tuple[bytes, ...]]] = []
        with self._open(limit, read_only=True) as places:
            known = set(places.collections())
            for item in items:
                collection, given = _named(item.locator)
                if collection in known:
                    own[collection].setdefault(places.identify(collection, given), []).append(item.copy_id)
            for collection, copies in own.items():
                for found in _batched(places, collection, list(copies), limit):
                    for number, points in found.items():
                        pieces = [piece for point in points for piece in self._pieces(point)]
                        candidates += [(copy, *piece) for copy in copies[number] for piece in pieces]
            shared = self._shared(places, own, [probe for _, probe, _ in candidates], limit)
        held: dict[str, list[bytes]] = {item.copy_id: [] for item in items}
        for number, (copy, _, canaries) in enumerate(candidates):
            if number not in shared and len(held[copy]) < _CANARIES:
                held[copy] += canaries
        self._seek(canary for canaries in held.values() for canary in canaries)
        return held

    def _seek(self, canaries: Iterable[bytes]) -> None:
        self._sought |= dict.fromkeys(islice(canaries, max(0, _SOUGHT - len(self._sought))))

    def _pieces(self, point: Point) -> Iterator[tuple[bytes, tuple[bytes, ...]]]:
        """Yield what of a point to look for: a byte string no other point may hold, and what is kept when none does."""
        for vector in point.vectors:
            if found := forms(vector):
                yield found[0], (*found, *self._more_forms(vector))
        mine = self.owner(point) if self._config.owner_field is not None else None
        owned = None if mine is None else mine.encode()
        pieces = {piece for text in payload_texts(point.payload) if text != owned for piece in samples(text)}
        for piece in sorted(pieces, key=lambda piece: (-len(piece), piece)):
            yield piece, (piece,)

    def _more_forms(self, vector: Sequence[float]) -> tuple[bytes, ...]:
        """Return further byte forms that this kind of store gives a vector."""
        return ()

    @staticmethod
    def _shared(
        places: Places, own: Mapping[str, Mapping[PointId, object]], probes: Sequence[bytes], limit: Deadline
    ) -> set[int]:
        def content() -> Iterator[bytes]:
            for collection in places.collections():
                mine = own.get(collection, {})
                for page in places.pages(collection):
                    for point in page:
                        if point.id not in mine:
                            yield from point.content()

        return {number for number, _ in Needles(probes).count_chunks(content(), limit)} if probes else set()

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        limit = Deadline("export", deadline)
        with self._open(limit, read_only=True) as places:
            known = set(places.collections())
            for item in items:
                limit.check()
                collection, given = _named(item.locator)
                ids = [places.identify(collection, given)] if collection in known else []
                points = [point for found in places.read(collection, ids).values() for point in found] if ids else []
                shows = [
                    {"id": point.id, "payload": shown(point.payload), "vectors": point.vectors} for point in points
                ]
                content = json.dumps(shows[0] if len(shows) == 1 else shows, ensure_ascii=False).encode()
                yield item.copy_id, content if points else None

    @override
    def fence(self, scope: Locator) -> FenceReport:
        return FenceReport(held=False, detail="the store cannot refuse writes of a scope; late points are looked for")

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        if self._read_only:
            raise ReadOnlyConnector("erase")
        limit = Deadline("erase", deadline)
        wanted = owner_forms(owner_identifiers)
        answers: dict[int, Answer] = {}
        groups: defaultdict[str, dict[int, PointId]] = defaultdict(dict)
        with self._open(limit, read_only=False) as places:
            known = set(places.collections())
            for number, item in enumerate(items):
                try:
                    collection, given = _named(item.locator)
                    if collection not in known:
                        raise BadLocator(NO_COLLECTION)  # noqa: TRY301 -- answered like every other bad locator
                    groups[collection][number] = places.identify(collection, given)
                except BadLocator as bad:
                    answers[number] = Outcome.FAILED, bad.detail
            for collection, numbered in groups.items():
                self._touched.add(collection)
                for start in range(0, len(numbered), BATCH):
                    part = dict(list(numbered.items())[start : start + BATCH])
                    if limit.is_over():
                        answers |= dict.fromkeys(part, (Outcome.FAILED, "not reached before the deadline"))
                        continue
                    work = partial(self._erase_in, places, collection, wanted=wanted)
                    given = done_apart(list(dict.fromkeys(part.values())), work, limit)
                    answers |= {number: given[identity] for number, identity in part.items()}
        self._seek(canary for item in items for canary in item.canaries)
        at = now + timedelta(seconds=limit.spent())
        return [self._receipt(item, answers[number], at) for number, item in enumerate(items)]

    def _erase_in(
        self, places: Places, collection: str, ids: Sequence[PointId], wanted: frozenset[str]
    ) -> dict[PointId, Answer]:
        """Read, compare owners, delete, read again. Raises: ConnectorError, then nothing is known."""
        answers: dict[PointId, Answer] = {}
        goes = []
        found = places.read(collection, ids)
        for identity in ids:
            points = found.get(identity, [])
            if not points:
                answers[identity] = Outcome.ALREADY_ABSENT, "read by id in the collection"
            elif len(points) > 1:
                answers[identity] = Outcome.FAILED, f"{len(points)} rows have this id, so it names no single one"
            elif self._config.owner_field is not None and self.owner(points[0]) not in wanted:
                answers[identity] = Outcome.OWNER_MISMATCH, "the point names another owner, or none"
            else:
                goes.append(identity)
        if goes:
            places.delete(collection, goes, None if self._config.owner_field is None else wanted)
            left = places.read(collection, goes)
            for identity in goes:
                is_left = bool(left.get(identity))
                answers[identity] = (
                    (Outcome.FAILED, "there when read again: written, or given to somebody else, while it was erased")
                    if is_left
                    else (Outcome.ERASED, "deleted by id and read again")
                )
        return answers

    def _receipt(self, item: Item, answer: Answer, at: datetime) -> Receipt:
        outcome, detail = answer
        level = Level.L1 if outcome in {Outcome.ERASED, Outcome.ALREADY_ABSENT} else None
        return Receipt(
            copy_id=item.copy_id, outcome=outcome, level=level, method=self.method, detail=detail, at=at
        )  # fmt: skip

    @override
    def await_done(self, *, deadline: float) -> bool:
        return True

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        if self._read_only:
            raise ReadOnlyConnector("reclaim")
        if level <= Level.L1:
            return report(Level.L1, "nothing was reclaimed", "none")
        return self._free(sorted(self._touched), Deadline("reclaim", deadline))

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        limit = Deadline("verify", deadline)
        named, present = self._read_again(items, limit)
        if level <= Level.L1:
            places = zip(items, named, strict=True)
            return [_by_id(item, place, is_present=place in present) for item, place in places]
        pairs = [(number, canary) for number, item in enumerate(items) for canary in item.canaries]
        look = self._look(
            [place for place in named if place is not None], [canary for _, canary in pairs], reclaimed, limit
        )
        dirty = {pairs[number][0] for number in look.found}
        findings = []
        for number, (item, place) in enumerate(zip(items, named, strict=True)):
            finding = _by_id(item, place, is_present=place in present)
            if finding.present is False and place is not None:
                is_dirty = number in dirty or place in look.traces
                finding = _in_files(item, level, look, place[0], is_dirty=is_dirty)
            findings.append(finding)
        return findings

    def _read_again(
        self, items: Sequence[Item], limit: Deadline
    ) -> tuple[list[tuple[str, PointId] | None], set[tuple[str, PointId] | None]]:
        """Return where each item lies, None without its collection, and which of those places hold something."""
        named: list[tuple[str, PointId] | None] = []
        present: set[tuple[str, PointId] | None] = set()
        own: defaultdict[str, dict[PointId, None]] = defaultdict(dict)
        with self._open(limit, read_only=True) as places:
            known = set(places.collections())
            for item in items:
                collection, given = _named(item.locator)
                place = (collection, places.identify(collection, given)) if collection in known else None
                named.append(place)
                if place is not None:
                    own[place[0]][place[1]] = None
            for collection, ids in own.items():
                for found in _batched(places, collection, list(ids), limit):
                    present |= {(collection, identity) for identity, points in found.items() if points}
        return named, present

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        limit = Deadline("residue", deadline)
        if not canaries:
            return []
        return [
            Residue(where=where, count=count, encoding=encoding, canary=number)
            for where, hits in self._hits(canaries, limit)
            for (number, encoding), count in sorted(hits.items())
        ]

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        limit = Deadline("check", deadline)
        text = f"muniment canary {secrets.token_hex(16)}"
        owner = self._config.owner_field
        document = {"text": text} | ({owner: "check:self"} if owner else {})
        vector = [secrets.randbelow(2000) / 1000 - 1 for _ in range(16)]
        try:
            with self._scratch(document, vector, limit) as locator:
                found = try_out(self, Item(copy_id="check", locator=locator), limit, now)
                self._touched.discard(str(locator["collection"]))
                return found
        except ConnectorError as problem:
            return check_report(limit, now, reachable=False, problems=[str(problem)])

    @override
    def close(self) -> None:
        """Nothing is held open between calls."""


def report(level: Level, detail: str, method: str, evidence: Mapping[str, str] | None = None) -> ReclaimReport:
    """Return what a reclaim reached; what lies outside the folder is unknown."""
    return ReclaimReport(level=level, residual_until="unknown", detail=detail, method=method, evidence=evidence or {})


def owner_named(payload: object, name: str) -> str | None:
    """Return what a payload has under a name; members of members are reached by dots."""
    value = payload
    for part in [name] if isinstance(value, Mapping) and name in value else name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _named(locator: Locator) -> tuple[str, object]:
    collection = locator.get("collection")
    if set(locator) != {"collection", "id"}:
        raise BadLocator("a locator of a vector store is {collection, id}")
    if not isinstance(collection, str) or not collection or "\0" in collection:
        raise BadLocator("collection is a name")
    given = locator["id"]
    if isinstance(given, bool) or not isinstance(given, str | int) or given == "":
        raise BadLocator("id is a text or a whole number")
    return collection, given


def _batched(
    places: Places, collection: str, ids: Sequence[PointId], limit: Deadline
) -> Iterator[dict[PointId, list[Point]]]:
    for start in range(0, len(ids), BATCH):
        limit.check()
        yield places.read(collection, ids[start : start + BATCH])


def payload_texts(payload: object) -> Iterator[bytes]:
    """Yield every text of a payload as bytes."""
    for each in texts(payload):
        yield each if isinstance(each, bytes) else each.encode(errors="surrogatepass")


def _by_id(item: Item, place: tuple[str, PointId] | None, *, is_present: bool) -> Finding:
    how = "read by id"
    if place is None:
        return Finding(copy_id=item.copy_id, level=None, present=None, how=how, could_not_check=NO_COLLECTION)
    if is_present:
        return Finding(copy_id=item.copy_id, level=None, present=True, how=how)
    return Finding(copy_id=item.copy_id, level=Level.L1, present=False, how=how)


def _in_files(item: Item, level: Level, look: Look, collection: str, *, is_dirty: bool) -> Finding:
    how = f"read by id; {look.how}"
    if is_dirty:
        return Finding(copy_id=item.copy_id, level=Level.L1, present=True, how=how)
    if why := look.unproven.get(collection):
        return Finding(copy_id=item.copy_id, level=Level.L1, present=None, how=how, could_not_check=why)
    if level is Level.L3:
        return Finding(copy_id=item.copy_id, level=Level.L2, present=None, how=how, could_not_check=UNPROVEN)
    return Finding(copy_id=item.copy_id, level=Level.L2, present=False, how=how)

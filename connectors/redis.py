"""Kind `redis`: keys of one Redis database, and the named parts of hashes, sorted sets, sets and streams.

Config: `{"url": "redis://[:password@]host:port/database" | "rediss://…", "owner_field"?}`. Locators: `{"key"}` for
a whole key of any type, `{"key", "field"}` for a hash's field, a set's or sorted set's member, or a stream entry's id.
The owner stands in the JSON object of a value or member, in a hash's field, or in a stream entry's field of that name.

Guarantees, beyond the contract of `base`: owner, delete and second reading of a batch are one atomic script. `reclaim`
writes streams anew from which entries went (`XDEL` leaves their bytes in the block, also in dumps), then has the server
rewrite its append-only file and its dump, and waits until it counted both. `verify` also scans those files where they
lie on this machine. Dumps may be compressed, so a scan alone is never taken for absence. Not driven: clusters. Replicas
and copies of the files are L3 and `unknown`.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections import Counter, defaultdict
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from typing_extensions import override

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
from connectors.errors import BadConfig, BadLocator, ConnectorError, ReadOnlyConnector, StoreUnreachable, Timeout
from connectors.redis_parts import NAMED, Part, entry_owner, flat, is_entry_id, owner_in, part, parts
from connectors.redis_scripts import AGAIN, ANSWERS, BUDGET, ERASE, MOST_ENTRIES, MOST_PARTS, REWRITE_STREAM
from connectors.redis_server import KeysRefused, Server
from connectors.residue import Needles, samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

BATCH = 500
_PAGE = 500
_MOST_CAPTURED = 1000
"""Parts of one key whose values are captured."""
Answer = tuple[Outcome, str]
Name = str | bytes
_ERASED = next(letter for letter, (outcome, _) in ANSWERS.items() if outcome is Outcome.ERASED)
_GONE = frozenset({Outcome.ERASED, Outcome.ALREADY_ABSENT})
_KEPT: Answer = (Outcome.FAILED, "the store refused the credentials for this key")


def open_store(config: Mapping[str, Any], *, read_only: bool) -> RedisConnector:
    """Return the connector of a database. Raises: BadConfig."""
    if unknown := set(config) - {"url", "owner_field"}:
        raise BadConfig(f"unknown setting {', '.join(sorted(unknown))}")
    url, owner = config.get("url"), config.get("owner_field")
    if not isinstance(url, str) or not url.startswith(("redis://", "rediss://")):
        raise BadConfig("url is of redis://host:port/database or rediss://")
    if owner is not None and (not isinstance(owner, str) or not owner):
        raise BadConfig("owner_field is a name")
    return RedisConnector(Server(url), owner_field=owner, read_only=read_only)


class RedisConnector(Connector):
    """Drives one database of one server."""

    def __init__(self, server: Server, *, owner_field: str | None, read_only: bool) -> None:
        self._server = server
        self._owner_field = owner_field
        self._read_only = read_only
        self._streams: set[bytes] = set()

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind="redis",
            erase_level=Level.L1,
            reclaim_level=Level.L2,
            verify_level=Level.L2,
            batch_size=BATCH,
            locks="everybody, while the script of a batch runs and while a stream is written anew; nobody in reclaim",
            fence=False,
            search=False,
            owner_check=self._owner_field is not None,
            discover=self._owner_field is not None,
            read_only=self._read_only,
        )

    @override
    def check_locator(self, locator: Locator) -> None:
        _place(locator)

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("discover", deadline)
        if self._owner_field is None:
            raise BadConfig("discover needs owner_field")
        forms = owner_forms(selector.identifiers)
        given: set[bytes] = set()
        for keys in self._pages(limit):
            # SCAN may name a key twice; only those that were found are remembered.
            for key, kind in self._kinds([key for key in keys if key not in given], limit).items():
                for name in self._owned(key, kind, forms, limit):
                    given.add(key)
                    yield _locator(key, name)

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("walk", deadline)
        for keys in self._pages(limit):
            for key, kind in self._kinds(keys, limit).items():
                names = (name for name, _ in self._parts(key, kind, limit)) if kind in NAMED else ()
                for place in chain((None,), names):
                    try:
                        yield _locator(key, place)
                    except BadLocator:
                        continue  # no item can be registered under a name that is no text

    def _pages(self, limit: Deadline) -> Iterator[list[bytes]]:
        cursor: Any = b"0"
        while True:
            cursor, keys = self._server.run(limit, "SCAN", cursor, "COUNT", _PAGE)
            yield list(dict.fromkeys(keys))
            if int(cursor) == 0:
                return

    def _kinds(self, keys: Sequence[bytes], limit: Deadline) -> dict[bytes, bytes]:
        wanted = list(dict.fromkeys(keys))
        found = self._server.run_all(limit, [("TYPE", key) for key in wanted])
        kinds = (each if isinstance(each, bytes) else str(each).encode() for each in found)
        return dict(zip(wanted, kinds, strict=True))

    def _owned(self, key: bytes, kind: bytes, forms: frozenset[str], limit: Deadline) -> Iterator[bytes | None]:
        """Yield None when the whole key is the owner's, else the names of the parts that are. Raises: BadLocator."""
        field = str(self._owner_field)
        if kind == b"hash":
            own = self._server.run(limit, "HGET", key, field)
            if own is not None:
                if own.decode(errors="replace") in forms:
                    yield None
                return
        mine: list[bytes | None] = []
        others = 0
        for name, values in self._parts(key, kind, limit):
            owner = entry_owner(values, field) if kind == b"stream" else owner_in(values[0], field)
            if owner in forms:
                mine.append(name)
            else:
                others += 1
        if mine and not others and kind in {b"string", b"list"}:
            yield None
        elif mine and kind == b"list":
            raise BadLocator("a list holds parts of this owner and of others, and a list's parts have no names")
        else:
            yield from mine

    def _parts(self, key: bytes, kind: bytes, limit: Deadline) -> Iterator[Part]:
        return parts(partial(self._server.run, limit), key, kind)

    def _held(self, item: Item, kinds: Mapping[bytes, bytes], limit: Deadline) -> Iterator[Part]:
        key, field = _place(item.locator)
        if field is None:
            yield from self._parts(key, kinds[key], limit)
        elif (found := part(partial(self._server.run, limit), key, field, kinds[key])) is not None:
            yield found

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        limit = Deadline("capture", deadline)
        kinds = self._kinds([_place(item.locator)[0] for item in items], limit)
        held: dict[str, list[bytes]] = {}
        for item in items:
            pieces: dict[bytes, None] = {}
            for number, (_, values) in enumerate(self._held(item, kinds, limit)):
                if number >= _MOST_CAPTURED:
                    break
                for value in values:
                    for text in self._texts(value):
                        pieces |= dict.fromkeys(samples(text))
            held[item.copy_id] = list(pieces)
        return held

    def _texts(self, value: bytes) -> Iterator[bytes]:
        """Yield what to look for of a value: the texts of a JSON document without its owner, else the value itself."""
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict | list):
            yield value
            return
        if isinstance(document, dict):
            document = {name: each for name, each in document.items() if name != self._owner_field}
        waiting: list[Any] = [document]
        while waiting:
            each = waiting.pop()
            if isinstance(each, str):
                yield each.encode(errors="surrogatepass")
            elif isinstance(each, dict):
                waiting += each.values()
            elif isinstance(each, list):
                waiting += each

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        limit = Deadline("export", deadline)
        for item in items:
            key, field = _place(item.locator)
            kind = self._kinds([key], limit)[key]
            parts = list(self._held(item, {key: kind}, limit))
            if not parts:
                yield item.copy_id, None
            elif len(parts) == 1 and len(parts[0][1]) == 1 and (field is not None or kind == b"string"):
                yield item.copy_id, parts[0][1][0]
            else:
                yield item.copy_id, json.dumps(_document(kind, parts), ensure_ascii=False).encode()

    @override
    def fence(self, scope: Locator) -> FenceReport:
        return FenceReport(held=False, detail="a database cannot refuse one person's writes; late keys are looked for")

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        if self._read_only:
            raise ReadOnlyConnector("erase")
        limit = Deadline("erase", deadline)
        forms = sorted(owner_forms(owner_identifiers))
        whole = _whole_keys(items)
        places, bad = _places_of(items, whole)
        answers: list[Answer] = [(Outcome.FAILED, "not reached before the deadline")] * len(items)
        for number, why in bad.items():
            answers[number] = why
        waiting, size = list(places), BATCH
        while waiting and not limit.is_over():
            batch, waiting = waiting[:size], waiting[size:]
            try:
                said = self._run_erase([places[number] for number in batch], forms, limit)
                size = min(BATCH, 2 * size)
            except KeysRefused:
                # One key that the user may not change stops a script before it begins; the others go without it.
                if len(batch) == 1:
                    answers[batch[0]] = _KEPT
                else:
                    waiting, size = [*batch, *waiting], len(batch) // 2
                continue
            except Timeout:
                if not any(outcome is not Outcome.FAILED for outcome, _ in answers):
                    raise
                break
            if whole is not None and len(batch) == len(items) and said == _ERASED * len(items):
                return _receipts_of_erased(items, now + timedelta(seconds=limit.spent()))
            waiting += _settle(answers, batch, said)
        if places and all(answers[number] == _KEPT for number in places):
            raise KeysRefused
        if waiting and len(waiting) == len(places):
            raise limit.error()
        at = now + timedelta(seconds=limit.spent())
        return [
            Receipt(
                copy_id=item.copy_id,
                outcome=outcome,
                level=Level.L1 if outcome in _GONE else None,
                method="HDEL, ZREM, SREM or XDEL" if "field" in item.locator else "UNLINK",
                detail=detail,
                at=at,
            )
            for item, (outcome, detail) in zip(items, answers, strict=True)
        ]

    def _run_erase(self, places: Sequence[tuple[Name, bytes | None]], forms: Sequence[str], limit: Deadline) -> str:
        """Return one letter a place, from one atomic run of the script. Raises: ConnectorError."""
        named = [word for number, (_, field) in enumerate(places, 1) if field is not None for word in (number, field)]
        settings = (self._owner_field or "", BUDGET, MOST_PARTS, len(forms))
        keys = [key for key, _ in places]
        said = self._server.run(limit, "EVAL", ERASE, len(keys), *keys, *settings, *forms, *named)
        # Streams of earlier, interrupted runs are told by the same items, which are absent by now.
        for key, field in places if named else ():
            if field is not None and is_entry_id(field):
                self._streams.add(key if isinstance(key, bytes) else key.encode())
        return str(said.decode() if isinstance(said, bytes) else said)

    @override
    def await_done(self, *, deadline: float) -> bool:
        return True

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        if self._read_only:
            raise ReadOnlyConnector("reclaim")
        limit = Deadline("reclaim", deadline)
        method = "streams written anew, BGREWRITEAOF, BGSAVE"
        if level <= Level.L1:
            return ReclaimReport(level=Level.L1, residual_until="unknown", detail="nothing was asked", method=method)
        problems = self._rewrite_streams(limit)
        done = self._server.rewrite(limit)
        replicas = self._server.info(limit, "replication").get("connected_slaves", "0")
        notes = [*problems, done.detail, f"{replicas} replicas keep files of their own; backups were not looked at"]
        return ReclaimReport(
            level=Level.L2 if done.is_done and not problems else Level.L1,
            residual_until="unknown",
            detail="; ".join(notes),
            method=method,
            evidence=done.counts,
        )

    def _rewrite_streams(self, limit: Deadline) -> list[str]:
        """Write the streams anew from which entries went; return why some could not be."""
        said = Counter(
            bytes(
                self._server.run(
                    limit,
                    "EVAL",
                    REWRITE_STREAM,
                    2,
                    key,
                    b"muniment:rewrite:" + secrets.token_hex(8).encode(),
                    MOST_ENTRIES,
                )
            ).decode()
            for key in sorted(self._streams)
        )
        why = {
            "long": f"have more than {MOST_ENTRIES} entries and were not written anew",
            "old": "cannot be shown to be written anew by a server before Redis 7",
            "failed": "could not be written anew and are as they were",
        }
        return [f"{said[word]} streams {text}" for word, text in why.items() if said[word]]

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        limit = Deadline("verify", deadline)
        whole = _whole_keys(items) if level <= Level.L1 else None
        # One command for all; only where something is left each is asked for.
        if whole and not self._server.run(limit, "EXISTS", *whole):
            reached = Level.L1
            return [Finding(copy_id=item.copy_id, level=reached, present=False, how="read by key") for item in items]
        findings: dict[int, Finding] = {}
        places: dict[int, tuple[bytes, bytes | None]] = {}
        for number, item in enumerate(items):
            try:
                places[number] = _place(item.locator)
            except BadLocator as bad:
                findings[number] = Finding(
                    copy_id=item.copy_id, level=None, present=None, how="none", could_not_check=bad.detail
                )
        present = self._present(places, limit)
        absent = {number: items[number] for number in places if number not in present}
        for number in places:
            is_present = number in present
            findings[number] = Finding(
                copy_id=items[number].copy_id,
                level=None if is_present else Level.L1,
                present=is_present,
                how="read by key",
            )
        if level >= Level.L2 and absent:
            findings |= self._in_files(absent, places, level, reclaimed, limit)
        return [findings[number] for number in range(len(items))]

    def _present(self, places: Mapping[int, tuple[bytes, bytes | None]], limit: Deadline) -> set[int]:
        """Return the places at which something is, by plain reads."""
        whole = [number for number, (_, field) in places.items() if field is None]
        named = [number for number in places if places[number][1] is not None]
        found: set[int] = set()
        if whole:
            keys = [places[number][0] for number in whole]
            # One command for all; only where something is left each is asked for.
            if self._server.run(limit, "EXISTS", *keys):
                there = self._server.run_all(limit, [("EXISTS", key) for key in keys])
                found |= {number for number, count in zip(whole, there, strict=True) if count}
        kinds = self._kinds([places[number][0] for number in named], limit)
        asked: list[tuple[int, tuple[Any, ...]]] = []
        for number in named:
            key, field = places[number]
            verb = {b"hash": "HEXISTS", b"zset": "ZSCORE", b"set": "SISMEMBER"}.get(kinds[key])
            if verb is not None:
                asked.append((number, (verb, key, field)))
            elif kinds[key] == b"stream" and is_entry_id(field or b""):
                asked.append((number, ("XRANGE", key, field, field)))
            elif kinds[key] != b"none":
                found.add(number)  # another type now: what it holds cannot be told apart from the item
        there = self._server.run_all(limit, [command for _, command in asked])
        return found | {number for (number, _), answer in zip(asked, there, strict=True) if answer not in (None, 0, [])}

    def _in_files(
        self,
        items: Mapping[int, Item],
        places: Mapping[int, tuple[bytes, bytes | None]],
        level: Level,
        reclaimed: ReclaimReport | None,
        limit: Deadline,
    ) -> dict[int, Finding]:
        """Return the findings of absent items at L2: the server's own count of rewrites, and a scan where it can be."""
        why = self._why_not(reclaimed, limit)
        unwritten = self._unwritten({number: places[number] for number in items}, limit)
        how = "read by key; the server's count of rewrites after the erasure"
        dirty: set[int] = set()
        folder = self._server.folder(limit)
        if folder is not None:
            how = "read by key; the server's count of rewrites after the erasure; byte scan of its files"
            pairs = [(number, canary) for number, item in items.items() for canary in item.canaries]
            hits = self._own_hits([canary for _, canary in pairs], limit)
            dirty = {pairs[position][0] for position in hits}
        found = {}
        for number, item in items.items():
            reason = why or ("the stream's block may still hold the entry" if number in unwritten else None)
            found[number] = _finding(item, level, how, reason, is_dirty=number in dirty)
        return found

    def _why_not(self, reclaimed: ReclaimReport | None, limit: Deadline) -> str | None:
        if reclaimed is None or reclaimed.level < Level.L2:
            return "no rewrite of the server's files after the erasure is known, and dumps may be compressed"
        if not self._server.has_not_lost(limit, reclaimed.evidence):
            return "the server counts fewer rewrites than were reported"
        return None

    def _unwritten(self, places: Mapping[int, tuple[bytes, bytes | None]], limit: Deadline) -> set[int]:
        """Return the entries at or below the highest one that was deleted since their stream was written anew."""
        named = {n: (key, field) for n, (key, field) in places.items() if field is not None and is_entry_id(field)}
        kinds = self._kinds([key for key, _ in named.values()], limit)
        highest: dict[bytes, tuple[int, int] | None] = {}
        for key, kind in kinds.items():
            if kind == b"stream":
                told = flat(self._server.run(limit, "XINFO", "STREAM", key))
                deleted = dict(zip(told[::2], told[1::2], strict=False)).get(b"max-deleted-entry-id")
                highest[key] = None if deleted is None else _entry(deleted)
        unwritten = set()
        for number, (key, field) in named.items():
            if key in highest:
                top = highest[key]
                if top is None or _entry(field) <= top:
                    unwritten.add(number)
        return unwritten

    def _own_hits(self, canaries: Sequence[bytes], limit: Deadline) -> set[int]:
        """Return which canaries the server's files hold although no live key does."""
        folder = self._server.folder(limit)
        if folder is None or not canaries:
            return set()
        found = {number for _, hits in self._server.scan(folder, Needles(canaries), limit) for number, _ in hits}
        if not found:
            return set()
        numbers = sorted(found)
        alive = {number for _, hits in self._live(Needles([canaries[n] for n in numbers]), limit) for number, _ in hits}
        return {number for place, number in enumerate(numbers) if place not in alive}

    def _live(self, wanted: Needles, limit: Deadline) -> Iterator[tuple[bytes, Counter[tuple[int, str]]]]:
        """Yield the type and the hits of each live key that holds a canary, in its name or in a value."""
        for keys in self._pages(limit):
            for key, kind in self._kinds(keys, limit).items():
                pieces = (
                    piece for name, values in self._parts(key, kind, limit) for piece in (name or b"", b"\0", *values)
                )
                hits = wanted.count_chunks((chunk for piece in (key, b"\0", *pieces) for chunk in (piece,)), limit)
                if hits:
                    yield kind, hits

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        limit = Deadline("residue", deadline)
        if not canaries:
            return []
        wanted = Needles(canaries)
        found: list[Residue] = []
        totals: defaultdict[str, Counter[tuple[int, str]]] = defaultdict(Counter)
        for kind, hits in self._live(wanted, limit):
            totals[f"live keys of type {kind.decode()}"] += hits
        folder = self._server.folder(limit)
        for where, hits in self._server.scan(folder, wanted, limit) if folder else ():
            totals[where] += hits
        for where, hits in totals.items():
            for (number, encoding), count in hits.items():
                found.append(Residue(where=where, count=count, encoding=encoding, canary=number))
        return found

    def expiries(self, *, deadline: float) -> dict[str, tuple[int, int]]:
        """Return by a key's first word how many keys end by themselves and how many never do.

        A family of which only some keys have an expiry is kept longer than somebody meant.
        """
        limit = Deadline("expiries", deadline)
        found: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for keys in self._pages(limit):
            terms = self._server.run_all(limit, [("PTTL", key) for key in keys])
            for key, term in zip(keys, terms, strict=True):
                if term != -2:  # noqa: PLR2004 -- gone meanwhile, by PTTL's documentation
                    family = key.split(b":", 1)[0].decode(errors="replace") if b":" in key else ""
                    found[family][0 if term >= 0 else 1] += 1
        return {family: (ending, lasting) for family, (ending, lasting) in found.items()}

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        limit = Deadline("check", deadline)
        key = f"muniment-check:{secrets.token_hex(8)}"
        canary = f"muniment canary {secrets.token_hex(16)}"
        value = json.dumps({"canary": canary} | ({self._owner_field: "check:self"} if self._owner_field else {}))
        item = Item(copy_id="check", locator={"key": key}, canaries=(canary.encode(),))
        try:
            self._server.run(limit, "SET", key, value, "PX", int(deadline * 1000) + 60_000)
            return try_out(self, item, limit, now)
        except ConnectorError as problem:
            reachable = not isinstance(problem, StoreUnreachable | Timeout)
            return check_report(limit, now, reachable=reachable, problems=[str(problem)])

    @override
    def close(self) -> None:
        self._server.close()


def _place(locator: Locator) -> tuple[bytes, bytes | None]:
    """Return the key and the part's name. Raises: BadLocator."""
    key = locator.get("key")
    if len(locator) == 1 and type(key) is str and key.isascii() and key:
        # The usual place, which is looked at ten thousand times an erasure.
        return key.encode(), None
    field = locator.get("field")
    if not set(locator) <= {"key", "field"} or isinstance(field, bool) or ("field" in locator and field in (None, "")):
        raise BadLocator("a redis locator is {key} or {key, field}")
    if not isinstance(key, str) or not key or not isinstance(field, str | int | None):
        raise BadLocator("key and field are texts")
    try:
        return key.encode(), None if field is None else str(field).encode()
    except UnicodeEncodeError:
        raise BadLocator("key and field are valid Unicode") from None


def _settle(answers: list[Answer], batch: Sequence[int], said: str) -> list[int]:
    """Write down what the script said of each item; return those that want another run."""
    again = []
    for number, letter in zip(batch, said, strict=True):
        if letter == AGAIN:
            again.append(number)
        else:
            answers[number] = ANSWERS[letter]
    return again


def _places_of(
    items: Sequence[Item], whole: Sequence[str] | None
) -> tuple[dict[int, tuple[Name, bytes | None]], dict[int, Answer]]:
    """Return the place of each item by its number, and why the others have none."""
    if whole is not None:
        return {number: (key, None) for number, key in enumerate(whole)}, {}
    places: dict[int, tuple[Name, bytes | None]] = {}
    refused: dict[int, Answer] = {}
    for number, item in enumerate(items):
        try:
            places[number] = _place(item.locator)
        except BadLocator as bad:
            refused[number] = Outcome.FAILED, bad.detail
    return places, refused


def _whole_keys(items: Sequence[Item]) -> list[str] | None:
    """Return the keys of items that are whole keys of plain names, as most are; None where one is not.

    What `_place` says of each, told of ten thousand at once.
    """
    keys = []
    for item in items:
        key = item.locator.get("key")
        if type(key) is not str or not key or len(item.locator) != 1:
            return None
        keys.append(key)
    return keys if "".join(keys).isascii() else None


def _receipts_of_erased(items: Sequence[Item], at: datetime) -> list[Receipt]:
    outcome, detail = ANSWERS[_ERASED]
    level, method = Level.L1, "UNLINK"
    return [
        Receipt(copy_id=item.copy_id, outcome=outcome, level=level, method=method, detail=detail, at=at)
        for item in items
    ]


def _locator(key: bytes, name: bytes | None) -> dict[str, Any]:
    """Return the locator of a place. Raises: BadLocator where its name is no text."""
    try:
        return {"key": key.decode()} | ({} if name is None else {"field": name.decode()})
    except UnicodeDecodeError:
        raise BadLocator("a key or part of the owner has a name that is no text") from None


def _entry(field: bytes) -> tuple[int, int]:
    time, _, number = field.partition(b"-")
    return int(time), int(number)


def _document(kind: bytes, parts: Sequence[Part]) -> object:
    """Return what JSON can hold of a key."""
    if kind == b"hash":
        return {_shown(name or b""): _shown(values[0]) for name, values in parts}
    if kind == b"stream":
        return [
            {
                "id": _shown(name or b""),
                "fields": {
                    str(_shown(field)): _shown(value) for field, value in zip(values[::2], values[1::2], strict=False)
                },
            }
            for name, values in parts
        ]
    return [_shown(values[0]) for _, values in parts]


def _shown(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"


def _finding(item: Item, level: Level, how: str, could_not_check: str | None, *, is_dirty: bool) -> Finding:
    if is_dirty:
        return Finding(copy_id=item.copy_id, level=Level.L1, present=True, how=how)
    if could_not_check is not None:
        return Finding(copy_id=item.copy_id, level=Level.L1, present=None, how=how, could_not_check=could_not_check)
    if level is Level.L3:
        why = "replicas and backups cannot be read here"
        return Finding(copy_id=item.copy_id, level=Level.L2, present=None, how=how, could_not_check=why)
    return Finding(copy_id=item.copy_id, level=Level.L2, present=False, how=how)

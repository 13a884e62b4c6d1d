"""Redis: families of keys, whose they are, their expiry, LangGraph's checkpoints, what persistence keeps. Source: §2.8.

Guarantees: only commands that read are sent. Owners are read as kind `redis` compares them: in the JSON object of a
value or member, in a hash's field, in a stream entry's field. A value is read up to `LARGEST` bytes, a key's parts to
`MOST_PARTS`; what is larger names nobody, and that is said. Types of modules (RedisJSON) are not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from connectors.errors import DriverMissing
from connectors.redis_parts import document_in, entry_owner, parts
from connectors.redis_scripts import MOST_PARTS
from connectors.scanning.database import Unreadable
from connectors.scanning.look import Found
from connectors.scanning.report import DryRun, Names, Place, Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connectors.scanning.look import Look

_BATCH = 500
LARGEST = 1 << 20
"""Bytes of a value that are read for its owner."""
_AT_ONCE = 16 << 20
"""Bytes of values in one round trip."""
_CHECKPOINTS = ("checkpoint", "checkpoint_latest", "checkpoint_blob", "checkpoint_write", "write_keys_zset")
_SIZES = {b"list": "LLEN", b"set": "SCARD", b"zset": "ZCARD", b"hash": "HLEN", b"stream": "XLEN"}
Owner = tuple[str, str]
_Part = tuple[bytes | None, tuple[Owner, ...]]
"""A named part of a key, None for a value without a name, and whom it names."""


def scan_redis(url: str, look: Look) -> Place:
    """Return what a database of a Redis server holds. Raises: Unreadable, DriverMissing."""
    try:
        redis: Any = import_module("redis")
    except ModuleNotFoundError:
        raise DriverMissing("redis", "muniment-server[redis]") from None
    client = redis.Redis.from_url(url, socket_timeout=10, socket_connect_timeout=5, protocol=2)
    client.response_callbacks.clear()  # replies as they were sent
    place = Place(what="redis", label="redis", kind="redis", config={"url": url}, ages=look.ages())
    try:
        _keys(client, look, place)
        _persistence(client, place)
    except redis.AuthenticationError:
        raise Unreadable("the server refused the credentials: give a user who may read every key") from None
    except redis.ConnectionError:
        raise Unreadable("no server answers there: look at host, port and whether it runs") from None
    except redis.RedisError as error:
        raise Unreadable(f"the server failed ({type(error).__name__})") from None
    finally:
        client.close()
    return place


@dataclass(slots=True)
class _Counts:
    """What the keys sum up to."""

    families: Counter[str] = field(default_factory=Counter)
    endless: Counter[str] = field(default_factory=Counter)
    threads: dict[str, Names] = field(default_factory=lambda: {"checkpoint": Names(), "checkpoint_write": Names()})
    items: int = 0
    shared: int = 0
    mentions: int = 0
    large: int = 0


def _keys(client: Any, look: Look, place: Place) -> None:
    counts = _Counts()
    cursor: Any = b"0"
    while True:
        cursor, keys = client.execute_command("SCAN", cursor, "COUNT", _BATCH)
        unique = list(dict.fromkeys(keys))
        answers = _ask(client, [command for key in unique for command in (
            ("PTTL", key), ("MEMORY", "USAGE", key, "SAMPLES", 0), ("TYPE", key))])  # fmt: skip
        kinds = {}
        for number, key in enumerate(unique):
            term, size, kind = answers[3 * number : 3 * number + 3]
            _count(key.decode(errors="replace"), counts, is_endless=term == -1)
            place.bytes += size if isinstance(size, int) else 0
            kinds[key] = kind if isinstance(kind, bytes) else str(kind).encode()
        _whose(client, kinds, look, place, counts)
        if int(cursor) == 0:
            break
        if look.limit.is_over():
            raise Unreadable("the time limit was reached")
    _sum_up(place, look, counts)


def _ask(client: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the answers to commands of one round trip; an error stands in the place of its answer."""
    pipe = client.pipeline(transaction=False)
    for command in commands:
        pipe.execute_command(*command)
    answers: list[Any] = pipe.execute(raise_on_error=False)
    return answers


def _count(name: str, counts: _Counts, *, is_endless: bool) -> None:
    family, _, rest = name.partition(":")
    counts.families[family] += 1
    counts.endless[family] += is_endless
    if family in counts.threads:
        counts.threads[family].add([rest.partition(":")[0]])


def _whose(client: Any, kinds: dict[bytes, bytes], look: Look, place: Place, counts: _Counts) -> None:
    """Read whom these keys name, count that, and hand over what can be registered."""
    strings = [key for key, kind in kinds.items() if kind == b"string"]
    for key, value in _values(client, strings, counts):
        _note(key, [(None, _named(value, look))], look, place, counts)
    hashes = [key for key, kind in kinds.items() if kind == b"hash"]
    fields = look.owner_names()
    for key, held in zip(hashes, _ask(client, [("HMGET", key, *fields) for key in hashes]), strict=True):
        pairs = zip(fields, held if isinstance(held, list) else (), strict=False)
        own = next(((name, value.decode(errors="surrogateescape")) for name, value in pairs if value), None)
        found: list[_Part] = [(None, (own,))] if own is not None else _parts(client, key, b"hash", look, counts)
        _note(key, found, look, place, counts)
    for key, kind in kinds.items():
        if kind not in {b"string", b"hash", b"none"}:
            _note(key, _parts(client, key, kind, look, counts), look, place, counts)


def _values(client: Any, keys: Sequence[bytes], counts: _Counts) -> Iterator[tuple[bytes, bytes]]:
    """Yield strings with what they hold, so many at once as fit; of a large one nothing."""
    waiting: list[bytes] = []
    room = _AT_ONCE
    for key, size in zip(keys, _ask(client, [("STRLEN", key) for key in keys]), strict=True):
        if not isinstance(size, int) or size > LARGEST:
            counts.large += 1
            yield key, b""
            continue
        if size > room:
            yield from _got(client, waiting)
            waiting, room = [], _AT_ONCE
        waiting.append(key)
        room -= size
    yield from _got(client, waiting)


def _got(client: Any, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for key, value in zip(keys, _ask(client, [("GET", key) for key in keys]), strict=True):
        yield key, value if isinstance(value, bytes) else b""


def _parts(client: Any, key: bytes, kind: bytes, look: Look, counts: _Counts) -> list[_Part]:
    """Return the parts of a key with whom they name; none of a key that the connector would not compare as a whole."""
    counted = _SIZES.get(kind)
    if counted is None or client.execute_command(counted, key) > MOST_PARTS:
        counts.large += counted is not None
        return []
    found: list[_Part] = []
    for name, values in islice(parts(client.execute_command, key, kind), MOST_PARTS):
        if kind == b"stream":
            named = next(((each, owner) for each in look.owner_names() if (owner := entry_owner(values, each))), None)
            found.append((name, () if named is None else (named,)))
        else:
            found.append((name, _named(values[0], look)))
    return found


def _named(value: bytes, look: Look) -> tuple[Owner, ...]:
    """Return whom a JSON object names."""
    document = document_in(value) if value and len(value) <= LARGEST else None
    return tuple((name, str(each)) for name, each in look.owners_in(document or {}))


def _note(key: bytes, found: list[_Part], look: Look, place: Place, counts: _Counts) -> None:
    """Count one key, and hand it over whole where it is one person's, else its named parts."""
    owners = dict.fromkeys(owner for _, named in found for owner in named)
    for name, value in (owner for _, named in found for owner in named):
        place.people.add([value])
        place.owner_fields[name] += 1
    values = {value for _, value in owners}
    place.nobody += not owners
    theirs = any(look.is_subject(value) for value in values)
    counts.items += theirs
    counts.shared += theirs and len(values) > 1
    text = look.text()
    counts.mentions += not theirs and text is not None and text in key.decode(errors="replace")
    if look.sink is None:
        return
    is_one = len(values) <= 1 and all(named for _, named in found)
    whole: list[_Part] = [(None, tuple(owners))]
    for part, named in whole if is_one or not owners or any(each is None for each, _ in found) else found:
        try:
            locator = {"key": key.decode()} | ({} if part is None else {"field": part.decode()})
        except UnicodeDecodeError:
            place.notes.append("a key or part with a name that is no text cannot be registered")
            continue
        look.sink(place, Found(locator=locator, owners=named))


def _sum_up(place: Place, look: Look, counts: _Counts) -> None:
    place.rows = sum(counts.families.values())
    place.ages.add(None, place.rows)
    place.parts = dict(counts.families.most_common(50))
    place.notes = list(dict.fromkeys(place.notes))
    if counts.large:
        place.unread.append(f"{counts.large} keys are too large to be read for their owner")
    if look.subject is not None:
        place.dry_run = DryRun(items=counts.items, shared=counts.shared, mentions=counts.mentions, unread=counts.large)
    if counts.families.keys() & set(_CHECKPOINTS):
        place.what = "langgraph-redis"
        checkpoints, writes = counts.threads["checkpoint"], counts.threads["checkpoint_write"]
        place.threads = len(checkpoints)
        lost = [name for name, _ in writes.largest(100_000) if name not in checkpoints]
        place.orphan("threads with writes and no checkpoint", len(lost), "their checkpoints ended or were deleted")
    for family, count in sorted(counts.endless.items()):
        if count:
            mixed = count < counts.families[family]
            why = (
                "some of the family end and these do not: what belongs together ends apart"
                if mixed
                else "they never end"
            )
            value = f"{count} of {counts.families[family]} keys without"
            place.settings.append(Setting(name=f"ttl of {family}", value=value, dangerous=True, why=why))


def _persistence(client: Any, place: Place) -> None:
    answer = client.execute_command("INFO", "persistence").decode(errors="replace")
    info = dict(line.split(":", 1) for line in answer.splitlines() if ":" in line)
    if info.get("aof_enabled") == "1":
        why = "deleted values stay in the append-only file until BGREWRITEAOF"
        place.settings.append(Setting(name="appendonly", value="yes", dangerous=True, why=why))
    if info.get("rdb_last_save_time", "0") != "0":
        place.leaves.append("the last dump (RDB) until the next BGSAVE, and replicas and copies of it")

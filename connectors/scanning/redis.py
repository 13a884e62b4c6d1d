"""Redis: families of keys, their expiry, LangGraph's checkpoints, and what persistence keeps. Source: §1a, §2.8.

Guarantees: only SCAN, TYPE, PTTL, STRLEN-like reads, INFO and CONFIG GET are sent. Values are not read: a key's name
says the thread, and whose it is is not said.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Any

from connectors.errors import DriverMissing
from connectors.scanning.database import Unreadable
from connectors.scanning.report import DryRun, Names, Place, Setting

if TYPE_CHECKING:
    from connectors.scanning.look import Look

_BATCH = 500
_CHECKPOINTS = ("checkpoint", "checkpoint_latest", "checkpoint_blob", "checkpoint_write", "write_keys_zset")


def scan_redis(url: str, look: Look) -> Place:
    """Return what a database of a Redis server holds. Raises: Unreadable, DriverMissing."""
    try:
        redis: Any = import_module("redis")
    except ModuleNotFoundError:
        raise DriverMissing("redis", "muniment-server[redis]") from None
    client = redis.Redis.from_url(url, socket_timeout=10, socket_connect_timeout=5)
    place = Place(what="redis", label="redis", kind="redis", config={"url": url}, ages=look.ages())
    try:
        _keys(client, look, place)
        _persistence(client, place)
    except redis.AuthenticationError:
        raise Unreadable("the server refused the credentials") from None
    except redis.RedisError as error:
        raise Unreadable(f"the server failed ({type(error).__name__})") from None
    finally:
        client.close()
    return place


def _keys(client: Any, look: Look, place: Place) -> None:
    families: Counter[str] = Counter()
    endless: Counter[str] = Counter()
    threads = {"checkpoint": Names(), "checkpoint_write": Names()}
    mentions = 0
    wanted = look.text()
    cursor = 0
    while True:
        cursor, keys = client.scan(cursor=cursor, count=_BATCH)
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.pttl(key)
            pipe.memory_usage(key, samples=0)
        answers = pipe.execute(raise_on_error=False)
        for number, key in enumerate(keys):
            name = key.decode(errors="replace")
            family, _, rest = name.partition(":")
            families[family] += 1
            endless[family] += answers[2 * number] == -1
            place.bytes += answers[2 * number + 1] if isinstance(answers[2 * number + 1], int) else 0
            if family in threads:
                threads[family].add([rest.partition(":")[0]])
            mentions += wanted is not None and wanted in name
        if not cursor:
            break
        if look.limit.is_over():
            raise Unreadable("the time limit was reached")
    place.rows = sum(families.values())
    place.nobody = place.rows
    place.ages.add(None, place.rows)
    place.parts = dict(families.most_common(50))
    if look.subject is not None:
        place.dry_run = DryRun(mentions=mentions)
    if families.keys() & set(_CHECKPOINTS):
        place.what = "langgraph-redis"
        place.threads = len(threads["checkpoint"])
        lost = [name for name, _ in threads["checkpoint_write"].largest(100_000) if name not in threads["checkpoint"]]
        place.orphan("threads with writes and no checkpoint", len(lost), "their checkpoints ended or were deleted")
    for family, count in sorted(endless.items()):
        if count:
            mixed = count < families[family]
            why = (
                "some of the family end and these do not: what belongs together ends apart"
                if mixed
                else "they never end"
            )
            value = f"{count} of {families[family]} keys without"
            place.settings.append(Setting(name=f"ttl of {family}", value=value, dangerous=True, why=why))


def _persistence(client: Any, place: Place) -> None:
    info = client.info("persistence")
    if info.get("aof_enabled"):
        why = "deleted values stay in the append-only file until BGREWRITEAOF"
        place.settings.append(Setting(name="appendonly", value="yes", dangerous=True, why=why))
    if info.get("rdb_last_save_time"):
        place.leaves.append("the last dump (RDB) until the next BGSAVE, and replicas and copies of it")

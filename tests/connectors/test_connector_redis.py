from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis

from connectors.base import Connector, Item, Level, Outcome, Selector, open_connector
from connectors.errors import BadConfig, StoreUnreachable, WrongCredentials
from connectors.redis import RedisConnector
from infra.services import redis as service
from tests.connectors.contract import BEN, MIA, NOW, OF_PROCESSES, Bed, Contract, captured, erase, fill, oracle, text_of


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[service.RedisService]:
    """A server that compresses nothing, so that the oracle sees every byte of its files."""
    with service.running(tmp_path_factory.mktemp("redis"), settings={"rdbcompression": "no"}) as made:
        yield made


_CLIENTS = ExitStack()


def _client(url: str, **how: Any) -> Any:
    made = redis.Redis.from_url(url, **how)
    _CLIENTS.callback(made.close)
    return made


@pytest.fixture(autouse=True)
def clients_end_with_their_test() -> Iterator[None]:
    with _CLIENTS:
        yield


class KeysBed(Bed):
    """A JSON string for each item."""

    serves = True
    no_search = "keys are found by their names"
    kept = "memory:{name}"
    """The key that has to be kept for one item to be kept."""

    def __init__(self, made: service.RedisService) -> None:
        self.made = made
        self.client: Any = _client(made.url, decode_responses=True)
        self.empty()

    def restart(self) -> None:
        self.client.close()
        self.made.restart()
        self.client = _client(self.made.url, decode_responses=True)

    def refuse(self, name: str) -> Callable[[], None]:
        """Take the right to change one key from the user of everybody here."""
        key = self.kept.format(name=name)
        others = [f"~{each}" for each in self.client.scan_iter() if each != key]
        self.client.execute_command("ACL", "SETUSER", "default", "resetkeys", f"%R~{key}", *others)

        def release() -> None:
            self.client.execute_command("ACL", "SETUSER", "default", "allkeys")

        return release

    @contextmanager
    def stranger(self) -> Iterator[str]:
        yield self.source(url=self.made.url.replace("redis://:", "redis://:hunter2"))

    def whole(self, name: str) -> object:
        key = f"memory:{name}"
        with redis.Redis.from_url(self.made.url) as client:
            return client.dump(key), client.pttl(key)

    def empty(self) -> None:
        self.client.flushall()
        self.client.bgrewriteaof()
        self.settle()

    def settle(self) -> None:
        while "1" in {str(self.client.info("persistence")[name]) for name in (
            "aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress"
        )}:  # fmt: skip
            time.sleep(0.01)

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        self.client.set(f"memory:{name}", json.dumps({"owner": owner, "text": text}))
        return {"key": f"memory:{name}"}

    def get(self, name: str) -> str | None:
        value = self.client.get(f"memory:{name}")
        return None if value is None else str(json.loads(value)["text"])

    def config(self, **more: object) -> dict[str, Any]:
        return {"url": self.made.url, "owner_field": "owner", **more}

    def open(self, *, read_only: bool = False, owner: bool = True, **more: object) -> Connector:
        config = self.config(**more)
        if not owner:
            del config["owner_field"]
        return open_connector("redis", config, secrets=str, read_only=read_only)

    def hits(self, canary: str) -> int:
        return oracle([self.made.folder], canary)

    def block(self) -> Callable[[], None]:
        self.client.client_pause(60_000, all=False)
        return lambda: self.client.client_unpause() and None

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"key": ""},
            {"key": 7},
            {"pattern": "memory:*"},
            {"key": "memory:mia-0", "field": ""},
            {"key": "memory:mia-0", "field": None},
            {"key": "memory:mia-0", "field": ["text"]},
            {"key": "memory:mia-0", "field": True},
            {"key": ["memory:mia-0"]},
        ]

    def wrong(self) -> Connector:
        """A user who may see other keys alone."""
        self.client.execute_command("ACL", "SETUSER", "other", "on", ">secret", "resetkeys", "~other:*", "+@all")
        host = self.made.url.rpartition("@")[2]
        return self.open(url=f"redis://other:secret@{host}")

    def source(self, **more: object) -> str:
        return (
            "from connectors.base import open_connector\n"
            f"connector = open_connector('redis', {self.config(**more)!r}, secrets=str)"
        )

    def own_delete(self, name: str) -> None:
        self.client.delete(f"memory:{name}")


class HashBed(KeysBed):
    """A hash for each item, its owner in a field of its own."""

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        self.client.hset(f"memory:{name}", mapping={"owner": owner, "text": text})
        return {"key": f"memory:{name}"}

    def get(self, name: str) -> str | None:
        return None if (value := self.client.hget(f"memory:{name}", "text")) is None else str(value)


class FieldBed(KeysBed):
    """All items as fields of one hash, each a JSON value."""

    all_or_nothing = "all items lie under one key, and rights are given by keys"
    kept = "memories"

    def whole(self, name: str) -> object:
        return self.client.hget("memories", name)

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        self.client.hset("memories", name, json.dumps({"owner": owner, "text": text}))
        return {"key": "memories", "field": name}

    def get(self, name: str) -> str | None:
        value = self.client.hget("memories", name)
        return None if value is None else str(json.loads(value)["text"])

    def own_delete(self, name: str) -> None:
        self.client.hdel("memories", name)


class MemberBed(KeysBed):
    """All items as members of one sorted set."""

    all_or_nothing = "all items lie under one key, and rights are given by keys"
    kept = "recent"

    def whole(self, name: str) -> object:
        member = self.member(name)
        return member and (member, self.client.zscore("recent", member))

    def member(self, name: str) -> str | None:
        members = self.client.zrange("recent", 0, -1)
        return next((each for each in members if json.loads(each)["id"] == name), None)

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        member = json.dumps({"id": name, "owner": owner, "text": text})
        self.client.zadd("recent", {member: 0})
        return {"key": "recent", "field": member}

    def get(self, name: str) -> str | None:
        member = self.member(name)
        return None if member is None else str(json.loads(member)["text"])

    def own_delete(self, name: str) -> None:
        self.client.zrem("recent", self.member(name))


class StreamBed(KeysBed):
    """All items as entries of one stream with a group that waits for some of them."""

    all_or_nothing = "all items lie under one key, and rights are given by keys"
    kept = "events"

    def whole(self, name: str) -> object:
        return self.client.xrange("events", self.ids[name], self.ids[name]) or None

    def __init__(self, made: service.RedisService) -> None:
        super().__init__(made)
        self.ids: dict[str, str] = {}

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        self.ids[name] = str(self.client.xadd("events", {"owner": owner, "text": text}))
        return {"key": "events", "field": self.ids[name]}

    def get(self, name: str) -> str | None:
        found = self.client.xrange("events", self.ids[name], self.ids[name])
        return str(found[0][1]["text"]) if found else None

    def own_delete(self, name: str) -> None:
        self.client.xdel("events", self.ids[name])


class _OnRedis(Contract):
    kind: type[KeysBed] = KeysBed

    @pytest.fixture
    def bed(self, server: service.RedisService) -> KeysBed:
        return self.kind(server)


class TestKeys(_OnRedis):
    holds = "redis, keys"


class TestHashes(_OnRedis):
    holds = "redis, hashes"
    slow: ClassVar = OF_PROCESSES
    kind = HashBed


class TestFields(_OnRedis):
    holds = "redis, fields of a hash"
    slow: ClassVar = OF_PROCESSES
    kind = FieldBed


class TestSortedSetMembers(_OnRedis):
    holds = "redis, members of a sorted set"
    slow: ClassVar = OF_PROCESSES
    kind = MemberBed


class TestStreamEntries(_OnRedis):
    holds = "redis, entries of a stream"
    slow: ClassVar = OF_PROCESSES
    kind = StreamBed


@pytest.fixture
def bed(server: service.RedisService) -> KeysBed:
    return KeysBed(server)


def finished(connector: Connector, items: list[Item]) -> list[tuple[Level | None, bool | None]]:
    """Erase, reclaim and verify; return what was found."""
    erase(connector, items)
    report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert report.level is Level.L2, report.detail
    findings = connector.verify(items, Level.L2, deadline=30, reclaimed=report)
    return [(finding.level, finding.present) for finding in findings]


def test_a_deleted_value_stays_in_the_append_only_file_and_in_the_dump_until_both_are_rewritten(bed: KeysBed) -> None:
    item = Item(copy_id="a", locator=bed.put("mia-0", text_of("mia-0"), "mia"))
    bed.client.save()
    bed.own_delete("mia-0")
    suffixes = {path.suffix for path in bed.made.folder.rglob("*") if path.is_file() and bed_has(path)}
    assert suffixes == {".aof", ".rdb"}
    with bed.open() as connector:
        [item] = [Item(copy_id="a", locator=item.locator, canaries=(text_of("mia-0").encode(),))]
        assert connector.verify([item], Level.L2, deadline=30)[0].present is True
        assert finished(connector, [item]) == [(Level.L2, False)]
    assert bed.hits(text_of("mia-0")) == 0


def bed_has(path: Path) -> bool:
    return text_of("mia-0").encode() in path.read_bytes()


def test_an_entry_deleted_from_a_stream_stays_in_dumps_until_the_stream_is_written_anew(
    server: service.RedisService,
) -> None:
    bed = StreamBed(server)
    items = [Item(copy_id=n, locator=bed.put(n, text_of(n), "mia")) for n in ("mia-0", "mia-1", "mia-2")]
    bed.own_delete("mia-0")
    bed.client.bgrewriteaof()
    bed.settle()
    bed.client.save()
    assert bed.hits(text_of("mia-0")) > 0, "the store's own rewrite keeps the entry's block"
    with bed.open() as connector:
        assert finished(connector, captured(connector, items[:2])) == [(Level.L2, False)] * 2
    assert [bed.hits(text_of(name)) for name in ("mia-0", "mia-1")] == [0, 0]
    assert bed.get("mia-2") == text_of("mia-2")


def test_a_stream_written_anew_keeps_groups_consumers_what_they_wait_for_and_its_end(
    server: service.RedisService,
) -> None:
    bed = StreamBed(server)
    items = [Item(copy_id=str(n), locator=bed.put(f"mia-{n}", text_of(str(n)), "mia")) for n in range(5)]
    bed.client.xgroup_create("events", "workers", id="0")
    bed.client.xreadgroup("workers", "w1", {"events": ">"}, count=3)
    bed.client.xreadgroup("workers", "w1", {"events": bed.ids["mia-1"]}, count=1)
    bed.client.xgroup_createconsumer("events", "workers", "idle")
    bed.client.expire("events", 3600)
    before = bed.client.xinfo_stream("events")
    with bed.open() as connector:
        assert finished(connector, [items[1], items[4]]) == [(Level.L2, False)] * 2
    after = bed.client.xinfo_stream("events")
    assert after["last-generated-id"] == before["last-generated-id"] == bed.ids["mia-4"]
    assert after["entries-added"] == 5
    assert [entry[0] for entry in bed.client.xrange("events")] == [bed.ids[f"mia-{n}"] for n in (0, 2, 3)]
    [group] = bed.client.xinfo_groups("events")
    assert (group["name"], group["consumers"], group["last-delivered-id"]) == ("workers", 2, bed.ids["mia-2"])
    waiting = bed.client.xpending_range("events", "workers", "-", "+", 10)
    assert [(each["message_id"], each["consumer"]) for each in waiting] == [
        (bed.ids["mia-0"], "w1"),
        (bed.ids["mia-2"], "w1"),
    ]
    assert 3500 < bed.client.ttl("events") <= 3600
    later = bed.client.xadd("events", {"owner": "mia", "text": "after"})
    assert later > bed.ids["mia-4"]


def test_an_emptied_stream_keeps_its_last_id(server: service.RedisService) -> None:
    bed = StreamBed(server)
    items = [Item(copy_id="a", locator=bed.put("mia-0", text_of("mia-0"), "mia"))]
    with bed.open() as connector:
        assert finished(connector, items) == [(Level.L2, False)]
    info = bed.client.xinfo_stream("events")
    assert (info["length"], info["last-generated-id"]) == (0, bed.ids["mia-0"])


def test_an_entry_is_not_believed_gone_from_its_block_when_others_were_deleted_since(
    server: service.RedisService,
) -> None:
    bed = StreamBed(server)
    items = [Item(copy_id=n, locator=bed.put(n, text_of(n), "mia")) for n in ("mia-0", "mia-1", "mia-2")]
    with bed.open() as connector:
        erase(connector, items[:1])
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        bed.own_delete("mia-1")
        finding = connector.verify(items[:1], Level.L2, deadline=30, reclaimed=report)[0]
    assert (finding.level, finding.present) == (Level.L1, None)
    assert "block" in str(finding.could_not_check)


@pytest.mark.parametrize("kind", ["list", "set", "zset", "stream", "hash"])
def test_a_whole_key_goes_only_when_every_part_names_the_owner(bed: KeysBed, kind: str) -> None:
    def put(key: str, *owners: str) -> Item:
        for number, owner in enumerate(owners):
            value = json.dumps({"owner": owner, "n": number, "text": text_of(f"{key}{number}")})
            if kind == "list":
                bed.client.rpush(key, value)
            elif kind == "set":
                bed.client.sadd(key, value)
            elif kind == "zset":
                bed.client.zadd(key, {value: number})
            elif kind == "stream":
                bed.client.xadd(key, {"owner": owner, "text": text_of(f"{key}{number}")})
            else:
                bed.client.hset(key, str(number), value)
        return Item(copy_id=key, locator={"key": key})

    items = [put("mine", "mia", "user:mia"), put("ours", "mia", "user:ben")]
    with bed.open() as connector:
        assert all(captured(connector, items)[0].canaries)
        exported = dict(connector.export(items, deadline=30))
        assert text_of("mine1").encode() in (exported["mine"] or b"")
        receipts = erase(connector, items)
    assert [receipt.outcome for receipt in receipts] == [Outcome.ERASED, Outcome.OWNER_MISMATCH]
    assert bed.client.exists("mine", "ours") == 1


@pytest.mark.parametrize(
    ("value", "is_hers"),
    [
        ('{"owner": "mia", "text": "a"}', True),
        ('{"text": "a\\n", "owner" :\t"user:mia"}', True),
        ('{"owner": "mia"}  ', True),
        (' {"owner": "mia"}', True),
        ('{"text": "{", "owner": "mia", "more": [1]}', True),
        ('{"owner": "mia", "text": "the owner of it"}', True),
        ('{"owner": "ben", "owner": "mia"}', True),
        ('{"owner": "m\\u0069a"}', True),
        ('{"owner": "mia", "owner": "ben"}', False),
        ('{"owner": "mia", "text": "a", "owner": "ben"}', False),
        ('{"owner": "mia", "text": "a"}{"who": "ben"}', False),
        ('{"owner": "mia", "text": "a"} and more', False),
        ('{"owner": "mia", "\\u006fwner": "ben"}', False),
        ('{"owner": "mia", "more": {"owner": "ben"}}', True),
        ('{"more": {"owner": "mia"}}', False),
        ('{"more": {"owner": "mia"}, "owner": "ben"}', False),
        ('{"text": "owner", "who": "mia"}', False),
        ('{"text": "she said \\"owner\\": \\"mia\\", so it is"}', False),
        ('{"my \\"owner": "mia"}', False),
        ('{"owner": "mia\\", "}', False),
        ('{"owner": "mia2"}', False),
        ('{"owner": ["mia"]}', False),
        ('{"owner": null}', False),
        ('{"owner": "mia", "text": "torn', False),
        ("{'owner': 'mia'}", False),
        ('["owner", "mia"]', False),
        ('"owner": "mia"', False),
        ("owner", False),
        ("", False),
    ],
)
def test_a_value_goes_when_its_own_member_names_the_owner_however_it_is_written(
    bed: KeysBed, value: str, is_hers: bool
) -> None:
    # What the quick look in the server says and what decoding says has to be one; discover decodes here. The values
    # around it have the head that most of these begin with, of which the quick look remembers what it saw.
    bed.client.mset({"memory:a": '{"owner": "mia", "text": "b"}', "memory:b": value, "memory:c": '{"owner": "mia"}'})
    with bed.open() as connector:
        found = {place["key"] for place in connector.discover(Selector(identifiers=(MIA,)), deadline=10)}
        items = [Item(copy_id=name, locator={"key": f"memory:{name}"}) for name in "abc"]
        outcomes = [receipt.outcome for receipt in erase(connector, items)]
    assert ("memory:b" in found) == is_hers
    assert outcomes == [Outcome.ERASED, Outcome.ERASED if is_hers else Outcome.OWNER_MISMATCH, Outcome.ERASED]


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        ('{"who/is": "mia", "text": "a"}', Outcome.ERASED),
        ('{"who\\/is": "ben", "who/is": "mia"}', Outcome.ERASED),
        ('{"who/is": "mia", "who\\/is": "ben"}', Outcome.OWNER_MISMATCH),
    ],
)
def test_a_member_whose_name_can_be_written_in_two_ways_is_found_in_both(
    bed: KeysBed, value: str, outcome: Outcome
) -> None:
    bed.client.set("memory:a", value)
    with bed.open(owner_field="who/is") as connector:
        receipts = erase(connector, [Item(copy_id="a", locator={"key": "memory:a"})])
    assert [receipt.outcome for receipt in receipts] == [outcome]


def test_set_members_go_one_by_one(bed: KeysBed) -> None:
    mine, other = (json.dumps({"owner": who, "text": text_of(who)}) for who in ("mia", "user:ben"))
    bed.client.sadd("facts", mine, other)
    items = [Item(copy_id=m, locator={"key": "facts", "field": m}) for m in (mine, other)]
    with bed.open() as connector:
        assert [r.outcome for r in erase(connector, items)] == [Outcome.ERASED, Outcome.OWNER_MISMATCH]
        assert [f.present for f in connector.verify(items, Level.L1, deadline=30)] == [False, True]
    assert bed.client.smembers("facts") == {other}


def test_part_of_a_string_or_list_and_half_an_entry_id_are_refused(bed: KeysBed) -> None:
    bed.put("mia-0", text_of("mia-0"), "mia")
    bed.client.rpush("list", json.dumps({"owner": "mia"}))
    bed.client.xadd("events", {"owner": "mia"}, id="5-1")
    places = [{"key": "memory:mia-0", "field": "text"}, {"key": "list", "field": "0"}, {"key": "events", "field": "5"}]
    with bed.open() as connector:
        receipts = erase(connector, [Item(copy_id=str(n), locator=place) for n, place in enumerate(places)])
    assert {receipt.outcome for receipt in receipts} == {Outcome.FAILED}
    assert bed.client.xlen("events") == 1


def test_a_key_with_too_many_parts_to_compare_is_refused_and_without_an_owner_it_goes(bed: KeysBed) -> None:
    bed.client.rpush("big", *[json.dumps({"owner": "mia", "n": n}) for n in range(10_001)])
    item = Item(copy_id="a", locator={"key": "big"})
    with bed.open() as connector:
        assert "more than 10000 parts" in erase(connector, [item])[0].detail
    with bed.open(owner=False) as connector:
        assert erase(connector, [item])[0].outcome is Outcome.ERASED


def test_a_script_with_much_to_compare_ends_early_and_the_rest_is_asked_again(bed: KeysBed) -> None:
    items = []
    for number in range(8):
        bed.client.rpush(f"log:{number}", *[json.dumps({"owner": "mia", "n": n}) for n in range(9_000)])
        items.append(Item(copy_id=str(number), locator={"key": f"log:{number}"}))
    with bed.open() as connector:
        assert [r.outcome for r in erase(connector, items)] == [Outcome.ERASED] * 8


def test_discover_names_parts_where_a_key_is_shared(bed: KeysBed) -> None:
    bed.client.hset("mixed", mapping={"1": json.dumps({"owner": "mia"}), "2": json.dumps({"owner": "user:ben"})})
    bed.client.xadd("events", {"owner": "user:mia", "text": "x"}, id="7-1")
    bed.client.rpush("mine", json.dumps({"owner": "mia"}))
    bed.client.set("other", "no json at all")
    with bed.open() as connector:
        found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=30))
    assert sorted(found, key=str) == sorted(
        [{"key": "mixed", "field": "1"}, {"key": "events", "field": "7-1"}, {"key": "mine"}], key=str
    )


def test_a_walk_names_every_key_and_every_part_that_has_a_name(bed: KeysBed) -> None:
    bed.put("mia-0", text_of("mia-0"), "mia")
    bed.client.hset("hash", "a", "1")
    bed.client.rpush("list", "x")
    bed.client.zadd("zset", {"m": 1})
    bed.client.xadd("events", {"a": "b"}, id="7-1")
    bed.client.hset("hash", b"\xff\xfe", "no text")
    with bed.open(read_only=True) as connector:
        walked = sorted(
            ((place["key"], place.get("field")) for place in connector.walk(deadline=10)),
            key=lambda each: (each[0], each[1] or ""),
        )
    assert [each for each in walked if each[1] is None] == [
        (key, None) for key in ("events", "hash", "list", "memory:mia-0", "zset")
    ]
    assert [each for each in walked if each[1] is not None] == [("events", "7-1"), ("hash", "a"), ("zset", "m")]


def test_what_a_live_neighbour_holds_too_is_not_mistaken_for_a_leftover(bed: KeysBed) -> None:
    same = "the weekly newsletter text that everybody got"
    items = [Item(copy_id=n, locator=bed.put(n, same, who)) for n, who in (("mia-0", "mia"), ("ben-0", BEN))]
    with bed.open() as connector:
        assert finished(connector, captured(connector, items[:1])) == [(Level.L2, False)]


def test_a_file_left_by_a_crashed_save_is_seen_and_reported(bed: KeysBed) -> None:
    items = [Item(copy_id="a", locator=bed.put("mia-0", text_of("mia-0"), "mia"))]
    bed.client.save()
    left = bed.made.folder / "temp-99999.rdb"
    shutil.copy(bed.made.folder / "dump.rdb", left)
    try:
        with bed.open() as connector:
            assert finished(connector, captured(connector, items)) == [(Level.L1, True)]
            left.unlink()
            assert finished(connector, [Item(copy_id="a", locator=items[0].locator, canaries=(b"17 Blackthorn",))]) == [
                (Level.L2, False)
            ]
    finally:
        left.unlink(missing_ok=True)


def test_a_server_that_is_killed_and_started_between_batches_ends_the_same(server: service.RedisService) -> None:
    bed = KeysBed(server)
    mine, others = fill(bed)
    with bed.open() as connector:
        items = captured(connector, mine)
        erase(connector, items[:3])
        time.sleep(1.2)  # the append-only file is synced each second
        server.restart()
        assert [r.outcome for r in erase(connector, items)] == [Outcome.ALREADY_ABSENT] * 3 + [Outcome.ERASED] * 4
        assert finished(connector, items) == [(Level.L2, False)] * 7
    assert all(bed.get(item.copy_id) == text_of(item.copy_id) for item in others)


def test_no_rewrite_no_level(bed: KeysBed) -> None:
    items = [Item(copy_id="a", locator=bed.put("mia-0", text_of("mia-0"), "mia"))]
    with bed.open() as connector:
        erase(connector, items)
        finding = connector.verify(items, Level.L2, deadline=30)[0]
    assert (finding.level, finding.present) == (Level.L1, None)
    assert "no rewrite" in str(finding.could_not_check)


def test_a_user_who_may_not_rewrite_or_see_the_files_reaches_l1_and_says_why(bed: KeysBed) -> None:
    name, password = f"u{secrets.token_hex(4)}", secrets.token_hex(8)
    bed.client.acl_setuser(
        name, enabled=True, passwords=[f"+{password}"], keys=["*"],
        commands=["+@all", "-bgrewriteaof", "-bgsave", "-config"],
    )  # fmt: skip
    url = bed.made.url.replace("redis://:", f"redis://{name}:").replace(
        bed.made.url.split(":")[2].split("@")[0], password
    )
    items = [Item(copy_id="a", locator=bed.put("mia-0", text_of("mia-0"), "mia"))]
    with bed.open(url=url) as connector:
        assert erase(connector, items)[0].outcome is Outcome.ERASED
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        assert (report.level, report.residual_until) == (Level.L1, "unknown")
        assert "refused the credentials" in report.detail
        assert connector.verify(items, Level.L2, deadline=30, reclaimed=report)[0].present is None
        check = connector.check(now=NOW, deadline=30)
    assert (check.can_erase, check.level_reached) == (True, Level.L1)
    assert check.findings


@pytest.mark.scenario("S37")
def test_a_user_whose_keys_are_others_sees_no_absence(bed: KeysBed) -> None:
    name, password = f"u{secrets.token_hex(4)}", secrets.token_hex(8)
    bed.client.acl_setuser(name, enabled=True, passwords=[f"+{password}"], keys=["other:*"], commands=["+@all"])
    old = bed.made.url.split(":")[2].split("@")[0]
    url = bed.made.url.replace(f":{old}@", f"{name}:{password}@")
    items = [Item(copy_id="a", locator=bed.put("mia-0", text_of("mia-0"), "mia"))]
    with bed.open(url=url) as connector:
        with pytest.raises(WrongCredentials):
            erase(connector, items)
        with pytest.raises(WrongCredentials):
            connector.verify(items, Level.L1, deadline=30)
    assert bed.get("mia-0") is not None


def test_a_replica_is_told_from_the_primary_and_counted_as_residual(bed: KeysBed, tmp_path: Path) -> None:
    address = bed.made.url.split("@")[1].split("/")[0].split(":")
    password = bed.made.url.split(":")[2].split("@")[0]
    settings = {"replicaof": f"{address[0]} {address[1]}", "masterauth": password}
    items = [Item(copy_id="a", locator=bed.put("mia-0", text_of("mia-0"), "mia"))]
    with service.running(tmp_path, settings=settings) as replica:
        follower: Any = _client(replica.url)
        end = time.monotonic() + 20
        while not follower.exists("memory:mia-0"):
            assert time.monotonic() < end
            time.sleep(0.05)
        with bed.open(url=replica.url) as connector, pytest.raises(StoreUnreachable, match="replica"):
            erase(connector, items)
        with bed.open() as connector:
            erase(connector, items)
            report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        assert "1 replicas keep files of their own" in report.detail
        assert report.residual_until == "unknown"


@pytest.mark.parametrize(
    ("owner", "asked", "outcome"),
    [
        ("7", "7", Outcome.ERASED),
        ("7.0", "7", Outcome.ERASED),
        ("175928847299117063", "175928847299117063", Outcome.ERASED),
        ("175928847299117063", "175928847299117064", Outcome.OWNER_MISMATCH),
        ("-175928847299117063", "175928847299117063", Outcome.OWNER_MISMATCH),
        ("12345678901234.4", "12345678901234", Outcome.OWNER_MISMATCH),
        ("1e3", "1000", Outcome.ERASED),
        ("true", "true", Outcome.OWNER_MISMATCH),
    ],
)
def test_an_owner_that_is_a_number_is_compared_digit_by_digit(
    bed: KeysBed, owner: str, asked: str, outcome: Outcome
) -> None:
    bed.client.set("n", f'{{"text": "said by u", "owner": {owner}}}')
    bed.client.hset("h", "n", f'{{"parts": [1, {{"a": 2}}], "owner":{owner}}}')
    items = [Item(copy_id="n", locator={"key": "n"}), Item(copy_id="h", locator={"key": "h", "field": "n"})]
    with bed.open() as connector:
        given = connector.erase(items, owner_identifiers=[f"user:{asked}"], now=NOW, deadline=10)
    assert [receipt.outcome for receipt in given] == [outcome, outcome]
    assert (bed.client.exists("n"), bed.client.exists("h")) == ((0, 0) if outcome is Outcome.ERASED else (1, 1))


@pytest.mark.scenario("S13")
def test_families_of_keys_of_which_only_some_expire_are_counted(bed: KeysBed) -> None:
    bed.client.set("checkpoint:1", "a", ex=60)
    bed.client.set("checkpoint_write:1", "b")
    bed.client.set("checkpoint_write:2", "b", ex=60)
    bed.client.set("plain", "c")
    with bed.open(read_only=True) as connector:
        assert isinstance(connector, RedisConnector)
        assert connector.expiries(deadline=10) == {"checkpoint": (1, 0), "checkpoint_write": (1, 1), "": (0, 1)}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"url": "http://x"},
        {"url": "redis://h:x/y"},
        {"url": "redis://h", "x": 1},
        {"url": "redis://h", "owner_field": ""},
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        open_connector("redis", config, secrets=str)


def test_nothing_listening_is_unreachable(bed: KeysBed) -> None:
    item = Item(copy_id="a", locator={"key": "memory:mia-0"})
    with bed.open(url="redis://127.0.0.1:9/0") as connector:
        with pytest.raises(StoreUnreachable):
            erase(connector, [item])
        assert connector.check(now=NOW, deadline=5).reachable is False


@pytest.mark.slow
def test_ten_thousand_keys_are_erased_and_shown_absent_in_batches(bed: KeysBed, full_length: bool) -> None:
    count = 10_000 if full_length else 2_000
    for who in ("mia", "ben"):
        value = json.dumps({"owner": who, "text": "x" * 1000})
        bed.client.mset({f"{who}:{n}": value for n in range(count)})
    items = [Item(copy_id=f"mia:{n}", locator={"key": f"mia:{n}"}) for n in range(count)]
    with bed.open() as connector:
        for start in range(0, count, 500):
            assert {r.outcome for r in erase(connector, items[start : start + 500])} == {Outcome.ERASED}
    with bed.open(read_only=True) as verifier:
        assert {f.present for f in verifier.verify(items, Level.L1, deadline=60)} == {False}
    assert bed.client.dbsize() == count


def test_one_batch_of_whole_keys_tells_what_went_from_what_was_gone_and_what_is_somebody_elses(bed: KeysBed) -> None:
    bed.client.set("mine", json.dumps({"owner": "mia"}))
    bed.client.set("theirs", json.dumps({"owner": "ben"}))
    bed.client.set("plain", "no document")
    bed.client.set("hers as a number", json.dumps({"owner": 7}))
    bed.client.hset("card", mapping={"owner": "mia", "text": "x"})
    bed.client.rpush("turns", json.dumps({"owner": "mia"}), json.dumps({"owner": "ben"}))
    keys = ["mine", "never", "theirs", "plain", "card", "turns", "hers as a number"]
    items = [Item(copy_id=key, locator={"key": key}) for key in keys]
    with bed.open() as connector:
        given = [r.outcome for r in erase(connector, items)]
    gone, absent, mismatch = Outcome.ERASED, Outcome.ALREADY_ABSENT, Outcome.OWNER_MISMATCH
    assert given == [gone, absent, mismatch, mismatch, gone, mismatch, mismatch]
    assert sorted(bed.client.keys()) == ["hers as a number", "plain", "theirs", "turns"]


@pytest.mark.parametrize("owner", [True, False])
def test_a_key_that_is_named_twice_goes_once(bed: KeysBed, owner: bool) -> None:
    bed.client.set("mine", json.dumps({"owner": "mia"}))
    items = [Item(copy_id=str(n), locator={"key": key}) for n, key in enumerate(("mine", "never", "mine"))]
    with bed.open(owner=owner) as connector:
        outcomes = [r.outcome for r in erase(connector, items)]
    assert outcomes == [Outcome.ERASED, Outcome.ALREADY_ABSENT, Outcome.ALREADY_ABSENT]


def test_keys_of_any_bytes_and_length_are_sent_as_they_are(bed: KeysBed) -> None:
    names = ["a b", "$3\r\nfoo\r\n", "é", "*", " ", "x" * 70_000]
    for name in names:
        bed.client.set(name, json.dumps({"owner": "mia"}))
    items = [Item(copy_id=str(n), locator={"key": name}) for n, name in enumerate(names)]
    with bed.open() as connector:
        assert {f.present for f in connector.verify(items, Level.L1, deadline=30)} == {True}
        assert {r.outcome for r in erase(connector, items)} == {Outcome.ERASED}
    assert bed.client.dbsize() == 0

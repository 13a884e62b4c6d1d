"""Large calls are prepared by another process: what is stored, answered and refused is what it is without one."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.wiring import MAX_ENTRIES
from ledger.entry import decode_header, uuid7
from registry import classes, subjects
from registry.acting import Acting
from registry.classes import STARTER_CLASSES
from registry.identifiers import parse_subject
from registry.preparing import LEAST_BYTES, Preparing, Taken
from registry.record import AppendResult, Record
from registry.sheets import SealedSheet, SealOrder
from tests.process.conftest import Desk, Running, new_desk, wait_for

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="without shared memory there is no process"),
]
AT = datetime(2026, 11, 29, 12, tzinfo=UTC)
PURPOSE = "dispute;case=7"
FAR = timedelta(days=800)


def entry(number: int, **more: Any) -> dict[str, Any]:
    made = {
        "id": uuid7(AT), "stream": f"conv_{number % 3}", "kind": "turn.user", "at": AT.isoformat(),
        "data_class": "transcript", "subjects": [f"user:p{number % 3}"], "body": {"n": number, "text": "x" * 800},
    }  # fmt: skip
    return {name: value for name, value in {**made, **more}.items() if value is not ...}


def mixed(count: int = 100) -> list[dict[str, Any]]:
    """Entries of every kind that a sheet knows, with some that are refused."""
    made = [entry(number) for number in range(count)]
    parts = [
        {"name": "shown", "body": {"b": 1}, "subjects": ["user:p1", "user:p2"]},
        {"name": "file", "blob": base64.b64encode(bytes(range(256))).decode(), "pinned": True},
    ]
    made[3] = entry(3, body=..., parts=parts)
    made[4] = entry(4, actor="user:p1", agent="a", model="m", run="run", recorder="r", seq=4)
    made[5] = entry(5, actor="Miss Jones", sources=[made[0]["id"], made[1]["id"]])
    made[6] = entry(6, kind="phase", body={"phase": "confirm"})
    made[7] = entry(7, kind="no.such.kind")
    made[8] = entry(8, at="yesterday")
    made[9] = entry(9, data_class="no-such-class")
    made[10] = entry(10, body={"n": 2**70})
    made[11] = entry(11, subjects=["nobody"])
    made[12] = {**made[13]}
    made[14] = entry(14, id=made[15]["id"])
    made[16] = entry(16, subjects=[])
    return made


def acting_of(desk: Desk) -> Acting:
    (acting,) = (one for one in desk.running.services.tenants() if one.tenant == desk.tenant)
    return acting


@pytest.fixture(scope="module", autouse=True)
def started(running: Running) -> Iterator[None]:
    """The service's process that prepares."""
    running.services.preparing.start()
    yield
    assert running.services.settings.preparing_processes >= len(running.services.preparing.pids) >= 1


def prepared(
    desk: Desk, entries: list[dict[str, Any]], record: Record | None = None, *, acting: Acting | None = None
) -> AppendResult:
    """Let another process prepare a call, as soon as there is one."""
    data = json.dumps({"entries": entries}).encode()
    assert len(data) >= LEAST_BYTES
    record, acting = record or desk.running.services.record, acting or acting_of(desk)
    now = desk.running.services.clock.now()
    result: AppendResult = wait_for(lambda: record.append_call(acting, data, now, lines=False))
    return result


def alone(desk: Desk, entries: list[dict[str, Any]], acting: Acting | None = None) -> AppendResult:
    services, acting = desk.running.services, acting or acting_of(desk)
    return services.record.append(acting, [json.dumps(one).encode() for one in entries], services.clock.now())


def is_not_prepared(desk: Desk, entries: list[dict[str, Any]]) -> bool:
    services, data = desk.running.services, json.dumps({"entries": entries}).encode()
    return services.record.append_call(acting_of(desk), data, services.clock.now(), lines=False) is None


def read(desk: Desk, entry_id: str) -> dict[str, Any]:
    path, purpose = f"/v1/record/entries/{entry_id}", {"X-Purpose": PURPOSE}
    view: dict[str, Any] = json.loads(desk.client("auditor").send("GET", path, None, purpose).body)
    for own in ("index", "stream_id", "recorder", "received", "run"):
        view.pop(own, None)
    if "p1" in str(view.get("actor")) or len(str(view.get("actor"))) > 20:
        view["actor"] = "somebody who is a subject"
    return view


def header_of(desk: Desk, entry_id: str) -> bytes:
    proof = desk.call("auditor", "GET", f"/v1/record/entries/{entry_id}/proof")
    return base64.b64decode(proof["header"])


def test_a_prepared_call_is_stored_answered_and_read_as_one_that_is_not(desk: Desk, running: Running) -> None:
    other, entries = new_desk(running), mixed()
    with_process, without = prepared(desk, entries), alone(other, entries)
    assert with_process.receipt is not None
    shown = [[{**one, "index": None} for one in found.results] for found in (with_process, without)]
    assert shown[0] == shown[1]
    assert Counter(one["status"] for one in with_process.results) == {"stored": 94, "rejected": 5, "duplicate": 1}
    for number in (0, 3, 4, 5, 6, 10, 12, 16):
        here, there = read(desk, entries[number]["id"]), read(other, entries[number]["id"])
        assert here == there
    assert read(desk, entries[3]["id"])["parts"][1]["blob"] == base64.b64encode(bytes(range(256))).decode()
    assert read(desk, entries[5]["id"])["actor"] == "Miss Jones"
    header = decode_header(header_of(desk, entries[3]["id"]))
    assert [one.role for one in header.parts] == ["part.0", "part.1", "skeleton"]
    stored = [one["index"] for one in with_process.results if one["status"] == "stored"]
    assert stored == sorted(set(stored))
    other.close()


def test_whoever_and_whatever_only_a_part_names_is_looked_up(desk: Desk) -> None:
    """Beside an entry that says the same but for its parts, nobody looked at those, nor at the token's classes."""
    named: list[dict[str, Any]] = [
        {"subjects": ["user:new"]},
        {"subjects": ["nobody"]},
        {"data_class": "no-such-class"},
        {"data_class": "decision"},
    ]
    entries = [entry(0) for _ in range(100)]
    entries += [entry(0, body=..., parts=[{"name": "said", "body": 1, **more}]) for more in named]
    acting = replace(acting_of(desk), classes=("transcript",))
    with_process, again = prepared(desk, entries, acting=acting), alone(desk, entries, acting)
    assert [one.get("problem") for one in with_process.results] == [one.get("problem") for one in again.results]
    kinds = [one["problem"]["type"] if "problem" in one else one["status"] for one in with_process.results]
    assert kinds[100:] == ["stored", "/problems/malformed-subject", "/problems/unknown-class", "/problems/forbidden"]
    (found,) = desk.call("auditor", "POST", "/v1/record:search", {"subject": "user:new"})["items"]
    assert found["id"] == entries[100]["id"]


def test_a_repeat_is_known_however_it_is_prepared(desk: Desk) -> None:
    entries = [entry(number) for number in range(100)]
    first = {one["id"]: one["index"] for one in prepared(desk, entries).results}
    for again in (alone(desk, entries), prepared(desk, entries)):
        assert {one["id"]: one["index"] for one in again.results} == first
        assert {one["status"] for one in again.results} == {"duplicate"}
    changed = [{**one, "body": {"n": -1, "text": "y" * 800}} for one in entries]
    for result in (alone(desk, changed), prepared(desk, changed)):
        assert {one["problem"]["type"] for one in result.results} == {"/problems/id-conflict"}


def put_class(desk: Desk, name: str, **more: Any) -> None:
    """A class like that of transcripts, but for this."""
    spec = json.loads(json.dumps(STARTER_CLASSES["transcript"]))
    spec["retention"] |= more.pop("retention", {})
    acting = acting_of(desk)
    with desk.running.services.database.transaction(acting.tenant_id) as session:
        classes.put_class(session, acting, name, {**spec, **more}, AT)


def test_what_depends_on_a_single_entry_is_taken_item_by_item(desk: Desk) -> None:
    put_class(desk, "locked", retention={"lock": "P30D"})
    put_class(desk, "empty", content="none")
    now = desk.running.services.clock.now()
    entries = [entry(number, data_class="locked") for number in range(100)]
    prepared(desk, entries)
    assert is_not_prepared(desk, [*entries, entry(1, at=(now + FAR).isoformat(), subjects=["user:refused"])])
    assert not is_known(desk, "user:refused"), "what is refused makes nobody known"
    assert is_not_prepared(desk, [entry(1, data_class="locked", at=(now + timedelta(days=40)).isoformat()), *entries])
    assert is_not_prepared(desk, [*entries, entry(1, data_class="empty")])
    assert not is_not_prepared(desk, entries)


def test_a_call_about_somebody_who_is_fenced_is_taken_item_by_item(desk: Desk) -> None:
    prepared(desk, [entry(number) for number in range(100)])
    fence(desk, "user:p1")
    assert is_not_prepared(desk, [entry(number) for number in range(100)])
    late = [entry(number) for number in range(100)]
    answer = desk.call("writer", "POST", "/v1/record/entries", {"entries": late})
    said = {number % 3: one["status"] for number, one in enumerate(answer["results"])}
    assert said == {0: "stored", 1: "suppressed", 2: "stored"}


def is_known(desk: Desk, name: str) -> bool:
    services, acting = desk.running.services, acting_of(desk)
    with services.database.transaction(acting.tenant_id, write=False) as session:
        return bool(subjects.find(session, services.vault, acting, [parse_subject(name)]))


def fence(desk: Desk, name: str) -> None:
    services, acting = desk.running.services, acting_of(desk)
    with services.database.transaction(acting.tenant_id) as session:
        found = subjects.find(session, services.vault, acting, [parse_subject(name)])
        assert subjects.fence(session, acting.tenant_id, found.values(), "req_1", services.clock.now()) == 1


class Between(Preparing):
    """Lets something happen after a call was looked up and before it is sealed."""

    def __init__(self, happen: Callable[[], None]) -> None:
        super().__init__(count=1, most=MAX_ENTRIES)
        self._happen = happen

    def take(self, data: bytes, *, lines: bool) -> Taken | None:
        taken = super().take(data, lines=lines)
        if taken is None:
            return None
        happen = self._happen

        class Later(Taken):
            def seal(self, order: SealOrder) -> SealedSheet | None:
                happen()
                return super().seal(order)

        later = Later(taken._helper, taken._number, taken.sheet)
        taken._kept = False
        return later


def record_with(desk: Desk, preparing: Preparing) -> Record:
    services = desk.running.services
    return Record(
        vault=services.vault,
        log=services.log,
        transactions=services.database.transaction,
        journal=services.journal,
        preparing=preparing,
    )


def test_somebody_who_is_fenced_while_a_call_is_sealed_is_turned_back(desk: Desk) -> None:
    prepared(desk, [entry(number) for number in range(100)])
    preparing = Between(lambda: fence(desk, "user:p1"))
    preparing.start()
    try:
        entries = [entry(number) for number in range(100)]
        found = prepared(desk, entries, record_with(desk, preparing))
    finally:
        preparing.close()
    assert {number % 3: one["status"] for number, one in enumerate(found.results)} == {
        0: "stored", 1: "suppressed", 2: "stored",
    }  # fmt: skip
    search = desk.call("auditor", "POST", "/v1/record:search", {"subject": "user:p1"})["items"]
    assert {one["id"] for one in search}.isdisjoint(one["id"] for one in entries)


def test_a_process_that_dies_while_a_call_is_sealed_loses_and_doubles_nothing(desk: Desk) -> None:
    preparing = Between(lambda: os.kill(preparing.pids[0], signal.SIGKILL))
    preparing.start()
    record, acting, now = record_with(desk, preparing), acting_of(desk), desk.running.services.clock.now()
    entries = [entry(number) for number in range(100)]
    data = json.dumps({"entries": entries}).encode()
    try:
        pids = set()

        def died() -> bool:
            assert record.append_call(acting, data, now, lines=False) is None
            pids.update(preparing.pids)
            return len(pids) > 0 and preparing.pids == []

        wait_for(died)
    finally:
        preparing.close()
    result = alone(desk, entries)
    assert {one["status"] for one in result.results} == {"stored"}


def test_killed_again_and_again_under_load_every_call_is_answered_and_stored_once(desk: Desk) -> None:
    preparing, stopping, killed = Preparing(count=2, most=MAX_ENTRIES, again_seconds=0.0), threading.Event(), set[int]()
    record, acting, clock = record_with(desk, preparing), acting_of(desk), desk.running.services.clock

    def kill() -> None:
        while not stopping.wait(0.05):
            for pid in preparing.pids:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)

    def write(number: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < 500 or len(killed) < 5:
            sent = [json.dumps(entry(number, stream=f"s{number}")).encode() for _ in range(100)]
            data = b'{"entries": [' + b",".join(sent) + b"]}"
            result = record.append_call(acting, data, clock.now(), lines=False)
            found += (result or record.append(acting, sent, clock.now())).results
        return found

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with ThreadPoolExecutor(2) as pool:
            results = [one for found in pool.map(write, range(2)) for one in found]
    finally:
        stopping.set()
        killer.join()
        preparing.close()
    assert {one["status"] for one in results} == {"stored"}
    assert len({one["index"] for one in results}) == len(results)

"""Somebody is erased: what was proven about the entries stays proven, nothing that reads or searches gives their words.

A second tenant has the same entry ids, the same person and the same words, and keeps all of them.
"""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest

from ledger.checkpoint import Checkpoint, parse_checkpoint, verify_note
from ledger.entry import header_hash
from ledger.merkle import verify_consistency
from ledger.signing import verifier_from_vkey
from muniment.errors import ApiProblem
from tests.process.conftest import new_desk
from tests.process.test_process_rebuild import command, erase, head_of, own, proof_holds, read, refused, replay, say

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
WORDS = ("my rash came back", "since the wombat-2281 cream")


def search(desk: Any, **conditions: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = desk.call("auditor", "POST", "/v1/record:search", conditions)["items"]
    return items


def signed(desk: Any, note: str) -> Checkpoint:
    """The checkpoint of a note by the log's key."""
    return parse_checkpoint(verify_note(note.encode(), [verifier_from_vkey(desk.log_key)]))


def repeat(desk: Any, said: dict[str, Any]) -> str:
    """Send an entry again, to this desk; what became of it."""
    status: str = desk.call("writer", "POST", "/v1/record/entries", {"entries": [said]})["results"][0]["status"]
    return status


@pytest.mark.scenario("L13", "L31")
def test_proofs_from_before_hold_and_no_way_to_read_or_find_gives_what_was_said(desk: Any, running: Any) -> None:
    gone, kept = say(desk, "gone", *WORDS), say(desk, "kept", "Where is my refund?")
    other = new_desk(running)
    twins = [
        {"id": one, "stream": "conv_gone", "kind": "turn.user", "at": "2026-11-30T12:00:00Z",
         "data_class": "transcript", "subjects": ["user:gone"], "body": {"text": words}}
        for one, words in zip(gone, WORDS, strict=True)
    ]  # fmt: skip
    assert {repeat(other, one) for one in twins} == {"stored"}
    old_head = head_of(desk)
    before = {one: desk.call("auditor", "GET", f"/v1/record/entries/{one}/proof") for one in (*gone, *kept)}
    assert len(search(desk, subject="user:gone")) == len(gone)

    request = erase(desk, "gone")
    new_head = head_of(desk)
    steps = desk.call("auditor", "GET", f"/v1/log/consistency?from={old_head.size}&to={new_head.size}")["consistency"]
    path = [bytes.fromhex(node) for node in steps]
    verify_consistency(old_head.size, new_head.size, path, old_head.root, new_head.root)
    for one, proof in before.items():
        proof_holds(desk, proof, signed(desk, proof["checkpoint"]))
        now = desk.call("auditor", "GET", f"/v1/record/entries/{one}/proof")
        assert {name: now[name] for name in ("index", "header", "leaf_hash")} == {
            name: proof[name] for name in ("index", "header", "leaf_hash")
        }
        assert header_hash(base64.b64decode(now["header"])).hex() == now["leaf_hash"]
        proof_holds(desk, now, signed(desk, now["checkpoint"]))

    assert [refused(desk, one) for one in gone] == [410, 410]
    answers = [replay(desk, "conv_gone"), search(desk, kind="turn.user"), search(desk, subject="user:gone")]
    assert request in json.dumps(answers[0])
    assert {one["id"] for one in answers[1]} == {*gone, *kept}
    # Headers stay, and the keyed look-up of the name, by which later words are recognised and suppressed.
    assert {one["id"] for one in answers[2]} == set(gone)
    assert not [words for words in (*WORDS, "user:gone") if words in json.dumps(answers)]
    report = own(json.loads(command(running, "verify", "--all").stdout), desk)
    assert (report["verdict"], report["erased"] >= len(gone), report["findings"]) == ("sound", True, [])

    for one, words in zip(gone, WORDS, strict=True):
        assert json.loads(read(other, one))["body"] == {"text": words}
    assert len(search(other, subject="user:gone")) == len(gone)
    assert {repeat(other, one) for one in twins} == {"duplicate"}
    other.close()


def test_what_is_under_way_while_somebody_is_erased_is_never_read_again(desk: Any, running: Any) -> None:
    """The flush that carries it has looked at the fences already; the erasure begins, and the batch is stored then."""
    say(desk, "gone", WORDS[0])
    late: list[Any] = []
    store, stopped, goes_on = running.services.locked, threading.Event(), threading.Event()
    put = store.put

    def waiting(key: str, data: Any, **more: Any) -> None:
        if "/batch/" in key and not stopped.is_set():
            stopped.set()
            assert goes_on.wait(60)
        put(key, data, **more)

    store.put = waiting
    try:
        speaking = threading.Thread(target=lambda: late.extend(say(desk, "gone", WORDS[1])))
        speaking.start()
        assert stopped.wait(20)
        erasing = threading.Thread(target=lambda: late.append(erase(desk, "gone")))
        erasing.start()
        erasing.join(0.5)
        assert erasing.is_alive(), "what is binding waits for the flush before it"
        goes_on.set()
        speaking.join(30)
        erasing.join(60)
    finally:
        del store.put
    entry, request = late
    with pytest.raises(ApiProblem) as problem:
        read(desk, entry)
    assert problem.value.status == 410
    hole = next(one for one in replay(desk, "conv_gone") if one["id"] == entry)
    assert (hole["integrity"], request in json.dumps(hole), "body" in hole) == ("erased", True, False)

"""After an erasure no path that tells of it, of what it left or of what came from it says a word of the person.

The progress stream, the outbox and what was announced, packages of this and of another person, the routes of artifacts
that were made from an erased entry, search, replay and the audit's lists. Embedded and on servers.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from ledger.entry import uuid7
from tests.process.conftest import wait_for
from tests.process.test_process_keeping import WHO, everywhere, request, until, without_grace
from tests.process.test_process_rights import NOTE

__all__ = ["without_grace"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
OTHER = "user:who_stays"
WORDS = ("the-quagga-is-blue", "conversation-of-zaphod", "run-for-zaphod", "zaphods-sheet", WHO.partition(":")[2])
STAYS = "the-okapi-is-green"


def spoken(desk: Any, *parts: tuple[str, str]) -> str:
    """An entry with a part for each speaker, in a stream and a run that name one of them."""
    entry = {
        "id": uuid7(datetime.now(UTC)), "stream": WORDS[1], "run": WORDS[2], "kind": "turn.user",
        "at": datetime.now(UTC).isoformat(), "data_class": "transcript", "subjects": [who for who, _ in parts],
        "parts": [
            {"name": f"part{number}", "subjects": [who], "body": {"text": text}}
            for number, (who, text) in enumerate(parts)
        ],
    }  # fmt: skip
    [result] = desk.call("writer", "POST", "/v1/record/entries", {"entries": [entry]})["results"]
    assert result["status"] == "stored", result
    return str(entry["id"])


def filed(desk: Any, *sources: str) -> str:
    """A file that was made from entries, in a store under the operator's list."""
    folder = desk.running.settings.data.parent / "stores" / desk.tenant
    folder.mkdir(parents=True)
    (folder / f"{WORDS[3]}.txt").write_text(f"{WORDS[0]} in a file")
    desk.call("platform", "PUT", "/v1/data-classes/note", NOTE)
    desk.call("platform", "PUT", "/v1/stores/sheets", {"kind": "files", "config": {"root": str(folder)}})
    item = {
        "data_class": "note", "store": "sheets", "locator": {"path": f"{WORDS[3]}.txt"}, "subjects": [WHO],
        "sources": [f"entry:{name}" for name in sources], "scope": {"conversation": WORDS[1]},
        "activity": {"kind": "summarise", "run": WORDS[2]}, "source_ref": WORDS[0],
    }  # fmt: skip
    [made] = desk.client("writer").artifacts([item])
    assert made["status"] == "created", made
    return str(made["id"])


def answers(desk: Any, request_id: str, artifact: str, *entries: str) -> Iterator[tuple[str, str]]:
    """Every path that tells of an erasure, with what it answers; of the entries the first has nothing left."""
    erasure = f"/v1/requests/{request_id}"
    asked: list[tuple[str, str, str, object]] = [
        *[("legal", "GET", f"{erasure}{part}", None) for part in ("", "/plan", "/copies", "/report", "/events")],
        ("legal", "POST", "/v1/artifacts:search", {"data_class": "note"}),
        ("auditor", "POST", "/v1/record:search", {"kind": "turn.user"}),
        ("auditor", "POST", "/v1/replay", {"stream": WORDS[1]}),
        ("auditor", "GET", "/v1/audit/log?limit=1000", None),
        ("auditor", "GET", "/v1/audit/coverage", None),
        *[("auditor", "GET", f"/v1/artifacts/{artifact}{part}", None) for part in ("", "/provenance", "/prov")],
        *[("auditor", "GET", f"/v1/artifacts/{artifact}/lineage?direction={way}", None) for way in ("up", "down")],
        *[("auditor", "GET", f"/v1/record/entries/{entry}", None) for entry in entries],
        *[("auditor", "GET", f"/v1/record/entries/{entry}/proof", None) for entry in entries],
    ]  # fmt: skip
    for principal, method, path, body in asked:
        headers = {"Authorization": f"Bearer {desk.tokens[principal]}", "X-Purpose": "dispute;case=7"}
        got = httpx.request(method, f"{desk.running.url}{path}", json=body, headers=headers, timeout=60)
        assert got.status_code == (410 if path.endswith(entries[0]) else 200), (path, got.text)
        # Replay repeats the name that it was asked for.
        yield path, got.text.replace(json.dumps(WORDS[1]), "") if path == "/v1/replay" else got.text


def packed(desk: Any, who: str) -> dict[str, str]:
    """What the package of a person says, file by file."""
    made = desk.call("legal", "POST", "/v1/requests", {"right": "access", "subjects": [who], "regulation": "gdpr"})
    path = f"/v1/requests/{made['id']}"
    desk.call("legal", "POST", f"{path}/verify-identity", {"identifier": who, "method": "login"})
    plan = desk.call("legal", "POST", f"{path}/plan")
    desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["plan_hash"]})
    wait_for(lambda: state(desk, path) == "completed" or asked_of_a_human(desk, path), 60)
    until(desk, made["id"], "completed")
    return package(desk, made["id"])


def state(desk: Any, path: str) -> str:
    return str(desk.call("legal", "GET", path)["state"])


def asked_of_a_human(desk: Any, path: str) -> bool:
    """Release what is said of two people, where a human is asked; whether one was."""
    copies = desk.call("legal", "GET", f"{path}/copies?state=awaiting_human")["items"]
    for copy in copies:
        released = {"outcome": "release", "comment": "they know each other"}
        desk.call("legal2", "POST", f"{path}/copies/{copy['copy']}", released)
    return bool(copies)


def package(desk: Any, request_id: str) -> dict[str, str]:
    answer = desk.client("legal").send("GET", f"/v1/requests/{request_id}/export")
    archive = zipfile.ZipFile(io.BytesIO(answer.body))
    return {name: archive.read(name).decode(errors="replace") for name in archive.namelist()}


def test_no_path_that_tells_of_an_erasure_says_a_word_of_the_person(desk: Any, running: Any) -> None:
    alone = spoken(desk, (WHO, WORDS[0]))
    both = spoken(desk, (WHO, WORDS[0]), (OTHER, STAYS))
    artifact = filed(desk, alone, both)
    said = "".join(packed(desk, WHO).values())
    assert WORDS[0] in said, "the words are there to begin with"
    [access] = [one["id"] for one in desk.call("legal", "GET", "/v1/requests")["items"]]

    erasure = request(desk)
    until(desk, erasure, "completed")
    told = dict(answers(desk, erasure, artifact, alone, both))
    assert [(path, word) for path, text in told.items() for word in WORDS if word in text] == []
    assert '"completed"' in told[f"/v1/requests/{erasure}/events"]
    assert STAYS in told[f"/v1/record/entries/{both}"], "what the other one said is readable"
    assert [word for word in WORDS if word in "".join(package(desk, access).values())] == []
    theirs = "".join(packed(desk, OTHER).values())
    assert STAYS in theirs
    assert [word for word in WORDS if word in theirs] == []
    # The outbox and what it announced, the idempotency of answers, and all else that lies somewhere.
    assert {word: places for word in WORDS if (places := everywhere(running, word.encode()))} == {}

"""`muniment verify --receipt` over a real service: what it answered, its rotated keys, two tenants, a log cut short."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, select

from api import cli
from api.administration import create_tenant
from api.anchoring import rotate_key
from ledger.entry import decode_header, uuid7
from ledger.errors import NotLeader
from ledger.models import EntryRow
from registry.acting import Acting
from tests.audit.test_audit_alone import ABSENT, REPOSITORY
from tests.audit.test_audit_service import Kept, kept

__all__ = ["kept"]


def send(kept: Kept, *texts: str, acting: Acting | None = None) -> dict[str, Any]:
    """Record entries and return the answer as the call gives it."""
    now = kept.services.clock.now()
    entries = [
        json.dumps(
            {"id": uuid7(now), "stream": "conv_9", "kind": "turn.user", "at": "2026-03-01T12:00:00Z",
             "data_class": "transcript", "subjects": ["user:eve"], "body": {"content": text}}
        ).encode()
        for text in texts
    ]  # fmt: skip
    done = kept.services.record.append(acting or kept.acting, entries, now)
    return {"results": done.results, "receipt": done.receipt}


def write(kept: Kept, *answers: dict[str, Any]) -> str:
    path = kept.folder / "receipts.ndjson"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in answers))
    return str(path)


def standings(found: dict[str, Any]) -> list[str]:
    return [one["standing"] for one in found["receipts"]]


def test_an_answer_of_the_service_is_checked_as_it_came(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(kept, send(kept, "one", "two"))
    code, found = kept.verify("--receipt", path)
    assert (code, found["verdict"], standings(found)) == (0, "acknowledged", ["stored"])
    assert "pin it yourself" in found["notes"][0]
    kept.services.log.publish(kept.acting.tenant_id, kept.services.clock.now())
    code, found = kept.verify("--receipt", path, "--key", kept.made.log_key)
    assert (code, standings(found), found["notes"]) == (0, ["covered"], [])
    assert found["logs"][0]["covered_size"] == found["receipts"][0]["first"] + 2
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(path).read_bytes())))
    assert standings(kept.verify("--receipt", "-")[1]) == ["covered"]


CONTRACT = ("verdict", "anchored", "size", "checked", "erased", "expired", "findings")
"""The members of `verify --json`. Source: API.md §1."""


def test_receipts_that_stand_do_not_call_a_log_sound_whose_content_was_changed(kept: Kept) -> None:
    path = write(kept, send(kept, "one"))
    kept.services.log.publish(kept.acting.tenant_id, kept.services.clock.now())
    for payload in kept.payloads():
        payload.chmod(0o600)
        payload.write_bytes(b"x" * payload.stat().st_size)
    code, found = kept.verify("--receipt", path)
    size = found["receipts"][0]["first"] + 1
    assert (code, [found[name] for name in CONTRACT]) == (0, ["acknowledged", False, size, 0, 0, 0, []])
    code, found = kept.verify()
    assert (code, found["verdict"], set(CONTRACT) - set(found)) == (1, "altered", set())


def test_ids_that_are_found_without_a_receipt_are_not_called_acknowledged(kept: Kept) -> None:
    signed = send(kept, "one")
    repeat = signed | {"receipt": None}
    code, found = kept.verify("--receipt", write(kept, repeat), "--tenant", "default")
    assert (code, found["verdict"], standings(found)) == (0, "found", ["stored"])
    assert "nothing that the log signed" in found["notes"][1]
    code, found = kept.verify("--receipt", write(kept, repeat, signed), "--key", kept.made.log_key)
    assert (code, found["verdict"], found["notes"][0][:1]) == (0, "acknowledged", "1")


def test_receipts_outlive_rotations_and_a_revoked_key_signs_no_later_ones(kept: Kept) -> None:
    system = kept.services.tenants()[0]
    answers = [send(kept, "before")]
    rotate_key(kept.services, system, "log", revoke=False)
    answers.append(send(kept, "by both"))
    rotate_key(kept.services, system, "log", revoke=True)
    answers.append(send(kept, "by the new one"))
    kept.services.log.publish(kept.acting.tenant_id, kept.services.clock.now())
    for key in (kept.made.log_key, kept.services.log.vkey(kept.acting.tenant_id)):
        code, found = kept.verify("--receipt", write(kept, *answers), "--key", key)
        assert (code, standings(found)) == (0, ["covered"] * 3), found["findings"]


def test_a_revocation_stands_in_the_record_before_it_is_made_and_only_a_leader_says_so(kept: Kept) -> None:
    services, system = kept.services, kept.services.tenants()[0]

    def told() -> list[str]:
        query = select(EntryRow).where(EntryRow.tenant_id == system.tenant_id).order_by(col(EntryRow.idx))
        with services.database.transaction(system.tenant_id, write=False) as session:
            return [row.kind for row in session.exec(query) if row.kind.startswith("key.rotat")]

    services.lease.give_up(services.clock.now())
    with pytest.raises(NotLeader):
        rotate_key(services, system, "log", revoke=True)
    services.lease.take(services.clock.now(), force=True)
    assert told() == []
    rotate_key(services, system, "log", revoke=True)
    assert told() == ["key.rotating", "key.rotated"]
    size = services.log.keys(system.tenant_id)[0].until_size
    proof = services.log.headers(system.tenant_id, [(size or 0) - 1])[0]
    assert decode_header(proof).kind == "key.rotating"


def test_the_receipt_of_another_tenant_is_checked_in_its_own_log_and_refused_in_every_other(kept: Kept) -> None:
    create_tenant(kept.services, "other")
    other = next(one for one in kept.services.tenants() if one.tenant == "other")
    mine, theirs = send(kept, "mine"), send(kept, "theirs", acting=other)
    assert theirs["receipt"] is not None
    path = write(kept, mine, theirs)
    code, found = kept.verify("--receipt", path)
    assert (code, standings(found), len(found["logs"])) == (0, ["stored", "stored"], 2)
    code, found = kept.verify("--receipt", path, "--tenant", "default")
    assert (code, found["verdict"], standings(found)) == (2, "unreadable", ["stored", "refused"])
    assert "of a log that is not here" in found["findings"][0]["detail"]
    text = theirs["receipt"]["note"].replace(other.log_id, kept.acting.log_id)
    assert standings(kept.verify("--receipt", write(kept, {"receipt": {"note": text}}))[1]) == ["refused"]
    code, found = kept.verify("--receipt", write(kept, mine | {"receipt": None}))
    assert (code, standings(found)) == (2, ["refused"])
    assert standings(kept.verify("--receipt", path, "--tenant", "nobody")[1]) == []


@pytest.mark.scenario("L5", "L6")
def test_a_bucket_that_went_back_in_time_lost_what_it_acknowledged(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = kept.folder.parent / "earlier"
    shutil.copytree(kept.folder / "objects", earlier)
    path = write(kept, send(kept, "one"))
    kept.services.log.publish(kept.acting.tenant_id, kept.services.clock.now())
    shutil.rmtree(kept.folder / "objects")
    shutil.copytree(earlier, kept.folder / "objects")
    code, found = kept.verify("--receipt", path)
    assert (code, found["verdict"], standings(found)) == (1, "rolled_back", ["lost"])
    assert cli.run(["verify", "--data", str(kept.folder), "--receipt", path]) == 1
    said = capsys.readouterr().out
    assert "1 lost by the log" in said
    assert "the log lost them: it ends at" in said


@pytest.mark.parametrize("options", [["--all"], ["--sample", "1"], ["--prove"], ["--since", "x"], ["--processes", "1"]])
def test_receipts_are_checked_alone(kept: Kept, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", "--data", str(kept.folder), "--receipt", write(kept, send(kept, "x")), *options]) == 2
    assert "only --key goes with it" in capsys.readouterr().err


def test_what_holds_no_receipts_or_is_not_there_could_not_be_checked(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["verify", "--data", str(kept.folder), "--receipt", str(kept.folder / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    code, found = kept.verify("--receipt", write(kept, {"results": [], "receipt": None}))
    assert (code, found["verdict"]) == (2, "unreadable")
    assert "keep the answers" in found["findings"][0]["detail"]
    path = write(kept, send(kept, "x"))
    shutil.rmtree(kept.folder.with_name("data.keys"))
    code, found = kept.verify("--receipt", path)
    assert (code, found["verdict"]) == (2, "unreadable")
    assert "--key" in found["findings"][0]["detail"]


PROGRAM = """
import json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None  # importing it raises ImportError
from pathlib import Path
from audit.reader import FolderReader
from audit.receipt_file import read_answers
from audit.receipts import check_receipts
told = json.load(sys.stdin)
report = check_receipts(FolderReader(Path(told["objects"])), log_id=told["log"], keys=[told["key"]],
                        answers=read_answers(Path(told["file"]).read_bytes()))
print(json.dumps([report.verdict.value, [one.standing.value for one in report.checked]]))
"""


def test_a_process_without_sql_and_http_checks_receipts(kept: Kept) -> None:
    path = write(kept, send(kept, "one"))
    kept.services.log.publish(kept.acting.tenant_id, kept.services.clock.now())
    told = {
        "objects": str(kept.folder / "objects"), "log": kept.acting.log_id, "key": kept.made.log_key, "file": path,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(ABSENT)],
        input=json.dumps(told), capture_output=True, text=True, check=False, cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["sound", ["covered"]]

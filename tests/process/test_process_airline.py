"""Real conversations in, one traveller out: 50 agent conversations with personal data in tool results.

Needs ../shared/transcripts (MIT-licensed, not part of this project). The independent byte scan is
../shared/tools/residue.py, which shares no code with the product.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import pytest

from muniment import Recorder
from tests import forked

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
TRAVELLER = "sophia_silva_7557"
PURPOSE = "dispute;case=airline"


class Flight:
    """One tenant with the imported conversations and two stores of derived copies."""

    def __init__(self, desk: Any, shared: Path) -> None:
        self.desk = desk
        self.shared = shared
        self.base: Path = desk.running.settings.data.parent
        self.stores = self.base / "stores" / desk.tenant
        self.stores.mkdir(parents=True)
        self.file = shared / "transcripts" / "airline_50.jsonl"
        self.lines = self.file.read_bytes().splitlines()
        self.rows = [json.loads(line) for line in self.lines]
        person = json.loads((shared / "transcripts" / "taubench_airline_users.json").read_text())[TRAVELLER]
        self.canaries = [
            f"{person['name']['first_name']} {person['name']['last_name']}",
            person["email"],
            person["address"]["address1"],
            person["dob"],
        ]
        self.own = [row["conversation_id"] for row in self.rows if row["subject_id"] == TRAVELLER]

    def say(self) -> None:
        """Record a turn about the traveller as an agent does: through its spool, on this disk."""
        with Recorder(self.desk.running.url, self.desk.tokens["writer"], spool=self.base / "spool") as recorder:
            recorder.record(
                kind="turn.user", stream="desk", data_class="transcript", subjects=(f"user:{TRAVELLER}",),
                body={"text": f"this is {self.canaries[0]}, write to {self.canaries[1]}"},
            )  # fmt: skip
            assert self.residue(self.base / "spool"), "the positive control: it is in the spool first"
            assert recorder.flush(timeout=60).acknowledged == 1

    def bring_in(self) -> dict[str, int]:
        """Run `muniment import` as a user would."""
        done = forked.run(
            "import", str(self.file), "--class", "transcript",
            "--subject-field", "subject_id", "--stream-field", "conversation_id", "--json",
            "--data", str(self.desk.running.settings.data), "--url", self.desk.running.url,
            env={**os.environ, "MUNIMENT_TOKEN": self.desk.tokens["writer"], "TMPDIR": tempfile.gettempdir()},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        counts: dict[str, int] = json.loads(done.stdout)
        return counts

    def derive(self, url: str) -> None:
        """Keep a note of each conversation in a database and a copy in a file, and register both."""
        (self.stores / "exports").mkdir()
        self._write_rows(url)
        config = {"url": self._secret("notes-url", url) if url.startswith("postgresql") else url}
        self.desk.call("platform", "PUT", "/v1/stores/notes", {"kind": "sql", "config": config})
        config = {"root": str(self.stores / "exports")}
        self.desk.call("platform", "PUT", "/v1/stores/exports", {"kind": "files", "config": config})
        artifacts = []
        for row in self.rows:
            name = row["conversation_id"]
            (self.stores / "exports" / f"{name}.json").write_text(json.dumps(row))
            about = {"subjects": [f"user:{row['subject_id']}"], "data_class": "note_of_conversation"}
            note = {"store": "notes", "locator": {"table": "note", "key": {"conversation": name}}}
            export = {"store": "exports", "locator": {"path": f"{name}.json"}}
            artifacts += [
                {**about, **export},
                {**about, **note, "sources": [export], "activity": {"kind": "summarise"}},
            ]
        results = self.desk.client("writer").artifacts(artifacts)
        assert {result["status"] for result in results} == {"created"}

    def _secret(self, name: str, value: str) -> str:
        """Keep an address with a password where only this tenant's stores may read it."""
        folder = self.desk.running.settings.secrets_folder / self.desk.tenant
        folder.mkdir(parents=True, mode=0o700)
        (folder / name).write_text(value)
        (folder / name).chmod(0o600)
        return f"file:{name}"

    def _write_rows(self, url: str) -> None:
        rows = [(row["conversation_id"], json.dumps(row["messages"])) for row in self.rows]
        if url.startswith("sqlite"):
            with sqlite3.connect(url.removeprefix("sqlite:///")) as db:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("CREATE TABLE note (conversation TEXT PRIMARY KEY, body TEXT)")
                db.executemany("INSERT INTO note VALUES (?, ?)", rows)
            db.close()
        else:
            with psycopg.connect(url.replace("postgresql+psycopg", "postgresql")) as db2:
                db2.execute("CREATE TABLE note (conversation TEXT PRIMARY KEY, body TEXT)")
                db2.execute("ALTER TABLE note ALTER body SET STORAGE EXTERNAL")  # uncompressed, so that a scan sees it
                db2.cursor().executemany("INSERT INTO note VALUES (%s, %s)", rows)

    def replay(self, conversation: str) -> list[Any]:
        """Return the entries of a conversation as replayed."""
        answer = self.desk.call("auditor", "POST", "/v1/replay", {"stream": conversation}, purpose=PURPOSE)
        entries: list[Any] = answer["entries"]
        return entries

    def residue(self, *paths: Path) -> list[str]:
        """Return what the independent scan finds of the traveller below these paths."""
        command = [sys.executable, str(self.shared / "tools" / "residue.py")]
        for canary in self.canaries:
            command += ["--canary", canary]
        done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout.splitlines()


def own_url(flight: Flight, request: pytest.FixtureRequest) -> str:
    """The address of the product's own database: SQLite beside files, PostgreSQL beside servers."""
    if flight.desk.running.settings.on_postgres:
        url: str = request.getfixturevalue("make_postgres_database")()
        return url
    return f"sqlite:///{flight.stores}/notes.db"


def folders(flight: Flight, url: str) -> list[Path]:
    """Every place where a byte of somebody could lie: data, keys, stores, log, spool, temporary files, and the heap."""
    assert {"data", "data.keys", "service.log", "spool", "stores", "tmp"} <= {
        path.name for path in flight.base.iterdir()
    }
    places = [flight.base]
    if url.startswith("postgresql"):
        with psycopg.connect(url.replace("postgresql+psycopg", "postgresql")) as db:
            row = db.execute("SHOW data_directory").fetchone()
            assert row is not None
            places.append(
                Path(row[0]) / "base"
            )  # the write-ahead log is level L3: dated on the certificate, not claimed
    return places


def register_class(desk: Any) -> None:
    """The class of both derived copies."""
    spec = {
        "state": "file", "personal": True, "owner": "team-support", "description": "copies made of conversations",
        "legal_basis": "contract", "subject_types": ["user"],
        "retention": {"keep": "P90D", "from": "created", "then": "erase"},
        "erasure": {"on_request": "erase", "required": "L2"},
    }  # fmt: skip
    desk.call("platform", "PUT", "/v1/data-classes/note_of_conversation", spec)


def erase(desk: Any, subject: str) -> dict[str, Any]:
    """Take a request through the desk: created, identified, planned by one, approved by another, executed."""
    from tests.process.conftest import wait_for

    made = desk.call(
        "legal", "POST", "/v1/requests",
        {"right": "erasure", "subjects": [subject], "regulation": "gdpr", "jurisdiction": "DE-BY",
         "timezone": "Europe/Berlin", "received_at": "2026-11-29T09:00:00Z", "channel": "e-mail"},
    )  # fmt: skip
    path = f"/v1/requests/{made['id']}"
    desk.call("legal", "POST", f"{path}/verify-identity",
              {"identifier": subject, "method": "login", "evidence": "session of today"})  # fmt: skip
    planned = desk.call("legal", "POST", f"{path}/plan")
    plan_hash = desk.call("legal", "GET", f"{path}/plan")["hash"]
    assert planned["plan_hash"] == plan_hash
    desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan_hash})

    def finished() -> Any:
        state = desk.call("legal", "GET", path)
        assert state["state"] not in {"partially_failed", "refused", "cancelled"}, state
        return state if state["state"].startswith("completed") else None

    done: dict[str, Any] = wait_for(finished, 60)
    return done


def test_one_traveller_of_fifty_conversations_is_erased_to_the_last_byte_and_the_others_stay_exact(
    desk: Any, shared_folder: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flight = Flight(desk, shared_folder)
    assert forked.run("--version").returncode == 0, "the commands' parent has a folder of its own before the next line"
    (flight.base / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(flight.base / "tmp"))
    register_class(desk)
    flight.say()
    counts = flight.bring_in()
    assert set(counts) - {"problems", "left_out"} == {"stored"}
    again = flight.bring_in()
    assert again["duplicate"] == counts["stored"]
    url = own_url(flight, request)
    flight.derive(url)

    before = {row["conversation_id"]: flight.replay(row["conversation_id"]) for row in flight.rows}
    for row, line in zip(flight.rows, flight.lines, strict=True):
        bodies = [entry for entry in before[row["conversation_id"]] if entry["kind"] != "note"]
        assert [entry["body"] for entry in bodies] == row["messages"]
        assert all(entry["integrity"] == "verified" for entry in before[row["conversation_id"]])
        assert line
    exact = desk.client("auditor").send(
        "POST", "/v1/replay", json.dumps({"stream": flight.rows[0]["conversation_id"]}).encode(),
        {"Content-Type": "application/json", "X-Purpose": PURPOSE},
    ).body  # fmt: skip
    start = flight.lines[0].index(b'{"role":"user"')
    assert flight.lines[0][start : flight.lines[0].index(b'"}', start) + 2] in exact
    assert flight.residue(*folders(flight, url)), "the positive control: the stores hold the traveller now"

    done = erase(desk, f"user:{TRAVELLER}")
    assert done["state"] == "completed"
    assert set(done["counts"]) <= {"erased_physical", "key_destroyed", "already_absent"}
    assert done["counts"]["erased_physical"] == 2 * len(flight.own)

    assert flight.residue(*folders(flight, url)) == []
    for row in flight.rows:
        name = row["conversation_id"]
        after = flight.replay(name)
        if name in flight.own:
            assert {entry["integrity"] for entry in after} == {"erased"}
            assert all(done["id"] in entry["because"] for entry in after)
        else:
            assert after == before[name]
            kept = flight.stores / "exports" / f"{name}.json"
            assert json.loads(kept.read_text()) == row

    certificate = tmp_path / "certificate.json"
    certificate.write_bytes(desk.client("legal").send("GET", f"/v1/requests/{done['id']}/report").body)
    check = forked.run("verify-report", str(certificate), "--key", desk.certificate_key, "--log-key", desk.log_key)
    assert check.returncode == 0, check.stderr
    assert flight.residue(tmp_path) == []


def test_what_is_said_about_the_traveller_later_is_suppressed_and_a_late_copy_is_erased_too(
    desk: Any, shared_folder: Path, request: pytest.FixtureRequest
) -> None:
    from tests.process.conftest import wait_for

    flight = Flight(desk, shared_folder)
    register_class(desk)
    flight.bring_in()
    url = own_url(flight, request)
    flight.derive(url)
    done = erase(desk, f"user:{TRAVELLER}")

    again = flight.bring_in()
    assert again["suppressed"] > 0
    late = flight.stores / "exports" / "late.json"
    late.write_text(f"late copy about {flight.canaries[0]}")
    result = desk.client("writer").artifacts(
        [
            {
                "data_class": "note_of_conversation",
                "store": "exports",
                "locator": {"path": "late.json"},
                "subjects": [f"user:{TRAVELLER}"],
            }
        ]
    )[0]
    assert result["status"] == "erased"
    wait_for(lambda: not late.exists(), 30)
    assert flight.residue(flight.base) == []
    path = f"/v1/requests/{done['id']}"
    wait_for(lambda: desk.call("legal", "GET", path)["state"] == "completed", 30)
    assert desk.call("legal", "GET", path)["counts"]["erased_physical"] == 2 * len(flight.own) + 1

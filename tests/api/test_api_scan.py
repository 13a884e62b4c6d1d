"""`muniment scan` as a user calls it: no server, no token, no data folder; exit codes and JSON."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from api import cli
from tests import forked


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "stores" / "app.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, user_id TEXT, body TEXT, created_at TEXT)")
        rows = [(f"person-number-{n % 3}", "hello", "2026-01-01T00:00:00Z") for n in range(9)]
        db.executemany("INSERT INTO message (user_id, body, created_at) VALUES (?, ?, ?)", rows)
        db.commit()
    return path


def test_it_needs_no_server_and_prints_three_sentences(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["scan", str(app), "--data", str(app.parent / "no such folder")]) == 0
    said = capsys.readouterr().out
    assert "3 subjects by user_id, 9 rows" in said
    assert "If a deletion request came today:\n  1. " in said
    assert "  3. " in said
    assert "person-number" not in said
    assert sorted(path.name for path in app.parent.iterdir()) == ["app.db"]
    assert "would leave free pages and the log of the file, which keep what is deleted until" in said


def test_json_is_one_document_with_a_verdict(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["scan", f"sqlite:///{app}", "--json", "--names"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "clean"
    (place,) = told["places"]
    assert (place["what"], place["kind"], place["rows"]) == ("sqlite", "sql", 9)
    assert place["subjects"]["names"] == {f"person-number-{n}": 3 for n in range(3)}
    assert place["erasable"]["level"] == "L2"
    assert len(told["if_a_deletion_request_came_today"]) == 3


def test_a_person_is_read_from_stdin_and_never_repeated(
    app: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("user:person-number-1\n"))
    assert cli.run(["scan", str(app), "--subject", "-", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["dry_run"] == {
        "items": 3, "shared": 0, "mentions": 0, "unread": 0, "raw_byte_hits": {"utf-8": 3}, "changed": "nothing",
    }  # fmt: skip
    assert "person-number" not in json.dumps(told)
    assert cli.run(["scan", str(app), "--subject", ""]) == 2


def test_what_is_not_there_or_not_readable_ends_with_two(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["scan", str(app.parent / "other.db")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    app.write_bytes(app.read_bytes()[:3000])
    assert cli.run(["scan", str(app), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["could_not_read"]
    (app.parent / "empty").mkdir()
    assert cli.run(["scan", str(app.parent / "empty")]) == 2


def test_registering_needs_a_token_and_says_so(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["scan", str(app), "--register", "--class", "memory"]) == 2
    assert "no token" in capsys.readouterr().err


def test_on_a_terminal_it_says_that_it_goes_on(tmp_path: Path) -> None:
    """Long work shows that it is not stuck; a script reads nothing but the report."""
    (tmp_path / "notes.jsonl").write_text('{"id": "a", "user_id": "mia", "text": "hello"}\n')
    ours, theirs = pty.openpty()
    with (tmp_path / "out").open("w+b") as out, Path(os.devnull).open("rb") as nothing:
        command = forked.Command(
            "scan", str(tmp_path), "--json", stdin=nothing.fileno(), stdout=out.fileno(), stderr=theirs
        )
        assert command.wait() == 0
        os.close(theirs)
        out.seek(0)
        assert json.loads(out.read())["places"]
    shown = b""
    with suppress(OSError):  # the terminal's end
        while piece := os.read(ours, 1000):
            shown += piece
    os.close(ours)
    assert re.fullmatch(rb"(\rscan \d+ s)+\r\n", shown), shown
    assert forked.run("scan", str(tmp_path), "--json").stderr == ""

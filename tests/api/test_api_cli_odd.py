"""Odd files and places, each with a clear line: a bad database, a declaration that changes nothing, a size to come."""

from __future__ import annotations

import json
import shutil
import sqlite3
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

from api import cli, migrate
from api.database import Database

CLASS: dict[str, Any] = {
    "state": "record", "personal": True, "owner": "team", "description": "notes", "legal_basis": "contract",
    "retention": {"keep": "P90D", "from": "created", "then": "erase"}, "erasure": {"on_request": "erase"},
}  # fmt: skip


def call(service: Any, principal: str, *arguments: object) -> int:
    words = [str(one) for one in arguments]
    return cli.run([*words, "--url", service.url, "--token", service.tokens[principal]])


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("muniment: ")
    assert said.err.count("\n") == 1, said.err
    return said.err


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd") / "data"
    assert cli.run(["init", "--data", str(folder)]) == 0
    shutil.copy(folder / "muniment.db", folder.parent / "good.db")
    return folder


def replaced(folder: Path, content: bytes | None = None) -> Path:
    """The database anew, or other bytes in its place."""
    path = folder / "muniment.db"
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(folder.parent / "good.db", path)
    if content is not None:
        path.write_bytes(content)
    return path


@pytest.mark.parametrize("damage", ["no database at all, only some words", "overwritten"])
def test_a_file_that_is_no_database_is_named_as_one(
    damage: str, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (made.parent / "good.db").read_bytes()
    content = whole[:100] + b"\xff" * (len(whole) - 100) if damage == "overwritten" else damage.encode()
    for command in (["serve", "--port", "0"], ["tenant", "list"], ["verify"]):
        path = replaced(made, content)
        assert cli.run([*command, "--data", str(made)]) == 2
        said = one_line(capsys)
        assert "no database or is damaged" in said
        assert "muniment rebuild" in said
        assert "refuses the connection" not in said
        assert path.read_bytes() == content, "nothing is written over it"
    assert cli.run(["doctor", "--data", str(made)]) == 1
    assert "no database or is damaged" in capsys.readouterr().out


def test_a_database_that_does_not_say_its_version_is_left_alone(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = replaced(made)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM alembic_version")
    connection.close()
    for command in (["serve", "--port", "0"], ["tenant", "list"]):
        assert cli.run([*command, "--data", str(made)]) == 2
        said = one_line(capsys)
        assert "does not say of which version" in said
        assert "muniment rebuild" in said
    assert cli.run(["doctor", "--data", str(made)]) == 1
    assert "does not say of which version" in capsys.readouterr().out
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM alembic_version").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM tenant").fetchone() == (1,)
    connection.close()


def test_an_older_schema_is_named_with_what_brings_it_up(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = replaced(made, b"")
    path.unlink()
    database = Database(f"sqlite:///{path}")
    migrate.upgrade(database, "0001")
    database.close()
    with sqlite3.connect(path) as connection:
        connection.execute("ATTACH ? AS good", (str(made.parent / "good.db"),))
        common = (
            "SELECT name FROM main.sqlite_schema WHERE type = 'table' "
            "INTERSECT SELECT name FROM good.sqlite_schema WHERE type = 'table'"
        )
        for (table,) in connection.execute(common).fetchall():
            if table != "alembic_version":
                both = (
                    "SELECT name FROM pragma_table_info(?1, 'main') INTERSECT "
                    "SELECT name FROM pragma_table_info(?1, 'good')"
                )
                names = ", ".join(name for (name,) in connection.execute(both, (table,)))
                connection.execute(f"INSERT OR REPLACE INTO main.{table} ({names}) SELECT {names} FROM good.{table}")
    connection.close()
    assert cli.run(["verify", "--data", str(made)]) == 2
    assert "has schema 0001" in (said := one_line(capsys))
    assert "start muniment serve" in said
    assert cli.run(["doctor", "--data", str(made)]) == 1
    assert "start muniment serve" in capsys.readouterr().out
    assert cli.run(["tenant", "list", "--data", str(made)]) == 0, "opened as `serve` opens it"
    assert "default" in capsys.readouterr().out
    cli.run(["verify", "--data", str(made)])
    assert "the log is empty" in capsys.readouterr().out, "what else stands there is the same"


def test_a_declaration_that_is_in_force_already_changes_nothing_and_says_so(
    service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "classes.json.yaml"
    file.write_bytes(BOM_UTF8 + json.dumps({"classes": {"odd_notes": CLASS}}).encode())
    assert call(service, "platform", "classes", "apply", file) == 0
    assert capsys.readouterr().out.endswith("applied: odd_notes\n")
    assert call(service, "platform", "classes", "apply", file) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing changed"
    file.write_text(json.dumps({"odd_notes": CLASS, "odd_more": CLASS}))
    assert call(service, "platform", "classes", "apply", file) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "applied: odd_more; 1 unchanged"
    toml = tmp_path / "none.toml"
    toml.write_bytes(BOM_UTF8 + b"[classes]\n")
    assert call(service, "platform", "classes", "apply", toml) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing changed"


def test_a_replay_as_of_a_size_that_the_log_never_had_is_refused(service: Any, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text('{"user":"odd","conversation_id":"odd","messages":[{"role":"user","content":"hi"}]}\n')
    options = ("--class", "transcript", "--subject-field", "user", "--data", service.services.settings.data)
    assert call(service, "writer", "import", file, *options) == 0
    auditor, purpose = service.role("auditor"), {"X-Purpose": "dispute;case=1"}
    refused = auditor.post("/v1/replay", json={"stream": "odd", "size": 10**9}, headers=purpose)
    assert refused.status_code == 422
    [where] = refused.json()["errors"]
    assert where["pointer"] == "/size"
    size = int(where["detail"].split()[3])
    assert auditor.post("/v1/replay", json={"stream": "odd", "size": size}, headers=purpose).status_code == 200
    # Each read becomes an entry, so the log may have grown by it.
    over = {"stream": "odd", "size": size + 1_000}
    assert auditor.post("/v1/replay", json=over, headers=purpose).status_code == 422

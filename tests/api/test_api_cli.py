"""The command line as a stranger meets it: real processes, exit codes, one clear line for each trouble."""

import fcntl
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from api import cli
from api.cli import COMMANDS
from tests import forked

pytestmark = pytest.mark.process
MUNIMENT = [sys.executable, "-c", "from api.cli import main; main()"]
HELP_SECONDS = 0.3


def run(*arguments: str, token: str | None = None, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MUNIMENT_")}
    if token:
        environment["MUNIMENT_TOKEN"] = token
    return forked.run(*arguments, env=environment, stdin=stdin)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line on stderr, which is for a person: no traceback, nothing on stdout."""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return lines[0]


@pytest.fixture(scope="module")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("cli") / "data"
    done = run("init", "--data", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made.keys() == {"tenant", "tokens", "log_key", "certificate_key"}
    return folder, made["tokens"]


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[str]:
    process = forked.Piped("serve", "--data", str(folder), "--port", "0", *arguments)
    try:
        line = process.stdout.readline()
        assert line.startswith("ready "), line
        yield line.removeprefix("ready ").strip()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stdout.close()


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *MUNIMENT[1:], "--help"], capture_output=True, text=True, check=True
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = {"fastapi", "sqlalchemy", "sqlmodel", "pydantic", "boto3", "opentelemetry", "uvicorn", "api.wiring"}
    assert not imported & heavy
    assert all(name in done.stdout for name in COMMANDS)
    best = min(_seconds("--help") for _ in range(3))
    assert best < HELP_SECONDS, f"{best:.3f} s"


def _seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([*MUNIMENT, *arguments], capture_output=True, check=True)
    return time.perf_counter() - started


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name, "--help"]) == 0
    assert "Usage:" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["verify-bundle", "x"], ["tenant", "export", "x"]])
def test_what_is_not_built_says_so_in_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2
    said = capsys.readouterr()
    assert "not built yet" in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_init_again_changes_nothing_and_says_so(initialised: tuple[Path, dict[str, str]]) -> None:
    folder, _ = initialised
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    done = run("init", "--data", str(folder))
    assert done.returncode == 0
    assert "nothing was changed" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before


def test_data_and_keys_are_closed_to_others_and_apart(initialised: tuple[Path, dict[str, str]]) -> None:
    folder, _ = initialised
    keys = folder.with_name(folder.name + ".keys")
    for place in (folder, keys, *folder.rglob("*"), *keys.rglob("*")):
        assert place.stat().st_mode & 0o077 == 0, place


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    done = run("serve", "--data", str(tmp_path / "nothing"))
    assert done.returncode == 2
    assert "muniment init" in one_line(done)
    assert not (tmp_path / "nothing").exists()


def test_a_locked_folder_is_one_line(initialised: tuple[Path, dict[str, str]]) -> None:
    folder, _ = initialised
    with (folder / "run" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run("serve", "--data", str(folder), "--port", "0")
    assert done.returncode == 2
    assert "in use" in one_line(done)


def test_a_taken_port_is_one_line(initialised: tuple[Path, dict[str, str]]) -> None:
    folder, _ = initialised
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "--data", str(folder), "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "--port" in one_line(done)


def test_a_newer_schema_is_one_line_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert run("init", "--data", str(folder)).returncode == 0
    with sqlite3.connect(folder / "muniment.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    done = run("serve", "--data", str(folder), "--port", "0")
    assert done.returncode == 2
    assert "newer version" in one_line(done)


@pytest.mark.slow
def test_missing_keys_are_never_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert run("init", "--data", str(folder)).returncode == 0
    keys = folder.with_name("data.keys")
    keys.rename(tmp_path / "elsewhere")
    done = run("serve", "--data", str(folder), "--port", "0")
    assert done.returncode == 2
    assert "keys" in one_line(done)
    assert not keys.exists()


@pytest.mark.parametrize(
    "text", ["nonsense = 1", "port = 'x'", "= broken", "quiet_period = 'soon'", "oidc_issuer = 'x'"]
)
def test_a_bad_setting_is_one_line_that_names_it(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "muniment.toml").write_text(text, encoding="utf-8")
    assert cli.run(["init", "--data", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("muniment: setting ")
    assert said.count("\n") == 1


def test_without_server_or_token_the_next_step_is_named(initialised: tuple[Path, dict[str, str]]) -> None:
    folder, tokens = initialised
    assert "MUNIMENT_TOKEN" in one_line(run("replay", "s", "--data", str(folder)))
    done = run("replay", "s", "--data", str(folder), token=tokens["auditor"])
    assert done.returncode == 2
    assert "muniment serve" in one_line(done)


def test_a_server_is_found_by_its_folder_and_leaves_nothing_behind(initialised: tuple[Path, dict[str, str]]) -> None:
    folder, tokens = initialised
    with serving(folder) as url:
        assert json.loads((folder / "run" / "server.json").read_text())["url"] == url
        done = run("token", "create", "--role", "writer", "--principal", "bot", "--data", str(folder),
                   "--json", token=tokens["admin"])  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["token"].startswith("mun_")
        refused = run("token", "list", "--data", str(folder), token=tokens["writer"])
        assert refused.returncode == 1
        assert "refused (403)" in refused.stderr
        wrong = run("token", "list", "--data", str(folder), "--tenant", "acme", token=tokens["admin"])
        assert wrong.returncode == 2
        again = run("serve", "--data", str(folder), "--port", "0")
        assert "in use" in one_line(again)
        made = run("tenant", "create", "acme", "--data", str(folder), "--json", token=tokens["admin"])
        assert json.loads(made.stdout)["tenant"] == "acme"
    assert not (folder / "run" / "server.json").exists()


@pytest.mark.slow
def test_without_a_server_the_folder_itself_is_administered(initialised: tuple[Path, dict[str, str]]) -> None:
    folder, _ = initialised
    assert run("tenant", "create", "offline", "--data", str(folder)).returncode == 0
    listed = json.loads(run("tenant", "list", "--data", str(folder), "--json").stdout)["tenants"]
    assert "offline" in listed
    made = run(
        "token", "create", "--role", "auditor", "--principal", "eve", "--tenant", "offline", "--data", str(folder)
    )
    assert "mun_" in made.stdout
    bad = run("token", "create", "--role", "emperor", "--principal", "eve", "--data", str(folder))
    assert bad.returncode == 1


def test_declarations_are_diffed_applied_and_the_same_again_is_the_same(
    initialised: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    folder, tokens = initialised
    file = tmp_path / "classes.yaml"
    file.write_text(
        "classes:\n  notes:\n    state: record\n    personal: true\n    owner: team-a\n    description: notes\n"
        "    legal_basis: contract\n    retention: {keep: P90D, from: created, then: erase}\n"
        "    erasure: {on_request: erase}\n",
        encoding="utf-8",
    )
    with serving(folder):
        common = ("--data", str(folder))
        dry = run("classes", "apply", str(file), "--dry-run", *common, token=tokens["platform"])
        assert "+ owner: team-a" in dry.stdout
        assert "nothing was changed" in dry.stdout
        states = [
            json.loads(run("classes", "apply", str(file), "--json", *common, token=tokens["platform"]).stdout)[
                "classes"
            ]
            for _ in range(2)
        ]
        assert [item[0]["state"] for item in states] == ["new", "same"]
        broken = tmp_path / "broken.yaml"
        broken.write_text("a: [", encoding="utf-8")
        assert "not readable as YAML" in one_line(
            run("classes", "apply", str(broken), *common, token=tokens["platform"])
        )


@pytest.mark.slow
def test_doctor_finds_a_sound_folder_sound_and_keys_beside_data_wrong(
    initialised: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    folder, _ = initialised
    done = run("doctor", "--data", str(folder), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) == (0, "sound"), found
    keys = folder.with_name(folder.name + ".keys")
    keys.chmod(0o755)
    try:
        done = run("doctor", "--data", str(folder), "--json")
        assert (done.returncode, json.loads(done.stdout)["verdict"]) == (1, "faulty")
    finally:
        keys.chmod(0o700)
    assert run("doctor", "--data", str(tmp_path / "nothing")).returncode == 2

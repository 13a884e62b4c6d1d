"""What commands say: one clear line for a mistake, every fact once, no member left null."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from api import cli, settings
from api.commands.holds import kept_now
from api.commands.options import show
from api.commands.watching import next_of
from ledger.signing import Ed25519Signer
from tests import forked

pytestmark = pytest.mark.process
CHATS = (
    '{"user":"a","messages":[{"role":"user","content":"hi"}]}\n'
    "{bad\n"
    '{"user":"b","messages":[{"role":"user","content":"yo"}]}\n'
)
ENTRY_CLASS = ("--class", "transcript", "--subject-field", "user")


def call(service: Any, principal: str, *arguments: object) -> int:
    words = [str(one) for one in arguments]
    return cli.run([*words, "--url", service.url, "--token", service.tokens[principal]])


def test_a_new_token_names_its_tenant(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(service, "admin", "token", "create", "--role", "writer", "--principal", "bot", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made.keys() == {"tenant", "id", "principal", "token"}
    assert made["tenant"] == "default"
    assert None not in made.values()


def test_a_bad_line_that_is_left_out_is_told_once(
    service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(CHATS, encoding="utf-8")
    folder = service.services.settings.data
    assert call(service, "writer", "import", file, *ENTRY_CLASS, "--skip-bad", "--data", folder, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["stored"] == 4
    assert len(told["left_out"]) == 1
    assert "line 2" in told["left_out"][0]


def test_an_import_that_is_refused_says_what_to_do_and_what_came_before_a_bad_file(
    service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text(CHATS.splitlines()[0], encoding="utf-8")
    bad.write_text(CHATS, encoding="utf-8")
    folder = ("--data", service.services.settings.data)
    assert call(service, "writer", "import", good, bad, *ENTRY_CLASS, *folder) == 1
    said = capsys.readouterr()
    assert "stored: 2" in said.out or "duplicate: 2" in said.out
    assert said.err.startswith("muniment: bad.jsonl: line 2")
    assert said.err.count("\n") == 1, "no label of a bar that nobody sees"
    for options, advice in (
        (("--class", "nowhere", "--subject-field", "user"), "muniment classes apply"),
        (("--class", "transcript"), "--subject-field"),
    ):
        good.write_text(CHATS.splitlines()[0].replace("hi", advice), encoding="utf-8")
        assert call(service, "writer", "import", good, *options, *folder) == 1
        assert advice in capsys.readouterr().out


def test_a_field_that_is_refused_is_named_once(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(service, "legal", "request", "erase", "--subject", "nobody") == 1
    said = capsys.readouterr().err
    assert said.startswith("muniment: refused (422)")
    assert said.count("/subjects/0: expected type:value") == 1
    assert said.count("\n") == 1


def test_a_file_copied_with_another_time_is_known_again_by_the_old_one(
    service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "old.jsonl", ("--data", service.services.settings.data)
    file.write_text(CHATS.splitlines()[0], encoding="utf-8")
    os.utime(file, (1_700_000_000, 1_700_000_000))
    assert call(service, "writer", "import", file, *ENTRY_CLASS, *folder) == 0
    os.utime(file, (1_710_000_000, 1_710_000_000))
    capsys.readouterr()
    assert call(service, "writer", "import", file, *ENTRY_CLASS, *folder, "--epoch", "2023-11-14T22:13:20Z") == 0
    assert "duplicate: 2" in capsys.readouterr().out
    assert call(service, "writer", "import", file, *ENTRY_CLASS, *folder, "--epoch", "yesterday") == 2
    assert "like 2026-01-31T12:00:00Z" in one_line(capsys)


def test_a_correction_of_nothing_names_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["request", "rectify", "--subject", "email:ada@example.org", "--token", "t", "--url", "http://127.0.0.1:1"]
    assert cli.run(words) == 2
    assert "--correct FIELD=VALUE" in one_line(capsys)


def test_what_somebody_said_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    body = {"words": "\x1b[2J\u202etxet\x9b31m\nso"}
    show(body, as_json=False, lines=[body["words"]])
    assert capsys.readouterr().out == "�[2J�txet�31m\nso\n"
    show(body, as_json=True, lines=[])
    told = capsys.readouterr().out
    assert told.rstrip("\n").isprintable()
    assert json.loads(told) == body


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("muniment: ")
    assert said.err.count("\n") == 1, said.err
    return said.err


@pytest.mark.parametrize("which", ["--key", "--log-key"])
def test_a_pin_that_is_no_key_is_exit_2_for_nothing_was_checked(
    tmp_path: Path, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "certificate.json"
    file.write_text('{"certificate": {}, "signature": {}}', encoding="utf-8")
    good = Ed25519Signer.from_seed("muniment/x/certificate", b"\x07" * 32).vkey
    for garbage in ("garbage", "", f"{good} forever", good[:-1]) if which == "--key" else ("garbage", "", good[:-1]):
        pins = {"--key": good, "--log-key": good} | {which: garbage}
        words = [word for pair in pins.items() for word in pair]
        assert cli.run(["verify-report", str(file), *words]) == 2
        assert "is not a C2SP verifier key" in one_line(capsys)
    assert cli.run(["verify-report", str(file), "--key", good, "--log-key", good]) == 1, "a bad file stays refuted"


def test_no_more_of_a_file_is_read_than_a_certificate_may_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of it lay in the temporary folder first, and an endless one filled it.
    monkeypatch.setattr("api.commands.verify_report.MAX_BYTES", 5 << 20)
    good = Ed25519Signer.from_seed("example.org/certificate", b"s" * 32).vkey
    assert cli.run(["verify-report", "/dev/zero", "--key", good]) == 2
    assert "more than 5242880 bytes" in capsys.readouterr().err
    file = tmp_path / "exactly.json"
    file.write_bytes(b'{"certificate":{},"signature":{}}'.ljust(5 << 20))
    assert cli.run(["verify-report", str(file), "--key", good]) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify", "--dta", "x"], "No such option '--dta'. (Did you mean"),
        (["nope"], "No such command 'nope': muniment --help shows how"),
        (["request", "erase"], "Missing option '--subject': muniment request erase --help shows how"),
        (["report", "x", "-o", "c.json", "--version", "draft"], "is not one of 'interim', 'final'"),
        (
            ["token", "create", "--role", "writer"],
            "Missing option '--principal': muniment token create --help shows how",
        ),
        (["serve", "--port", "99999"], "muniment serve --help shows how"),
        (["serve", "--roles", "king"], "choose from api, scheduler, worker: muniment serve --help shows how"),
        (["import", "/nope.jsonl", "--class", "c"], "does not exist: muniment import --help shows how"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_was_typed_wrong_is_one_line_with_where_the_right_form_stands(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(words) == 2
    assert said in one_line(capsys)


@pytest.mark.parametrize("command", ["init", "serve", "rebuild"])
def test_a_file_where_the_data_folder_is_to_be_is_one_line(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "data"
    file.write_text("mine", encoding="utf-8")
    assert cli.run([command, "--data", str(file)]) == 2
    said = one_line(capsys)
    assert str(file) in said
    assert "Errno" not in said
    assert file.read_text(encoding="utf-8") == "mine"


def test_a_paper_that_could_not_be_written_is_not_asked_for(
    service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("report", "letter"):
        before = service.log.getvalue()
        assert call(service, "legal", command, "req_1", "-o", tmp_path / "nope" / "x.pdf") == 2
        assert f"{tmp_path / 'nope'} is no folder" in one_line(capsys)
        assert service.log.getvalue() == before, "reading a letter is an entry of the record"


def test_a_misspelt_setting_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUNIMENT_APROVAL", "single")
    assert cli.run(["init", "--data", str(tmp_path / "d")]) == 2
    assert "MUNIMENT_APROVAL: there is no such setting: did you mean MUNIMENT_APPROVAL?" in one_line(capsys)
    assert not (tmp_path / "d").exists()
    monkeypatch.delenv("MUNIMENT_APROVAL")
    for known in ("MUNIMENT_TOKEN", "MUNIMENT_URL", "MUNIMENT_WRITER_TOKEN", "MUNIMENT_SECRET_ACME_DB",
                  "MUNIMENT_SERVICE_HOST", "MUNIMENT_PORT_8811_TCP_ADDR"):  # fmt: skip
        monkeypatch.setenv(known, "x")
    settings.load(tmp_path / "d")


def test_a_folder_whose_database_is_gone_before_anything_was_recorded_is_not_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "d"
    assert cli.run(["init", "--data", str(folder)]) == 0
    (folder / "muniment.db").unlink()
    for name in ("objects", "hot"):
        shutil.rmtree(folder / name)
    capsys.readouterr()
    assert cli.run(["serve", "--data", str(folder), "--port", "0"]) == 2
    assert "its database holds no tenant and the stores no log" in one_line(capsys)


def test_what_the_server_library_says_is_a_line_of_our_log_too(tmp_path: Path) -> None:
    """Operators read one form: a caller that speaks no HTTP leaves JSON on stderr like everything else."""
    folder = tmp_path / "d"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUNIMENT_")}
    assert forked.run("init", "--data", str(folder), env=kept).returncode == 0
    with (tmp_path / "said").open("w+b") as said:
        serving = forked.Piped("serve", "--data", str(folder), "--port", "0", env=kept, stderr=said.fileno())
        port = int(serving.stdout.readline().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"hello, is anybody there?\r\n\r\n")
            stranger.recv(1000)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 0
        serving.stdout.close()
        said.seek(0)
        lines = [json.loads(line) for line in said.read().splitlines()]
    assert [(one["library"], one["level"]) for one in lines if one["event"] == "server"] == [("uvicorn.error", "info")]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"items": 0, "keys": 0, "entries": 3}, "3 entries"),
        ({"items": 1, "keys": 2, "entries": 1}, "1 copy, 1 entry, 2 keys"),
        ({"items": 0, "keys": 0, "entries": 0}, "nothing"),
        ({"items": 0, "keys": 0, "entries": 0, "entries_at_least": True}, "at least 0 entries"),
        ({}, "nothing"),
    ],
)
def test_what_a_hold_keeps_counts_the_record_too(found: dict[str, int], words: str) -> None:
    assert kept_now(found) == words


@pytest.mark.parametrize(
    ("state", "right", "answered", "commands"),
    [
        ("completed", "erasure", None, ["muniment report R -o certificate.pdf", "muniment letter R -o letter.pdf"]),
        (
            "completed_with_retained",
            "access",
            None,
            ["muniment report R -o copy.zip", "muniment letter R -o letter.pdf"],
        ),
        ("completed", "restriction", None, ["muniment letter R -o letter.pdf"]),
        ("no_match", "erasure", None, ["muniment letter R -o letter.pdf"]),
        ("completed", "erasure", "2026-11-30T12:00:00Z", []),
        ("cancelled", "erasure", None, []),
    ],
)
def test_a_request_that_ended_says_which_papers_are_next(
    state: str, right: str, answered: str | None, commands: list[str]
) -> None:
    told = next_of({"id": "R", "state": state, "right": right, "answered_at": answered})
    assert told == ([f"next: {', '.join(commands)}"] if commands else [])


@pytest.mark.parametrize("group", ["request", "hold", "retention", "tenant"])
def test_the_help_of_a_group_cuts_no_sentence(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([group, "--help"]) == 0
    page = capsys.readouterr().out.partition("Commands:")[2]
    assert len(page.splitlines()) > 3
    assert "..." not in page
    assert max(map(len, page.splitlines())) <= 80


def test_help_lists_the_desk_s_commands_in_the_order_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["request", "--help"]) == 0
    page = capsys.readouterr().out.partition("Commands:")[2]
    assert page.index("\n  erase ") < page.index("\n  show ") < page.index("\n  plan ") < page.index("\n  settle ")


def test_verify_names_the_folder_in_which_no_log_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "nothing"
    assert cli.run(["verify", "--data", str(empty)]) == 2
    assert f"{empty} was looked into" in capsys.readouterr().out

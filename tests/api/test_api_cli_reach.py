"""What commands say when they cannot reach a server, and when they are asked for nothing."""

from __future__ import annotations

import socket
from pathlib import Path
from threading import Thread

import pytest

from api import cli
from muniment.errors import BadAddress, BadToken
from muniment.transport import Transport

BAD_ADDRESSES = (
    "foo", "127.0.0.1:8080", "ftp://x", "http://", "http://x:99999", "http://x:0", "http://x:y", "http://[::1",
    "http://a b", "http://a\n.example", "http://a/?b", "http://a/#b", "unix:", "unix://host/path",
)  # fmt: skip
BAD_TOKENS = ("mu_one\n", "mu one", "mu_\u00e9", "mu_\x00", "\u2026", " ")
GROUPS = ("request", "classes", "stores", "hold", "retention", "tenant", "token", "key", "controller", "")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MUNIMENT_URL", "MUNIMENT_TOKEN", "MUNIMENT_DATA"):
        monkeypatch.delenv(name, raising=False)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("muniment: ")
    assert said.err.count("\n") == 1, said.err
    return said.err


@pytest.mark.parametrize("address", BAD_ADDRESSES)
def test_what_can_be_no_address_is_one_line_with_what_to_do(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadAddress):
        Transport(address, None)
    assert cli.run(["request", "list", "--token", "t", "--url", address]) == 2
    said = one_line(capsys)
    assert "http://host[:port]" in said
    assert "--url" in said
    assert "MUNIMENT_URL" in said
    monkeypatch.setenv("MUNIMENT_URL", address)
    assert cli.run(["inventory", "--token", "t"]) == 2
    assert one_line(capsys) == said


@pytest.mark.parametrize("token", BAD_TOKENS)
def test_what_can_be_no_token_is_one_line_that_does_not_repeat_it(
    token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadToken):
        Transport("http://127.0.0.1:9", token)
    assert cli.run(["request", "list", "--token", token, "--url", "http://127.0.0.1:9"]) == 2
    said = one_line(capsys)
    assert "MUNIMENT_TOKEN" in said
    assert "mu_" not in said


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:8080", "https://h.example/under/", "http://[::1]:8080", "http://u:p@h", "unix:/a b"]
)
def test_every_form_of_address_that_is_documented_is_one(address: str) -> None:
    Transport(address, "mu_~token")


def test_a_server_that_is_down_is_named_with_the_command_that_starts_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in (["request", "list"], ["inventory"], ["hold", "list"], ["token", "list"]):
            assert cli.run([*command, "--token", "t", "--url", f"http://somebody:secret@{place}"]) == 2
            said = one_line(capsys)
            assert f"http://{place}" in said
            assert "secret" not in said
            assert "nothing listens there" in said
            assert "muniment serve" in said
    assert cli.run(["inventory", "--token", "t", "--url", f"unix:{tmp_path}/none"]) == 2
    assert "no such socket" in one_line(capsys)


def test_what_is_no_server_of_ours_is_named_too(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as strange:
        strange.settimeout(5)

        def answer() -> None:
            for _ in range(2):
                with strange.accept()[0] as caller:
                    caller.recv(4096)
                    caller.sendall(b"SSH-2.0-none\r\n")

        thread = Thread(target=answer)
        thread.start()
        assert cli.run(["inventory", "--token", "t", "--url", f"http://127.0.0.1:{strange.getsockname()[1]}"]) == 2
        thread.join()
    assert "no answer that can be read" in one_line(capsys)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_that_is_asked_for_nothing_shows_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [group] if group else []
    assert cli.run([*words, "--help"]) == 0
    helped = capsys.readouterr().out
    assert helped.count("\n") > 5
    assert cli.run(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", helped)

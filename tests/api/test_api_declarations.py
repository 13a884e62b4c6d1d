"""`classes apply` and `stores apply`: the diff first, all judged before the first one, and what a stop left."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from api import cli
from api.commands.declarations import differences, read_declarations
from api.commands.options import CannotRun
from ledger.models import LogState

pytestmark = pytest.mark.process
CLASS: dict[str, Any] = {
    "state": "record",
    "personal": True,
    "owner": "team-a",
    "description": "notes",
    "legal_basis": "contract",
    "retention": {"keep": "P90D", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase"},
}


def names(count: int) -> list[str]:
    mark = secrets.token_hex(4)
    return [f"c{number}_{mark}" for number in range(count)]


def written(folder: Path, content: dict[str, Any], name: str = "declared.yaml") -> Path:
    file = folder / name
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def apply(service: Any, what: str, *arguments: object, url: str | None = None) -> int:
    token = service.tokens["platform"]
    words = [str(one) for one in arguments]
    return cli.run([what, "apply", *words, "--url", url or service.url, "--token", token])


def in_force(service: Any, what: str, name: str) -> dict[str, Any] | None:
    answer = service.role("platform").get(f"/v1/{what}/{name}")
    return answer.json() if answer.status_code == 200 else None


def announced(service: Any) -> int:
    """How many events of the service's own have been announced in this tenant."""
    tenant_id = service.services.tenants()[0].tenant_id
    with service.services.database.transaction(tenant_id, write=False) as session:
        state: LogState = session.get(LogState, tenant_id)
        return state.outbox_counter


def test_one_bad_declaration_of_many_changes_nothing(
    service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = names(3)
    file = written(tmp_path, {first: CLASS, second: {"owner": "team-b"}, third: CLASS})
    for flags in ((), ("--dry-run",)):
        assert apply(service, "classes", file, *flags) == 1
        said = capsys.readouterr().out
        assert (
            said.index(f"{first}: new (version 1)") < said.index("+ owner: team-a") < said.index(f"{second}: refused")
        )
        assert "/legal_basis" in said
        assert said.endswith("nothing was applied: 1 of 3 declarations are refused\n")
        assert [in_force(service, "data-classes", name) for name in (first, second, third)] == [None] * 3


def test_a_dry_run_is_judged_by_the_server_and_changes_nothing(
    service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = names(2)
    root = str(service.services.settings.data.parent / "stores" / good)
    file = written(tmp_path, {good: {"kind": "files", "config": {"root": root}}})
    assert apply(service, "stores", file, "--dry-run") == 0
    assert "dry run: nothing was changed" in capsys.readouterr().out
    assert in_force(service, "stores", good) is None
    file = written(tmp_path, {bad: {"kind": "files", "config": {"root": "/etc"}}})
    assert apply(service, "stores", file, "--dry-run") == 1
    assert f"{bad}: refused (422)" in capsys.readouterr().out


def test_the_version_of_a_dry_run_is_the_one_that_comes(
    service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [name] = names(1)
    before = announced(service)
    for spec, version, state in (
        (CLASS, 1, "new"),
        (CLASS, 1, "same"),
        ({**CLASS, "owner": "team-b"}, 2, "changed"),
    ):
        for flags in (("--dry-run",), ()):
            assert apply(service, "classes", written(tmp_path, {name: spec}), "--json", *flags) == 0
            [told] = json.loads(capsys.readouterr().out)["classes"]
            assert (told["state"], told["version"], told["applied"]) == (state, version, not flags)
    # One entry of the record for each version that was made; none for what was only tried.
    assert announced(service) == before + 2


YAML = """
classes:
  {name}:
    state: record
    personal: yes
    owner: team-a
    description: notes
    legal_basis: contract
    retention: {{keep: P90D, from: created, then: erase}}
    erasure:
      on_request: erase
"""
TOML = """
[classes.{name}]
state = "record"
personal = true
owner = "team-a"
description = "notes"
legal_basis = "contract"
retention = {{ keep = "P90D", from = "created", then = "erase" }}
[classes.{name}.erasure]
on_request = "erase"
"""


def test_yaml_and_toml_declare_the_same_class(service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [name] = names(1)
    for text, file in ((YAML, "a.yaml"), (TOML, "a.toml"), (YAML, "b.yml")):
        (tmp_path / file).write_text(text.format(name=name), encoding="utf-8")
        assert apply(service, "classes", tmp_path / file) == 0
        state = "new" if file == "a.yaml" else "same"
        assert f"{name}: {state} (version 1)" in capsys.readouterr().out
    shown = in_force(service, "data-classes", name)
    assert shown is not None
    assert (shown["owner"], shown["personal"], shown["retention"]["keep"]) == ("team-a", True, "P90D")


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("a: {owner: x}\nb: {owner: y}\na: {owner: z}\n", "line 3: a name is given twice"),
        ("a: {owner: x, owner: y}\n", "line 1: a name is given twice"),
    ],
)
def test_a_name_given_twice_is_refused_by_its_place(
    service: Any, tmp_path: Path, text: str, because: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text(text, encoding="utf-8")
    assert apply(service, "classes", file) == 2
    said = capsys.readouterr()
    assert because in said.err
    assert said.out == ""


def test_two_files_with_one_name_are_refused(service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [name] = names(1)
    files = [written(tmp_path, {name: CLASS}, f"{number}.yaml") for number in range(2)]
    assert apply(service, "classes", *files) == 2
    assert f"{name} is declared in {files[0]} already" in capsys.readouterr().err
    assert in_force(service, "data-classes", name) is None


@contextmanager
def failing(url: str, real_puts: int) -> Iterator[str]:
    """A way to the service that breaks after some declarations were put into force."""
    left = [real_puts]

    class Relay(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.relay()

        def do_PUT(self) -> None:
            if "dry_run" not in self.path:
                left[0] -= 1
            self.relay(broken=left[0] < 0)

        def relay(self, *, broken: bool = False) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            sent = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
            if broken:
                status, media, data = 503, "application/problem+json", b'{"title":"down","status":503,"detail":"gone"}'
            else:
                answer = httpx.request(self.command, url + self.path, content=body, headers=sent, timeout=30)
                status, media, data = answer.status_code, answer.headers["content-type"], answer.content
            self.send_response(status)
            self.send_header("Content-Type", media)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Relay)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_stop_in_the_middle_says_exactly_what_was_applied(
    service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = names(3)
    file = written(tmp_path, dict.fromkeys((first, second, third), CLASS))
    with failing(service.url, real_puts=1) as url:
        assert apply(service, "classes", file, url=url) == 1
    said = capsys.readouterr().out
    assert f"stopped at {second}: refused (503)" in said
    assert f"applied: {first}\n" in said
    assert f"not applied: {second}, {third}; run the same command again" in said
    shown = [in_force(service, "data-classes", name) for name in (first, second, third)]
    assert [one is not None for one in shown] == [True, False, False]
    assert apply(service, "classes", file, "--json") == 0
    told = json.loads(capsys.readouterr().out)["classes"]
    assert [(one["state"], one["applied"]) for one in told] == [("same", True), ("new", True), ("new", True)]


@pytest.mark.parametrize(("one", "other", "shown"), [
    ({"const": 1}, {"const": "1"}, ["  - schema.const: 1", '  + schema.const: "1"']),
    ({"const": None}, {}, ["  - schema.const: null"]),
    ({}, {"properties": {}}, ["  + schema.properties: {}"]),
])  # fmt: skip
def test_every_change_of_a_schema_has_its_line(one: dict[str, Any], other: dict[str, Any], shown: list[str]) -> None:
    first, second = ({"state": "memory", "schema": {"type": "object", **schema}} for schema in (one, other))
    assert differences(first, second) == shown
    assert differences(second, second) == []


@pytest.mark.parametrize("text", [
    "classes: [{}]", "classes: text", "c: &a {x: *a}", f"c: {'[' * 3000}", f"c: {{x: {'[' * 900}{']' * 900}}}",
])  # fmt: skip
def test_a_file_that_declares_nothing_readable_is_never_nothing_to_change(tmp_path: Path, text: str) -> None:
    file = tmp_path / "declared.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(CannotRun):
        read_declarations(file, "classes")


@pytest.mark.parametrize(("is_of", "other"), [("classes", "stores"), ("stores", "classes")])
def test_classes_given_as_stores_and_stores_as_classes_are_told_where_they_belong(is_of: str, other: str) -> None:
    # Each of their fields was refused by name, thirty lines of them.
    file = Path(__file__).parents[2] / "examples" / "first" / f"{is_of}.yaml"
    assert len(read_declarations(file, is_of)) == 2
    with pytest.raises(CannotRun, match=f": muniment {is_of} apply {file}"):
        read_declarations(file, other)

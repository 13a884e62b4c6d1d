"""Every refusal is one documented problem that repeats nothing of what was sent."""

import gzip
import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from psycopg.errors import DeadlockDetected, ForeignKeyViolation, SerializationFailure, UniqueViolation

import connectors.errors
import erasure.errors
import ledger.errors
import registry.errors
import retention.errors
import vault.errors
from api import database, secrets
from api.errors import answer_of, problem_of
from api.problems import GENERIC, PROBLEMS
from api.telemetry import places
from ledger.staging import StagedUnreadable
from registry.classes import STARTER_CLASSES

SECRET_WORD = "kowalski-9831"
CLASS: dict[str, Any] = {
    "state": "record",
    "personal": True,
    "owner": "team",
    "description": "d",
    "legal_basis": "contract",
    "retention": {"keep": "P90D", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase"},
}


def problem(answer: httpx.Response, status: int, name: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["type"] == f"/problems/{name}"
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    assert SECRET_WORD not in answer.text
    return body


def test_no_token_is_401_with_the_scheme_to_use(service: Any) -> None:
    answer = service.client().get("/v1/tokens")
    problem(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("token", ["mun_", "mun_" + "a" * 43, "x", "mun_" + "a" * 5000, SECRET_WORD])
def test_a_token_that_nobody_was_given_is_401(service: Any, token: str) -> None:
    problem(service.client(token).get("/v1/tokens"), 401, "unauthorized")


def test_another_role_is_403_and_names_the_roles(service: Any) -> None:
    body = problem(service.role("writer").get("/v1/tokens"), 403, "forbidden")
    assert "admin" in body["detail"]


@pytest.mark.parametrize("path", ["/v1/nothing", f"/v1/{SECRET_WORD}"])
def test_an_unknown_path_is_404(service: Any, path: str) -> None:
    problem(service.role("admin").get(path), 404, "not-found")


def test_an_unknown_method_is_405(service: Any) -> None:
    problem(service.role("admin").put("/v1/tokens", json={}), 405, "method-not-allowed")


def test_an_unknown_field_is_422_by_pointer(service: Any) -> None:
    body = problem(
        service.role("admin").post("/v1/tokens", json={"principal": "p", "roles": ["writer"], "colour": SECRET_WORD}),
        422,
        "invalid",
    )
    assert body["errors"] == [{"pointer": "/colour", "detail": "unknown field"}]


def test_a_missing_field_is_422_by_pointer(service: Any) -> None:
    body = problem(service.role("admin").post("/v1/tokens", json={"principal": "p"}), 422, "invalid")
    assert body["errors"] == [{"pointer": "/roles", "detail": "required"}]


def test_a_wrong_value_is_422_without_the_value(service: Any) -> None:
    body = problem(
        service.role("admin").post("/v1/tokens", json={"principal": [SECRET_WORD], "roles": ["writer"]}), 422, "invalid"
    )
    assert body["errors"][0]["pointer"] == "/principal"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b'{"principal": "\xff"}',
        b'\xef\xbb\xbf{"a": 1}',
        b"{'a': 1}",
    ],
)
def test_unreadable_json_is_400(service: Any, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    problem(service.role("admin").post("/v1/tokens", content=body, headers=headers), 400, "malformed")


def test_text_with_nul_is_refused_before_a_database_sees_it(service: Any) -> None:
    body = b'{"principal": "a\\u0000b", "roles": ["writer"]}'
    answer = service.role("admin").post("/v1/tokens", content=body, headers={"content-type": "application/json"})
    problem(answer, 422, "invalid")


def test_no_path_with_nul_reaches_a_database(service: Any) -> None:
    # PostgreSQL refuses it as text: a fault of the service on nearly every path with a name in it.
    for path in ("/v1/stores/{}", "/v1/runs/{}", "/v1/requests/{}", "/v1/requests/{}/plan", "/v1/retention/runs/{}"):
        problem(service.role("legal").get(path.format("a%00b")), 404, "not-found")


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "application/json; charset=latin-1", ""])
def test_another_content_type_is_415(service: Any, kind: str) -> None:
    answer = service.role("admin").post("/v1/tokens", content=b"{}", headers={"content-type": kind})
    problem(answer, 415, "unsupported-media-type")


def test_a_body_of_20_mib_is_413_whether_its_size_is_declared_or_not(service: Any) -> None:
    headers = {"content-type": "application/json"}
    client = service.role("platform")
    problem(client.put("/v1/data-classes/x", content=b" " * (20 << 20), headers=headers), 413, "too-large")
    pieces = (b" " * (1 << 20) for _ in range(20))
    try:
        answer = client.put("/v1/data-classes/x", content=pieces, headers=headers)
    except httpx.WriteError:
        return  # the service closed while we still sent: nothing beyond the limit was read
    problem(answer, 413, "too-large")


def test_an_encoded_body_is_415(service: Any) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = service.role("admin").post("/v1/tokens", content=gzip.compress(b"{}"), headers=headers)
    problem(answer, 415, "unsupported-media-type")


def test_a_large_body_of_somebody_unknown_is_not_read_to_its_end(service: Any) -> None:
    # Each was held whole before anybody was asked for a token: a few hundred senders filled a server's memory.
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        head = "POST /v1/record/entries HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        line.sendall(f"{head}Authorization: Bearer mun_{'a' * 43}\r\nContent-Length: 1000000\r\n\r\n".encode())
        line.sendall(b" " * 100_000)
        assert line.recv(100).startswith(b"HTTP/1.1 401 ")


def test_a_class_that_is_incomplete_names_everything_that_is_missing(service: Any) -> None:
    body = problem(service.role("platform").put("/v1/data-classes/partial", json={"state": "record"}), 422, "invalid")
    assert {error["pointer"] for error in body["errors"]} >= {"/owner", "/personal"}
    assert service.role("platform").get("/v1/data-classes/partial").status_code == 404


def test_a_class_or_store_of_the_path_that_nobody_knows_is_404_and_named(service: Any) -> None:
    """In a body the same name is 422: there the request is wrong, here the resource is not there."""
    platform = service.role("platform")
    for method, path in (
        ("GET", "/v1/data-classes/nothing"),
        ("DELETE", "/v1/data-classes/nothing"),
        ("GET", "/v1/stores/nothing"),
        ("DELETE", "/v1/stores/nothing"),
        ("POST", "/v1/stores/nothing/check"),
        ("GET", "/v1/machines/nothing"),
        ("GET", "/v1/machines/nothing/violations"),
    ):
        body = problem(platform.request(method, path), 404, "not-found")
        assert "'nothing'" in body["detail"], path
    deleted = platform.delete("/v1/stores/nothing", headers={"Idempotency-Key": "gone"})
    problem(deleted, 404, "not-found")
    spec = {"stream": "conv_404", "data_class": "nothing"}
    problem(service.role("writer").post("/v1/streams", json=spec), 422, "unknown-class")


def test_a_version_that_a_class_never_had_is_404_by_its_number(service: Any) -> None:
    platform = service.role("platform")
    body = problem(platform.get("/v1/data-classes/transcript?version=9"), 404, "not-found")
    assert "no version 9 of data class 'transcript'" in body["detail"]
    assert platform.get("/v1/data-classes/transcript?version=1").status_code == 200
    for outside in ("0", "-1", str(2**63)):
        problem(platform.get(f"/v1/data-classes/transcript?version={outside}"), 422, "invalid")


def test_a_store_outside_the_operators_list_is_refused_and_its_secret_never_echoed(service: Any) -> None:
    spec = {"kind": "files", "config": {"root": "/etc"}}
    problem(service.role("platform").put("/v1/stores/etc", json=spec), 422, "target-not-allowed")
    own = {"kind": "files", "config": {"root": str(service.services.settings.data)}}
    problem(service.role("platform").put("/v1/stores/own", json=own), 422, "target-not-allowed")
    other = {"kind": "redis", "config": {"url": f"redis://:{SECRET_WORD}@localhost/0"}}
    assert service.role("platform").put("/v1/stores/r", json=other).status_code == 422


def test_what_is_not_built_says_so_by_name(service: Any) -> None:
    spec = {**STARTER_CLASSES["memory"], "masking": {"fields": ["name"]}}
    problem(service.role("platform").put("/v1/data-classes/m", json=spec), 422, "not-built")


def test_every_problem_type_has_a_page_that_needs_no_token(service: Any) -> None:
    client = service.client()
    for name, kind in PROBLEMS.items():
        answer = client.get(f"/problems/{name}")
        assert answer.status_code == 200
        assert kind.title in answer.text
    problem(client.get("/problems/nonsense"), 404, "not-found")


def test_every_error_class_of_ours_names_a_documented_problem() -> None:
    modules = (connectors, erasure, ledger, registry, retention, vault)
    found = [vars(module.errors) for module in modules] + [vars(database), vars(secrets)]
    errors = [value for names in found for value in names.values() if isinstance(value, type)]
    problems = [getattr(error, "problem", None) for error in errors if issubclass(error, Exception)]
    named = {name for name in problems if isinstance(name, str)}
    assert len(named) > 10
    bases = {"registry", "retention", "erasure"}  # of base classes, which nobody raises
    assert named <= PROBLEMS.keys() | bases


def test_every_generic_status_has_a_type() -> None:
    assert {PROBLEMS[name].status for name in GENERIC.values()} == set(GENERIC)


def test_an_error_nobody_named_is_500_without_its_text() -> None:
    answer = answer_of(problem_of(RuntimeError(SECRET_WORD)), instance="r1")
    assert answer.status == 500
    assert SECRET_WORD not in answer.body.decode()
    assert json.loads(answer.body)["instance"] == "urn:request:r1"


def test_a_fault_in_code_without_a_file_is_placed_like_any_other() -> None:
    # The last handler failed over such a place, and its caller was told nothing that the contract knows.
    with pytest.raises(ZeroDivisionError) as raised:
        exec(compile("1 / 0", "<string>", "exec"))  # noqa: S102 - code of ours without a file
    assert places(raised.value)[-1] == "<string>:1 <module>"
    assert places(raised.value)[0].startswith("api/test_api_problems.py:")


def test_calls_that_declare_one_thing_at_once_are_asked_to_come_again(service: Any) -> None:
    # On PostgreSQL all but one was a fault of the service.
    name, tokens = "/v1/data-classes/at-once", service.tokens
    start, answers = threading.Barrier(8), []

    def declare(number: int) -> None:
        with httpx.Client(base_url=service.url, timeout=30) as client:
            start.wait()
            headers = {"Authorization": f"Bearer {tokens['platform']}"}
            answers.append(client.put(name, json={**CLASS, "owner": f"team-{number}"}, headers=headers))

    threads = [threading.Thread(target=declare, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [answer.json()["version"] for answer in answers if answer.status_code == 201]
    assert sorted(made) == list(range(1, len(made) + 1))
    for answer in answers:
        if answer.status_code != 201:
            problem(answer, 503, "contended")
            assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("kind", [UniqueViolation, DeadlockDetected, SerializationFailure, ForeignKeyViolation])
def test_only_what_may_be_run_again_is_contended(kind: Any) -> None:
    name = problem_of(sa.exc.DBAPIError.instance("", {}, kind("x"), Exception)).name
    assert name == ("internal" if kind is ForeignKeyViolation else "contended")


def test_503_and_429_say_when_to_come_back() -> None:
    for name in ("unavailable", "too-many-requests", "checkpoint-pending"):
        assert "Retry-After" in answer_of(problem_of(problem_named(name))).headers


def test_a_staged_row_of_another_version_is_to_be_sent_again_and_is_no_fault_of_the_service() -> None:
    """While processes of two versions run, the one that leads cannot read what the other staged."""
    answer = answer_of(problem_of(StagedUnreadable("019f3c00-0000-7000-8000-000000000000")))
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert json.loads(answer.body)["type"] == "/problems/unavailable"


def problem_named(name: str) -> Exception:
    error = RuntimeError("x")
    error.problem = name  # type: ignore[attr-defined]
    return error


def test_a_method_of_the_callers_own_is_no_label(service: Any) -> None:
    assert service.client().request("PROPFIND", "/healthz").status_code == 405
    end = time.monotonic() + 10
    while '"method": "_OTHER"' not in service.log.getvalue():  # said after the answer
        assert time.monotonic() < end
        time.sleep(0.01)
    assert "PROPFIND" not in service.log.getvalue()
    assert "PROPFIND" not in service.client().get("/metrics").text


def test_no_log_line_holds_a_token_a_path_value_or_a_query(service: Any) -> None:
    service.role("platform").get(f"/v1/data-classes/{SECRET_WORD}?version=1&q={SECRET_WORD}")
    service.role("platform").get(f"/nowhere/{SECRET_WORD}")
    text = service.log.getvalue()
    assert '"route": "/v1/data-classes/{name}"' in text
    assert SECRET_WORD not in text
    assert not any(token in text for token in service.tokens.values())

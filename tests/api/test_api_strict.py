"""No type of a request is guessed: every field and parameter of the document refuses what merely looks like it."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter, ValidationError

from api import openapi
from api.app import create_app
from api.errors import Problem
from api.pagination import write_cursor
from api.requests import Flag, Time, Whole, parse_json
from ledger.entry import uuid7
from tests.api.conftest import Running, running
from tests.process.test_process_openapi import UNKNOWN

LAX: dict[str, tuple[Any, ...]] = {
    "boolean": ("off", "yes", "true", 1, 0),
    "integer": ("1", 1.5, True),
    "number": ("1", True),
    "date-time": (
        1_700_000_000,
        "1700000000",
        "2026-11-30 01:00:00Z",
        "2026-11-30T01:00:00",
        "2026-11-30",
        "20261130T010000Z",
        "1969-12-31T23:59:59Z",
        "3000-01-01T00:00:00Z",
        True,
    ),
}
LAX_QUERY: dict[str, tuple[str, ...]] = {
    "boolean": ("off", "yes", "1", "True", ""),
    "integer": ("1.0", " 1", "+1", "1_0", "true", ""),
    "date-time": ("1700000000", "2026-11-30 01:00:00Z", "2026-11-30", "1969-12-31T23:59:59Z", ""),
}
DESKS = ("legal", "platform", "writer", "auditor", "admin")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One database is enough: nothing of this is stored."""
    with running(tmp_path_factory.mktemp("strict") / "data") as found:
        yield found


@pytest.fixture(scope="module")
def document(service: Running) -> Any:
    return openapi.document(create_app(service.services))


@pytest.fixture(scope="module")
def ask(service: Running) -> Any:
    """Makes a call as the first principal who may; the answer."""
    with httpx.Client(base_url=service.url, timeout=30) as client:

        def send(method: str, path: str, body: object = None, *, raw: bytes | None = None, **more: Any) -> Any:
            content = raw if raw is not None else None if body is None else json.dumps(body).encode()
            answers = (call(desk, method, path, content, more) for desk in DESKS)
            return next(one for one in answers if one.status_code != 403)

        def call(desk: str, method: str, path: str, content: bytes | None, more: Any) -> httpx.Response:
            headers = {"Authorization": f"Bearer {service.tokens[desk]}", "X-Purpose": "dispute;case=7"}
            if content is not None:
                headers["Content-Type"] = "application/json"
            return client.request(method, path, content=content, headers=headers, **more)

        yield send


@pytest.fixture(scope="module")
def docs(service: Running, ask: Any) -> str:
    """A store of files, by its name."""
    root = service.services.settings.data.parent / "stores" / "docs"
    assert ask("PUT", "/v1/stores/docs", {"kind": "files", "config": {"root": str(root)}}).status_code == 201
    return "docs"


def kind_of(schema: Any) -> str | None:
    """What a schema wants, of what can be guessed wrongly."""
    for one in (schema, *schema.get("anyOf", ())):
        kind = one.get("format") if one.get("format") == "date-time" else one.get("type")
        if isinstance(kind, str) and kind in LAX:
            return str(kind)
    return None


def fields(document: Any, schema: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Where in a body such a thing stands."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if place and (kind := kind_of(schema)):
        yield place, kind
    for one in schema.get("anyOf", ()):
        yield from fields(document, one, place)
    for name, part in schema.get("properties", {}).items():
        yield from fields(document, part, (*place, name))
    if "items" in schema:
        yield from fields(document, schema["items"], (*place, 0))


def put(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The body with a value at a place, whatever stood on the way."""
    made = copy.deepcopy(body)
    here = made
    for step, following in zip(place, (*place[1:], None), strict=True):
        leaf = value if following is None else [] if following == 0 else {}
        if isinstance(here, list):
            if not here:
                here.append(leaf)
            elif following is None:
                here[0] = leaf
            here = here[0]
            continue
        if following is None or not isinstance(here.get(step), type(leaf)):
            here[step] = leaf
        here = here[step]
    return made


def test_every_boolean_number_and_time_of_every_body_refuses_what_only_looks_like_it(document: Any, ask: Any) -> None:
    tried: list[str] = []
    for name, operation in openapi.operations(document):
        method, path = name.split(" ", 1)
        media = operation.get("requestBody", {}).get("content", {}).get(openapi.JSON)
        if media is None:
            continue
        example = media.get("example", {})
        for place, kind in fields(document, media["schema"]):
            if any(step in openapi._ANYTHING for step in place):
                continue
            for value in LAX[kind]:
                answer = ask(method, path.format(**UNKNOWN), put(example, place, value))
                told = (name, place, value, answer.status_code, answer.text)
                assert answer.status_code == 422, told
                assert "/" + "/".join(map(str, place)) in [one["pointer"] for one in answer.json()["errors"]], told
            tried.append(kind)
    assert tried.count("date-time") >= 12
    assert tried.count("boolean") >= 4
    assert tried.count("integer") >= 5


def test_every_boolean_number_and_time_of_every_query_refuses_what_only_looks_like_it(document: Any, ask: Any) -> None:
    tried: list[str] = []
    for name, operation in openapi.operations(document):
        method, path = name.split(" ", 1)
        body = operation.get("requestBody", {}).get("content", {}).get(openapi.JSON, {}).get("example")
        for parameter in operation.get("parameters", ()):
            kind = kind_of(parameter["schema"])
            if parameter["in"] != "query" or kind is None:
                continue
            for value in LAX_QUERY[kind]:
                answer = ask(method, path.format(**UNKNOWN), body, params={parameter["name"]: value})
                told = (name, parameter["name"], value, answer.status_code, answer.text)
                assert answer.status_code == 422, told
                assert f"/query/{parameter['name']}" in [one["pointer"] for one in answer.json()["errors"]], told
            tried.append(kind)
    assert tried.count("integer") > 20
    assert {"boolean", "date-time"} <= set(tried)


@pytest.mark.parametrize(("method", "path", "body"), [
    ("PUT", "/v1/data-classes/note", {"personal": "yes"}),
    ("PUT", "/v1/data-classes/note", {"personal": 1}),
    ("POST", "/v1/streams", {"stream": "s", "data_class": "transcript", "provider_generation": "1"}),
    ("POST", "/v1/streams", {"stream": "s", "data_class": "transcript", "provider_generation": True}),
])  # fmt: skip
def test_declarations_guess_no_type_either(ask: Any, method: str, path: str, body: dict[str, Any]) -> None:
    answer = ask(method, path, body)
    assert answer.status_code == 422, answer.text
    assert f"/{[*body][-1]}" in [one["pointer"] for one in answer.json()["errors"]], answer.text


@pytest.mark.parametrize(
    ("field", "value"),
    [*(("observed_at", value) for value in LAX["date-time"]), ("confidence", "0.9"), ("confidence", True)],
)
def test_an_artifact_whose_time_or_number_only_looks_like_one_is_refused(
    ask: Any, docs: str, field: str, value: Any
) -> None:
    item = {"data_class": "summary", "store": docs, "locator": {"path": "a"}, "subjects": ["user:a"]}
    [result] = ask("POST", "/v1/artifacts", {"artifacts": [{**item, field: value}]}).json()["results"]
    assert result["status"] == "rejected"
    assert f"/{field}" in [one["pointer"] for one in result["problem"]["errors"]], result


@pytest.mark.parametrize("value", ["2026-11-30 01:00:00Z", "2026-11-30T01:00:00", "1700000000", 1_700_000_000])
def test_an_entry_whose_time_only_looks_like_one_is_refused(ask: Any, value: Any) -> None:
    known = {"id": str(uuid7(datetime.now(UTC))), "stream": "s", "kind": "turn.user", "data_class": "transcript"}
    body = {"entries": [{**known, "at": value, "body": {}}]}
    [result] = ask("POST", "/v1/record/entries", body).json()["results"]
    assert (result["status"], result["problem"]["errors"][0]["pointer"]) == ("rejected", "/at"), result


@pytest.mark.scenario("S41")
def test_content_that_a_class_does_not_expect_is_not_kept_and_somebody_is_told(service: Running) -> None:
    # Instrumentation that was told to record no prompts did so all the same, and nobody noticed for months.
    kept, said = {"roles": ["auditor"], "purposes": ["review"]}, "Ada's rash is worse on Tuesdays"
    with service.role("platform") as platform:
        spec = {
            "state": "record", "personal": True, "owner": "team", "description": "spans", "legal_basis": "contract",
            "retention": {"keep": "P30D", "from": "created", "then": "erase"}, "erasure": {"on_request": "erase"},
            "content": "none", "access": kept,
        }  # fmt: skip
        made = platform.put("/v1/data-classes/span", json=spec)
        assert made.status_code == 201, made.text
    entry = {"id": str(uuid7(datetime.now(UTC))), "stream": "s41", "kind": "turn.user", "data_class": "span",
             "subjects": ["user:ada"], "at": datetime.now(UTC).isoformat(), "body": {"content": said}}  # fmt: skip
    with service.role("writer") as writer:
        [result] = writer.post("/v1/record/entries", json={"entries": [entry]}).json()["results"]
        [again] = writer.post("/v1/record/entries", json={"entries": [entry]}).json()["results"]
        silent = {**entry, "id": str(uuid7(datetime.now(UTC))), "body": {}}
        [other] = writer.post("/v1/record/entries", json={"entries": [silent]}).json()["results"]
    assert (result["status"], result["redacted_parts"], again["status"]) == ("stored", ["body"], "duplicate")
    assert (other["status"], "redacted_parts" in other) == ("stored", False)
    with service.role("auditor") as auditor:
        shown = auditor.get(f"/v1/record/entries/{entry['id']}", headers={"X-Purpose": "review"})
    assert shown.json()["body"] == {"bytes": 45, "redacted": "content not expected"}
    lines = [json.loads(line) for line in service.log.getvalue().splitlines() if '"span"' in line]
    assert [(line["level"], line["parts"]) for line in lines] == [("warning", 1)] * 2
    assert said not in service.log.getvalue()


def test_what_is_meant_is_still_taken() -> None:
    assert TypeAdapter(Time).validate_python("2026-11-30t01:00:00.5+01:00") == datetime(
        2026, 11, 30, 0, 0, 0, 500_000, tzinfo=UTC
    )
    assert [TypeAdapter(Flag).validate_python(text) for text in ("true", "false")] == [True, False]
    assert TypeAdapter(Whole).validate_python("007") == 7
    for text in ("2026-02-30T00:00:00Z", "2026-01-01T00:00:60Z", "9999-12-31T23:59:59-05:00"):
        with pytest.raises(ValidationError):
            TypeAdapter(Time).validate_python(text)


def test_a_route_without_a_body_refuses_one_that_says_something(document: Any, ask: Any) -> None:
    asked = 0
    for name, operation in openapi.operations(document):
        method, path = name.split(" ", 1)
        if method == "GET" or "requestBody" in operation:
            continue
        asked += 1
        place = path.format(**UNKNOWN)
        answer = ask(method, place, {"colour": 1})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/colour"), (name, answer.text)
        assert ask(method, place, ["x"]).status_code == 422, name
        assert ask(method, place, raw=b"{").status_code == 400, name
    assert asked >= 12


def test_an_empty_object_is_no_body(service: Running) -> None:
    with service.role("admin") as client:
        assert client.post("/v1/log/anchors", json={}).status_code == 200
        assert client.post("/v1/log/anchors").status_code == 200
        assert client.post("/v1/log/anchors", json={"force": True}).status_code == 422


def test_two_members_of_one_name_are_refused_on_every_route(document: Any, ask: Any) -> None:
    asked = 0
    for name, _ in openapi.operations(document):
        method, path = name.split(" ", 1)
        if method == "GET":
            continue
        asked += 1
        for raw in (b'{"entries":[],"entries":[]}', b'{"a": {"b": 1, "\\u0062": 2}}'):
            answer = ask(method, path.format(**UNKNOWN), raw=raw)
            # The record answers for its own envelope: an unknown member there is said first.
            if (name, raw[:4]) != ("POST /v1/record/entries", b'{"a"'):
                assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed"), (name, answer.text)
    assert asked > 50


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"a":2}',
        b'{"a":1, "a":1}',
        b'[{"x":[{"a":1,"b":2,"a":3}]}]',
        b'{"a":1,"\\u0061":2,"n":1e2}',
        b'{"n":1e5,"n":100000.0}',
        b'{"\xc3\xa4":1,"\\u00e4":1}',
    ],
)
def test_equal_names_are_found_however_they_are_written_and_wherever_they_stand(raw: bytes) -> None:
    with pytest.raises(Problem) as refused:
        parse_json(raw)
    assert refused.value.name == "malformed"


@pytest.mark.parametrize(
    "raw",
    [b'{"a": [{"a": 1}, {"a": 1}]}', b'{ "A": 1e2, "a": "\\u0061" }', b"[1.0, 10e3]", b'{"n": 1234567890123456789}'],
)
def test_equal_names_of_different_objects_are_no_fault(raw: bytes) -> None:
    assert parse_json(raw) == json.loads(raw)


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b'{"n": %d}' % 2**63, "invalid"),
        (b'[[{"n": [%d]}]]' % (-(2**63) - 1), "invalid"),
        (b"[" * 101 + b"]" * 101, "malformed"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "malformed"),
    ],
)
def test_what_no_copy_could_hold_is_refused(raw: bytes, name: str) -> None:
    # Kept once, such a number stopped every later event of the tenant: its row could not be written for a rebuild.
    with pytest.raises(Problem) as refused:
        parse_json(raw)
    assert refused.value.name == name


@pytest.mark.parametrize(
    "raw", [b'{"n": [%d, %d], "t": "%d"}' % (2**63 - 1, -(2**63), 2**99), b'{"a":' * 100 + b"1" + b"}" * 100]
)
def test_the_last_of_what_a_copy_can_hold_is_read(raw: bytes) -> None:
    assert parse_json(raw) == json.loads(raw)


def test_a_cursor_of_ours_that_no_database_can_be_asked_for_is_refused(ask: Any, document: Any) -> None:
    # Each was a fault of the service (500) on one of the databases.
    paged = [
        (method, path)
        for path, item in document["paths"].items()
        for method, one in item.items()
        if any(each["name"] == "cursor" for each in one.get("parameters", ())) and "{" not in path
    ]
    assert len(paged) > 10
    texts = [
        (2**63,),
        (-(2**63) - 1,),
        (2**63, 2**63),
        (2**63, "a", 2**63),
        ("a\0",),
        ("9999-99-99T", "a"),
        ("a\0", "b"),
    ]
    bodies: dict[str, object] = {
        "/v1/subjects:copies": {"subjects": ["user:1"]},
        "/v1/requests:search": {"subject": "user:1"},
        "/v1/consents:search": {"subject": "user:1"},
    }
    for method, path in paged:
        for parts in texts:
            answer = ask(
                method.upper(), f"{path}?cursor={_bare(parts)}", bodies.get(path, {} if method == "post" else None)
            )
            assert answer.status_code in (200, 422), (path, parts, answer.text)


def _bare(parts: tuple[object, ...]) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).rstrip(b"=").decode()


def test_the_cursor_of_a_body_is_named_as_of_the_body(ask: Any) -> None:
    for cursor in ("x", write_cursor("a")):
        answer = ask("POST", "/v1/replay", {"stream": "conv_1", "cursor": cursor})
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/bad-cursor")
        assert [one["pointer"] for one in answer.json()["errors"]] == ["/cursor"]


def test_keys_and_anchors_of_the_log_are_read_by_pages(service: Running) -> None:
    with service.role("admin") as admin, service.role("auditor") as auditor:
        for use in ("log", "log", "certificate"):
            assert admin.post("/v1/log/keys", json={"use": use}).status_code == 201
        whole = auditor.get("/v1/log/keys").json()
        assert (len(whole["items"]), whole["next_cursor"]) == (5, None)
        found, cursor = [], ""
        while True:
            page = auditor.get(f"/v1/log/keys?limit=2{cursor}").json()
            assert len(page["items"]) <= 2
            found += page["items"]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert found == whole["items"]
        for path in ("/v1/log/keys", "/v1/log/anchors"):
            assert auditor.get(f"{path}?cursor=x").json()["type"] == "/problems/bad-cursor"
            assert auditor.get(f"{path}?limit=0").status_code == 422


def test_a_page_of_keys_goes_on_where_it_stood_although_a_key_came(service: Running) -> None:
    with service.role("admin") as admin, service.role("auditor") as auditor:
        before = [one["vkey"] for one in auditor.get("/v1/log/keys").json()["items"]]
        page = auditor.get("/v1/log/keys?limit=1").json()
        assert admin.post("/v1/log/keys", json={"use": "log"}).status_code == 201
        rest = auditor.get(f"/v1/log/keys?cursor={page['next_cursor']}").json()
        assert [one["vkey"] for one in [*page["items"], *rest["items"]]] == before


def test_lines_of_json_are_shown_with_an_example_that_is_taken(document: Any, service: Running) -> None:
    shown = dict(openapi.operations(document))
    media = shown["POST /v1/record/entries"]["requestBody"]["content"][openapi.LINES]
    assert media["schema"]["description"]
    with service.role("writer") as client:
        headers = {"Content-Type": openapi.LINES}
        answer = client.post("/v1/record/entries", content=media["example"], headers=headers)
        lines = media["example"].splitlines()
        assert len(answer.json()["results"]) == len(lines) > 0
        assert all(
            "problem" not in one or one["problem"]["type"] != "/problems/malformed" for one in answer.json()["results"]
        )
    media = shown["POST /v1/replay"]["responses"]["200"]["content"][openapi.LINES]
    whole = shown["POST /v1/replay"]["responses"]["200"]["content"][openapi.JSON]["example"]
    head, *entries = [json.loads(line) for line in media["example"].splitlines()]
    assert media["schema"]["description"]
    assert (head | {"entries": entries}) == whole


def test_what_a_path_names_in_no_form_of_ours_is_unknown(document: Any, ask: Any) -> None:
    asked = 0
    for name, operation in openapi.operations(document):
        method, path = name.split(" ", 1)
        if "{" not in path or method == "PUT" or path.endswith("/preview"):
            continue
        body = operation.get("requestBody", {}).get("content", {}).get(openapi.JSON, {}).get("example")
        for odd in ("no-such-thing", "x" * 200):
            answer = ask(method, path.format(**dict.fromkeys(UNKNOWN, odd)), body)
            asked += 1
            assert answer.status_code == 404, (name, odd[:20], answer.status_code, answer.text)
            assert answer.json()["detail"], name
    assert asked > 100

"""The OpenAPI document tells the truth: every call of the contract is made, and every answer fits what is declared.

MUNIMENT_TEST_WRITE_EXAMPLES=1 writes the examples of the document anew from what was answered.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from api import administration, openapi
from tests.process.every_call import SAME_VIEW, Story, tell

pytestmark = pytest.mark.process
WRITE = os.environ.get("MUNIMENT_TEST_WRITE_EXAMPLES") == "1"
ITEMS_SHOWN, TEXT_SHOWN = 2, 160


@pytest.fixture(scope="module", params=["embedded"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Story]]:
    """The document of a running service, and the story of all its calls."""
    from tests.process.conftest import Running, _embedded

    base = tmp_path_factory.mktemp("contract")
    (base / "stores").mkdir()
    running = Running(_embedded(base))
    story = None
    try:
        made = administration.create_tenant(running.services, administration.DEFAULT_TENANT)
        document = openapi.document(openapi_app(running.services))
        story = Story(running.url, made.tokens, [name for name, _ in openapi.operations(document)], base)
        tell(story)
        if WRITE:
            write_examples(story, document, base)
            document = openapi.document(openapi_app(running.services))
        yield document, story
    finally:
        if story is not None:
            story.close()
        running.stop()


def openapi_app(services: Any) -> Any:
    from api.app import create_app

    return create_app(services)


def shortened(value: Any, base: Path) -> Any:
    """What an example needs of an answer: two items of a list, the beginning of a long text, nobody's secret."""
    if isinstance(value, dict):
        return {name: shortened(member, base) for name, member in value.items()}
    if isinstance(value, list):
        return [shortened(item, base) for item in value[:ITEMS_SHOWN]]
    if isinstance(value, str):
        value = re.sub(r"mun_[A-Za-z0-9_-]{20,}", "mun_…", value.replace(str(base), "/srv/muniment"))
        return value if len(value) <= TEXT_SHOWN else value[:TEXT_SHOWN] + "…"
    return value


def write_examples(story: Story, document: Any, base: Path) -> None:
    """The fullest answer of each operation and status: more members say more."""
    kept: dict[str, Any] = {}
    for name, sent, status, found in story.calls:
        one = kept.setdefault(name, {"responses": {}})
        if sent is not None:
            one.setdefault("request", shortened(sent, base))
        before = one["responses"].get(str(status))
        if found is not None and (before is None or len(json.dumps(found)) > len(json.dumps(before))):
            one["responses"][str(status)] = found
    for name, view in SAME_VIEW.items():
        kept.setdefault(name, {"responses": dict(kept[view]["responses"])})
    for one in kept.values():
        one["responses"] = {status: shortened(found, base) for status, found in one["responses"].items()}
    order = [name for name, _ in openapi.operations(document)]
    text = json.dumps({name: kept[name] for name in order if name in kept}, indent=1, ensure_ascii=False)
    openapi.EXAMPLES.write_text(text + "\n", encoding="utf-8")


def validator(document: Any, schema: Any) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": document["components"]})


def faults(document: Any, schema: Any, value: Any) -> list[str]:
    return [f"{error.json_path}: {error.message[:160]}" for error in validator(document, schema).iter_errors(value)]


def bodies(document: Any) -> Iterator[tuple[str, Any]]:
    """Every JSON body of the document: of a request, and of each answer of success."""
    for name, operation in openapi.operations(document):
        media = operation.get("requestBody", {}).get("content", {}).get(openapi.JSON)
        if media is not None:
            yield name, media
        for code, response in operation["responses"].items():
            if code.startswith("2") and openapi.JSON in response.get("content", {}):
                yield f"{name} {code}", response["content"][openapi.JSON]


MAPS = frozenset({
    "body", "config", "corrections", "decisions", "evidence", "key", "locator", "not_ready", "observed",
    "provider_refs", "reclaimed", "schema", "scope", "selector", "streams", "tokens", "tools", "value", "wanted",
})  # fmt: skip
"""Members whose own members are names that a caller chose, or anything."""


def untold(document: Any, schema: Any, place: str = "", member: str = "") -> Iterator[str]:
    """Where a schema says no more than that an object stands there."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for kind in schema.get("anyOf", ()):
        yield from untold(document, kind, place, member)
    is_map = isinstance(schema.get("additionalProperties"), dict)
    if "object" in schema.get("type", ()) and not schema.get("properties") and not is_map and member not in MAPS:
        yield place
    for name, part in schema.get("properties", {}).items():
        yield from untold(document, part, f"{place}/{name}", name)
    if "items" in schema:
        yield from untold(document, schema["items"], f"{place}/*", member)


def test_every_body_and_every_answer_has_a_schema_and_an_example_that_fits_it(told: tuple[Any, Story]) -> None:
    document, _ = told
    without = {name for name, media in bodies(document) if not media.get("schema") or "example" not in media}
    assert without == set(), "tell the route in tests/process/every_call.py and write the examples anew"
    vague = {f"{name}{place}" for name, media in bodies(document) for place in untold(document, media["schema"])}
    assert vague == set()
    wrong = {
        name: found
        for name, media in bodies(document)
        if (found := faults(document, media["schema"], media["example"]))
    }
    assert wrong == {}


def test_every_call_of_the_contract_is_made_and_every_answer_fits_its_schema(told: tuple[Any, Story]) -> None:
    document, story = told
    declared = dict(openapi.operations(document))
    made = {name for name, *_ in story.calls}
    assert set(declared) - made - set(SAME_VIEW) == set(), "tell these routes in tests/process/every_call.py"
    wrong = {}
    for name, sent, status, found in story.calls:
        operation = declared[name]
        assert str(status) in operation["responses"], f"{name} answers {status}, which is not declared"
        media = operation["responses"][str(status)].get("content", {}).get(openapi.JSON)
        if found is None or media is None:
            assert found is None or media is not None, f"{name} {status} answers JSON that is not declared"
            continue
        if bad := faults(document, media["schema"], found):
            wrong[f"{name} {status}"] = bad
        body = operation.get("requestBody", {}).get("content", {}).get(openapi.JSON)
        if sent is not None and (bad := faults(document, body["schema"], sent)):
            wrong[f"{name} request"] = bad
    assert wrong == {}


def test_every_list_takes_limit_and_cursor(told: tuple[Any, Story]) -> None:
    document, story = told
    lists = {name for name, _, _, found in story.calls if isinstance(found, dict) and "next_cursor" in found}
    lists -= {"POST /v1/replay"}  # by its body, as the contract has it
    assert len(lists) > 15
    told_whole = {
        name for name, _, _, found in story.calls if isinstance(found, dict) and isinstance(found.get("items"), list)
    }
    assert told_whole - lists == {"POST /v1/log/anchors"}, "this one is no list, it tells what was just done"
    for name, operation in openapi.operations(document):
        if name in lists:
            parameters = {one["name"] for one in operation.get("parameters", ())}
            assert {"limit", "cursor"} <= parameters, name


_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d.*")
_OURS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_THEIRS = frozenset({"body", "observed", "example", "entity", "activity"})
"""Members that hold what a caller sent, or another standard's own form."""


def times(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, member in value.items():
            if name not in _THEIRS:
                yield from times(member, f"{path}/{name}")
    elif isinstance(value, list):
        for item in value:
            yield from times(item, f"{path}/*")
    elif isinstance(value, str) and _TIME.fullmatch(value):
        yield path, value


def test_every_time_goes_out_in_utc_with_microseconds(told: tuple[Any, Story]) -> None:
    _, story = told
    found = [(f"{name}{path}", text) for name, _, _, answer in story.calls for path, text in times(answer)]
    assert len(found) > 200
    assert {place: text for place, text in found if not _OURS.fullmatch(text)} == {}


def test_no_parameter_of_a_path_or_query_names_a_person(told: tuple[Any, Story]) -> None:
    document, _ = told
    for name, operation in openapi.operations(document):
        parameters = {one["name"] for one in operation.get("parameters", ())}
        assert not parameters & {"subject", "subjects", "identifier", "stream", "locator"}, name


UNKNOWN = {
    "consent_id": "cns_0000000000000000",
    "name": "nothing",
    "token_id": "0" * 32,
    "artifact": "art_0000000000000000",
    "stream_id": "str_0000000000000000",
    "run_id": "swp_0000000000000000",
    "merge_id": "mrg_" + "0" * 32,
    "review_id": "scr_" + "0" * 32,
    "registration_review_id": "rev_" + "0" * 16,
    "entry_id": "01a22987-0f40-77cc-b1d9-1b5f5a282c26",
    "path": "0/999",
    "action_id": "nobody/did/this",
    "request_id": "req_0000000000000000",
    "copy": "1",
    "hold_id": "hold_0000000000000000",
    "disposition_id": "dsp_0000000000000000",
    "verification_id": "0" * 32,
    "task_id": "ctk_999",
}
FORBIDDEN = 403
DESKS = ("legal", "auditor", "platform", "writer", "admin")


def test_what_a_path_names_and_nobody_knows_is_404_wherever_it_stands(told: tuple[Any, Story]) -> None:
    document, story = told
    asked = 0
    for name, operation in openapi.operations(document):
        method, path = name.split(" ", 1)
        if "{" not in path or method == "PUT" or path.endswith("/preview"):
            continue
        body = operation.get("requestBody", {}).get("content", {}).get(openapi.JSON, {}).get("example")
        place = path.format(**UNKNOWN)
        answers = (story.status(desk, method, place, body, **{"X-Purpose": "dispute;case=7"}) for desk in DESKS)
        answer = next(one for one in answers if one.status_code != FORBIDDEN)
        asked += 1
        assert answer.status_code == 404, (name, answer.status_code, answer.text)
        assert answer.json()["detail"], name
    assert asked > 50


def test_the_examples_hold_no_secret_and_no_place_of_a_machine() -> None:
    text = openapi.EXAMPLES.read_text(encoding="utf-8")
    assert re.findall(r"mun_[A-Za-z0-9_-]{20,}|/(?:tmp|work|home|root)/", text) == []

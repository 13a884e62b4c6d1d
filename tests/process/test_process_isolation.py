"""Two tenants with the same ids, places and people: every endpoint of the OpenAPI document, tried by one on the other.

The document is read from the running service, so that a new endpoint is tried as soon as it exists: a path parameter
that nobody told this test about fails it. Each endpoint is called by each role of the second tenant, once with names
that both tenants have and once with every id that only the first one has. Nothing of the first may show, count or
change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from erasure.models import ConnectorTask
from infra.migrations.schema import METADATA
from infra.migrations.write_next import tenant_columns
from muniment.errors import ApiProblem
from muniment.registry import Client
from registry.classes import STARTER_CLASSES
from registry.ids import new_id
from tests.process.conftest import Desk, new_desk

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

PUBLIC = {"/healthz", "/readyz", "/metrics", "/problems/{name}"}
OPERATORS = {"/v1/tenants"}
"""For the admin of the first tenant of a deployment only; refused to everybody here."""
ENTRY = "019e2c1d-7a5b-7c60-8000-00000000000{n}"
PURPOSE = "dispute;case=isolation"
RANDOM = re.compile(r"[0-9a-f]{16,}|[a-z]{2,5}_[0-9A-Za-z-]{12,}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}")
NOBODYS = {"0" * 32, "0" * 64}
CANARY = "only-the-first-tenant-knows-this"


@dataclass(slots=True)
class House:
    """One tenant with one of everything, and the ids the service gave to it."""

    desk: Desk
    ids: dict[str, str] = field(default_factory=dict)

    def fill(self, canary: str) -> None:
        """The same calls for both tenants; only the canary differs."""
        call = self.desk.call
        folder = self.desk.running.settings.data.parent / "stores" / self.desk.tenant
        folder.mkdir(parents=True)
        call("platform", "PUT", "/v1/stores/files", {"kind": "files", "config": {"root": str(folder)}})
        call("platform", "PUT", "/v1/kinds/order.placed", {"description": canary})
        call("platform", "PUT", "/v1/machines/refunds", {"phases": ["a", "b"], "transitions": [["a", "b"]],
                                                         "tools": {"a": ["look"]}})  # fmt: skip
        entries = [
            {"id": ENTRY.format(n=n), "stream": "conv_same", "kind": "turn.user", "at": "2026-05-04T10:00:00Z",
             "data_class": "transcript", "subjects": ["user:same"], "run": "run_same", "body": {"text": canary}}
            for n in (1, 2)
        ]  # fmt: skip
        stored = call("writer", "POST", "/v1/record/entries", {"entries": entries})
        assert [one["status"] for one in stored["results"]] == ["stored", "stored"]
        items = [
            {"id": "art_same", "data_class": "memory", "store": "files", "locator": {"path": "same.txt"},
             "subjects": ["user:same", "email:same@example.org"], "source_ref": canary,
             "scope": {"conversation": "conv_same"}},
            {"data_class": "memory", "store": "files", "locator": {"path": "two.txt"}, "sources": ["art_same"]},
        ]  # fmt: skip
        made = call("writer", "POST", "/v1/artifacts", {"artifacts": items})["results"]
        assert [one["status"] for one in made] == ["created", "created"]
        self.ids["artifact"] = made[1]["id"]
        stream = {"stream": "conv_same", "owner": "user:same", "data_class": "transcript", "machine": "refunds"}
        self.ids["stream_id"] = call("writer", "POST", "/v1/streams", stream)["id"]
        self.ids["run_id"] = call("writer", "POST", "/v1/runs", {"run": "run_same", "stream": "conv_same",
                                                                 "status": "active"})["id"]  # fmt: skip
        action = {"action_id": "act_same", "kind": "refund", "stream": "conv_same", "run": "run_same", "lease": "PT5M",
                  "proposal_digest": "ab" * 32}  # fmt: skip
        call("writer", "POST", "/v1/actions", action)
        request = {"right": "erasure", "subjects": ["user:same"], "regulation": "gdpr", "timezone": "Europe/Berlin",
                   "note": canary}  # fmt: skip
        self.ids["request_id"] = call("legal", "POST", "/v1/requests", request)["id"]
        held = {"name": "case", "matter": canary, "reason": canary, "selector": {"subjects": ["user:held"]}}
        self.ids["hold_id"] = call("legal", "POST", "/v1/holds", held)["id"]
        self.ids["merge_id"] = call("legal", "POST", "/v1/subjects:merge", {
            "subjects": ["user:same", "email:same@example.org"], "reason": canary})["id"]  # fmt: skip
        self.ids["review_id"] = call("legal", "POST", "/v1/subjects:scope-change", {
            "subject": "email:same@example.org", "change": "role", "detail": canary})["id"]  # fmt: skip
        keep = {"keep": "P90D", "from": "consent", "latest": "P2Y", "then": "erase"}
        call("platform", "PUT", "/v1/data-classes/voice", {**STARTER_CLASSES["transcript"], "retention": keep})
        consent = {"subject": "user:same", "data_classes": ["voice"], "words": canary}
        self.ids["consent_id"] = call("legal", "POST", "/v1/consents", consent)["id"]
        self.ids["sweep"] = call("legal", "POST", "/v1/retention/runs", {"dry_run": True})["id"]
        self.ids["verification_id"] = call("auditor", "POST", "/v1/audit/verifications", {"sample": 1})["id"]
        token = call("admin", "POST", "/v1/tokens", {"principal": "bot", "roles": ["writer"]})
        self.ids["token_id"] = token["id"]
        with Client(self.desk.running.url, token["token"]) as bot:
            repeat = {**items[0], "expires_at": "2031-01-01T00:00:00Z"}
            [asked] = bot.request("POST", "/v1/artifacts", {"artifacts": [repeat]})["results"]
        assert asked["status"] == "review"
        [review] = call("legal", "GET", "/v1/registration-reviews")["items"]
        self.ids["registration_review_id"] = review["id"]
        self.ids["task_id"] = self._task()

    def _task(self) -> str:
        """A task for an agent's process, as an erasure leaves it."""
        services, now = self.desk.running.services, datetime.now(UTC)
        tenant_id = next(one.tenant_id for one in services.tenants() if one.tenant == self.desk.tenant)
        task_id = f"ctk_{new_id(now)}"
        with services.database.transaction(tenant_id) as session:
            session.add(
                ConnectorTask(
                    tenant_id=tenant_id, task_id=task_id, owner=self.ids["request_id"], store="files", work="erase",
                    level="L2", copies=[1], created_at=now, due_at=now + timedelta(days=3),
                )
            )  # fmt: skip
        return task_id

    def view(self) -> dict[str, Any]:
        """What this tenant sees of itself; reading it again must give the same."""
        call = self.desk.call
        reads: dict[str, Any] = {}
        for role, path in (
            ("platform", "/v1/data-classes?limit=1000"), ("platform", "/v1/stores"), ("platform", "/v1/inventory"),
            ("platform", "/v1/kinds"), ("platform", "/v1/machines/refunds"), ("legal", "/v1/requests"),
            ("legal", f"/v1/requests/{self.ids['request_id']}"), ("legal", "/v1/holds"),
            ("legal", "/v1/subjects/merges"), ("legal", f"/v1/scope-reviews/{self.ids['review_id']}"),
            ("legal", "/v1/registration-reviews?state=all"),
            ("legal", "/v1/dispositions"), ("legal", "/v1/retention/runs"), ("admin", "/v1/tokens"),
            ("writer", f"/v1/artifacts/{self.ids['artifact']}"), ("writer", "/v1/artifacts/art_same"),
            ("writer", f"/v1/streams/{self.ids['stream_id']}"), ("writer", f"/v1/runs/{self.ids['run_id']}"),
            ("writer", "/v1/actions/act_same"), ("platform", "/v1/settings/controller"),
        ):  # fmt: skip
            reads[path] = call(role, "GET", path)
        for role, path, body in (
            ("legal", "/v1/artifacts:search", {}),
            ("legal", "/v1/subjects:lookup", {"subjects": ["user:same", "email:same@example.org", "user:held"]}),
            ("legal", "/v1/subjects:copies", {"subjects": ["user:same"]}),
            ("auditor", "/v1/record:search", {}),
        ):
            reads[path] = call(role, "POST", path, body)
        # Reading content is an entry of the service's own class, so that looking changes what is counted there.
        inventory = reads["/v1/inventory"]
        inventory["classes"] = [one for one in inventory["classes"] if one["name"] != "skeleton"]
        replay = call("auditor", "POST", "/v1/replay", {"stream": "conv_same"}, purpose=PURPOSE)
        reads["replay"] = [(one["id"], one.get("body"), one["integrity"]) for one in replay["entries"]]
        return json.loads(json.dumps(reads, default=str))  # type: ignore[no-any-return]


def secrets_of(house: House, view: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Everything random in one tenant's answers that the other's do not have too, and its own names."""
    mine, theirs = json.dumps(view), json.dumps(other)
    found = set(RANDOM.findall(mine)) - set(RANDOM.findall(theirs)) - NOBODYS
    found |= {value for name, value in house.ids.items() if value not in theirs and name != "none"}
    return found | {CANARY, house.desk.tenant, *house.desk.tokens.values()}


@dataclass(slots=True, kw_only=True)
class Operation:
    """One operation of the document."""

    method: str
    path: str
    parameters: list[dict[str, Any]]
    body: Any


def operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            content = one.get("requestBody", {}).get("content", {}).get("application/json")
            made = None if content is None else made_up(content, content.get("schema", {}), document)
            body = BODIES.get(f"{method.upper()} {path}", made)
            yield Operation(method=method.upper(), path=path, parameters=one.get("parameters", []), body=body)


BODIES: dict[str, Any] = {
    "PATCH /v1/streams/{stream_id}": {"channel": "mail"},
    "PATCH /v1/runs/{run_id}": {"status": "completed"},
    "POST /v1/connector-tasks/{task_id}": {"claim": "c", "results": []},
}
"""Where the document's example cannot be right for what the address names."""
KNOWN: dict[str, Any] = {
    "subject": "user:same", "subjects": ["user:same"], "stream": "conv_same", "run": "run_same", "store": "files",
    "identifier": "user:same", "action_id": "act_same", "data_class": "memory", "purpose": "support",
    "name": "files", "plan_hash": "0" * 64, "artifact": "art_same", "principal": "p",
}  # fmt: skip


def made_up(content: Mapping[str, Any], schema: Mapping[str, Any], document: Mapping[str, Any]) -> Any:
    """A body for an operation: its example where it has one, else from its schema; names are those both have."""
    if "examples" in content:
        return next(iter(content["examples"].values()))["value"]
    if "example" in content:
        return content["example"]
    if "$ref" in schema:
        return made_up({}, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    if "anyOf" in schema:
        return made_up({}, schema["anyOf"][0], document)
    if schema.get("examples"):
        example = schema["examples"][0]
        if isinstance(example, dict):
            return {key: KNOWN.get(key, value) for key, value in example.items()}
        return example
    return _from_type(schema, document)


def _from_type(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Any:
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kind = schema.get("type")
    if kind == "object":
        wanted = schema.get("required", [])
        return {
            name: KNOWN[name] if name in KNOWN else made_up({}, one, document)
            for name, one in schema.get("properties", {}).items()
            if name in wanted
        } or ({"art_same": "keep"} if schema.get("minProperties") else {})
    if kind == "array":
        return [made_up({}, schema.get("items", {}), document)]
    if schema.get("format") == "date-time":
        return "2026-05-04T10:00:00Z"
    return {"string": "text", "integer": 1, "number": 0.5, "boolean": True}.get(kind or "")


# Path parameters by name, or by path and name: ids only the first tenant has, and names that both have.
def values_of(path: str, name: str, first: House) -> tuple[list[str], list[str]]:
    ids = first.ids
    own: dict[str, list[str]] = {
        "token_id": [ids["token_id"]], "stream_id": [ids["stream_id"]], "request_id": [ids["request_id"]],
        "hold_id": [ids["hold_id"]], "merge_id": [ids["merge_id"]], "review_id": [ids["review_id"]],
        "verification_id": [ids["verification_id"]], "artifact": [ids["artifact"]],
        "registration_review_id": [ids["registration_review_id"]], "consent_id": [ids["consent_id"]],
        "run_id": [ids["sweep"]] if "/retention/" in path else [ids["run_id"]],
        "disposition_id": ["dsp_" + "0" * 32], "task_id": [ids["task_id"]],
    }  # fmt: skip
    both: dict[str, list[str]] = {
        "name": ["refunds" if "/machines/" in path else "order.placed" if "/kinds/" in path else
                 "memory" if "/data-classes/" in path else "files"],
        "entry_id": [ENTRY.format(n=1)], "action_id": ["act_same"], "artifact": ["art_same"], "copy": ["1"],
        "path": ["0/000"],
    }  # fmt: skip
    assert name in own or name in both, f"{path}: tell this test what {{{name}}} names"
    return own.get(name, []), both.get(name, [])


def targets(one: Operation, first: House) -> list[tuple[str, bool]]:
    """The addresses to try, and whether each names something that only the first tenant has."""
    found = [(one.path, False)]
    for parameter in one.parameters:
        if parameter["in"] != "path":
            continue
        name = parameter["name"]
        own, both = values_of(one.path, name, first)
        found = [
            (path.replace(f"{{{name}}}", value), foreign or value in own)
            for path, foreign in found
            for value in (*own, *both)
        ]
    query = "&".join(f"{p['name']}=1" for p in one.parameters if p["in"] == "query" and p.get("required"))
    return [(f"{path}?{query}" if query else path, foreign) for path, foreign in found]


@pytest.fixture
def houses(running: Any) -> Iterator[tuple[House, House]]:
    pair = (House(new_desk(running)), House(new_desk(running)))
    pair[0].fill(CANARY)
    pair[1].fill("what the second one wrote")
    yield pair
    for house in pair:
        house.desk.close()


def test_no_endpoint_shows_counts_or_changes_anything_of_another_tenant(houses: tuple[House, House]) -> None:
    first, second = houses
    before = first.view()
    secrets = secrets_of(first, before, second.view())
    assert len(secrets) > 25
    document = httpx.get(f"{first.desk.running.url}/openapi.json").json()
    reached: dict[str, set[int]] = {}
    # What both have goes last: deleting a name of one's own must not hide what an earlier call would have shown.
    calls = [
        (one, path, foreign)
        for one in sorted(operations(document), key=lambda one: one.method == "DELETE")
        if one.path not in PUBLIC
        for path, foreign in targets(one, first)
    ]
    roles = ("platform", "legal", "legal2", "auditor", "writer", "admin")
    with httpx.Client(base_url=first.desk.running.url, timeout=30) as client:
        for one, path, foreign in sorted(calls, key=lambda call: not call[2]):
            for role in roles:
                headers = {"Authorization": f"Bearer {second.desk.tokens[role]}", "X-Purpose": PURPOSE}
                answer = client.request(
                    one.method, path, headers=headers, **({} if one.body is None else {"json": one.body})
                )
                where = f"{one.method} {path} as {role}: {answer.status_code}"
                assert answer.status_code != httpx.codes.INTERNAL_SERVER_ERROR, where
                sent = path + json.dumps(one.body)
                seen = answer.text + json.dumps(dict(answer.headers))
                leaked = {secret for secret in secrets if secret in seen and secret not in sent}
                assert not leaked, f"{where} shows {sorted(leaked)}"
                reached.setdefault(f"{one.method} {one.path}", set()).add(answer.status_code)
                if foreign and answer.status_code not in (401, 403):
                    # What is not built is refused before anything is looked up.
                    unbuilt = '"/problems/not-built"' in answer.text
                    assert answer.status_code == httpx.codes.NOT_FOUND or unbuilt, f"{where}: {answer.text[:300]}"
    forbidden = [name for name, statuses in reached.items() if statuses <= {401, 403}]
    assert {name.split(" ")[1] for name in forbidden} <= OPERATORS, forbidden
    assert len(reached) == sum(one.path not in PUBLIC for one in operations(document))
    first.desk.close()
    first.desk.clients.clear()  # the server ended connections that were silent for so long
    assert first.view() == before


def test_a_token_speaks_for_its_own_tenant_whatever_the_body_says(houses: tuple[House, House]) -> None:
    first, second = houses
    for field_name in ("tenant", "tenant_id", "log_id"):
        with pytest.raises(ApiProblem) as refused:
            second.desk.call("legal", "POST", "/v1/subjects:lookup", {"subjects": ["user:same"], field_name: "x"})
        assert refused.value.status == httpx.codes.UNPROCESSABLE_ENTITY
    sent = {"artifacts": [{"data_class": "memory", "store": "files", "locator": {"path": "x"},
                           "sources": [first.ids["artifact"]]}]}  # fmt: skip
    [result] = second.desk.call("writer", "POST", "/v1/artifacts", sent)["results"]
    assert result["problem"]["type"] == "/problems/unknown-source"


def test_on_postgresql_a_query_that_forgets_the_tenant_meets_only_its_own_rows(houses: tuple[House, House]) -> None:
    first, second = houses
    database = first.desk.running.services.database
    if database.on_sqlite:
        pytest.skip("SQLite has no row-level security; there every query names its tenant")
    tenants = {one.tenant: one.tenant_id for one in first.desk.running.services.tenants()}
    own, other = tenants[second.desk.tenant], tenants[first.desk.tenant]
    seen = 0
    for name, column in tenant_columns().items():
        table = METADATA.tables[name]
        with database.transaction(own) as session:
            connection = session.connection()
            owners = set(connection.execute(sa.select(table.c[column]).distinct()).scalars())
            assert owners <= {own}, name
            seen += bool(owners)
            count = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar()
            assert connection.execute(sa.delete(table).where(table.c[column] == other)).rowcount == 0
            changed = connection.execute(sa.update(table).values({column: table.c[column]})).rowcount
            assert changed == count, name
            session.rollback()
    assert seen > 20

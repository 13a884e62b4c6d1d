"""`Idempotency-Key` runs a write once; cursors stay stable under inserts; tenants do not see each other."""

import threading
from datetime import timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from api import idempotency
from api.errors import Problem
from api.models import IdempotencyRow

TOKEN = {"principal": "bot", "roles": ["writer"]}


def mint(client: httpx.Client, key: str, body: dict[str, Any] | None = None) -> httpx.Response:
    return client.post("/v1/tokens", json=body or TOKEN, headers={"Idempotency-Key": key})


def test_the_same_key_and_body_replays_the_answer(service: Any) -> None:
    client = service.role("admin")
    first = mint(client, "k1")
    again = mint(client, "k1")
    assert first.status_code == again.status_code == 201
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert sum(item["principal"] == "bot" for item in client.get("/v1/tokens").json()["items"]) == 1


def test_the_same_key_with_another_body_is_409(service: Any) -> None:
    client = service.role("admin")
    mint(client, "k2")
    answer = mint(client, "k2", {"principal": "someone-else", "roles": ["writer"]})
    assert answer.status_code == 409
    assert answer.json()["type"] == "/problems/idempotency-conflict"


def test_the_key_belongs_to_one_token_and_one_path(service: Any) -> None:
    mint(service.role("admin"), "k3")
    assert mint(service.client(service.other["admin"]), "k3").status_code == 201
    spec = {"description": "x"}
    answer = service.role("platform").put("/v1/kinds/a.b", json=spec, headers={"Idempotency-Key": "k3"})
    assert answer.status_code == 201


def test_a_refusal_is_replayed_and_a_forbidden_write_is_not_kept(service: Any) -> None:
    bad = {"principal": "", "roles": ["writer"]}
    assert mint(service.role("admin"), "k4", bad).status_code == 422
    assert mint(service.role("admin"), "k4", bad).headers["idempotency-replayed"] == "true"
    assert mint(service.role("writer"), "k5").status_code == 403
    assert "idempotency-replayed" not in mint(service.role("writer"), "k5").headers


def test_two_at_once_run_one(service: Any) -> None:
    answers: list[int] = []

    def write() -> None:
        with httpx.Client(
            base_url=service.url, headers={"Authorization": f"Bearer {service.tokens['admin']}"}, timeout=30
        ) as client:
            body = {"principal": "racer", "roles": ["writer"]}
            answers.append(mint(client, "race", body).status_code)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {201, 409}
    assert 201 in answers
    items = service.role("admin").get("/v1/tokens?limit=1000").json()["items"]
    assert sum(item["principal"] == "racer" for item in items) == 1


def test_a_write_that_was_slow_does_not_give_away_the_key_of_its_retry(service: Any) -> None:
    database, begun = service.services.database, service.services.clock.now()
    attempt = idempotency.attempt_of(
        tenant_id=service.services.tenants()[0].tenant_id, token="t", target="POST /slow?", key="k", body=b"{}"
    )
    later = begun + idempotency.STALE
    assert idempotency.begin(database, attempt, begun) is None
    assert idempotency.begin(database, attempt, later) is None
    failed = idempotency.Kept(status=503, media_type="", body=b"")
    idempotency.finish(database, attempt, failed, begun)
    with pytest.raises(Problem, match="in-progress"):
        idempotency.begin(database, attempt, later)
    done = idempotency.Kept(status=201, media_type="application/json", body=b"{}")
    idempotency.finish(database, attempt, done, later)
    assert idempotency.begin(database, attempt, later) == done


def test_a_key_that_is_no_key_is_refused(service: Any) -> None:
    assert mint(service.role("admin"), "x" * 256).status_code == 422


def test_the_kept_answer_is_unreadable_in_the_database_and_ends_after_a_day(service: Any) -> None:
    secret = mint(service.role("admin"), "k6", {"principal": "sealed-one", "roles": ["writer"]}).json()["token"]
    tenant = next(acting for acting in service.services.tenants() if acting.tenant == "default")
    with service.services.database.transaction(tenant.tenant_id, write=False) as session:
        bodies = session.scalars(sa.select(IdempotencyRow.body)).all()  # type: ignore[call-overload]
    assert bodies
    assert not any(secret.encode() in (body or b"") or b"sealed-one" in (body or b"") for body in bodies)
    later = service.services.clock.now() + timedelta(hours=25)
    idempotency.expire(service.services.database, tenant.tenant_id, later)
    assert "idempotency-replayed" not in mint(service.role("admin"), "k1").headers


def test_pages_skip_and_repeat_nothing_while_others_insert(service: Any) -> None:
    client = service.client(service.other["admin"])
    for number in range(5):
        client.post("/v1/tokens", json={"principal": f"p{number}", "roles": ["writer"]})
    before = [item["id"] for item in client.get("/v1/tokens?limit=1000").json()["items"]]
    seen: list[str] = []
    cursor = ""
    while True:
        page = client.get(f"/v1/tokens?limit=2{cursor}").json()
        seen += [item["id"] for item in page["items"]]
        assert len(page["items"]) <= 2
        if page["next_cursor"] is None:
            break
        client.post("/v1/tokens", json={"principal": "late", "roles": ["writer"]}) if len(seen) < 5 else None
        cursor = f"&cursor={page['next_cursor']}"
    assert seen[: len(before)] == before
    assert len(seen) == len(set(seen))


def test_a_cursor_or_limit_of_somebody_elses_making_is_422(service: Any) -> None:
    client = service.role("admin")
    for query in ("cursor=abc", "cursor=!!!", "cursor=WzFd", "limit=0", "limit=1001", "limit=x"):
        assert client.get(f"/v1/tokens?{query}").status_code == 422


def test_a_token_of_another_tenant_sees_nothing_of_the_first(service: Any) -> None:
    mine = service.role("platform").put("/v1/kinds/only.mine", json={"description": "secret plan"})
    assert mine.status_code == 201
    kinds = service.client(service.other["platform"]).get("/v1/kinds").json()["items"]
    assert "only.mine" not in {item["name"] for item in kinds}
    token = service.role("admin").get("/v1/tokens").json()["items"][0]["id"]
    assert service.client(service.other["admin"]).delete(f"/v1/tokens/{token}").status_code == 404


def test_a_revoked_token_is_refused_at_once(service: Any) -> None:
    admin = service.role("admin")
    made = admin.post("/v1/tokens", json={"principal": "brief", "roles": ["platform"]}).json()
    brief = service.client(made["token"])
    assert brief.get("/v1/data-classes").status_code == 200
    assert admin.delete(f"/v1/tokens/{made['id']}").status_code == 204
    assert brief.get("/v1/data-classes").status_code == 401


def test_a_token_is_revoked_once_whoever_does_it_at_the_same_moment(service: Any) -> None:
    # On PostgreSQL each of them did it, and each was an event of the record.
    name = f"/v1/tokens/{service.role('admin').post('/v1/tokens', json=TOKEN).json()['id']}"
    start, answers = threading.Barrier(6), []

    def revoke() -> None:
        with httpx.Client(base_url=service.url, timeout=30) as client:
            start.wait()
            headers = {"Authorization": f"Bearer {service.tokens['admin']}"}
            answers.append(client.delete(name, headers=headers).status_code)

    threads = [threading.Thread(target=revoke) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [204, 404, 404, 404, 404, 404]


def test_only_the_first_tenants_admin_makes_tenants(service: Any) -> None:
    assert service.client(service.other["admin"]).post("/v1/tenants", json={"name": "third"}).status_code == 403
    made = service.role("admin").post("/v1/tenants", json={"name": "third"})
    assert made.status_code == 201
    assert set(made.json()["tokens"]) == {"writer", "platform", "legal", "legal2", "auditor", "admin"}
    assert service.role("admin").post("/v1/tenants", json={"name": "third"}).status_code == 409
    assert service.client(made.json()["tokens"]["platform"]).get("/v1/data-classes").status_code == 200

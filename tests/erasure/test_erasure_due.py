"""What a worker looks at beside the steps of the work, and what it takes for work that was done."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from connectors.memory import Faults
from erasure import due, worker
from erasure.errors import UnknownRequest
from erasure.leases import Lease, leased
from erasure.models import RequestRow
from erasure.worker import run_due
from tests import schema
from tests.erasure.conftest import ADA, BOB, World

STEPS = ("execute", "confirm", "_complete")


def approved(world: World, *subjects: str) -> str:
    request = world.ask(*subjects)
    world.plan(request)
    world.approve(request)
    return request


def begun_beside(world: World, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    """How many transactions a work begins outside the steps of a request."""
    within: list[str] = []
    begun: list[int] = []

    def is_step(name: str) -> Callable[..., Any]:
        step = getattr(worker, name)

        def wrapped(*given: Any) -> Any:
            within.append(name)
            try:
                return step(*given)
            finally:
                within.pop()

        return wrapped

    engine = world.services.database.engine

    def count(_: object) -> None:
        if not within:
            begun.append(1)

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(worker, name, is_step(name))
        sa.event.listen(engine, "begin", count)
        work()
        sa.event.remove(engine, "begin", count)
    return len(begun)


def test_beside_its_steps_a_request_takes_three_transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # There were fifteen, each of them four or more answers of a server: a quarter of what 10,000 copies took there.
    world.note("n1", "Ada in the database")
    request = approved(world)
    # What is due, the lease, and its end.
    assert begun_beside(world, monkeypatch, lambda: run_due(world.parts, world.tenant, world.now)) == 3
    assert world.state(request) == "completed"


def test_a_request_that_waits_for_somebody_does_not_keep_the_worker_busy(world: World) -> None:
    # It counted as work done, and who asks again as long as there was some never paused: for days, of an agent's.
    world.store("memories", "agent", {"owner_field": "owner"})
    world.register({"data_class": "note", "store": "memories", "locator": {"id": "m1"}, "subjects": [ADA]})
    request = approved(world)
    assert run_due(world.parts, world.tenant, world.now) == 1
    assert world.state(request) == "verifying"
    assert run_due(world.parts, world.tenant, world.now) == 0


def test_one_that_ended_with_exceptions_is_through_once_its_final_certificate_is_there(world: World) -> None:
    world.memory_store("odd", Faults(refuses=frozenset({"a"})))
    world.keep_in_memory("odd", "a", "Bob in a store that refuses it", owner=BOB)
    request = world.erase(BOB)
    assert world.state(request) == "partially_failed"
    world.desk.accept_exceptions(world.acting("dan"), request, reason="the vendor is gone", now=world.now)
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        found = due.look(session, world.parts.vault, world.tenant.tenant_id, world.now)
    assert found == due.Due(uncertified=(request,))
    world.work(1)
    world.now += timedelta(days=2)
    world.services.keks.turn(world.now, force=True)
    world.work(2)
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        assert session.get_one(RequestRow, (world.tenant.tenant_id, request)).details["final_issued"]
        assert due.look(session, world.parts.vault, world.tenant.tenant_id, world.now) == due.Due()


def test_a_paused_request_is_not_due(world: World) -> None:
    world.note("n1", "Ada in the database")
    request = approved(world)
    tenant_id = world.tenant.tenant_id
    with world.parts.transactions(tenant_id) as session:
        assert due.requests(session, tenant_id, world.now) == (request,)
        row = session.get_one(RequestRow, (tenant_id, request))
        row.details = {**row.details, "paused_at": world.now.isoformat()}
        session.add(row)
        session.flush()
        assert due.requests(session, tenant_id, world.now) == ()


def test_a_lease_shows_the_request_as_it_was_when_it_was_taken_and_when_it_was_let_go(world: World) -> None:
    world.note("n1", "Ada in the database")
    request = approved(world)
    tenant_id = world.tenant.tenant_id
    with leased(world.parts, tenant_id, request, "one", world.now) as lease:
        assert lease is not None
        assert (lease.request.state, lease.request.lease_owner) == ("approved", "one")
        with leased(world.parts, tenant_id, request, "other", world.now) as second:
            assert second is None
        with world.parts.transactions(tenant_id) as session:
            session.get_one(RequestRow, (tenant_id, request)).state = "executing"
        assert lease.request.state == "approved"
    assert (lease.request.state, lease.request.lease_owner) == ("executing", None)


def test_a_lease_of_no_request_shows_none(world: World) -> None:
    lease = Lease(world.parts, world.tenant.tenant_id, "er_unknown", "one", world.now)
    assert not lease.take()
    with pytest.raises(UnknownRequest):
        lease.request  # noqa: B018 - it raises


@pytest.mark.postgres
def test_a_lease_is_on_the_disk_before_its_work_begins_and_only_its_end_is_not_waited_for(
    make_postgres_database: Callable[..., str], tmp_path: Path
) -> None:
    """A server that forgot a lease in a crash would give the work to a second worker; one that forgot its end waits."""
    world = World(tmp_path, make_postgres_database(schema.prepare))
    world.note("n1", "Ada in the database")
    request = world.ask()
    engine, waited = world.services.database.engine, []

    @sa.event.listens_for(engine, "begin")
    def wait(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")  # servers of tests never wait

    @sa.event.listens_for(engine, "commit")
    def keep(connection: sa.Connection) -> None:
        waited.append(connection.exec_driver_sql("SHOW synchronous_commit").scalar_one())

    lease = Lease(world.parts, world.tenant.tenant_id, request, "one", world.now)
    assert lease.take()
    assert lease.renew()
    lease.release()
    assert waited == ["on", "on", "off"]
    assert lease.request.lease_owner is None
    world.close()


def ended(world: World) -> None:
    """Requests of six kinds that are over, numbered."""
    kinds: tuple[tuple[str, datetime | None, dict[str, Any]], ...] = (
        ("completed_with_retained", None, {}),
        ("completed_with_retained", None, {"final_issued": True}),
        ("completed_with_retained", world.now, {"final_issued": True}),
        ("completed_with_retained", world.now, {}),
        ("completed_with_exceptions", None, {"final_issued": True}),
        ("completed_with_exceptions", None, {}),
    )
    with world.parts.transactions(world.tenant.tenant_id) as session:
        for number, (state, due_at, details) in enumerate(kinds):
            row = RequestRow(
                tenant_id=world.tenant.tenant_id, request_id=f"req_{number}", request_no=number, right="erasure",
                regulation="gdpr", timezone="UTC", state=state, received_at=world.now, due_at=world.now,
                created_by="carol", created_at=world.now, final_due_at=due_at, details=details,
            )  # fmt: skip
            session.add(row)


def look(world: World) -> due.Due:
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        return due.look(session, world.parts.vault, world.tenant.tenant_id, world.now)


def test_what_is_through_is_not_due_and_one_that_waits_for_an_end_says_that_some_do(world: World) -> None:
    assert look(world) == due.Due()
    ended(world)
    assert look(world) == due.Due(may_wake=True, uncertified=("req_5",), final=("req_3",))


@pytest.mark.postgres
def test_postgresql_says_the_same_of_what_is_due(make_postgres_database: Callable[..., str], tmp_path: Path) -> None:
    world = World(tmp_path, make_postgres_database(schema.prepare))
    ended(world)
    assert look(world) == due.Due(may_wake=True, uncertified=("req_5",), final=("req_3",))
    world.close()

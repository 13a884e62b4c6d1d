"""The same registry on a real PostgreSQL, and writers that meet there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from registry import artifacts, declared, ids, memory_use, scope_reviews, streams, subjects
from registry.errors import Conflict, MemoryGone
from registry.identifiers import parse_subject
from registry.inventory import inventory
from registry.keyed import hold_writer
from registry.models import Artifact, Subject

pytestmark = pytest.mark.postgres


@pytest.fixture
def house(make_house: Any, tmp_path: Path, postgres_database: str) -> Iterator[Any]:
    """A deployment whose tables are on PostgreSQL."""
    built = make_house(tmp_path, postgres_database)
    yield built
    built.engine.dispose()


def test_items_are_registered_found_traced_and_buried(house: Any) -> None:
    source = {"store": "app", "locator": {"table": "memories", "key": {"id": 1}}}
    first, second = house.register(
        [house.item(1), house.item(2, subjects=None, sources=[source], activity={"kind": "summarise"})]
    )
    tenant = house.alice.tenant_id
    with house.session() as session:
        found, _ = artifacts.search(session, house.vault, house.alice, {"subject": "user:ada"})
        assert [view["id"] for view in found] == [first["id"], second["id"]]
        assert len(artifacts.lineage(session, tenant, second["id"])["nodes"]) == 2
        [ada] = subjects.resolve(session, house.vault, house.alice, [parse_subject("user:ada")], house.now)
        subjects.fence(session, tenant, [ada], "req_1", house.now)
        session.commit()
    [late] = house.register([house.item(3)])
    assert (late["status"], late["request"]) == ("erased", "req_1")
    with house.session() as session:
        [copy] = artifacts.late_copies(session, tenant)
        assert artifacts.bury(session, tenant, [copy.artifact_id], "req_1", house.now) == 1
        assert inventory(session, tenant, house.now)["gaps"] > 0
        session.commit()


def test_writers_that_meet_make_each_person_stream_and_item_once(house: Any) -> None:
    people = [f"user:u{number}" for number in range(20)]

    def write(_: int) -> set[str]:
        results = house.register([house.item(number, subjects=[person]) for number, person in enumerate(people)])
        with house.session() as session:
            streams.streams_for(session, house.vault, house.alice, {"c1": (), "c2": ()}, house.now)
            session.commit()
        return {result["id"] for result in results}

    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(write, range(8)))
    assert all(one == ids[0] for one in ids)
    with house.session() as session:
        assert session.execute(sa.select(sa.func.count()).select_from(Subject)).scalar() == 20
        assert session.execute(sa.select(sa.func.count()).select_from(Artifact)).scalar() == 20


@pytest.mark.parametrize(("kind", "put"), [("stream", declared.put_stream), ("run", declared.put_run)])
def test_of_two_who_declare_one_name_at_once_one_is_told_that_it_is_new(house: Any, kind: str, put: Any) -> None:
    def later() -> bool:
        with house.session() as session:
            _, new = put(session, house.vault, house.alice, {kind: "c1"}, house.now)
            session.commit()
        return bool(new)

    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'")
    with ThreadPoolExecutor(1) as pool, house.session() as session:
        _, new = put(session, house.vault, house.alice, {kind: "c1"}, house.now)
        second = pool.submit(later)
        deadline = time.monotonic() + 20
        with house.engine.connect() as other:
            while not other.scalar(waiting) and time.monotonic() < deadline:
                time.sleep(0.01)
                other.rollback()
        session.commit()
        assert (new, second.result(timeout=20)) == (True, False)


def test_a_process_whose_clock_is_behind_numbers_on_after_the_others(
    house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    [ahead] = house.register([house.item(1)], now=house.now + timedelta(hours=1))
    monkeypatch.setattr(ids, "_last", 0)  # as another process has it
    [behind] = house.register([house.item(2)])
    assert behind["id"] > ahead["id"], "whoever reads on from a number has seen all before it"


def test_a_writer_keeps_no_plan_from_when_a_table_was_empty(house: Any) -> None:
    with house.session() as session:
        hold_writer(session, house.alice.tenant_id)
        assert session.scalar(sa.text("SHOW plan_cache_mode")) == "force_custom_plan"
        session.commit()
        assert session.scalar(sa.text("SHOW plan_cache_mode")) == "auto"


@pytest.mark.parametrize("change", ["status", "conflict", "confirm", "scope review"])
def test_who_changes_a_memory_while_its_erasure_begins_does_not_undo_that(house: Any, change: str) -> None:
    # Each read `live`, waited for the row, and wrote its own status over `erasing`.
    [made] = house.register([house.item(1, source_type="stated")])
    name, tenant = made["id"], house.alice.tenant_id
    with house.session() as session:
        [ada] = subjects.resolve(session, house.vault, house.alice, [parse_subject("user:ada")], house.now)
        review = scope_reviews.open_review(
            session, house.vault, house.alice, [ada], change="role", detail="d", now=house.now
        )
        session.commit()

    def later() -> None:
        given = house.vault, house.alice
        with house.session() as session:
            if change == "status":
                memory_use.change_status(session, *given, name, "quarantined", reason="r", now=house.now)
            elif change == "conflict":
                memory_use.conflict(session, *given, name, product_ref="p", observed=1, now=house.now)
            elif change == "confirm":
                memory_use.confirm(session, *given, name, source_ref="m", now=house.now)
            else:
                scope_reviews.decide(session, *given, review["id"], {name: "revoke"}, comment="c", now=house.now)
            session.commit()

    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with ThreadPoolExecutor(1) as pool, house.session() as session:
        [number] = artifacts.ids_of(session, tenant, [ada])
        artifacts.mark_status(session, tenant, [number], "erasing", request_id="req_1")
        second = pool.submit(later)
        deadline = time.monotonic() + 20
        with house.engine.connect() as other:
            while not other.scalar(waiting) and time.monotonic() < deadline:
                time.sleep(0.01)
                other.rollback()
        session.commit()
        failed = second.exception(timeout=20)
    assert isinstance(failed, Conflict | MemoryGone) or (change, failed) == ("scope review", None)
    with house.session() as session:
        row = artifacts.find_artifact(session, tenant, name)
        assert (row.status, row.request_id, row.verification) == ("erasing", "req_1", None)

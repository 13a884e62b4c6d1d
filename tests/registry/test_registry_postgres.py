"""The same registry on a real PostgreSQL, and writers that meet there."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from registry import artifacts, streams, subjects
from registry.identifiers import parse_subject
from registry.inventory import inventory
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

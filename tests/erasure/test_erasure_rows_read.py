"""PostgreSQL without statistics, as in a fresh deployment: what an erasure reads grows with its copies, not faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from connectors.errors import StoreUnreachable
from registry import artifacts
from tests import schema
from tests.erasure.conftest import World

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
ADA = "email:ada@example.org"
# Fewer do not tell: of some hundred rows PostgreSQL expects one, whichever index leads to them.
COPIES = 3_000
MOST = 150
"""Rows of one table for each copy; a statement that reads all of them for each is found at a tenth of its cost."""


def erased(world: Any, count: int) -> None:
    """A person with so many copies and half as many sources, erased."""
    world.classes({"note": {"erasure": {"on_request": "erase", "required": "L1"}}})
    store = world.memory_store("many")
    items: list[dict[str, Any]] = []
    for number in range(count):
        store.put(f"k{number}", f"remark {number} of somebody who leaves".encode(), owner=ADA)
        items.append(
            {"id": f"art_{number}", "data_class": "note", "store": "many", "subjects": [ADA],
             "locator": {"table": "t", "key": {"id": f"k{number}"}},
             "sources": [f"art_{number // 2}"] if number % 2 else []}
        )  # fmt: skip
    with world.parts.transactions(world.tenant.tenant_id) as session:
        found = artifacts.register(session, world.services.vault, world.acting("writer"), items, world.now)
    assert {one["status"] for one in found} == {"created"}
    request = world.ask(ADA)
    world.plan(request)
    world.approve(request)
    connect = world.parts.connect
    world.change(connect=unreachable)
    world.work(2)
    assert world.state(request) == "executing"
    world.change(connect=connect)
    world.work(2)
    assert world.state(request) == "completed"


def unreachable(*_: Any) -> Any:
    """A store that is away, so that what is to go waits while the worker looks for what is due."""
    raise StoreUnreachable("sql")


def rows_read(make: Callable[..., str], base: Path, count: int) -> dict[str, float]:
    """Rows of each table that the database fetched, for each copy of an erasure."""
    url = make(schema.prepare)
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        # Statistics would come as soon as the collector of the server has time.
        for name in sa.inspect(connection).get_table_names():
            connection.execute(sa.text(f'ALTER TABLE "{name}" SET (autovacuum_enabled = off)'))
        world = World(base, url)
        erased(world, count)
        world.close()
        others = sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        until = time.monotonic() + 10
        while connection.scalar(others) != 1:  # what a session did is counted when it ends
            assert time.monotonic() < until
            time.sleep(0.01)
        rows = connection.execute(
            sa.text("SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables")
        ).all()
        analyzed = connection.scalar(sa.text("SELECT count(*) FROM pg_stats WHERE schemaname = 'public'"))
    assert analyzed == 0
    return {name: read / count for name, read in rows}


@pytest.mark.scenario("D8")
def test_without_statistics_no_statement_of_an_erasure_reads_all_copies_for_each(
    make_postgres_database: Callable[..., str], tmp_path: Path
) -> None:
    """Two statements did, of late copies and of what is buried: PostgreSQL took an index of all the tenant's rows."""
    read = rows_read(make_postgres_database, tmp_path, COPIES)
    assert min(read["copy"], read["artifact"]) > 1
    assert {name: rows for name, rows in read.items() if rows > MOST} == {}

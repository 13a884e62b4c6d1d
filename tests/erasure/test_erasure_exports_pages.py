"""An export of more copies than one page of rows: each is listed once, and its row says what became of it."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from erasure.copies import CHUNK
from erasure.handout import open_export
from tests import schema
from tests.erasure.conftest import ADA, BOB, World

COUNT = CHUNK + 60


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.slow]),
    ]
)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The same on both databases."""
    url = None
    if request.param == "postgres":
        url = request.getfixturevalue("make_postgres_database")(schema.prepare)
    made = World(tmp_path, url)
    yield made
    made.close()


def in_database(world: World, *statements: tuple[str, Any]) -> None:
    with closing(sqlite3.connect(world.database_file)) as db:
        for text, values in statements:
            db.executemany(text, values)
        db.commit()


def settle(world: World, request: str) -> dict[str, str]:
    """What waits for a human, by name with why: every second released, the others withheld."""
    waiting = world.reader.copies(world.acting(), request, state="awaiting_human")
    for place, copy in enumerate(waiting):
        outcome = "withhold" if place % 2 else "release"
        world.desk.settle_copy(
            world.acting("carol"), request, copy["copy"], outcome=outcome, comment="weighed", now=world.now
        )
    return {str(copy["artifact"]): str(copy["detail"]) for copy in waiting}


def test_each_of_many_copies_is_in_the_package_or_named_with_the_reason_why_not(world: World) -> None:
    item = {"data_class": "note", "store": "db", "subjects": [ADA]}
    items = [{**item, "locator": {"table": "note", "key": {"id": f"k{number}"}}} for number in range(COUNT)]
    in_database(world, ("INSERT INTO note VALUES (?, ?, ?)", [(f"k{n}", ADA, f"text {n}") for n in range(COUNT)]))
    names = [*world.register(*items[:600]), *world.register(*items[600:])]
    shared = [world.file(f"both{number}.txt", "ada and bob", subjects=[ADA, BOB]) for number in range(2)]
    request = world.ask(right="access")
    world.plan(request)
    world.approve(request)
    in_database(
        world,
        ("DELETE FROM note WHERE id = ?", [("k3",), (f"k{COUNT - 2}",)]),
        ("UPDATE note SET owner = ? WHERE id = ?", [(BOB, "k4"), (BOB, f"k{COUNT - 3}")]),
    )
    late = world.note("late", "said after the plan")
    world.work(1)
    assert settle(world, request).keys() == set(shared)
    world.work(1)
    assert settle(world, request).keys() == {names[4], names[COUNT - 3]}
    world.work(1)
    assert world.state(request) == "completed"
    handout = open_export(world.parts, world.acting(), request, world.now)
    archive = zipfile.ZipFile(BytesIO(b"".join(handout.pieces)))
    told = json.loads(archive.read("manifest.json"))
    assert archive.read("manifest.json") == json.dumps(told, ensure_ascii=False, indent=2).encode()
    assert [line["copy"] for line in told["copies"]] == list(range(1, COUNT + 5))
    assert {line["id"] for line in told["copies"]} == {*names, *shared, late, request}
    assert told["counts"] == [
        {"data_class": "note", "store": "db", "registered": COUNT + 1, "exported": COUNT - 2, "withheld": 1,
         "absent": 2, "failed": 0},
        {"data_class": "summary", "store": "cvs", "registered": 2, "exported": 1, "withheld": 1, "absent": 0,
         "failed": 0},
    ]  # fmt: skip
    files = {line["file"] for line in told["copies"] if line["kind"] == "artifact" and line["state"] == "exported"}
    assert files == {name for name in archive.namelist() if name.startswith("artifacts/")}
    rows = {row.ref: row for row in world.rows(request)}
    states = {(line["id"], line["state"], line["detail"]) for line in told["copies"]}
    assert states == {(row.ref, row.state, row.detail) for row in rows.values()}
    assert {row.evidence is not None for row in rows.values() if row.state == "exported"} == {True}
    methods = Counter(row.method for row in rows.values())
    assert methods == {"by hand": 4, "read and written into the export": COUNT}

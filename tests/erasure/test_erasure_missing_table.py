"""A table that is not there fails its own copies by name; every other step goes on, and the whole is partial."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.scenario("S46")
def test_a_missing_optional_table_is_reported_and_the_other_steps_go_on(world: Any) -> None:
    world.note("n1", "the wombat-93417")
    world.file("cv.txt", "the wombat-93417 once more")
    about = {"data_class": "note", "store": "db", "subjects": ["email:ada@example.org"]}
    world.register({**about, "locator": {"table": "chunks", "key": {"id": "n1"}}})

    request = world.erase()

    assert world.state(request) == "partially_failed"
    copies = [copy for copy in world.reader.copies(world.acting(), request) if copy.get("artifact")]
    states = {(copy["store"], copy["state"]) for copy in copies}
    assert states == {("db", "erased_physical"), ("db", "failed"), ("cvs", "erased_physical")}
    [missing] = [copy for copy in copies if copy["state"] == "failed"]
    assert "table" in missing["detail"]
    assert world.bytes_left("wombat-93417") == []

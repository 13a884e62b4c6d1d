"""Public faults of retention jobs: idle data that never ends, copies that a job does not know, fields of one entry."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from ledger.entry import uuid7
from registry.playback import read_entries
from registry.record import entry_row
from retention import dispositions

ADA = "email:ada@example.org"


@pytest.mark.scenario("E6")
def test_what_nobody_touches_for_a_year_ends_all_the_same(house: Any) -> None:
    house.plain("trace", retention={"keep": "P30D", "from": "created", "then": "erase"})
    house.note("old", "trace")
    house.now += timedelta(days=365)
    run = house.sweep()
    assert run["counts"]["removed"] == 1
    assert house.rows() == set()


@pytest.mark.scenario("A12")
@pytest.mark.parametrize(("rule", "left"), [("cascade", set()), ("review", {"dataset"})])
def test_a_copy_in_a_dataset_is_found_and_ends_by_the_rule_of_its_own_class(
    house: Any, rule: str, left: set[str]
) -> None:
    house.plain("trace", retention={"keep": "P30D", "from": "created", "then": "erase"})
    house.plain("dataset", derived={"default": rule}, retention={"keep": "P1Y", "from": "created", "then": "erase"})
    trace = house.note("trace", "trace")
    house.note("dataset", "dataset", sources=[trace])
    house.note("other", "dataset", owner="email:bob@example.org")
    house.now += timedelta(days=31)
    run = house.sweep()
    assert house.rows() == {"other"} | left
    assert run["counts"]["removed"] == 2 - len(left)
    with house.transaction(write=False) as session:
        waiting = dispositions.dispositions(session, house.tenant_id, now=house.now)
    assert [one["data_class"] for _, one in waiting] == sorted(left)


@pytest.mark.scenario("S48")
def test_of_one_entry_the_words_end_and_the_facts_stay(house: Any) -> None:
    house.plain("words", retention={"keep": "P30D", "from": "created", "then": "erase"})
    house.plain("facts", retention={"keep": "P2Y", "from": "created", "then": "erase"})
    entry = {
        "id": str(uuid7(house.now)), "stream": "conv", "kind": "model.request", "at": house.now.isoformat(),
        "data_class": "facts", "subjects": [ADA],
        "parts": [
            {"name": "prompt", "data_class": "words", "body": {"text": "my knee hurts"}},
            {"name": "usage", "body": {"tokens": 12}},
        ],
    }  # fmt: skip
    [result] = house.services.record.append(house.acting(), [json.dumps(entry).encode()], house.now).results
    assert result["status"] == "stored", result
    # A key covers a month, so the words end with the last day that any word of the month may end.
    house.now += timedelta(days=70)
    house.sweep()
    with house.transaction(write=False) as session:
        row = entry_row(session, house.tenant_id, str(entry["id"]))
        assert row is not None
        read = read_entries(session, house.services.vault, house.services.log, house.tenant_id, [row])[0]
    by_name = {part.name: part for part in read.parts}
    assert by_name["prompt"].data is None
    assert by_name["prompt"].state in ("expired", "erased")
    assert json.loads(by_name["usage"].data or b"null") == {"tokens": 12}

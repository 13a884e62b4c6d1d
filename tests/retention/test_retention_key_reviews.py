"""Record keys of classes whose retention ends in a review: they wait for a human, whose word is carried out."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlmodel import select

from erasure.sweep_copies import Sweeps
from registry.errors import InvalidDeclaration
from registry.playback import read_entries
from registry.record import entry_row
from retention import dispositions
from retention.errors import NotOpen
from retention.sweep import Brakes
from vault.models import DataKey

REVIEW = {"keep": "P90D", "from": "created", "then": "review"}


def reviews(house: Any, state: str = "open") -> list[dict[str, Any]]:
    with house.transaction(write=False) as session:
        return [view for _, view in dispositions.dispositions(session, house.tenant_id, house.now, state=state)]


def decide(house: Any, **spec: Any) -> dict[str, Any]:
    [one] = reviews(house)
    with house.transaction() as session:
        return dispositions.decide_disposition(
            session, house.services.vault, house.services.record, house.acting("bea"), disposition_id=one["id"],
            spec={"comment": "looked at it", **spec}, now=house.now,
        )  # fmt: skip


def states(house: Any) -> dict[str, str]:
    with house.transaction(write=False) as session:
        rows = session.exec(select(DataKey).where(DataKey.tenant_id == house.tenant_id, DataKey.data_class == "talk"))
        return {row.key_id: row.state for row in rows}


def said(house: Any, entry_id: str) -> str | None:
    """What an entry says, None where nobody can read it."""
    with house.transaction(write=False) as session:
        row = entry_row(session, house.tenant_id, entry_id)
        assert row is not None
        services = house.services
        [found] = read_entries(session, services.vault, services.log, house.tenant_id, [row])
    data = found.parts[0].data
    return None if data is None else str(json.loads(data)["text"])


@pytest.fixture
def reviewed(house: Any) -> Any:
    """A record key that came to its review, and two conversations under it."""
    # It was passed over in silence: neither erased nor shown to anybody.
    house.plain("talk", retention=REVIEW)
    house.entries = [house.say(f"conv_{number}", f"word {number}", data_class="talk") for number in (1, 2)]
    house.now = datetime(2040, 10, 2, tzinfo=UTC)
    run = house.sweep()
    assert (run["counts"]["ends"], run["counts"]["review"]) == (0, 1)
    return house


def test_a_record_key_waits_for_a_human_and_goes_when_one_says_so(reviewed: Any) -> None:
    reviewed.sweep()
    [one] = reviews(reviewed)
    assert states(reviewed) == {one["key"]: "live"}
    assert (one["data_class"], one["store"], "artifact" in one) == ("talk", "vault", False)
    with pytest.raises(InvalidDeclaration):
        decide(reviewed, decision="reclassify", data_class="cv_file")
    assert decide(reviewed, decision="erase")["key"] == one["key"]
    run = reviewed.sweep()
    assert run["counts"]["removed"] == run["counts"]["verified"] == 1
    assert states(reviewed) == {one["key"]: "destroyed"}
    assert reviews(reviewed) == reviews(reviewed, "erase") == []
    assert reviewed.sweep()["counts"]["review"] == 0


def test_an_extended_record_key_stays_until_its_date_and_is_reviewed_again(reviewed: Any) -> None:
    decide(reviewed, decision="extend", until=(reviewed.now + timedelta(days=30)).isoformat())
    reviewed.now += timedelta(days=29)
    assert reviewed.sweep()["counts"]["review"] == 0
    assert reviews(reviewed) == []
    reviewed.now += timedelta(days=2)
    assert reviewed.sweep()["counts"]["review"] == 1
    assert len(reviews(reviewed)) == 1
    assert set(states(reviewed).values()) == {"live"}


def test_what_is_held_under_a_key_that_a_human_erases_stays(reviewed: Any) -> None:
    erasure = reviewed.services.erasure
    parts = replace(reviewed.parts, part_keys=erasure.part_keys, keep_part_rows=erasure.keep_part_rows)
    reviewed.sweeps = Sweeps(parts, brakes=Brakes(jump=timedelta(days=10_000)))
    reviewed.holds.place(
        reviewed.acting("dan"),
        {"name": "suit", "matter": "m", "reason": "r", "selector": {"scope": {"conversation": "conv_1"}}},
        reviewed.now,
    )
    decide(reviewed, decision="erase")
    run = reviewed.sweep()
    assert run["counts"]["removed"] == 1
    assert set(states(reviewed).values()) == {"destroyed"}
    assert [said(reviewed, entry) for entry in reviewed.entries] == ["word 1", None]


def test_a_key_that_went_otherwise_waits_for_nobody(reviewed: Any) -> None:
    [one] = reviews(reviewed)
    with reviewed.transaction() as session:
        reviewed.services.vault.mark_destroying(session, reviewed.tenant_id, [one["key"]], request="req_1")
        reviewed.services.vault.delete_wrapped(
            session, reviewed.tenant_id, [one["key"]], now=reviewed.now, request="req_1"
        )
    assert reviews(reviewed) == []
    with reviewed.transaction() as session, pytest.raises(NotOpen):
        dispositions.decide_disposition(
            session, reviewed.services.vault, reviewed.services.record, reviewed.acting("bea"),
            disposition_id=one["id"], spec={"comment": "x", "decision": "erase"}, now=reviewed.now,
        )  # fmt: skip

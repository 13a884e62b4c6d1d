"""What a release shows beforehand is what the next pass then ends: no more, no less."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from erasure.sweep_copies import Sweeps
from registry.keyed import IDENTITY_CLASS
from retention import dispositions
from retention.sweep import Brakes

ADA = "email:ada@example.org"
BOB = "email:bob@example.org"


def hold(house: Any, **selector: Any) -> str:
    spec = {"name": "acme", "matter": "Acme v. us", "reason": "letter", "selector": selector}
    return str(house.holds.place(house.acting("ann"), spec, house.now)["id"])


def preview(house: Any, hold_id: str) -> dict[str, Any]:
    return dict(house.holds.release(house.acting("bea"), hold_id, preview=True, now=house.now))


def due_of(shown: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    return {line["id"]: (line["kind"], line["action"], line["rule"]) for line in shown["becomes_due"] if line["due"]}


def removed_after(house: Any, hold_id: str) -> set[str]:
    """What the first pass behind the release ends, by the ids of its report."""
    house.holds.release(house.acting("bea"), hold_id, preview=False, now=house.now)
    run = house.sweep()
    copies = house.sweeps.report(house.acting(), run["id"])["copies"]
    gone = [
        copy
        for copy in copies
        if copy["state"].startswith(("erased", "key_destroyed")) and copy["data_class"] != IDENTITY_CLASS
    ]
    return {copy.get("artifact") or copy.get("entry") or copy["key"] for copy in gone}


@pytest.fixture
def chain(house: Any) -> Any:
    """A file of Ada's that is past its date, and what was made from it under a class that would last much longer."""
    house.plain("file", retention={"keep": "P10D", "from": "created", "then": "erase"})
    house.plain("brief", retention={"keep": "P900D", "from": "created", "then": "erase"})
    source = house.note("source", "file")
    house.names = {"source": source, "made": house.note("made", "brief", sources=[source])}
    house.names["deep"] = house.note("deep", "brief", sources=[house.names["made"]])
    house.now += timedelta(days=11)
    return house


@pytest.mark.scenario("E13")
@pytest.mark.parametrize("selector", [{"data_classes": ["file"]}, {"subjects": [ADA]}, {"artifacts": "source"}])
def test_what_was_kept_because_its_source_was_is_shown_with_it(chain: Any, selector: dict[str, Any]) -> None:
    placed = hold(chain, **({"artifacts": [chain.names["source"]]} if "artifacts" in selector else selector))
    chain.sweep()
    assert chain.rows() == {"source", "made", "deep"}
    shown = preview(chain, placed)
    assert shown["due"] == 3
    assert due_of(shown) == {
        chain.names["source"]: ("artifact", "erase", "class_retention"),
        chain.names["made"]: ("artifact", "erase", "source_end"),
        chain.names["deep"]: ("artifact", "erase", "source_end"),
    }
    assert removed_after(chain, placed) == set(due_of(shown))


@pytest.mark.scenario("E13")
def test_a_copy_whose_source_another_hold_keeps_is_not_said_to_become_due(chain: Any) -> None:
    # By its hint the source is past its date, but it has not ended while a hold keeps it.
    hold(chain, data_classes=["file"])
    placed = hold(chain, artifacts=[chain.names["made"]])
    shown = preview(chain, placed)
    assert (shown["items"], shown["due"]) == (2, 0)
    assert removed_after(chain, placed) == set()


@pytest.mark.scenario("E13")
@pytest.mark.parametrize("by", ["subjects", "data_classes"])
def test_keys_of_the_record_are_shown_with_their_dates_and_go_as_shown(house: Any, by: str) -> None:
    house.plain("talk", state="record")
    house.say("chat", "I live in Lima", "talk")
    house.say("other", "I live in Rome", "talk", BOB)
    placed = hold(house, **({"subjects": [ADA]} if by == "subjects" else {"data_classes": ["talk"]}))
    house.now += timedelta(days=40)
    shown = preview(house, placed)
    mine = 1 if by == "subjects" else 2
    assert (shown["keys"], shown["due"]) == (mine, 0)
    assert [(line["kind"], line["until"][:10]) for line in shown["becomes_due"]] == [("key", "2040-09-28")] * mine
    house.now += timedelta(days=80)
    assert house.sweep()["kept"] == {"hold": mine}
    shown = preview(house, placed)
    assert shown["due"] == mine
    assert {one[0] for one in due_of(shown).values()} == {"key"}
    assert removed_after(house, placed) == set(due_of(shown))


@pytest.mark.scenario("E13")
@pytest.mark.parametrize("by", ["entries", "scope"])
def test_parts_that_outlived_their_key_under_a_hold_are_shown_and_go_as_shown(house: Any, by: str) -> None:
    erasure = house.services.erasure
    parts = replace(house.parts, part_keys=erasure.part_keys, keep_part_rows=erasure.keep_part_rows)
    house.sweeps = Sweeps(parts, brakes=Brakes(jump=timedelta(days=10_000)))
    house.plain("talk", state="record")
    kept = house.say("chat", "I live in Lima", "talk")
    house.say("elsewhere", "I like tea", "talk")
    placed = hold(house, **({"entries": [kept]} if by == "entries" else {"scope": {"conversation": "chat"}}))
    house.now += timedelta(days=130)
    assert house.sweep()["counts"]["removed"] == 1, "the key, under which a part stays with a key of its own"
    shown = preview(house, placed)
    assert (shown["entries"], shown["due"]) == (1, 1)
    assert due_of(shown) == {f"{kept}/0": ("entry", "erase", "class_retention")}
    assert removed_after(house, placed) == {f"{kept}/0"}


@pytest.mark.scenario("E13")
def test_what_a_human_let_go_of_under_a_hold_is_said_to_be_erased(house: Any) -> None:
    house.plain("paper", retention={"keep": "P30D", "from": "created", "then": "review"})
    name, other = house.note("paper", "paper"), house.note("other", "paper")
    house.now += timedelta(days=31)
    house.sweep()
    with house.transaction() as session:
        waiting = dispositions.dispositions(session, house.tenant_id, house.now)
        [mine] = [one["id"] for _, one in waiting if one["artifact"] == name]
        dispositions.decide_disposition(
            session, house.services.vault, house.services.record, house.acting(), disposition_id=mine,
            spec={"decision": "erase", "comment": "over"}, now=house.now,
        )  # fmt: skip
    placed = hold(house, subjects=[ADA])
    assert {name: act for name, (_, act, _) in due_of(preview(house, placed)).items()} == {
        name: "erase", other: "review",
    }  # fmt: skip
    assert removed_after(house, placed) == {name}

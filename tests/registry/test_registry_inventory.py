"""The inventory finds gaps in real rows and puts the worst first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlmodel import col, select

from registry import declared
from registry.artifacts import bury
from registry.classes import STARTER_CLASSES, put_class
from registry.gaps import GAPS
from registry.inspection import BARE_HASH, BODY_IN_CHECKPOINT, DELIBERATION, LARGE_PROMPT
from registry.inventory import inventory
from registry.models import Artifact
from registry.stores import put_store


def own_every_class(house: Any) -> None:
    with house.session() as session:
        for name, spec in STARTER_CLASSES.items():
            put_class(session, house.alice, name, {**spec, "owner": "team-a"}, house.now)
        session.commit()


def look(house: Any, **later: int) -> dict[str, Any]:
    with house.session() as session:
        return inventory(session, house.alice.tenant_id, house.now + timedelta(**later), level_of=lambda _: "L2")


def gaps(found: dict[str, Any], name: str) -> list[str]:
    return next(view["gaps"] for view in (*found["classes"], *found["stores"]) if view["name"] == name)


def test_a_class_that_nobody_owns_stands_first(house: Any) -> None:
    own_every_class(house)
    with house.session() as session:
        put_class(session, house.alice, "tool", STARTER_CLASSES["tool"], house.now)
        session.commit()
    found = look(house)
    assert (found["classes"][0]["name"], found["classes"][0]["owner"]) == ("tool", None)
    assert found["classes"][0]["gaps"] == ["no_owner"]
    assert found["gaps"] == 1


def test_an_inventory_in_order_has_no_gap(house: Any) -> None:
    own_every_class(house)
    house.register([house.item(1, source_type="explicit_user_statement")])
    found = look(house)
    assert found["gaps"] == 0
    [memory] = [view for view in found["classes"] if view["name"] == "memory"]
    assert (memory["live"], memory["oldest"], memory["owner"]) == (1, house.now, "team-a")
    assert memory["scope"] == {"personal": True, "subject_types": [], "purposes": [], "scoped": 0}
    assert {view["level"] for view in found["stores"]} == {"L2"}


def test_gaps_are_found_in_the_rows_themselves(house: Any) -> None:
    own_every_class(house)
    with house.session() as session:
        # A kind that is driven in its file, and not behind an address.
        vectors = {"kind": "qdrant", "config": {"url": "http://127.0.0.1:6333"}, "provider_retention": "P3Y"}
        put_store(session, house.alice, "vectors", vectors, house.now, check_target=lambda *_: None)
        declared.put_stream(session, house.vault, house.alice, {"stream": "c1", "data_class": "transcript"}, house.now)
        session.commit()
    house.register(
        [
            house.item(1),
            house.item(2, data_class="checkpoint"),
            house.item(3, data_class="transcript", activity={"kind": "summarise"}),
            house.item(4, data_class="export", store="vectors", locator={"collection": "c", "id": "1"}),
        ]
    )
    found = look(house)
    assert gaps(found, "memory") == ["memory_without_source"]
    assert gaps(found, "checkpoint") == ["unscoped_thread"]
    assert gaps(found, "transcript") == ["summary_without_source", "stream_not_recorded"]
    assert gaps(found, "export") == ["no_eraser", "provider_keeps_longer", "no_verifier"]
    assert gaps(found, "vectors") == ["no_eraser", "no_verifier", "provider_keeps_longer"]
    assert "over_retained" in gaps(look(house, days=31), "checkpoint")


def test_one_tenants_gaps_are_not_anothers(house: Any) -> None:
    own_every_class(house)
    bob = house.tenant("bob")
    house.register([house.item(1)], bob)
    assert look(house)["gaps"] == 0


def test_every_gap_that_an_inspection_finds_has_a_rank_and_a_remedy() -> None:
    assert {BARE_HASH, BODY_IN_CHECKPOINT, DELIBERATION, LARGE_PROMPT} <= set(GAPS)


def test_a_class_says_whom_it_is_about_for_what_and_how_many_items_name_a_scope(house: Any) -> None:
    narrow = {**STARTER_CLASSES["memory"], "subject_types": ["user"], "purposes": ["support"]}
    with house.session() as session:
        put_class(session, house.alice, "memory", narrow, house.now)
        session.commit()
    house.register([house.item(1, scope={"conversation": "c1", "role": "r1"}), house.item(2), house.item(3)])
    with house.session() as session:
        gone = session.exec(select(Artifact).order_by(col(Artifact.id).desc()).limit(1)).one()
        bury(session, house.alice.tenant_id, [gone.id], "req_1", house.now)
        session.commit()
    [memory] = [view for view in look(house)["classes"] if view["name"] == "memory"]
    assert memory["scope"] == {"personal": True, "subject_types": ["user"], "purposes": ["support"], "scoped": 1}
    assert memory["live"] == 2

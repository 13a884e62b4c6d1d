from __future__ import annotations

from typing import Any

import pytest

from erasure.dispatch import Dispatch
from erasure.work import joined
from tests.erasure.conftest import World
from tests.erasure.crashing import Crash


def fact(level: str, **evidence: str) -> dict[str, Any]:
    return {"level": level, "residual_until": None, "detail": "", "method": "", "evidence": evidence, "at": "now"}


def test_what_an_earlier_reclaim_showed_of_other_tables_is_kept() -> None:
    assert joined(fact("L2", b="2"), fact("L2", a="1", b="1"))["evidence"] == {"a": "1", "b": "2"}
    assert joined(fact("L2", b="2"), None) == fact("L2", b="2")
    assert joined({**fact("L1"), "freed_bytes": 5}, {**fact("L2"), "freed_bytes": 7})["freed_bytes"] == 12


@pytest.mark.parametrize(("now", "before"), [("L1", "L2"), ("L2", "L1"), ("L1", "L1")])
def test_nothing_is_kept_where_one_of_them_did_not_reach_the_files(now: str, before: str) -> None:
    assert joined(fact(now, b="2"), fact(before, a="1"))["evidence"] == {"b": "2"}


def test_bytes_are_freed_of_a_store_in_which_nothing_is_left_to_erase(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that died between the last erase and the reclaim left a store without any copy whose turn it is."""

    def ends(*_: object) -> None:
        raise Crash

    world.memory_store("odd")
    world.keep_in_memory("odd", "a", "Ada Lovelace in a store that keeps what it freed")
    request = world.ask()
    world.plan(request)
    world.approve(request)
    with monkeypatch.context() as patch:
        patch.setattr(Dispatch, "_reclaim", ends)
        with pytest.raises(Crash):
            world.work(1)
    assert {row.state for row in world.rows(request) if row.kind == "artifact"} == {"erased_logical"}
    assert len(world.memory["odd"].freed) == 1
    world.work()
    assert world.state(request) == "completed"
    assert {row.state for row in world.rows(request) if row.kind == "artifact"} == {"erased_physical"}
    assert world.memory["odd"].freed == []

from __future__ import annotations

from typing import Any

import pytest

from erasure.work import joined


def fact(level: str, **evidence: str) -> dict[str, Any]:
    return {"level": level, "residual_until": None, "detail": "", "method": "", "evidence": evidence, "at": "now"}


def test_what_an_earlier_reclaim_showed_of_other_tables_is_kept() -> None:
    assert joined(fact("L2", b="2"), fact("L2", a="1", b="1"))["evidence"] == {"a": "1", "b": "2"}
    assert joined(fact("L2", b="2"), None) == fact("L2", b="2")
    assert joined({**fact("L1"), "freed_bytes": 5}, {**fact("L2"), "freed_bytes": 7})["freed_bytes"] == 12


@pytest.mark.parametrize(("now", "before"), [("L1", "L2"), ("L2", "L1"), ("L1", "L1")])
def test_nothing_is_kept_where_one_of_them_did_not_reach_the_files(now: str, before: str) -> None:
    assert joined(fact(now, b="2"), fact(before, a="1"))["evidence"] == {"b": "2"}

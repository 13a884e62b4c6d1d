"""Whether a memory may be used: the pure verdicts, as cases and as properties."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.classes import STARTER_CLASSES
from registry.declaration import parse_class
from registry.memories import Asked, Memory, Verdict, confidence_at, judge, may_overwrite

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
RULES = parse_class("memory", {**STARTER_CLASSES["memory"], "purposes": ["support", "sales"]})
FOR = Asked(purpose="support", scope={"conversation": "c1"})
SOUND = Memory(
    status="live", rules=RULES, scope={"conversation": "c1"}, purposes=("support",), confidence=0.9, has_source=True,
    source_type="explicit_user_statement", verification="user_supplied", observed_at=NOW, created_at=NOW,
)  # fmt: skip
NOT_RULES = parse_class("note", STARTER_CLASSES["summary"])

CASES: list[tuple[dict[str, Any], Verdict]] = [
    ({}, Verdict.USABLE),
    ({"status": "erased"}, Verdict.ERASED),
    ({"status": "erasing"}, Verdict.ERASED),
    ({"fenced": True}, Verdict.ERASED),
    ({"status": "revoked"}, Verdict.REVOKED),
    ({"status": "quarantined"}, Verdict.QUARANTINED),
    ({"tainted": "revoked"}, Verdict.QUARANTINED),
    ({"restricted": True}, Verdict.RESTRICTED),
    ({"status": "retained"}, Verdict.RESTRICTED),
    ({"about": False}, Verdict.OUT_OF_SCOPE),
    ({"scope": {"conversation": "c2"}}, Verdict.OUT_OF_SCOPE),
    ({"scope": {"conversation": "c1", "project": "p"}}, Verdict.OUT_OF_SCOPE),
    ({"scope": {}}, Verdict.USABLE),
    ({"rules": None}, Verdict.OUT_OF_SCOPE),
    ({"rules": NOT_RULES}, Verdict.OUT_OF_SCOPE),
    ({"purposes": ("sales",)}, Verdict.WRONG_PURPOSE),
    ({"expires_at": NOW}, Verdict.EXPIRED),
    ({"ends_at": NOW - DAY}, Verdict.EXPIRED),
    ({"observed_at": NOW - 400 * DAY}, Verdict.EXPIRED),
    ({"observed_at": NOW - 180 * DAY}, Verdict.RECONFIRM),
    ({"observed_at": NOW - 180 * DAY, "confirmed_at": NOW - DAY}, Verdict.USABLE),
    ({"source_type": "model_inference", "verification": None}, Verdict.ASK_USER),
    ({"source_type": "inferred", "verification": "unverified", "confidence": 1.0}, Verdict.ASK_USER),
    ({"source_type": "implicit_preference", "verification": None}, Verdict.ASK_USER),
    ({"source_type": "llm_extraction", "verification": None}, Verdict.ASK_USER),
    ({"source_type": "inferred", "verification": "user_confirmed"}, Verdict.USABLE),
    ({"source_type": None, "has_source": False}, Verdict.RECONFIRM),
    ({"confidence": None}, Verdict.USABLE),
]


@pytest.mark.parametrize(("change", "expected"), CASES)
def test_every_verdict_has_a_case(change: dict[str, Any], expected: Verdict) -> None:
    judged = judge(replace(SOUND, **change), FOR, NOW)
    assert judged.verdict is expected
    assert judged.because


def test_all_verdicts_are_covered_by_the_cases() -> None:
    assert {expected for _, expected in CASES} == set(Verdict)


def test_a_purpose_that_the_class_does_not_list_is_wrong_whatever_the_memory_says() -> None:
    assert judge(replace(SOUND, purposes=()), Asked(purpose="ads"), NOW).verdict is Verdict.OUT_OF_SCOPE
    free = replace(SOUND, purposes=(), scope={})
    assert judge(free, Asked(purpose="ads"), NOW).verdict is Verdict.WRONG_PURPOSE
    assert judge(free, Asked(purpose="sales"), NOW).verdict is Verdict.USABLE


# Each makes a memory worse; none may ever make one usable that was not.
WORSE: list[dict[str, Any]] = [
    change
    for change, expected in CASES
    if expected not in (Verdict.USABLE, Verdict.RECONFIRM) and "observed_at" not in change
]
"""Age is left out: what it does depends on the confidence there was to lose."""
maybe_instant = st.none() | st.integers(-1000, 1000).map(lambda days: NOW + days * DAY)
memories = st.builds(
    Memory,
    status=st.sampled_from(["live", "erasing", "erased", "retained", "quarantined", "revoked"]),
    rules=st.sampled_from([RULES, NOT_RULES, None]),
    about=st.booleans(),
    fenced=st.booleans(),
    restricted=st.booleans(),
    tainted=st.none() | st.sampled_from(["revoked", "quarantined"]),
    scope=st.dictionaries(st.sampled_from(["conversation", "team"]), st.sampled_from(["c1", "c2"])),
    purposes=st.sampled_from([(), ("support",), ("sales",)]),
    source_type=st.none() | st.sampled_from(["explicit_user_statement", "inferred"]),
    has_source=st.booleans(),
    verification=st.none() | st.sampled_from(["user_confirmed", "user_supplied", "unverified"]),
    confidence=st.none() | st.floats(0, 1),
    observed_at=maybe_instant,
    confirmed_at=maybe_instant,
    created_at=st.integers(-1000, 0).map(lambda days: NOW + days * DAY),
    expires_at=maybe_instant,
    ends_at=maybe_instant,
)
IN_USE = (Verdict.USABLE, Verdict.RECONFIRM)


@given(memories, st.sampled_from(WORSE))
def test_nothing_bad_about_a_memory_ever_makes_it_usable(memory: Memory, worse: dict[str, Any]) -> None:
    assert judge(replace(memory, **worse), FOR, NOW).verdict not in IN_USE


@given(memories)
def test_a_usable_memory_is_live_about_the_person_in_scope_for_the_purpose_and_in_time(memory: Memory) -> None:
    judged = judge(memory, FOR, NOW)
    assert judged.confidence_now is None or 0 <= judged.confidence_now <= 1
    if judged.verdict in IN_USE:
        assert memory.status == "live"
        assert memory.about
        assert not memory.fenced
        assert not memory.restricted
        assert memory.tainted is None
        assert set(memory.scope.items()) <= set(FOR.scope.items())
        assert memory.purposes in ((), ("support",))
        assert memory.expires_at is None or memory.expires_at > NOW
        assert memory.source_type != "inferred" or memory.verification == "user_confirmed"


@given(st.floats(0, 1), st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 2000))
def test_confidence_only_falls_and_halves_with_each_half_life(
    confidence: float, days: int, more: int, half_life: int
) -> None:
    life = half_life * DAY
    now, later = confidence_at(confidence, days * DAY, life), confidence_at(confidence, (days + more) * DAY, life)
    assert 0 <= later <= now <= round(confidence, 6)
    assert confidence_at(confidence, life, life) == pytest.approx(confidence / 2, abs=1e-6)
    assert confidence_at(confidence, -days * DAY, life) == round(confidence, 6)


@given(
    st.none() | st.sampled_from(["explicit_user_statement", "inferred"]),
    st.none() | st.sampled_from(["user_confirmed", "unverified"]),
    st.none() | st.sampled_from(["explicit_user_statement", "inferred"]),
)
def test_an_inference_never_takes_the_place_of_a_statement(old: str | None, seen: str | None, new: str | None) -> None:
    stated = old == "explicit_user_statement" or seen == "user_confirmed"
    assert may_overwrite(old, seen, new) is (not stated or new == "explicit_user_statement")

"""How streams age and runs recover: the pure rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.declaration import Session
from registry.duration import Duration
from registry.sessions import RECOVERY, RUN_STATES, lifecycle, move_run

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TIMERS = Session(
    idle=Duration.parse("PT30M"), resume_within=Duration.parse("PT10M"), expire=Duration.parse("P7D")
)  # fmt: skip
ORDER = ["active", "resumable", "idle", "expired"]
states = st.none() | st.sampled_from(RUN_STATES)


@pytest.mark.parametrize(
    ("minutes", "state"),
    [(0, "active"), (29, "active"), (30, "resumable"), (39, "resumable"), (40, "idle"), (7 * 24 * 60 - 1, "idle"),
     (7 * 24 * 60, "expired")],
)  # fmt: skip
def test_a_stream_ages_by_the_timers_of_its_class(minutes: int, state: str) -> None:
    assert lifecycle(TIMERS, NOW - timedelta(minutes=minutes), NOW) == state
    assert lifecycle(None, NOW - timedelta(minutes=minutes), NOW) == "active"


@given(st.integers(0, 20_000), st.integers(0, 20_000))
def test_a_silent_stream_never_gets_younger(minutes: int, more: int) -> None:
    now = ORDER.index(lifecycle(TIMERS, NOW - timedelta(minutes=minutes), NOW))
    later = ORDER.index(lifecycle(TIMERS, NOW - timedelta(minutes=minutes + more), NOW))
    assert now <= later


@pytest.mark.parametrize(
    ("before", "wanted", "checkpoint", "after"),
    [
        (None, "active", False, "active"),
        ("active", "waiting", True, "waiting"),
        ("active", "waiting", False, RECOVERY),
        ("waiting", "active", True, "active"),
        ("waiting", "active", False, RECOVERY),
        ("failed", "active", False, RECOVERY),
        (RECOVERY, "active", True, "active"),
        (RECOVERY, None, True, RECOVERY),
        ("active", "completed", False, "completed"),
        (None, None, False, None),
    ],
)
def test_a_run_goes_on_from_a_checkpoint_or_requires_recovery(
    before: str | None, wanted: str | None, checkpoint: bool, after: str | None
) -> None:
    moved = move_run(before, wanted, has_checkpoint=checkpoint)
    assert moved.status == after
    assert (moved.because is not None) == (after == RECOVERY)


@given(states, states)
def test_nothing_is_resumed_without_a_checkpoint(before: str | None, wanted: str | None) -> None:
    moved = move_run(before, wanted, has_checkpoint=False)
    if before in ("waiting", "failed", RECOVERY):
        assert moved.status != "active"
    assert moved.status != "waiting"
    if wanted in ("completed", "failed", "cancelled"):
        assert moved.status == wanted

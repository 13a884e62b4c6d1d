"""Recorders: one that fell silent is a finding of `doctor`, and what is known of them survives a lost database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api import folder
from api.commands.examining import examine
from ledger.entry import uuid7
from tests.process.test_process_doctor import by_name
from tests.process.test_process_rebuild import lose_database, own, rebuild, replay, serving_again, ship

__all__ = ["serving_again"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


def heartbeat(recorder: str, seq: int, at: datetime) -> dict[str, Any]:
    return {
        "id": uuid7(datetime.now(UTC)), "stream": f"recorder:{recorder}", "kind": "recorder.heartbeat",
        "at": at.isoformat(), "data_class": "skeleton", "recorder": recorder, "seq": seq, "body": {"recorded": seq},
    }  # fmt: skip


def turn(recorder: str, seq: int, stream: str = "conv") -> dict[str, Any]:
    return {
        "id": uuid7(datetime.now(UTC)), "stream": stream, "kind": "turn.user", "at": datetime.now(UTC).isoformat(),
        "data_class": "transcript", "subjects": ["user:ada"], "recorder": recorder, "seq": seq, "body": {"n": seq},
    }  # fmt: skip


def post(desk: Any, *entries: dict[str, Any]) -> None:
    results = desk.call("writer", "POST", "/v1/record/entries", {"entries": list(entries)})["results"]
    assert {one["status"] for one in results} == {"stored"}


def test_a_recorder_that_fell_silent_is_a_finding_and_one_that_beats_is_fine(desk: Any, running: Any) -> None:
    folder.mark_initialised(running.settings.data)
    now = running.services.clock.now()
    what = f"{desk.tenant}: recorders"
    assert what not in by_name(examine(running.settings, desk.tenant))
    post(desk, *[heartbeat("steady", seq, now - timedelta(seconds=60 * (5 - seq))) for seq in range(6)])
    (finding,) = by_name(examine(running.settings, desk.tenant))[what]
    assert (finding.verdict, finding.detail) == ("fine", "1 with heartbeats, none is silent")
    since = now - timedelta(hours=5)
    post(desk, *[heartbeat("stopped", seq, since + timedelta(seconds=60 * seq)) for seq in range(6)])
    (finding,) = by_name(examine(running.settings, desk.tenant))[what]
    assert finding.verdict == "weak"
    assert f"is silent since {since + timedelta(minutes=5):%Y-%m-%d %H:%M:%S} UTC" in finding.detail
    assert "every 60 s" in finding.detail


def test_numbers_holes_and_silences_are_the_same_after_a_rebuild_and_late_numbers_close_their_hole(
    desk: Any, running: Any
) -> None:
    now = running.services.clock.now()
    post(desk, turn("r1", 1), turn("r1", 2), turn("r1", 4, "other"), turn("r1", 7))
    post(desk, *[heartbeat("r2", seq, now - timedelta(minutes=50 - seq)) for seq in (1, 2, 3, 4, 40)], turn("r2", 50))

    def seen() -> Any:
        found = desk.call("auditor", "POST", "/v1/replay", {"stream": "conv"}, purpose="dispute;case=7")
        return {name: found[name] for name in ("gaps", "seq_holes", "silences", "complete")}

    before = seen()
    assert [(gap["from"], gap["to"]) for gap in before["gaps"] if gap["kind"] == "recorder"] == [(3, 6)]
    entries = replay(desk, "conv")
    ship(running, desk)
    running.stop()
    lose_database(running)
    assert own(rebuild(running), desk)["verify"] == "sound"
    running.start()
    assert seen() == before
    assert replay(desk, "conv") == entries
    post(desk, turn("r1", 3, "late"), turn("r1", 5, "late"), turn("r1", 6, "late"))
    assert [gap for gap in seen()["gaps"] if gap["kind"] == "recorder"] == []

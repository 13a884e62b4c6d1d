"""Silence of recorders: judged by their own usual pause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from audit.corruptions import Copy
from audit.findings import Verdict
from audit.forge import chained
from audit.silence import Pulse, silence_json, silences
from audit.verify import verify
from ledger.entry import Kind

MakeLog = Callable[..., Copy]
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVERY = timedelta(seconds=30)


def beats(*numbers: float) -> list[datetime]:
    return [START + EVERY * number for number in numbers]


def test_a_pause_three_times_the_usual_one_is_silence() -> None:
    (one,) = silences("r", beats(0, 1, 2, 3, 4, 9, 10))
    assert (one.since, one.until, one.every) == (START + 4 * EVERY, START + 9 * EVERY, EVERY)
    assert silence_json(one) == {
        "recorder": "r",
        "since": "2026-03-01T12:02:00.000000Z",
        "until": "2026-03-01T12:04:30.000000Z",
        "usual_seconds": 30.0,
    }
    assert silences("r", beats(0, 1, 2, 3, 4, 7, 8)) == []


def test_a_silence_that_lasts_is_told_against_the_clock() -> None:
    (one,) = silences("r", beats(0, 1, 2, 3), now=START + 20 * EVERY)
    assert (one.since, one.until) == (START + 3 * EVERY, None)
    assert silences("r", beats(0, 1, 2, 3), now=START + 4 * EVERY) == []


def test_a_recorder_without_a_habit_is_never_called_silent() -> None:
    assert silences("r", []) == []
    assert silences("r", beats(0, 1, 1000), now=START + timedelta(days=9)) == []


def test_heartbeats_told_at_once_because_of_drops_do_not_hide_the_habit() -> None:
    (one,) = silences("r", beats(0, 1, 2, 2.01, 3, 4, 5, 5.01, 6, 7, 20))
    assert one.every >= timedelta(seconds=29)


@given(st.lists(st.floats(min_value=0.9, max_value=1.1), min_size=4, max_size=60))
def test_a_steady_recorder_is_never_silent(pauses: list[float]) -> None:
    pulse, at = Pulse(recorder="r"), START
    for pause in pauses:
        at += EVERY * pause
        assert pulse.beat(at) is None
    assert pulse.now(at + EVERY) is None


def test_verify_tells_of_silence_from_headers_alone(make_log: MakeLog) -> None:
    log = make_log(batches=3, per_batch=10)
    history = log.history
    headers = [
        structs.replace(header, kind=Kind.RECORDER_HEARTBEAT, at=START + EVERY * (at if at < 20 else at + 50))
        if at
        else header
        for at, header in enumerate(history.headers)
    ]
    log.write(replace(history, headers=chained(headers)), log.key)
    report = verify(log.bucket, log_id=history.log_id, keys=[log.key.vkey])
    assert report.verdict is Verdict.SOUND
    (note,) = [note for note in report.notes if "silent" in note]
    assert "abababababababab was silent from 2026-03-01T12:09:30+00:00 to 2026-03-01T12:35:00+00:00" in note

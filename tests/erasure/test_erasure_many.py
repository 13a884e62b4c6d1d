"""One person with 10,000 and with 100,000 copies: linear time, little memory for each, and work that survives a kill.

Each phase is a process of its own, so that its memory is what the system says and a kill is one (`many.py`).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.erasure.many import CACHE

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
CONNECTIONS = {"work": 4}
"""How many of them a phase fills, where it is more than one: whoever decides, erases, writes down and looks again."""
BYTES_A_COPY = {
    "export": 250, "export_file": 20, "plan": 300, "plan_file": 100, "approve": 350, "work": 450, "show": 20,
    "page": 100, "paper": 150, "check": 800, "empty_file": 50
}  # fmt: skip
"""What a phase may hold of its own for each more copy. A plan keeps columns. Of a certificate, which has 600 bytes of a
copy, who sends or sets it keeps where each copy begins; who checks it also keeps how the events say that each stands.
An export keeps columns too, and where in its zip each file lies.
"""
LOOKED_AT = 700
"""What of a copy may lie in pages of files that a phase looks at in place: the certificate as it is signed or set."""
KILLS = {"export": (4, 11, 5), "plan": (4,), "approve": (2,), "work": (2, 4, 7)}
"""The commits in whose place a phase is killed, one after the other."""


def phase(base: Path, *given: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.erasure.many", str(base), *map(str, given)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def done(base: Path, *given: object) -> Any:
    ended = phase(base, *given)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout or "{}")


@pytest.mark.scenario("D8")
def test_each_phase_takes_linear_time_and_little_memory_for_each_copy(tmp_path: Path, full_length: bool) -> None:
    few, many = (10_000, 100_000) if full_length else (100, 300)
    took: dict[str, list[Any]] = {name: [] for name in BYTES_A_COPY}
    for count in (few, many):
        done(tmp_path / str(count), "make", count)
        for name, told in took.items():
            told.append(done(tmp_path / str(count), name))
        assert took["check"][-1]["state"] == "completed"
    for name, (small, large) in took.items():
        assert large["seconds"] <= 12 * small["seconds"] + 1.0, (name, small, large)
        allowed = CACHE * CONNECTIONS.get(name, 1) + BYTES_A_COPY[name] * (many - few)
        assert large["peak"] - small["peak"] <= allowed, (name, small, large)
        looked_at = allowed + LOOKED_AT * (many - few)
        assert large["mapped"] - small["mapped"] <= looked_at, (name, small, large)


@pytest.mark.scenario("D8")
@pytest.mark.scenario("D2")
def test_each_phase_goes_on_after_its_process_was_killed(tmp_path: Path, full_length: bool) -> None:
    base = tmp_path / "killed"
    done(base, "make", 100_000 if full_length else 300)
    told: Any = None
    for name, commits in KILLS.items():
        for number in commits:
            assert phase(base, name, number).returncode == -signal.SIGKILL
        told = done(base, name)
    assert told["state"] == "completed"
    done(base, "check")

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from api.demo.leftovers import MARK, PREFIX, removed_from, unfinished

REPOSITORY = Path(__file__).resolve().parents[2]
RUNS = """
import sys, time
from pathlib import Path
from api.demo.leftovers import unfinished
with unfinished(Path(sys.argv[1])):
    print("begun", flush=True)
    time.sleep(60)
"""


def begun(folder: Path) -> subprocess.Popen[str]:
    """A process that is in the middle of its demonstration."""
    folder.mkdir()
    (folder / "data").mkdir()
    (folder / "data" / "muniment.db").write_text("what it made")
    process = subprocess.Popen(
        [sys.executable, "-c", RUNS, str(folder)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_what_a_killed_demonstration_left_goes_and_a_running_one_stays(tmp_path: Path) -> None:
    folder = tmp_path / f"{PREFIX}one"
    with begun(folder) as process:
        try:
            assert int((folder / MARK).read_text()) == process.pid
            assert removed_from(tmp_path) == 0
            assert (folder / "data" / "muniment.db").exists()
        finally:
            process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert removed_from(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_is_left_on_purpose_and_what_is_no_demonstrations_stays(tmp_path: Path) -> None:
    ended, broken, outside = tmp_path / f"{PREFIX}ended", tmp_path / f"{PREFIX}broken", tmp_path / "elsewhere"
    for folder in (ended, broken, outside):
        folder.mkdir()
    with unfinished(ended):
        assert removed_from(tmp_path) == 0
    assert list(ended.iterdir()) == []
    (outside / MARK).write_text("1\n")
    (tmp_path / f"{PREFIX}link").symlink_to(outside)
    (broken / MARK).symlink_to(outside / MARK)
    (tmp_path / f"{PREFIX}file").write_text("no folder")
    assert removed_from(tmp_path) == 0
    assert (outside / MARK).exists()


def test_a_demonstration_that_ends_with_an_error_is_a_leftover_of_the_next(tmp_path: Path) -> None:
    folder = tmp_path / f"{PREFIX}stopped"
    folder.mkdir()
    with pytest.raises(KeyboardInterrupt), unfinished(folder):
        raise KeyboardInterrupt
    assert removed_from(tmp_path) == 1
    assert not folder.exists()

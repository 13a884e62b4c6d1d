"""The private copy that a scan reads a busy SQLite file by: no name while it is read, none left by who was killed."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from connectors.base import Deadline
from connectors.scanning.opening import open_sqlite

KILLED = """
import os, signal, sys
from pathlib import Path
from connectors.scanning.opening import open_sqlite

class Killed:
    def is_over(self):
        os.kill(os.getpid(), signal.SIGKILL)

with open_sqlite(Path(sys.argv[1]), Killed()):
    pass
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Path]:
    """A file of which a part lies in its log alone."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=wal")
        db.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT)")
        db.executemany("INSERT INTO note (text) VALUES (?)", [(f"note {n}" * 100,) for n in range(500)])
        yield path


def test_the_copy_has_no_name_while_it_is_read(busy: Path, temporary: Path) -> None:
    with open_sqlite(busy, Deadline("scan", 60)) as opened:
        assert list(temporary.iterdir()) == []
        for _ in range(2):
            assert next(iter(opened.reader.rows("SELECT count(*), max(id) FROM note"))) == (500, 500)
        assert sorted(opened.reader.tables) == ["note"]
    assert list(temporary.iterdir()) == []


def test_what_a_killed_scan_was_copying_goes_with_the_next_scan(busy: Path, temporary: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(busy)], env={**os.environ, "TMPDIR": str(temporary)}, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    [left] = temporary.iterdir()
    assert (left / "copy").stat().st_size > 0
    another = temporary / "muniment-scan-at-work"
    another.mkdir()
    (temporary / "muniment-scan-elses").mkdir()
    with (another / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open_sqlite(busy, Deadline("scan", 60)) as opened:
            assert opened.reader.tables
    assert sorted(folder.name for folder in temporary.iterdir()) == ["muniment-scan-at-work", "muniment-scan-elses"]

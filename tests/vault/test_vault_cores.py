"""The memory of a process with keys goes nowhere when it dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
_DIE = """
import ctypes, os, resource, sys
from datetime import UTC, datetime
from pathlib import Path
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
small = 1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20)
resource.setrlimit(resource.RLIMIT_CORE, (small, hard))
if sys.argv[2] == "keys":
    from vault.keks import KekStore
    from vault.providers import FileRoot
    folder = Path(sys.argv[1]) / "opened"
    KekStore(folder, FileRoot(folder, clock=lambda: datetime.now(UTC)))
print(*resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3), flush=True)
os.abort()
"""


def died(folder: Path, what: str) -> tuple[list[int], list[str]]:
    """The limits and the flag just before an abort, and the core files it left."""
    place = folder / what
    place.mkdir()
    program = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n{_DIE}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), what], check=False, capture_output=True, text=True, cwd=place
    )
    assert done.returncode == -6, done.stderr
    return [int(word) for word in done.stdout.split()], [file.name for file in place.glob("*core*")]


@pytest.mark.skipif(sys.platform != "linux", reason="the flag is Linux's")
def test_a_process_that_opened_keys_leaves_no_core(tmp_path: Path) -> None:
    before, cores = died(tmp_path, "nothing")
    # The flag alone is enough for a handler behind a pipe; where cores are files, the comparison shows that one came.
    assert before[2] == 1
    after, none = died(tmp_path, "keys")
    assert (after, none) == ([0, 0, 0], [])
    if before[0] and Path("/proc/sys/kernel/core_pattern").read_text("ascii").strip() == "core":
        assert cores

"""`muniment demo` as a stranger runs it: at once, offline, in a temporary folder, every check held."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import forked

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


def environment(tmp_path: Path) -> dict[str, str]:
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MUNIMENT_", "XDG_", "AWS_"))}
    return {**kept, "HOME": str(home), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}


def offline() -> list[str]:
    """A prefix that takes every network away, loopback too, where this machine lets us."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return []
    if subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode:
        return []
    return ["unshare", "-n"]


def processor(pid: int) -> float:
    """Seconds of processor that a running process used; Linux counts them in its statistics, fields 14 and 15."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ended() -> float:
    """Seconds of processor of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_demo_holds_every_check_offline_and_writes_only_into_its_temporary_folder(tmp_path: Path) -> None:
    places = environment(tmp_path)
    # The demonstration erased in whatever database the operator had set, with a clock half a year ahead.
    own = {"DATABASE_URL": f"sqlite:///{tmp_path}/own.db", "APPROVAL": "single"}
    own |= {name: f"file://{tmp_path}/{name}" for name in ("OBJECT_STORE", "HOT_STORE", "KMS")}
    places |= {f"MUNIMENT_{name}": value for name, value in own.items()}
    started, before = time.monotonic(), ended()
    process = subprocess.Popen(
        [*offline(), sys.executable, "-m", "api.cli", "demo"],
        cwd=tmp_path,
        env={**places, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    waited, used = time.monotonic() - started, processor(process.pid)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, out[-2000:] + err
    assert first.startswith("Muniment demo")
    # A second and twenty seconds by the clock of a machine with nothing else to do; of one with much, its processor's.
    assert waited < 5, "the first line comes before anything heavy is imported"
    assert used < 1
    assert ended() - before < 20
    assert "✗" not in out
    assert err == "", "what libraries say is no part of the story"
    assert out.count("✓") >= 18
    for claim in (
        "150 people apply", "each once, under its own key", "brake stopped the run", "a second person looked",
        "Where does the state live while nobody works on it?", "What survived the restart?",
        "Which copies exist, and what deletes each, when?", "What was the model sent, field by field?",
        "but the files still hold the person", "12 traces of the person", "nothing of the person is left",
        "149 people are named in the raw bytes", "scanned for 150 people: nothing", "the record is sound",
    ):  # fmt: skip
        assert claim in out, claim
    assert list((tmp_path / "home").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "tmp"]
    made = list((tmp_path / "tmp").iterdir())
    assert len(made) == 1
    assert not (made[0] / "s").exists(), "the socket is gone with the service"
    assert made[0].name.startswith("muniment-demo-")
    certificate = json.loads((made[0] / "certificate.json").read_text())
    assert certificate["certificate"]["right"] == "erasure"
    printed = re.search(r"^   muniment (verify-report .*)$", out, re.MULTILINE)
    assert printed is not None
    assert forked.run(*shlex.split(printed[1])).returncode == 0, "the check that it tells the reader to make"


def test_help_and_the_first_line_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom api.cli import run\nrun(['--help'])\n"
        "heavy = {'sqlalchemy', 'sqlmodel', 'fastapi', 'boto3', 'psycopg', 'apscheduler', 'pydantic'}\n"
        "sys.exit(len(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "verify-report" in done.stdout

"""`muniment demo` as a stranger runs it: at once, offline, in a temporary folder, every check held."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def test_the_demo_holds_every_check_offline_and_writes_only_into_its_temporary_folder(tmp_path: Path) -> None:
    places = environment(tmp_path)
    # The demonstration erased in whatever database the operator had set, with a clock half a year ahead.
    own = {"DATABASE_URL": f"sqlite:///{tmp_path}/own.db", "APPROVAL": "single"}
    own |= {name: f"file://{tmp_path}/{name}" for name in ("OBJECT_STORE", "HOT_STORE", "KMS")}
    places |= {f"MUNIMENT_{name}": value for name, value in own.items()}
    started = time.monotonic()
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
    waited = time.monotonic() - started
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, out[-2000:] + err
    assert first.startswith("Muniment demo")
    assert waited < 5, "the first line comes before anything heavy is imported"
    assert "✗" not in out
    assert err == "", "what libraries say is no part of the story"
    assert out.count("✓") >= 15
    for claim in ("brake stopped the run", "nothing of the person is left", "the record is sound"):
        assert claim in out
    assert list((tmp_path / "home").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "tmp"]
    made = list((tmp_path / "tmp").iterdir())
    assert len(made) == 1
    assert not (made[0] / "s").exists(), "the socket is gone with the service"
    assert made[0].name.startswith("muniment-demo-")
    certificate = json.loads((made[0] / "certificate.json").read_text())
    assert certificate["certificate"]["right"] == "erasure"


def test_help_and_the_first_line_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom api.cli import run\nrun(['--help'])\n"
        "heavy = {'sqlalchemy', 'sqlmodel', 'fastapi', 'boto3', 'psycopg', 'apscheduler', 'pydantic'}\n"
        "sys.exit(len(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "verify-report" in done.stdout

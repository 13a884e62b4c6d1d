"""The built package: an image holds what was installed and no checkout beside it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]
HERE = Path(__file__).resolve().parents[2]
PROGRAM = f"""
import sys
sys.path[:] = [sys.argv[1], *(one for one in sys.path if one != {str(HERE)!r})]
from api.cli import run
from api.commands.anchors import WITNESS
from api.demo.story import recruiting
assert WITNESS.is_relative_to(sys.argv[1]) and WITNESS.is_file()
assert recruiting().is_relative_to(sys.argv[1]) and (recruiting() / "classes.yaml").is_file()
sys.exit(run(["init", "--data", sys.argv[2], "--json"]))
"""


def test_what_is_installed_without_a_checkout_makes_a_folder_of_the_newest_schema(tmp_path: Path) -> None:
    # The migrations were in no package: the image that infra/Dockerfile builds could not make its database.
    built = tmp_path / "built"
    (made,) = WheelBuilder(str(HERE)).build(directory=str(built), versions=["standard"])
    with zipfile.ZipFile(made) as wheel:
        wheel.extractall(tmp_path / "installed")
    arguments = [sys.executable, "-I", "-c", PROGRAM, str(tmp_path / "installed"), str(tmp_path / "data")]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tenant"] == "default"

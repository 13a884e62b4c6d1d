"""Help is quick: of every command and subcommand, it imports nothing of the service; and each is documented."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
HEAVY = (
    "alembic",
    "apscheduler",
    "boto3",
    "botocore",
    "fastapi",
    "opentelemetry",
    "psycopg",
    "pydantic",
    "sqlalchemy",
    "sqlmodel",
    "uvicorn",
)
PROGRAM = """
import contextlib, io, json, sys
import click
from api.cli import muniment, run

def walk(command, path):
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), [*path, name])

told, before = {}, set(sys.modules)
for path in walk(muniment, []):  # which imports the command's module
    page = io.StringIO()
    with contextlib.redirect_stdout(page):
        code = run([*path, "--help"])
    new = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
    told[" ".join(path)] = {"code": code, "page": page.getvalue(), "imports": new}
    before = set(sys.modules)
print(json.dumps(told))
"""


def test_the_help_of_every_command_and_subcommand_imports_nothing_of_the_service() -> None:
    """Processor time is no measure on a busy machine; what is imported is, and it decides about the time."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert {"init", "serve", "tenant create", "key rotate", "rebuild", "restore-check", "verify", "doctor"} <= set(told)
    assert len(told) > 30
    heavy = {path: [name for name in one["imports"] if name in HEAVY] for path, one in told.items()}
    assert {path: names for path, names in heavy.items() if names} == {}
    documented = dict(re.findall(r"^\| `muniment ([a-z -]+)` \|[^|]*\| (yes)? *\|", DOCUMENT.read_text(), re.MULTILINE))
    groups = {path.rpartition(" ")[0] for path in told}
    assert documented == {path: "yes" * ("--json" in one["page"]) for path, one in told.items() if path not in groups}
    for path, one in told.items():
        assert one["code"] == 0, path
        assert one["page"].startswith(f"Usage: muniment {path}".rstrip()), path
    # Nothing told that a hold may name several people, and every right offered a correction.
    words = {path: " ".join(one["page"].split()) for path, one in told.items()}
    assert "--subject TEXT Everything about this person; - reads from stdin. May be given again." in words["hold place"]
    assert [path for path in words if "--correct" in words[path]] == ["request rectify"]
    assert "[default: api,worker,scheduler]" in words["serve"]

"""An erasure that the code before the newest revision of the tables began, killed, goes on under the code of now.

The earlier code is taken from the repository's own history, so that nothing here has to guess what it wrote.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from api import migrate
from api.settings import load
from api.wiring import build
from erasure.parts import Tenant
from erasure.report_check import check
from registry.tenants import get_tenant
from tests.erasure.conftest import START, World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
REVISIONS = "infra/migrations/versions"
BEGUN = """
import os, sys
from importlib import util
from pathlib import Path
tree, base, commits = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
sys.path.insert(0, tree)
spec = util.spec_from_file_location("earlier", f"{tree}/tests/erasure/conftest.py")
made = util.module_from_spec(spec)
spec.loader.exec_module(made)
import erasure
import sqlalchemy as sa
assert erasure.__file__.startswith(tree), erasure.__file__
world = made.World(base)
for number in range(9):
    world.note(f"n{number}", f"Ada Lovelace, remark {number} about rain")
source = world.note("s1", "Ada again")
world.file("ada.txt", "a summary of Ada", subjects=(), sources=[source])
world.note("b1", "Bob stays", owner=made.BOB)
said = world.say_as("my address is 12 Byron Lane")
request = world.ask()
world.plan(request)
world.approve(request)
(base / "begun").write_text(f"{request} {said}")
left = int(commits)
def committed(connection):
    global left
    left -= 1
    if not left:
        os._exit(9)
sa.event.listen(sa.Engine, "commit", committed)
made.run_due(world.parts, world.tenant, world.now)
"""


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as it was right before the newest revision of the tables was added."""
    newest = max(path.name for path in (ROOT / REVISIONS).glob("0*.py"))
    try:
        added = git("log", "--format=%H", "--diff-filter=A", "--", f"{REVISIONS}/{newest}").decode().split()
        packed = git("archive", f"{added[-1]}^")
    except (OSError, subprocess.CalledProcessError, IndexError):
        pytest.skip("the history of the repository is not here")
    tree = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tree, filter="data")
    return tree


def opened_again(base: Path) -> Any:
    """The same folder under the code of now."""
    world: Any = object.__new__(World)
    world.base, world.now, world.memory, world.faults = base, START + timedelta(minutes=30), {}, {}
    world.files, world.database_file = base / "stores" / "cvs", base / "stores" / "app.db"
    world._settings = load(base / "data", allow_targets=f"file:{base}/stores/**,sqlite:{base}/stores/**")
    services = build(world._settings)
    assert migrate.upgrade(services.database), "the earlier code knew an earlier schema"
    services.close()
    world.start_again()
    with world.services.database.unscoped() as session:
        row = get_tenant(session, "acme")
        world.tenant = Tenant(tenant_id=row.id, name=row.name, log_id=row.log_id)
    return world


@pytest.mark.scenario("D1")
@pytest.mark.parametrize("commits", [2, 10, 20, 30])
def test_what_earlier_code_began_and_did_not_end_ends_the_same(earlier: Path, tmp_path: Path, commits: int) -> None:
    command = [sys.executable, "-c", BEGUN, str(earlier), str(tmp_path), str(commits)]
    begun = subprocess.run(command, cwd=earlier, capture_output=True, text=True, check=False)
    assert begun.returncode == 9, begun.stderr
    request, said = (tmp_path / "begun").read_text().split()
    world = opened_again(tmp_path)
    try:
        world.work()
        assert world.state(request) == "completed"
        assert world.text_of(said) is None
        assert not (world.files / "ada.txt").exists()
        assert world.bytes_left("Ada Lovelace, remark", "12 Byron Lane") == []
        assert world.bytes_left("Bob stays")
        report = world.reader.certificate(world.acting(), request)
        log_key = json.loads(report)["certificate"]["log"]["key"]
        assert check(report, world.services.certificate_signer(world.tenant.log_id).vkey, log_key)
    finally:
        world.close()

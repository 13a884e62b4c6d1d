"""A person with very many copies, each phase of whose erasure is a process of its own: what it takes, or dies of.

Run by `test_erasure_many.py`: `python -m tests.erasure.many BASE PHASE [KILL]`. A phase prints its processor seconds,
the most memory it held beyond what the process had with everything loaded (`peak`), and the same with the pages of
files that it looked at in place (`mapped`), which the system takes back when it needs them. With KILL it ends itself
(SIGKILL) in place of the commit of that number.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from api import database
from api.settings import load
from erasure.handout import open_export
from erasure.parts import Tenant
from erasure.rendering import paper
from erasure.report_check import check
from erasure.signed_file import SignedFile
from erasure.worker import run_due
from registry import artifacts
from tests.erasure.conftest import World
from tests.erasure.crashing import break_commit

ADA = "email:ada@example.org"
CHUNK = 1_000
CACHE = 2 << 20
"""What a connection to SQLite holds of its pages here. The service's own 32 megabytes are no more with more copies."""
_KEPT = "many.json"
DERIVED = 10
"""One copy of so many was made from the one before it."""


def make(base: Path, count: int) -> None:
    """A service, a store with rows of the person, and verified requests for a package of them and for their end."""
    world = World(base)
    world.classes({"note": {"erasure": {"on_request": "erase", "required": "L1"}}})
    with closing(sqlite3.connect(world.database_file)) as db:
        rows = ((f"k{number}", ADA, f"remark {number} of somebody who leaves") for number in range(count))
        db.executemany("INSERT INTO note VALUES (?, ?, ?)", rows)
        db.commit()
    for start in range(0, count, CHUNK):
        items = [_item(number) for number in range(start, min(start + CHUNK, count))]
        with world.parts.transactions(world.tenant.tenant_id) as session:
            results = artifacts.register(session, world.services.vault, world.acting("writer"), items, world.now)
        assert not [result for result in results if result["status"] == "rejected"], results[0]
    _keep(world, world.ask(), export=world.ask(right="access"))
    world.close()


def _item(number: int) -> dict[str, Any]:
    item: dict[str, Any] = {"id": f"art_k{number}", "data_class": "note", "store": "db", "subjects": [ADA]}
    item["locator"] = {"table": "note", "key": {"id": f"k{number}"}}
    if number % DERIVED == DERIVED - 1:
        item["sources"] = [f"art_k{number - 1}"]
    return item


def _keep(world: World, request: str, **more: str) -> None:
    kept = _kept(world.base) if (world.base / _KEPT).exists() else {}
    said = {
        **kept, **more,
        "request": request, "now": world.now.isoformat(), "id": world.tenant.tenant_id, "name": world.tenant.name,
        "log": world.tenant.log_id, "log_key": world.log_key, "certificate_key": world.certificate_key,
    }  # fmt: skip
    (world.base / _KEPT).write_text(json.dumps(said))


def _kept(base: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((base / _KEPT).read_text())
    return said


def reopened(base: Path) -> tuple[World, str]:
    """The world that lies in a folder, and its request."""
    said = _kept(base)
    world = World.__new__(World)
    world.base, world.now = base, datetime.fromisoformat(said["now"])
    world.database_file = base / "stores" / "app.db"
    world.memory, world.faults = {}, {}
    world.tenant = Tenant(tenant_id=said["id"], name=said["name"], log_id=said["log"])
    world.log_key, world.certificate_key = said["log_key"], said["certificate_key"]
    world._settings = load(base / "data", allow_targets=f"file:{base}/stores/**,sqlite:{base}/stores/**")
    world.start_again()
    return world, said["request"]


def _approve(world: World, request: str) -> None:
    plan_hash = world.reader.get(world.acting(), request)["plan_hash"]
    world.planner.approve(world.acting("carol"), request, plan_hash, world.now)


def _work(world: World, request: str, asked: str | None = None) -> None:
    for _ in range(4):
        run_due(world.parts, world.tenant, world.now)
        world.now += timedelta(minutes=1)
        if world.state(asked or request) == "completed":
            break
    _keep(world, request)


def _export(world: World, request: str) -> None:
    """The request for a package, from its plan to its end, or the rest of that."""
    asked = _kept(world.base)["export"]
    if world.state(asked) == "verified":
        world.plan(asked)
    if world.state(asked) == "planned":
        _approve(world, asked)
    _work(world, request, asked)
    assert world.state(asked) == "completed"


def _hand_out(world: World, _request: str) -> None:
    handout = open_export(world.parts, world.acting(), _kept(world.base)["export"], world.now)
    assert sum(map(len, handout.pieces)) == handout.size


def _check(world: World, request: str) -> None:
    """The certificate holds, and nothing of the person is in the store."""
    with world.reader.certificate_file(world.acting(), request) as signed:
        assert check(signed.view(), world.certificate_key, world.log_key)
    with closing(sqlite3.connect(world.database_file)) as db:
        assert db.execute("SELECT count(*) FROM note").fetchone() == (0,)


def _sent(file: SignedFile) -> None:
    """What goes out, as it goes out."""
    with file:
        assert sum(map(len, file.pieces())) == file.size


def _set(world: World, request: str, form: Callable[[memoryview], SignedFile]) -> None:
    with world.reader.certificate_file(world.acting(), request) as signed:
        _sent(form(signed.view()))


PHASES: dict[str, Callable[[World, str], object]] = {
    "export": _export,
    "export_file": _hand_out,
    "plan": lambda world, request: world.plan(request),
    "plan_file": lambda world, request: world.reader.plan_file(world.acting(), request).close(),
    "approve": _approve,
    "work": _work,
    "show": lambda world, request: _sent(world.reader.certificate_file(world.acting(), request)),
    "page": lambda world, request: _set(world, request, paper.html_file),
    "paper": lambda world, request: _set(world, request, paper.pdf_file),
    "check": _check,
    "empty_file": _hand_out,  # the package is erased by now
}


def _memory(what: str) -> int:
    """A figure of this process's memory, in bytes. Source: proc(5), /proc/pid/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) * 1024


def run(base: Path, phase: str, kill: int | None) -> None:
    """A phase, and what it took; what SQLite keeps of its pages is held small, so that it hides nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_PRAGMAS", (*database._PRAGMAS, f"cache_size = -{CACHE >> 10}"))
        world, request = reopened(base)
        if kill is not None:
            break_commit(patch, kill, after=False, end=lambda: os.kill(os.getpid(), signal.SIGKILL))
        watching = [sys.executable, "-S", str(Path(__file__).with_name("watching.py")), str(os.getpid())]
        with subprocess.Popen(watching, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watch:
            assert watch.stdout is not None
            assert watch.stdout.readline() == "begun\n"
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: proc(5)
            held, all_of_it, started = _memory("RssAnon"), _memory("VmRSS"), time.process_time()
            PHASES[phase](world, request)
            spent = time.process_time() - started
            mapped = _memory("VmHWM") - all_of_it
            peak = int(watch.communicate("\n")[0]) - held
    told = {"seconds": spent, "peak": peak, "mapped": mapped, "state": world.state(request)}
    sys.stdout.write(json.dumps(told))
    world.close()


if __name__ == "__main__":
    if sys.argv[2] == "make":
        make(Path(sys.argv[1]), int(sys.argv[3]))
    else:
        run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)

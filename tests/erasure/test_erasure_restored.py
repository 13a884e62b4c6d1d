"""A certificate that is issued after our own database was restored passes its check, however old the backup was."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from erasure.recover import heal
from erasure.report_check import check

_SLOW = pytest.mark.slow


def shipped(world: Any) -> None:
    world.services.record.ship_outbox(world.tenant.tenant_id, world.now)
    world.services.journal.changed(world.tenant.tenant_id, world.now)


def copied(source: Path, target: Path) -> None:
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)


@pytest.mark.scenario("B4")
@pytest.mark.parametrize(
    "when", [pytest.param("before", marks=_SLOW), "received", pytest.param("planned", marks=_SLOW), "replanned"]
)
def test_the_certificate_of_an_erasure_that_was_done_again_passes_its_own_check(world: Any, when: str) -> None:
    # It leaned on a plan, a fence and a number of copies that the restored rows did not have, or had of another plan.
    database, kept = world.base / "data" / "muniment.db", world.base / "yesterday.db"
    world.change(kek_grace=timedelta(days=7), keep_groups=world.services.erasure.keep_groups)
    note = world.note("n1", "Ada wrote this")
    world.file("s.txt", "a summary of Ada", subjects=(), sources=[note])
    world.say("good morning from Ada")

    def backup(moment: str) -> None:
        if when == moment:
            shipped(world)
            copied(database, kept)

    backup("before")
    request = world.ask()
    backup("received")
    world.plan(request)
    backup("planned")
    if when == "replanned":
        backup("replanned")
        world.file("t.txt", "more about Ada")
        world.plan(request)
    world.approve(request)
    world.work()
    first = world.reader.certificate(world.acting(), request)
    shipped(world)
    world.services.database.engine.dispose()
    copied(kept, database)

    healed = heal(replace(world.services.recovery, parts=world.parts), world.tenant, world.now)
    assert healed is not None
    assert list(healed.requests) == [request]
    world.work()
    assert world.state(request) == "completed"
    again = world.reader.certificate(world.acting(), request)
    assert again != first
    said = check(again, world.certificate_key, world.log_key)
    assert "left to do when the record was applied to a restored database" in said[-1]

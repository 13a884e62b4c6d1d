"""What somebody kept is kept after our own database was restored, however old the backup: a hold, or a human's word."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from erasure.recover import Healed, heal
from retention.models import HoldRow
from tests.erasure.conftest import ADA, BOB
from tests.erasure.test_erasure_collateral import hold, release
from tests.erasure.test_erasure_restored import copied, shipped

_SLOW = pytest.mark.slow


class Backup:
    """Yesterday's copy of the database."""

    def __init__(self, world: Any) -> None:
        world.change(kek_grace=timedelta(days=7), keep_groups=world.services.erasure.keep_groups)
        self._world, self.file = world, Path(world.base) / "yesterday.db"
        self._database = Path(world.base) / "data" / "muniment.db"

    def take(self) -> None:
        shipped(self._world)
        copied(self._database, self.file)

    def bring_back(self) -> Healed | None:
        world = self._world
        shipped(world)
        world.services.database.engine.dispose()
        copied(self.file, self._database)
        healed = heal(replace(world.services.recovery, parts=world.parts), world.tenant, world.now)
        world.work()
        return healed


@pytest.mark.parametrize(
    "when",
    [pytest.param("before", marks=_SLOW), pytest.param("planned", marks=_SLOW), "approved",
     pytest.param("asked", marks=_SLOW)],
)  # fmt: skip
def test_a_joint_copy_that_a_human_kept_is_kept_by_a_database_that_does_not_know_it(world: Any, when: str) -> None:
    """What was approved was erased again after a restore, whatever somebody had said about it since."""
    yesterday = Backup(world)
    joint = world.file("both.txt", "ada and bob", subjects=(ADA, BOB))
    world.file("ada.txt", "ada alone")
    world.file("bob.txt", "bob alone", subjects=(BOB,))  # by which the store's place is known again

    def backup(moment: str) -> None:
        if when == moment:
            yesterday.take()

    backup("before")
    stop = hold(world, joint)
    request = world.ask()
    world.plan(request)
    backup("planned")
    world.approve(request)
    backup("approved")
    world.work()
    release(world, stop)
    world.work()
    backup("asked")
    (copy,) = world.reader.copies(world.acting(), request, state="awaiting_human")
    world.desk.settle_copy(
        world.acting("ann"), request, copy["copy"], outcome="retained", comment="bob needs it", now=world.now
    )
    world.work()
    assert world.state(request) == "completed_with_retained"

    assert yesterday.bring_back() is not None
    assert (world.files / "both.txt").exists()
    assert not (world.files / "ada.txt").exists()
    (copy,) = [copy for copy in world.reader.copies(world.acting(), request) if copy.get("artifact") == joint]
    assert copy["state"] == "retained"
    assert world.state(request) == "completed_with_retained"


def test_whoever_leads_next_puts_a_hold_in_force_that_the_leader_before_left_without_its_row(world: Any) -> None:
    """Only a start looked for it: a process that took over while it ran erased what the record held."""
    held = world.file("held.txt", "of the suit")
    hold(world, held)
    # As a crash leaves it: the event is in the record, and the row is not there.
    with world.parts.transactions(world.tenant.tenant_id) as session:
        session.execute(sa.delete(HoldRow))
    shipped(world)
    world.services.timeline.doubt()
    assert world.services.lead(world.services.clock.now())
    request = world.erase()
    assert world.state(request) == "completed_with_retained"
    assert (world.files / "held.txt").exists()

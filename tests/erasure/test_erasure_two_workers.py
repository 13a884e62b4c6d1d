"""Two workers at one request at once: one certificate of each version, and no state that overwrites a newer one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import col, select

from connectors.memory import Faults
from erasure.errors import IllegalMove
from erasure.models import CertificateRow, RequestRow
from erasure.worker import finish, run_due
from tests.erasure.conftest import BOB


class Between:
    """A record that is slow to prove: `then` happens meanwhile, once."""

    def __init__(self, record: Any, then: Callable[[], object]) -> None:
        self._record, self._then = record, [then]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def evidence(self, *arguments: Any) -> Any:
        if self._then:
            self._then.pop()()
        return self._record.evidence(*arguments)


def issued(world: Any) -> list[str]:
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        rows = session.exec(select(CertificateRow).order_by(col(CertificateRow.number)))
        return [row.version for row in rows]


def test_two_workers_at_the_end_of_the_quiet_period_issue_one_final_certificate(world: Any) -> None:
    # The second one broke off on the number of the first, or issued another.
    world.note("n1", "Ada in the database")
    request = world.erase()
    world.now += timedelta(days=2)
    world.services.keks.turn(world.now, force=True)
    record = world.parts.record
    other = world.parts
    world.change(record=Between(record, lambda: finish(other, world.tenant, request, world.now)))
    assert not finish(world.parts, world.tenant, request, world.now)
    assert issued(world) == ["interim", "final"]
    world.work(1)
    assert issued(world) == ["interim", "final"]


def test_a_request_that_was_reopened_meanwhile_is_not_completed_over_it(world: Any) -> None:
    world.note("n1", "Ada in the database")
    request = world.erase()
    world.now += timedelta(days=2)
    world.services.keks.turn(world.now, force=True)
    record, other = world.parts.record, world.parts

    def late() -> None:
        # A late copy that another worker found and put into the plan reopens the request.
        with other.transactions(world.tenant.tenant_id) as session:
            row = session.get_one(RequestRow, (world.tenant.tenant_id, request))
            row.state, row.completed_at, row.final_due_at = "executing", None, None
            session.add(row)

    world.change(record=Between(record, late))
    assert not finish(world.parts, world.tenant, request, world.now)
    assert world.state(request) == "executing"


def test_nobody_settles_a_copy_of_a_request_that_is_over(world: Any) -> None:
    world.classes({"summary": {"derived": {"default": "review"}}})
    note = world.note("n1", "Ada in the database")
    world.file("s.txt", "a summary of Ada", subjects=(), sources=[note])
    request = world.ask()
    world.plan(request)
    [copy] = [row for row in world.rows(request) if row.state == "awaiting_human"]
    world.desk.cancel(world.acting("ann"), request, now=world.now)
    with pytest.raises(IllegalMove, match="is cancelled"):
        world.desk.settle_copy(world.acting("ann"), request, copy.copy_no, outcome="erase", comment="x", now=world.now)


def test_late_copies_join_their_request_behind_many_of_another_that_are_stuck(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Copies that a store refuses stay marked, and stood before every later one: nobody looked past the first thousand.
    monkeypatch.setattr("erasure.due.LATE_AT_ONCE", 1)
    world.memory_store("odd", Faults(refuses=frozenset({"a", "b"})))
    for key in ("a", "b"):
        world.keep_in_memory("odd", key, f"Bob in a store that refuses {key}", owner=BOB)
    stuck = world.erase(BOB)
    assert world.state(stuck) == "partially_failed"
    world.note("n1", "Ada in the database")
    request = world.erase()
    late = world.file("late.txt", "Ada again")
    world.work()
    assert world.copy_states(request)[late] == "erased_physical"


def test_a_poll_with_nothing_due_is_one_look_and_loads_no_request_that_is_through(world: Any) -> None:
    # It was seven transactions, four of them to write, and read every request that ever ended, every other second.
    world.note("n1", "Ada in the database")
    request = world.erase()
    world.now += timedelta(days=2)
    world.services.keks.turn(world.now, force=True)
    world.work(1)
    assert issued(world) == ["interim", "final"]
    engine, begun, said = world.services.database.engine, [], []
    sa.event.listen(engine, "begin", lambda *_: begun.append(1))
    sa.event.listen(engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    assert run_due(world.parts, world.tenant, world.now) == 0
    assert len(begun) == 1
    assert len(said) <= 6, said
    assert world.reader.get(world.acting(), request)["final_due_at"] is None

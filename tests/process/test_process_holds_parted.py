"""A hold that the record has and the database not is in force, or ended, soon: at once, or from the next start on.

Embedded and on servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from api.wiring import HOLD_UNDER_WAY
from muniment.errors import ApiProblem
from tests.process.test_process_keeping import body_of, hold, request, say, until, without_grace

__all__ = ["without_grace"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@contextmanager
def crashing(running: Any, statement: str) -> Iterator[None]:
    """Have the service end as it comes to a statement of its own, and start again."""
    engine = running.services.database.engine
    reached: list[str] = []

    def dies(_connection: Any, _cursor: Any, said: str, *_more: Any) -> None:
        if " ".join(said.split()).upper().startswith(statement):
            reached.append(said)
            raise OSError("the process ends here")

    sa.event.listen(engine, "before_cursor_execute", dies)
    with pytest.raises(ApiProblem):
        yield
    running.stop()
    sa.event.remove(engine, "before_cursor_execute", dies)
    assert reached, "the crash was somewhere else"
    running.start()


@contextmanager
def failing(running: Any, statement: str, times: int) -> Iterator[list[str]]:
    """Have the database refuse a statement so many times; the service goes on."""
    engine = running.services.database.engine
    reached: list[str] = []

    def refuses(_connection: Any, _cursor: Any, said: str, *_more: Any) -> None:
        if " ".join(said.split()).upper().startswith(statement) and len(reached) < times:
            reached.append(said)
            raise OSError("the database has no room")

    sa.event.listen(engine, "before_cursor_execute", refuses)
    yield reached
    sa.event.remove(engine, "before_cursor_execute", refuses)
    assert len(reached) == times


def states(desk: Any) -> dict[str, str]:
    return {one["id"]: one["state"] for one in desk.call("legal", "GET", "/v1/holds")["items"]}


def test_what_the_record_holds_is_held_though_the_row_was_lost_in_a_crash(desk: Any, running: Any) -> None:
    """The record said that a hold was in force since then, and what it held went with the next erasure."""
    entry = say(desk, "what the suit is about", "suit")
    with crashing(running, "INSERT INTO HOLD"):
        hold(desk, entries=[entry])
    [(found, state)] = states(desk).items()
    assert state == "in_force"
    erasure = request(desk)
    until(desk, erasure, "completed_with_retained")
    assert body_of(desk, entry) == "what the suit is about"

    with crashing(running, "UPDATE HOLD"):
        desk.call("legal2", "POST", f"/v1/holds/{found}/release?preview=false")
    assert states(desk) == {found: "released"}
    until(desk, erasure, "completed")
    assert body_of(desk, entry)["request"] == erasure


def test_a_row_that_cannot_be_written_once_is_written_at_once_and_later_where_that_fails_too(
    desk: Any, running: Any
) -> None:
    """The record said held, the caller was told of a failure, and nothing was held before the next start."""
    services = running.services
    tenant_id = next(one.tenant_id for one in services.tenants() if one.tenant == desk.tenant)
    with failing(running, "INSERT INTO HOLD", 1):
        made = hold(desk, data_classes=["transcript"])
    [(first, state)] = states(desk).items()
    assert (first, state) == (made, "in_force")
    with failing(running, "UPDATE HOLD", 1):
        desk.call("legal2", "POST", f"/v1/holds/{first}/release?preview=false")
    assert states(desk) == {first: "released"}

    with failing(running, "INSERT INTO HOLD", 2), pytest.raises(ApiProblem):
        hold(desk, data_classes=["transcript"])
    now = services.clock.now()
    assert services.finish_hold_rows(tenant_id, now) == 0, "whoever is placing it now may still write the row"
    assert set(states(desk)) == {first}
    assert services.finish_hold_rows(tenant_id, now + HOLD_UNDER_WAY) > 0
    assert sorted(states(desk).values()) == ["in_force", "released"]
    assert services.finish_hold_rows(tenant_id, now + HOLD_UNDER_WAY) == 0
    assert "holds" in services.jobs.names

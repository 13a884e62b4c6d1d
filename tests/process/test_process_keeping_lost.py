"""Parts with keys of their own outlive the database: it is lost and rebuilt, or comes back from yesterday."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.process.test_process_keeping import body_of, hold, request, say, ten, until
from tests.process.test_process_rebuild import lose_database, own, rebuild, ship, tenant_id
from tests.process.test_process_restore import again, taken

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def serving_again(running: Any) -> Iterator[None]:
    """A test that failed between stop and start must not fail those after it."""
    yield
    if running._server.should_exit:
        running.start()


def test_after_the_database_is_lost_what_was_kept_reads_and_what_went_since_does_not(desk: Any, running: Any) -> None:
    entries = ten(desk)
    two = [say(desk, f"two {number}", "two") for number in range(2)]
    hold(desk, entries=[entries[3]])
    limited = request(desk, scope={"conversation": "two"})
    until(desk, limited, "completed")
    services = running.services
    services.journal.snapshot(tenant_id(running, desk), services.clock.now())
    erasure = request(desk)
    until(desk, erasure, "completed_with_retained")
    before = [body_of(desk, entry) for entry in (*entries, *two)]
    assert [number for number, body in enumerate(before) if isinstance(body, str)] == [3]
    ship(running, desk)
    running.stop()
    lose_database(running)
    report = own(rebuild(running), desk)
    assert (report["verify"], report["faults"]) == ("sound", [])
    running.start()
    after = [body_of(desk, entry) for entry in (*entries, *two)]
    assert [body if isinstance(body, str) else body["request"] for body in after] == [
        body if isinstance(body, str) else body["request"] for body in before
    ]


def test_yesterdays_database_keeps_what_is_held_and_nothing_that_went_since(desk: Any, running: Any) -> None:
    entries = ten(desk)
    hold(desk, entries=[entries[3]])
    ship(running, desk)
    kept = taken(running)
    erasure = request(desk)
    until(desk, erasure, "completed_with_retained")
    ship(running, desk)
    again(running, kept)
    bodies = [body_of(desk, entry) for entry in entries]
    assert [number for number, body in enumerate(bodies) if isinstance(body, str)] == [3]
    assert {body["request"] for body in bodies if not isinstance(body, str)} == {erasure}

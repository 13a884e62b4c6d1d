"""What the service announces reaches the record once each, in the order in which it took effect, without a gap.

Embedded and on servers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import col, select

from api.verification import logs_of, own_vkey, read_only, stores_of, verify_log
from audit.verify import Options
from ledger import index
from ledger.entry import Kind
from ledger.models import LogState, OutboxRow
from registry.playback import read_entries
from tests.process.test_process_rebuild import tenant_id

pytestmark = pytest.mark.process
WRITERS, EACH = 4, 12


class Undone(Exception):
    """The change that was to be announced did not come about."""


class Announcer:
    """Announces numbered changes of one tenant, and reads what became of them."""

    def __init__(self, running: Any, desk: Any) -> None:
        self.running, self.tenant = running, tenant_id(running, desk)

    def announce(self, number: int, *, undone: bool = False) -> None:
        services = self.running.services
        with services.database.transaction(self.tenant) as session:
            services.record.announce(session, self.tenant, Kind.CONTENT_READ, {"entries": number}, services.clock.now())
            if undone:
                raise Undone

    def ship(self) -> None:
        self.running.services.record.ship_outbox(self.tenant, self.running.services.clock.now())

    def rows(self) -> list[OutboxRow]:
        with self.running.services.database.transaction(self.tenant, write=False) as session:
            mine = select(OutboxRow).where(OutboxRow.tenant_id == self.tenant).order_by(col(OutboxRow.n))
            return list(session.exec(mine))

    def recorded(self) -> dict[str, int]:
        """Where each announcement stands in the log, by its id, read from the batches."""
        services = self.running.services
        with services.database.transaction(self.tenant, write=False) as session:
            state = index.state_of(session, self.tenant)
            assert state is not None
            rows = sorted(index.rows(session, self.tenant, range(state.size)), key=lambda row: row.idx)
            read = read_entries(session, services.vault, services.log, self.tenant, rows)
        told = [(entry.header.id, entry.row.idx) for entry in read if entry.header.kind == Kind.CONTENT_READ]
        assert len(dict(told)) == len(told), "no announcement stands there twice"
        return dict(told)


@pytest.fixture
def announcer(running: Any, desk: Any) -> Announcer:
    return Announcer(running, desk)


def test_side_by_side_and_with_changes_undone_the_numbers_have_no_gap_and_the_record_their_order(
    announcer: Announcer,
) -> None:
    before = len(announcer.rows())

    def work(writer: int) -> None:
        for number in range(EACH):
            with suppress(Undone):
                announcer.announce(writer * EACH + number, undone=number % 3 == 2)
            if number % 5 == 4:
                announcer.ship()

    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(work, range(WRITERS)))
    announcer.ship()
    rows = announcer.rows()
    assert len(rows) == before + WRITERS * EACH * 2 // 3
    assert [row.n for row in rows] == list(range(1, len(rows) + 1))
    places = [row.idx for row in rows]
    assert None not in places
    assert places == sorted(set(places))  # type: ignore[type-var]  # none is None, as asserted
    recorded = announcer.recorded()
    assert {row.entry_id: row.idx for row in rows if row.kind == Kind.CONTENT_READ} == recorded


def looked_at(announcer: Announcer) -> list[tuple[str, str | None]]:
    """What `muniment verify --all` says of the log while it is served."""
    chosen = announcer.running.services.settings
    with stores_of(chosen) as (bucket, hot), read_only(chosen) as sessions:
        log = next(one for one in logs_of(chosen, sessions, bucket) if one.tenant_id == announcer.tenant)
        keys = [key for key in (own_vkey(chosen, log.origin),) if key is not None]
        report = verify_log(
            log, bucket=bucket, hot=hot, keys=keys, certificate_keys=(), options=Options(known_size=log.size),
            sessions=sessions, index=True,
        )  # fmt: skip
    return [(one.verdict.value, one.object) for one in report.findings]


def test_the_tables_agree_with_the_record_while_it_is_served_and_a_counter_that_was_set_back_gives_no_number_twice(
    announcer: Announcer, running: Any
) -> None:
    services = running.services
    announcer.ship()
    services.log.publish(announcer.tenant, services.clock.now())

    def work() -> None:
        for number in range(EACH):
            announcer.announce(number)
            announcer.ship()

    with ThreadPoolExecutor(1) as writer:
        done = writer.submit(work)
        seen = [looked_at(announcer)]
        while not done.done():
            seen.append(looked_at(announcer))
        done.result()
    assert seen == [[]] * len(seen)
    services.log.publish(announcer.tenant, services.clock.now())
    before = announcer.rows()
    with services.database.transaction(announcer.tenant) as session:
        session.execute(sa.update(LogState).where(col(LogState.tenant_id) == announcer.tenant).values(outbox_counter=1))
    assert looked_at(announcer) == [("altered", "log_state")]
    announcer.announce(0)
    announcer.ship()
    after = announcer.rows()
    assert [row.n for row in after] == list(range(1, len(before) + 2))
    assert looked_at(announcer) == []


@pytest.mark.parametrize("point", ["before the index knows the batch", "before they are marked"])
def test_a_crash_while_announcements_are_sent_leaves_each_once(announcer: Announcer, running: Any, point: str) -> None:
    engine = running.services.database.engine

    def dies(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        told = statement.upper().lstrip()
        if told.startswith("UPDATE OUTBOX") if point == "before they are marked" else "INTO ENTRY" in told:
            raise OSError("the process ends here")

    sa.event.listen(engine, "before_cursor_execute", dies)
    for number in range(3):
        announcer.announce(number)
    waiting = [row.entry_id for row in announcer.rows() if row.idx is None and row.kind == Kind.CONTENT_READ]
    assert waiting
    with pytest.raises(Exception, match="the process ends here"):
        announcer.ship()
    running.stop()
    sa.event.remove(engine, "before_cursor_execute", dies)
    running.start()
    announcer.announce(3)
    announcer.ship()
    rows = announcer.rows()
    assert [row.n for row in rows] == list(range(1, len(rows) + 1))
    recorded = announcer.recorded()
    assert {row.entry_id: row.idx for row in rows if row.kind == Kind.CONTENT_READ} == recorded
    assert set(waiting) <= recorded.keys()
    assert [row.idx for row in rows] == sorted(row.idx or 0 for row in rows)

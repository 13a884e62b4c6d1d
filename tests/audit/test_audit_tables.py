"""One changed row of any table that the record is written by: `verify --all` names its table, or it is no promise.

Every column of these tables stands below, either as what is found, or with the reason why a changed one does no harm.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlmodel import SQLModel

from audit.findings import Verdict
from ledger import models, outbox
from ledger.entry import Kind, uuid7
from ledger.errors import RecordDamaged
from ledger.payload_rows import fill
from registry.classes import put_class
from tests.audit.test_audit_bytes import Auditor
from tests.audit.test_audit_service import Kept, kept

__all__ = ["kept"]
RECORDER = "5e" * 16
LOCKED = {
    "state": "record", "personal": True, "owner": "team-support", "description": "what must stay",
    "categories": ["user.content"], "subject_types": ["user"], "purposes": ["support"], "legal_basis": "contract",
    "retention": {"keep": "P90D", "from": "created", "lock": "P30D", "then": "erase"},
    "erasure": {"on_request": "erase", "required": "L1"},
}  # fmt: skip

FOUND = {
    "log_state": (
        "tenant_id", "log_id", "origin", "size", "batch_first", "batch_count", "batch_digest", "previous", "fence",
        "checkpoint_size", "checkpoint_digest", "outbox_counter",
    ),
    "log_stream": ("tenant_id", "stream_no", "stream_id", "position"),
    "recorder_range": ("tenant_id", "recorder_id", "first", "last"),
    "recorder_beat": ("tenant_id", "recorder_id", "stream_no"),
    "payload_object": ("tenant_id", "name", "batch_first", "until", "deleted_at"),
    "outbox": ("tenant_id", "n", "entry_id", "kind", "idx"),
}  # fmt: skip
ELSEWHERE = {"entry": "test_audit_bytes", "part_places": "test_audit_bytes", "action": "test_registry_actions"}
BELIEVED = {
    "log_state": {
        "frontier": "nobody reads it",
        "checkpoint_at": "told to nobody; the time of a checkpoint is its anchors' to say",
        "read_only": "set, the log refuses and doctor says so; emptied, the next start meets the contradiction again",
    },
    "payload_object": {
        "dirty": "set, one object is looked into for nothing; emptied, it goes with the next key of its batch",
        "owner": "a run that is gone is taken over; a claimed object is decided again before it is deleted",
        "held": "the legal hold itself lies in the store, which refuses to delete",
        "size": "told in reports of what was freed",
    },
    "outbox": {
        "body": "of a row that was shipped nobody reads it; before, who writes rows can write the announcement itself",
        "at": "as the body",
    },
    "log_lease": dict.fromkeys(
        ("name", "owner", "until", "fence"), "two that believe they lead meet at the batch, which only one creates"
    ),
    "log_knock": dict.fromkeys(("knock_id", "log_tenant", "wants"), "a lost knock is made up for by who waits"),
    "staged": {
        **dict.fromkeys(
            ("tenant_id", "staged_id", "entries", "drafts", "answer", "row_digest"),
            "not believed: the row's digest is keyed, and one that does not fit is refused (test_ledger_staging)",
        ),
        **dict.fromkeys(("at", "answered_at"), "an answer that goes too soon was not read; its callers send again"),
    },
    "payload_walk": dict.fromkeys(
        ("tenant_id", "what", "place", "at", "ended"), "an object that is passed over stays longer; none goes sooner"
    ),
}  # fmt: skip


def test_every_column_is_found_or_has_its_reason() -> None:
    here = {name: table for name, table in SQLModel.metadata.tables.items() if _is_ledgers(name)}
    assert here.keys() == FOUND.keys() | ELSEWHERE.keys() | BELIEVED.keys()
    for name, table in here.items():
        if name not in ELSEWHERE:
            told = [*FOUND.get(name, ()), *BELIEVED.get(name, {})]
            assert sorted(told) == sorted(table.columns.keys()), name


def _is_ledgers(name: str) -> bool:
    tables = (getattr(model, "__tablename__", None) for model in vars(models).values() if isinstance(model, type))
    return name in set(tables)


@pytest.fixture
def recorded(kept: Kept) -> Kept:
    """The log of `kept`, with what a recorder of the client sent, and an announcement that is on its way."""
    services, now = kept.services, kept.services.clock.now()
    with services.database.transaction(kept.acting.tenant_id) as session:
        put_class(session, kept.acting, "locked", LOCKED, now)
    entries = []
    for seq in range(1, 9):
        kind, stream = ("recorder.heartbeat", "beats") if seq % 4 == 0 else ("turn.user", "conv_recorded")
        one = {"id": uuid7(now + timedelta(milliseconds=seq)), "stream": stream, "kind": kind, "seq": seq,
               "data_class": "locked" if seq < 3 else "transcript", "at": "2026-03-01T12:00:00Z",
               "subjects": ["user:eve"], "recorder": RECORDER, "body": {"content": f"text {seq}"}}  # fmt: skip
        entries.append(msgspec.json.encode(one))
    result = kept.services.record.append(kept.acting, entries, now)
    assert [one["status"] for one in result.results] == ["stored"] * len(entries), result.results
    for number in range(3):
        _announce(kept, number)
    kept.services.record.ship_outbox(kept.acting.tenant_id, now)
    _announce(kept, 3)
    services.log.publish(kept.acting.tenant_id, now)
    assert fill(services.locked, services.database.transaction, kept.acting.tenant_id, kept.acting.log_id)
    return kept


def _announce(made: Kept, number: int) -> None:
    services, tenant = made.services, made.acting.tenant_id
    with services.database.transaction(tenant) as session:
        services.record.announce(session, tenant, Kind.CONTENT_READ, {"entries": number}, services.clock.now())


UP = {("recorder_range", "first"), ("payload_object", "deleted_at")}
"""Changed the other way: a recorder's number more is believed, and nothing is deleted before it was."""
WAITING = {("outbox", "tenant_id"), ("outbox", "n")}
"""Looked for in a row that waits: one that was shipped stands in the record, and may be gone."""
NAMED_BY_THE_HEAD = {("outbox", "tenant_id"), ("outbox", "n")}


def other(value: Any, *, up: bool) -> Any:
    """The value, changed by one."""
    if isinstance(value, int) or value is None:
        return (value or 0) + (1 if up or not value else -1)
    if isinstance(value, bytes):
        return bytes([*value[:-1], value[-1] ^ 1])
    return value[:-1] + ("1" if value[-1] != "1" else "0")


def test_a_value_that_was_changed_by_one_is_named_by_its_table(recorded: Kept) -> None:
    auditor, engine = Auditor(recorded), recorded.services.database.engine
    assert auditor.look().findings == ()
    for table, columns in FOUND.items():
        names = list(SQLModel.metadata.tables[table].columns.keys())
        key = [column.name for column in SQLModel.metadata.tables[table].primary_key.columns]
        insert = sa.text(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})")
        remove = sa.text(f"DELETE FROM {table} WHERE {' AND '.join(f'{name} = :{name}' for name in key)}")
        with engine.begin() as connection:
            query = sa.text(f"SELECT * FROM {table} WHERE tenant_id = :t ORDER BY {', '.join(key)}")
            rows = [dict(row) for row in connection.execute(query, {"t": recorded.acting.tenant_id}).mappings()]
        for column in columns:
            case = (table, column)
            fitting = [row for row in rows if table != "outbox" or (row["idx"] is None) == (case in WAITING)]
            if table == "payload_object":
                fitting = [row for row in rows if (row["until"] is None) == (column != "until")]
            before = fitting[len(fitting) // 2]
            after = {**before, column: other(before[column], up=case in UP)}
            with engine.begin() as connection:
                connection.execute(remove, before)
                met = [row for row in rows if row is not before and all(row[name] == after[name] for name in key)]
                if not met:
                    connection.execute(insert, after)
            report = auditor.look()
            with engine.begin() as connection:
                if not met:
                    connection.execute(remove, after)
                connection.execute(insert, before)
            named = {one.object for one in report.findings}
            wanted = "log_state" if case in NAMED_BY_THE_HEAD else table
            assert wanted in named, (case, before, after, report.findings)
            assert {one.verdict for one in report.findings} <= {Verdict.ALTERED, Verdict.MISSING}, report.findings
    assert auditor.look().findings == ()


def test_a_counter_that_was_set_back_or_forward_gives_no_number_twice_and_is_named(recorded: Kept) -> None:
    services, tenant, engine = recorded.services, recorded.acting.tenant_id, recorded.services.database.engine
    auditor = Auditor(recorded)
    numbers = sa.text("SELECT n FROM outbox WHERE tenant_id = :t ORDER BY n")
    with engine.begin() as connection:
        before = list(connection.scalars(numbers, {"t": tenant}))
        connection.execute(sa.text("UPDATE log_state SET outbox_counter = 1 WHERE tenant_id = :t"), {"t": tenant})
    assert before == list(range(1, len(before) + 1))
    report = auditor.look()
    assert [(one.verdict, one.object) for one in report.findings] == [(Verdict.ALTERED, "log_state")]
    _announce(recorded, 4)
    services.record.ship_outbox(tenant, services.clock.now())
    with engine.begin() as connection:
        assert list(connection.scalars(numbers, {"t": tenant})) == [*before, len(before) + 1]
    assert auditor.look().findings == ()
    # The rows of a database that was made anew are gone: the record alone has the numbers.
    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM outbox WHERE tenant_id = :t"), {"t": tenant})
        connection.execute(sa.text("UPDATE log_state SET outbox_counter = 1 WHERE tenant_id = :t"), {"t": tenant})
    _announce(recorded, 5)
    assert auditor.look().findings == ()
    services.record.ship_outbox(tenant, services.clock.now())
    assert auditor.look().findings == ()
    with engine.begin() as connection:
        assert list(connection.scalars(numbers, {"t": tenant})) == [len(before) + 2]
        connection.execute(sa.text("UPDATE log_state SET outbox_counter = outbox_counter + 3"))
    assert [(one.verdict, one.object) for one in auditor.look().findings] == [(Verdict.ALTERED, "log_state")]
    _announce(recorded, 6)
    services.record.ship_outbox(tenant, services.clock.now())
    services.log.publish(tenant, services.clock.now())
    report = auditor.look()
    assert [(one.verdict, one.object) for one in report.findings] == [(Verdict.MISSING, "outbox")]
    assert f"from number {len(before) + 3} on, up to {len(before) + 5}" in report.findings[0].detail


def test_an_announcement_that_was_taken_out_of_the_outbox_is_missed(recorded: Kept) -> None:
    services, tenant, engine = recorded.services, recorded.acting.tenant_id, recorded.services.database.engine
    _announce(recorded, 7)
    newest = "(SELECT MAX(n) FROM outbox)"
    with engine.begin() as connection:
        connection.execute(sa.text(f"DELETE FROM outbox WHERE idx IS NULL AND n < {newest}"))
    report = Auditor(recorded).look()
    assert [(one.verdict, one.object) for one in report.findings] == [(Verdict.MISSING, "outbox")]
    services.record.ship_outbox(tenant, services.clock.now())
    report = Auditor(recorded).look()
    assert [(one.verdict, one.object) for one in report.findings] == [(Verdict.MISSING, "outbox")]


def test_one_that_is_said_to_be_shipped_and_is_not_is_named(recorded: Kept) -> None:
    with recorded.services.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE outbox SET idx = 7 WHERE idx IS NULL"))
    report = Auditor(recorded).look()
    assert [(one.verdict, one.object, one.index) for one in report.findings] == [
        (Verdict.ALTERED, "outbox", 7),
        (Verdict.MISSING, "outbox", None),
    ]


def test_a_database_that_went_back_gives_its_waiting_announcements_new_numbers(recorded: Kept) -> None:
    """Another one may stand in the record under the number by now."""
    services, tenant, engine = recorded.services, recorded.acting.tenant_id, recorded.services.database.engine
    with engine.begin() as connection:
        waiting = connection.execute(sa.text("SELECT n, entry_id FROM outbox WHERE idx IS NULL")).one()
        connection.execute(
            sa.text("UPDATE recorder_range SET last = :n WHERE recorder_id = :l"),
            {"n": waiting[0], "l": recorded.acting.log_id},
        )
    services.record.ship_outbox(tenant, services.clock.now())
    with engine.begin() as connection:
        query = sa.text("SELECT MAX(n), COUNT(*), COUNT(idx) FROM outbox WHERE entry_id = :e")
        assert connection.execute(query, {"e": waiting[1]}).one() == (waiting[0] + 1, 1, 1)


def test_two_shippers_that_renumber_the_same_announcements_leave_no_number_out(recorded: Kept) -> None:
    """The second took a number that no row bore: `verify --all` missed that announcement for ever."""
    services, tenant = recorded.services, recorded.acting.tenant_id
    _announce(recorded, 3)
    with services.database.transaction(tenant, write=False) as session:
        found = [row.n for row in outbox.waiting(session, tenant, 10)]
    for seen in (found[:1], found):
        with services.database.transaction(tenant) as session:
            outbox.renumber(session, tenant, seen)
    _announce(recorded, 4)
    with services.database.transaction(tenant, write=False) as session:
        rows = outbox.waiting(session, tenant, 10)
    assert [row.n for row in rows] == list(range(found[-1] + 1, found[-1] + len(found) + 2))
    with services.database.transaction(tenant) as session:
        outbox.shipped(session, tenant, {rows[0].n: 7})
        outbox.renumber(session, tenant, [rows[0].n])
        assert session.connection().scalar(sa.text("SELECT outbox_counter FROM log_state")) == rows[-1].n


def test_an_announcement_that_was_changed_after_it_was_shipped_stops_no_other(recorded: Kept) -> None:
    """A row whose text the record does not have was sent again and again, for ever."""
    services, tenant, engine = recorded.services, recorded.acting.tenant_id, recorded.services.database.engine
    services.record.ship_outbox(tenant, services.clock.now())
    with engine.begin() as connection:
        place = connection.scalar(sa.text("SELECT MAX(idx) FROM outbox"))
        connection.execute(sa.text("UPDATE outbox SET body = :b, idx = NULL WHERE idx = :i"), {"b": b"{}", "i": place})
    _announce(recorded, 8)
    assert services.record.ship_outbox(tenant, services.clock.now()) == 2
    with engine.begin() as connection:
        assert connection.scalar(sa.text("SELECT COUNT(*) FROM outbox WHERE idx IS NULL")) == 0
        assert connection.scalar(sa.text("SELECT COUNT(*) FROM outbox WHERE idx = :i"), {"i": place}) == 1
    assert Auditor(recorded).look().findings == ()


def test_what_nobody_can_tell_stops_no_other_announcement_and_no_other_item(recorded: Kept) -> None:
    """One row that is gone, whose index line is gone as well, ended every call that shared its flush."""
    services, tenant, engine = recorded.services, recorded.acting.tenant_id, recorded.services.database.engine
    entry = {"id": uuid7(services.clock.now()), "stream": "conv_1", "kind": "turn.user", "data_class": "transcript",
             "at": "2026-03-01T12:00:00Z", "subjects": ["user:eve"], "body": {"content": "text"}}  # fmt: skip
    services.record.append(services.tenants()[0], [msgspec.json.encode(entry)], services.clock.now())
    _announce(recorded, 8)
    services.record.ship_outbox(tenant, services.clock.now())
    with engine.begin() as connection:
        batches = connection.scalars(sa.text("SELECT DISTINCT batch_first FROM entry ORDER BY 1 DESC LIMIT 2")).all()
        untold = connection.execute(sa.text("UPDATE outbox SET idx = NULL WHERE idx >= :f"), {"f": batches[0]}).rowcount
        connection.execute(sa.text("DELETE FROM entry WHERE batch_first >= :f"), {"f": batches[1]})
    for key in list(services.hot.list(f"{recorded.acting.log_id}/index/")):
        if int(key.rpartition("/")[2].partition("-")[0]) in batches:
            services.hot.delete(key)
    _announce(recorded, 9)
    with pytest.raises(RecordDamaged, match="cannot be told"):
        services.record.ship_outbox(tenant, services.clock.now())
    with engine.begin() as connection:
        assert connection.scalar(sa.text("SELECT COUNT(*) FROM outbox WHERE idx IS NULL")) == untold > 0
    other_entry = {**entry, "id": uuid7(services.clock.now())}
    sent = [msgspec.json.encode(one) for one in (entry, other_entry)]
    answers = services.record.append(services.tenants()[0], sent, services.clock.now()).results
    assert [one["status"] for one in answers] == ["rejected", "stored"]
    assert answers[0]["problem"]["type"] == "/problems/record-damaged"
    assert services.log.refusing == {}


def test_nothing_is_sealed_for_another_log_than_the_one_that_takes_it(recorded: Kept) -> None:
    """One changed letter of the tenant's row: what was acknowledged since opened for nobody."""
    services, tenant = recorded.services, recorded.acting.tenant_id
    size = services.log.head(tenant).size
    with services.database.engine.begin() as connection:
        change = sa.text("UPDATE tenant SET log_id = :l WHERE id = :t")
        connection.execute(change, {"l": other(recorded.acting.log_id, up=True), "t": tenant})
    entry = {"id": uuid7(services.clock.now()), "stream": "conv_1", "kind": "turn.user", "data_class": "transcript",
             "at": "2026-03-01T12:00:00Z", "subjects": ["user:eve"], "body": {"content": "text"}}  # fmt: skip
    with pytest.raises(RecordDamaged, match="the database gives this tenant the log"):
        services.record.append(services.tenants()[0], [msgspec.json.encode(entry)], services.clock.now())
    with pytest.raises(RecordDamaged, match="the database gives this tenant the log"):
        services.record.event(tenant, Kind.TOKEN_MINTED, {}, services.clock.now())
    assert services.log.head(tenant).size == size

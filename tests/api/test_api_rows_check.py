"""Doctor names rows that were changed to keep less, or to open nothing; and what only a row says has ended goes on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import SQLModel

from api.examination import Finding
from api.rows_check import look_at_actions, look_at_holds, look_at_keys
from api.wiring import HOLD_UNDER_WAY
from erasure.request_desk import RequestDesk
from ledger import actions
from ledger.actions import ActionState, Claim
from ledger.retried import Retried
from registry.acting import Acting
from registry.keyed import RowDigests
from retention.holds import Holds
from tests.audit.test_audit_service import Kept, kept

__all__ = ["kept"]
HOLD = {"name": "suit", "matter": "m", "reason": "r",
        "selector": {"subjects": ["user:ada", "user:bob"], "data_classes": ["transcript"]}}  # fmt: skip


def desk(made: Kept, principal: str) -> Acting:
    return Acting(
        tenant_id=made.acting.tenant_id, tenant=made.acting.tenant, log_id=made.acting.log_id, principal=principal,
        token_id=principal, roles=frozenset({"legal"}), stores=("*",), classes=("*",),
    )  # fmt: skip


@pytest.fixture
def held(kept: Kept) -> Kept:
    """Two holds, one of which was released."""
    services, now = kept.services, kept.services.clock.now()
    holds = Holds(
        vault=services.vault, record=services.record, transactions=services.database.transaction, desk=RequestDesk()
    )
    _, made = (holds.place(desk(kept, "one"), HOLD, now) for _ in range(2))
    holds.release(desk(kept, "two"), made["id"], preview=False, now=now)
    return kept


def change(made: Kept, statement: str, **values: Any) -> int:
    with made.services.database.engine.begin() as connection:
        return connection.execute(sa.text(statement), values).rowcount


def told(look: Callable[[Any, Acting], Any], made: Kept) -> list[Finding]:
    return list(look(made.services, made.acting))


def test_holds_as_the_record_has_them_are_fine(held: Kept) -> None:
    assert [(one.verdict, one.detail) for one in told(look_at_holds, held)] == [
        ("fine", "2 as the record has them, 1 of them ended")
    ]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("subjects = '[]'", "keeps less"),
        ("data_classes = '[]'", "keeps less"),
        ("released_at = 1, released_by = 'x'", "the record does not say so"),
    ],
)
def test_a_hold_whose_row_keeps_less_than_its_event_is_named(held: Kept, values: str, says: str) -> None:
    assert change(held, f"UPDATE hold SET {values} WHERE released_at IS NULL") == 1
    (found,) = told(look_at_holds, held)
    assert found.verdict == "wrong"
    assert says in found.detail


def test_a_row_that_is_gone_or_that_nobody_placed_is_named(held: Kept) -> None:
    change(held, "UPDATE hold SET hold_id = 'hold_x' WHERE released_at IS NULL")
    assert [one.verdict for one in told(look_at_holds, held)] == ["weak"], "its row may be on its way"
    held.services.clock.move(HOLD_UNDER_WAY)
    assert [one.verdict for one in told(look_at_holds, held)] == ["wrong", "weak"]


@pytest.mark.parametrize("at", [1, 2**51])
def test_a_hold_that_only_its_row_says_has_ended_is_in_force_again(held: Kept, at: int) -> None:
    """Whoever could write one column freed what a court had stopped, and the service believed it."""
    change(held, "UPDATE hold SET released_at = :a, released_by = 'x' WHERE released_at IS NULL", a=at)
    assert held.services.finish_hold_rows(held.acting.tenant_id, held.services.clock.now()) > 0
    assert [one.verdict for one in told(look_at_holds, held)] == ["fine"]
    assert held.services.finish_hold_rows(held.acting.tenant_id, held.services.clock.now()) == 0


KEY_COLUMNS = ("key_id", "subject_id", "data_class", "month", "scope", "group_no", "epoch", "wrapped", "state")
HARMLESS = {
    "tenant_id": "another tenant's key folder has no such key",
    "created_at": "told in the inventory of keys",
    "destroyed_at": "a certificate takes its time from the record",
    "request": "explains an absence; the bytes that are there must be right whatever it says",
}


def test_every_column_of_a_key_is_tried_or_has_its_reason() -> None:
    assert {*KEY_COLUMNS, *HARMLESS} == set(SQLModel.metadata.tables["vault_data_key"].columns.keys())


def test_a_key_whose_row_was_changed_by_one_is_named(kept: Kept) -> None:
    assert [one.verdict for one in told(look_at_keys, kept)] == ["fine"]
    with kept.services.database.engine.begin() as connection:
        query = sa.text("SELECT * FROM vault_data_key WHERE data_class = 'transcript' ORDER BY key_id")
        row = dict(connection.execute(query).mappings().first() or {})
    for column in KEY_COLUMNS:
        before, after = row[column], "destroyed" if column == "state" else row[column]
        if isinstance(after, int):
            after += 1
        elif isinstance(after, bytes):
            after = after[:-1] + bytes([after[-1] ^ 1])
        elif column != "state":
            after = after[:-1] + ("1" if after[-1:] != "1" else "2")
        key_id = after if column == "key_id" else row["key_id"]
        change(kept, f"UPDATE vault_data_key SET {column} = :v WHERE key_id = :k", v=after, k=row["key_id"])
        (found,) = told(look_at_keys, kept)
        change(kept, f"UPDATE vault_data_key SET {column} = :v WHERE key_id = :k", v=before, k=key_id)
        assert (found.verdict, found.detail[:2]) == ("wrong", "1 "), (column, found)
        assert str(key_id) in found.detail
    assert [one.verdict for one in told(look_at_keys, kept)] == ["fine"]


def test_a_key_without_bytes_that_is_said_to_open_is_named(kept: Kept) -> None:
    change(kept, "UPDATE vault_data_key SET wrapped = NULL WHERE data_class = 'transcript'")
    (found,) = told(look_at_keys, kept)
    assert found.verdict == "wrong"
    assert "no bytes" in found.detail


def test_an_action_whose_row_was_changed_is_named_and_one_without_a_digest_is_counted(kept: Kept) -> None:
    services, tenant, now = kept.services, kept.acting.tenant_id, kept.services.clock.now()
    digests = RowDigests(services.vault, tenant)
    retried = Retried(hot=services.hot, log_id=kept.acting.log_id)
    with services.database.transaction(tenant) as session:
        for number in range(3):
            wanted = Claim(
                lookup=bytes([number]) * 32, kind="refund", owner="a", digest=None, approval=None, lease=timedelta(1)
            )
            actions.claim(session, tenant, wanted, now, digests=digests, retried=retried)
    assert [(one.verdict, one.detail) for one in told(look_at_actions, kept)] == [
        ("fine", "3, each as this service wrote it")
    ]
    change(kept, "UPDATE action SET state = 'succeeded' WHERE lookup = :l", l=bytes([1]) * 32)
    change(kept, "UPDATE action SET row_digest = NULL WHERE lookup = :l", l=bytes([2]) * 32)
    altered, bare = told(look_at_actions, kept)
    assert (altered.verdict, bare.verdict) == ("wrong", "weak")
    assert altered.detail.startswith("1 rows were changed")
    assert altered.detail.endswith(": refund 0101010101010101")
    assert bare.detail.startswith("1 rows bear no digest")
    with services.database.transaction(tenant) as session:
        actions.settle(session, tenant, bytes(32), ActionState.FAILED, lambda _row: None, now=now, digests=digests)
        assert actions.doubt_failed(session, tenant, digests=digests) == 1
    *_, doubted = told(look_at_actions, kept)
    assert (doubted.verdict, doubted.detail[:12]) == ("weak", "1 had failed")

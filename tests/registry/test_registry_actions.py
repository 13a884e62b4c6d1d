"""Actions whose rows were changed in the database: nobody is told that one was done, or may be done, because of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import SQLModel, select

from ledger import actions
from ledger.actions import ActionAltered, ActionSettled, ActionState, Claim, ProposalChanged, Retry
from ledger.errors import StoreUnavailable
from ledger.memory_objects import MemoryStore
from ledger.models import ActionRow
from ledger.retried import Retried
from registry.keyed import Lookups, RowDigests

COLUMNS = tuple(SQLModel.metadata.tables["action"].columns.keys())
LEASE = timedelta(minutes=5)


class Agents:
    """Agents of one tenant, and somebody who has its database."""

    def __init__(self, house: Any) -> None:
        self.house, self.tenant = house, house.alice.tenant_id
        self.digests = RowDigests(house.vault, self.tenant)
        self.lookup = Lookups(house.vault, self.tenant).of("action", "refund/1")
        self.hot = MemoryStore(lambda: house.now, locked=False)
        self.retried = Retried(hot=self.hot, log_id="log")

    def wanted(self, lookup: bytes, digest: str = "ab" * 32) -> Claim:
        return Claim(
            lookup=lookup, kind="refund", owner="agent", digest=digest, approval="a1", lease=LEASE, stream_no=7
        )

    def claim(self, lookup: bytes | None = None, digest: str = "ab" * 32) -> tuple[ActionState, bool]:
        with self.house.session() as session:
            wanted = self.wanted(lookup or self.lookup, digest)
            row, is_mine = actions.claim(
                session, self.tenant, wanted, self.house.now, digests=self.digests, retried=self.retried
            )
            session.commit()
            return actions.state_at(row, self.house.now), is_mine

    def settle(self, state: ActionState, lookup: bytes | None = None, reference: bytes | None = b"sealed") -> None:
        with self.house.session() as session:
            at = {"now": self.house.now, "digests": self.digests}
            actions.settle(session, self.tenant, lookup or self.lookup, state, lambda _row: reference, **at)
            session.commit()

    def state(self, lookup: bytes | None = None, tenant: int | None = None) -> ActionState:
        with self.house.session() as session:
            digests = self.digests if tenant is None else RowDigests(self.house.vault, tenant)
            row = actions.find(session, tenant or self.tenant, lookup or self.lookup, digests=digests)
            return actions.state_at(row, self.house.now)

    def change(self, before: dict[str, Any], **values: Any) -> None:
        """Put another row in the place of this one."""
        table = SQLModel.metadata.tables["action"]
        with self.house.engine.begin() as connection:
            connection.execute(sa.delete(table).where(table.c.lookup == before["lookup"]))
            connection.execute(sa.insert(table), [{**before, **values}])

    def row(self) -> dict[str, Any]:
        with self.house.session() as session:
            row: ActionRow = session.exec(select(ActionRow)).one()
            return row.model_dump()


@pytest.fixture
def agents(house: Any) -> Agents:
    return Agents(house)


def other(value: Any) -> Any:
    """The value, changed by one."""
    if isinstance(value, int):
        return value + 1
    if isinstance(value, bytes):
        return bytes([*value[:-1], value[-1] ^ 1])
    if isinstance(value, str):
        return value[:-1] + ("1" if value[-1] != "1" else "0")
    return value + timedelta(microseconds=1)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_row_in_which_one_value_was_changed_answers_nothing(agents: Agents, column: str) -> None:
    agents.claim()
    agents.settle(ActionState.FAILED)
    whole = agents.row()
    assert None not in whole.values()
    tenant = agents.house.tenant("bob").tenant_id if column == "tenant_id" else None
    changed = {column: other(whole[column]) if tenant is None else tenant}
    agents.change(whole, **changed)
    lookup = changed.get("lookup", whole["lookup"])
    with pytest.raises(ActionAltered):
        agents.state(lookup, tenant)
    if tenant is None:
        with pytest.raises(ActionAltered):
            agents.claim(lookup)
        with pytest.raises(ActionAltered):
            agents.settle(ActionState.SUCCEEDED, lookup)
    agents.change({**whole, **changed}, **whole)
    assert agents.state() is ActionState.FAILED


@pytest.mark.parametrize("column", ["proposal_digest", "approval", "provider_ref", "stream_no"])
def test_nor_does_one_from_which_a_value_was_taken_away(agents: Agents, column: str) -> None:
    agents.claim()
    agents.settle(ActionState.SUCCEEDED)
    agents.change(agents.row(), **{column: None})
    with pytest.raises(ActionAltered):
        agents.state()


@pytest.mark.parametrize("state", [ActionState.CLAIMED, ActionState.SUCCEEDED, ActionState.FAILED])
def test_without_a_digest_it_is_unknown_until_somebody_asked_the_provider(agents: Agents, state: ActionState) -> None:
    """So are the rows from before there were digests."""
    agents.claim()
    if state is not ActionState.CLAIMED:
        agents.settle(state)
    agents.change(agents.row(), row_digest=None)
    assert agents.state() is ActionState.UNKNOWN
    assert actions.retry_of(agents.state()) is Retry.ASK_PROVIDER
    assert agents.claim() == (ActionState.UNKNOWN, False)
    agents.settle(ActionState.SUCCEEDED)
    assert agents.state() is ActionState.SUCCEEDED
    with pytest.raises(ActionSettled):
        agents.settle(ActionState.FAILED)


def test_what_a_row_without_a_digest_says_is_never_signed_but_for_its_outcome(agents: Agents) -> None:
    """Somebody put another amount, approval and stream there, and took the digest away; the outcome made it ours."""
    agents.claim()
    forged = {"proposal_digest": "cd" * 32, "approval": "forged", "owner": "mallory", "kind": "gift", "stream_no": 9,
              "provider_ref": b"forged", "lease_until": agents.house.now + timedelta(days=9),
              "created_at": agents.house.now - timedelta(days=9)}  # fmt: skip
    agents.change(whole := agents.row(), row_digest=None, **forged)
    # Nor is anybody sent away, to do it under another id, because of the digest that stands there.
    assert agents.claim() == (ActionState.UNKNOWN, False)
    agents.settle(ActionState.FAILED)
    now = agents.row()
    assert {name for name, value in forged.items() if now[name] == value} == set()
    assert (now["approval"], now["stream_no"], now["provider_ref"]) == (None, None, None)
    assert agents.state() is ActionState.FAILED
    # It is nobody's until the next claim, which binds it whole.
    assert agents.claim() == (ActionState.CLAIMED, True)
    bound = agents.row()
    names = ("proposal_digest", "approval", "owner", "kind", "stream_no")
    assert {name: bound[name] for name in names} == {name: whole[name] for name in names}
    agents.settle(ActionState.FAILED)
    with pytest.raises(ProposalChanged):
        agents.claim(digest="cd" * 32)


def test_one_that_succeeded_in_a_row_without_a_digest_is_told_whatever_is_proposed(agents: Agents) -> None:
    agents.claim()
    agents.change(agents.row(), row_digest=None)
    agents.settle(ActionState.SUCCEEDED)
    assert agents.claim(digest="cd" * 32) == (ActionState.SUCCEEDED, False)


def test_what_failed_in_a_row_that_was_claimed_again_before_is_unknown(agents: Agents) -> None:
    """A copy of the database came back that lacks no entry of the record: it was done for the second time."""
    agents.claim()
    agents.settle(ActionState.FAILED)
    before = agents.row()
    assert agents.claim() == (ActionState.CLAIMED, True)
    agents.settle(ActionState.SUCCEEDED)
    agents.change(agents.row(), **before)
    assert agents.claim() == (ActionState.UNKNOWN, False)
    assert agents.state() is ActionState.UNKNOWN
    # What it is bound to stays, and what is found out of it counts.
    with pytest.raises(ProposalChanged):
        agents.claim(digest="cd" * 32)
    agents.house.now += timedelta(seconds=1)
    agents.settle(ActionState.FAILED)
    assert agents.claim() == (ActionState.CLAIMED, True)


def test_a_claim_that_cannot_be_marked_is_not_made(agents: Agents) -> None:
    agents.claim()
    agents.settle(ActionState.FAILED)
    agents.hot.fail_before(0)
    with pytest.raises(StoreUnavailable):
        agents.claim()
    assert agents.state() is ActionState.FAILED
    # Nobody knows whether the claim behind the mark was given to anybody.
    agents.hot.fail_after(0)
    with pytest.raises(StoreUnavailable):
        agents.claim()
    assert agents.claim() == (ActionState.UNKNOWN, False)


def test_a_row_from_before_the_look_up_key_was_turned_is_read_and_written_on(agents: Agents) -> None:
    agents.claim()
    before = agents.row()["row_digest"]
    keks, tenant = agents.house.vault.keks, str(agents.tenant)
    assert keks.turn_lookup(tenant) == 2
    agents.digests = RowDigests(agents.house.vault, agents.tenant)
    assert agents.state() is ActionState.CLAIMED
    agents.settle(ActionState.FAILED)
    assert (before[:4], agents.row()["row_digest"][:4]) == ((1).to_bytes(4, "big"), (2).to_bytes(4, "big"))
    # A version that the key folder does not have is nobody's.
    agents.change(whole := agents.row(), row_digest=(9).to_bytes(4, "big") + whole["row_digest"][4:])
    with pytest.raises(ActionAltered):
        agents.state()


def test_a_digest_is_the_look_up_of_the_parts_under_their_label(agents: Agents) -> None:
    lookups = Lookups(agents.house.vault, agents.tenant)
    for parts in ((), ("ab", b"c"), ("a", b"bc"), (b"x" * 100_000,)):
        digest = agents.digests.of("a-label", *parts)
        assert digest == lookups.version.to_bytes(4, "big") + lookups.of("a-label", *parts)
        assert agents.digests.fits(digest, "a-label", *parts)
        assert not agents.digests.fits(digest, "b-label", *parts)
    assert agents.digests.of("a-label", "ab", b"c") != agents.digests.of("a-label", "a", b"bc")

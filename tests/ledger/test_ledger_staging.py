"""Many processes, one log: staging, the lease changing hands, and processes that die or wake up too late.

A process is a `Log` with its own lease, database connections and clerk; all share one bucket and one database, SQLite
or PostgreSQL. It dies by `Killed`, which no code of ours catches as an error.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlmodel import Session

from api.database import Database
from ledger import handover, staging
from ledger import lease as lease_module
from ledger.batches import batch_digest, decode_batch, verify_follows
from ledger.checkpoint import parse_checkpoint, verify_note
from ledger.draft import Appended, Draft, Placed, PlacedState, SealedPart
from ledger.entry import decode_header, header_hash, uuid7
from ledger.errors import CheckpointPending, LogForked, NotLeader, ObjectMissing, RecordDamaged, StoreUnavailable
from ledger.head import LogParts
from ledger.keyring import open_checkpoint
from ledger.lease import Lease
from ledger.log import Log
from ledger.memory_objects import MemoryStore
from ledger.merkle import root, verify_inclusion
from ledger.models import LogKnock, LogLease, LogState, StagedRow
from ledger.signing import Ed25519Signer, verifier_from_vkey
from ledger.tiles import parse_tile_path, read_tile
from ledger.turns import Admit
from registry.keyed import RowDigests
from tests import schema
from vault.keks import KekStore
from vault.providers import FileRoot
from vault.vault import Vault

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
TENANT, OTHER = 7, 8
LOG_ID = "ab" * 16


class Killed(BaseException):
    """The process is gone."""


class Mortal:
    """A store whose user dies before or after the write of a number."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.dies_before = self.dies_after = -1
        self.writes = 0
        self.on_write: Callable[[str], None] = lambda _key: None

    def put(self, key: str, data: bytes | memoryview, *, lock_until: datetime | None) -> None:
        self._write(key, lambda: self._store.put(key, data, lock_until=lock_until))

    def replace(self, key: str, data: bytes) -> None:
        self._write(key, lambda: self._store.replace(key, data))

    def _write(self, key: str, write: Callable[[], None]) -> None:
        number, self.writes = self.writes, self.writes + 1
        if number == self.dies_before:
            raise Killed
        write()
        self.on_write(key)
        if number == self.dies_after:
            raise Killed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def later_key(origin: str, generation: int) -> Ed25519Signer:
    return Ed25519Signer.from_seed(origin, bytes([5 + generation]) * 32)


class Process:
    """One process of the service as far as the log is concerned."""

    def __init__(self, world: World) -> None:
        self.database = Database(world.url)
        self.locked, self.hot = Mortal(world.locked), Mortal(world.hot)
        parts = LogParts(
            transactions=self.database.transaction,
            locked=self.locked,
            hot=self.hot,
            signer=lambda origin: Ed25519Signer.from_seed(origin, b"\x05" * 32),
            lock_end=lambda at: at + timedelta(days=7 * 365),
            later_signer=self._key_of,
        )
        self.later_signer: Callable[[str, int], Ed25519Signer] = later_key
        self.lease = Lease(owner=secrets.token_hex(8), sessions=self.database.shared)
        self.log = Log(parts, self.lease, stages=world.digests)
        self.faults: list[Exception] = []
        self.clerk = staging.Clerk(self.log.serve, lambda: datetime.now(UTC), failed=self.faults.append)

    def _key_of(self, origin: str, generation: int) -> Ed25519Signer:
        return self.later_signer(origin, generation)

    def lead(self) -> Process:
        assert self.lease.take(datetime.now(UTC))
        return self

    def believe(self) -> None:
        """Go on believing in a lease that has run out, as a process does that was stopped in the wrong moment."""
        self.lease._good_until = float("inf")

    def append(self, *drafts: Draft, admit: Admit | None = None) -> Any:
        return self.log.append(TENANT, drafts, now=datetime.now(UTC), admit=admit)


class World:
    """A bucket and a database, and the processes on them."""

    def __init__(self, url: str, keys: Path) -> None:
        self.url = url
        vault = Vault(KekStore(keys, FileRoot(keys, clock=lambda: NOW)), clock=lambda: NOW)
        self.digests = partial(RowDigests, vault)
        self.locked, self.hot = MemoryStore(lambda: NOW), MemoryStore(lambda: NOW, locked=False)
        self.processes: list[Process] = []
        self.database = Database(url)
        schema.bring(self.database)
        with self.session() as session:
            Log.create(session, TENANT, LOG_ID)

    def session(self) -> Any:
        return self.database.transaction(TENANT)

    def process(self) -> Process:
        made = Process(self)
        self.processes.append(made)
        return made

    def end_lease(self) -> None:
        """Let the time of the lease run out without waiting for it."""
        with self.database.shared() as session:
            session.execute(sa.update(LogLease).values(until=NOW - timedelta(days=1000)))

    def rows(self, model: Any) -> list[Any]:
        with self.database.transaction(TENANT, write=False) as session:
            return list(session.scalars(sa.select(model)))

    def entries(self) -> list[str]:
        """The ids in the bucket, in order, read naively; each batch continues the one before, positions have no gap."""
        ids: list[str] = []
        positions: dict[str, int] = defaultdict(int)
        previous, digest, before = None, None, bytes(32)
        for key in self.locked.list(f"{LOG_ID}/batch/"):
            data = self.locked.get(key)
            batch = decode_batch(data)
            verify_follows(batch, previous, digest)
            assert batch.first == len(ids)
            for raw in batch.headers:
                header = decode_header(raw)
                assert header.previous == before
                assert header.position == positions[header.stream]
                positions[header.stream] += 1
                before = header_hash(raw)
                ids.append(header.id)
            previous, digest = batch, batch_digest(data)
        return ids

    def check(self, acknowledged: dict[str, int]) -> None:
        """No acknowledged entry is lost or elsewhere, none is there twice, and every checkpoint is of this tree."""
        ids = self.entries()
        assert len(set(ids)) == len(ids)
        assert {entry_id: ids.index(entry_id) for entry_id in acknowledged} == acknowledged
        leaves = [
            header_hash(raw)
            for key in self.locked.list(f"{LOG_ID}/batch/")
            for raw in decode_batch(self.locked.get(key)).headers
        ]
        verifier = verifier_from_vkey(Ed25519Signer.from_seed(f"muniment/{LOG_ID}", b"\x05" * 32).vkey)
        for key in self.locked.list(f"{LOG_ID}/checkpoint/"):
            checkpoint = parse_checkpoint(verify_note(self.locked.get(key), [verifier]))
            assert checkpoint.root == root(leaves[: checkpoint.size])


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    url = (
        f"sqlite:///{tmp_path / 'log.db'}"
        if request.param == "sqlite"
        else request.getfixturevalue("make_postgres_database")(schema.prepare)
    )
    made = World(url, tmp_path / "keys")
    yield made
    for process in made.processes:
        process.clerk.stop()
        process.database.close()
    made.database.close()


def draft(number: int, *, stream: int = 1, content: bytes = b"", subjects: tuple[int, ...] = ()) -> Draft:
    content = content or f"ciphertext {number}".encode()
    part = SealedPart(
        role="part.0", algorithm="c2sp", ciphertext=content, lock_until=NOW + timedelta(days=30), key_ids=("ef" * 16,)
    )
    return Draft(
        entry_id=uuid7(NOW, number.to_bytes(10, "big")),
        kind="note",
        data_class="transcript",
        class_version=1,
        at=NOW,
        received=NOW,
        recorder=None,
        seq=None,
        stream_id=f"{stream:032x}",
        stream_no=stream,
        run_no=None,
        set_id=0,
        sources_count=0,
        sources_root=None,
        parts=(part,),
        subjects=(subjects,),
        digest=content[:16].ljust(16, b"\0"),
    )


class Caller(threading.Thread):
    """Appends in the background, as a request does that waits for its answer."""

    def __init__(self, process: Process, *drafts: Draft) -> None:
        super().__init__(daemon=True)
        self._process, self._drafts = process, drafts
        self.answer: Any = None
        self.problem: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._process.append(*self._drafts)
        except BaseException as problem:  # noqa: BLE001 - looked at by the test
            self.problem = problem

    def result(self) -> Any:
        self.join(40)
        if self.problem is not None:
            raise self.problem
        return self.answer


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def states(answer: Any) -> list[tuple[PlacedState, int | None]]:
    return [(one.state, one.index) for one in answer.placed]


STORED, DUPLICATE, CONFLICT, SUPPRESSED = (
    PlacedState.STORED,
    PlacedState.DUPLICATE,
    PlacedState.CONFLICT,
    PlacedState.SUPPRESSED,
)


def test_a_process_without_the_lease_is_answered_by_the_one_that_has_it(world: World) -> None:
    leader, other = world.process().lead(), world.process()
    leader.append(draft(0))
    leader.clerk.start()
    answer = other.append(draft(1), draft(2, stream=2), draft(3))
    assert states(answer) == [(STORED, 1), (STORED, 2), (STORED, 3)]
    text = verify_note(answer.receipt.encode(), [verifier_from_vkey(leader.log.vkey(TENANT))])
    assert text.splitlines()[2:4] == ["1", "3"]
    assert states(other.append(draft(1), draft(2, content=b"other content"))) == [(DUPLICATE, 1), (CONFLICT, None)]
    part = decode_header(other.log.headers(TENANT, [3])[0]).parts[0]
    assert other.log.ciphertext(TENANT, part) == b"ciphertext 3"
    wait_until(lambda: not world.rows(LogKnock))
    assert not world.rows(StagedRow)
    world.check({draft(number).entry_id: number for number in range(4)})


def test_what_is_staged_shares_the_flush_of_the_holders_own_callers(world: World) -> None:
    leader, other = world.process().lead(), world.process()
    caller = Caller(other, draft(1))
    wait_until(lambda: bool(world.rows(StagedRow)))
    assert states(leader.append(draft(0))) == [(STORED, 0)]
    assert states(caller.result()) == [(STORED, 1)]
    assert len(list(world.locked.list(f"{LOG_ID}/batch/"))) == 1


def test_a_fence_that_falls_between_staging_and_sequencing_holds(world: World) -> None:
    leader, other = world.process().lead(), world.process()

    def admit(_session: Session, drafts: Sequence[Draft]) -> list[frozenset[int]]:
        return [frozenset({0}) if (2,) in one.subjects else frozenset() for one in drafts]

    leader.log.guard_with(lambda _tenant: admit)
    caller = Caller(other, draft(0, subjects=(1,)), draft(1, subjects=(2,)))
    wait_until(lambda: bool(world.rows(StagedRow)))
    # An event of the service leads this flush and looks at no fence itself.
    leader.append(draft(2))
    answer = caller.result()
    assert states(answer) == [(STORED, 1), (SUPPRESSED, None)]
    assert answer.placed[1].dropped == (0,)


@pytest.mark.scenario("L7", "L17", "L20", "L37")
@pytest.mark.parametrize("when", ["dies_before", "dies_after"])
@pytest.mark.parametrize("store", ["locked", "hot"])
def test_a_holder_that_dies_at_any_write_leaves_nothing_lost_and_nothing_twice(
    world: World, store: str, when: str
) -> None:
    point, count, survived = 0, 0, False
    acknowledged: dict[str, int] = {}
    while not survived:
        world.end_lease()
        leader, other = world.process().lead(), world.process()
        staged = [draft(count), draft(count + 1)]
        own = [draft(count + 2)]
        caller = Caller(other, *staged)
        wait_until(lambda: bool(world.rows(StagedRow)))
        mortal = getattr(leader, store)
        setattr(mortal, when, point)
        try:
            leader.append(*own)
            leader.log.publish(TENANT, datetime.now(UTC))
            survived = True
        except Killed:
            world.end_lease()
        successor = world.process()
        if not survived:
            successor.lead()
            successor.log.serve(datetime.now(UTC))
        answer = caller.result()
        assert {one.state for one in answer.placed} <= {STORED, DUPLICATE}
        acknowledged |= {one.entry_id: one.index for one in answer.placed}
        retry = (leader if survived else successor).append(*own)
        acknowledged |= {one.entry_id: one.index for one in retry.placed}
        world.check(acknowledged)
        count, point = count + 3, point + 1
    assert sorted(acknowledged.values()) == list(range(count))
    assert point > 2


@pytest.mark.scenario("L7", "L21")
def test_a_holder_that_wakes_up_after_losing_the_lease_overwrites_nothing(world: World) -> None:
    sleeper = world.process().lead()
    sleeper.append(draft(0))
    world.end_lease()
    leader = world.process().lead()
    leader.append(draft(1))
    leader.log.publish(TENANT, datetime.now(UTC))
    leader.clerk.start()
    sleeper.believe()
    # Its conditional PUT fails, the batch it finds carries a higher number: it hands over like everybody else.
    assert states(sleeper.append(draft(2))) == [(STORED, 2)]
    assert not sleeper.log.leads
    world.check({draft(number).entry_id: number for number in range(3)})


def test_what_takes_longer_than_a_term_keeps_the_lease_and_loses_it_to_a_successor_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A database that is brought up to the record at the start took longer than that, and the start failed over it.
    monkeypatch.setattr(lease_module, "RENEWED_SECONDS", 0.02)
    slow = world.process().lead()
    with slow.lease.kept(lambda: datetime.now(UTC)):
        slow.lease._good_until = time.monotonic() + 0.1
        time.sleep(0.2)
        slow.append(draft(0))
        leader = world.process()
        while not leader.lease.take(datetime.now(UTC)):
            world.end_lease()  # which the other renews at once
        slow.lease._good_until = time.monotonic() + 0.1
        time.sleep(0.2)
        assert not slow.lease.held
        leader.append(draft(1))


def test_a_sleeper_neither_signs_behind_its_successor_nor_takes_the_databases_end_back(world: World) -> None:
    sleeper = world.process().lead()
    sleeper.append(draft(0))
    world.end_lease()
    leader = world.process().lead()
    leader.append(draft(1), draft(2))
    leader.log.publish(TENANT, datetime.now(UTC))
    sleeper.believe()
    with pytest.raises(NotLeader):
        sleeper.log.publish(TENANT, datetime.now(UTC))
    (state,) = world.rows(LogState)
    assert (state.size, state.checkpoint_size) == (3, 3)
    assert parse_checkpoint(
        verify_note(world.hot.get(f"{LOG_ID}/checkpoint"), [verifier_from_vkey(leader.log.vkey(TENANT))])
    ).size in (1, 3)
    leader.append(draft(3))
    leader.log.publish(TENANT, datetime.now(UTC))
    world.check({draft(number).entry_id: number for number in range(4)})


@pytest.mark.scenario("L7", "L37")
def test_a_holder_stopped_between_batch_and_index_finds_its_entries_indexed_by_its_successor(world: World) -> None:
    sleeper = world.process().lead()
    sleeper.append(draft(0))
    sleeper.believe()
    successor = world.process()

    def taken_over(key: str) -> None:
        if "/batch/" in key:
            sleeper.locked.on_write = lambda _key: None
            world.end_lease()
            successor.lead()
            successor.append(draft(2))
            successor.clerk.start()

    sleeper.locked.on_write = taken_over
    assert states(sleeper.append(draft(1))) == [(DUPLICATE, 1)]
    world.check({draft(number).entry_id: number for number in range(3)})


@pytest.mark.scenario("L3")
@pytest.mark.parametrize("led_again", [False, True])
def test_a_holder_stopped_while_it_makes_a_key_revokes_none_behind_its_successors_back(
    world: World, led_again: bool
) -> None:
    # It once did, and no process could open the log any more: its newest checkpoint counted as a thief's.
    sleeper, successor = world.process().lead(), world.process()

    def key_of(origin: str, generation: int) -> Ed25519Signer:
        if sleeper.later_signer is key_of:
            sleeper.later_signer = later_key
            world.end_lease()
            successor.lead().append(draft(1))
            successor.log.publish(TENANT, datetime.now(UTC))
            if led_again:
                world.end_lease()
                sleeper.lead()
        return later_key(origin, generation)

    sleeper.append(draft(0))
    sleeper.believe()
    sleeper.later_signer = key_of
    with pytest.raises(NotLeader):
        sleeper.log.rotate_key(TENANT, datetime.now(UTC), revoke=True)
    world.end_lease()
    third = world.process().lead()
    third.append(draft(2))
    third.log.rotate_key(TENANT, datetime.now(UTC), revoke=True)
    third.append(draft(3))
    checkpoint = open_checkpoint(third.log.publish(TENANT, datetime.now(UTC)), third.log.keys(TENANT))
    assert (checkpoint.size, [key.until_size for key in third.log.keys(TENANT)]) == (4, [3, None])
    assert world.entries() == [draft(number).entry_id for number in range(4)]


@pytest.mark.scenario("L3")
def test_a_holder_stopped_inside_its_batch_gives_no_receipt_by_a_key_that_its_successor_revoked(world: World) -> None:
    # Its batch went in before the successor's first, and was acknowledged by the key that had ended before it.
    sleeper, successor = world.process().lead(), world.process()
    sleeper.append(draft(0))
    sleeper.believe()
    put, refused = sleeper.locked.put, []

    def stopped(key: str, data: bytes | memoryview, *, lock_until: datetime | None) -> None:
        if "/batch/" in key:
            sleeper.locked.put = put  # type: ignore[method-assign] # only this one is stopped
            world.end_lease()
            successor.lead()
            with pytest.raises(NotLeader, match="another leader's"):
                successor.log.rotate_key(TENANT, datetime.now(UTC), revoke=True)
            refused.append(successor.log.keys(TENANT)[-1].generation)
            successor.append(draft(1))
            successor.log.rotate_key(TENANT, datetime.now(UTC), revoke=True)
            successor.clerk.start()
        put(key, data, lock_until=lock_until)

    sleeper.locked.put = stopped  # type: ignore[method-assign] # the process sleeps here, before the store has it
    late = sleeper.append(draft(2))
    assert (refused, states(late)) == ([0], [(STORED, 2)])
    first, second = successor.log.keys(TENANT)
    assert (first.until_size, second.from_size) == (2, 3)
    text = verify_note(late.receipt.encode(), [verifier_from_vkey(second.vkey)])
    assert text.splitlines()[2:4] == ["2", "1"]
    assert world.entries() == [draft(number).entry_id for number in range(3)]


def test_while_a_lease_is_pinned_it_changes_hands_for_nobody(world: World) -> None:
    leader, other = world.process().lead(), world.process()
    taken: list[bool] = []
    taking = threading.Thread(target=lambda: taken.append(other.lease.take(datetime.now(UTC))), daemon=True)
    with leader.lease.pinned(leader.lease.fence):
        taking.start()
        taking.join(0.2)
        assert taking.is_alive()
    taking.join(20)
    assert taken == [False]
    with pytest.raises(NotLeader), leader.lease.pinned(leader.lease.fence + 1):
        pass


def test_a_database_that_was_restored_counts_its_fences_above_those_in_the_bucket(world: World) -> None:
    for number in range(3):
        world.end_lease()
        world.process().lead().append(draft(number))
    with world.database.shared() as session:
        session.execute(sa.update(LogLease).values(fence=1))
    world.end_lease()
    leader = world.process().lead()
    assert leader.lease.fence == 2
    leader.append(draft(3))
    assert leader.lease.fence == 4
    world.check({draft(number).entry_id: number for number in range(4)})


def test_a_waiting_process_takes_over_when_nobody_leads(world: World) -> None:
    dead, other = world.process().lead(), world.process()
    dead.append(draft(0))
    world.end_lease()
    assert not other.lease.is_led(datetime.now(UTC))
    begun = time.monotonic()
    assert states(other.append(draft(1))) == [(STORED, 1)]
    assert other.log.leads
    assert other.lease.is_led(datetime.now(UTC))
    # It asked first: nothing was staged, so nothing waited and no payload was stored twice.
    assert time.monotonic() - begun < handover._TAKEOVER_SECONDS
    assert other.locked.writes == 2


@pytest.mark.scenario("L14")
def test_what_nobody_places_in_time_is_refused_and_a_retry_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = world.process().lead(), world.process()
    with monkeypatch.context() as patch:
        patch.setattr(handover, "STAGED_SECONDS", 0.2)
        with pytest.raises(NotLeader, match="nobody sequenced"):
            other.append(draft(0))
    leader.clerk.start()
    assert [state for state, _ in states(other.append(draft(0), draft(1)))] in ([DUPLICATE, STORED], [STORED, STORED])
    world.check({draft(number).entry_id: number for number in range(2)})


@pytest.mark.scenario("L14")
def test_while_nobody_sequences_what_was_staged_no_retry_stores_another_payload(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each retry of a spool once left ciphertext under its lock for the whole of an outage.
    monkeypatch.setattr(handover, "EARLIER_SECONDS", 0.1)
    leader, other = world.process().lead(), world.process()
    with monkeypatch.context() as patch:
        patch.setattr(handover, "STAGED_SECONDS", 0.1)
        with pytest.raises(NotLeader, match="nobody sequenced"):
            other.append(draft(0))
    for number in range(4):
        with pytest.raises(NotLeader, match="still waits"):
            other.append(draft(number))
    assert (other.locked.writes, len(world.rows(StagedRow))) == (1, 1)
    assert states(leader.append(draft(9))) == [(STORED, 0)]
    leader.clerk.start()
    assert [state for state, _ in states(other.append(draft(0), draft(1)))] == [DUPLICATE, STORED]
    world.check({draft(number).entry_id: index for number, index in ((9, 0), (0, 1), (1, 2))})
    named = {part.object for raw in other.log.headers(TENANT, [0, 1, 2]) for part in decode_header(raw).parts}
    stored = {key.removeprefix(f"{LOG_ID}/") for key in world.locked.list(f"{LOG_ID}/payload/")}
    # The repeat of the first entry shares its object with what is new.
    assert stored == named


def leave_waiting(process: Process, one: Draft, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage a call that nobody places in time."""
    with monkeypatch.context() as patch:
        patch.setattr(handover, "STAGED_SECONDS", 0.1)
        with pytest.raises(NotLeader):
            process.append(one)


@pytest.mark.scenario("L14")
def test_a_call_waits_a_little_for_one_before_it_that_is_placed_at_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = world.process().lead(), world.process()
    leave_waiting(other, draft(0), monkeypatch)
    caller = Caller(other, draft(1))
    time.sleep(0.2)
    assert other.locked.writes == 1
    leader.clerk.start()
    assert states(caller.result()) == [(STORED, 1)]


@pytest.mark.scenario("L14")
def test_a_process_whose_call_waits_takes_over_from_a_holder_that_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, other = world.process().lead(), world.process()
    leave_waiting(other, draft(0), monkeypatch)
    dead.believe()
    world.end_lease()
    assert states(other.append(draft(1))) == [(STORED, 0)]
    assert world.entries() == [draft(1).entry_id, draft(0).entry_id]


def test_answers_that_nobody_came_for_are_dropped_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, other = world.process().lead(), world.process()
    monkeypatch.setattr(handover, "STAGED_SECONDS", 0.1)
    with pytest.raises(NotLeader):
        other.append(draft(0))
    leader.log.serve(datetime.now(UTC))
    (row,) = world.rows(StagedRow)
    assert row.answer is not None
    assert row.drafts == b""
    with world.session() as session:
        session.execute(sa.update(StagedRow).values(answered_at=datetime.now(UTC) - 2 * staging.KEPT))
    leader.append(draft(1))
    assert not world.rows(StagedRow)


def test_a_store_that_is_away_for_a_while_delays_what_is_staged_and_loses_none(world: World) -> None:
    leader, other = world.process().lead(), world.process()
    world.locked.fail_before(1)
    leader.clerk.start()
    assert states(other.append(draft(0))) == [(STORED, 0)]
    assert [type(fault) for fault in leader.faults] == [StoreUnavailable]


def test_a_log_that_is_read_only_says_so_to_those_who_staged(world: World) -> None:
    leader, other = world.process().lead(), world.process()
    with world.session() as session:
        session.execute(sa.update(LogState).values(read_only="two roots of one size"))
    leader.clerk.start()
    with pytest.raises(LogForked, match="two roots"):
        other.append(draft(0))
    assert not world.entries()


def test_a_damaged_log_is_told_to_those_who_staged_and_keeps_no_other_log_waiting(world: World) -> None:
    # Its knocks stayed, those of other logs stood behind them, and in the end no log was served any more.
    with world.database.transaction(OTHER) as session:
        Log.create(session, OTHER, "cd" * 16)
    leader, other = world.process().lead(), world.process()
    leader.append(draft(0))
    leader.append(draft(1))
    whole = world.locked.get(f"{LOG_ID}/batch/{1:020d}")
    world.locked.alter(f"{LOG_ID}/batch/{1:020d}", whole[:-1] + bytes([whole[-1] ^ 1]))
    leader.log.forget_heads()
    with world.database.transaction(0) as session:
        for _ in range(600):
            staging.knock(session, TENANT, staging.CHECKPOINT, NOW - timedelta(days=1))
    leader.clerk.start()
    begun = time.monotonic()
    placed = other.log.append(OTHER, [draft(2)], now=datetime.now(UTC)).placed
    assert [(one.state, one.index) for one in placed] == [(STORED, 0)]
    with pytest.raises(RecordDamaged, match="damaged here: batch/") as damaged:
        other.append(draft(3))
    assert damaged.value.state == "altered"
    assert other.log.refusing == {TENANT: str(damaged.value)}
    assert time.monotonic() - begun < 5
    world.locked.alter(f"{LOG_ID}/batch/{1:020d}", whole)
    assert states(other.append(draft(3))) == [(STORED, 2)]
    assert other.log.refusing == {}
    wait_until(lambda: not world.rows(LogKnock))
    world.check({draft(number).entry_id: index for number, index in ((0, 0), (1, 1), (3, 2))})


def test_logs_that_fail_for_any_reason_leave_room_for_the_others(world: World) -> None:
    leader = world.process().lead()
    with world.database.transaction(0) as session:
        for number in range(600):
            staging.knock(session, number % 3 + 100, staging.STAGED, NOW)
        for tenant in (TENANT, TENANT, 104):
            staging.knock(session, tenant, staging.STAGED, NOW + timedelta(days=1))
    with world.database.transaction(0, write=False) as session:
        found = staging.knocks(session)
    assert {one.log_tenant for one in found} == {100, 101, 102, 104, TENANT}
    assert [one.log_tenant for one in found].count(TENANT) == 2
    with pytest.raises(ObjectMissing):
        leader.log.serve(datetime.now(UTC))
    assert {one.log_tenant for one in world.rows(LogKnock)} == {100, 101, 102, 104}


def test_proofs_tiles_and_checkpoints_are_served_without_the_lease(world: World) -> None:
    leader, other = world.process().lead(), world.process()
    leader.append(*[draft(number) for number in range(300)])
    leader.clerk.start()
    proof = other.log.proof(TENANT, 299, datetime.now(UTC))
    verifier = verifier_from_vkey(other.log.vkey(TENANT))
    head = parse_checkpoint(verify_note(proof.checkpoint.encode(), [verifier]))
    verify_inclusion(299, head.size, proof.leaf, proof.inclusion, head.root)
    other.append(*[draft(number) for number in range(300, 320)])
    newer = parse_checkpoint(verify_note(other.log.publish(TENANT, datetime.now(UTC)), [verifier]))
    assert newer.size == 320
    assert other.log.consistency(TENANT, 300, 320)
    with other.log.entered(TENANT) as mine, leader.log.entered(TENANT) as theirs:
        wanted = parse_tile_path("tile/0/001.p/64")
        assert read_tile(wanted, mine.tree.read) == read_tile(wanted, theirs.tree.read)
    assert other.locked.writes == other.hot.writes + 1 == 1  # one payload object and nothing else


def test_without_anybody_who_leads_a_proof_is_pending_and_what_is_published_is_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "CHECKPOINT_SECONDS", 0.1)
    leader, other = world.process().lead(), world.process()
    leader.append(draft(0))
    leader.log.publish(TENANT, datetime.now(UTC))
    leader.append(draft(1))
    leader.lease.give_up(datetime.now(UTC))
    assert other.log.proof(TENANT, 0, datetime.now(UTC)).tree_size == 1
    with pytest.raises(CheckpointPending) as caught:
        other.log.proof(TENANT, 1, datetime.now(UTC))
    assert caught.value.size == 2


@pytest.mark.scenario("L8")
def test_processes_that_start_at_once_on_an_empty_log_make_one_beginning(world: World) -> None:
    processes = [world.process() for _ in range(4)]
    barrier = threading.Barrier(4)
    led: list[bool] = []

    def begin(number: int) -> None:
        barrier.wait()
        led.append(processes[number].lease.take(datetime.now(UTC)))

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(led) == [False, False, False, True]
    for process in processes:
        process.clerk.start()
    callers = [Caller(process, draft(number)) for number, process in enumerate(processes)]
    indexes = [caller.result().placed[0].index for caller in callers]
    assert sorted(indexes) == [0, 1, 2, 3]
    world.check({draft(number).entry_id: index for number, index in enumerate(indexes)})


def test_a_process_whose_clock_is_a_year_ahead_does_not_steal_the_lease_on_postgresql(world: World) -> None:
    leader, wrong = world.process().lead(), world.process()
    if world.database.on_sqlite:
        pytest.skip("SQLite has no clock of its own; there the folder's lock is the lease")
    assert not wrong.lease.take(datetime.now(UTC) + timedelta(days=365))
    assert leader.lease.take(datetime.now(UTC) - timedelta(days=365))
    assert wrong.lease.is_led(datetime.now(UTC) + timedelta(days=365))


def patiently(process: Any, one: Draft) -> int:
    """Append as a spool does: again, as long as the answer is that nobody leads long enough."""
    while True:
        with suppress(NotLeader):
            index: int = process.append(one).placed[0].index
            return index


@pytest.mark.scenario("L34")
def test_writers_in_many_processes_keep_every_stream_in_order_while_the_lease_wanders(world: World) -> None:
    processes = [world.process() for _ in range(3)]
    processes[0].lead()
    for process in processes:
        process.clerk.start()
    placed: dict[str, int] = {}
    failures: list[BaseException] = []
    rounds = 6

    def write(writer: int) -> None:
        process = processes[writer % len(processes)]
        last = -1
        try:
            for number in range(rounds):
                one = draft(writer * 1000 + number, stream=writer)
                index = patiently(process, one)
                assert index > last
                placed[one.entry_id] = last = index
        except BaseException as problem:  # noqa: BLE001 - raised by the test
            failures.append(problem)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    turn = 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.1)
        for process in processes:
            process.lease._good_until = 0.0
        world.end_lease()
        turn += 1
        processes[turn % len(processes)].lease.take(datetime.now(UTC))
    assert not failures
    assert len(placed) == 6 * rounds
    world.check(placed)
    assert sorted(placed.values()) == list(range(6 * rounds))


CHANGED = ("an unknown form", "drafts", "entries", "no digest", "another tenant's digest")


def change(world: World, row: StagedRow, what: str) -> dict[str, Any]:
    """What is written into a staged row: one column changed, or another program's drafts under a digest that fits."""
    drafts, number = row.drafts, draft(0).entry_id.encode()[:-1]
    if what == "drafts":
        assert drafts.count(number) == 1
        return {"drafts": drafts.replace(number, number[:-1] + (b"1" if number[-1:] != b"1" else b"2"))}
    if what == "entries":
        return {"entries": row.entries + 1}
    if what == "no digest":
        return {"row_digest": None}
    tenant = TENANT if what == "an unknown form" else OTHER
    drafts = b"\xc1" if what == "an unknown form" else drafts
    digest = world.digests(tenant).of("staged-drafts", row.staged_id, str(row.entries), drafts)
    return {"drafts": drafts, "row_digest": digest}


@pytest.mark.parametrize("what", CHANGED)
def test_a_staged_row_that_no_process_of_ours_wrote_is_refused_and_stops_nobody_else(world: World, what: str) -> None:
    leader, other = world.process().lead(), world.process()
    caller = Caller(other, draft(0))
    wait_until(lambda: bool(world.rows(StagedRow)))
    (row,) = world.rows(StagedRow)
    with world.session() as session:
        session.execute(sa.update(StagedRow).values(**change(world, row, what)))
    assert states(leader.append(draft(1))) == [(STORED, 0)]
    with pytest.raises(staging.StagedUnreadable):
        caller.result()
    assert states(leader.append(draft(0))) == [(STORED, 1)]


def test_more_refused_rows_than_are_read_at_once_keep_nobody_waiting(world: World) -> None:
    """The knock of those behind them was forgotten with theirs."""
    leader, other = world.process().lead(), world.process()
    caller = Caller(other, draft(0))
    wait_until(lambda: bool(world.rows(StagedRow)))
    (row,) = world.rows(StagedRow)
    with world.session() as session:
        for number in range(staging._ROWS + 1):
            staged_id = f"{number:012x}{row.staged_id[12:]}"
            session.add(StagedRow(tenant_id=TENANT, staged_id=staged_id, entries=1, drafts=row.drafts, at=row.at))
    assert leader.log.serve(datetime.now(UTC)) == 1
    assert states(caller.result()) == [(STORED, 0)]
    assert len(world.rows(StagedRow)) == staging._ROWS + 1


@pytest.mark.parametrize("forged", ["answer", "refusal"])
def test_an_answer_that_no_process_of_ours_wrote_is_not_believed(world: World, forged: str) -> None:
    """Whoever has the database alone could have a call acknowledged that is in no log."""
    other = world.process()
    assert world.process().lead().lease.held
    caller = Caller(other, draft(0))
    wait_until(lambda: bool(world.rows(StagedRow)))
    placed = Placed(entry_id=draft(0).entry_id, state=STORED, index=0)
    answer = staging._Answer(appended=Appended(placed=[placed], receipt=None))
    if forged == "refusal":
        answer = staging._Answer(appended=None, refused="two roots of one size")
    with world.session() as session:
        session.execute(sa.update(StagedRow).values(answer=msgspec.msgpack.encode(answer), answered_at=NOW))
    with pytest.raises(staging.StagedUnreadable):
        caller.result()
    assert not world.entries()

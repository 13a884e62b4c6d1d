"""The one writer: places, duplicates, crashes between its writes, forks and rollbacks."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlmodel import Session, SQLModel, col, create_engine, select

from ledger import index
from ledger.checkpoint import parse_checkpoint, verify_note
from ledger.draft import Draft, PlacedState, SealedPart
from ledger.entry import decode_header, uuid7
from ledger.errors import LogForked, LogRolledBack, NotLeader, StoreUnavailable
from ledger.head import LogParts
from ledger.lease import Lease
from ledger.log import Log
from ledger.memory_objects import MemoryStore
from ledger.merkle import verify_consistency, verify_inclusion
from ledger.models import EntryRow, LogKnock, LogLease, LogState, LogStream, OutboxRow, PartRef, StagedRow
from ledger.signing import Ed25519Signer, Verifier, verifier_from_vkey

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
TENANT = 7
LOG_ID = "ab" * 16
_MODELS = (LogState, LogLease, LogStream, EntryRow, PartRef, OutboxRow, StagedRow, LogKnock)
_TABLES = [SQLModel.metadata.tables[str(model.__tablename__)] for model in _MODELS]


class Bench:
    """A log over strict in-memory stores and a real SQLite file, which can be reopened as after a crash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.locked = MemoryStore(lambda: NOW)
        self.hot = MemoryStore(lambda: NOW, locked=False)
        self.engine = self._engine("log.db")
        with Session(self.engine, expire_on_commit=False) as session:
            Log.create(session, TENANT, LOG_ID)
            session.commit()
        self.log = self.reopen()

    def _engine(self, name: str) -> sa.Engine:
        engine = create_engine(f"sqlite:///{self.folder / name}", connect_args={"timeout": 20})
        for table in _TABLES:
            table.create(engine, checkfirst=True)
        return engine

    @contextmanager
    def transactions(self, tenant_id: int, *, write: bool = True) -> Iterator[Session]:
        with Session(self.engine, expire_on_commit=False) as session:
            yield session
            session.commit()

    def parts(self) -> LogParts:
        return LogParts(
            transactions=self.transactions,
            locked=self.locked,
            hot=self.hot,
            signer=lambda origin: Ed25519Signer.from_seed(origin, b"\x05" * 32),
            lock_end=lambda at: at + timedelta(days=7 * 365),
        )

    def reopen(self) -> Log:
        lease = Lease(owner=secrets.token_hex(8), sessions=lambda: self.transactions(0))
        assert lease.take(NOW, force=True)
        self.log = Log(self.parts(), lease)
        return self.log


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.engine.dispose()


def draft(number: int = 0, *, content: bytes | None = None, stream: int = 1, subjects: tuple[int, ...] = ()) -> Draft:
    content = content if content is not None else f"ciphertext {number}".encode()
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


def test_entries_get_consecutive_places_in_the_log_and_in_their_streams(bench: Bench) -> None:
    placed = bench.log.append(TENANT, [draft(0), draft(1, stream=2), draft(2)], now=NOW).placed
    assert [one.index for one in placed] == [0, 1, 2]
    more = bench.log.append(TENANT, [draft(3)], now=NOW)
    assert more.placed[0].index == 3
    headers = [decode_header(raw) for raw in bench.log.headers(TENANT, [0, 1, 2, 3])]
    assert [header.position for header in headers] == [0, 0, 1, 2]
    assert [header.previous for header in headers[1:]] == [one.leaf for one in placed]
    part = headers[3].parts[0]
    assert bench.log.ciphertext(TENANT, part) == b"ciphertext 3"
    assert more.receipt is not None
    assert verify_note(more.receipt.encode(), [verifier_from_vkey(bench.log.vkey(TENANT))]).splitlines()[2:4] == [
        "3",
        "1",
    ]


def test_a_repeat_is_a_duplicate_and_another_content_a_conflict(bench: Bench) -> None:
    bench.log.append(TENANT, [draft(0)], now=NOW)
    again, other = bench.log.append(TENANT, [draft(0), draft(0, content=b"something else")], now=NOW).placed
    assert (again.state, again.index) == (PlacedState.DUPLICATE, 0)
    assert (other.state, other.index) == (PlacedState.CONFLICT, None)


def test_two_drafts_of_one_call_with_one_id_are_stored_once(bench: Bench) -> None:
    first, second = bench.log.append(TENANT, [draft(0), draft(0)], now=NOW).placed
    assert first.index == second.index == 0
    assert bench.log.head(TENANT).size == 1


def test_a_fence_at_the_sequencer_drops_only_the_parts_it_closes(bench: Bench) -> None:
    kept, closed = draft(0, subjects=(1,)), draft(1, subjects=(2,))
    admit = lambda _session, drafts: [frozenset({0}) if one.subjects[0] == (2,) else frozenset() for one in drafts]  # noqa: E731
    first, second = bench.log.append(TENANT, [kept, closed], now=NOW, admit=admit).placed
    assert first.state is PlacedState.STORED
    assert (second.state, second.index, second.dropped) == (PlacedState.SUPPRESSED, None, (0,))


def test_proofs_and_checkpoints_are_of_one_tree_over_many_tiles(bench: Bench) -> None:
    sizes = []
    for start in range(0, 700, 70):
        bench.log.append(TENANT, [draft(number) for number in range(start, start + 70)], now=NOW)
        sizes.append(parse_checkpoint(verify_note(bench.log.publish(TENANT, NOW), [_verifier(bench)])))
    for idx in (0, 255, 256, 511, 699):
        proof = bench.log.proof(TENANT, idx, NOW)
        head = parse_checkpoint(verify_note(proof.checkpoint.encode(), [_verifier(bench)]))
        assert head.size == proof.tree_size
        verify_inclusion(idx, head.size, proof.leaf, proof.inclusion, head.root)
    for old, new in pairwise(sizes):
        verify_consistency(old.size, new.size, bench.log.consistency(TENANT, old.size, new.size), old.root, new.root)


def test_a_reopened_log_goes_on_where_it_stopped(bench: Bench) -> None:
    bench.log.append(TENANT, [draft(number) for number in range(300)], now=NOW)
    before = bench.log.publish(TENANT, NOW)
    bench.log.append(TENANT, [draft(number) for number in range(300, 420)], now=NOW)
    bench.reopen()
    assert bench.log.head(TENANT).size == 420
    after = bench.log.publish(TENANT, NOW)
    old, new = (parse_checkpoint(verify_note(note, [_verifier(bench)])) for note in (before, after))
    verify_consistency(old.size, new.size, bench.log.consistency(TENANT, old.size, new.size), old.root, new.root)


@pytest.mark.scenario("L17", "L20", "L28", "L39")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", range(3))
@pytest.mark.parametrize("store", ["locked", "hot"])
def test_a_write_that_breaks_before_or_after_it_persists_loses_nothing_and_doubles_nothing(
    bench: Bench, store: str, nth: int, when: str
) -> None:
    bench.log.append(TENANT, [draft(0)], now=NOW)
    broken: MemoryStore = getattr(bench, store)
    (broken.fail_before if when == "before" else broken.fail_after)(nth)
    drafts = [draft(number) for number in range(1, 4)]
    try:
        bench.log.append(TENANT, drafts, now=NOW)
        bench.log.publish(TENANT, NOW)
    except StoreUnavailable:
        pass
    broken.fail_before(10**9)
    bench.reopen()
    placed = bench.log.append(TENANT, drafts, now=NOW).placed
    assert [one.index for one in placed] == [1, 2, 3]
    assert bench.log.head(TENANT).size == 4
    assert parse_checkpoint(verify_note(bench.log.publish(TENANT, NOW), [_verifier(bench)])).size == 4


def test_a_batch_that_was_stored_but_not_indexed_is_indexed_at_the_next_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.log.append(TENANT, [draft(0)], now=NOW)

    def dies(*_: object) -> None:
        raise OSError("killed before the commit")

    with monkeypatch.context() as patch:
        patch.setattr(index, "insert", dies)
        with pytest.raises(OSError, match="killed"):
            bench.log.append(TENANT, [draft(1), draft(2)], now=NOW)
    placed = bench.log.append(TENANT, [draft(1), draft(2)], now=NOW).placed
    assert [(one.state, one.index) for one in placed] == [(PlacedState.DUPLICATE, 1), (PlacedState.DUPLICATE, 2)]


@pytest.mark.scenario("L2")
def test_a_database_restored_from_an_older_backup_is_caught_up_and_never_signs_behind_the_bucket(
    bench: Bench, tmp_path: Path
) -> None:
    bench.log.append(TENANT, [draft(0)], now=NOW)
    bench.log.publish(TENANT, NOW)
    bench.engine.dispose()
    backup = (tmp_path / "log.db").read_bytes()
    bench.reopen()
    bench.log.append(TENANT, [draft(1)], now=NOW)
    bench.log.publish(TENANT, NOW)
    bench.engine.dispose()
    (tmp_path / "log.db").write_bytes(backup)
    bench.reopen()
    assert bench.log.head(TENANT).size == 2
    assert bench.log.append(TENANT, [draft(1)], now=NOW).placed[0].index == 1


@pytest.mark.scenario("L2")
def test_a_bucket_whose_batches_were_cut_behind_a_checkpoint_stops_the_log(bench: Bench) -> None:
    bench.log.append(TENANT, [draft(0)], now=NOW)
    backup = [(row.size, row.batch_first) for row in _states(bench)]
    bench.log.append(TENANT, [draft(1)], now=NOW)
    bench.log.publish(TENANT, NOW)
    bench.locked.vanish(f"{LOG_ID}/batch/{1:020d}")
    with Session(bench.engine) as session:
        session.execute(sa.delete(EntryRow).where(col(EntryRow.idx) == 1))
        session.execute(sa.delete(PartRef).where(col(PartRef.idx) == 1))
        state = session.exec(select(LogState)).one()
        state.size, state.batch_first = backup[0]
        state.batch_count, state.checkpoint_size = 1, 0
        session.add(state)
        session.commit()
    bench.reopen()
    with pytest.raises(LogRolledBack):
        bench.log.append(TENANT, [draft(2)], now=NOW)


@pytest.mark.scenario("L7")
def test_a_writer_that_lost_the_race_for_an_index_sequences_behind_the_winner(bench: Bench, tmp_path: Path) -> None:
    """Two writers believe they lead; the conditional PUT lets one win, the other's entries follow, none is lost."""
    bench.log.append(TENANT, [draft(0)], now=NOW)
    stale = bench.log
    stale.head(TENANT)
    winner = Log(bench.parts(), stale._lease)
    winner.append(TENANT, [draft(1)], now=NOW)
    # The stale writer shares the database here; its head in memory is behind, as after a pause.
    placed = stale.append(TENANT, [draft(2)], now=NOW).placed
    assert placed[0].index == 2
    assert [decode_header(raw).id for raw in stale.headers(TENANT, [0, 1, 2])] == [draft(n).entry_id for n in range(3)]


@pytest.mark.scenario("L5", "L34")
def test_many_threads_append_and_prove_without_a_fork_or_a_flake(bench: Bench) -> None:
    def work(number: int) -> int:
        placed = bench.log.append(TENANT, [draft(number, stream=number % 5)], now=NOW).placed[0]
        assert placed.index is not None
        proof = bench.log.proof(TENANT, placed.index, NOW)
        head = parse_checkpoint(verify_note(proof.checkpoint.encode(), [_verifier(bench)]))
        verify_inclusion(placed.index, head.size, proof.leaf, proof.inclusion, head.root)
        return placed.index

    with ThreadPoolExecutor(16) as pool:
        indexes = list(pool.map(work, range(200)))
    assert sorted(indexes) == list(range(200))


@pytest.mark.scenario("L14")
def test_callers_that_wait_for_one_flush_share_its_fate_and_no_other(bench: Bench) -> None:
    bench.locked.fail_before(0)
    outcomes: list[str] = []

    def one(number: int) -> None:
        try:
            bench.log.append(TENANT, [draft(number)], now=NOW)
            outcomes.append("stored")
        except StoreUnavailable:
            outcomes.append("failed")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 8
    assert "stored" in outcomes
    assert bench.log.head(TENANT).size == outcomes.count("stored")


def test_without_the_lease_nothing_is_sequenced(bench: Bench) -> None:
    lease = Lease(owner="other", sessions=lambda: bench.transactions(0))
    with pytest.raises(NotLeader):
        Log(bench.parts(), lease).append(TENANT, [draft(0)], now=NOW)
    assert not lease.take(NOW)
    assert lease.take(NOW + timedelta(seconds=6))
    assert lease.fence == 2


def test_a_checkpoint_of_the_same_size_with_another_root_stops_the_log_for_good(bench: Bench) -> None:
    bench.log.append(TENANT, [draft(0)], now=NOW)
    forged = Bench(_made(bench.folder / "other"))
    forged.log.append(TENANT, [draft(9)], now=NOW)
    note = forged.log.publish(TENANT, NOW)
    forged.engine.dispose()
    bench.locked.put(f"{LOG_ID}/checkpoint/{1:020d}", note, lock_until=NOW + timedelta(days=1))
    with pytest.raises(LogForked):
        bench.log.publish(TENANT, NOW)
    with pytest.raises(LogForked, match="read-only"):
        bench.log.append(TENANT, [draft(1)], now=NOW)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _states(bench: Bench) -> list[LogState]:
    with Session(bench.engine) as session:
        return list(session.exec(select(LogState)))


def _verifier(bench: Bench) -> Verifier:
    return verifier_from_vkey(bench.log.vkey(TENANT))

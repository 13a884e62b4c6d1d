"""The one writer: places, duplicates, crashes between its writes, forks and rollbacks."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import Session, SQLModel, col, create_engine, select

from ledger import index
from ledger.batches import decode_batch, encode_batch, verify_follows
from ledger.checkpoint import format_checkpoint, parse_checkpoint, sign_note, verify_note
from ledger.draft import Draft, PlacedState, SealedPart
from ledger.entry import decode_header, header_hash, uuid7
from ledger.errors import (
    BadProof,
    DatabaseWentBack,
    LogForked,
    LogRolledBack,
    NotLeader,
    StoreUnavailable,
)
from ledger.files import FileStore
from ledger.head import READ_AGAIN_AFTER, LogParts, checkpoint_key, index_key, open_head
from ledger.lease import Lease
from ledger.log import Log
from ledger.memory_objects import MemoryStore
from ledger.merkle import root, verify_consistency, verify_inclusion
from ledger.models import (
    EntryRow,
    LogKnock,
    LogLease,
    LogState,
    LogStream,
    OutboxRow,
    PartPlaces,
    PayloadRow,
    StagedRow,
)
from ledger.signing import Ed25519Signer, Verifier, verifier_from_vkey
from ledger.tree import Tree

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
TENANT = 7
LOG_ID = "ab" * 16
_MODELS = (LogState, LogLease, LogStream, EntryRow, PartPlaces, PayloadRow, OutboxRow, StagedRow, LogKnock)
_TABLES = [SQLModel.metadata.tables[str(model.__tablename__)] for model in _MODELS]


class Bench:
    """A log over strict in-memory stores and a real SQLite file, which can be reopened as after a crash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.locked: Any = MemoryStore(lambda: NOW)
        self.hot: Any = MemoryStore(lambda: NOW, locked=False)
        self._breaks: tuple[int, str] | None = None
        self.engine = self._begun("log.db")
        self.log = self.reopen()

    def lose_database(self) -> None:
        """Begin with an empty one, as a rebuild does."""
        self.engine.dispose()
        (self.folder / "anew.db").unlink(missing_ok=True)
        self.engine = self._begun("anew.db")
        self.reopen()

    def _begun(self, name: str) -> sa.Engine:
        engine = self._engine(name)
        with Session(engine, expire_on_commit=False) as session:
            Log.create(session, TENANT, LOG_ID)
            session.commit()
        return engine

    def _engine(self, name: str) -> sa.Engine:
        engine = create_engine(f"sqlite:///{self.folder / name}", connect_args={"timeout": 20})
        for table in _TABLES:
            table.create(engine, checkfirst=True)
        return engine

    @contextmanager
    def transactions(self, tenant_id: int, *, write: bool = True) -> Iterator[Session]:
        with Session(self.engine, expire_on_commit=False) as session:
            yield session
            if write and self._breaks is not None:
                left, when = self._breaks
                self._breaks = (left - 1, when)
                if left == 0:
                    if when == "after":
                        session.commit()
                    raise sa.exc.OperationalError("COMMIT", {}, OSError("the connection is gone"))
            session.commit()

    def break_commit(self, nth: int | None, when: str) -> None:
        """Let the nth commit from now fail before or after it persists; None: no more."""
        self._breaks = None if nth is None else (nth, when)

    def on_files(self, folder: Path, fsync: Callable[[int], None]) -> None:
        """Start again on a folder of files."""
        self.locked = FileStore(folder, clock=lambda: NOW, fsync=fsync)
        self.hot = FileStore(folder.with_name("hot"), clock=lambda: NOW, locked=False)
        self.reopen()

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


def test_a_database_that_was_lost_is_made_anew_beside_a_damaged_tile_which_is_made_again_too(bench: Bench) -> None:
    """The rebuild stopped: it took the tile for another history, whatever the signed checkpoint said."""
    bench.log.append(TENANT, [draft(number) for number in range(600)], now=NOW)
    note = bench.log.publish(TENANT, NOW)
    key = f"{LOG_ID}/tile/0/001"
    whole = bench.hot.get(key)
    bench.hot.replace(key, b"y" * len(whole))
    bench.lose_database()
    assert bench.log.head(TENANT).checkpoint_note == note
    assert bench.hot.get(key) == whole
    _require_sound(bench, 600)


@pytest.mark.slow
def test_an_upper_tile_and_one_below_it_that_are_damaged_are_made_again_at_the_next_start(bench: Bench) -> None:
    for start in range(0, 66_000, 6_000):
        bench.log.append(TENANT, [draft(number) for number in range(start, start + 6_000)], now=NOW)
    note = bench.log.publish(TENANT, NOW)
    keys = [f"{LOG_ID}/tile/{name}" for name in ("1/000", "0/007", "0/200")]
    whole = [bench.hot.get(key) for key in keys]
    for key, data in zip(keys, whole, strict=True):
        bench.hot.replace(key, b"y" * len(data))
    bench.reopen()
    assert bench.log.publish(TENANT, NOW) == note
    assert [bench.hot.get(key) for key in keys] == whole
    for idx in (7 * 256, 200 * 256 + 9, 65_999):
        proof = bench.log.proof(TENANT, idx, NOW)
        head = parse_checkpoint(verify_note(proof.checkpoint.encode(), [_verifier(bench)]))
        verify_inclusion(idx, head.size, proof.leaf, proof.inclusion, head.root)


def test_a_history_that_was_not_signed_is_read_whole_once_and_refused_at_once_for_a_while(bench: Bench) -> None:
    for start in range(0, 300, 10):
        bench.log.append(TENANT, [draft(number) for number in range(start, start + 10)], now=NOW)
        if start == 280:
            bench.log.publish(TENANT, NOW)
    head = bench.log.head(TENANT)
    note = sign_note(format_checkpoint(head.origin, 300, b"x" * 32), head.signers)
    bench.locked.put(head.key(checkpoint_key(300)), note, lock_until=NOW + timedelta(days=1))
    reads: list[str] = []
    get = bench.locked.get

    def counted(key: str, **more: Any) -> bytes:
        reads.append(key)
        found: bytes = get(key, **more)
        return found

    bench.locked.get = counted
    parts = bench.parts()
    seen = []
    for since in (0, 0, READ_AGAIN_AFTER):
        parts.forked.update({log_id: (size, at - since) for log_id, (size, at) in parts.forked.items()})
        reads.clear()
        with pytest.raises(LogForked, match="another root"):
            open_head(parts, TENANT)
        seen.append(len(reads))
    assert seen[1] <= seen[0] - 30
    assert seen[2] == seen[0]
    bench.locked.vanish(head.key(checkpoint_key(300)))
    assert open_head(parts, TENANT).size == 300
    assert parts.forked == {}


@pytest.mark.scenario("L17", "L20", "L28", "L39")
@pytest.mark.parametrize("when", ["fail_before", "fail_after"])
@pytest.mark.parametrize("store", ["locked", "hot"])
def test_a_write_that_breaks_before_or_after_it_persists_loses_nothing_and_doubles_nothing(
    bench: Bench, store: str, when: str
) -> None:
    """Every write of an append and a publish over a tile's edge, one after the other, until one run breaks no more."""
    broken: MemoryStore = getattr(bench, store)
    nth, stored = 0, 0
    while True:
        drafts = [draft(number) for number in range(stored, stored + 100)]
        getattr(broken, when)(nth)
        try:
            bench.log.append(TENANT, drafts, now=NOW)
            bench.log.publish(TENANT, NOW)
            fell = False
        except StoreUnavailable:
            fell = True
        broken.fail_before(10**9)
        broken.fail_after(10**9)
        bench.reopen()
        placed = bench.log.append(TENANT, drafts, now=NOW).placed
        assert [one.index for one in placed] == list(range(stored, stored + 100))
        stored += 100
        _require_sound(bench, stored)
        if not fell:
            break
        nth += 1
    assert nth >= 2


@pytest.mark.scenario("L9", "L37")
@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_breaks_before_or_after_it_persists_loses_nothing_and_doubles_nothing(
    bench: Bench, when: str, same_process: bool
) -> None:
    """Every transaction of an append and a publish, with a restart after the failure and without one."""
    nth, stored = 0, 0
    while True:
        drafts = [draft(number) for number in range(stored, stored + 10)]
        bench.break_commit(nth, when)
        try:
            bench.log.append(TENANT, drafts, now=NOW)
            bench.log.publish(TENANT, NOW)
            fell = False
        except sa.exc.OperationalError:
            fell = True
        bench.break_commit(None, when)
        if not same_process:
            bench.reopen()
        placed = bench.log.append(TENANT, drafts, now=NOW).placed
        assert [one.index for one in placed] == list(range(stored, stored + 10))
        stored += 10
        _require_sound(bench, stored)
        if not fell:
            break
        nth += 1
    assert nth >= 2


@pytest.mark.scenario("L9")
def test_an_fsync_error_is_never_taken_for_a_stored_entry(bench: Bench, tmp_path: Path) -> None:
    """Each fsync of an append and a publish fails once; after it the process writes nothing until it starts again."""
    nth, stored = 0, 0
    while True:
        left = [10**9]

        def sync(descriptor: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.EIO, "the disk said no")
            os.fsync(descriptor)

        bench.on_files(tmp_path / "objects", sync)
        left[0] = nth
        drafts = [draft(number) for number in range(stored, stored + 3)]
        try:
            bench.log.append(TENANT, drafts, now=NOW)
            bench.log.publish(TENANT, NOW)
            fell = False
        except StoreUnavailable:
            fell = True
            with pytest.raises(StoreUnavailable):
                bench.log.append(TENANT, [draft(10_000 + nth)], now=NOW)
        bench.on_files(tmp_path / "objects", os.fsync)
        placed = bench.log.append(TENANT, drafts, now=NOW).placed
        assert [one.index for one in placed] == list(range(stored, stored + 3))
        stored += 3
        _require_sound(bench, stored)
        if not fell:
            break
        nth += 1
    assert nth >= 6


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = _made(tmp_path / "disk")
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this machine mounts no tmpfs: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_refuses_loudly_and_shows_no_torn_object(bench: Bench, small_disk: Path) -> None:
    bench.on_files(small_disk / "objects", os.fsync)
    acknowledged = 0

    def fill() -> None:
        nonlocal acknowledged
        for number in range(100):
            bench.log.append(TENANT, [draft(number, content=os.urandom(40_000))], now=NOW)
            acknowledged += 1

    with pytest.raises(StoreUnavailable):
        fill()
    assert 10 < acknowledged < 30
    for key in bench.locked.list(f"{LOG_ID}/payload/"):
        assert len(bench.locked.get(key)) == 40_000
    kept = sum(1 for _ in bench.locked.list(f"{LOG_ID}/batch/"))
    assert acknowledged <= kept <= acknowledged + 1
    # The operator makes room: the same log goes on.
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    bench.on_files(small_disk / "objects", os.fsync)
    again = bench.log.append(TENANT, [draft(500)], now=NOW).placed
    assert again[0].index == kept
    _require_sound(bench, kept + 1)


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


@pytest.mark.scenario("L2", "L7")
@pytest.mark.parametrize(
    "changes",
    [
        {"previous_digest": bytes(32)},
        {"previous_key": f"batch/{0:020d}", "previous_count": 2},
        {"fence": 0},
        {"log_id": "cd" * 16},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_batch_that_does_not_continue_what_is_there_stops_the_log(
    bench: Bench, tmp_path: Path, changes: dict[str, Any]
) -> None:
    # What stands next to each other in the bucket is no history by itself.
    for number in range(2):
        bench.log.append(TENANT, [draft(number)], now=NOW)
    bench.engine.dispose()
    backup = (tmp_path / "log.db").read_bytes()
    bench.reopen()
    bench.log.append(TENANT, [draft(2)], now=NOW)
    bench.engine.dispose()
    (tmp_path / "log.db").write_bytes(backup)
    key = f"{LOG_ID}/batch/{2:020d}"
    before = bench.locked.get(key)
    other = encode_batch(replace(decode_batch(before), **changes))
    bench.locked.alter(key, other)
    [lines] = bench.hot.list(f"{LOG_ID}/index/{2:020d}")
    bench.hot.put(f"{LOG_ID}/{index_key(2, sha256(other).digest())}", bench.hot.get(lines), lock_until=None)
    bench.reopen()
    with pytest.raises(LogForked):
        bench.log.append(TENANT, [draft(3)], now=NOW)
    bench.locked.alter(key, before)
    bench.reopen()
    assert bench.log.append(TENANT, [draft(3)], now=NOW).placed[0].index == 3


@pytest.mark.scenario("L2")
def test_a_bucket_whose_batches_were_cut_behind_a_checkpoint_stops_the_log(bench: Bench) -> None:
    bench.log.append(TENANT, [draft(0)], now=NOW)
    backup = [(row.size, row.batch_first) for row in _states(bench)]
    bench.log.append(TENANT, [draft(1)], now=NOW)
    bench.log.publish(TENANT, NOW)
    bench.locked.vanish(f"{LOG_ID}/batch/{1:020d}")
    with Session(bench.engine) as session:
        session.execute(sa.delete(EntryRow).where(col(EntryRow.idx) == 1))
        session.execute(sa.delete(PartPlaces).where(col(PartPlaces.start) == 1))
        state = session.exec(select(LogState)).one()
        state.size, state.batch_first = backup[0]
        state.batch_count, state.checkpoint_size = 1, 0
        session.add(state)
        session.commit()
    bench.reopen()
    with pytest.raises(LogRolledBack):
        bench.log.append(TENANT, [draft(2)], now=NOW)


@pytest.mark.scenario("L2")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("previous", bytes(32)),
        ("batch_digest", bytes(32)),
        ("batch_count", 1),
        ("size", 4),
        ("fence", 10**6),
        ("checkpoint_size", 0),
        ("checkpoint_digest", bytes(32)),
    ],
)
def test_what_a_row_says_of_the_logs_end_is_not_written_into_the_log(bench: Bench, column: str, value: object) -> None:
    """One changed byte of the database, and every audit of the untouched bucket said altered from then on."""
    bench.log.append(TENANT, [draft(0), draft(1)], now=NOW)
    bench.log.publish(TENANT, NOW)
    bench.log.append(TENANT, [draft(2), draft(3), draft(4)], now=NOW)
    with bench.engine.begin() as connection:
        connection.execute(sa.update(LogState).values(**{column: value}))
    bench.reopen()
    assert bench.log.append(TENANT, [draft(5)], now=NOW).placed[0].index == 5
    _require_sound(bench, 6)
    batches = [decode_batch(bench.locked.get(key)) for key in bench.locked.list(f"{LOG_ID}/batch/")]
    digests = [sha256(bench.locked.get(key)).digest() for key in bench.locked.list(f"{LOG_ID}/batch/")]
    for (before, digest), batch in zip(zip(batches, digests, strict=True), batches[1:], strict=False):
        verify_follows(batch, before, digest)


@pytest.mark.scenario("L2")
def test_a_tree_in_memory_that_went_wrong_signs_nothing_beside_what_was_signed(bench: Bench) -> None:
    # It was compared with the root that it had itself, and so with nothing.
    bench.log.append(TENANT, [draft(number) for number in range(300)], now=NOW)
    first = bench.log.publish(TENANT, NOW)
    wrong = [sha256(number.to_bytes(4, "big")).digest() for number in range(300)]
    head = bench.log.head(TENANT)
    head.tree = Tree(put=lambda *_: None, get=bench.hot.get, leaves=lambda number: wrong[256 * number :][:256])
    head.tree.make_again(300, wrong)
    bench.log.append(TENANT, [draft(300)], now=NOW)
    with pytest.raises(BadProof):
        bench.log.publish(TENANT, NOW)
    assert [bench.locked.get(key) for key in bench.locked.list(f"{LOG_ID}/checkpoint/")] == [first]
    bench.log.publish(TENANT, NOW)
    _require_sound(bench, 301)


def test_a_database_that_claims_more_than_the_bucket_has_gets_nothing_sequenced(bench: Bench) -> None:
    bench.log.append(TENANT, [draft(0)], now=NOW)
    with bench.engine.begin() as connection:
        connection.execute(sa.update(LogState).values(size=3))
    bench.reopen()
    with pytest.raises(LogRolledBack, match="expected size 3 or more, got 1"):
        bench.log.append(TENANT, [draft(1)], now=NOW)
    assert len(list(bench.locked.list(f"{LOG_ID}/batch/"))) == 1
    bench.locked.vanish(f"{LOG_ID}/batch/{0:020d}")
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


def _require_sound(bench: Bench, size: int) -> None:
    """The bucket, read naively, holds one unbroken log of this size, and the checkpoint is of its tree."""
    leaves: list[bytes] = []
    ids: set[str] = set()
    previous: bytes = bytes(32)
    for key in bench.locked.list(f"{LOG_ID}/batch/"):
        for raw in decode_batch(bench.locked.get(key)).headers:
            header = decode_header(raw)
            assert header.previous == previous
            previous = header_hash(raw)
            leaves.append(previous)
            ids.add(header.id)
    assert len(leaves) == len(ids) == size
    checkpoint = parse_checkpoint(verify_note(bench.log.publish(TENANT, NOW), [_verifier(bench)]))
    assert (checkpoint.size, checkpoint.root) == (size, root(leaves))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _states(bench: Bench) -> list[LogState]:
    with Session(bench.engine) as session:
        return list(session.exec(select(LogState)))


def _verifier(bench: Bench) -> Verifier:
    return verifier_from_vkey(bench.log.vkey(TENANT))


@pytest.mark.scenario("L29")
@pytest.mark.parametrize("meanwhile", [0, 1])
def test_a_database_that_went_back_is_noticed_before_anything_is_stored_twice(bench: Bench, meanwhile: int) -> None:
    """What an older copy does not know would be sequenced again, and stand in the bucket for years."""
    bench.log.append(TENANT, [draft(0)], now=NOW)
    bench.engine.dispose()
    older = (bench.folder / "log.db").read_bytes()
    bench.log.append(TENANT, [draft(1)], now=NOW)
    stored = list(bench.locked.list(f"{LOG_ID}/batch/"))
    bench.engine.dispose()
    (bench.folder / "log.db").write_bytes(older)
    with pytest.raises(DatabaseWentBack):
        bench.log.append(TENANT, [draft(1), *(draft(2) for _ in range(meanwhile))], now=NOW)
    assert list(bench.locked.list(f"{LOG_ID}/batch/")) == stored
    again = bench.log.append(TENANT, [draft(1), draft(2)], now=NOW).placed
    assert [(one.state, one.index) for one in again] == [(PlacedState.DUPLICATE, 1), (PlacedState.STORED, 2)]
    assert [decode_header(raw).position for raw in bench.log.headers(TENANT, [0, 1, 2])] == [0, 1, 2]

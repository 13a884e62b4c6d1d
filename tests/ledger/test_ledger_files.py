"""The file store under crashes and failing disks: nothing torn is ever visible, nothing is called stored too early."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ledger.errors import ObjectExists, ObjectLocked, ObjectMissing, StoreDenied, StoreUnavailable
from ledger.files import FileStore

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
UNTIL = NOW + timedelta(days=30)
REPOSITORY = Path(__file__).resolve().parents[2]


class FailingSync:
    """An fsync that fails once, at its n-th call."""

    def __init__(self, fail_at: int) -> None:
        self.calls = 0
        self.fail_at = fail_at

    def __call__(self, handle: int) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise OSError(errno.EIO, "injected")
        os.fsync(handle)


def clock() -> datetime:
    return NOW


def syncs_of_one_put(folder: Path) -> tuple[int, int]:
    sync = FailingSync(0)
    store = FileStore(folder, clock, fsync=sync)
    before = sync.calls
    store.put("payload/2026-03/a", b"data", lock_until=UNTIL)
    return before, sync.calls - before


@pytest.mark.scenario("L9")
def test_an_fsync_error_at_any_step_of_a_put_shows_no_object_and_stops_all_writing(tmp_path: Path) -> None:
    before, count = syncs_of_one_put(tmp_path / "counted")
    assert count >= 4
    for step in range(1, count + 1):
        folder = tmp_path / str(step)
        store = FileStore(folder, clock, fsync=FailingSync(before + step))
        with pytest.raises(StoreUnavailable):
            store.put("payload/2026-03/a", b"data", lock_until=UNTIL)
        with pytest.raises(ObjectMissing):
            store.get("payload/2026-03/a")
        # Not even another key: the kernel may have dropped pages of anything.
        with pytest.raises(StoreUnavailable, match="restart"):
            store.put("other", b"data", lock_until=None)
        with pytest.raises(StoreUnavailable, match="restart"):
            store.delete("other")
        restarted = FileStore(folder, clock)
        restarted.put("payload/2026-03/a", b"again", lock_until=UNTIL)
        assert restarted.get("payload/2026-03/a") == b"again"
        assert list((folder / ".incoming").iterdir()) == []


CRASH = """
import os, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from ledger.files import FileStore
now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
left = int(sys.argv[2])
def die_at_the_step(handle):
    global left
    left -= 1
    if left == 0:
        os._exit(9)
    os.fsync(handle)
store = FileStore(Path(sys.argv[1]), lambda: now, fsync=die_at_the_step)
store.put("payload/2026-03/a", b"x" * 100_000, lock_until=now + timedelta(days=int(sys.argv[3])))
"""


def put_and_die(folder: Path, step: int, days: int) -> int:
    command = [sys.executable, "-c", CRASH, str(folder), str(step), str(days)]
    return subprocess.run(command, check=False, cwd=REPOSITORY, env={"PYTHONPATH": str(REPOSITORY)}).returncode


@pytest.mark.scenario("L9")
def test_a_process_killed_at_any_step_leaves_the_whole_locked_object_or_none(tmp_path: Path) -> None:
    before, count = syncs_of_one_put(tmp_path / "counted")
    for step in range(1, count + 1):
        folder = tmp_path / str(step)
        assert put_and_die(folder, before + step, days=10) == 9
        store = FileStore(folder, clock)
        assert list((folder / ".incoming").iterdir()) == []
        try:
            assert store.get("payload/2026-03/a") == b"x" * 100_000
        except ObjectMissing:
            # The orphaned lock of the dead writer neither blocks nor shortens ours.
            store.put("payload/2026-03/a", b"x" * 100_000, lock_until=UNTIL)
            assert store.head("payload/2026-03/a").locked_until == UNTIL
        else:
            assert store.head("payload/2026-03/a").locked_until == NOW + timedelta(days=10)
        with pytest.raises(ObjectLocked):
            store.delete("payload/2026-03/a")


@pytest.mark.scenario("L39")
def test_a_put_that_lost_a_race_does_not_change_the_winners_lock(tmp_path: Path) -> None:
    store = FileStore(tmp_path, clock)
    store.put("a", b"first", lock_until=UNTIL)
    for until in (None, NOW + timedelta(seconds=1), UNTIL + timedelta(days=1)):
        with pytest.raises(ObjectExists):
            store.put("a", b"second", lock_until=until)
        assert store.head("a").locked_until == UNTIL


def test_a_new_object_without_lock_does_not_inherit_an_orphaned_one(tmp_path: Path) -> None:
    FileStore(tmp_path, clock)
    (tmp_path / ".lock" / "a").write_text(UNTIL.isoformat())
    store = FileStore(tmp_path, clock)
    store.put("a", b"data", lock_until=None)
    assert store.head("a").locked_until is None
    store.delete("a")


@pytest.mark.parametrize("content", ["", "tomorrow", "2026-03-01T12:00:00"])
def test_a_lock_that_cannot_be_read_counts_as_a_lock(tmp_path: Path, content: str) -> None:
    store = FileStore(tmp_path, clock)
    store.put("a", b"data", lock_until=UNTIL)
    lock = tmp_path / ".lock" / "a"
    lock.unlink()
    lock.write_text(content)
    for ask in (store.delete, store.head):
        with pytest.raises(StoreUnavailable):
            ask("a")
    assert store.get("a") == b"data"


def test_drafts_of_a_writer_that_lives_are_not_swept(tmp_path: Path) -> None:
    reached: list[Path] = []

    def look(handle: int) -> None:
        if not reached and any((tmp_path / ".incoming").iterdir()):
            reached.extend((tmp_path / ".incoming").iterdir())
            FileStore(tmp_path, clock)
        os.fsync(handle)

    store = FileStore(tmp_path, clock)
    watched = FileStore(tmp_path, clock, fsync=look)
    watched.put("a", b"data", lock_until=UNTIL)
    assert len(reached) == 1
    assert store.get("a") == b"data"


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    store = FileStore(tmp_path / "store", clock)
    (tmp_path / "store" / "a").symlink_to(tmp_path / "secret")
    with pytest.raises(ObjectMissing):
        store.get("a")
    with pytest.raises(ObjectExists):
        store.put("a", b"data", lock_until=None)


def failing_open(number: int, real: Callable[..., int]) -> Callable[..., int]:
    def opened(path: object, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL:
            raise OSError(number, "injected")
        return real(path, flags, mode)

    return opened


def test_a_full_disk_and_a_read_only_one_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path, clock)
    real = os.open
    for number, expected in ((errno.ENOSPC, StoreUnavailable), (errno.EROFS, StoreDenied)):
        monkeypatch.setattr(os, "open", failing_open(number, real))
        with pytest.raises(expected, match=errno.errorcode[number]):
            store.put("a", b"data", lock_until=None)
    monkeypatch.undo()
    # Neither is an error of fsync, so the store goes on when there is room again.
    store.put("a", b"data", lock_until=None)
    assert store.get("a") == b"data"


@pytest.mark.scenario("L38")
def test_errors_show_no_paths_of_the_machine(tmp_path: Path) -> None:
    store = FileStore(tmp_path, clock)
    with pytest.raises(ObjectMissing) as caught:
        store.get("payload/a")
    assert str(tmp_path) not in str(caught.value)


def test_objects_are_readable_by_the_owner_only(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store", clock)
    store.put("payload/a", b"data", lock_until=UNTIL)
    assert (tmp_path / "store" / "payload" / "a").stat().st_mode & 0o777 == 0o400
    assert (tmp_path / "store" / "payload").stat().st_mode & 0o777 == 0o700


def test_a_key_that_would_be_a_folder_and_an_object_is_refused(tmp_path: Path) -> None:
    locked, hot = FileStore(tmp_path / "locked", clock), FileStore(tmp_path / "hot", clock, locked=False)
    for store in (locked, hot):
        store.put("a/b", b"x", lock_until=None)
    locked.put("c", b"x", lock_until=None)
    with pytest.raises(StoreDenied):
        locked.put("c/d", b"x", lock_until=UNTIL)
    with pytest.raises(ObjectExists):
        locked.put("a", b"x", lock_until=None)
    with pytest.raises(StoreDenied):
        hot.replace("a", b"x")
    assert list(locked.list("")) == ["a/b", "c"]
    assert list(hot.list("")) == ["a/b"]


TILES = [(f"tile/{n % 2}/{n:03d}", bytes([n]) * 8192) for n in range(12)]


def test_objects_created_together_are_each_there_and_wait_for_their_folders_once(tmp_path: Path) -> None:
    sync = FailingSync(0)
    store = FileStore(tmp_path / "hot", clock, locked=False, fsync=sync)
    store.put("tile/0/first", b"", lock_until=None)
    store.put("tile/1/first", b"", lock_until=None)
    before = sync.calls
    store.put_together(TILES)
    assert sync.calls - before == len(TILES) + 2
    again = FileStore(tmp_path / "hot", clock, locked=False)
    assert [again.get(key) for key, _ in TILES] == [data for _, data in TILES]
    assert list((tmp_path / "hot" / ".incoming").iterdir()) == []
    store.put_together([])


def test_where_one_of_many_is_there_none_is_created(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "hot", clock, locked=False)
    store.put(TILES[7][0], b"mine", lock_until=None)
    with pytest.raises(ObjectExists):
        store.put_together(TILES)
    assert list(store.list("tile/")) == [TILES[7][0]]
    assert store.get(TILES[7][0]) == b"mine"
    assert list((tmp_path / "hot" / ".incoming").iterdir()) == []


@pytest.mark.scenario("L9")
def test_an_fsync_error_among_many_shows_none_of_them_and_stops_all_writing(tmp_path: Path) -> None:
    sync = FailingSync(0)
    FileStore(tmp_path / "counted", clock, locked=False, fsync=sync).put_together(TILES)
    for step in range(4, sync.calls + 1):  # the first make the store's own folders
        folder = tmp_path / str(step)
        store = FileStore(folder, clock, locked=False, fsync=FailingSync(step))
        with pytest.raises(StoreUnavailable):
            store.put_together(TILES)
        assert list(store.list("tile/")) == []
        with pytest.raises(StoreUnavailable):
            store.put("other", b"data", lock_until=None)
        FileStore(folder, clock, locked=False).put_together(TILES)

"""Threads that `govern` keeps, erased by the service's connectors: the contract, and what is special to each shape."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from connectors.base import Item, Level, Outcome, ReclaimReport, Selector, open_connector
from connectors.errors import BadConfig, StoreUnreachable
from connectors.scanning.plain import reach_of
from connectors.scanning.report import DryRun
from connectors.scanning.scan import scan
from muniment.errors import KeyMissing, SealBroken, ThreadErased
from muniment.integrations.langgraph import govern
from muniment.thread_folder import ThreadFolder
from tests.connectors.contract import MIA, NOW, OF_PROCESSES, ROOT, Bed, Contract, captured, erase, fill, text_of
from tests.connectors.governed_beds import Governed, OneFileAThread, Sealed, SealedPostgres, SealedSqlite
from tests.connectors.langgraph_beds import agent


class TestOneFileAThread(Contract):
    holds = "langgraph, one file a thread"
    slow: ClassVar = OF_PROCESSES

    @pytest.fixture
    def bed(self, tmp_path: Path) -> OneFileAThread:
        return OneFileAThread(tmp_path)


class SealedContract(Contract):
    instead: ClassVar = {
        "test_residue_names_each_canary_that_is_there_and_none_that_is_not": "what is sealed lies nowhere to be named"
    }

    def test_residue_names_each_canary_that_is_there_and_none_that_is_not(self, bed: Bed) -> None:
        """Nothing lies open: what a sealed store holds is not there to be named."""
        fill(bed, 1)
        with bed.open(read_only=True) as connector:
            assert connector.residue([text_of("mia-0").encode()], deadline=30) == []
        assert bed.hits(text_of("mia-0")) == 0


class TestSealedSqlite(SealedContract):
    holds = "langgraph, sealed over SQLite"

    @pytest.fixture
    def bed(self, tmp_path: Path) -> Iterator[Sealed]:
        made = SealedSqlite(tmp_path)
        yield made
        made.close()


@pytest.mark.postgres
class TestSealedPostgres(SealedContract):
    holds = "langgraph, sealed over PostgreSQL"
    slow: ClassVar = OF_PROCESSES

    @pytest.fixture
    def bed(self, server: Any, tmp_path: Path) -> Iterator[Sealed]:
        made = SealedPostgres(server, tmp_path)
        yield made
        made.close()


@pytest.mark.postgres
@pytest.mark.scenario("S10")
def test_a_sealed_thread_that_was_pruned_to_its_latest_goes_on_where_it_was(server: Any, tmp_path: Path) -> None:
    """Checkpoints grow with the square of the turns; what pruning keeps is all that a run needs."""
    made = SealedPostgres(server, tmp_path)
    try:
        for turn in range(12):
            say(made, "t", f"turn {turn}", user_id="mia")
            say(made, "u", f"turn {turn}", user_id="ben")
        before, neighbour = made.saver.get_tuple(config_of("t")), made.saver.get_tuple(config_of("u"))
        assert before is not None
        made.saver.prune(["t"], strategy="keep_latest")
        after = made.saver.get_tuple(config_of("t"))
        assert after is not None
        assert (after.checkpoint, after.metadata, after.pending_writes) == (
            before.checkpoint, before.metadata, before.pending_writes
        )  # fmt: skip
        assert made.run("SELECT count(*) FROM checkpoints WHERE thread_id = 't'")[0][0] == 1
        assert len(say(made, "t", "and on")["messages"]) == 26
        assert made.saver.get_tuple(config_of("u")) == neighbour
        assert erased_to_l2(made, thread("t"))[1].method == "none: keys destroyed"
    finally:
        made.close()


@pytest.fixture
def files(tmp_path: Path) -> OneFileAThread:
    return OneFileAThread(tmp_path)


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[SealedSqlite]:
    made = SealedSqlite(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["files", "sealed"])
def bed(request: pytest.FixtureRequest) -> Governed:
    """Both shapes in turn, for what has to hold of each."""
    made = request.getfixturevalue(request.param)
    assert isinstance(made, Governed)
    return made


def config_of(name: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": name, **more}}


def thread(name: str) -> Item:
    return Item(copy_id=name, locator={"thread_id": name})


def say(bed: Governed, name: str, text: str, **more: Any) -> Any:
    return agent(bed.saver).invoke({"messages": [HumanMessage(content=text)]}, config_of(name, **more))


def test_a_file_goes_and_every_other_byte_of_the_folder_stays(files: OneFileAThread) -> None:
    mine, _ = fill(files, 2)
    before = {path.name: path.read_bytes() for path in files.keys.iterdir() if path.is_file()}
    gone = {files.path(item.copy_id, ".db").name for item in mine}
    with files.open() as connector:
        assert {r.detail for r in erase(connector, mine)} == {
            "read: 3 of writes, 3 of checkpoints; its files unlinked and looked for again"
        }
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    after = {path.name: path.read_bytes() for path in files.keys.iterdir() if path.is_file()}
    assert {name: each for name, each in after.items() if not name.endswith(".gone")} == {
        name: each for name, each in before.items() if name not in gone
    }
    assert (report.level, report.method) == (Level.L2, "none: the files are gone")
    assert report.freed_bytes == sum(len(before[name]) for name in gone)
    assert not [path for path in files.keys.rglob("*") if path.stat().st_mode & 0o077]


@pytest.mark.scenario("B1", "S1")
def test_a_run_in_the_middle_of_which_its_thread_is_erased_ends_there(bed: Governed) -> None:
    say(bed, "t", "first", user_id="mia")
    late = bed.saver.get_tuple(config_of("t"))
    assert late is not None
    with bed.open() as connector:
        assert erase(connector, [thread("t")])[0].outcome is Outcome.ERASED
    for attempt in (
        lambda: say(bed, "t", "second", user_id="mia"),
        lambda: bed.saver.put(late.config, late.checkpoint, late.metadata, {}),
        lambda: bed.saver.put_writes(late.config, [("messages", "late")], "task"),
        lambda: bed.saver.get_tuple(late.config),
        lambda: bed.saver.delete_thread("t"),
    ):
        with pytest.raises(ThreadErased):
            attempt()
    assert list(bed.saver.list(None)) == []
    with bed.open(read_only=True) as verifier:
        assert verifier.verify([thread("t")], Level.L1, deadline=10)[0].present is False


def test_a_fence_refuses_a_thread_before_it_is_erased(bed: Governed) -> None:
    say(bed, "t", "first", user_id="mia")
    with bed.open() as connector:
        assert connector.capabilities().fence
        assert connector.fence({"thread_id": "t"}).held
        with pytest.raises(ThreadErased):
            say(bed, "t", "second", user_id="mia")
        assert erase(connector, [thread("t")])[0].outcome is Outcome.ERASED


def test_a_thread_of_two_people_is_left_to_a_human(bed: Governed) -> None:
    say(bed, "t", "first", user_id="mia")
    say(bed, "t", "second", user_id="ben")
    with bed.open() as connector:
        assert erase(connector, [thread("t")])[0].outcome is Outcome.OWNER_MISMATCH
    assert bed.get("t") == "first"


def test_a_thread_that_its_application_deleted_may_begin_anew(bed: Governed) -> None:
    say(bed, "t", "first", user_id="mia")
    bed.saver.delete_thread("t")
    assert bed.saver.get_tuple(config_of("t")) is None
    assert len(say(bed, "t", "second", user_id="mia")["messages"]) == 2


def test_a_folder_that_went_away_proves_no_absence(bed: Governed) -> None:
    say(bed, "t", "first", user_id="mia")
    bed.keys.rename(bed.keys.with_name("away"))
    with bed.open() as connector, pytest.raises(StoreUnreachable):
        erase(connector, [thread("t")])
    with bed.open(read_only=True) as verifier, pytest.raises(StoreUnreachable):
        verifier.verify([thread("t")], Level.L1, deadline=10)


def test_a_file_with_rows_of_somebody_elses_thread_is_left(files: OneFileAThread) -> None:
    say(files, "t", "first", user_id="mia")
    path = files.path("t", ".db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE writes SET thread_id = 'other' WHERE rowid = 1")
        connection.commit()
    with files.open() as connector:
        receipt = erase(connector, [thread("t")])[0]
    assert (receipt.outcome, receipt.detail) == (Outcome.FAILED, "the file holds rows of another thread")
    assert path.exists()


def test_a_backup_of_a_sealed_database_holds_nothing_that_opens_once_the_key_is_gone(
    sealed: SealedSqlite, tmp_path: Path
) -> None:
    mine, others = fill(sealed, 2)
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(backup)) as copy:
        sealed.files.connection.backup(copy)
    with sealed.open() as connector:
        items = captured(connector, mine)
        erase(connector, items)
        started = time.monotonic()
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        assert time.monotonic() - started < 0.2
    assert (report.level, report.method, report.freed_bytes) == (Level.L2, "none: keys destroyed", 0)
    # The rows of the dead thread are still in the free pages: as ciphertext.
    assert sealed.files.path.stat().st_size + Path(f"{sealed.files.path}-wal").stat().st_size > 0
    for place in (sealed.files.path, Path(f"{sealed.files.path}-wal"), backup):
        assert text_of("mia-0").encode() not in place.read_bytes()
    with closing(sqlite3.connect(backup)) as restored:
        again = govern(SqliteSaver(restored), storage="sealed", folder=sealed.keys)
        with pytest.raises(ThreadErased):
            again.get_tuple(config_of("mia-0"))
        # Neither does it help to take away the word that it was erased, or to have the rows in another thread's name.
        sealed.path("mia-0", ".gone").unlink()
        with pytest.raises(KeyMissing):
            again.get_tuple(config_of("mia-0"))
        restored.execute("DELETE FROM checkpoints WHERE thread_id = 'ben-0'")
        restored.execute("UPDATE checkpoints SET thread_id = 'ben-0' WHERE thread_id = 'mia-0'")
        with pytest.raises(SealBroken):
            again.get_tuple(config_of("ben-0"))
    assert [sealed.get(item.copy_id) for item in others] == [text_of(item.copy_id) for item in others]


def test_a_thread_that_began_before_sealing_is_rewritten_as_ever(sealed: SealedSqlite) -> None:
    agent(sealed.inner).invoke({"messages": [HumanMessage(content=text_of("mia-0"))]}, config_of("t", user_id="mia"))
    say(sealed, "t", text_of("mia-1"), user_id="mia")
    assert len(agent(sealed.saver).get_state(config_of("t")).values["messages"]) == 4
    assert sealed.hits(text_of("mia-0")) > 0
    with sealed.open() as connector:
        assert list(connector.discover(Selector(identifiers=(MIA,)), deadline=10)) == [{"thread_id": "t"}]
        items = captured(connector, [thread("t")])
        erase(connector, items)
        with sealed.open(read_only=True) as verifier:
            before = verifier.verify(items, Level.L2, deadline=30)[0]
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert (before.level, before.present) == (Level.L1, True)
    assert report.method.startswith("VACUUM")
    with sealed.open(read_only=True) as verifier:
        found = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
    assert (found.level, found.present) == (Level.L2, False)
    assert sealed.hits(text_of("mia-0")) == 0


def test_keys_destroyed_is_no_reason_for_a_thread_that_was_not_sealed(sealed: SealedSqlite) -> None:
    agent(sealed.inner).invoke({"messages": [HumanMessage(content=text_of("mia-0"))]}, config_of("t", user_id="mia"))
    say(sealed, "t", text_of("mia-1"), user_id="mia")
    forged = ReclaimReport(level=Level.L2, residual_until=None, detail="", method="", evidence={"keys": "destroyed"})
    with sealed.open() as connector:
        erase(connector, [thread("t")])
    with sealed.open(read_only=True) as verifier:
        found = verifier.verify([thread("t")], Level.L2, deadline=30, reclaimed=forged)[0]
    assert (found.level, found.present) == (Level.L1, None)
    assert found.could_not_check == "not everything of the thread was sealed"


@pytest.mark.parametrize("moment", ["before the keys", "after the keys"])
def test_killed_before_the_commit_it_starts_again_and_ends_the_same(sealed: SealedSqlite, moment: str) -> None:
    say(sealed, "t", text_of("mia-0"), user_id="mia")
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    body = f"{kill}; was(self, now_open, gone)" if moment == "before the keys" else f"was(self, now_open, gone); {kill}"
    program = (
        f"{sealed.source()}\nimport os, signal\nfrom datetime import datetime, UTC\nfrom connectors.base import Item\n"
        "was = type(connector)._before_commit\n"
        f"def _before_commit(self, now_open, gone): {body}\n"
        "type(connector)._before_commit = _before_commit\n"
        "item = Item(copy_id='t', locator={'thread_id': 't'})\n"
        f"connector.erase([item], owner_identifiers=[{MIA!r}], now=datetime.now(UTC), deadline=30)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -9, killed.stderr
    assert sealed.run("SELECT count(*) FROM checkpoints")[0][0] == 3
    with sealed.open(read_only=True) as verifier:
        assert verifier.verify([thread("t")], Level.L1, deadline=10)[0].present is True
    with sealed.open() as connector:
        assert erase(connector, [thread("t")])[0].outcome is Outcome.ERASED
        assert connector.reclaim(Level.L2, now=NOW, deadline=10).method == "none: keys destroyed"
    assert sealed.run("SELECT count(*) FROM checkpoints")[0][0] == 0
    assert sealed.hits(text_of("mia-0")) == 0


def test_a_key_whose_rows_the_application_deleted_goes_only_with_its_owner(sealed: SealedSqlite) -> None:
    mine, others = fill(sealed, 1)
    sealed.run("DELETE FROM checkpoints")
    sealed.run("DELETE FROM writes")
    with sealed.open() as connector:
        receipts = erase(connector, [*mine, *others])
    assert [each.outcome for each in receipts] == [Outcome.ERASED, Outcome.OWNER_MISMATCH]
    assert [path.exists() for path in (sealed.path(n, ".key") for n in ("mia-0", "ben-0"))] == [
        False,
        True,
    ]


def test_a_file_that_is_damaged_fails_its_own_thread_alone(files: OneFileAThread) -> None:
    mine, others = fill(files, 3)
    damaged = b"no database at all, though it says what she said: " + text_of("mia-1").encode()
    files.path("mia-1", ".db").write_bytes(damaged)
    with files.open() as connector:
        held = captured(connector, mine)
        receipts = erase(connector, mine)
        left = connector.verify(mine, Level.L1, deadline=10)
    assert [bool(item.canaries) for item in held] == [True, False, True]
    assert [each.outcome for each in receipts] == [Outcome.ERASED, Outcome.FAILED, Outcome.ERASED]
    assert [each.present for each in left] == [False, True, False]
    assert files.path("mia-1", ".db").read_bytes() == damaged
    assert [files.get(item.copy_id) for item in others] == [text_of(item.copy_id) for item in others]


def test_a_key_that_cannot_be_read_fails_its_own_thread_alone(sealed: SealedSqlite) -> None:
    mine, others = fill(sealed, 3)
    sealed.path("mia-1", ".key").write_bytes(b'{"thread": "mia-1", "own')
    with sealed.open() as connector:
        held = captured(connector, mine)
        receipts = erase(connector, mine)
        left = connector.verify(mine, Level.L1, deadline=10)
        with pytest.raises(StoreUnreachable):
            list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))
    assert [text_of(item.copy_id).encode() in item.canaries for item in held] == [True, False, True]
    assert [each.outcome for each in receipts] == [Outcome.ERASED, Outcome.OWNER_MISMATCH, Outcome.ERASED]
    assert [each.present for each in left] == [False, True, False]
    assert sealed.path("mia-1", ".key").exists()
    with sealed.open(owner=False) as connector:
        # Where no owner is compared the thread goes, and what it was sealed under proves nothing any more.
        assert erase(connector, mine[1:2])[0].outcome is Outcome.ERASED
        assert connector.reclaim(Level.L2, now=NOW, deadline=10).method.startswith("VACUUM")
    assert [sealed.get(item.copy_id) for item in others] == [text_of(item.copy_id) for item in others]


def erased_to_l2(bed: Governed, item: Item) -> tuple[Outcome, ReclaimReport, Any]:
    """Take one thread through capture, erase, reclaim and verify; return outcome, report and finding."""
    with bed.open() as connector:
        items = captured(connector, [item])
        [receipt] = erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    with bed.open(read_only=True) as verifier:
        return receipt.outcome, report, verifier.verify(items, Level.L2, deadline=30, reclaimed=report)[0]


def test_what_was_written_past_the_seal_is_seen_and_the_database_is_rewritten(sealed: SealedSqlite) -> None:
    """The key says that the thread was sealed from its start; what another saver added later lies open all the same."""
    say(sealed, "t", text_of("mia-0"), user_id="mia")
    newest = sealed.inner.get_tuple(config_of("t"))
    assert newest is not None
    sealed.inner.put_writes(newest.config, [("messages", text_of("mia-1"))], "task")
    assert sealed.hits(text_of("mia-1")) > 0
    outcome, report, found = erased_to_l2(sealed, thread("t"))
    assert (outcome, found.level, found.present) == (Outcome.ERASED, Level.L2, False)
    assert report.method.startswith("VACUUM")
    assert sealed.hits(text_of("mia-1")) == 0


def test_one_of_several_threads_of_a_person_is_shown_gone_while_the_others_name_them(bed: Governed) -> None:
    """Keys and files of the threads that stay say whose they are; that is nothing of the one that went."""
    person = "user:mia-with-a-long-name"
    for name in ("one", "other"):
        say(bed, name, text_of(f"{name}-0"), user_id=person)
    with bed.open() as connector:
        items = captured(connector, [thread("one")])
        assert items[0].canaries
        [receipt] = connector.erase(items, owner_identifiers=[person], now=NOW, deadline=30)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    with bed.open(read_only=True) as verifier:
        [found] = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)
    assert (receipt.outcome, found.level, found.present) == (Outcome.ERASED, Level.L2, False)
    assert text_of("other-0") in str(bed.saver.get_tuple(config_of("other")))


def test_a_fence_does_not_vouch_for_what_was_written_past_the_seal(sealed: SealedSqlite) -> None:
    say(sealed, "t", text_of("mia-0"), user_id="mia")
    newest = sealed.inner.get_tuple(config_of("t"))
    assert newest is not None
    with sealed.open() as connector:
        connector.fence({"thread_id": "t"})
    sealed.inner.put_writes(newest.config, [("messages", text_of("mia-1"))], "task")
    assert erased_to_l2(sealed, thread("t"))[1].method.startswith("VACUUM")
    assert sealed.hits(text_of("mia-1")) == 0


@pytest.mark.parametrize("place", ["{}~", "copy of {}", "old/{}", "old/deeper/kept.bak"])
def test_a_copy_that_somebody_made_in_the_folder_is_no_absence(bed: Governed, place: str) -> None:
    say(bed, "t", text_of("mia-0"), user_id="mia")
    say(bed, "u", text_of("ben-0"), user_id="ben")
    end = ".db" if isinstance(bed, OneFileAThread) else ".key"
    copy = bed.keys / place.format(bed.path("t", end).name)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(bed.path("t", end).read_bytes())
    outcome, _, found = erased_to_l2(bed, thread("t"))
    assert (outcome, found.level, found.present) == (Outcome.ERASED, Level.L1, True)


@pytest.mark.parametrize("how", ["hard link", "symbolic link"])
def test_a_file_that_would_stay_under_another_name_is_left_and_reported(bed: Governed, how: str) -> None:
    say(bed, "t", text_of("mia-0"), user_id="mia")
    path = bed.path("t", ".db" if isinstance(bed, OneFileAThread) else ".key")
    other = bed.keys.parent / "elsewhere"
    if how == "hard link":
        other.hardlink_to(path)
    else:
        path.rename(other)
        path.symlink_to(other)
    outcome, _, found = erased_to_l2(bed, thread("t"))
    assert (outcome, found.present) == (Outcome.FAILED, True)
    assert other.exists()
    assert bed.get("t") == text_of("mia-0")
    if how == "hard link":
        other.unlink()
        outcome, _, found = erased_to_l2(bed, thread("t"))
        assert (outcome, found.level, found.present) == (Outcome.ERASED, Level.L2, False)


def test_rows_that_a_backup_brought_back_without_their_key_are_erased_to_l2_again(sealed: SealedSqlite) -> None:
    say(sealed, "t", text_of("mia-0"), user_id="mia")
    kept = {table: sealed.run(f"SELECT * FROM {table}") for table in ("checkpoints", "writes")}
    assert erased_to_l2(sealed, thread("t"))[0] is Outcome.ERASED
    for table, rows in kept.items():
        for row in rows:
            sealed.run(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", *row)
    with sealed.open(read_only=True) as verifier:
        assert verifier.verify([thread("t")], Level.L1, deadline=10)[0].present is True
    outcome, report, found = erased_to_l2(sealed, thread("t"))
    assert (outcome, found.level, found.present) == (Outcome.ERASED, Level.L2, False)
    assert report.method == "none: keys destroyed"


def test_who_comes_while_an_erasure_waits_does_not_keep_it_waiting(sealed: SealedSqlite) -> None:
    """Agents that read without a pause overlap; the lock is never free by itself."""
    say(sealed, "t", text_of("mia-0"), user_id="mia")
    folder, ended = ThreadFolder(sealed.keys), threading.Event()

    def wipe() -> None:
        with sealed.open() as connector:
            assert erase(connector, [thread("t")])[0].outcome is Outcome.ERASED
        ended.set()

    def may_enter() -> bool:
        try:
            with folder.using("t", wait=False):
                return True
        except BlockingIOError:
            return False

    with folder.using("t"):
        assert may_enter()
        erasing = threading.Thread(target=wipe)
        erasing.start()
        end = time.monotonic() + 10
        while may_enter() and time.monotonic() < end:
            time.sleep(0.005)
        assert not may_enter()
        assert not ended.is_set()
    erasing.join(10)
    assert ended.is_set()
    with pytest.raises(ThreadErased), folder.using("t", wait=False):
        pass


def test_a_key_under_a_name_of_another_secret_is_a_copy_too(sealed: SealedSqlite) -> None:
    """Somebody made the folder's secret anew: the key lies there still, under a name that nobody computes any more."""
    say(sealed, "t", text_of("mia-0"), user_id="mia")
    (sealed.keys / "secret").write_bytes(b"another secret of 32 bytes, new.")
    with sealed.open() as connector:
        assert erase(connector, [thread("t")])[0].outcome is Outcome.OWNER_MISMATCH
    with sealed.open(owner=False) as connector:
        assert erase(connector, [thread("t")])[0].outcome is Outcome.ERASED
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    with sealed.open(read_only=True) as verifier:
        found = verifier.verify([thread("t")], Level.L2, deadline=30, reclaimed=report)[0]
    assert (found.level, found.present) == (Level.L1, True)
    assert found.how == "a copy of the key lies in the folder of keys"


def test_a_key_that_a_crash_left_without_its_name_is_a_copy_of_whom_it_names(sealed: SealedSqlite) -> None:
    say(sealed, "t", text_of("mia-0"), user_id="ben")
    sealed.path("t", ".key").rename(sealed.path("t", ".key.new"))
    sealed.run("DELETE FROM checkpoints")
    sealed.run("DELETE FROM writes")
    with sealed.open() as connector:
        assert erase(connector, [thread("t")])[0].outcome is Outcome.OWNER_MISMATCH
    assert sealed.path("t", ".key.new").exists()


@pytest.mark.parametrize(
    "config",
    [
        {"folder": "threads"},
        {"folder": "/a", "url": "sqlite:////a.db"},
        {"url": "sqlite:////a.db", "keys": "keys"},
        {"url": "sqlite:////a.db", "keys": "/k", "fence": "triggers"},
        {"keys": "/k"},
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        open_connector("langgraph", config, secrets=str)


def test_a_scan_shows_a_folder_of_threads_as_one_place_and_hands_out_no_secret(
    files: OneFileAThread, sealed: SealedSqlite, tmp_path: Path
) -> None:
    for bed in (files, sealed):
        fill(bed, 3)
        say(bed, "both", "first", user_id="mia")
        say(bed, "both", "second", user_id="ben")
        say(bed, "gone", "first", user_id="mia")
        with bed.open() as connector:
            erase(connector, [thread("gone")])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    given: list[tuple[str, Any]] = []
    found = scan(str(tmp_path), now=datetime.now(UTC), deadline=60, subject=MIA, sink=lambda place, item: given.append(
        (place.what, dict(item.locator))
    ))  # fmt: skip
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    places = {place.what: place for place in found.places}
    assert set(places) == {"langgraph-files", "langgraph-keys", "langgraph-sqlite"}
    one, keys = places["langgraph-files"], places["langgraph-keys"]
    assert (one.threads, keys.threads, len(one.people), len(keys.people), one.several, keys.several) == (
        7, 7, 3, 3, 1, 1
    )  # fmt: skip
    assert (one.dry_run, keys.dry_run) == (DryRun(items=4, shared=1), DryRun(items=4, shared=1))
    assert one.config == {"folder": str(files.keys)}
    assert not keys.registrable
    assert reach_of(keys).because == (
        "register kind langgraph with the address of the saver's database as url, and this folder as keys"
    )
    assert reach_of(one).level == "L2"
    assert {what for what, _ in given} == {"langgraph-files", "langgraph-sqlite"}
    assert {"thread_id": "both"} in [locator for what, locator in given if what == "langgraph-files"]

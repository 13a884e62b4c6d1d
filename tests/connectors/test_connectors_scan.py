"""`scan` on real LangGraph files, plain tables, folders and git: what it finds, and that it changes no byte."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import subprocess
import tracemalloc
import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore

from connectors.base import Item, open_connector
from connectors.scanning.look import Found, time_of, time_of_uuid
from connectors.scanning.plain import as_json, lines, sentences
from connectors.scanning.report import LIMIT, Names, Place, Scan
from connectors.scanning.scan import TargetUnknown, scan
from tests.connectors.langgraph_beds import Files, agent, embed

NOW = datetime.now(UTC)
SECRET = "wombat-93417 lives at 17 Blackthorn Row"


def look(target: Path | str, **more: Any) -> Scan:
    return scan(str(target), now=NOW, deadline=60, **more)


def only(found: Scan, what: str) -> Place:
    (place,) = [place for place in found.places if place.what == what]
    return place


def orphans(place: Place) -> dict[str, int]:
    return {each.what: each.count for each in place.orphans}


def fingerprint(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Return bytes, time and number of links of every file, and which there are."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
            path.stat().st_nlink,
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def threads(tmp_path: Path) -> Any:
    """An agent's file: three threads of two people, one of nobody, and one of both people."""
    bed = Files(tmp_path)
    saver = SqliteSaver(bed.connection)
    saver.setup()
    graph = agent(saver)

    def say(thread: str, who: str | None, text: str) -> None:
        config = {"configurable": {"thread_id": thread, **({"user_id": who} if who else {})}}
        graph.invoke({"messages": [HumanMessage(content=text)]}, config)

    say("t-ada", "ada_lovelace", SECRET)
    say("t-ben", "ben_bitdiddle", "a train to Leeds")
    say("t-nobody", None, "who am I")
    say("t-both", "ada_lovelace", "we two")
    say("t-both", "ben_bitdiddle", "indeed")
    yield bed, saver, say
    bed.connection.close()


def test_a_savers_file_is_recognised_with_people_threads_rows_and_ages(threads: Any, tmp_path: Path) -> None:
    bed, _, _ = threads
    place = only(look(bed.path), "langgraph-sqlite")
    rows = bed.run("SELECT (SELECT count(*) FROM checkpoints) + (SELECT count(*) FROM writes)")[0][0]
    assert (len(place.people), place.threads, place.several, place.nobody) == (2, 4, 1, 1)
    assert (place.rows, place.parts["checkpoints"] + place.parts["writes"]) == (rows, rows)
    assert place.bytes > 1000
    assert place.ages.oldest is not None
    assert abs(datetime.now(UTC) - place.ages.oldest) < timedelta(minutes=5)
    assert place.owner_field() == "user_id"
    assert [each.name for each in place.settings if each.dangerous][:1] == ["ttl"]


def test_nothing_in_the_folder_changes_while_the_application_has_it_open(threads: Any, tmp_path: Path) -> None:
    bed, _, _ = threads
    assert Path(f"{bed.path}-wal").stat().st_size > 0
    before = fingerprint(tmp_path)
    found = look(tmp_path, subject="user:ada_lovelace")
    assert fingerprint(tmp_path) == before
    assert found.could_not_read() == []
    assert only(found, "langgraph-sqlite").threads == 4, "what lies in the log counts"


def test_nothing_in_the_folder_changes_in_any_journal_mode(tmp_path: Path) -> None:
    for mode in ("wal", "delete", "persist", "truncate"):
        with closing(sqlite3.connect(tmp_path / f"{mode}.db")) as db:
            db.execute(f"PRAGMA journal_mode={mode}")
            db.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, user_id TEXT)")
            db.execute("INSERT INTO note (user_id) VALUES ('ada')")
            db.commit()
    (tmp_path / "read only").mkdir()
    before = fingerprint(tmp_path)
    found = look(tmp_path)
    assert fingerprint(tmp_path) == before
    assert [place.rows for place in found.places] == [1, 1, 1, 1]


def test_an_unfinished_transaction_is_read_as_it_was_before(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as db:
        db.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, user_id TEXT, text TEXT)")
        db.execute("INSERT INTO note (user_id) VALUES ('ada')")
        db.execute("PRAGMA cache_size=1")
        db.execute("PRAGMA cache_spill=ON")
        db.execute("BEGIN")
        db.executemany("INSERT INTO note (user_id, text) VALUES ('ben', ?)", [("x" * 3000,)] * 500)
        (tmp_path / "copy").mkdir()
        for end in ("", "-journal"):
            (tmp_path / "copy" / f"app.db{end}").write_bytes(Path(f"{tmp_path}/app.db{end}").read_bytes())
        db.execute("ROLLBACK")
    before = fingerprint(tmp_path / "copy")
    assert look(tmp_path / "copy").places[0].rows == 1
    assert fingerprint(tmp_path / "copy") == before


def test_a_late_write_after_delete_thread_is_an_orphan(threads: Any) -> None:
    bed, saver, say = threads
    say("t-late", "ada_lovelace", "first")
    config = saver.get_tuple({"configurable": {"thread_id": "t-late"}}).config
    saver.delete_thread("t-late")
    saver.put_writes(config, [("messages", SECRET)], "task-1")
    place = only(look(bed.path), "langgraph-sqlite")
    assert orphans(place) == {"writes without checkpoints": 1}
    assert "t-late" not in json.dumps(as_json(look(bed.path), names=True))


@pytest.mark.scenario("S12", "S3")
def test_threads_that_the_application_forgot_and_entries_without_a_body_are_told_apart(threads: Any) -> None:
    bed, _, _ = threads
    bed.run("CREATE TABLE thread (thread_id TEXT PRIMARY KEY, status TEXT)")
    for name in ("t-ada", "t-swept"):
        bed.run("INSERT INTO thread VALUES (?, 'idle')", name)
    place = only(look(bed.path), "langgraph-sqlite")
    assert orphans(place) == {"threads the application forgot": 3}
    assert [note for note in place.notes if "listed, not present" in note and note.startswith("1 threads")]


def test_the_erasure_dry_run_counts_what_would_go_and_finds_mentions_in_other_peoples_threads(threads: Any) -> None:
    bed, _, say = threads
    say("t-cy", "cy", "my neighbour is ada_lovelace, you know")
    found = look(bed.path, subject="user:ada_lovelace")
    run = only(found, "langgraph-sqlite").dry_run
    assert run is not None
    assert (run.items, run.shared, run.mentions) == (2, 1, 1)
    assert found.hits is not None
    assert found.hits["utf-8"] > 0
    assert look(bed.path, subject="user:nobody-by-this-name").hits == {}


@pytest.mark.scenario("S4")
def test_a_fork_that_keeps_an_abandoned_branch_is_found_by_its_value(threads: Any) -> None:
    bed, saver, _ = threads
    graph = agent(saver)
    first = list(graph.get_state_history({"configurable": {"thread_id": "t-ben"}}))[-1]
    fork = {"configurable": {**first.config["configurable"], "user_id": "ben_bitdiddle"}}
    graph.invoke({"messages": [HumanMessage(content="ada_lovelace said so")]}, fork)
    graph.invoke({"messages": [HumanMessage(content="never mind")]}, fork)
    run = only(look(bed.path, subject="ada_lovelace"), "langgraph-sqlite").dry_run
    assert run is not None
    assert run.mentions == 1


@pytest.mark.scenario("S10")
def test_checkpoints_that_grow_with_the_square_are_named(threads: Any) -> None:
    bed, _, say = threads
    for turn in range(12):
        say("t-ada", "ada_lovelace", f"turn {turn} " + "x" * 100)
    assert [note for note in only(look(bed.path), "langgraph-sqlite").notes if "square" in note]


def test_free_pages_that_hold_deleted_text_are_counted(threads: Any) -> None:
    bed, saver, say = threads
    for n in range(6):
        say(f"t-{n}", "ada_lovelace", SECRET + "x" * 6000)
    for n in range(6):
        saver.delete_thread(f"t-{n}")
    bed.run("PRAGMA wal_checkpoint(TRUNCATE)")
    settings = {each.name: each for each in only(look(bed.path), "langgraph-sqlite").settings}
    assert settings["free pages"].dangerous
    assert settings["secure_delete"].value == "was off"
    bed.connection.execute("VACUUM")
    bed.run("PRAGMA wal_checkpoint(TRUNCATE)")
    settings = {each.name: each for each in only(look(bed.path), "langgraph-sqlite").settings}
    assert "free pages" not in settings
    assert not settings["secure_delete"].dangerous
    assert settings["journal_mode"].value == "wal"


def test_a_stores_orphan_vectors_and_missing_expiry_are_named(tmp_path: Path) -> None:
    bed = Files(tmp_path)
    index: Any = {"dims": 16, "embed": embed, "text_fields": ["text"]}
    store = SqliteStore(bed.connection, index=index)
    store.setup()
    for who in ("ada", "ben"):
        store.put(("users", who), "home", {"text": f"{who} lives there"})
    store.put(("notes",), "n1", {"text": "x", "user_id": "cy"})
    store.put(("notes",), "n2", {"text": "about nobody"})
    store.delete(("users", "ben"), "home")
    found = look(bed.path, subject="user:ada")
    place = only(found, "langgraph-store")
    assert orphans(place) == {"vectors without items": 1}
    assert (len(place.people), place.nobody, place.rows) == (2, 1, 3)
    dangerous = {each.name for each in place.settings if each.dangerous}
    assert {"ttl", "foreign_keys"} <= dangerous
    assert place.dry_run is not None
    assert place.dry_run.items == 1
    bed.connection.close()


def test_after_our_erase_the_scan_finds_neither_thread_nor_bytes(threads: Any) -> None:
    bed, _, _ = threads
    config = {"url": bed.url, "owner_field": "user_id"}
    with open_connector("langgraph", config, secrets=str) as connector:
        item = Item(copy_id="1", locator={"thread_id": "t-ada"})
        connector.erase([item], owner_identifiers=["user:ada_lovelace"], now=NOW, deadline=30)
    place = only(look(bed.path), "langgraph-sqlite")
    assert (place.threads, orphans(place)) == (3, {})


def app(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            "CREATE TABLE customer (id INTEGER PRIMARY KEY, email TEXT, created_at TEXT);"
            "CREATE TABLE message (id INTEGER PRIMARY KEY, user_id TEXT, conversation_id TEXT, body TEXT, ts REAL);"
            "CREATE TABLE attachment (id INTEGER PRIMARY KEY, message_id INTEGER REFERENCES message(id), data BLOB);"
            "CREATE TABLE log (line TEXT);"
        )
        db.executemany(
            "INSERT INTO customer (email, created_at) VALUES (?, ?)",
            [(f"{who}@example.org", "2020-01-01T00:00:00") for who in ("ada", "ben")],
        )
        old = NOW.timestamp()
        rows: list[Any] = [("ada_lovelace", "c1", SECRET, old - 86_400 * days) for days in (0.5, 3, 20, 60, 200, 900)]
        rows += [("ben_bitdiddle", "c1", "hi", old), (None, "c2", "who", None), ("", "c2", "anon", old)]
        db.executemany("INSERT INTO message (user_id, conversation_id, body, ts) VALUES (?, ?, ?, ?)", rows)
        db.execute("INSERT INTO attachment (message_id, data) VALUES (1, x'00'), (99, x'01')")
        db.execute("INSERT INTO log VALUES ('ada_lovelace logged in')")
        db.commit()


def test_plain_tables_are_read_by_columns_of_usual_names(tmp_path: Path) -> None:
    app(tmp_path / "app.db")
    place = only(look(tmp_path, subject="user:ada_lovelace"), "sqlite")
    assert place.parts == {"attachment": 2, "customer": 2, "log": 1, "message": 9}
    assert len(place.people) == 4
    assert (place.threads, place.several) == (2, 1)
    assert place.nobody == 2 + 2 + 1
    spans = place.ages.as_json()["histogram"]
    assert (spans["under a day"], spans["under a week"], spans["under 30 days"]) == (3, 1, 1)
    assert (spans["under 90 days"], spans["under a year"], spans["a year and more"]) == (1, 1, 3)
    assert spans["unknown"] == 4
    assert orphans(place) == {"rows of attachment without their message": 1}
    settings = {each.name: each for each in place.settings}
    assert (settings["foreign_keys"].value, settings["foreign_keys"].dangerous) == ("not enforced", True)
    assert [note for note in place.notes if note.startswith("table log: no column says")]
    assert [note for note in place.notes if note.startswith("table log: no primary key")]
    assert place.dry_run is not None
    assert (place.dry_run.items, place.dry_run.mentions) == (6, 1)


def test_the_owner_column_can_be_named(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, user_id TEXT, who TEXT)")
        db.execute("INSERT INTO t VALUES (1, 'robot', 'ada'), (2, 'robot', 'ben')")
        db.commit()
    assert len(only(look(tmp_path), "sqlite").people) == 1
    assert len(only(look(tmp_path, owner_field="who"), "sqlite").people) == 2


def test_three_sentences_say_who_what_stays_and_what_would_be_done(threads: Any) -> None:
    bed, _, _ = threads
    said = sentences(look(bed.path))
    assert len(said) == 3
    assert said[0] == "2 people can be told apart by user_id; 1 item names nobody, and a request would miss them."
    assert "until VACUUM" in said[1]
    assert "1 place to L2" in said[2]
    assert "1 thread of several people would be left and reported" in said[2]


def test_an_empty_table_is_not_said_to_lack_a_field(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, owner TEXT, hue TEXT)")
        db.commit()
        assert sentences(look(tmp_path))[0].startswith("No item lies here now")
        db.execute("INSERT INTO note (hue) VALUES ('red')")
        db.commit()
        assert sentences(look(tmp_path))[0].startswith("No field says whose anything here is")


def test_names_are_printed_only_where_they_are_asked_for(threads: Any) -> None:
    bed, _, _ = threads
    found = look(bed.path, subject="user:ada_lovelace")
    for told in (json.dumps(as_json(found, names=False)), "\n".join(lines(found, names=False)), repr(found)):
        assert "lovelace" not in told
        assert "Blackthorn" not in told
    assert "ada_lovelace" in json.dumps(as_json(found, names=True))


def test_folders_of_documents_and_lines_name_their_people(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"user_id": "ada", "text": "hello"}))
    lines_ = [{"user_id": who, "conversation_id": "c1", "text": who} for who in ("ada", "ben", "ada")]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, lines_)) + "\n{broken\n")
    (tmp_path / "note.md").write_text("about ada_lovelace")
    os.link(tmp_path / "note.md", tmp_path / "other.md")
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    place = only(look(tmp_path, subject="ada_lovelace"), "files")
    assert (place.rows, len(place.people), place.several) == (4, 2, 1)
    assert orphans(place) == {"files with other hard links": 2}
    assert place.unread == ["a .jsonl file: 1 documents are not JSON"]
    assert place.dry_run is not None
    assert place.dry_run.mentions == 2


def test_lines_of_numbers_and_of_several_people_are_handed_over_as_they_are_written(tmp_path: Path) -> None:
    # A number handed over as a text names no line, and a line with a list of owners was counted as nobody's.
    rows = [{"id": "a", "user_id": 42}, {"id": "b", "user_id": ["ada", "ben"]}, {"id": "c", "user_id": "ada"}]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"user_id": ["ada", "ben"]}])))
    handed: list[tuple[Any, set[str]]] = []

    def sink(_: Place, item: Found) -> None:
        handed.append((item.locator["lines"], {value for _, value in item.owners}))

    place = only(look(tmp_path, sink=sink), "files")
    assert sorted(handed, key=str) == [
        ({"field": "id", "value": "b"}, {"ada", "ben"}),
        ({"field": "user_id", "value": "ada"}, {"ada"}),
        ({"field": "user_id", "value": 42}, {"42"}),
    ]
    assert (len(place.people), place.nobody) == (3, 0)
    assert place.unread == ["a .jsonl file: 1 lines name several people and have no id to name them by"]


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_a_repositorys_history_keeps_what_a_commit_removed(tmp_path: Path, packed: bool) -> None:
    git(tmp_path, "init", "-q", ".")
    memory = tmp_path / "memory.md"
    for n in range(5):
        memory.write_text(f"{SECRET}\n" + "\n".join(map(str, range(400 + n))))
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", f"c{n}")
    memory.write_text("forgotten")
    git(tmp_path, "commit", "-q", "-a", "-m", "forget")
    if packed:
        git(tmp_path, "gc", "-q")
    before = fingerprint(tmp_path)
    place = only(look(tmp_path, subject=SECRET), "git")
    assert fingerprint(tmp_path) == before
    assert place.parts == {"blobs of today": 1, "blobs of the history": 5, "commits": 6}
    assert orphans(place) == {"old versions and removed files": 5}
    assert place.dry_run is not None
    assert place.dry_run.mentions == 5
    assert place.unread == []
    assert place.kind is None


def test_a_repositorys_configuration_is_never_run(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", ".")
    (tmp_path / "a").write_text("x")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "c")
    ran = tmp_path / "ran"
    with (tmp_path / ".git" / "config").open("a") as config:
        config.write(
            f'[core]\n fsmonitor = "touch {ran}"\n pager = "touch {ran}"\n[remote "o"]\n url = ext::touch {ran}\n'
        )
    place = only(look(tmp_path), "git")
    assert not ran.exists()
    assert "1 remotes and every clone, each with the whole history" in place.leaves


def hostile(folder: Path) -> dict[str, bytes]:
    """Return damaged and odd files by name."""
    with closing(sqlite3.connect(folder / "good")) as db:
        db.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, user_id TEXT, body TEXT)")
        db.executemany("INSERT INTO message (user_id, body) VALUES (?, ?)", [(f"u{n}", "x" * 200) for n in range(500)])
        db.commit()
    good = (folder / "good").read_bytes()
    (folder / "good").unlink()
    damaged = bytearray(good)
    for page in range(2, len(good) // 4096, 3):
        damaged[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    loops = bytearray(good)
    loops[32:40] = (2).to_bytes(4, "big") + (7).to_bytes(4, "big")
    loops[4096:4104] = (2).to_bytes(4, "big") + (2**31).to_bytes(4, "big")
    return {
        "torn.db": good[: len(good) // 2],
        "damaged.db": bytes(damaged),
        "header.db": good[:16],
        "loops.db": bytes(loops),
        "zeros.db": good[:100] + bytes(len(good) - 100),
        "empty.db": b"",
        "text.db": b"SQLite format 3\0 is only what I say",
    }


@pytest.mark.parametrize("name", ["torn.db", "damaged.db", "header.db", "loops.db", "zeros.db", "empty.db", "text.db"])
def test_a_damaged_file_is_a_named_finding_and_no_crash(tmp_path: Path, name: str) -> None:
    data = hostile(tmp_path)[name]
    (tmp_path / name).write_bytes(data)
    found = look(tmp_path, subject="user:u1234567")
    told = as_json(found, names=False)
    if name not in {"empty.db", "loops.db"}:
        assert found.verdict() in {"partly_read", "unreadable"}
        assert told["could_not_read"]
    assert (tmp_path / name).read_bytes() == data


def test_no_damage_to_any_byte_ends_a_scan_with_anything_but_findings(
    threads: Any, tmp_path: Path, full_length: bool
) -> None:
    app(tmp_path / "app.db")
    (tmp_path / "chat.jsonl").write_text('{"user_id": "ada", "conversation_id": "c"}\n' * 20)
    git_folder = tmp_path / "repository"
    git_folder.mkdir()
    git(git_folder, "init", "-q", ".")
    (git_folder / "memory.md").write_text(SECRET)
    git(git_folder, "add", ".")
    git(git_folder, "commit", "-q", "-m", "c")
    originals = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    chance = random.Random(7)
    for _ in range(400 if full_length else 12):
        for _ in range(chance.choice([1, 4, 12])):
            path = chance.choice(list(originals))
            damaged = bytearray(originals[path])
            for _ in range(chance.choice([1, 8, 64])):
                place = chance.randrange(len(damaged) or 1) if chance.random() < 0.7 else chance.randrange(100)
                if place < len(damaged):
                    damaged[place] = chance.randrange(256)
            path.write_bytes(damaged[: chance.choice([len(damaged), len(damaged), chance.randrange(len(damaged) + 1)])])
        found = scan(str(tmp_path), now=NOW, deadline=20, subject="user:ada_lovelace", sink=lambda *_: None)
        json.dumps(as_json(found, names=True), ensure_ascii=False).encode()
        "\n".join(lines(found, names=True)).encode()
        for path, data in originals.items():
            path.write_bytes(data)


def test_names_in_a_store_cannot_talk_to_the_terminal(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as db:
        db.execute('CREATE TABLE "a\x1b[2Jb" (id INTEGER PRIMARY KEY, user_id TEXT)')
        db.execute('INSERT INTO "a\x1b[2Jb" (user_id) VALUES (?)', ("ada\x1b]0;x\x07",))
        db.execute("INSERT INTO \"a\x1b[2Jb\" (user_id) VALUES (CAST(x'ff41' AS TEXT))")
        db.commit()
    found = look(tmp_path)
    assert "\x1b" not in "".join(lines(found, names=True))
    assert json.dumps(as_json(found, names=True), ensure_ascii=False).encode()


def test_odd_encodings_and_values_of_other_types_are_read(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "utf16.db")) as db:
        db.execute("PRAGMA encoding='UTF-16be'")
        db.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, user_id, body)")
        db.execute("INSERT INTO message (user_id, body) VALUES ('Zoë Müller', 'ø')")
        db.commit()
    with closing(sqlite3.connect(tmp_path / "bytes.db")) as db:
        db.execute('CREATE TABLE "odd "" name" (id INTEGER PRIMARY KEY, user_id, "b%?ody", created_at)')
        values: list[Any] = [b"\xff\xfe raw", 7, 1.5, None, "x" * 5000, "nul\0inside", True]
        for value in values:
            db.execute(
                'INSERT INTO "odd "" name" (user_id, "b%?ody", created_at) VALUES (?, ?, ?)', (value, value, value)
            )
        db.execute('INSERT INTO "odd "" name" (user_id) VALUES (CAST(x\'c328ff\' AS TEXT))')
        db.commit()
    found = look(tmp_path, subject="user:Zoë Müller")
    assert found.could_not_read() == []
    assert sorted(len(place.people) for place in found.places) == [1, 5]
    odd, plain = sorted(found.places, key=lambda place: place.label)
    assert plain.dry_run is not None
    assert (plain.dry_run.items, odd.nobody) == (1, 3)


def test_a_view_or_trigger_of_a_hostile_file_never_runs(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "trap.db")) as db:
        db.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, user_id TEXT)")
        db.execute("INSERT INTO message VALUES (1, 'ada')")
        endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS user_id FROM c"
        db.execute(f"CREATE VIEW checkpoints AS {endless}")
        db.commit()
    assert [place.rows for place in look(tmp_path).places] == [1]


def test_the_time_limit_ends_a_scan_with_a_named_finding(threads: Any) -> None:
    bed, _, _ = threads
    found = scan(str(bed.path), now=NOW, deadline=0, subject="user:ada_lovelace")
    assert found.verdict() in {"partly_read", "unreadable"}
    assert any("time limit" in line for line in found.could_not_read())


def test_what_cannot_be_scanned_is_refused_by_name(tmp_path: Path) -> None:
    for target in (str(tmp_path / "nothing"), "s3://bucket/x", "mongodb://h/x", "", "sqlite:///"):
        with pytest.raises(TargetUnknown):
            look(target)
    assert look(f"sqlite:///{tmp_path}").verdict() == "nothing_recognised"


def test_an_address_that_is_wrong_says_what_was_looked_for_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "\x1b[2Jagent").touch()
    for typed, said in (
        (tmp_path / "agent", f"no file or folder agent in {tmp_path}; did you mean agents"),
        (tmp_path / "zz" / "below" / "it", f"no file or folder zz in {tmp_path}; give a file or a folder"),
        ("s3://bucket/x", "register the bucket as a store of kind s3"),
        ("https://api.example", "as a store of kind http"),
        ("mysql://mia:hunter2@h/x", r"postgresql://… or redis://…"),
        ("", "give a file or a folder"),
    ):
        with pytest.raises(TargetUnknown) as told:
            look(str(typed))
        assert said in told.value.detail
        assert "hunter2" not in str(told.value)
        assert told.value.detail.isprintable()
    empty = look(str(tmp_path / "agents"))
    assert any("LangGraph" in line and "LanceDB" in line for line in empty.notes)
    assert any("postgresql://" in line for line in empty.notes)
    with closing(sqlite3.connect(tmp_path / "agents" / "app.db")) as db:
        db.execute("CREATE TABLE cards (holder TEXT, text TEXT)")
        db.execute("INSERT INTO cards VALUES ('mia', 'hers')")
        db.commit()
    assert any("--owner-field" in line for line in look(str(tmp_path / "agents")).notes)
    assert not any("--owner-field" in line for line in look(str(tmp_path / "agents"), owner_field="holder").notes)
    for address in ("redis://:hunter2@127.0.0.1:1/0", "postgresql://mia:hunter2@127.0.0.1:1/x"):
        found = look(address)
        assert found.verdict() == "unreadable"
        assert "look at host, port" in " ".join(found.could_not_read())
        assert "hunter2" not in repr(found)


def test_a_file_that_is_written_to_while_it_is_read_is_said_to_be(tmp_path: Path) -> None:
    app(tmp_path / "app.db")

    def write(place: Place, found: Any) -> None:
        with closing(sqlite3.connect(tmp_path / "app.db")) as db:
            db.execute("INSERT INTO log VALUES ('later')")
            db.commit()

    found = look(tmp_path / "app.db", sink=write)
    assert [note for place in found.places for note in place.notes if "written to while it was read" in note]


def test_folders_of_programs_are_passed_over_and_that_is_said(tmp_path: Path) -> None:
    for name in (".venv", "node_modules"):
        (tmp_path / name).mkdir()
        app(tmp_path / name / "app.db")
    (tmp_path / "note.md").write_text("x")
    found = look(tmp_path)
    assert [place.what for place in found.places] == ["files"]
    assert [note for note in found.notes if note.endswith(": 2")]


def test_every_form_of_an_address_leads_to_the_same_file(threads: Any) -> None:
    bed, _, _ = threads
    for target in (bed.url, f"file:{bed.path}", f"file://{bed.path}", str(bed.path), f"sqlite:{bed.path}"):
        assert only(look(target), "langgraph-sqlite").threads == 4


def test_counting_names_stays_bounded_and_says_so() -> None:
    names = Names()
    names.add(str(n) for n in range(LIMIT + 10))
    names.add(["0", "new"])
    assert not names.complete
    assert len(names) <= LIMIT + 10
    assert "new" not in names


@given(st.datetimes(min_value=datetime(1991, 1, 1), max_value=datetime(2099, 1, 1)))  # noqa: DTZ001 -- made aware below
def test_times_are_read_in_every_usual_form(naive: datetime) -> None:
    at = naive.replace(tzinfo=UTC, microsecond=0)
    for form in (at.isoformat(), at.strftime("%Y-%m-%d %H:%M:%S"), at.strftime("%Y-%m-%dT%H:%M:%SZ"), at.timestamp()):
        assert time_of(form) == at
    if at.year > 2001:
        assert time_of(at.timestamp() * 1000) == at
    shifted = at.astimezone(UTC).isoformat().replace("+00:00", "+02:00")
    assert time_of(shifted) == at - timedelta(hours=2)


def test_what_is_no_time_is_unknown() -> None:
    for value in (None, "", "yesterday", "2026-99-99", b"\xff", 1, -5, True, float("nan"), float("inf"), "9" * 40):
        assert time_of(value) is None
    assert time_of_uuid(str(uuid.uuid4())) is None
    found = time_of_uuid(str(uuid.uuid1()))
    assert found is not None
    assert abs(datetime.now(UTC) - found) < timedelta(minutes=1)


def test_a_scan_of_a_large_file_holds_a_part_of_it_that_does_not_grow(tmp_path: Path) -> None:
    def peak_of(rows: int) -> tuple[int, int]:
        path = tmp_path / f"{rows}.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA synchronous=OFF")
            db.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, user_id TEXT, body TEXT, blob BLOB)")
            db.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
                " INSERT INTO message SELECT i, 'user_' || (i % 50), printf('%.600c', 'x'), zeroblob(1500) FROM n",
                (rows,),
            )
            db.commit()
        tracemalloc.start()
        place = only(look(path), "sqlite")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert place.rows == rows
        return peak, path.stat().st_size

    peak_of(10)  # what is imported and remembered for good is no part of it
    (small, _), (large, size) = peak_of(4_000), peak_of(16_000)
    assert size > 32 << 20
    assert large < 4 << 20
    assert large < small + (1 << 20)

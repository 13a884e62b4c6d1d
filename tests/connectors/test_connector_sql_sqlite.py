from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from connectors.base import Connector, Item, Level, Outcome, Selector, open_connector
from connectors.errors import BadConfig, BadLocator, StoreUnreachable
from tests.connectors.beds import shut_out
from tests.connectors.contract import BEN, MIA, NOW, Bed, Contract, captured, erase, fill, oracle, text_of


class SqliteBed(Bed):
    no_search = "rows are found by their keys and by what SQL asks"
    no_folder = "a database is one file and its logs"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "app data.db"
        self.run("PRAGMA journal_mode=WAL")
        self.run("CREATE TABLE notes (id TEXT PRIMARY KEY, person TEXT, body TEXT, n INTEGER DEFAULT 0)")
        # Another connection stays open, as an application would, so that closing ours does not clean the log for us.
        self.application = self._connect()

    def _connect(self) -> sqlite3.Connection:
        made = sqlite3.connect(self.path, isolation_level=None, timeout=5)
        made.execute("PRAGMA secure_delete=OFF")
        made.execute("SELECT count(*) FROM notes").fetchone()
        return made

    def restart(self) -> None:
        self.application.close()
        self.application = self._connect()

    def refuse(self, name: str) -> Callable[[], None]:
        self.run(
            f"CREATE TRIGGER refused BEFORE DELETE ON notes WHEN old.id = '{name}'"
            " BEGIN SELECT RAISE(ABORT, 'kept by its owner'); END"
        )

        def release() -> None:
            self.run("DROP TRIGGER refused")

        return release

    def stranger(self) -> AbstractContextManager[str]:
        return shut_out(self.path, self.source())

    def whole(self, name: str) -> object:
        return self.run("SELECT rowid, * FROM notes WHERE id = ?", name)

    def run(self, statement: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=5)) as connection:
            connection.execute("PRAGMA foreign_keys=ON")
            return connection.execute(statement, values).fetchall()

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        self.application.execute("INSERT INTO notes (id, person, body) VALUES (?, ?, ?)", (name, owner, text))
        return {"table": "notes", "key": {"id": name}}

    def get(self, name: str) -> str | None:
        row = self.run("SELECT body FROM notes WHERE id = ?", name)
        return row[0][0] if row else None

    def config(self, **more: object) -> dict[str, Any]:
        return {"url": f"sqlite:///{self.path}", **more}

    def open(self, *, read_only: bool = False, owner: bool = True, **more: object) -> Connector:
        config = self.config(**({"owner_field": "person"} if owner else {}), **more)
        return open_connector("sql", config, secrets=str, read_only=read_only)

    def files(self) -> list[Path]:
        return [Path(f"{self.path}{end}") for end in ("", "-wal", "-journal")]

    def hits(self, canary: str) -> int:
        return oracle(self.files(), canary)

    def block(self) -> Callable[[], None]:
        other = sqlite3.connect(self.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        return other.close

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"table": "notes", "key": {"person": "mia"}},
            {"table": "notes; DROP TABLE notes", "key": {"id": "mia-0"}},
            {"table": 'notes" WHERE 1=1 --', "key": {"id": "mia-0"}},
            {"table": "notes", "key": {"id = id OR id": "mia-0"}},
            {"table": "notes", "key": {"id": ["mia-0"]}},
            {"table": "notes", "key": {"id": None}},
            {"table": "notes", "key": {}},
            {"table": "notes", "key": {"id": "mia-0", "body": "x"}},
            {"table": "notes"},
            {"table": "notes", "key": {"id": "mia-0"}, "where": "1=1"},
            {"table": "sqlite_schema", "key": {"name": "notes"}},
        ]

    def wrong(self) -> Connector:
        return open_connector("sql", {"url": f"sqlite:///{self.path}.other", "owner_field": "person"}, secrets=str)

    def source(self) -> str:
        return (
            "from connectors.base import open_connector\n"
            f"connector = open_connector('sql', {self.config(owner_field='person')!r}, secrets=str)"
        )

    def own_delete(self, name: str) -> None:
        self.application.execute("DELETE FROM notes WHERE id = ?", (name,))


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[SqliteBed]:
    made = SqliteBed(tmp_path)
    yield made
    made.application.close()


class TestSqlite(Contract):
    holds = "sql, SQLite"


def test_a_reader_with_an_old_snapshot_keeps_the_level_at_l1(bed: SqliteBed) -> None:
    mine, _ = fill(bed)
    with bed.open() as connector:
        items = captured(connector, mine)
        with closing(sqlite3.connect(bed.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM notes").fetchone()
            erase(connector, items)
            report = connector.reclaim(Level.L2, now=NOW, deadline=1)
            assert report.level is Level.L1
            with bed.open(read_only=True) as verifier:
                findings = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)
            assert {(f.level, f.present) for f in findings} == {(Level.L1, True)}
        assert connector.reclaim(Level.L2, now=NOW, deadline=10).level is Level.L2


@pytest.mark.scenario("C2")
def test_rows_of_a_table_without_a_key_are_refused_and_never_counted_as_erased(bed: SqliteBed) -> None:
    bed.run("CREATE TABLE loose (person TEXT, body TEXT)")
    bed.run("INSERT INTO loose VALUES ('mia', 'kept')")
    item = Item(copy_id="c", locator={"table": "loose", "key": {"person": "mia"}})
    with bed.open() as connector:
        with pytest.raises(BadLocator, match="no unique key"):
            connector.check_locator(item.locator)
        assert erase(connector, [item])[0].outcome is Outcome.FAILED
        with pytest.raises(BadLocator, match="no unique key"):
            list(connector.discover(Selector(identifiers=(MIA,)), deadline=5))
    assert bed.run("SELECT count(*) FROM loose") == [(1,)]


def test_composite_and_alternative_keys_name_one_row(bed: SqliteBed) -> None:
    bed.run("CREATE TABLE turns (thread TEXT, n INTEGER, person TEXT, code TEXT UNIQUE, PRIMARY KEY (thread, n))")
    for n in range(3):
        bed.run("INSERT INTO turns VALUES ('t', ?, 'mia', ?)", n, f"code-{n}")
    by_pair = Item(copy_id="a", locator={"table": "turns", "key": {"n": 1, "thread": "t"}})
    by_code = Item(copy_id="b", locator={"table": "main.turns", "key": {"code": "code-2"}})
    half = Item(copy_id="c", locator={"table": "turns", "key": {"thread": "t"}})
    with bed.open() as connector:
        outcomes = [r.outcome for r in erase(connector, [by_pair, by_code, half])]
    assert outcomes == [Outcome.ERASED, Outcome.ERASED, Outcome.FAILED]
    assert bed.run("SELECT n FROM turns") == [(0,)]


@pytest.mark.parametrize("value", [True, 1.5, "1 OR 1=1", None])
def test_key_values_that_a_database_would_bend_are_refused(bed: SqliteBed, value: object) -> None:
    bed.run("CREATE TABLE numbered (id INTEGER PRIMARY KEY, person TEXT)")
    bed.run("INSERT INTO numbered VALUES (1, 'mia')")
    with bed.open() as connector, pytest.raises(BadLocator):
        connector.check_locator({"table": "numbered", "key": {"id": value}})


def children_of(bed: SqliteBed, action: str) -> None:
    bed.run(f"CREATE TABLE replies (id INTEGER PRIMARY KEY, note TEXT REFERENCES notes(id) {action}, body TEXT)")
    bed.run("INSERT INTO replies VALUES (1, 'mia-0', 'child one'), (2, 'mia-0', 'child two'), (3, 'ben-0', 'other')")


def test_rows_that_reference_an_item_stop_it_and_only_it(bed: SqliteBed) -> None:
    mine, _ = fill(bed, 3)
    children_of(bed, "")
    with bed.open() as connector:
        receipts = erase(connector, mine)
    assert [r.outcome for r in receipts] == [Outcome.FAILED, Outcome.ERASED, Outcome.ERASED]
    assert receipts[0].detail == "2 rows of replies reference the row; erase them first"
    assert bed.run("SELECT count(*) FROM replies") == [(3,)]


def test_children_are_deleted_by_their_own_keys_when_the_store_says_so(bed: SqliteBed) -> None:
    mine, _ = fill(bed, 3)
    children_of(bed, "")
    with bed.open(children="delete") as connector:
        receipts = erase(connector, mine)
    assert {r.outcome for r in receipts} == {Outcome.ERASED}
    assert "2 of replies" in receipts[0].detail
    assert bed.run("SELECT id FROM replies") == [(3,)]


def test_a_child_of_another_owner_stops_the_delete(bed: SqliteBed) -> None:
    mine, _ = fill(bed, 2)
    bed.run("CREATE TABLE shares (id INTEGER PRIMARY KEY, note TEXT REFERENCES notes(id), person TEXT)")
    bed.run("INSERT INTO shares VALUES (1, 'mia-0', ?)", BEN)
    with bed.open(children="delete") as connector:
        receipts = erase(connector, mine)
    assert [r.outcome for r in receipts] == [Outcome.FAILED, Outcome.ERASED]
    assert bed.get("mia-0") == text_of("mia-0")


def test_rows_that_the_schema_cascades_are_counted(bed: SqliteBed) -> None:
    mine, _ = fill(bed, 1)
    children_of(bed, "ON DELETE CASCADE")
    with bed.open() as connector:
        receipt = erase(connector, mine)[0]
    assert receipt.outcome is Outcome.ERASED
    assert "2 rows of replies by CASCADE" in receipt.detail
    assert bed.run("SELECT id FROM replies") == [(3,)]


def test_a_row_that_references_itself_is_no_obstacle(bed: SqliteBed) -> None:
    bed.run("CREATE TABLE tree (id INTEGER PRIMARY KEY, up INTEGER REFERENCES tree(id), person TEXT)")
    bed.run("INSERT INTO tree VALUES (1, 1, 'mia'), (2, 1, 'mia')")
    items = [Item(copy_id=str(n), locator={"table": "tree", "key": {"id": n}}) for n in (1, 2)]
    with bed.open() as connector:
        assert erase(connector, items[:1])[0].outcome is Outcome.FAILED
        assert {r.outcome for r in erase(connector, items)} == {Outcome.ERASED}


@pytest.mark.scenario("A3", "S50")
def test_a_trigger_that_keeps_the_row_is_not_an_erasure(bed: SqliteBed) -> None:
    mine, _ = fill(bed, 2)
    bed.run("CREATE TRIGGER soft BEFORE DELETE ON notes WHEN old.id = 'mia-0' BEGIN SELECT RAISE(IGNORE); END")
    with bed.open() as connector:
        receipts = erase(connector, mine)
    assert [r.outcome for r in receipts] == [Outcome.FAILED, Outcome.ERASED]
    assert bed.get("mia-0") is not None


@pytest.mark.scenario("A2")
def test_a_copy_made_by_a_history_trigger_is_found_in_the_bytes(bed: SqliteBed) -> None:
    mine, _ = fill(bed, 1)
    bed.run("CREATE TABLE history (id INTEGER PRIMARY KEY, previous TEXT)")
    bed.run("CREATE TRIGGER keep AFTER DELETE ON notes BEGIN INSERT INTO history (previous) VALUES (old.body); END")
    with bed.open() as connector:
        items = captured(connector, mine)
        assert erase(connector, items)[0].outcome is Outcome.ERASED
        report = connector.reclaim(Level.L2, now=NOW, deadline=10)
    with bed.open(read_only=True) as verifier:
        finding = verifier.verify(items, Level.L2, deadline=10, reclaimed=report)[0]
    assert (finding.level, finding.present) == (Level.L1, True)


def test_the_owners_name_is_no_canary(bed: SqliteBed) -> None:
    # bench/forget: a conversation of two people that stays names the owner, and kept the erased rows from L2.
    owner = "u-mia-of-blackthorn-row"
    locator = bed.put("mia-0", text_of("mia-0"), owner)
    bed.run("CREATE TABLE threads (id TEXT PRIMARY KEY, named TEXT)")
    bed.run("INSERT INTO threads VALUES ('both', ?)", f"{owner} and ben")
    with bed.open() as connector:
        items = captured(connector, [Item(copy_id="c", locator=locator)])
        assert items[0].canaries == (text_of("mia-0").encode(),)
        erase(connector, items, f"user:{owner}")
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        finding = connector.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
    assert (finding.level, finding.present) == (Level.L2, False)


def test_parts_of_a_text_that_no_search_finds_are_no_l2(bed: SqliteBed) -> None:
    mine, _ = fill(bed, 2)
    with bed.open() as connector:
        items = captured(connector, mine)
    # The page is reused in part: of the text a piece is left, and the whole is found nowhere.
    bed.application.execute("UPDATE notes SET n = 1")
    bed.own_delete("mia-0")
    bed.put("ben-9", "x" * 24, "ben")
    bed.application.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with bed.open(read_only=True) as verifier:
        finding = verifier.verify(items[:1], Level.L2, deadline=30)[0]
    assert finding.level is Level.L1
    assert finding.present is not False


@pytest.mark.parametrize("kind", ["fts5", "fts4"])
def test_words_in_a_full_text_index_go_with_the_row(bed: SqliteBed, kind: str) -> None:
    rowid = ", content_rowid='rowid'" if kind == "fts5" else ""
    bed.run(f"CREATE VIRTUAL TABLE words USING {kind}(body, content='notes'{rowid})")
    old = "('delete', old.rowid, old.body)" if kind == "fts5" else ""
    gone = f"INSERT INTO words(words, rowid, body) VALUES {old}" if old else "DELETE FROM words WHERE docid = old.rowid"
    bed.run(f"CREATE TRIGGER gone BEFORE DELETE ON notes BEGIN {gone}; END")
    bed.run("CREATE TRIGGER made AFTER INSERT ON notes BEGIN INSERT INTO words(rowid, body) VALUES"
            " (new.rowid, new.body); END")  # fmt: skip
    mine = [Item(copy_id="c", locator=bed.put("mia-0", "quetzalcoatlus " + text_of("mia-0"), "mia"))]
    bed.put("ben-0", text_of("ben-0"), "ben")
    with bed.open() as connector:
        items = captured(connector, mine)
        erase(connector, items)
        assert bed.hits("quetzalcoatlus") > 0
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert (report.level, bed.hits("quetzalcoatlus")) == (Level.L2, 0)
    assert len(bed.run("SELECT * FROM words WHERE words MATCH 'blackthorn'")) == 1


@pytest.mark.parametrize("made", ["fts5(body, content='')", "fts5(body, content='notes', content_rowid='rowid')"])
def test_a_full_text_index_that_cannot_be_compared_keeps_the_level_at_l1(bed: SqliteBed, made: str) -> None:
    bed.run(f"CREATE VIRTUAL TABLE words USING {made}")
    mine, _ = fill(bed, 1)
    bed.run("INSERT INTO words(rowid, body) SELECT rowid, body FROM notes")
    with bed.open() as connector:
        erase(connector, mine)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        assert "full-text" in report.detail
        finding = connector.verify(mine, Level.L2, deadline=30, reclaimed=report)[0]
    assert (report.level, finding.level) == (Level.L1, Level.L1)


def test_an_index_finds_rows_that_the_rewrite_numbered_anew(bed: SqliteBed) -> None:
    mine, _ = fill(bed, 1)
    bed.run("CREATE TABLE plain (body TEXT)")
    bed.run("CREATE VIRTUAL TABLE words USING fts5(body, content='plain', content_rowid='rowid')")
    bed.run("INSERT INTO plain(rowid, body) VALUES (7, 'seventh'), (9, 'ninth')")
    bed.run("INSERT INTO words(rowid, body) SELECT rowid, body FROM plain")
    with bed.open() as connector:
        erase(connector, mine)
        assert connector.reclaim(Level.L2, now=NOW, deadline=30).level is Level.L2
    assert bed.run("SELECT body FROM words WHERE words MATCH 'ninth'") == [("ninth",)]


def test_a_row_of_nobody_is_not_the_row_of_somebody_called_none(bed: SqliteBed) -> None:
    bed.run("INSERT INTO notes (id, person, body) VALUES ('a', NULL, ?)", text_of("mia-0"))
    item = Item(copy_id="c", locator={"table": "notes", "key": {"id": "a"}})
    with bed.open() as connector:
        assert erase(connector, [item], "user:None")[0].outcome is Outcome.OWNER_MISMATCH
    assert bed.get("a") == text_of("mia-0")


def test_values_that_neighbours_share_are_no_canaries(bed: SqliteBed) -> None:
    first = Item(copy_id="a", locator=bed.put("mia-a", "You are a helpful assistant.", "mia"))
    second = Item(copy_id="b", locator=bed.put("mia-b", "my own words, only mine", "mia"))
    bed.put("ben-a", "You are a helpful assistant.", BEN)
    with bed.open() as connector:
        assert connector.capture([first, second], deadline=10) == {"a": [], "b": [b"my own words, only mine"]}
        erase(connector, [first])
        report = connector.reclaim(Level.L2, now=NOW, deadline=10)
    with bed.open(read_only=True) as verifier:
        unproven = verifier.verify([first], Level.L2, deadline=10)[0]
        by_structure = verifier.verify([first], Level.L2, deadline=10, reclaimed=report)[0]
    assert (unproven.level, unproven.present, bool(unproven.could_not_check)) == (Level.L1, None, True)
    assert (by_structure.level, by_structure.present) == (Level.L2, False)


def test_a_persistent_rollback_journal_is_cleaned_too(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as own:
        own.execute("PRAGMA journal_mode=PERSIST")
        own.execute("PRAGMA secure_delete=OFF")
        own.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT)")
        own.executemany("INSERT INTO notes VALUES (?, ?)", [(n, text_of(f"mia-{n}")) for n in range(50)])
        own.execute("DELETE FROM notes WHERE id = 1")
        journal = Path(f"{path}-journal")
        assert oracle([path, journal], text_of("mia-1")) > 0
        item = Item(copy_id="c", locator={"table": "notes", "key": {"id": 1}}, canaries=(text_of("mia-1").encode(),))
        with open_connector("sql", {"url": f"sqlite:///{path}"}, secrets=str) as connector:
            assert erase(connector, [item])[0].outcome is Outcome.ALREADY_ABSENT
            assert connector.reclaim(Level.L2, now=NOW, deadline=10).level is Level.L2
        assert oracle([path, journal], text_of("mia-1")) == 0


def test_odd_names_and_odd_text_are_no_obstacle(bed: SqliteBed) -> None:
    bed.run('CREATE TABLE "we""ird %s. table" ("k y%s" TEXT PRIMARY KEY, person TEXT, blob BLOB)')
    bed.run(
        'INSERT INTO "we""ird %s. table" VALUES (?, ?, CAST(? AS TEXT))', "a'b\"c", "mia", b"\xff\xfe not utf-8 \xff"
    )
    item = Item(copy_id="c", locator={"table": 'we"ird %s. table', "key": {"k y%s": "a'b\"c"}})
    with bed.open() as connector:
        items = captured(connector, [item])
        assert items[0].canaries == (b"\xff\xfe not utf-8 \xff",)
        assert erase(connector, items)[0].outcome is Outcome.ERASED


def test_more_items_than_one_batch(bed: SqliteBed) -> None:
    mine, others = fill(bed, 1203)
    with bed.open() as connector:
        found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=30))
        assert len(found) == 1203
        assert {r.outcome for r in erase(connector, mine)} == {Outcome.ERASED}
    assert bed.run("SELECT count(*) FROM notes") == [(len(others),)]


def test_a_file_that_is_no_database_and_a_missing_one_are_named_errors(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database at all, only a text file " * 100)
    for name in ("text.db", "missing.db"):
        config = {"url": f"sqlite:///{tmp_path / name}"}
        with open_connector("sql", config, secrets=str) as connector:
            with pytest.raises(StoreUnreachable) as refused:
                erase(connector, [Item(copy_id="c", locator={"table": "t", "key": {"id": 1}})])
            assert str(tmp_path) not in str(refused.value)
            assert connector.check(now=NOW, deadline=5).reachable is False
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"url": "sqlite:///relative.db"},
        {"url": "sqlite://"},
        {"url": "mysql://h/d"},
        {"url": 7},
        {"url": "sqlite:////a.db", "surprise": 1},
        {"url": "sqlite:////a.db", "children": "ignore"},
        {"url": "sqlite:////a.db", "owner_field": ""},
    ],
)
def test_incomplete_configurations_are_refused_when_opened(config: dict[str, object]) -> None:
    with pytest.raises(BadConfig):
        open_connector("sql", config, secrets=str)

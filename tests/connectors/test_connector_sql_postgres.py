from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from connectors.base import Connector, Item, Level, Outcome, Selector, open_connector
from connectors.errors import BadLocator, StoreUnreachable, Timeout, WrongCredentials
from tests.connectors.contract import BEN, MIA, NOW, Bed, Contract, captured, erase, fill, text_of
from tests.connectors.langgraph_beds import refusing, restart

pytestmark = pytest.mark.postgres


class PostgresBed(Bed):
    serves = True
    no_search = "rows are found by their keys and by what SQL asks"

    def __init__(self, server: Any) -> None:
        self.server = server
        self.name = f"bed_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(server.get_uri(), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.name)))
        self.uri = server.get_uri(database=self.name)
        self.application = psycopg.connect(self.uri, autocommit=True)
        self.run("CREATE TABLE notes (id text PRIMARY KEY, person text, body text, extra jsonb)")

    def run(self, statement: str, *values: object) -> list[Any]:
        with psycopg.connect(self.uri, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def restart(self) -> None:
        self.application.close()
        restart(self.server)
        self.application = psycopg.connect(self.uri, autocommit=True)

    def refuse(self, name: str) -> Callable[[], None]:
        return refusing(self.run, "notes", f"old.id = '{name}'")

    @contextmanager
    def stranger(self) -> Iterator[str]:
        url = self.config()["url"].replace("//postgres:@", "//nobody:hunter2@")
        yield self.source(url=url)

    def whole(self, name: str) -> object:
        return self.run("SELECT * FROM notes WHERE id = %s", name)

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        self.application.execute("INSERT INTO notes (id, person, body) VALUES (%s, %s, %s)", (name, owner, text))
        return {"table": "notes", "key": {"id": name}}

    def get(self, name: str) -> str | None:
        row = self.run("SELECT body FROM notes WHERE id = %s", name)
        return row[0][0] if row else None

    def config(self, **more: object) -> dict[str, Any]:
        return {"url": self.uri.replace("postgresql://", "postgresql+psycopg://"), **more}

    def open(self, *, read_only: bool = False, owner: bool = True, **more: object) -> Connector:
        config = self.config(**({"owner_field": "person"} if owner else {}), **more)
        return open_connector("sql", config, secrets=str, read_only=read_only)

    def hits(self, canary: str) -> int:
        """Read the relation files through the server's own superuser function, after a checkpoint."""
        self.run("CHECKPOINT")
        paths = self.run(
            "SELECT pg_relation_filepath(oid) FROM pg_class WHERE relkind IN ('r', 't', 'i')"
            " AND relnamespace::regnamespace::text IN ('public', 'pg_toast') AND oid >= 16384"
        )
        found = 0
        for (path,) in paths:
            for (content,) in self.run("SELECT pg_read_binary_file(%s, 0, 100000000, true)", path):
                found += bytes(content or b"").count(canary.encode())
        return found

    def block(self) -> Callable[[], None]:
        other = psycopg.connect(self.uri)
        other.execute("SELECT * FROM notes FOR UPDATE")
        return other.close

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"table": "notes", "key": {"person": "mia"}},
            {"table": "notes; DROP TABLE notes", "key": {"id": "mia-0"}},
            {"table": 'notes" WHERE true --', "key": {"id": "mia-0"}},
            {"table": "notes", "key": {'id" = "id" OR "id': "mia-0"}},
            {"table": "notes", "key": {"id": ["mia-0"]}},
            {"table": "notes", "key": {"id": None}},
            {"table": "notes", "key": {"id": "mia-0\0"}},
            {"table": "notes", "key": {}},
            {"table": "notes", "key": {"id": "mia-0", "body": "x"}},
            {"table": "pg_catalog.pg_class", "key": {"oid": "1259"}},
            {"table": "information_schema.tables", "key": {"table_name": "notes"}},
        ]

    def role(self, *, reads: bool) -> str:
        name = f"role_{uuid.uuid4().hex[:12]}"
        self.run(f"CREATE ROLE {name} LOGIN")
        if reads:
            self.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON notes TO {name}")
        return self.config()["url"].replace("//postgres:@", f"//{name}:@")  # type: ignore[no-any-return]

    def wrong(self) -> Connector:
        self.run("ALTER TABLE notes ENABLE ROW LEVEL SECURITY")
        config = {"url": self.role(reads=True), "owner_field": "person"}
        return open_connector("sql", config, secrets=str)

    def source(self, **more: object) -> str:
        config = self.config(owner_field="person", **more)
        return f"from connectors.base import open_connector\nconnector = open_connector('sql', {config!r}, secrets=str)"

    def own_delete(self, name: str) -> None:
        self.application.execute("DELETE FROM notes WHERE id = %s", (name,))


@pytest.fixture
def bed(server: Any) -> Iterator[PostgresBed]:
    made = PostgresBed(server)
    yield made
    made.application.close()


class TestPostgres(Contract):
    holds = "sql, PostgreSQL"


def test_a_compressed_value_goes_with_its_toast_table(bed: PostgresBed) -> None:
    bed.run("ALTER TABLE notes ALTER COLUMN body SET STORAGE EXTERNAL")
    long = "".join(f"{n} {text_of('mia-long')} " for n in range(400))
    item = Item(copy_id="c", locator=bed.put("mia-long", long, "mia"))
    assert bed.hits(text_of("mia-long")) > 0
    with bed.open() as connector:
        items = captured(connector, [item])
        erase(connector, items)
        assert bed.hits(text_of("mia-long")) > 0
        assert connector.reclaim(Level.L2, now=NOW, deadline=30).level is Level.L2
    assert bed.hits(text_of("mia-long")) == 0


def test_an_open_snapshot_that_needs_the_old_rows_keeps_the_level_at_l1(bed: PostgresBed) -> None:
    mine, _ = fill(bed, 3)
    with bed.open() as connector:
        items = captured(connector, mine)
        with psycopg.connect(bed.uri) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")
            erase(connector, items)
            report = connector.reclaim(Level.L2, now=NOW, deadline=2)
            assert report.level is Level.L1
            assert "old rows" in report.detail
            assert bed.hits(text_of("mia-0")) > 0
            with bed.open(read_only=True) as verifier:
                finding = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
            assert finding.level is Level.L1
            assert finding.present is not False
        assert connector.reclaim(Level.L2, now=NOW, deadline=30).level is Level.L2
    assert bed.hits(text_of("mia-0")) == 0


def test_a_table_in_use_is_not_rewritten_and_the_call_returns_in_time(bed: PostgresBed) -> None:
    mine, _ = fill(bed, 1)
    with bed.open() as connector, psycopg.connect(bed.uri) as reader:
        erase(connector, mine)
        reader.execute("SELECT count(*) FROM notes")
        report = connector.reclaim(Level.L2, now=NOW, deadline=1)
    assert report.level is Level.L1
    assert "in use" in report.detail


def test_a_role_that_does_not_own_the_table_gets_no_level_it_did_not_reach(bed: PostgresBed) -> None:
    mine, _ = fill(bed, 1)
    config = {"url": bed.role(reads=True), "owner_field": "person"}
    with open_connector("sql", config, secrets=str) as connector:
        assert erase(connector, mine)[0].outcome is Outcome.ERASED
        report = connector.reclaim(Level.L2, now=NOW, deadline=10)
    assert report.level is Level.L1
    assert "public.notes" in report.detail


def test_the_write_ahead_log_is_dated_only_when_the_store_says_how_long_it_is_kept(bed: PostgresBed) -> None:
    with bed.open() as connector:
        assert connector.reclaim(Level.L2, now=NOW, deadline=10).residual_until == "unknown"
    with bed.open(wal_retention="P7DT12H") as connector:
        until = connector.reclaim(Level.L2, now=NOW, deadline=10).residual_until
    assert until == datetime(2026, 1, 5, 12, tzinfo=UTC) + timedelta(days=7, hours=12)


@pytest.mark.parametrize(
    ("kind", "stored", "given"),
    [
        ("uuid", "6f1d3a52-0f3e-4a8b-9d58-0c7f5f3b2a11", "6f1d3a52-0f3e-4a8b-9d58-0c7f5f3b2a11"),
        ("bigint", "9007199254740993", 9007199254740993),
        ("integer", "5", "5"),
        ("char(4)", "ab", "ab"),
        ("varchar(3)", "abc", "abc"),
        ("bit(4)", "1010", "1010"),
        ("timestamptz", "2026-01-01 00:00:00+01", "2025-12-31T23:00:00Z"),
        ("numeric", "1.50", "1.50"),
        ("boolean", "true", True),
    ],
)
def test_keys_of_every_common_type_name_their_row(bed: PostgresBed, kind: str, stored: str, given: object) -> None:
    bed.run(f"CREATE TABLE typed (id {kind} PRIMARY KEY, person text)")
    bed.run(f"INSERT INTO typed VALUES ('{stored}', 'mia')")
    item = Item(copy_id="c", locator={"table": "typed", "key": {"id": given}})
    with bed.open() as connector:
        assert len(list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))) == 1
        assert erase(connector, [item])[0].outcome is Outcome.ERASED


@pytest.mark.parametrize(
    ("kind", "stored", "given"),
    [
        ("varchar(3)", "abc", "abcdef"),
        ("char(1)", "a", "ab"),
        ("bit(1)", "1", "10"),
        ("integer", "2", 1.5),
        ("integer", "1", True),
        ("uuid", "6f1d3a52-0f3e-4a8b-9d58-0c7f5f3b2a11", "not a uuid"),
        ("text", "5", 5),
    ],
)
def test_a_value_that_a_cast_would_bend_never_reaches_another_row(
    bed: PostgresBed, kind: str, stored: str, given: object
) -> None:
    bed.run(f"CREATE TABLE typed (id {kind} PRIMARY KEY, person text)")
    bed.run(f"INSERT INTO typed VALUES ('{stored}', 'mia')")
    item = Item(copy_id="c", locator={"table": "typed", "key": {"id": given}})
    with bed.open() as connector:
        assert erase(connector, [item])[0].outcome in {Outcome.FAILED, Outcome.ALREADY_ABSENT}
    assert bed.run("SELECT count(*) FROM typed") == [(1,)]


def test_other_schemas_composite_keys_and_odd_names(bed: PostgresBed) -> None:
    bed.run('CREATE SCHEMA "o%s d"')
    bed.run('CREATE TABLE "o%s d"."t.%s""x" (thread text, "n %s" int, person text, PRIMARY KEY (thread, "n %s"))')
    bed.run("""INSERT INTO "o%s d"."t.%s""x" VALUES ('t', 1, 'mia'), ('t', 2, 'user:ben')""")
    with bed.open() as connector:
        found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))
        assert found == [{"table": 'o%s d.t.%s"x', "key": {"thread": "t", "n %s": 1}}]
        items = captured(connector, [Item(copy_id="c", locator=found[0])])
        assert erase(connector, items)[0].outcome is Outcome.ERASED
        assert connector.reclaim(Level.L2, now=NOW, deadline=10).level is Level.L2


def test_values_inside_json_are_canaries_and_are_looked_for_in_every_table(bed: PostgresBed) -> None:
    locator = bed.put("mia-json", "short", "mia")
    bed.run("UPDATE notes SET extra = %s WHERE id = 'mia-json'", '{"a": [{"said": "my code word is heron-77"}]}')
    with bed.open() as connector:
        items = captured(connector, [Item(copy_id="c", locator=locator)])
        assert b"my code word is heron-77" in items[0].canaries
        bed.run("CREATE TABLE copies (n int PRIMARY KEY, extra jsonb)")
        bed.run("INSERT INTO copies SELECT 1, extra FROM notes WHERE id = 'mia-json'")
        erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=10)
    with bed.open(read_only=True) as verifier:
        finding = verifier.verify(items, Level.L2, deadline=10, reclaimed=report)[0]
        assert (finding.level, finding.present) == (Level.L1, True)
        where = {each.where for each in verifier.residue(items[0].canaries, deadline=10)}
    assert "rows of public.copies" in where


@pytest.mark.parametrize("action", ["", "ON DELETE RESTRICT", "DEFERRABLE INITIALLY DEFERRED"])
def test_rows_that_reference_an_item_stop_it_and_only_it(bed: PostgresBed, action: str) -> None:
    mine, _ = fill(bed, 3)
    bed.run(f"CREATE TABLE replies (id int PRIMARY KEY, note text REFERENCES notes(id) {action})")
    bed.run("INSERT INTO replies VALUES (1, 'mia-0'), (2, 'mia-0'), (3, 'ben-0')")
    with bed.open() as connector:
        receipts = erase(connector, mine)
    assert [r.outcome for r in receipts] == [Outcome.FAILED, Outcome.ERASED, Outcome.ERASED]
    assert receipts[0].detail == "2 rows of public.replies reference the row; erase them first"
    with bed.open(children="delete") as connector:
        assert erase(connector, mine[:1])[0].outcome is Outcome.ERASED
    assert bed.run("SELECT id FROM replies") == [(3,)]


def test_cascaded_children_are_counted_and_their_bytes_reclaimed(bed: PostgresBed) -> None:
    mine, _ = fill(bed, 1)
    bed.run("CREATE TABLE replies (id int PRIMARY KEY, note text REFERENCES notes(id) ON DELETE CASCADE, body text)")
    bed.run("INSERT INTO replies VALUES (1, 'mia-0', 'a reply that quotes Blackthorn Row')")
    with bed.open() as connector:
        receipt = erase(connector, mine)[0]
        assert "1 rows of public.replies by CASCADE" in receipt.detail
        assert bed.hits("a reply that quotes") == 1
        assert connector.reclaim(Level.L2, now=NOW, deadline=10).level is Level.L2
    assert bed.hits("a reply that quotes") == 0


def test_partitions_are_reclaimed_with_their_table(bed: PostgresBed) -> None:
    bed.run("CREATE TABLE events (id int, person text, body text, PRIMARY KEY (id)) PARTITION BY RANGE (id)")
    bed.run("CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10)")
    bed.run("INSERT INTO events VALUES (1, 'mia', 'in the first partition')")
    item = Item(copy_id="c", locator={"table": "events", "key": {"id": 1}})
    with bed.open() as connector:
        assert erase(connector, captured(connector, [item]))[0].outcome is Outcome.ERASED
        assert connector.reclaim(Level.L2, now=NOW, deadline=10).level is Level.L2
    assert bed.hits("in the first partition") == 0


@pytest.mark.parametrize("who", ["superuser", "owner"])
def test_samples_that_the_planner_took_go_with_the_row(bed: PostgresBed, who: str) -> None:
    # ANALYZE, which autovacuum runs, copies values into pg_statistic; an emptied table keeps what was taken last.
    mine = [Item(copy_id="c", locator=bed.put("mia-0", text_of("mia-0"), "mia"))]
    bed.run("CREATE INDEX ON notes (upper(body))")
    bed.run("CREATE STATISTICS both_columns (mcv) ON body, person FROM notes")
    url = bed.role(reads=True) if who == "owner" else bed.config()["url"]
    if who == "owner":
        name = url.partition("//")[2].partition(":")[0]
        bed.run(f"ALTER DATABASE {bed.name} OWNER TO {name}")
        bed.run(f"ALTER TABLE notes OWNER TO {name}")
        bed.run("DROP STATISTICS both_columns")
    bed.run("INSERT INTO notes SELECT 'mia-' || n, 'mia', %s FROM generate_series(1, 3) n", text_of("mia-0"))
    bed.run("ANALYZE notes")
    bed.run("DELETE FROM notes WHERE id <> 'mia-0'")
    with open_connector("sql", {"url": url, "owner_field": "person"}, secrets=str) as connector:
        items = captured(connector, mine)
        erase(connector, items)
        told = {residue.where for residue in connector.residue(items[0].canaries, deadline=30)}
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        finding = connector.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
        left = connector.residue([text_of("mia-0").encode(), text_of("mia-0").upper().encode()], deadline=30)
    assert "the planner's statistics" in told
    assert (report.level, finding.level, finding.present, left) == (Level.L2, Level.L2, False, [])


def test_a_role_that_may_not_renew_samples_gets_no_level_it_did_not_reach(bed: PostgresBed) -> None:
    mine, _ = fill(bed, 1)
    url = bed.role(reads=True)
    bed.run(f"ALTER TABLE notes OWNER TO {url.partition('//')[2].partition(':')[0]}")
    bed.run("ANALYZE notes")
    with open_connector("sql", {"url": url, "owner_field": "person"}, secrets=str) as connector:
        items = captured(connector, mine)
        erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        finding = connector.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
    assert (report.level, finding.level, finding.present) == (Level.L1, Level.L1, None)
    assert "pg_statistic" in report.detail


def test_what_a_trigger_deletes_elsewhere_is_reclaimed_too(bed: PostgresBed) -> None:
    mine = [Item(copy_id="c", locator=bed.put("mia-0", text_of("mia-0"), "mia"))]
    bed.put("ben-0", text_of("ben-0"), "ben")
    bed.run("CREATE SCHEMA search")
    bed.run('CREATE TABLE search."words of.notes" AS SELECT id, body FROM notes')
    bed.run(
        "CREATE FUNCTION unlist() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        ' DELETE FROM search."words of.notes" WHERE id = OLD.id; RETURN NULL; END $$'
    )
    bed.run("CREATE TRIGGER unlist AFTER DELETE ON notes FOR EACH ROW EXECUTE FUNCTION unlist()")
    with bed.open() as connector:
        erase(connector, mine)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    bed.run("CHECKPOINT")
    (path,) = bed.run("""SELECT pg_relation_filepath('search."words of.notes"'::regclass)""")
    ((content,),) = bed.run("SELECT pg_read_binary_file(%s, 0, 100000000, true)", path[0])
    assert (report.level, text_of("mia-0").encode() in bytes(content)) == (Level.L2, False)
    assert text_of("ben-0").encode() in bytes(content)


def test_rows_of_tables_that_inherit_are_reclaimed_too(bed: PostgresBed) -> None:
    bed.run("CREATE TABLE old_notes () INHERITS (notes)")
    bed.run("INSERT INTO old_notes (id, person, body) VALUES ('mia-0', 'mia', %s)", text_of("mia-0"))
    with bed.open() as connector:
        items = captured(connector, [Item(copy_id="c", locator={"table": "notes", "key": {"id": "mia-0"}})])
        erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert (report.level, bed.hits(text_of("mia-0"))) == (Level.L2, 0)
    assert "2 tables rewritten" in report.detail


def test_wrong_credentials_are_told_apart_from_no_server(bed: PostgresBed) -> None:
    mine, _ = fill(bed, 1)
    for url, expected in (
        (bed.config()["url"].replace("//postgres:@", "//nobody_here:pa55word@"), WrongCredentials),
        (bed.role(reads=False), WrongCredentials),
        ("postgresql+psycopg://u:pa55word@127.0.0.1:9/db", StoreUnreachable),
    ):
        with open_connector("sql", {"url": url}, secrets=str) as connector:
            with pytest.raises(expected) as refused:
                erase(connector, mine, deadline=5)
            assert "pa55word" not in str(refused.value)
            report = connector.check(now=NOW, deadline=5)
            assert report.can_erase is False
            assert report.findings
    assert bed.get("mia-0") is not None


def test_a_server_that_stopped_answering_cannot_hang_a_call(bed: PostgresBed) -> None:
    mine, _ = fill(bed, 1)
    with bed.open() as connector:
        connector.check_locator(mine[0].locator)
        erase(connector, [Item(copy_id="warm", locator={"table": "notes", "key": {"id": "none"}})])
        backend = bed.run("SELECT pid FROM pg_stat_activity WHERE application_name = 'muniment'")
        for (pid,) in backend:
            os.kill(pid, signal.SIGSTOP)
        started = datetime.now(UTC)
        try:
            try:
                outcome = erase(connector, mine, deadline=0.5)[0].outcome
            except (Timeout, StoreUnreachable):
                outcome = Outcome.FAILED
        finally:
            for (pid,) in backend:
                os.kill(pid, signal.SIGCONT)
        assert outcome is Outcome.FAILED
        assert (datetime.now(UTC) - started).total_seconds() < 6
        assert erase(connector, mine)[0].outcome in {Outcome.ERASED, Outcome.ALREADY_ABSENT}


@pytest.mark.scenario("C2")
def test_a_table_without_a_key_is_refused(bed: PostgresBed) -> None:
    bed.run("CREATE TABLE loose (person text, body text)")
    bed.run("CREATE UNIQUE INDEX ON loose (person) WHERE body IS NULL")
    bed.run("CREATE UNIQUE INDEX ON loose (lower(person))")
    bed.run("INSERT INTO loose VALUES ('mia', 'kept')")
    item = Item(copy_id="c", locator={"table": "loose", "key": {"person": "mia"}})
    with bed.open() as connector:
        with pytest.raises(BadLocator, match="no unique key"):
            connector.check_locator(item.locator)
        assert erase(connector, [item])[0].outcome is Outcome.FAILED
    assert bed.run("SELECT count(*) FROM loose") == [(1,)]


def test_an_owner_in_another_type_is_compared_as_text(bed: PostgresBed) -> None:
    bed.run("CREATE TABLE orders (id int PRIMARY KEY, customer int)")
    bed.run("INSERT INTO orders VALUES (1, 42), (2, 43)")
    config = bed.config(owner_field="customer")
    with open_connector("sql", config, secrets=str) as connector:
        found = list(connector.discover(Selector(identifiers=("customer:42",)), deadline=10))
        assert found == [{"table": "public.orders", "key": {"id": 1}}]
        items = [Item(copy_id=str(n), locator={"table": "orders", "key": {"id": n}}) for n in (1, 2)]
        outcomes = [r.outcome for r in erase(connector, items, "customer:42")]
    assert outcomes == [Outcome.ERASED, Outcome.OWNER_MISMATCH]
    assert BEN


def _notes(bed: PostgresBed, *names: str, owner: str = "mia") -> list[Item]:
    return [Item(copy_id=name, locator=bed.put(name, text_of(name), owner)) for name in names]


def test_one_batch_tells_what_went_from_what_was_gone_and_what_is_somebody_elses(bed: PostgresBed) -> None:
    items = _notes(bed, "a", "b") + _notes(bed, "c", owner="ben") + _notes(bed, "d", owner="Mia") + _notes(bed, "e")
    bed.run("UPDATE notes SET person = NULL WHERE id = 'e'")
    gone = Item(copy_id="never", locator={"table": "notes", "key": {"id": "never"}})
    with bed.open() as connector:
        given = erase(connector, [items[0], gone, *items[1:]])
        again = erase(connector, [items[0], items[0], *items[1:]])
    mismatch = Outcome.OWNER_MISMATCH
    assert [r.outcome for r in given] == [
        Outcome.ERASED, Outcome.ALREADY_ABSENT, Outcome.ERASED, mismatch, mismatch, mismatch,
    ]  # fmt: skip
    assert [r.outcome for r in again] == [*[Outcome.ALREADY_ABSENT] * 3, mismatch, mismatch, mismatch]
    assert bed.run("SELECT id FROM notes ORDER BY id") == [("c",), ("d",), ("e",)]


def test_keys_that_look_like_the_syntax_of_a_list_name_their_own_row(bed: PostgresBed) -> None:
    odd = ['"', "\\", 'a","b', "{a,b}", "", "NULL", "'", " padded ", "%s", "\\x41", "Grüße"]
    items = _notes(bed, *odd)
    _notes(bed, "a", "b", "A", "padded", owner="ben")
    with bed.open() as connector:
        assert {r.outcome for r in erase(connector, items)} == {Outcome.ERASED}
    with bed.open(read_only=True) as verifier:
        assert {f.present for f in verifier.verify(items, Level.L1, deadline=30)} == {False}
    assert bed.run("SELECT count(*) FROM notes") == [(4,)]


def test_an_owner_is_compared_letter_by_letter_whatever_the_column_takes_for_equal(bed: PostgresBed) -> None:
    bed.run("CREATE EXTENSION citext")
    bed.run("ALTER TABLE notes ALTER COLUMN person TYPE citext")
    items = _notes(bed, "a", owner="MIA")
    with bed.open() as connector:
        assert erase(connector, items)[0].outcome is Outcome.OWNER_MISMATCH
    assert bed.get("a") is not None


@pytest.mark.parametrize(
    "keeper",
    [
        "CREATE TRIGGER own BEFORE DELETE ON notes FOR EACH ROW EXECUTE FUNCTION keep()",
        "CREATE TRIGGER own AFTER DELETE ON notes FOR EACH ROW EXECUTE FUNCTION keep()",
        "CREATE RULE own AS ON DELETE TO notes DO INSTEAD NOTHING",
    ],
)
def test_a_row_that_the_database_keeps_is_no_erasure(bed: PostgresBed, keeper: str) -> None:
    items = _notes(bed, "a", "b")
    bed.run(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF TG_WHEN = 'AFTER' THEN INSERT INTO notes VALUES (OLD.*); END IF; RETURN NULL; END $$"
    )
    bed.run(keeper)
    with bed.open() as connector:
        given = erase(connector, items)
    assert [(r.outcome, r.level) for r in given] == [(Outcome.FAILED, None)] * 2
    assert "still there" in given[0].detail
    assert bed.run("SELECT count(*) FROM notes") == [(2,)]


def test_a_row_that_changes_its_owner_while_we_wait_for_it_stays(bed: PostgresBed) -> None:
    items = _notes(bed, "a", "b")
    other = psycopg.connect(bed.uri)
    other.execute("UPDATE notes SET person = 'ben' WHERE id = 'a'")
    with bed.open() as connector, ThreadPoolExecutor(1) as aside, other:
        given = aside.submit(erase, connector, items)
        while not bed.run("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s", bed.name):
            assert not given.done()
        other.commit()
        assert [r.outcome for r in given.result(30)] == [Outcome.OWNER_MISMATCH, Outcome.ERASED]
    assert bed.run("SELECT id, person FROM notes") == [("a", "ben")]


def test_a_row_that_the_database_refuses_fails_alone(bed: PostgresBed) -> None:
    items = _notes(bed, *(f"n{number}" for number in range(9)))
    bed.run(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF OLD.id = 'n4' THEN RAISE EXCEPTION 'no'; END IF; RETURN OLD; END $$"
    )
    bed.run("CREATE TRIGGER no BEFORE DELETE ON notes FOR EACH ROW EXECUTE FUNCTION no()")
    with bed.open() as connector:
        outcomes = [r.outcome for r in erase(connector, items)]
    assert outcomes == [Outcome.FAILED if number == 4 else Outcome.ERASED for number in range(9)]
    assert bed.run("SELECT id FROM notes") == [("n4",)]


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_between_batches_ends_the_same(bed: PostgresBed) -> None:
    items = _notes(bed, "a", "b", "c", "d") + _notes(bed, "e", owner="ben")
    with bed.open() as connector:
        assert {r.outcome for r in erase(connector, items[:2])} == {Outcome.ERASED}
        bed.run("CHECKPOINT")
        process = bed.server.get_pid()
        os.kill(process, signal.SIGQUIT)  # an immediate stop: it has to recover when it starts
        while Path(f"/proc/{process}").exists():
            time.sleep(0.01)
        with pytest.raises(StoreUnreachable):
            erase(connector, items[2:4])
        bed.server.ensure_postgres_running()
        given = [r.outcome for r in erase(connector, items)]
        freed = connector.reclaim(Level.L2, now=NOW, deadline=30)
        seen = connector.verify(items[:4], Level.L2, deadline=30, reclaimed=freed)
    assert given == [*[Outcome.ALREADY_ABSENT] * 2, *[Outcome.ERASED] * 2, Outcome.OWNER_MISMATCH]
    assert {(each.level, each.present) for each in seen} == {(Level.L2, False)}
    assert bed.run("SELECT id FROM notes") == [("e",)]

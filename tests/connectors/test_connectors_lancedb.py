from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.base import Connector, Item, Level, Outcome, Selector, open_connector
from connectors.errors import BadConfig, BadLocator, ModeNotBuilt, StoreUnreachable
from tests.connectors.beds import shut_out
from tests.connectors.contract import BEN, MIA, NOW, Bed, Contract, captured, erase, fill, oracle, text_of
from tests.connectors.vector_beds import DIMENSIONS, raw, vector_of
from tests.lazily import Lazily

lance, lancedb, lance_file = Lazily("lance"), Lazily("lancedb"), Lazily("lance.file")
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("user_id", pa.string()),
        ("vector", pa.list_(pa.float32(), DIMENSIONS)),
    ]
)


class LanceBed(Bed):
    all_or_nothing = "one new version of the table takes the whole batch out"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "vectors"
        self.database = lancedb.connect(self.path)
        self.table = self.database.create_table("notes", schema=SCHEMA)

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        self.table.add([{"id": name, "text": text, "user_id": owner, "vector": vector_of(text)}])
        return {"collection": "notes", "id": name}

    def put_all(self, rows: Mapping[str, str]) -> list[Item]:
        """Many rows in one fragment, as an application that loads documents writes them."""
        self.table.add(
            [
                {
                    "id": name,
                    "text": text,
                    "user_id": "mia" if name.startswith("mia") else BEN,
                    "vector": vector_of(text),
                }
                for name, text in rows.items()
            ]
        )
        return [Item(copy_id=name, locator={"collection": "notes", "id": name}) for name in rows]

    def rows(self, where: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.database.open_table("notes").search().where(where).limit(10_000).to_list()
        return found

    def get(self, name: str) -> str | None:
        found = self.rows(f"id = '{name}'")
        return found[0]["text"] if found else None

    def whole(self, name: str) -> object:
        return self.rows(f"id = '{name}'") or None

    def near(self, text: str) -> list[str]:
        found = self.database.open_table("notes").search(vector_of(text)).limit(100).to_list()
        return [str(row["id"]) for row in found]

    def refuse(self, name: str) -> Callable[[], None]:
        return self.block()

    def folder(self) -> Path:
        return self.path

    def restart(self) -> None:
        self.database = lancedb.connect(self.path)
        self.table = self.database.open_table("notes")

    def stranger(self) -> AbstractContextManager[str]:
        return shut_out(self.path, self.source())

    def open(self, *, read_only: bool = False, owner: bool = True) -> Connector:
        config = {"path": str(self.path)} | ({"owner_field": "user_id"} if owner else {})
        return open_connector("lancedb", config, secrets=str, read_only=read_only)

    def hits(self, canary: str) -> int:
        return oracle([self.path], canary)

    def block(self) -> Callable[[], None]:
        # No deletion can be written where its folder should be; the manifests cannot be written either.
        versions = self.path / "notes.lance" / "_transactions"
        aside = versions.rename(versions.with_name("aside"))
        versions.write_text("no folder")

        def release() -> None:
            versions.unlink()
            aside.rename(versions)

        return release

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"collection": "notes", "id": 7},
            {"collection": "notes"},
            {"collection": "../vectors/notes", "id": "mia-0"},
            {"collection": "notes.lance", "id": "mia-0"},
            {"collection": "notes", "id": ["mia-0"]},
            {"collection": "notes", "id": None},
            {"collection": "notes", "id": True},
            {"collection": "notes", "id": ""},
            {"collection": "notes", "id": "mia-0", "where": "true"},
            {"collection": "", "id": "mia-0"},
        ]

    def wrong(self) -> Connector:
        return open_connector("lancedb", {"path": str(self.path.parent), "owner_field": "user_id"}, secrets=str)

    def source(self) -> str:
        config = {"path": str(self.path), "owner_field": "user_id"}
        return (
            "from connectors.base import open_connector\n"
            f"connector = open_connector('lancedb', {config!r}, secrets=str)"
        )

    def own_delete(self, name: str) -> None:
        self.database.open_table("notes").delete(f"id = '{name}'")

    def decoded(self, column: str) -> list[Any]:
        """What every data file still holds, marked as deleted or not, whatever version it belongs to."""
        found: list[Any] = []
        for file in (self.path / "notes.lance" / "data").glob("*.lance"):
            found += lance_file.LanceFileReader(str(file)).read_all().to_table().column(column).to_pylist()
        return found


@pytest.fixture
def bed(tmp_path: Path) -> LanceBed:
    return LanceBed(tmp_path)


class TestLance(Contract):
    holds = "lancedb, folder"


def wiped(bed: LanceBed, items: list[Item]) -> list[tuple[Level | None, bool | None]]:
    with bed.open() as connector:
        assert {receipt.outcome for receipt in erase(connector, items)} <= {Outcome.ERASED, Outcome.ALREADY_ABSENT}
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    with bed.open(read_only=True) as verifier:
        return [(f.level, f.present) for f in verifier.verify(items, Level.L2, deadline=30, reclaimed=report)]


@pytest.mark.scenario("S32")
def test_deleting_and_optimizing_leaves_a_tenth_and_ours_takes_it(bed: LanceBed) -> None:
    texts = {f"{'mia' if n < 3 else 'ben'}-{n}": text_of(f"no. {n:02}") for n in range(30)}
    items = bed.put_all(texts)[:3]
    with bed.open() as connector:
        items = captured(connector, items)
    table = bed.database.open_table("notes")
    table.delete("user_id = 'mia'")
    assert table.count_rows() == 27
    with pytest.warns(UserWarning, match="removes every version except the latest"):
        table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)
    # The store's own means are at their end: one version, and text and vector of the deleted are in its file.
    assert len(table.list_versions()) == 1
    assert {text_of(f"no. {n:02}") for n in range(3)} <= set(bed.decoded("text"))
    assert bed.hits(text_of("no. 01")) > 0
    assert any(raw(text_of("no. 01")) in file.read_bytes() for file in bed.path.rglob("*.lance") if file.is_file())
    with bed.open(read_only=True) as verifier:
        found = verifier.residue([canary for item in items for canary in item.canaries], deadline=30)
        assert {residue.where for residue in found} == {"data files"}
        seen = verifier.verify(items, Level.L2, deadline=30)
    assert {(f.level, f.present) for f in seen} == {(Level.L1, True)}
    with bed.open() as connector:
        erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert report.detail.startswith("3 deleted rows in 1 fragments written away")
    with bed.open(read_only=True) as verifier:
        after = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)
    assert {(f.level, f.present) for f in after} == {(Level.L2, False)}
    assert sorted(bed.decoded("text")) == sorted(texts[name] for name in texts if name.startswith("ben"))
    assert [bed.hits(text_of(f"no. {n:02}")) for n in range(3)] == [0, 0, 0]


@pytest.mark.scenario("L32")
def test_compressed_texts_are_found_though_their_bytes_are_nowhere(bed: LanceBed) -> None:
    texts = {f"{'mia' if n == 1500 else 'ben'}-{n}": text_of(f"{n}") for n in range(3000)}
    item = bed.put_all(texts)[1500]
    with bed.open() as connector:
        (item,) = captured(connector, [item])
    assert bed.hits(text_of("1500")) == 0
    bed.own_delete("mia-1500")
    with bed.open(read_only=True) as verifier:
        found = verifier.residue([text_of("1500").encode()], deadline=30)
    assert [(residue.where, residue.count) for residue in found] == [("data files", 1)]
    assert wiped(bed, [item]) == [(Level.L2, False)]
    assert text_of("1500") not in bed.decoded("text")
    assert len(bed.decoded("text")) == 2999


def indexed(bed: LanceBed) -> list[Item]:
    texts = {f"{'mia' if n < 1 else 'ben'}-{n:03}": f"{text_of(f'{n}')} zebra{n}x" for n in range(300)}
    items = bed.put_all(texts)
    table = bed.database.open_table("notes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table.create_index(metric="cosine", vector_column_name="vector", index_type="IVF_HNSW_SQ", num_partitions=2)
        table.create_fts_index("text")
        table.create_scalar_index("id")
        table.create_scalar_index("user_id", index_type="BITMAP")
    return items


def words(bed: LanceBed) -> int:
    """How many words the full-text index knows; its automaton keeps them in no readable form."""
    (file,) = (bed.path / "notes.lance" / "_indices").rglob("part_0_tokens.lance")
    counted: int = lance_file.LanceFileReader(str(file)).read_all().to_table().column("_token_next_id")[0].as_py()
    return counted


def test_indexes_forget_ids_words_and_vectors_and_find_the_same_neighbours(bed: LanceBed) -> None:
    items = indexed(bed)
    table = bed.database.open_table("notes")
    probe = vector_of(f"{text_of('7')} zebra7x")
    before = [row["id"] for row in table.search(probe).limit(6).to_list()]
    assert before[0] == "ben-007"
    assert "mia-000" not in before
    known = words(bed)
    assert b"mia-000" in b"".join(f.read_bytes() for f in (bed.path / "notes.lance" / "_indices").rglob("page_*"))
    with bed.open() as connector:
        mine = captured(connector, items[:1])
    bed.own_delete("mia-000")
    assert words(bed) == known
    assert wiped(bed, mine) == [(Level.L2, False)]
    # The number 0 of the text occurs in no other, and neither does its made-up word.
    assert words(bed) == known - 2
    everything = b"".join(file.read_bytes() for file in bed.path.rglob("*") if file.is_file())
    assert b"mia-000" not in everything
    table = bed.database.open_table("notes")
    assert [row["id"] for row in table.search(probe).limit(6).to_list()] == [
        name for name in before if name != "mia-000"
    ]
    assert table.search("zebra0x", query_type="fts").limit(3).to_list() == []
    assert [row["id"] for row in table.search("zebra7x", query_type="fts").limit(3).to_list()] == ["ben-007"]
    assert {index.index_type: index.num_unindexed_rows for index in table.list_indices()} == {
        "BTree": 0, "Bitmap": 0, "FTS": 0, "IvfHnswSq": 0,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_HNSW_FLAT", "IVF_PQ"])
def test_vectors_at_length_one_are_found_in_an_index_and_leave_it(bed: LanceBed, kind: str) -> None:
    texts = {f"{'mia' if n < 1 else 'ben'}-{n:03}": text_of(f"no. {n:03}") for n in range(300)}
    items = bed.put_all(texts)[:1]
    table = lance.dataset(str(bed.path / "notes.lance"))
    pieces: dict[str, Any] = {"num_sub_vectors": 8} if kind == "IVF_PQ" else {}
    table.create_index("vector", kind, metric="cosine", num_partitions=1, **pieces)
    with bed.open() as connector:
        items = captured(connector, items)
    bed.own_delete("mia-000")

    def indexed_rows() -> list[int]:
        files = (bed.path / "notes.lance" / "_indices").rglob("auxiliary.idx")
        return [lance_file.LanceFileReader(str(file)).read_all().to_table().num_rows for file in files]

    assert indexed_rows() == [300]
    with bed.open(read_only=True) as verifier:
        places = {residue.where for residue in verifier.residue(items[0].canaries, deadline=30)}
    # Codes of a quantised index are no bytes of the vector; that it is not among its rows is all there is to see.
    assert places == {"data files"} | ({"index files"} if kind != "IVF_PQ" else set())
    assert wiped(bed, items) == [(Level.L2, False)]
    assert indexed_rows() == [299]
    with bed.open(read_only=True) as verifier:
        assert verifier.residue(items[0].canaries, deadline=30) == []


def test_an_index_of_a_type_that_was_not_tried_keeps_the_level_at_l1(bed: LanceBed) -> None:
    items = bed.put_all({f"mia-{n}": text_of(f"mia-{n}") for n in range(5)})
    lance.dataset(str(bed.path / "notes.lance")).create_scalar_index("id", "ZONEMAP")
    with bed.open() as connector:
        erase(connector, items[:1])
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert report.level is Level.L1
    assert "ZoneMapIndexDetails" in report.detail


@pytest.mark.scenario("A20")
def test_a_version_from_before_the_erasure_can_be_read_after_the_stores_own_delete_and_not_after_ours(
    bed: LanceBed,
) -> None:
    items = bed.put_all({"mia-0": text_of("mia-0"), "ben-0": text_of("ben-0")})
    table = bed.database.open_table("notes")
    before = table.version
    bed.own_delete("mia-0")

    def as_of_before() -> list[str]:
        then = bed.database.open_table("notes")
        then.checkout(before)
        return sorted(row["id"] for row in then.to_arrow().to_pylist())

    assert as_of_before() == ["ben-0", "mia-0"]
    assert wiped(bed, items[:1]) == [(Level.L2, False)]
    with pytest.raises(Exception, match=rf"(?i)version.*{before}|{before}.*not found"):
        as_of_before()
    assert text_of("mia-0") not in bed.decoded("text")
    assert bed.get("ben-0") == text_of("ben-0")


@pytest.mark.scenario("A20")
def test_a_tag_on_an_earlier_version_is_reported_like_a_hold(bed: LanceBed) -> None:
    items = bed.put_all({f"mia-{n}": text_of(f"mia-{n}") for n in range(5)})
    lance.dataset(str(bed.path / "notes.lance")).tags.create("of-mia", 2)
    with bed.open() as connector:
        items = captured(connector, items)
        erase(connector, items[:1])
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        assert report.level is Level.L1
        assert "1 earlier versions are kept (1 tags, 0 branches)" in report.detail
        assert "of-mia" not in report.detail
        seen = connector.verify(items[:1], Level.L2, deadline=30, reclaimed=report)[0]
        assert (seen.level, seen.present) == (Level.L1, True)
        lance.dataset(str(bed.path / "notes.lance")).tags.delete("of-mia")
    assert wiped(bed, items[:1]) == [(Level.L2, False)]


def test_a_file_of_an_unfinished_write_is_left_to_its_writer_and_reported(bed: LanceBed) -> None:
    items = bed.put_all({f"mia-{n}": text_of(f"mia-{n}") for n in range(5)})
    table = bed.path / "notes.lance"
    (source,) = (table / "data").glob("*.lance")
    under_way = table / "data" / f"{'0' * 24}aa02abc4dcb8f5bd8893c96020.lance"
    under_way.write_bytes(source.read_bytes())
    with bed.open() as connector:
        items = captured(connector, items)
        erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert report.level is Level.L1
    assert "1 files belong to no version" in report.detail
    assert under_way.exists()
    with bed.open(read_only=True) as verifier:
        assert verifier.verify(items, Level.L2, deadline=30, reclaimed=report)[0].present is True


def test_a_file_of_a_write_that_broke_off_long_ago_is_removed(bed: LanceBed) -> None:
    items = bed.put_all({f"mia-{n}": text_of(f"mia-{n}") for n in range(5)})
    table = bed.path / "notes.lance"
    (source,) = (table / "data").glob("*.lance")
    broken = table / "data" / f"{'0' * 24}aa02abc4dcb8f5bd8893c96020.lance"
    broken.write_bytes(source.read_bytes())
    before = datetime.now(UTC) - timedelta(hours=2)
    os.utime(broken, (before.timestamp(), before.timestamp()))
    with bed.open() as connector:
        items = captured(connector, items)
    assert wiped(bed, items) == [(Level.L2, False)] * 5
    assert not broken.exists()


def test_a_writer_that_comes_in_between_loses_nothing(bed: LanceBed) -> None:
    items = bed.put_all({f"mia-{n}": text_of(f"mia-{n}") for n in range(5)})
    held = lance.dataset(str(bed.path / "notes.lance"))
    with bed.open() as connector:
        items = captured(connector, items)
        erase(connector, items)
        # A write on the version from before: it is committed after ours, on top of it.
        late = {"id": ["ben-late"], "text": ["late row"], "user_id": [BEN], "vector": [vector_of("late row")]}
        lance.write_dataset(pa.table(late, schema=SCHEMA), held, mode="append")
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
    assert report.level is Level.L2
    assert bed.get("ben-late") == "late row"
    assert bed.hits(text_of("mia-1")) == 0


def test_numbers_are_ids_too_and_shared_ids_are_refused(bed: LanceBed) -> None:
    bed.database.create_table("numbered", [{"id": n, "user_id": "mia", "vector": vector_of(str(n))} for n in (1, 2, 2)])
    one = Item(copy_id="1", locator={"collection": "numbered", "id": 1})
    two = Item(copy_id="2", locator={"collection": "numbered", "id": 2})
    with bed.open() as connector:
        receipts = erase(connector, [one, two])
        with pytest.raises(BadLocator):
            connector.check_locator({"collection": "numbered", "id": "1"})
    assert [receipt.outcome for receipt in receipts] == [Outcome.ERASED, Outcome.FAILED]
    assert receipts[1].detail == "2 rows have this id, so it names no single one"
    assert bed.database.open_table("numbered").count_rows() == 2


def test_an_id_is_a_value_and_never_part_of_a_condition(bed: LanceBed) -> None:
    fill(bed, 2)
    odd = ["x' OR '1'='1", "x'; --", 'a"b`c\\', "😀 ünï"]
    for name in odd:
        bed.put(name, f"text of {name}", "mia")
    items = [Item(copy_id=name, locator={"collection": "notes", "id": name}) for name in odd]
    with bed.open() as connector:
        assert {receipt.outcome for receipt in erase(connector, items)} == {Outcome.ERASED}
        absent = Item(copy_id="x", locator={"collection": "notes", "id": "' OR true OR id='"})
        assert erase(connector, [absent])[0].outcome is Outcome.ALREADY_ABSENT
    assert bed.database.open_table("notes").count_rows() == 4


def test_owners_inside_a_struct_are_reached_by_dots(bed: LanceBed) -> None:
    rows = [
        {"id": name, "metadata": {"user_id": owner}, "vector": vector_of(name)}
        for name, owner in (("a", "mia"), ("b", "ben"))
    ]
    bed.database.create_table("chunks", rows)
    config = {"path": str(bed.path), "owner_field": "metadata.user_id"}
    items = [Item(copy_id=name, locator={"collection": "chunks", "id": name}) for name in ("a", "b")]
    with open_connector("lancedb", config, secrets=str) as connector:
        found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))
        assert found == [{"collection": "chunks", "id": "a"}]
        outcomes = [receipt.outcome for receipt in erase(connector, items)]
        assert connector.check(now=NOW, deadline=30).owner_check == "enforced"
    assert outcomes == [Outcome.ERASED, Outcome.OWNER_MISMATCH]
    assert bed.database.open_table("chunks").to_arrow().column("id").to_pylist() == ["b"]


def test_walk_lists_every_row_and_tables_without_an_id_are_refused(bed: LanceBed) -> None:
    fill(bed, 2)
    bed.database.create_table("loose", [{"text": "no id", "vector": vector_of("x")}])
    with bed.open(read_only=True) as connector:
        assert sorted(each["id"] for each in connector.walk(deadline=10)) == ["ben-0", "ben-1", "mia-0", "mia-1"]
        with pytest.raises(BadLocator, match="no column id"):
            connector.check_locator({"collection": "loose", "id": "a"})


def test_owned_rows_without_an_id_stop_a_search_for_everything_of_a_person(bed: LanceBed) -> None:
    fill(bed, 1)
    rows = [{"id": None, "text": "no id", "user_id": "mia", "vector": vector_of("x")}]
    bed.database.create_table("unnamed", rows, schema=SCHEMA)
    with bed.open(read_only=True) as connector:
        with pytest.raises(BadLocator, match="have no id"):
            list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))
        assert [each["id"] for each in connector.discover(Selector(identifiers=(BEN,)), deadline=10)] == ["ben-0"]
    bed.database.drop_table("unnamed")
    bed.database.create_table("loose", [{"user_id": "mia", "vector": vector_of("x")}])
    with bed.open(read_only=True) as connector, pytest.raises(BadLocator, match="have no id"):
        list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))


def test_a_table_behind_a_symbolic_link_is_not_driven(bed: LanceBed, tmp_path: Path) -> None:
    fill(bed, 1)
    bed.database.create_table("others", [{"id": "x", "user_id": "ben", "vector": vector_of("x")}])
    (bed.path / "notes.lance").rename(tmp_path / "elsewhere.lance")
    (bed.path / "notes.lance").symlink_to(tmp_path / "elsewhere.lance")
    item = Item(copy_id="c", locator={"collection": "notes", "id": "mia-0"})
    with bed.open() as connector:
        assert erase(connector, [item])[0].outcome is Outcome.FAILED
    assert lance.dataset(str(tmp_path / "elsewhere.lance")).count_rows() == 2


def test_what_an_update_left_of_an_earlier_text_goes_too(bed: LanceBed) -> None:
    items = bed.put_all({"mia-0": "an earlier text of hers", "ben-0": "stays"})[:1]
    table = bed.database.open_table("notes")
    table.update(where="id = 'mia-0'", values={"text": "a later text of hers"})
    assert bed.hits("an earlier text of hers") > 0
    assert table.checkout(2) is None
    assert table.search().where("id = 'mia-0'").limit(1).to_list()[0]["text"] == "an earlier text of hers"
    assert wiped(bed, items) == [(Level.L2, False)]
    assert bed.hits("an earlier text of hers") == 0
    assert bed.get("ben-0") == "stays"


def test_looking_changes_no_file(bed: LanceBed) -> None:
    items, _ = fill(bed, 2)

    def state() -> dict[str, tuple[int, bytes]]:
        files = [file for file in bed.path.rglob("*") if file.is_file()]
        return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}

    before = state()
    with bed.open(read_only=True) as connector:
        items = captured(connector, items)
        connector.verify(items, Level.L2, deadline=30)
        list(connector.export(items, deadline=30))
        connector.residue([b"anything at all"], deadline=30)
    assert state() == before


def test_a_server_is_refused_by_name_and_so_are_bad_settings(tmp_path: Path) -> None:
    with pytest.raises(ModeNotBuilt, match="'url'"):
        open_connector("lancedb", {"url": "https://db.example.org"}, secrets=str)
    for config in ({}, {"path": "relative"}, {"path": str(tmp_path), "surprise": 1}):
        with pytest.raises(BadConfig):
            open_connector("lancedb", config, secrets=str)
    with open_connector("lancedb", {"path": str(tmp_path / "missing")}, secrets=str) as connector:
        with pytest.raises(StoreUnreachable):
            erase(connector, [Item(copy_id="c", locator={"collection": "t", "id": "1"})])
        report = connector.check(now=datetime(2026, 1, 1, tzinfo=UTC), deadline=5)
    assert report.reachable is False
    assert not (tmp_path / "missing").exists()

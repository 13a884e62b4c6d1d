from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.base import Connector, Item, Level, Outcome, Selector, open_connector
from connectors.errors import BadConfig, OutsideRoot, StoreUnreachable
from tests.connectors.beds import shut_out
from tests.connectors.contract import BEN, MIA, NOW, OF_PROCESSES, Bed, Contract, captured, erase, fill, oracle, text_of


class FilesBed(Bed):
    """One JSON file per item."""

    no_search = "a folder has no search of its own"

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        (self.root / "notes").mkdir(parents=True)
        self.outside = folder / "outside.json"
        self.outside.write_text('{"owner": "mia", "text": "outside the root"}')
        (self.root / "link.json").symlink_to(self.outside)
        (self.root / "linked").symlink_to(folder)

    def path(self, name: str) -> Path:
        return self.root / "notes" / f"{name}.json"

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        self.path(name).write_text(json.dumps({"owner": owner, "text": text}))
        return {"path": f"notes/{name}.json"}

    def get(self, name: str) -> str | None:
        if not self.path(name).exists():
            return None
        return str(json.loads(self.path(name).read_text())["text"])

    def whole(self, name: str) -> object:
        about = self.path(name).stat()
        return self.path(name).read_bytes(), about.st_mode, about.st_mtime_ns, about.st_ino

    def refuse(self, name: str) -> Callable[[], None]:
        """Give the file another name elsewhere: unlinking the one would leave what is under the other."""
        other = self.root.with_name("elsewhere.json")
        os.link(self.path(name), other)
        return other.unlink

    def folder(self) -> Path:
        return self.root

    def restart(self) -> None:
        """Nothing of a folder is open between calls."""

    def stranger(self) -> AbstractContextManager[str]:
        return shut_out(self.root, self.source())

    def config(self, **more: object) -> dict[str, Any]:
        return {"root": str(self.root), "owner_field": "owner", **more}

    def open(self, *, read_only: bool = False, owner: bool = True, **more: object) -> Connector:
        config = self.config(**more) if owner else {"root": str(self.root), **more}
        return open_connector("files", config, secrets=str, read_only=read_only)

    def hits(self, canary: str) -> int:
        return oracle([self.root], canary)

    def block(self) -> Callable[[], None]:
        """Make the path lead nowhere: the root is moved away, as an unmounted volume would be."""
        away = self.root.with_name("away")
        self.root.rename(away)

        def release() -> None:
            away.rename(self.root)

        return release

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"path": "../outside.json"},
            {"path": "notes/../../outside.json"},
            {"path": str(self.outside)},
            {"path": "link.json"},
            {"path": "linked/outside.json"},
            {"path": "notes"},
            {"path": "./notes/mia-0.json"},
            {"path": "notes//mia-0.json"},
            {"path": ""},
            {"path": "notes/mia-0.json\0.txt"},
            {"path": ["notes/mia-0.json"]},
            {"path": "notes/mia-0.json", "glob": "*"},
            {"path": "notes/mia-0.json", "lines": {"field": "owner"}},
            {"path": "notes/mia-0.json", "lines": {"field": "owner", "value": True}},
        ]

    def wrong(self) -> Connector:
        return open_connector("files", self.config(root=str(self.root.with_name("missing"))), secrets=str)

    def source(self) -> str:
        return (
            "from connectors.base import open_connector\n"
            f"connector = open_connector('files', {self.config()!r}, secrets=str)"
        )

    def own_delete(self, name: str) -> None:
        self.path(name).unlink()

    def hit_bytes_remain_after_own_delete(self) -> bool:
        return False  # freed blocks are below the store's files: L3


class LinesBed(FilesBed):
    """All items in one shared file of JSON lines."""

    def shared(self) -> Path:
        return self.root / "shared.jsonl"

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        with self.shared().open("a") as stream:
            stream.write(json.dumps({"owner": owner, "id": name, "text": text}) + "\n")
        return {"path": "shared.jsonl", "lines": {"field": "id", "value": name}}

    def get(self, name: str) -> str | None:
        for line in self.shared().read_text().splitlines():
            if line.endswith("}") and json.loads(line)["id"] == name:
                return str(json.loads(line)["text"])
        return None

    def whole(self, name: str) -> object:
        return [line for line in self.shared().read_bytes().splitlines(keepends=True) if json.loads(line)["id"] == name]

    def refuse(self, name: str) -> Callable[[], None]:
        """Leave a line that broke off and may be the item's: nobody can tell what else is in it."""
        whole = self.shared().read_bytes()
        broken = json.dumps({"owner": "mia", "id": name}).encode()[:-1]
        self.shared().write_bytes(whole + broken + b"\n")

        def release() -> None:
            left = self.shared().read_bytes()
            self.shared().write_bytes(left.replace(broken + b"\n", b""))

        return release

    def hostile(self) -> list[Mapping[str, Any]]:
        lines = {"lines": {"field": "id", "value": "mia-0"}}
        return [
            {"path": "../outside.json", **lines},
            {"path": "link.json", **lines},
            {"path": "shared.jsonl", "lines": {"field": "id", "value": ""}},
            {"path": "shared.jsonl", "lines": {"field": "", "value": "mia-0"}},
            {"path": "shared.jsonl", "lines": {"field": "id", "value": 1.5}},
            {"path": "shared.jsonl", "line_field": "id"},
        ]

    def own_delete(self, name: str) -> None:
        path = self.root / "shared.jsonl"
        kept = [line for line in path.read_text().splitlines(keepends=True) if json.loads(line)["id"] != name]
        path.write_text("".join(kept))


@pytest.fixture
def bed(tmp_path: Path) -> FilesBed:
    return FilesBed(tmp_path)


class TestFiles(Contract):
    holds = "files, a file an item"


class TestLines(Contract):
    holds = "files, shared lines"
    slow: ClassVar = OF_PROCESSES
    instead: ClassVar = {
        "test_discover_finds_every_item_of_the_owner_and_no_other": "one locator names all lines of an owner together"
    }

    @pytest.fixture
    def bed(self, tmp_path: Path) -> LinesBed:
        return LinesBed(tmp_path)

    def test_discover_finds_every_item_of_the_owner_and_no_other(self, bed: Bed) -> None:
        """A shared file is discovered as the owner's lines together: one locator, by the owner field itself."""
        fill(bed)
        with bed.open() as connector:
            found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=30))
            assert found == [{"path": "shared.jsonl", "lines": {"field": "owner", "value": "mia"}}]
            receipts = erase(connector, [Item(copy_id="all", locator=found[0])])
        assert receipts[0].detail == "7 lines removed, file replaced"
        assert [bed.get(f"mia-{n}") for n in range(7)] == [None] * 7
        assert bed.get("ben-3") == text_of("ben-3")


def test_a_file_outside_is_never_reached_by_any_way_out(bed: FilesBed) -> None:
    for locator in bed.hostile()[:5]:
        with bed.open() as connector:
            erase(connector, [Item(copy_id="c", locator=locator)])
    assert bed.outside.exists()
    with bed.open() as connector, pytest.raises(OutsideRoot):
        connector.check_locator({"path": "linked/outside.json"})


def test_a_file_with_other_names_is_refused_and_says_how_many(bed: FilesBed) -> None:
    mine, _ = fill(bed, 1)
    os.link(bed.path("mia-0"), bed.root / "second name")
    with bed.open() as connector:
        receipt = erase(connector, mine)[0]
    assert receipt.outcome is Outcome.FAILED
    assert receipt.detail.startswith("the file has 1 other names")
    assert bed.get("mia-0") == text_of("mia-0")


def test_all_names_of_a_file_go_together_or_not_at_all(bed: FilesBed, tmp_path: Path) -> None:
    mine, _ = fill(bed, 1)
    os.link(bed.path("mia-0"), bed.root / "second name")
    os.link(bed.path("mia-0"), tmp_path / "name outside")
    with bed.open(hard_links="erase_all") as connector:
        refused = erase(connector, mine)[0]
        assert (refused.outcome, bed.get("mia-0")) == (Outcome.FAILED, text_of("mia-0"))
        (tmp_path / "name outside").unlink()
        receipt = erase(connector, mine)[0]
    assert receipt.detail == "unlinked 2 names, none left"
    assert not (bed.root / "second name").exists()


def test_a_copy_of_a_file_is_found_by_its_bytes(bed: FilesBed) -> None:
    mine, _ = fill(bed, 1)
    with bed.open() as connector:
        (bed.root / "backup.bin").write_bytes(b"head" + bed.path("mia-0").read_bytes())
        items = captured(connector, mine)
        erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=10)
    with bed.open(read_only=True) as verifier:
        finding = verifier.verify(items, Level.L2, deadline=10, reclaimed=report)[0]
    assert (finding.level, finding.present) == (Level.L1, True)


def test_a_header_that_other_files_share_is_no_canary(bed: FilesBed) -> None:
    header = b"%PDF-1.7 a header of forty-eight bytes exactly here"
    (bed.root / "a.pdf").write_bytes(header + b"a" * 100 + b"the end of the file a, which is only its own....")
    (bed.root / "b.pdf").write_bytes(header + b"b" * 100 + b"the end of the file b, which is only its own....")
    with bed.open(owner=False) as connector:
        items = captured(connector, [Item(copy_id="a", locator={"path": "a.pdf"})])
        assert header[:48] not in items[0].canaries
        assert items[0].canaries
        assert erase(connector, items)[0].outcome is Outcome.ERASED
        report = connector.reclaim(Level.L2, now=NOW, deadline=10)
        finding = connector.verify(items, Level.L2, deadline=10, reclaimed=report)[0]
    assert (finding.level, finding.present) == (Level.L2, False)


def test_a_name_that_holds_the_person_is_residue(bed: FilesBed) -> None:
    (bed.root / "mia.li@example.com").mkdir()
    (bed.root / "mia.li@example.com" / "empty").touch()
    with bed.open() as connector:
        found = connector.residue([b"mia.li@example.com"], deadline=10)
    assert [(each.count, each.encoding) for each in found] == [(1, "utf-8")]
    assert found[0].where.startswith("name of inode")


def test_a_broken_line_that_may_hold_the_item_stops_only_that_item(tmp_path: Path) -> None:
    bed = LinesBed(tmp_path)
    mine, _ = fill(bed, 2)
    with (bed.root / "shared.jsonl").open("a") as stream:
        stream.write('{"owner": "mia", "id": "mia-1", "text": "torn\n')
    with bed.open() as connector:
        receipts = erase(connector, mine)
    assert [r.outcome for r in receipts] == [Outcome.ERASED, Outcome.FAILED]
    assert "no JSON" in receipts[1].detail


def test_a_line_of_another_owner_under_the_same_value_stops_the_item(tmp_path: Path) -> None:
    bed = LinesBed(tmp_path)
    mine = Item(copy_id="c", locator=bed.put("same", "first", "mia"))
    bed.put("same", "second", BEN)
    before = (bed.root / "shared.jsonl").read_bytes()
    with bed.open() as connector:
        assert erase(connector, [mine])[0].outcome is Outcome.OWNER_MISMATCH
    assert (bed.root / "shared.jsonl").read_bytes() == before


@pytest.mark.parametrize("end", ["jsonl", "ndjson"])
def test_lines_that_name_their_owner_by_a_number_are_found_and_go(tmp_path: Path, end: str) -> None:
    bed = FilesBed(tmp_path)
    shared = bed.root / f"shared.{end}"
    others = '{"owner": "42x", "text": "b"}\n{"owner": true, "text": "c"}\n'
    shared.write_text('{"owner": 42, "text": "a"}\n' + others)
    with bed.open() as connector:
        found = list(connector.discover(Selector(identifiers=("user:42",)), deadline=30))
        assert found == [{"path": shared.name, "lines": {"field": "owner", "value": 42}}]
        lines = [each["lines"] for each in connector.walk(deadline=30) if "lines" in each]
        walked = [each["value"] for each in lines if each["field"] == "owner"]
        receipts = erase(connector, [Item(copy_id="c", locator=found[0])], "user:42")
    assert walked == [42, "42x"]
    assert receipts[0].outcome is Outcome.ERASED
    assert shared.read_text() == others


def test_a_value_of_another_type_is_no_absence(tmp_path: Path) -> None:
    # "42" was registered and 42 is written: no line has that value, and yet the person's line is there.
    bed = FilesBed(tmp_path)
    (bed.root / "shared.jsonl").write_text('{"owner": 42, "text": "a"}\n')
    item = Item(copy_id="c", locator={"path": "shared.jsonl", "lines": {"field": "owner", "value": "42"}})
    with bed.open() as connector:
        assert erase(connector, [item], "user:42")[0].outcome is Outcome.FAILED
        assert connector.verify([item], Level.L1, deadline=30)[0].present is True


def test_a_whole_file_of_lines_goes_when_every_line_names_the_owner(tmp_path: Path) -> None:
    # "One thread, one file" is often JSON lines; a file of which one line names somebody else, or nobody, stays.
    bed = FilesBed(tmp_path)
    mine = '{"owner": "mia", "text": "a"}\n'
    for name, content in {"own": mine * 2 + "\n", "two": mine + '{"owner": "ben"}\n', "none": mine + "{}\n"}.items():
        (bed.root / f"{name}.jsonl").write_text(content)
    with bed.open() as connector:
        items = [Item(copy_id=name, locator={"path": f"{name}.jsonl"}) for name in ("own", "two", "none")]
        outcomes = [receipt.outcome for receipt in erase(connector, items)]
    assert outcomes == [Outcome.ERASED, Outcome.OWNER_MISMATCH, Outcome.OWNER_MISMATCH]


def test_a_file_that_takes_the_name_while_it_is_looked_at_stays(bed: FilesBed, monkeypatch: pytest.MonkeyPatch) -> None:
    item = Item(copy_id="c", locator=bed.put("mia-0", text_of("mia-0"), "mia"))
    bed.put("other", text_of("other"), "ben")
    read = json.loads

    def read_and_replaced(content: bytes) -> object:
        if b"mia-0" in content and bed.path("other").exists():
            bed.path("other").rename(bed.path("mia-0"))
        return read(content)

    with bed.open() as connector:
        monkeypatch.setattr(json, "loads", read_and_replaced)
        receipt = erase(connector, [item])[0]
        monkeypatch.undo()
    assert receipt.outcome is Outcome.FAILED
    assert bed.get("mia-0") == text_of("other")


def test_a_shared_file_with_another_name_is_not_rewritten(tmp_path: Path) -> None:
    bed = LinesBed(tmp_path)
    mine, _ = fill(bed, 1)
    os.link(bed.root / "shared.jsonl", bed.root / "second.jsonl")
    with bed.open() as connector:
        assert erase(connector, mine)[0].outcome is Outcome.FAILED
    assert bed.get("mia-0") == text_of("mia-0")


def test_a_rewrite_that_another_process_holds_waits_until_the_deadline(tmp_path: Path) -> None:
    bed = LinesBed(tmp_path)
    mine, _ = fill(bed, 1)
    handle = os.open(bed.root, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with bed.open() as connector:
            receipt = erase(connector, mine, deadline=0.3)[0]
            assert (receipt.outcome, receipt.detail) == (Outcome.FAILED, "not finished before the deadline")
            fcntl.flock(handle, fcntl.LOCK_UN)
            assert erase(connector, mine)[0].outcome is Outcome.ERASED
    finally:
        os.close(handle)


def test_reclaim_removes_what_a_crash_in_the_middle_of_a_rewrite_left(bed: FilesBed) -> None:
    left = bed.root / "notes" / ".muniment-rewrite-0123456789abcdef"
    left.write_text(text_of("mia-0"))
    with bed.open() as connector:
        assert connector.residue([text_of("mia-0").encode()], deadline=10)
        report = connector.reclaim(Level.L2, now=NOW, deadline=10)
        assert connector.residue([text_of("mia-0").encode()], deadline=10) == []
    assert report.detail.startswith("1 unfinished rewrites removed")
    assert not left.exists()


def test_mode_and_owner_of_a_shared_file_survive(tmp_path: Path) -> None:
    bed = LinesBed(tmp_path)
    mine, _ = fill(bed, 1)
    (bed.root / "shared.jsonl").chmod(0o640)
    with bed.open() as connector:
        erase(connector, mine)
    assert (bed.root / "shared.jsonl").stat().st_mode & 0o7777 == 0o640


LINE = st.one_of(
    st.builds(lambda who, n: json.dumps({"id": who, "n": n}).encode(), st.sampled_from("abc"), st.integers()),
    st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"").replace(b"a", b"")),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(LINE, max_size=12), ending=st.sampled_from([b"\n", b"\r\n"]), last=st.booleans())
def test_a_rewrite_keeps_every_other_byte(tmp_path: Path, lines: list[bytes], ending: bytes, last: bool) -> None:
    path = tmp_path / "any.jsonl"
    whole = [line + ending for line in lines]
    if whole and not last:
        whole[-1] = lines[-1]
    path.write_bytes(b"".join(whole))
    item = Item(copy_id="c", locator={"path": "any.jsonl", "lines": {"field": "id", "value": "a"}})
    with open_connector("files", {"root": str(tmp_path)}, secrets=str) as connector:
        erase(connector, [item])
    assert path.read_bytes() == b"".join(line for line in whole if not line.startswith(b'{"id": "a"'))


def test_a_root_that_was_swapped_proves_no_absence(bed: FilesBed) -> None:
    mine, _ = fill(bed, 1)
    with bed.open() as connector:
        connector.check_locator(mine[0].locator)
        bed.root.rename(bed.root.with_name("away"))
        bed.root.mkdir()
        with pytest.raises(StoreUnreachable, match="another folder"):
            connector.verify(mine, Level.L1, deadline=5)


@pytest.mark.parametrize(
    "config",
    [{}, {"root": "relative"}, {"root": 7}, {"root": "/r", "hard_links": "maybe"}, {"root": "/r", "mode": 1}],
)
def test_incomplete_configurations_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(BadConfig):
        open_connector("files", config, secrets=str)

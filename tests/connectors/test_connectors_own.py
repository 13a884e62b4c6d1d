"""The connector that docs/connectors.md shows, held to the same contract as ours."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from connectors.base import Connector, Item, Outcome, Selector
from connectors.errors import BadConfig
from examples.connector.threads import Threads
from tests.connectors.beds import shut_out
from tests.connectors.contract import BEN, MIA, ROOT, Bed, Contract, erase, oracle


class ThreadsBed(Bed):
    no_search = "a folder has no search of its own"

    def __init__(self, folder: Path) -> None:
        self.root = folder / "threads"
        self.root.mkdir()

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        (self.root / f"{name}.json").write_text(json.dumps({"owner": owner, "text": text}))
        return {"thread": name}

    def get(self, name: str) -> str | None:
        file = self.root / f"{name}.json"
        file = self.root / "aside" if file.is_dir() else file
        return str(json.loads(file.read_text())["text"]) if file.exists() else None

    def open(self, *, read_only: bool = False, owner: bool = True) -> Connector:
        return Threads(self.root, read_only=read_only)

    def whole(self, name: str) -> object:
        file = self.root / f"{name}.json"
        return file.read_bytes(), file.stat().st_mtime_ns

    def refuse(self, name: str) -> Callable[[], None]:
        """Put a folder in the file's place, with the file in it: no unlink takes that away."""
        file, aside = self.root / f"{name}.json", self.root / "aside"
        file.rename(aside)
        file.mkdir()

        def release() -> None:
            file.rmdir()
            aside.rename(file)

        return release

    def folder(self) -> Path:
        return self.root

    def restart(self) -> None:
        """Nothing of a folder is open between calls."""

    def stranger(self) -> AbstractContextManager[str]:
        return shut_out(self.root, self.source())

    def hits(self, canary: str) -> int:
        return oracle([self.root], canary)

    def block(self) -> Callable[[], None]:
        away = self.root.rename(self.root.with_name("away"))

        def release() -> None:
            away.rename(self.root)

        return release

    def hostile(self) -> list[Mapping[str, Any]]:
        names: list[Any] = ["../mia-0", "", "mia-0/", "mia-0\0", 7, None, ["mia-0"]]
        return [*({"thread": each} for each in names), {}]

    def wrong(self) -> Connector:
        return Threads(self.root.with_name("missing"))

    def source(self) -> str:
        return (
            "from pathlib import Path\nfrom examples.connector.threads import Threads\n"
            f"connector = Threads(Path({str(self.root)!r}))"
        )

    def own_delete(self, name: str) -> None:
        (self.root / f"{name}.json").unlink()

    def hit_bytes_remain_after_own_delete(self) -> bool:
        return False


@pytest.fixture
def bed(tmp_path: Path) -> ThreadsBed:
    return ThreadsBed(tmp_path)


class TestThreads(Contract):
    holds = "the example of the documentation"


def test_a_connector_of_your_own_is_written_in_eighty_lines() -> None:
    source = Path(inspect.getfile(Threads)).read_text("utf-8")
    assert len(source.splitlines()) <= 80
    assert "80 lines" in (ROOT / "docs" / "connectors.md").read_text("utf-8")


def test_without_a_configured_owner_nothing_is_discovered_and_nobody_is_compared(bed: ThreadsBed) -> None:
    locator = bed.put("mia-0", "hers", "mia")
    connector = Threads(bed.root)
    connector.owner_field = None
    with pytest.raises(BadConfig):
        list(connector.discover(Selector(identifiers=(MIA,)), deadline=5))
    assert erase(connector, [Item(copy_id="c", locator=locator)], BEN)[0].outcome is Outcome.ERASED


def test_content_that_is_no_document_names_nobody_and_is_left(bed: ThreadsBed) -> None:
    (bed.root / "torn.json").write_bytes(b'{"owner": "mia", "te')
    with bed.open() as connector:
        receipt = erase(connector, [Item(copy_id="c", locator={"thread": "torn"})])[0]
    assert receipt.outcome is Outcome.OWNER_MISMATCH
    assert (bed.root / "torn.json").exists()

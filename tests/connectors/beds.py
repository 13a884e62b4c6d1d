"""What the contract of connectors asks of a test: a real store with rows of two people, and how to trouble it.

A `Bed` looks at its store by the application's own means and by the bytes of its files; it shares no code with the
connector. What a store cannot have is said in words (`no_search`, `no_credentials`, `all_or_nothing`), and the contract
looks whether that is so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from connectors.base import Connector, Item, Receipt

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
MIA, BEN = "user:mia", "user:ben"
ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"


class Bed(ABC):
    """A real store with rows of two people, and ways to look at it that share no code with the connector."""

    serves: ClassVar[bool] = False
    """Whether the store is a server, which can be restarted while a connector is open on it."""
    no_search: ClassVar[str] = ""
    """Why the store cannot be asked for what is like a text; empty where `near` asks it."""
    no_credentials: ClassVar[str] = ""
    """Why there are no credentials that the store could refuse; empty where `stranger` gives some."""
    all_or_nothing: ClassVar[str] = ""
    """Why the store cannot refuse one item of a batch and take the others; empty where `refuse` makes it."""

    no_folder: ClassVar[str] = ""
    """Why nothing but the store's own file belongs to it; empty where it is a server or `folder` names its folder."""

    @abstractmethod
    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        """Write one item with the application's own means and return its locator."""

    @abstractmethod
    def get(self, name: str) -> str | None:
        """Read one item with the application's own means."""

    @abstractmethod
    def whole(self, name: str) -> object:
        """Return all that the application's own means show of one item: values, vectors, dates, whatever is kept."""

    @abstractmethod
    def open(self, *, read_only: bool = False, owner: bool = True) -> Connector:
        """Return a new connector on the store."""

    @abstractmethod
    def hits(self, canary: str) -> int:
        """Count the canary in the store's own bytes (L2), by means of its own."""

    @abstractmethod
    def block(self) -> Callable[[], None]:
        """Make every change of item `mia-0` wait or fail; return what ends that."""

    @abstractmethod
    def refuse(self, name: str) -> Callable[[], None]:
        """Make the store itself refuse to let one item go, and no other; return what ends that."""

    @abstractmethod
    def restart(self) -> None:
        """End the server by force and start it again; of a store in files, give up every handle on them."""

    @abstractmethod
    def hostile(self) -> list[Mapping[str, Any]]:
        """Return locators that must be refused."""

    @abstractmethod
    def wrong(self) -> Connector:
        """Return a connector whose scope cannot see the items although they exist."""

    @abstractmethod
    def stranger(self) -> AbstractContextManager[str]:
        """Give Python source of a connector whom the store refuses; of files, one that may not open them."""

    @abstractmethod
    def source(self) -> str:
        """Return Python source that assigns a connector to `connector`, for another process."""

    def folder(self) -> Path | None:
        """Return the folder all of whose files the store is, None where it is a server or one file (`no_folder`)."""
        return None

    def near(self, text: str) -> list[str]:
        """Return the names of all items that the store's own search finds, those most like the text first."""
        raise NotImplementedError(text)

    def hit_bytes_remain_after_own_delete(self) -> bool:
        """Tell whether this store's own delete leaves bytes (the reason for `reclaim`)."""
        return True

    @abstractmethod
    def own_delete(self, name: str) -> None:
        """Delete one item as the store's documentation says."""


def text_of(name: str) -> str:
    return f"{name}: I moved to 17 Blackthorn Row, call me on 555-0142-{name}"


def fill(bed: Bed, count: int = 7, others: int | None = None) -> tuple[list[Item], list[Item]]:
    """Write `count` items of each person, or `others` of the second, and return them."""
    made = [
        [Item(copy_id=f"{who}-{n}", locator=bed.put(f"{who}-{n}", text_of(f"{who}-{n}"), owner)) for n in range(many)]
        for who, owner, many in (("mia", "mia", count), ("ben", BEN, count if others is None else others))
    ]
    return made[0], made[1]


def captured(connector: Connector, items: list[Item]) -> list[Item]:
    found = connector.capture(items, deadline=30)
    return [Item(copy_id=item.copy_id, locator=item.locator, canaries=tuple(found[item.copy_id])) for item in items]


def erase(connector: Connector, items: list[Item], who: str = MIA, deadline: float = 30) -> list[Receipt]:
    return connector.erase(items, owner_identifiers=[who], now=NOW, deadline=deadline)


class FolderBed(Bed):
    """A store that is one folder, which its engine keeps open in this process until it is told to `release` it."""

    path: Path

    @abstractmethod
    def release(self) -> None:
        """Have the engine give its files up."""

    def folder(self) -> Path:
        return self.path

    def restart(self) -> None:
        self.release()

    @contextmanager
    def stranger(self) -> Iterator[str]:
        self.release()
        with shut_out(self.path, self.source()) as source:
            yield source


def oracle(paths: list[Path], canary: str) -> int:
    """Count by the shared byte scanner in another process; skip where it is not there, unless CI has to have it."""
    tool = SHARED / "tools" / "residue.py"
    if not tool.exists():
        if os.environ.get("CI") == "true":
            pytest.fail("the shared residue scanner is missing")
        pytest.skip("the shared residue scanner is not beside this checkout")
    names = [str(path) for path in paths if path.exists()]
    done = subprocess.run(
        [sys.executable, str(tool), "--canary", canary, *names], capture_output=True, text=True, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    return sum(int(line.split("\t")[2]) for line in done.stdout.splitlines())


_READS_LIKE_ANYBODY = """
import ctypes
library, head, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
if library.capget(head, sets) == 0:
    for capability in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: root's way past the rights of a file
        library.prctl(24, capability, 0, 0, 0)
        sets[0] &= ~(1 << capability)
        sets[1] &= ~(1 << capability)
    assert library.capset(head, sets) == 0
"""


@contextmanager
def shut_out(path: Path, source: str) -> Iterator[str]:
    """Take the right to open a folder or file from everybody; yield the source with root's way past that given up.

    A store in files asks nobody for a password: who may open it is what the system says.
    """
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        yield _READS_LIKE_ANYBODY + source
    finally:
        path.chmod(mode)


def elsewhere(source: str, program: str, items: Sequence[Item] = ()) -> Any:
    """Run a program on a connector in another process, with `items` and `NOW`; return what it leaves in `said`."""
    listed = [(item.copy_id, dict(item.locator), list(item.canaries)) for item in items]
    text = (
        f"{source}\nimport json, os, signal\nfrom datetime import datetime\n"
        "from connectors.base import Item, Level, Outcome, Selector\nfrom connectors.errors import ConnectorError\n"
        f"items = [Item(copy_id=n, locator=l, canaries=tuple(c)) for n, l, c in {listed!r}]\n"
        f"NOW = datetime.fromisoformat({NOW.isoformat()!r})\nsaid = None\n{program}\nprint(json.dumps(said))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode:
        return -done.returncode if done.returncode < 0 else pytest.fail(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])

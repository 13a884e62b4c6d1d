from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from connectors.base import Connector, Item, Level, Outcome
from connectors.errors import ReadOnlyConnector, StoreUnreachable, Timeout
from connectors.memory import Faults, FencedScope, MemoryConnector, MemoryStore
from tests.connectors.contract import NOW, Bed, Contract, captured, erase, fill, text_of


class MemoryBed(Bed):
    no_folder = "the fake has no files"

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.faults = Faults()

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        self.store.put(name, text.encode(), owner=owner)
        return {"key": name}

    def get(self, name: str) -> str | None:
        row = self.store.rows.get(name)
        return row.content.decode() if row else None

    def open(self, *, read_only: bool = False, owner: bool = True) -> MemoryConnector:
        config = {"owner_field": "owner"} if owner else {}
        return MemoryConnector(self.store, config, faults=self.faults, read_only=read_only)

    def whole(self, name: str) -> object:
        row = self.store.rows[name]
        return row.content, row.owner

    def near(self, text: str) -> list[str]:
        """The fake's index holds texts, and only the very same one is like it."""
        return sorted(self.store.search, key=lambda name: (self.store.search[name] != text.encode(), name))

    def refuse(self, name: str) -> Callable[[], None]:
        self.faults = Faults(refuses=frozenset({name}))

        def release() -> None:
            self.faults = Faults()

        return release

    def restart(self) -> None:
        raise NotImplementedError

    @contextmanager
    def stranger(self) -> Iterator[str]:
        yield f"{self.source()}\nconnector = MemoryConnector(store, {{}}, faults=Faults(unreachable=True))"

    def hits(self, canary: str) -> int:
        pieces = [*(row.content for row in self.store.rows.values()), *self.store.freed, *self.store.search.values()]
        return sum(piece.count(canary.encode()) for piece in pieces)

    def block(self) -> Callable[[], None]:
        self.faults = Faults(hangs=frozenset({"erase"}))

        def release() -> None:
            self.faults = Faults()

        return release

    def hostile(self) -> list[Mapping[str, Any]]:
        return [{"key": ""}, {"key": 1}, {}, {"key": "mia-0", "where": "1=1"}]

    def wrong(self) -> Connector:
        return MemoryConnector(self.store, {}, faults=Faults(unreachable=True))

    def source(self) -> str:
        return f"import pickle\nfrom connectors.memory import *\nstore = pickle.loads({pickle.dumps(self.store)!r})"

    def own_delete(self, name: str) -> None:
        self.store.delete(name)


@pytest.fixture
def bed() -> MemoryBed:
    return MemoryBed()


_IN_THIS_PROCESS = "the bytes of the fake live in the test's process; failing after persisting is the same fault, below"


class TestMemory(Contract):
    holds = "the fake"
    instead: ClassVar = {
        "test_killed_between_batches_it_starts_again_and_ends_the_same": _IN_THIS_PROCESS,
        "test_restarted_between_batches_nothing_counts_as_absent_and_another_process_ends_it": _IN_THIS_PROCESS,
    }
    test_killed_between_batches_it_starts_again_and_ends_the_same = None  # type: ignore[assignment]
    test_restarted_between_batches_nothing_counts_as_absent_and_another_process_ends_it = None  # type: ignore[assignment]


@pytest.mark.parametrize("fault", [Faults(fail_before=frozenset({1})), Faults(fail_after=frozenset({1}))])
def test_a_call_that_breaks_off_is_made_again_and_ends_the_same(bed: MemoryBed, fault: Faults) -> None:
    mine, _ = fill(bed, 3)
    bed.faults = fault
    connector = bed.open()
    with pytest.raises(StoreUnreachable):
        erase(connector, mine)
    assert {r.outcome for r in erase(connector, mine)} <= {Outcome.ERASED, Outcome.ALREADY_ABSENT}
    assert [bed.get(item.copy_id) for item in mine] == [None] * 3


@pytest.mark.scenario("A3", "A4", "S16", "S50")
@pytest.mark.parametrize(
    "fault",
    [
        Faults(keeps=frozenset({"mia-0"})),
        Faults(soft_deletes=frozenset({"mia-0"})),
        Faults(search_returns=frozenset({"mia-0"})),
        Faults(reclaim_does_nothing=True),
    ],
)
def test_every_lie_of_a_store_is_seen_by_verify(bed: MemoryBed, fault: Faults) -> None:
    mine, _ = fill(bed, 1)
    items = captured(bed.open(), mine)
    bed.faults = fault
    connector = bed.open()
    assert erase(connector, items)[0].outcome is Outcome.ERASED
    report = connector.reclaim(Level.L2, now=NOW, deadline=5)
    finding = bed.open(read_only=True).verify(items, Level.L2, deadline=5, reclaimed=report)[0]
    assert finding.present is True


def test_refused_and_locked_items_are_reported_and_kept(bed: MemoryBed) -> None:
    mine, _ = fill(bed, 3)
    bed.store.rows["mia-1"].locked = True
    bed.faults = Faults(refuses=frozenset({"mia-0"}))
    outcomes = [r.outcome for r in erase(bed.open(), mine)]
    assert outcomes == [Outcome.FAILED, Outcome.LOCKED, Outcome.ERASED]
    assert bed.get("mia-1") == text_of("mia-1")


def test_a_fence_refuses_late_writes_of_its_scope_only(bed: MemoryBed) -> None:
    connector = bed.open()
    assert connector.fence({"conversation": "c1"}).held
    with pytest.raises(FencedScope):
        bed.store.put("late", b"late write", conversation="c1", turn=4)
    bed.store.put("other", b"other write", conversation="c2")
    assert list(bed.store.rows) == ["other"]
    with pytest.raises(ReadOnlyConnector):
        bed.open(read_only=True).fence({"conversation": "c2"})


def test_a_hanging_verb_raises_at_its_deadline(bed: MemoryBed) -> None:
    bed.faults = Faults(hangs=frozenset({"verify"}))
    item = Item(copy_id="c", locator={"key": "k"})
    with pytest.raises(Timeout, match=r"verify did not finish within 0\.1 s"):
        bed.open().verify([item], Level.L1, deadline=0.1)

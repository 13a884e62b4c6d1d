"""The contract of `connectors/base.py` as tests; every kind runs them against its real store.

A kind's test file gives a fixture `bed` (see `Bed`) and a class that inherits `Contract`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from connectors.base import Connector, Item, Level, Outcome, Receipt, Selector
from connectors.errors import BadLocator, ConnectorError, ReadOnlyConnector
from registry.locators import canonical_locator, normal_locator

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
MIA, BEN = "user:mia", "user:ben"
ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"


class Bed(ABC):
    """A real store with rows of two people, and ways to look at it that share no code with the connector."""

    @abstractmethod
    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        """Write one item with the application's own means and return its locator."""

    @abstractmethod
    def get(self, name: str) -> str | None:
        """Read one item with the application's own means."""

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
    def hostile(self) -> list[Mapping[str, Any]]:
        """Return locators that must be refused."""

    @abstractmethod
    def wrong(self) -> Connector:
        """Return a connector whose scope or credentials cannot see the items although they exist."""

    @abstractmethod
    def source(self) -> str:
        """Return Python source that assigns a connector to `connector`, for another process."""

    def hit_bytes_remain_after_own_delete(self) -> bool:
        """Tell whether this store's own delete leaves bytes (the reason for `reclaim`)."""
        return True

    @abstractmethod
    def own_delete(self, name: str) -> None:
        """Delete one item as the store's documentation says."""


def text_of(name: str) -> str:
    return f"{name}: I moved to 17 Blackthorn Row, call me on 555-0142-{name}"


def fill(bed: Bed, count: int = 7) -> tuple[list[Item], list[Item]]:
    """Write `count` items of each person and return them."""
    made = [
        [Item(copy_id=f"{who}-{n}", locator=bed.put(f"{who}-{n}", text_of(f"{who}-{n}"), owner)) for n in range(count)]
        for who, owner in (("mia", "mia"), ("ben", BEN))
    ]
    return made[0], made[1]


def captured(connector: Connector, items: list[Item]) -> list[Item]:
    found = connector.capture(items, deadline=30)
    return [Item(copy_id=item.copy_id, locator=item.locator, canaries=tuple(found[item.copy_id])) for item in items]


def erase(connector: Connector, items: list[Item], who: str = MIA, deadline: float = 30) -> list[Receipt]:
    return connector.erase(items, owner_identifiers=[who], now=NOW, deadline=deadline)


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


class Contract:
    """What every connector must do. Class order follows the promises of `base`."""

    def test_erased_items_are_gone_and_every_neighbour_is_as_it_was(self, bed: Bed) -> None:
        mine, others = fill(bed)
        before = {item.copy_id: bed.get(item.copy_id) for item in others}
        with bed.open() as connector:
            receipts = erase(connector, mine)
        assert [r.copy_id for r in receipts] == [item.copy_id for item in mine]
        assert {r.outcome for r in receipts} == {Outcome.ERASED}
        assert {r.level for r in receipts} == {Level.L1}
        assert [bed.get(item.copy_id) for item in mine] == [None] * len(mine)
        assert {item.copy_id: bed.get(item.copy_id) for item in others} == before
        assert None not in before.values()

    def test_erasing_twice_ends_as_erasing_once(self, bed: Bed) -> None:
        mine, _ = fill(bed)
        with bed.open() as connector:
            erase(connector, mine[:3])
            again = erase(connector, mine)
        assert [r.outcome for r in again] == [Outcome.ALREADY_ABSENT] * 3 + [Outcome.ERASED] * (len(mine) - 3)

    @pytest.mark.scenario("D7", "A11")
    def test_what_never_existed_is_absent_after_a_read_in_the_right_scope(self, bed: Bed) -> None:
        mine, _ = fill(bed, 1)
        with bed.open() as connector:
            erase(connector, mine)
            receipt = erase(connector, mine)[0]
        assert receipt.outcome is Outcome.ALREADY_ABSENT
        assert receipt.level is Level.L1

    @pytest.mark.scenario("S37")
    def test_not_seen_from_the_wrong_scope_is_never_reported_as_absent(self, bed: Bed) -> None:
        mine, _ = fill(bed, 2)
        with bed.wrong() as connector:
            try:
                outcomes = {r.outcome for r in erase(connector, mine)}
            except ConnectorError:
                outcomes = {Outcome.FAILED}
        assert outcomes == {Outcome.FAILED}
        assert bed.get("mia-0") is not None

    @pytest.mark.scenario("S37")
    def test_looking_from_the_wrong_scope_is_never_an_answer(self, bed: Bed) -> None:
        mine, _ = fill(bed, 2)
        with bed.wrong() as connector:
            with pytest.raises(ConnectorError):
                list(connector.discover(Selector(identifiers=(MIA,)), deadline=30))
            with pytest.raises(ConnectorError):
                list(connector.walk(deadline=30))
            try:
                present = {finding.present for finding in connector.verify(mine, Level.L1, deadline=30)}
            except ConnectorError:
                present = {None}
        assert False not in present

    def test_an_item_of_somebody_else_is_left_untouched(self, bed: Bed) -> None:
        mine, others = fill(bed, 2)
        with bed.open() as connector:
            receipts = erase(connector, [mine[0], others[0], mine[1]])
        expected = [Outcome.ERASED, Outcome.OWNER_MISMATCH, Outcome.ERASED]
        assert [r.outcome for r in receipts] == expected
        assert receipts[1].level is None
        assert bed.get("ben-0") == text_of("ben-0")

    def test_owners_are_compared_whole_and_bare(self, bed: Bed) -> None:
        mine, others = fill(bed, 1)  # stored as "mia" and as "user:ben"
        with bed.open() as connector:
            assert erase(connector, mine, MIA)[0].outcome is Outcome.ERASED
            assert erase(connector, others, BEN)[0].outcome is Outcome.ERASED

    @pytest.mark.scenario("C4", "C5")
    def test_a_bad_item_in_the_middle_fails_alone(self, bed: Bed) -> None:
        mine, _ = fill(bed, 4)
        bad = Item(copy_id="bad", locator=bed.hostile()[0])
        with bed.open() as connector:
            receipts = erase(connector, [*mine[:2], bad, *mine[2:]])
        assert [r.outcome for r in receipts].count(Outcome.ERASED) == 4
        assert receipts[2].outcome is Outcome.FAILED
        assert receipts[2].level is None

    def test_hostile_locators_are_refused_and_touch_nothing(self, bed: Bed) -> None:
        _, others = fill(bed, 2)
        for locator in bed.hostile():
            with bed.open() as connector:
                with pytest.raises(BadLocator):
                    connector.check_locator(locator)
                receipt = erase(connector, [Item(copy_id="bad", locator=locator)])[0]
            assert receipt.outcome is Outcome.FAILED
        assert [bed.get(item.copy_id) for item in others] == [text_of(item.copy_id) for item in others]
        assert bed.get("mia-0") == text_of("mia-0")

    def test_discover_finds_every_item_of_the_owner_and_no_other(self, bed: Bed) -> None:
        mine, _ = fill(bed)
        with bed.open() as connector:
            found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=30))
            assert len(found) == len(mine)
            items = [Item(copy_id=str(n), locator=locator) for n, locator in enumerate(found)]
            assert {r.outcome for r in erase(connector, items)} == {Outcome.ERASED}
        assert [bed.get(item.copy_id) for item in mine] == [None] * len(mine)

    def test_a_walk_names_every_item_as_it_may_be_registered(self, bed: Bed) -> None:
        # By these names copies are found that a backup brought back; another form of them would find nothing.
        mine, others = fill(bed, 2)
        with bed.open(read_only=True) as connector:
            kind, walked = connector.capabilities().kind, list(connector.walk(deadline=30))
        named = {canonical_locator(place if kind == "threads" else normal_locator(kind, place)) for place in walked}
        assert {canonical_locator(item.locator) for item in (*mine, *others)} <= named

    def test_export_returns_each_item_once_and_says_which_are_absent(self, bed: Bed) -> None:
        mine, others = fill(bed, 2)
        with bed.open() as connector:
            erase(connector, mine[:1])
            content = dict(connector.export([*mine, *others], deadline=30))
        assert content["mia-0"] is None
        for name in ("mia-1", "ben-0", "ben-1"):
            exported = content[name]
            assert exported is not None
            assert text_of(name).encode() in exported

    def test_the_stores_own_delete_leaves_bytes_and_ours_does_not(self, bed: Bed) -> None:
        mine, others = fill(bed)
        with bed.open() as connector:
            items = captured(connector, mine)
            assert all(item.canaries for item in items)
        bed.own_delete("mia-0")
        assert (bed.hits(text_of("mia-0")) > 0) == bed.hit_bytes_remain_after_own_delete()
        with bed.open() as connector:
            erase(connector, items)
            report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        assert report.level is Level.L2
        with bed.open(read_only=True) as verifier:
            findings = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)
        assert {(f.level, f.present) for f in findings} == {(Level.L2, False)}
        assert [bed.hits(text_of(item.copy_id)) for item in mine] == [0] * len(mine)
        assert [bed.get(item.copy_id) for item in others] == [text_of(item.copy_id) for item in others]

    @pytest.mark.scenario("A3", "S50")
    def test_verify_reports_what_is_still_there(self, bed: Bed) -> None:
        mine, _ = fill(bed, 2)
        with bed.open() as connector:
            items = captured(connector, mine)
            erase(connector, items[:1])
        with bed.open(read_only=True) as verifier:
            findings = verifier.verify(items, Level.L1, deadline=30)
        assert [(f.level, f.present) for f in findings] == [(Level.L1, False), (None, True)]

    def test_no_level_is_claimed_that_nobody_can_check(self, bed: Bed) -> None:
        mine, _ = fill(bed, 1)
        with bed.open() as connector:
            items = captured(connector, mine)
            erase(connector, items)
            report = connector.reclaim(Level.L3, now=NOW, deadline=30)
        with bed.open(read_only=True) as verifier:
            finding = verifier.verify(items, Level.L3, deadline=30, reclaimed=report)[0]
            reach = verifier.capabilities().verify_level
        assert finding.level == reach
        assert (finding.could_not_check is not None) == (reach < Level.L3)
        assert finding.present is (False if reach is Level.L3 else None)

    def test_residue_names_each_canary_that_is_there_and_none_that_is_not(self, bed: Bed) -> None:
        fill(bed, 1)
        with bed.open(read_only=True) as connector:
            found = connector.residue([text_of("mia-0").encode(), b"nobody ever wrote this"], deadline=30)
        assert {residue.canary for residue in found} == {0}
        assert all(residue.count > 0 for residue in found)
        assert "mia" not in "".join(residue.where for residue in found)

    def test_a_store_that_blocks_ends_at_the_deadline_and_recovers(self, bed: Bed) -> None:
        mine, _ = fill(bed, 1)
        release = bed.block()
        started = datetime.now(UTC)
        try:
            with bed.open() as connector:
                try:
                    outcome = erase(connector, mine, deadline=0.7)[0].outcome
                except ConnectorError:
                    outcome = Outcome.FAILED
        finally:
            release()
        assert outcome is Outcome.FAILED
        assert (datetime.now(UTC) - started).total_seconds() < 5
        assert bed.get("mia-0") == text_of("mia-0")
        with bed.open() as connector:
            assert erase(connector, mine)[0].outcome is Outcome.ERASED

    def test_a_read_only_connector_changes_nothing(self, bed: Bed) -> None:
        mine, _ = fill(bed, 1)
        with bed.open(read_only=True) as connector:
            with pytest.raises(ReadOnlyConnector):
                erase(connector, mine)
            with pytest.raises(ReadOnlyConnector):
                connector.reclaim(Level.L2, now=NOW, deadline=5)
        assert bed.get("mia-0") == text_of("mia-0")

    @pytest.mark.scenario("S40")
    def test_killed_between_batches_it_starts_again_and_ends_the_same(self, bed: Bed) -> None:
        mine, others = fill(bed)
        with bed.open() as connector:
            items = captured(connector, mine)
        program = (
            f"{bed.source()}\nimport os, signal\nfrom datetime import datetime, UTC\nfrom connectors.base import Item\n"
            f"items = {[(item.copy_id, dict(item.locator)) for item in items]!r}\n"
            "items = [Item(copy_id=name, locator=locator) for name, locator in items]\n"
            "for n, item in enumerate(items):\n"
            "    if n == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
            f"    connector.erase([item], owner_identifiers=[{MIA!r}], now=datetime.now(UTC), deadline=30)\n"
        )
        killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
        assert killed.returncode == -9, killed.stderr
        with bed.open() as connector:
            receipts = erase(connector, items)
            report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        assert [r.outcome for r in receipts] == [Outcome.ALREADY_ABSENT] * 3 + [Outcome.ERASED] * 4
        with bed.open(read_only=True) as verifier:
            findings = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)
        assert {(f.level, f.present) for f in findings} == {(Level.L2, False)}
        assert [bed.get(item.copy_id) for item in others] == [text_of(item.copy_id) for item in others]

    def test_a_fence_is_claimed_only_where_the_store_keeps_it(self, bed: Bed) -> None:
        mine, others = fill(bed, 1)
        with bed.open() as connector:
            report = connector.fence(mine[0].locator)
            assert report.held == connector.capabilities().fence
            assert report.detail
            assert erase(connector, mine)[0].outcome is Outcome.ERASED
        if report.held:
            with pytest.raises(Exception, match=r"erased|fenced"):
                bed.put("mia-0", "again", "mia")
            assert bed.get("mia-0") is None
        assert [bed.get(item.copy_id) for item in others] == [text_of("ben-0")]

    def test_check_erases_its_own_canary_and_says_the_level(self, bed: Bed) -> None:
        fill(bed, 1)
        with bed.open() as connector:
            report = connector.check(now=NOW, deadline=30)
            reach = connector.capabilities().verify_level
        assert report.findings == ()
        assert (report.reachable, report.can_erase, report.owner_check) == (True, True, "enforced")
        assert report.level_reached == reach
        assert bed.hits("muniment canary") == 0

    def test_nothing_printed_holds_a_persons_data(self, bed: Bed) -> None:
        mine, others = fill(bed, 2)
        with bed.open() as connector:
            items = captured(connector, mine)
            receipts = erase(connector, [*items, *others, Item(copy_id="bad", locator=bed.hostile()[0])])
            report = connector.reclaim(Level.L2, now=NOW, deadline=30)
            findings = connector.verify(items, Level.L2, deadline=30, reclaimed=report)
        said = " ".join(f"{r.method} {r.detail}" for r in receipts) + repr(report) + "".join(f.how for f in findings)
        for secret in ("Blackthorn", "mia", "ben", "555-0142"):
            assert secret not in said
        assert "Blackthorn" not in repr(items)
        assert "locator" not in repr(items)

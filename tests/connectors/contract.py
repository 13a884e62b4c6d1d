"""The contract of `connectors/base.py` as tests; every kind runs them against its real store.

A kind's test file gives a fixture `bed` (see `beds.Bed`) and a class that inherits `Contract`. Which test shows which
clause is marked on it; `test_connectors_contract.py` fails where a kind leaves one out without saying why (`instead`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from connectors.base import Item, Level, Outcome, Selector
from connectors.errors import BadLocator, ReadOnlyConnector
from registry.locators import canonical_locator, normal_locator
from tests.connectors.beds import (
    BEN,
    MIA,
    NOW,
    ROOT,
    SHARED,
    Bed,
    captured,
    erase,
    fill,
    oracle,
    text_of,
)
from tests.connectors.clauses import clause
from tests.connectors.troubles import Troubles, reached

OF_PROCESSES = frozenset(
    {
        "test_restarted_between_batches_nothing_counts_as_absent_and_another_process_ends_it",
        "test_whom_the_store_refuses_sees_nothing_changes_nothing_and_proves_nothing",
        "test_a_part_of_the_store_that_may_not_be_read_is_no_proof_that_nothing_is_in_it",
        "test_killed_between_batches_it_starts_again_and_ends_the_same",
        "test_a_store_that_blocks_ends_at_the_deadline_and_recovers",
        "test_no_verb_outlasts_its_deadline_in_a_store_that_blocks_and_none_makes_an_absence_of_it",
    }
)
"""Tests that start other processes or wait for a deadline: one way of each kind runs them always, its other ways in
`make test-all`."""

OF_EVERY_WAY = frozenset(
    {
        "test_erased_items_are_gone_and_every_neighbour_is_as_it_was",
        "test_the_stores_own_delete_leaves_bytes_and_ours_does_not",
        "test_an_item_of_somebody_else_is_left_untouched",
        "test_not_seen_from_the_wrong_scope_is_never_reported_as_absent",
    }
)
"""Tests that `make test` runs of every way. Of the others it runs one of three, always the same, of ways that are
not the first of their kind; `make test-all` all."""

__all__ = [
    "BEN",
    "MIA",
    "NOW",
    "OF_EVERY_WAY",
    "OF_PROCESSES",
    "ROOT",
    "SHARED",
    "Bed",
    "Contract",
    "captured",
    "erase",
    "fill",
    "oracle",
    "text_of",
]


class Contract(Troubles):
    holds: ClassVar[str] = ""
    """Which kind, and in which of its ways, a class holds to the contract: `sql, SQLite`."""
    instead: ClassVar[Mapping[str, str]] = {}
    """Why a class shows something else, or nothing, in place of one of these tests."""
    slow: ClassVar[frozenset[str]] = frozenset()
    """Tests that `make test-all` alone runs of this class."""

    """What every connector must do. Class order follows the promises of `base`."""

    @clause("erase in batches", "neighbours untouched")
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

    @clause("neighbours untouched")
    def test_neighbours_are_equal_whole_and_a_search_finds_them_as_before(self, bed: Bed) -> None:
        mine, others = fill(bed, 4, others=4 if bed.no_search else 30)
        with bed.open() as connector:
            items = captured(connector, mine)
        gone, asked = {item.copy_id for item in mine}, [text_of(item.copy_id) for item in others[::7]]
        kept = {item.copy_id: bed.whole(item.copy_id) for item in others}
        near = [] if bed.no_search else [bed.near(text) for text in asked]
        # A search that did not find what is erased would show nothing by not finding it afterwards.
        assert all(gone <= set(each) for each in near)
        with bed.open() as connector:
            assert {r.outcome for r in erase(connector, items)} == {Outcome.ERASED}
            connector.reclaim(Level.L2, now=NOW, deadline=30)
        assert {item.copy_id: bed.whole(item.copy_id) for item in others} == kept
        assert None not in kept.values()
        if bed.no_search:
            with pytest.raises(NotImplementedError):
                bed.near("anything")
            return
        assert [bed.near(text) for text in asked] == [[name for name in each if name not in gone] for each in near]
        assert gone.isdisjoint(bed.near(text_of("mia-0")))

    @clause("idempotent repeat")
    def test_erasing_twice_ends_as_erasing_once(self, bed: Bed) -> None:
        mine, _ = fill(bed)
        with bed.open() as connector:
            erase(connector, mine[:3])
            again = erase(connector, mine)
        assert [r.outcome for r in again] == [Outcome.ALREADY_ABSENT] * 3 + [Outcome.ERASED] * (len(mine) - 3)

    @clause("wrong scope")
    @pytest.mark.scenario("D7", "A11")
    def test_what_never_existed_is_absent_after_a_read_in_the_right_scope(self, bed: Bed) -> None:
        mine, _ = fill(bed, 1)
        with bed.open() as connector:
            erase(connector, mine)
            receipt = erase(connector, mine)[0]
        assert receipt.outcome is Outcome.ALREADY_ABSENT
        assert receipt.level is Level.L1

    @clause("wrong scope")
    @pytest.mark.scenario("S37")
    def test_what_is_there_shows_the_place_by_its_locator_alone_whoever_cannot_write(self, bed: Bed) -> None:
        """What tells a place apart from an empty one where everything is absent alike (`erasure.place`)."""
        mine, others = fill(bed, 2)
        with bed.open() as connector:
            erase(connector, mine)
        with bed.open(read_only=True) as reader:
            findings = reader.verify([*mine, *others], Level.L1, deadline=30)
        assert [bool(finding.present) for finding in findings] == [False, False, True, True]

    @clause("ownership check")
    def test_an_item_of_somebody_else_is_left_untouched(self, bed: Bed) -> None:
        mine, others = fill(bed, 2)
        with bed.open() as connector:
            receipts = erase(connector, [mine[0], others[0], mine[1]])
        expected = [Outcome.ERASED, Outcome.OWNER_MISMATCH, Outcome.ERASED]
        assert [r.outcome for r in receipts] == expected
        assert receipts[1].level is None
        assert bed.get("ben-0") == text_of("ben-0")

    @clause("ownership check")
    def test_owners_are_compared_whole_and_bare(self, bed: Bed) -> None:
        mine, others = fill(bed, 1)  # stored as "mia" and as "user:ben"
        with bed.open() as connector:
            assert erase(connector, mine, MIA)[0].outcome is Outcome.ERASED
            assert erase(connector, others, BEN)[0].outcome is Outcome.ERASED

    @clause("partial failure in the middle of a batch")
    @pytest.mark.scenario("C4", "C5")
    def test_a_bad_item_in_the_middle_fails_alone(self, bed: Bed) -> None:
        mine, _ = fill(bed, 4)
        bad = Item(copy_id="bad", locator=bed.hostile()[0])
        with bed.open() as connector:
            receipts = erase(connector, [*mine[:2], bad, *mine[2:]])
        assert [r.outcome for r in receipts].count(Outcome.ERASED) == 4
        assert receipts[2].outcome is Outcome.FAILED
        assert receipts[2].level is None

    @clause("hostile locators")
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

    @clause("discover")
    def test_discover_finds_every_item_of_the_owner_and_no_other(self, bed: Bed) -> None:
        mine, _ = fill(bed)
        with bed.open() as connector:
            found = list(connector.discover(Selector(identifiers=(MIA,)), deadline=30))
            assert len(found) == len(mine)
            items = [Item(copy_id=str(n), locator=locator) for n, locator in enumerate(found)]
            assert {r.outcome for r in erase(connector, items)} == {Outcome.ERASED}
        assert [bed.get(item.copy_id) for item in mine] == [None] * len(mine)

    @clause("discover")
    def test_a_walk_names_every_item_as_it_may_be_registered(self, bed: Bed) -> None:
        # By these names copies are found that a backup brought back; another form of them would find nothing.
        mine, others = fill(bed, 2)
        with bed.open(read_only=True) as connector:
            kind, walked = connector.capabilities().kind, list(connector.walk(deadline=30))
        named = {canonical_locator(place if kind == "threads" else normal_locator(kind, place)) for place in walked}
        assert {canonical_locator(item.locator) for item in (*mine, *others)} <= named

    @clause("export")
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

    @clause("reclaim", "residue by an independent byte scan")
    def test_the_stores_own_delete_leaves_bytes_and_ours_does_not(self, bed: Bed) -> None:
        """Where the bytes cannot be reached from here, they are not said to be gone."""
        mine, others = fill(bed)
        with bed.open() as connector:
            reach = connector.capabilities().verify_level
            items = captured(connector, mine)
            assert all(item.canaries for item in items)
        bed.own_delete("mia-0")
        assert (bed.hits(text_of("mia-0")) > 0) == bed.hit_bytes_remain_after_own_delete()
        with bed.open() as connector:
            erase(connector, items)
            report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        assert report.level is min(Level.L2, reach)
        with bed.open(read_only=True) as verifier:
            findings = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)
        assert {(f.level, f.present) for f in findings} == {reached(reach)}
        assert all(f.could_not_check for f in findings) == (reach < Level.L2)
        if reach >= Level.L2:
            assert [bed.hits(text_of(item.copy_id)) for item in mine] == [0] * len(mine)
        assert [bed.get(item.copy_id) for item in others] == [text_of(item.copy_id) for item in others]

    @clause("verify at each level it declares")
    @pytest.mark.scenario("A3", "S50")
    def test_verify_reports_what_is_still_there(self, bed: Bed) -> None:
        mine, _ = fill(bed, 2)
        with bed.open() as connector:
            items = captured(connector, mine)
            erase(connector, items[:1])
        with bed.open(read_only=True) as verifier:
            findings = verifier.verify(items, Level.L1, deadline=30)
        assert [(f.level, f.present) for f in findings] == [(Level.L1, False), (None, True)]

    @clause("verify at each level it declares")
    def test_each_level_is_shown_up_to_what_can_be_checked_and_none_above(self, bed: Bed) -> None:
        mine, _ = fill(bed, 1)
        with bed.open() as connector:
            items = captured(connector, mine)
            erase(connector, items)
            report = connector.reclaim(Level.L3, now=NOW, deadline=30)
        with bed.open(read_only=True) as verifier:
            reach = verifier.capabilities().verify_level
            for asked in (Level.L1, Level.L2, Level.L3):
                finding = verifier.verify(items, asked, deadline=30, reclaimed=report)[0]
                assert finding.level == min(asked, reach)
                assert finding.present is (False if asked <= reach else None)
                assert (finding.could_not_check is not None) == (asked > reach)

    @clause("residue by an independent byte scan")
    def test_residue_names_each_canary_that_is_there_and_none_that_is_not(self, bed: Bed) -> None:
        fill(bed, 1)
        with bed.open(read_only=True) as connector:
            found = connector.residue([text_of("mia-0").encode(), b"nobody ever wrote this"], deadline=30)
        assert {residue.canary for residue in found} == {0}
        assert all(residue.count > 0 for residue in found)
        assert "mia" not in "".join(residue.where for residue in found)

    @clause("verify at each level it declares")
    def test_a_read_only_connector_changes_nothing(self, bed: Bed) -> None:
        mine, _ = fill(bed, 1)
        with bed.open(read_only=True) as connector:
            with pytest.raises(ReadOnlyConnector):
                erase(connector, mine)
            with pytest.raises(ReadOnlyConnector):
                connector.reclaim(Level.L2, now=NOW, deadline=5)
        assert bed.get("mia-0") == text_of("mia-0")

    @clause("fence")
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

    @clause("a store tries itself out")
    def test_check_erases_its_own_canary_and_says_the_level(self, bed: Bed) -> None:
        fill(bed, 1)
        with bed.open() as connector:
            report = connector.check(now=NOW, deadline=30)
            reach = connector.capabilities().verify_level
        assert report.findings == ()
        assert (report.reachable, report.can_erase, report.owner_check) == (True, True, "enforced")
        assert report.level_reached == reach
        assert bed.hits("muniment canary") == 0

    @clause("nothing said about a person")
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

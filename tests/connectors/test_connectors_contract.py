"""No kind leaves a clause of the contract out: every class runs every test of it, or says why it shows another one."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.base import KINDS
from tests.connectors.beds import Bed
from tests.connectors.clauses import CLAUSES, clauses_of
from tests.connectors.contract import ROOT, Contract

HERE = Path(__file__).parent
PROMISED = (
    "discover, export, erase in batches, idempotent repeat, reclaim, verify at each level it declares, residue by an"
    " independent byte scan, fence, ownership check, time-outs, partial failure in the middle of a batch, kill -9"
    " between batches, store restarted in between, wrong credentials, wrong scope, neighbours untouched"
)
"""What the contract was asked to show, in the words of the order."""
TESTS = {name: test for name, test in inspect.getmembers(Contract, inspect.isfunction) if name.startswith("test_")}


def held() -> Iterator[type[Contract]]:
    """Yield every class that pytest collects, of every file beside this one."""
    waiting = [Contract]
    while waiting:
        waiting += (each := waiting.pop()).__subclasses__()
        if each.__name__.startswith("Test"):
            yield each


RESTARTED = "test_restarted_between_batches_nothing_counts_as_absent_and_another_process_ends_it"
SLOW_FOR_ALL = {("s3", RESTARTED)}
"""SeaweedFS takes ten seconds to come back."""


@pytest.fixture(scope="module")
def classes() -> dict[str, type[Contract]]:
    for file in sorted(HERE.glob("test_*.py")):
        importlib.import_module(f"tests.connectors.{file.stem}")
    return {each.holds: each for each in held()}


def test_every_clause_that_was_promised_has_a_test_and_every_test_a_clause() -> None:
    assert set(PROMISED.split(", ")) <= set(CLAUSES)
    assert {clause for test in TESTS.values() for clause in clauses_of(test)} == set(CLAUSES)
    assert [name for name, test in TESTS.items() if not clauses_of(test)] == []


def test_every_kind_runs_every_test_or_says_why_not(classes: dict[str, type[Contract]]) -> None:
    holes = []
    for holds, each in classes.items():
        for name, test in TESTS.items():
            is_own = getattr(each, name) is not test
            if is_own != bool(each.instead.get(name)):
                holes.append((holds, clauses_of(test), name))
        assert set(each.instead) <= set(TESTS), "a reason for a test that is no more"
        assert not [mark.name for mark in getattr(each, "pytestmark", ()) if mark.name in {"skip", "skipif", "xfail"}]
    assert holes == []
    kinds = {holds.partition(",")[0] for holds in classes}
    quick = {(holds.partition(",")[0], name) for holds, each in classes.items() for name in set(TESTS) - each.slow}
    assert {(kind, name) for kind in kinds for name in TESTS} - quick == SLOW_FOR_ALL


def test_every_kind_of_the_interface_is_held_to_the_contract_in_each_of_its_ways(
    classes: dict[str, type[Contract]],
) -> None:
    assert "" not in classes
    assert len(classes) == len(list(held())), "two classes hold the same"
    # An agent's store is driven by the kind behind it, in the agent's process; the service contacts nothing.
    assert {holds.partition(",")[0] for holds in classes} - {"the fake", "the example of the documentation"} == (
        set(KINDS) - {"agent"}
    )
    page = (ROOT / "docs" / "connectors.md").read_text("utf-8")
    table = re.findall(r"^\| (`\w+`[^|]*?) \|", page.partition("\n## ")[0], re.MULTILINE)
    ways = {row.replace("`", "").strip() for row in table} - {"agent"}
    told = set(classes) - {"the fake", "the example of the documentation"}
    # A kind whose ways differ in what they hold and not in what they promise has one row.
    assert {way for way in ways if not any(holds.startswith(way) for holds in told)} == set()
    assert {holds for holds in told if not any(holds.startswith(way.partition(" over")[0]) for way in ways)} == set()


def test_what_a_kind_cannot_have_stands_in_its_documentation(classes: dict[str, type[Contract]]) -> None:
    page = (ROOT / "docs" / "connectors.md").read_text("utf-8")
    table = " ".join(page.partition("## What a kind cannot show")[2].partition("\n## ")[0].split())
    for holds, each in classes.items():
        for why in each.instead.values() if holds != "the fake" else ():
            assert why in table, (holds, why)
    beds = list(Bed.__subclasses__())
    for bed in beds:
        beds += bed.__subclasses__()
    reasons = {why for bed in beds for why in (bed.no_credentials, bed.all_or_nothing) if why}
    assert len(reasons) >= 4
    assert {why for why in reasons if why not in table} == set()


def test_each_kinds_page_says_what_goes_what_stays_to_which_level_what_it_locks_and_how_long() -> None:
    page = (ROOT / "docs" / "connectors.md").read_text("utf-8")
    head = page.partition("\n## ")[0]
    levels = {
        row[0].partition("`")[0]: row[1:]
        for row in re.findall(r"^\| `(\w+`[^|]*)\|([^|]+)\|([^|]+)\|([^|]+)\|", head, re.MULTILINE)
    }
    assert set(levels) == set(KINDS)
    for kind, said in levels.items():
        assert all(re.search(r"L[0-3]|nothing to do|\bno\b|stated", each) for each in said), kind
    pages = re.findall(r"^## `(\w+)`([^\n]*)\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    assert {kind for kind, _, _ in pages} == set(KINDS)
    for kind, way, text in pages:
        bold = " ".join(re.findall(r"\*\*([^*]+)\*\*", text)).lower()
        missing = [word for word in ("deletes", "leaves", "locks", "how long") if word not in bold]
        assert missing == [], (kind, way)
        assert re.search(r"\*\*How long\*\*:? [^*]*?(\d s|as the kind behind)", text), (kind, way)


def test_no_connector_lists_files_by_a_pattern_that_passes_over_what_may_not_be_read() -> None:
    found = [
        file.name
        for file in sorted((ROOT / "connectors").glob("*.py"))
        if re.search(r"\.rglob\(|\*\*/", file.read_text("utf-8"))
    ]
    assert found == []

"""Facts and lines as columns give back what they were made from, and a plan made of them is the same plan."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erasure.facts import ArtifactFact, ArtifactFacts, SourceFact
from erasure.lines import Lines
from erasure.plan import build, in_order
from erasure.spool import Spool
from registry.ids import artifact_name
from retention.decide import Hold
from tests.erasure.test_erasure_plan import ADA, BOB, NOW, artifact, inputs, key

_moments = st.none() | st.integers(-(10**15), 10**15).map(lambda at: NOW + timedelta(microseconds=at))


@st.composite
def _facts(draw: st.DrawFn) -> list[ArtifactFact]:
    found = []
    for number in draw(st.lists(st.integers(1, 60), unique=True, max_size=25)):
        plain = artifact(
            number,
            draw(st.sampled_from(["note", "summary", "memory", "index", "money"])),
            draw(st.sampled_from(["db", "files", "vectors", "gone"])),
            sources=tuple(draw(st.lists(st.integers(1, 60), unique=True, max_size=2))),
            subjects=draw(st.sampled_from([frozenset({ADA}), frozenset({ADA, BOB}), frozenset({ADA, 99})])),
        )
        item = replace(
            plain.item,
            observed=draw(_moments),
            last_activity=draw(_moments),
            consent_until=draw(_moments),
            confirmed=draw(_moments),
            confidence=draw(st.none() | st.floats(0, 1)),
            events=draw(st.sampled_from([{}, {"aa": NOW}, {"aa": None, "bb": NOW}])),
            scopes=draw(st.sampled_from([frozenset[str](), frozenset({"aa"})])),
        )
        entry = draw(st.none() | st.booleans())
        source = SourceFact(kind="e", ref=7, name="entry:7", status="live", about_subjects=bool(entry))
        name = draw(st.sampled_from([f"art_{number}", artifact_name(number), f"kopie-ü-{number}"]))
        more = plain.sources if entry is None else (*plain.sources, source)
        found.append(replace(plain, name=name, item=item, sources=more, asserted_by=draw(st.none() | st.just("t"))))
    return found


def columns_of(facts: list[ArtifactFact]) -> ArtifactFacts:
    columns = ArtifactFacts()
    for fact in facts:
        columns.append(fact)
    return columns


@given(_facts())
def test_facts_come_back_as_they_were(facts: list[ArtifactFact]) -> None:
    columns = columns_of(facts)
    assert list(columns) == facts
    assert columns[1:3] == facts[1:3]
    assert list(columns.derived()) == [fact for fact in facts if fact.sources]
    assert columns.stores() == {fact.store for fact in facts}


@given(_facts(), st.frozensets(st.integers(1, 60)))
def test_a_plan_of_columns_is_the_plan_of_the_values(facts: list[ArtifactFact], held: frozenset[int]) -> None:
    more: dict[str, Any] = {"keys": (key("k1"), key("k2", "identity")), "holds": (Hold("h", artifacts=held),)}
    plain = build(inputs(*facts, **more))
    packed = build(replace(inputs(**more), artifacts=columns_of(facts)))
    assert packed == plain
    assert packed.hash == plain.hash
    assert build(inputs(*reversed(facts), **more)).hash == plain.hash


@given(_facts(), st.frozensets(st.integers(1, 60)))
def test_lines_in_columns_are_the_lines_in_their_order(facts: list[ArtifactFact], held: frozenset[int]) -> None:
    more: dict[str, Any] = {"keys": (key("k1"), key("k2", "identity")), "holds": (Hold("h", artifacts=held),)}
    lines = list(build(inputs(*facts, **more)).copies)
    packed = in_order(reversed(lines), most=0)
    assert isinstance(packed, Lines)
    assert list(packed) == lines
    assert packed[-1] == lines[-1]
    assert packed[1:] == tuple(lines[1:])
    assert len(packed) == len(lines)


@pytest.mark.parametrize("others", [1, 1_000])
def test_a_line_costs_fifty_bytes_whoever_else_it_is_about(others: int) -> None:
    # Each circle of others made a kind of line of its own, a quarter of a kilobyte large.
    count = 1_000
    plain = build(inputs(*(artifact(one, subjects=frozenset({ADA, 100 + one % others})) for one in range(count))))
    tracemalloc.start()
    lines = in_order(plain.copies, most=0)
    of_lines = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert list(lines) == list(plain.copies)
    assert of_lines < 50 * count


def test_a_fact_costs_a_hundred_bytes_and_its_line_half_of_that() -> None:
    count = 1_000
    values = [artifact(number, subjects=frozenset({ADA})) for number in range(count)]
    plain = build(inputs(*values)).copies
    tracemalloc.start()
    facts = columns_of(values)
    of_facts = tracemalloc.get_traced_memory()[0]
    lines = in_order(plain, most=0)
    of_lines = tracemalloc.get_traced_memory()[0] - of_facts
    tracemalloc.stop()
    assert len(facts) == len(lines) == count
    assert of_facts < 100 * count
    assert of_lines < 50 * count


def test_a_spool_gives_back_what_it_was_given_in_memory_and_beyond() -> None:
    with Spool() as spool:
        assert spool.get(0) is None
        for number in range(40, 0, -2):
            spool.put(number, bytes([number]) * 100_000)
        for number in (1, 2, 17, 40, 3, 38):
            expected = None if number % 2 else bytes([number]) * 100_000
            assert spool.get(number) == expected
        assert spool.get(41) is None

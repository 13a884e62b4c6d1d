"""Pure graph rules against naive definitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from registry.lineage import closure, depths, propagate, reverse

graphs = st.dictionaries(st.integers(0, 12), st.frozensets(st.integers(0, 12), max_size=4), max_size=13)


def paths_from(root: int, edges: dict[int, frozenset[int]]) -> set[int]:
    """The naive closure: grow until nothing is added."""
    seen = {root}
    while True:
        more = {child for node in seen for child in edges.get(node, ())} | seen
        if more == seen:
            return seen
        seen = more


@given(graphs, st.frozensets(st.integers(0, 12), max_size=3))
def test_the_closure_is_everything_that_can_be_reached(edges: dict[int, frozenset[int]], roots: frozenset[int]) -> None:
    assert closure(roots, edges) == set().union(*(paths_from(root, edges) for root in roots))


@given(graphs, st.dictionaries(st.integers(0, 12), st.frozensets(st.integers(100, 104)), max_size=13))
def test_subjects_reach_exactly_the_descendants(
    edges: dict[int, frozenset[int]], own: dict[int, frozenset[int]]
) -> None:
    full = propagate(own, edges)
    for node in range(13):
        behind = [subjects for root, subjects in own.items() if node in paths_from(root, edges)]
        assert full.get(node, frozenset()) == frozenset().union(*behind)


@given(graphs)
def test_a_child_is_deeper_than_its_parent_unless_they_share_a_cycle(edges: dict[int, frozenset[int]]) -> None:
    depth = depths(range(13), edges)
    for parent, children in edges.items():
        for child in children:
            if parent in paths_from(child, edges):
                assert depth[child] == depth[parent]
            else:
                assert depth[child] > depth[parent]


def test_depth_counts_the_longest_way_from_a_source() -> None:
    edges = {1: {2, 4}, 2: {3}, 3: {4}}
    assert depths([1, 2, 3, 4], edges) == {1: 0, 2: 1, 3: 2, 4: 3}
    assert depths([2, 4], edges) == {2: 0, 4: 0}


def test_a_chain_of_many_thousands_needs_no_recursion() -> None:
    chain = {number: {number + 1} for number in range(20_000)}
    assert depths(range(20_001), chain)[20_000] == 20_000
    assert len(propagate({0: frozenset({1})}, chain)) == 20_001


@given(graphs)
def test_reversing_twice_gives_the_edges_back(edges: dict[int, frozenset[int]]) -> None:
    assert reverse(reverse(edges)) == {node: set(children) for node, children in edges.items() if children}

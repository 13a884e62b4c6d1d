"""Closure, propagation and depth over a derivation graph in memory.

Guarantees: pure; cycles are tolerated everywhere and change no result. Edges run from a parent (the source) to a child
(what was made from it). Does not load anything; `registry.graph` reads the edges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TypeVar

Node = TypeVar("Node")
Subject = TypeVar("Subject")
Edges = Mapping[Node, Iterable[Node]]
"""Node → its children; the reverse map gives ancestors."""


def reverse(edges: Mapping[Node, Iterable[Node]]) -> dict[Node, set[Node]]:
    """The same edges from child to parents."""
    turned: dict[Node, set[Node]] = {}
    for parent, children in edges.items():
        for child in children:
            turned.setdefault(child, set()).add(parent)
    return turned


def closure(roots: Iterable[Node], edges: Mapping[Node, Iterable[Node]]) -> set[Node]:
    """The roots and everything that can be reached from them."""
    seen = set(roots)
    waiting = deque(seen)
    while waiting:
        for child in edges.get(waiting.popleft(), ()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
    return seen


def propagate(
    own: Mapping[Node, frozenset[Subject]], edges: Mapping[Node, Iterable[Node]]
) -> dict[Node, frozenset[Subject]]:
    """Every node's subjects: its own and those of all its ancestors. Ends because sets only grow."""
    full = dict(own)
    waiting = deque(own)
    queued = set(own)
    while waiting:
        parent = waiting.popleft()
        queued.discard(parent)
        for child in edges.get(parent, ()):
            grown = full.get(child, frozenset()) | full[parent]
            if grown != full.get(child):
                full[child] = grown
                if child not in queued:
                    queued.add(child)
                    waiting.append(child)
    return full


def depths(nodes: Iterable[Node], edges: Mapping[Node, Iterable[Node]]) -> dict[Node, int]:
    """How far each node lies from the sources among `nodes`; erasure works from the largest depth to 0.

    A child is deeper than each of its parents, except inside a cycle, whose nodes share one depth.
    """
    members = set(nodes)
    component = _components(members, edges)
    lower: dict[int, set[int]] = {}
    parents: dict[int, int] = dict.fromkeys(component.values(), 0)
    for parent in members:
        for child in edges.get(parent, ()):
            if child in members and component[child] != component[parent]:
                known = lower.setdefault(component[parent], set())
                if component[child] not in known:
                    known.add(component[child])
                    parents[component[child]] += 1
    depth = dict.fromkeys(parents, 0)
    waiting = deque(number for number, count in parents.items() if count == 0)
    while waiting:
        parent_number = waiting.popleft()
        for number in lower.get(parent_number, ()):
            depth[number] = max(depth[number], depth[parent_number] + 1)
            parents[number] -= 1
            if parents[number] == 0:
                waiting.append(number)
    return {node: depth[component[node]] for node in members}


def _components(members: set[Node], edges: Mapping[Node, Iterable[Node]]) -> dict[Node, int]:
    """The number of each node's strongly connected component. Source: Kosaraju, by Sharir 1981; without recursion."""
    order: list[Node] = []
    seen: set[Node] = set()
    for start in members:
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, iter(tuple(edges.get(start, ()))))]
        while stack:
            node, children = stack[-1]
            for child in children:
                if child in members and child not in seen:
                    seen.add(child)
                    stack.append((child, iter(tuple(edges.get(child, ())))))
                    break
            else:
                order.append(node)
                stack.pop()
    parents = reverse({node: [child for child in edges.get(node, ()) if child in members] for node in members})
    component: dict[Node, int] = {}
    for number, start in enumerate(reversed(order)):
        if start in component:
            continue
        component[start] = number
        waiting = [start]
        while waiting:
            for parent in parents.get(waiting.pop(), ()):
                if parent not in component:
                    component[parent] = number
                    waiting.append(parent)
    return component

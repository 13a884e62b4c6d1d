"""Which of some artifacts were made from others of them, and how far each is from what it was made from at first.

Guarantees: linear in artifacts and edges; artifacts that stand alone cost nothing that stays. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from erasure.facts import ArtifactFact, ArtifactFacts


def depths_of(artifacts: Sequence[ArtifactFact]) -> dict[int, int]:
    """How many derivations lie between each artifact and its farthest root among these; cycles share the depth reached.

    Linear in artifacts and edges.
    """
    depths = Lineage(artifacts).depths
    return {fact.artifact_id: depths.get(fact.artifact_id, 0) for fact in artifacts}


class Lineage:
    """Which of some artifacts were made from others of them. Those that stand alone cost nothing here."""

    def __init__(self, artifacts: Sequence[ArtifactFact]) -> None:
        derived = artifacts.derived() if isinstance(artifacts, ArtifactFacts) else artifacts
        named = {
            fact.artifact_id: [source.ref for source in fact.sources if source.kind == "a"]
            for fact in derived
            if fact.sources
        }
        sources = {ref for refs in named.values() for ref in refs}
        ids = artifacts.ids if isinstance(artifacts, ArtifactFacts) else [fact.artifact_id for fact in artifacts]
        self.places = {number: place for place, number in enumerate(ids) if number in sources}
        """Where those stand from which others were made."""
        self.depths = _depths({child: [ref for ref in refs if ref in self.places] for child, refs in named.items()})
        """Those that are not named here are roots."""


def _depths(parents: Mapping[int, Sequence[int]]) -> dict[int, int]:
    children: dict[int, list[int]] = {}
    waiting = {}
    for child, sources in parents.items():
        waiting[child] = len(sources)
        for source in sources:
            children.setdefault(source, []).append(child)
    depths = {ref: 0 for ref, count in waiting.items() if not count}
    depths |= {ref: 0 for ref in children if ref not in waiting}
    ready = list(depths)
    while ready:
        ref = ready.pop()
        for child in children.get(ref, ()):
            depths[child] = max(depths.get(child, 0), depths[ref] + 1)
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    # What is in a cycle, or below one, has no order of its own: it goes first, as the deepest.
    deepest = max(depths.values(), default=0) + 1
    return {ref: deepest if waiting.get(ref) else depths[ref] for ref in children.keys() | parents.keys()}

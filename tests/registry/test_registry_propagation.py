"""For every person, index look-up = graph closure, after any registrations, late edges, merges, splits, erasures."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from registry import artifacts, cones, merging, origins, repeats, subjects
from registry.classes import put_class
from registry.errors import Conflict
from registry.graph import INLINE
from registry.identifiers import parse_subject
from registry.models import Derivation
from registry.people import expand

PLACES = st.integers(0, 11)
NAMES = ("ada", "bea", "cleo", "dora")
PEOPLE = st.sampled_from(NAMES)
STATISTICS = {
    "state": "record",
    "personal": False,
    "owner": "team-a",
    "description": "counts over many people",
    "legal_basis": "none needed: anonymous",
    "retention": {"keep": "P1Y", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase"},
}


class Registry(RuleBasedStateMachine):
    """A model that knows only items, their own people, edges and merges; the registry must agree with its closure.

    While cones wait in the queue the registry may know less, and must then say of whom it does not know all.
    """

    make_house: ClassVar[Any]

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.house = type(self).make_house(self.folder)
        self.tenant = self.house.alice.tenant_id
        self.other = replace(self.house.alice, principal="second-person")
        with self.house.session() as session:
            put_class(session, self.house.alice, "statistics", STATISTICS, self.house.now)
            session.commit()
        self.at: dict[int, int] = {}
        self.own: dict[int, set[str]] = {}
        self.parents: dict[int, set[int]] = {}
        self.name: dict[int, str] = {}
        self.stops: set[int] = set()
        self.gone: set[int] = set()
        self.healed = 0
        self.person: dict[str, str] = {one: one for one in NAMES}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.house.engine.dispose()
            shutil.rmtree(self.folder)

    @staticmethod
    def place(number: int) -> dict[str, Any]:
        return {"store": "app", "locator": {"table": "memories", "key": {"id": number}}}

    @rule(
        items=st.lists(
            st.tuples(PLACES, st.sets(PEOPLE, max_size=2), st.sets(PLACES, max_size=3), st.integers(0, 5)),
            min_size=1,
            max_size=6,
        )
    )
    def register(self, items: list[tuple[int, set[str], set[int], int]]) -> None:
        sent = []
        for number, people, sources, dice in items:
            places = [self.place(n) for n in sorted(sources)]
            if dice == 0:
                anonymous = {"activity": {"kind": "count", "anonymisation": {"basis": "counts over 50"}}}
                sent.append(
                    self.house.item(number, data_class="statistics", subjects=None, sources=places, **anonymous)
                )
            else:
                named = [f"user:{one}" for one in sorted(people)]
                sent.append(self.house.item(number, subjects=named, sources=places))
        results = self.house.register(sent)
        accepted = [
            (*item, result["id"])
            for item, result in zip(items, results, strict=True)
            if result["status"] in {"created", "changed", "exists", "erased"}
        ]
        for number, _, _, dice, name in accepted:
            if number not in self.at:
                node = self.at[number] = len(self.name)
                self.name[node], self.own[node], self.parents[node] = name, set(), set()
                self.stops |= {node} if dice == 0 else set()
            assert self.name[self.at[number]] == name
        for number, people, sources, dice, _ in accepted:
            node = self.at[number]
            self.own[node].update(people if dice else ())
            # What was accepted has only sources that are known now, or were erased and left their place.
            self.parents[node].update(self.at[source] for source in sources if source in self.at)

    @rule(child=PLACES, sources=st.sets(PLACES, min_size=1, max_size=3))
    def add_late_edges(self, child: int, sources: set[int]) -> None:
        known = {number for number in sources if number in self.at and number != child}
        if child not in self.at or not known:
            return
        with self.house.session() as session:
            artifacts.add_sources(
                session, self.house.vault, self.house.alice, self.name[self.at[child]],
                [self.name[self.at[n]] for n in sorted(known)], now=self.house.now,
            )  # fmt: skip
            session.commit()
        self.parents[self.at[child]].update(self.at[n] for n in known)

    @rule(number=PLACES)
    def erase(self, number: int) -> None:
        if number not in self.at:
            return
        node = self.at.pop(number)
        with self.house.session() as session:
            row = artifacts.find_artifact(session, self.tenant, self.name[node])
            artifacts.bury(session, self.tenant, [row.id], "req_1", self.house.now)
            session.commit()
        self.gone.add(node)

    @rule(left=PEOPLE, right=PEOPLE)
    def merge(self, left: str, right: str) -> None:
        names = [parse_subject(f"user:{one}") for one in (left, right)]
        with self.house.session() as session:
            if len(subjects.find(session, self.house.vault, self.house.alice, names)) < 2:
                return
            if self.person[left] == self.person[right]:
                with pytest.raises(Conflict):
                    merging.propose_merge(
                        session, self.house.vault, self.house.alice, names, reason="r", now=self.house.now
                    )
                return
            proposed = merging.propose_merge(
                session, self.house.vault, self.house.alice, names, reason="r", now=self.house.now
            )
            merging.decide_merge(
                session, self.house.vault, self.other, proposed.id, same_person=True, knows_shared=True, comment="c",
                now=self.house.now,
            )  # fmt: skip
            session.commit()
        absorbed = self.person[right]
        self.person = {one: self.person[left] if root == absorbed else root for one, root in self.person.items()}

    @rule(one=PEOPLE)
    def split(self, one: str) -> None:
        others = [name for name, root in self.person.items() if root == self.person[one] and name != one]
        if not others:
            return
        with self.house.session() as session:
            merging.split(
                session, self.house.vault, self.house.alice, [parse_subject(f"user:{one}")], reason="r",
                now=self.house.now,
            )  # fmt: skip
            session.commit()
        for name in others:
            self.person[name] = others[0]
        self.person[one] = one

    @rule(limit=st.integers(1, 4))
    def carry_on(self, limit: int) -> None:
        with self.house.session() as session:
            cones.propagate_pending(session, self.tenant, self.house.now, limit=limit)
            session.commit()

    @rule()
    def reconcile(self) -> None:
        with self.house.session() as session:
            waiting = cones.pending(session, self.tenant).cones
            found = cones.reconcile(session, self.tenant, self.house.now, limit=5)
            assert found["healed"] == self.healed or waiting
            # Counts are those of a walk, which may take several calls.
            self.healed = 0 if found["ended"] else found["healed"]
            session.commit()

    @invariant()
    def look_up_equals_closure(self) -> None:
        if not hasattr(self, "house"):
            return
        with self.house.session() as session:
            waiting = cones.pending(session, self.tenant).cones
            for person in NAMES:
                identifier = parse_subject(f"user:{person}")
                found = subjects.find(session, self.house.vault, self.house.alice, [identifier])
                rows = artifacts.artifacts_of(session, self.tenant, found.values())
                assert artifacts.ids_of(session, self.tenant, found.values()) == [row.id for row in rows]
                shown, wanted = {artifacts.public_name(row) for row in rows}, self.closure(person)
                assert shown <= wanted
                if shown < wanted:
                    assert waiting
                    whole = expand(session, self.tenant, found.values())
                    assert cones.pending_about(session, self.tenant, whole)

    def closure(self, person: str) -> set[str]:
        whole = {name for name, root in self.person.items() if root == self.person[person]}
        reached = {node for node, people in self.own.items() if people & whole}
        while True:
            below = {child for child, parents in self.parents.items() if parents & reached and child not in self.stops}
            if below <= reached:
                return {self.name[node] for node in reached - self.gone}
            reached |= below


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("inline", [INLINE, 0], ids=["at once", "queued"])
def test_index_look_up_equals_graph_closure(
    make_house: Any, full_length: bool, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    for module in (repeats, origins):
        monkeypatch.setattr(module, "INLINE", inline)

    run(make_house, full_length=full_length, examples=300 if full_length else 12)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(1800)
def test_on_postgresql_too(
    make_house: Any, make_postgres_database: Any, full_length: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origins, "INLINE", 0)  # its own look-ups of a person and of a queue differ there
    run(
        lambda folder: make_house(folder, make_postgres_database()),
        full_length=full_length,
        examples=30 if full_length else 3,
    )


def run(make_house: Any, *, full_length: bool, examples: int) -> None:
    class Bound(Registry):
        pass

    Bound.make_house = staticmethod(make_house)
    case = Bound.TestCase
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=40 if full_length else 15,
        deadline=None,
        # Shrinking rebuilds a deployment per step: worth it only where somebody waits for the smallest example.
        phases=tuple(Phase) if full_length else (Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    case("runTest").runTest()


def test_an_edge_to_something_that_is_gone_stops_no_walk(house: Any) -> None:
    first, second = house.register(
        [house.item(1), house.item(2, subjects=None, sources=[Registry.place(1)])]
    )  # fmt: skip
    tenant = house.alice.tenant_id
    with house.session() as session:
        child = artifacts.find_artifact(session, tenant, second["id"])
        session.add(Derivation(tenant_id=tenant, child=child.id, parent_kind="a", parent=12345))
        session.add(Derivation(tenant_id=tenant, child=54321, parent_kind="a", parent=child.id))
        session.add(Derivation(tenant_id=tenant, child=child.id, parent_kind="e", parent=99))
        session.commit()
        assert len(artifacts.lineage(session, tenant, second["id"], direction="up")["edges"]) == 1
        assert artifacts.lineage(session, tenant, second["id"], direction="down")["edges"] == []
        assert artifacts.get_artifact(session, tenant, second["id"])["sources"] == [first["id"]]
    [late] = house.register([house.item(3, subjects=["user:bea"])])
    with house.session() as session:
        shown = artifacts.add_sources(session, house.vault, house.alice, first["id"], [late["id"]], now=house.now)
        assert len(shown["subjects"]) == 2
        assert len(artifacts.get_artifact(session, tenant, second["id"])["subjects"]) == 2


def test_a_persons_items_are_found_in_a_number_of_statements_that_their_graph_does_not_change(house: Any) -> None:
    house.register([house.item(1), house.item(100, subjects=["user:bob"])])
    for level in range(2, 30):
        house.register([house.item(level, subjects=None, sources=[Registry.place(level - 1)])])
    statements: list[str] = []
    sa.event.listen(house.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))

    def look_up(name: str) -> tuple[int, int]:
        statements.clear()
        with house.session() as session:
            found = subjects.find(session, house.vault, house.alice, [parse_subject(name)])
            items = len(artifacts.artifacts_of(session, house.alice.tenant_id, found.values()))
        return items, len(statements)

    (one, few), (many, most) = look_up("user:bob"), look_up("user:ada")
    assert (one, many) == (1, 29)
    assert most == few <= 5

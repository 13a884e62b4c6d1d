"""For every person, index look-up = graph closure, after any registrations, repeats, late edges and erasures."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from registry import artifacts, subjects
from registry.identifiers import parse_subject
from registry.models import Derivation

PLACES = st.integers(0, 11)
PEOPLE = st.sampled_from(["ada", "bea", "cleo", "dora"])


class Registry(RuleBasedStateMachine):
    """A model that knows only places, their own people and edges; the registry must agree with its closure."""

    make_house: ClassVar[Any]

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.house = type(self).make_house(self.folder)
        self.own: dict[int, set[str]] = {}
        self.parents: dict[int, set[int]] = {}
        self.name: dict[int, str] = {}
        self.buried: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.house.engine.dispose()
            shutil.rmtree(self.folder)

    @staticmethod
    def place(number: int) -> dict[str, Any]:
        return {"store": "app", "locator": {"table": "memories", "key": {"id": number}}}

    @rule(
        items=st.lists(
            st.tuples(PLACES, st.sets(PEOPLE, max_size=2), st.sets(PLACES, max_size=3)), min_size=1, max_size=6
        )
    )
    def register(self, items: list[tuple[int, set[str], set[int]]]) -> None:
        sent = [
            self.house.item(
                number,
                subjects=[f"user:{one}" for one in sorted(people)],
                sources=[self.place(n) for n in sorted(sources)],
            )
            for number, people, sources in items
        ]
        results = self.house.register(sent)
        for (number, people, sources), result in zip(items, results, strict=True):
            if result["status"] == "rejected":
                continue
            assert result["status"] in {"created", "exists"}
            self.name[number] = result["id"]
            self.own.setdefault(number, set()).update(people)
            self.parents.setdefault(number, set()).update(sources)
        # What was accepted has only sources that are known now.
        assert all(source in self.name for sources in self.parents.values() for source in sources)

    @rule(child=PLACES, sources=st.sets(PLACES, min_size=1, max_size=3))
    def add_late_edges(self, child: int, sources: set[int]) -> None:
        known = {number for number in sources if number in self.name and number != child}
        if child not in self.name or not known:
            return
        with self.house.session() as session:
            artifacts.add_sources(
                session, self.house.vault, self.house.alice, self.name[child], [self.name[n] for n in sorted(known)],
                now=self.house.now,
            )  # fmt: skip
            session.commit()
        self.parents[child].update(known)

    @invariant()
    def look_up_equals_closure(self) -> None:
        if not hasattr(self, "house"):
            return
        with self.house.session() as session:
            for person in ("ada", "bea", "cleo", "dora"):
                identifier = parse_subject(f"user:{person}")
                found = subjects.find(session, self.house.vault, self.house.alice, [identifier])
                rows = artifacts.artifacts_of(session, self.house.alice.tenant_id, found.values())
                assert {artifacts.public_name(row) for row in rows} == self.closure(person)

    def closure(self, person: str) -> set[str]:
        reached = {number for number, people in self.own.items() if person in people}
        while True:
            more = {child for child, parents in self.parents.items() if parents & reached} | reached
            if more == reached:
                return {self.name[number] for number in reached}
            reached = more


def test_index_look_up_equals_graph_closure(make_house: Any, full_length: bool) -> None:
    class Bound(Registry):
        pass

    Bound.make_house = staticmethod(make_house)
    case = Bound.TestCase
    case.settings = settings(
        max_examples=300 if full_length else 20,
        stateful_step_count=15,
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
    house.register([house.item(1)])
    for level in range(2, 30):
        house.register([house.item(level, subjects=None, sources=[Registry.place(level - 1)])])
    statements: list[str] = []
    sa.event.listen(house.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    with house.session() as session:
        found = subjects.find(session, house.vault, house.alice, [parse_subject("user:ada")])
        assert len(artifacts.artifacts_of(session, house.alice.tenant_id, found.values())) == 29
    assert len(statements) <= 4

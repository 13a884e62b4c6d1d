"""The queue of cones and the reconciler: a crash loses nothing, what is missing is given, what is too much is told."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import select

from registry import artifacts, cones, origins, repeats, subjects
from registry.identifiers import parse_subject
from registry.models import Artifact, PendingCone, Watermark
from registry.sets import intern_set, members
from registry.subjects import fence


def place(number: int) -> dict[str, Any]:
    return {"store": "app", "locator": {"table": "memories", "key": {"id": number}}}


def chain(house: Any, length: int) -> list[str]:
    names = [house.register([house.item(1, subjects=["user:root"])])[0]["id"]]
    names += [
        house.register([house.item(number, subjects=None, sources=[place(number - 1)])])[0]["id"]
        for number in range(2, length + 1)
    ]
    return names


def about(house: Any, session: Any, person: str) -> set[str]:
    found = subjects.find(session, house.vault, house.alice, [parse_subject(person)])
    return {
        artifacts.public_name(row) for row in artifacts.artifacts_of(session, house.alice.tenant_id, found.values())
    }


def add_late(house: Any, to: str, monkeypatch: pytest.MonkeyPatch, inline: int = 0) -> str:
    for module in (repeats, origins):
        monkeypatch.setattr(module, "INLINE", inline)
    [late] = house.register([house.item(900, subjects=["user:late"])])
    with house.session() as session:
        origins.add_sources(session, house.vault, house.alice, to, [late["id"]], now=house.now)
        session.commit()
    return str(late["id"])


def test_a_crash_in_the_middle_of_a_cone_repeats_a_step_and_skips_none(
    house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = chain(house, 12)
    late = add_late(house, names[0], monkeypatch)
    tenant = house.alice.tenant_id
    steps = 0
    while True:
        with house.session() as session:  # the process dies here: nothing was committed
            cones.propagate_pending(session, tenant, house.now, limit=2)
            session.rollback()
        with house.session() as session:
            assert (cones.pending(session, tenant).cones > 0) == (about(house, session, "user:late") < {late, *names})
            if not cones.propagate_pending(session, tenant, house.now, limit=2):
                break
            session.commit()
            steps += 1
    assert steps >= 3
    with house.session() as session:
        assert about(house, session, "user:late") == {late, *names}
        assert session.exec(select(PendingCone)).first() is None


def test_a_cone_below_the_limit_is_done_at_once(house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = chain(house, 6)
    late = add_late(house, names[0], monkeypatch, inline=2_000)
    with house.session() as session:
        assert about(house, session, "user:late") == {late, *names}
        assert cones.pending(session, house.alice.tenant_id).cones == 0


def test_people_that_arrive_late_below_mark_what_must_go(house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = chain(house, 4)
    add_late(house, names[0], monkeypatch)
    tenant = house.alice.tenant_id
    with house.session() as session:
        [late] = subjects.find(session, house.vault, house.alice, [parse_subject("user:late")]).values()
        fence(session, tenant, [late], "req_1", house.now)
        while cones.propagate_pending(session, tenant, house.now, limit=1):
            pass
        statuses = {one["status"] for one in (artifacts.get_artifact(session, tenant, name) for name in names[1:])}
        assert statuses == {"erasing"}


def test_the_reconciler_gives_what_is_missing_and_only_counts_what_is_too_much(house: Any) -> None:
    names = chain(house, 5)
    tenant = house.alice.tenant_id
    with house.session() as session:
        rows = artifacts.find_artifacts(session, tenant, names)
        [stranger] = subjects.resolve(session, house.vault, house.alice, [parse_subject("user:x")], house.now)
        root = rows[names[0]].own_set_id
        both = intern_set(session, tenant, {stranger, *members(session, tenant, [root])[root]}, house.now)
        # A database that somebody wrote to: the middle forgot its people, the last one has a stranger's.
        session.execute(sa.update(Artifact).where(Artifact.id == rows[names[2]].id).values(set_id=0))  # type: ignore[arg-type] # SQLModel types columns as values
        session.execute(sa.update(Artifact).where(Artifact.id == rows[names[4]].id).values(set_id=both))  # type: ignore[arg-type] # as above
        session.expire_all()
        assert about(house, session, "user:root") == set(names) - {names[2]}
        found = cones.reconcile(session, tenant, house.now, limit=100)
        assert (found["checked"], found["healed"], found["beyond"], found["ended"]) == (5, 1, 1, True)
        assert about(house, session, "user:root") == set(names)
        assert cones.pending(session, tenant).cones == 1  # what lies below what was healed is looked at too
        cones.propagate_pending(session, tenant, house.now)
        assert cones.reconcile(session, tenant, house.now, limit=100)["healed"] == 0
        mark = session.get_one(Watermark, (tenant, cones.RECONCILER))
        assert mark.details["last"]["checked"] == 5


def test_the_reconciler_walks_in_slices_and_starts_again(house: Any) -> None:
    chain(house, 5)
    tenant = house.alice.tenant_id
    with house.session() as session:
        ended = [cones.reconcile(session, tenant, house.now, limit=2)["ended"] for _ in range(6)]
    assert ended == [False, False, True, False, False, True]


def test_another_tenants_cones_are_not_ones_own(house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = chain(house, 3)
    bob = house.tenant("bob")
    add_late(house, names[0], monkeypatch)
    with house.session() as session:
        assert cones.pending(session, bob.tenant_id).cones == 0
        assert cones.propagate_pending(session, bob.tenant_id, house.now) == 0
        assert cones.reconcile(session, bob.tenant_id, house.now)["checked"] == 0
        assert cones.pending(session, house.alice.tenant_id).cones == 1

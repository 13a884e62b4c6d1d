"""Streams, runs and recorders under random ids."""

from __future__ import annotations

from typing import Any

import pytest

from registry import artifacts, classes, declared, streams, subjects
from registry.errors import (
    InvalidDeclaration,
    OutsideTokenScope,
    UnknownClass,
    UnknownMachine,
    UnknownRun,
    UnknownStream,
)
from registry.identifiers import parse_subject
from registry.models import RunRow, StreamRow


def person(house: Any, session: Any, text: str) -> int:
    [number] = subjects.resolve(session, house.vault, house.alice, [parse_subject(text)], house.now)
    return number


def test_a_stream_is_made_once_and_its_people_grow(house: Any) -> None:
    with house.session() as session:
        ada, bea = person(house, session, "user:ada"), person(house, session, "user:bea")
        first = streams.streams_for(session, house.vault, house.alice, {"c1": {ada}, "c2": set()}, house.now)
        again = streams.streams_for(
            session, house.vault, house.alice, {"c1": {bea}}, house.now, data_class={"c1": "transcript"}
        )
        assert first["c1"].stream_id == again["c1"].stream_id != first["c2"].stream_id
        assert again["c1"].members == tuple(sorted((ada, bea)))
        assert first["c2"].members == ()
        row = streams.stream_by_id(session, house.alice.tenant_id, first["c1"].stream_id)
        assert row.data_class == "transcript"
        subjects.fence(session, house.alice.tenant_id, [ada], "req_1", house.now)
        fenced = streams.streams_for(session, house.vault, house.alice, {"c1": set(), "c9": {ada}}, house.now)
        assert fenced["c1"].closed == {ada}
        assert fenced["c9"].closed == {ada}


def test_callers_names_lie_sealed_and_are_forgotten_with_the_person(house: Any) -> None:
    with house.session() as session:
        ada = person(house, session, "user:ada")
        stream = streams.streams_for(session, house.vault, house.alice, {"ada-wombat-chat": {ada}}, house.now)
        run = streams.runs_for(session, house.vault, house.alice, {"ada-wombat-run": {ada}}, house.now)
        streams.recorders_for(session, house.vault, house.alice, {"ada-wombat-recorder"})
        session.commit()
    for path in house.folder.glob("muniment.db*"):
        assert b"wombat" not in path.read_bytes()
    tenant = house.alice.tenant_id
    with house.session() as session:
        rows: list[StreamRow | RunRow] = [
            streams.stream_by_id(session, tenant, stream["ada-wombat-chat"].stream_id),
            streams.run_by_id(session, tenant, run["ada-wombat-run"].run_id),
        ]
        names = streams.open_names(session, house.vault, tenant, rows)
        assert {one.name for one in names.values()} == {"ada-wombat-chat", "ada-wombat-run"}
        assert streams.forget_names(session, tenant, [ada]) == 2
        assert streams.forget_names(session, tenant, [ada]) == 0
        rows = [streams.stream_by_id(session, tenant, stream["ada-wombat-chat"].stream_id)]
        assert [one.name for one in streams.open_names(session, house.vault, tenant, rows).values()] == [None]
        again = streams.streams_for(session, house.vault, house.alice, {"ada-wombat-chat": ()}, house.now)
        assert again["ada-wombat-chat"].stream_id == stream["ada-wombat-chat"].stream_id


def test_tenants_with_the_same_names_share_no_ids(house: Any) -> None:
    bob = house.tenant("bob")
    with house.session() as session:
        ours = streams.streams_for(session, house.vault, house.alice, {"c1": ()}, house.now)["c1"]
        theirs = streams.streams_for(session, house.vault, bob, {"c1": ()}, house.now)["c1"]
        assert ours.stream_id != theirs.stream_id
        with pytest.raises(UnknownStream):
            streams.stream_by_id(session, bob.tenant_id, ours.stream_id)
        recorder = streams.recorders_for(session, house.vault, house.alice, ["r1"])["r1"]
        assert streams.recorders_for(session, house.vault, house.alice, ["r1"])["r1"] == recorder
        assert streams.recorders_for(session, house.vault, bob, ["r1"])["r1"] != recorder


STREAM = {"stream": "c1", "owner": "user:ada", "channel": "chat", "data_class": "transcript",
          "provider_refs": {"openai": "thread_wombat"}, "summary_version": 3}  # fmt: skip


def test_a_declared_stream_is_made_then_changed_field_by_field(house: Any) -> None:
    tenant = house.alice.tenant_id
    with house.session() as session:
        row, new = declared.put_stream(session, house.vault, house.alice, STREAM, house.now)
        assert new
        assert not declared.put_stream(session, house.vault, house.alice, STREAM, house.now)[1]
        declared.patch_stream(
            session, house.vault, house.alice, row.stream_id, {"channel": "mail", "owner": "user:bea"}, now=house.now
        )
        opened = streams.open_names(session, house.vault, tenant, [row])[row.stream_id]
        assert opened.name == "c1"
        assert opened.declared == {
            "channel": "mail", "summary_version": 3, "provider_refs": {"openai": "thread_wombat"},
        }  # fmt: skip
        assert "wombat" not in str(row.declared)
        ref = streams.streams_for(session, house.vault, house.alice, {"c1": ()}, house.now)["c1"]
        assert len(ref.members) == 2


@pytest.mark.parametrize(
    "spec",
    [{}, {"stream": ""}, {"stream": 5}, {"stream": "c", "owner": "ada"}, {"stream": "c", "colour": 1}, None,
     {"stream": "c", "provider_refs": {"x": "y" * 20_000}}, {"stream": "\ud800"}],
)  # fmt: skip
def test_a_wrong_stream_is_refused(house: Any, spec: Any) -> None:
    with house.session() as session, pytest.raises(InvalidDeclaration):
        declared.put_stream(session, house.vault, house.alice, spec, house.now)


def test_unknown_machines_and_classes_are_refused(house: Any) -> None:
    with house.session() as session:
        with pytest.raises(UnknownMachine):
            declared.put_stream(session, house.vault, house.alice, {**STREAM, "machine": "refund"}, house.now)
        with pytest.raises(UnknownClass):
            declared.put_stream(session, house.vault, house.alice, {**STREAM, "data_class": "diary"}, house.now)


def test_a_token_without_a_streams_class_changes_neither_its_class_nor_its_people(house: Any) -> None:
    # It could make what is said there another person's too, whose erasure would then concern it.
    mine = {"stream": "c1", "owner": "user:ada", "data_class": "transcript"}
    other = house.other_token(house.alice, classes=["summary"])
    with house.session() as session:
        row, _ = declared.put_stream(session, house.vault, house.alice, mine, house.now)
        session.commit()
        stream_id = row.stream_id
        for change in ({"data_class": "tool"}, {"data_class": "summary"}, {"owner": "user:eve"}):
            with pytest.raises(OutsideTokenScope):
                declared.put_stream(session, house.vault, other, {"stream": "c1", **change}, house.now)
            session.rollback()
            with pytest.raises(OutsideTokenScope):
                declared.patch_stream(session, house.vault, other, stream_id, change, now=house.now)
            session.rollback()
        same = {"stream": "c1", "owner": "user:ada", "channel": "mail"}
        assert not declared.put_stream(session, house.vault, other, same, house.now)[1]
        ref = streams.streams_for(session, house.vault, house.alice, {"c1": ()}, house.now)["c1"]
        assert (len(ref.members), row.data_class) == (1, "transcript")


def test_a_run_has_a_status_and_an_end_and_keeps_the_rest_sealed(house: Any) -> None:
    tenant = house.alice.tenant_id
    spec = {"run": "run_482", "stream": "c1", "actor": "wombat", "workflow": "refund", "status": "active", "step": 2,
            "checkpoint_ref": "cp_1", "versions": {"workflow": "3"}, "budgets": {"tokens": 5}}  # fmt: skip
    with house.session() as session:
        declared.put_stream(session, house.vault, house.alice, STREAM, house.now)
        row, new = declared.put_run(session, house.vault, house.alice, spec, house.now)
        assert (new, row.status, row.ended_at) == (True, "active", None)
        assert row.holder_no == person(house, session, "user:ada")
        row = declared.patch_run(
            session,
            house.vault,
            house.alice,
            row.run_id,
            {"status": "completed", "last_outcome": "paid"},
            now=house.now,
        )
        assert (row.status, row.ended_at) == ("completed", house.now)
        said = streams.open_names(session, house.vault, tenant, [row])[row.run_id].declared
        assert (said["actor"], said["last_outcome"], said["step"]) == ("wombat", "paid", 2)
        with pytest.raises(InvalidDeclaration):
            declared.patch_run(session, house.vault, house.alice, row.run_id, {"status": "asleep"}, now=house.now)
        with pytest.raises(UnknownRun):
            declared.patch_run(session, house.vault, house.alice, "0" * 32, {"status": "failed"}, now=house.now)


def test_nobody_ends_by_a_run_what_the_token_may_not_register(house: Any) -> None:
    # A token for one store said that a run was over, and what others worked on elsewhere was due at once.
    with house.session() as session:
        spec = classes.STARTER_CLASSES["summary"] | {"state": "working", "requires_sources": False}
        classes.put_class(session, house.alice, "draft", spec, house.now)
        session.commit()
    [made] = house.register([house.item(1, data_class="draft", activity={"kind": "think", "run": "r1"})])
    over = {"run": "r1", "status": "completed"}

    def end() -> Any:
        with house.session() as session:
            return artifacts.get_artifact(session, house.alice.tenant_id, made["id"])["ends_at"]

    before = end()
    for scope in ({"classes": ["memory"]}, {"stores": ["files"]}):
        other = house.other_token(house.alice, **scope)
        with house.session() as session, pytest.raises(OutsideTokenScope):
            declared.put_run(session, house.vault, other, over, house.now)
    assert end() == before
    carrying = house.other_token(house.alice, classes=["draft"], stores=["app"])
    with house.session() as session:
        declared.put_run(session, house.vault, carrying, over, house.now)
        session.commit()
    assert end() == house.now

"""Who outside received the data: told of what was done with it, noted, printed as stated, named to the person."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from erasure.deadlines import near
from erasure.errors import InvalidRequest
from erasure.letters import Asked, write
from erasure.rendering.letter import plain
from erasure.rendering.paper import certificate_html
from erasure.report_check import check


@pytest.fixture
def erased(world: Any) -> Any:
    """A world with a completed erasure in stores of two recipients and one of nobody's."""
    for name, recipient, country in (
        ("mails", "Mailer Ltd", "US"),
        ("mails2", "Mailer Ltd", "US"),
        ("crm", "CRM AG", None),
    ):
        world.memory_store(name)
        about = {"recipient": recipient} | ({"country": country} if country else {})
        world.store(name, "sql", {"url": f"sqlite:///{world.base}/stores/{name}.db"}, **about)
        world.keep_in_memory(name, "k", f"Ada at {name}")
    world.note("n1", "Ada in a database of our own")
    world.request = world.erase()
    return world


def notice(world: Any, kind: str, recipient: str | None = None, answer: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = world.desk.notice(
        world.acting(), world.request, kind=kind, channel="contract portal", sent_at=world.now, now=world.now,
        recipient=recipient, answer=answer,
    )  # fmt: skip
    return found


def alarms(world: Any) -> list[tuple[str, int]]:
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        return [(one.what, one.days_left) for one in near(session, world.tenant.tenant_id, world.now)]


def letter(world: Any, language: str) -> str:
    return plain(
        write(world.parts, world.acting(), world.request, Asked(kind="recipients", language=language), world.now)
    )


def test_each_recipient_is_told_by_a_date_and_what_it_answered_is_shown(erased: Any) -> None:
    world = erased
    view = world.reader.get(world.acting(), world.request)
    assert [(one["recipient"], one["stores"], one["told_at"]) for one in view["recipients"]] == [
        ("CRM AG", ["crm"], None), ("Mailer Ltd", ["mails", "mails2"], None),
    ]  # fmt: skip
    assert view["tell_recipients_by"] == view["due_at"]
    notice(world, "answered")
    world.now += timedelta(days=28)
    assert alarms(world) == [("recipients", 2)], "the person was answered; the recipients were not told"
    notice(world, "recipient_told", "Mailer Ltd")
    notice(world, "recipient_answered", "Mailer Ltd", "done")
    assert ("recipients", 2) in alarms(world)
    view = notice(world, "recipient_not_told", "CRM AG", "impossible")
    assert alarms(world) == []
    assert view["tell_recipients_by"] is None
    assert [(one["answer"], one["told_at"] is None) for one in view["recipients"]] == [
        ("impossible", True), ("done", False),
    ]  # fmt: skip
    assert [line["detail"]["stores"] for line in view["history"] if line["event"] == "recipient"] == [
        ["mails", "mails2"], ["mails", "mails2"], ["crm"],
    ]  # fmt: skip


def test_the_person_is_told_who_they_are_and_the_final_certificate_states_it(erased: Any) -> None:
    world = erased
    assert "- Mailer Ltd (US): not told yet" in letter(world, "en")
    notice(world, "recipient_told", "Mailer Ltd")
    notice(world, "recipient_answered", "Mailer Ltd", "nothing_held")
    assert "- Mailer Ltd (US): told on 1 June 2026; stated on 1 June 2026 that it holds nothing" in letter(world, "en")
    assert "- CRM AG: noch nicht unterrichtet" in letter(world, "de")
    world.now += timedelta(days=2)
    world.services.keks.turn(world.now, force=True)
    world.work()
    report = world.reader.certificate(world.acting(), world.request, "final")
    check(report, world.certificate_key, world.log_key)
    lines = {line["store"]: line for line in json.loads(report)["certificate"]["recipients"]}
    assert lines.keys() == {"mails", "mails2", "crm"}
    assert (lines["mails2"]["answer"], lines["crm"]["told_at"]) == ("nothing_held", None)
    page = certificate_html(report).decode()
    assert "states that it holds nothing" in page
    assert "Recipients that no registered store names are not listed" in page


def test_a_notice_that_does_not_fit_is_refused(erased: Any) -> None:
    wrong: dict[str, list[tuple[str, str | None, str | None]]] = {
        "/recipient": [
            ("recipient_told", "Somebody", None),
            ("recipient_told", None, None),
            ("answered", "CRM AG", None),
        ],
        "/answer": [("recipient_told", "CRM AG", "done"), ("recipient_not_told", "CRM AG", None)],
        "/kind": [("recipient_answered", "CRM AG", "done"), ("guessed", None, None)],
    }
    for pointer, notices in wrong.items():
        for kind, recipient, answer in notices:
            with pytest.raises(InvalidRequest) as refused:
                notice(erased, kind, recipient, answer)
            assert refused.value.pointer == pointer


def test_what_stays_is_told_nobody_and_another_right_neither(world: Any) -> None:
    world.classes({"note": {"erasure": {"on_request": "retain", "basis": "tax law", "until": "P6Y"}}})
    world.memory_store("crm")
    world.store("crm", "sql", {"url": f"sqlite:///{world.base}/stores/crm.db"}, recipient="CRM AG")
    world.keep_in_memory("crm", "k", "Ada in what a law keeps")
    world.file("a.txt", "Ada in a file")
    erasure, access = world.erase(), world.ask(right="access")
    for request in (erasure, access):
        assert "recipients" not in world.reader.get(world.acting(), request)

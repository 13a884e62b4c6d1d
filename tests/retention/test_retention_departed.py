"""People of whom nothing is left: a pass ends their names and identity keys, and whoever comes back is somebody new."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from sqlmodel import col, select

from api.wiring import all_tables
from erasure.desk import Desk
from ledger.entry import uuid7
from ledger.models import EntryRow
from registry import subjects
from registry.declared import put_stream
from registry.identifiers import parse_subject
from registry.journal import Journal
from registry.models import Subject, SubjectIdentifier
from registry.record import Record
from registry.sets import members
from retention.consenting import record_consent, withdraw_consent

ADA = "email:ada@example.org"
BOB = "email:bob@example.org"
DAY = timedelta(days=1)


def people(house: Any) -> dict[str, str]:
    """The state of every person by number, with how many names they have."""
    with house.transaction(write=False) as session:
        names = [row.subject_no for row in session.exec(select(SubjectIdentifier))]
        rows = session.exec(select(Subject).order_by(col(Subject.subject_no))).all()
        return {str(row.subject_no): f"{row.state} {names.count(row.subject_no)}" for row in rows}


def states(house: Any) -> list[str]:
    return list(people(house).values())


def over(house: Any) -> Any:
    """Ada's and Bob's copies have ended, Bob has a newer one."""
    house.plain("chat")
    house.note("a", "chat")
    house.note("b", "chat", BOB)
    house.now += 80 * DAY
    house.note("c", "chat", BOB)
    house.now += 11 * DAY
    house.sweep()
    assert house.rows() == {"c"}
    assert states(house) == ["live 1", "live 1"]
    return house


def test_a_pass_ends_the_names_of_people_of_whom_nothing_is_left(house: Any) -> None:
    over(house)
    run = house.sweep()
    assert states(house) == ["ended 0", "live 1"]
    [copy] = house.sweeps.report(house.acting(), run["id"])["copies"]
    assert (copy["data_class"], copy["state"], copy["rule"]) == ("identity", "key_destroyed", "source_end")
    assert copy["evidence"]
    assert copy["verified_at"] is not None
    assert (run["counts"]["ends"], run["counts"]["removed"], run["counts"]["verified"]) == (1, 1, 1)
    assert run["classes"]["identity"]["ends"] == 1
    house.note("d", "chat")
    assert states(house) == ["ended 0", "live 1", "live 1"], "somebody new, who inherits nothing and is refused nothing"
    house.now += DAY
    assert house.sweep()["counts"]["ends"] == 0
    assert house.rows() == {"c", "d"}


def hold(house: Any, who: str) -> str:
    spec = {"name": "acme", "matter": "Acme v. us", "reason": "letter", "selector": {"subjects": [who]}}
    return str(house.holds.place(house.acting("ann"), spec, house.now)["id"])


def ask(house: Any, who: str) -> str:
    spec = {"right": "erasure", "subjects": [who], "regulation": "gdpr", "jurisdiction": "DE-BY", "timezone": "UTC"}
    request = str(Desk(house.parts).create(house.acting("ann"), spec, house.now)["id"])
    checked = {"identifier": who, "method": "seen", "evidence": None, "now": house.now}
    Desk(house.parts).verify_identity(house.acting("ann"), request, **checked)
    return request


def consent(house: Any, who: str) -> str:
    spec = {"subject": who, "words": "version 3"}
    with house.transaction() as session:
        given = record_consent(session, house.services.vault, house.services.record, house.acting(), spec, house.now)
    return str(given["id"])


def test_names_stay_while_anything_needs_them(house: Any) -> None:
    house.plain("chat")
    house.plain("voice", retention={"keep": "P0D", "from": "consent", "latest": "P2Y", "then": "erase"})
    why = ("hold", "request", "consent", "words", "none")
    for name in why:
        house.note(name, "chat", f"user:{name}")
    house.now += 91 * DAY
    house.sweep()
    placed, request, given = hold(house, "user:hold"), ask(house, "user:request"), consent(house, "user:consent")
    house.say("talk", "I live in Lima", "screening_record", "user:words")

    def ended() -> list[str]:
        """Whose names went, after the passes of some days."""
        for _ in range(2):
            house.sweep()
            house.now += 2 * DAY
        return [name for name, state in zip(why, states(house), strict=True) if state == "ended 0"]

    assert ended() == ["none"]
    house.holds.release(house.acting("bea"), placed, preview=False, now=house.now)
    Desk(house.parts).cancel(house.acting("ann"), request, now=house.now)
    with house.transaction() as session:
        withdraw_consent(session, house.services.record, house.acting(), given, at=house.now, now=house.now)
    assert ended() == ["hold", "request", "none"], "what comes late is still refused by a consent that was withdrawn"
    house.now += 367 * DAY
    assert ended() == list(why), "a year later nobody refuses by it, and what was said has ended"


def test_the_name_of_a_conversation_stays_until_its_timers_have_told_the_others(house: Any) -> None:
    house.plain("talk", session={"idle": "PT1H", "resume_within": "P1D", "expire": "P60D"})
    waits = {"keep": "P1D", "from": "event:session.expired", "latest": "P9Y", "then": "erase"}
    house.plain("scratch", retention=waits)
    with house.transaction() as session:
        spec = {"stream": "one", "data_class": "talk", "owner": ADA}
        put_stream(session, house.services.vault, house.acting(), spec, house.now)
    house.note("b", "scratch", BOB, scope={"conversation": "one"})
    for days in (40, 10, 20):
        house.now += days * DAY
        house.sweep()
    assert house.rows() == set(), "Ada had nothing left, and the conversation was sealed under her name"
    house.now += 40 * DAY
    house.sweep()
    assert states(house) == ["ended 0", "ended 0"]


def test_who_is_named_again_while_a_pass_is_under_way_keeps_the_name(house: Any) -> None:
    over(house)
    run = house.sweeps.start(house.acting(), house.now)
    house.note("d", "chat")
    house.sweeps.run_due(house.tenant_id, house.now)
    assert states(house) == ["live 1", "live 1"]
    assert house.sweeps.get(house.acting(), run["id"])["counts"]["retained"] == 1
    assert house.rows() == {"c", "d"}


def test_words_on_their_way_while_their_person_ends_are_recorded_of_somebody_new(house: Any) -> None:
    over(house)
    parts = house.services

    class Meanwhile(Journal):
        """Ends the person once, between the sealing of an entry and its place in the log, as another process does."""

        first = True

        def before(self, *given: Any) -> None:
            super().before(*given)
            if self.first:
                self.first = False
                with house.transaction() as session:
                    ada = subjects.find(session, parts.vault, house.acting(), [parse_subject(ADA)])[ADA]
                    subjects.end(session, house.tenant_id, [ada], "swp_1", house.now)

    journal = Meanwhile(vault=parts.vault, transactions=parts.database.transaction, hot=parts.hot, tables=all_tables)
    record = Record(vault=parts.vault, log=parts.log, transactions=parts.database.transaction, journal=journal)
    sent = {
        "id": uuid7(house.now), "stream": "talk", "kind": "note", "at": house.now.isoformat(),
        "data_class": "screening_record", "subjects": [ADA], "body": {"text": "hello again"},
    }  # fmt: skip
    [result] = record.append(house.acting(), [json.dumps(sent).encode()], house.now).results
    assert result["status"] == "stored"
    assert states(house) == ["ended 0", "live 1", "live 1"]
    with house.transaction(write=False) as session:
        [row] = session.exec(select(EntryRow).where(EntryRow.kind == "note"))
        whose = members(session, house.tenant_id, [row.set_id])[row.set_id]
    assert whose == {int(list(people(house))[-1])}


def test_a_name_under_which_somebody_was_erased_keeps_that_and_still_lets_its_next_owner_go(house: Any) -> None:
    house.plain("chat")
    with house.transaction() as session:
        acting, ada = house.acting(), parse_subject(ADA)
        [first] = subjects.resolve(session, house.services.vault, acting, [ada], house.now)
        subjects.forget_identifiers(session, house.tenant_id, first, "req_1", house.now)
        subjects.reopen(session, house.services.vault, acting, ada, basis="came back", now=house.now)
    house.note("a", "chat")
    house.now += 91 * DAY
    for _ in range(2):
        house.sweep()
    assert states(house) == ["erased 1", "ended 1"]
    house.note("b", "chat")
    assert states(house) == ["erased 1", "ended 1", "live 1"]
    with house.transaction(write=False) as session:
        assert [row.incarnation for row in session.exec(select(Subject).order_by(col(Subject.subject_no)))] == [1, 2, 3]
        sealed = session.exec(select(SubjectIdentifier.sealed)).all()
    assert sum(one is not None for one in sealed) == 1, "only the last one's can be read"

"""What the service says of itself: dates that come near, and a record that is not sound any more."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest

from api import telemetry
from api.alarms import deadline_alarms, patrol
from audit.findings import Verdict
from erasure.deadlines import near
from erasure.desk import Desk
from erasure.planning import Planner
from erasure.reader import Reader
from erasure.sweep_copies import Sweeps
from retention.sweep import Brakes

ADA = "email:ada@example.org"
DAY = timedelta(days=1)
GDPR = {
    "right": "access",
    "subjects": [ADA],
    "regulation": "gdpr",
    "jurisdiction": "DE-BY",
    "timezone": "Europe/Berlin",
}
CCPA = {**GDPR, "regulation": "ccpa", "jurisdiction": "US-CA", "timezone": "America/Los_Angeles"}


def ask(house: Any, spec: dict[str, Any]) -> str:
    return str(Desk(house.parts).create(house.acting(), spec, house.now)["id"])


def found(house: Any) -> list[tuple[str, str, int]]:
    with house.transaction(write=False) as session:
        return [(one.what, one.ref, one.days_left) for one in near(session, house.tenant_id, house.now)]


def tell(house: Any, request: str, kind: str) -> None:
    Desk(house.parts).notice(house.acting(), request, kind=kind, channel="e-mail", sent_at=house.now, now=house.now)


def test_an_answer_is_named_from_a_week_before_its_date_until_the_person_is_told(house: Any) -> None:
    request = ask(house, GDPR)
    house.now += 20 * DAY
    assert found(house) == []
    house.now += 5 * DAY
    [(what, ref, days)] = found(house)
    assert (what, ref) == ("answer", request)
    assert 0 <= days <= 7
    house.now += 20 * DAY
    assert found(house)[0][2] < 0
    tell(house, request, "answered")
    assert found(house) == []


def test_an_answer_stays_due_after_the_work_until_the_person_is_told(house: Any) -> None:
    # What was done, refused or matched nobody fell out of sight although nobody had told the person.
    nobody, refused, unfit, cancelled = (ask(house, GDPR) for _ in range(4))
    desk, ann = Desk(house.parts), house.acting()
    desk.verify_identity(ann, nobody, identifier=ADA, method="passport", evidence=None, now=house.now)
    assert Planner(house.parts).plan(ann, nobody, house.now)["state"] == "no_match"
    for request in (refused, unfit):
        desk.refuse(ann, request, ground="excessive", now=house.now)
    desk.cancel(ann, cancelled, now=house.now)
    house.now += 40 * DAY
    assert {ref for _, ref, days in found(house) if days < 0} == {nobody, refused, unfit}
    tell(house, refused, "refused")
    tell(house, unfit, "acknowledged")
    tell(house, nobody, "answered")
    assert [ref for _, ref, _ in found(house)] == [unfit]
    view = Reader(house.parts).get(ann, refused)
    assert view["answered_at"] is not None


def test_a_confirmation_is_named_until_the_person_heard_of_us(house: Any) -> None:
    request = ask(house, CCPA)
    house.now += 9 * DAY
    assert [(what, ref) for what, ref, _ in found(house)] == [("confirmation", request)]
    tell(house, request, "acknowledged")
    assert found(house) == []


def test_a_clock_that_stands_still_alarms_nobody_until_it_runs_again(house: Any) -> None:
    request = ask(house, GDPR)
    house.now += 20 * DAY
    desk = Desk(house.parts)
    desk.pause(house.acting(), request, reason="identity", now=house.now)
    house.now += 40 * DAY
    assert found(house) == []
    desk.resume(house.acting(), request, now=house.now)
    assert found(house) == []
    house.now += 8 * DAY
    assert [(what, ref) for what, ref, _ in found(house)] == [("answer", request)]


def test_an_extension_is_named_until_the_person_was_told_within_the_first_date(house: Any) -> None:
    # It silenced the first date by itself: nobody told the person, and in law the answer was late (GDPR Art. 12(3)).
    told, forgotten, late = (ask(house, GDPR) for _ in range(3))
    house.now += 25 * DAY
    desk = Desk(house.parts)
    for request in (told, forgotten, late):
        desk.extend(house.acting(), request, reason="many systems", now=house.now)
    assert {(what, ref) for what, ref, _ in found(house)} == {
        ("extension", request) for request in (told, forgotten, late)
    }
    tell(house, told, "extended")
    house.now += 20 * DAY
    tell(house, late, "extended")
    overdue = {(what, ref): days < 0 for what, ref, days in found(house)}
    assert overdue == {("answer", forgotten): True, ("answer", late): True}
    reader = Reader(house.parts)
    assert "warnings" not in reader.get(house.acting(), told)
    [warning] = reader.get(house.acting(), late)["warnings"]
    assert warning["code"] == "extension_untold"
    house.now += 44 * DAY
    assert {ref for what, ref, _ in found(house) if what == "answer"} == {told, forgotten, late}


def test_a_review_is_named_before_it_is_overdue(house: Any) -> None:
    house.plain("paper", retention={"keep": "P10D", "from": "created", "then": "review"})
    house.note("a", "paper")
    house.now += 11 * DAY
    house.sweep()
    assert found(house) == []
    house.now += 25 * DAY
    assert [what for what, _, _ in found(house)] == ["review"]
    house.now += 10 * DAY
    assert found(house)[0][2] < 0


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_a_pass_that_a_brake_holds_is_named_until_somebody_decides(house: Any) -> None:
    """Its items stay past their date, and no later pass names them: they are in this run."""
    house.plain("paper")
    house.note("a", "paper")
    sweeps = Sweeps(house.parts, brakes=Brakes())
    sweeps.start(house.acting(), house.now)
    house.now += 100 * DAY
    run = sweeps.start(house.acting(), house.now)["id"]
    assert found(house) == [("run", run, 7)]
    house.now += 8 * DAY
    assert found(house) == [("run", run, -1)]
    sweeps.approve(house.acting("bea"), run, house.now)
    assert found(house) == []


def test_alarms_are_logged_with_what_to_do_and_counted(house: Any) -> None:
    request = ask(house, GDPR)
    log = StringIO()
    told = telemetry.build(stream=log)
    look = deadline_alarms(house.services.database, told, timedelta(days=90))
    house.now += 27 * DAY
    look(house.tenant_id, house.now)
    house.now += 30 * DAY
    look(house.tenant_id, house.now)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(line["event"], line["level"], line["item"]) for line in lines] == [
        ("a date is near", "warning", request),
        ("a date was missed", "error", request),
    ]
    assert all(line["todo"] for line in lines)
    assert "ada@" not in log.getvalue()  # three letters alone may stand in a random id
    page = told.metrics_page()[0].decode()
    assert 'what="answer"' in page
    told.close()


@pytest.fixture
def walk(house: Any) -> Callable[[], tuple[Any, str]]:
    """A patrol of the house: its report, and what it logged."""

    def run() -> tuple[Any, str]:
        log = StringIO()
        told = telemetry.build(stream=log)
        services = house.services
        look = patrol(
            services.database, told, services.log, locked=services.locked, hot=services.hot,
            certificate_keys=services.certificate_keys, seed=1,
        )  # fmt: skip
        report = look(house.acting())
        told.close()
        return report, log.getvalue()

    return run


def test_a_patrol_finds_a_sound_record_sound_and_says_nothing(house: Any, walk: Callable[[], tuple[Any, str]]) -> None:
    for number in range(5):
        house.say("chat", f"line {number}")
    house.services.log.publish(house.tenant_id, house.now)
    report, said = walk()
    assert report.verdict is Verdict.SOUND
    assert report.word.startswith("sampled ")
    assert said == ""


def test_a_patrol_names_a_record_that_was_altered_and_what_to_do(
    house: Any, walk: Callable[[], tuple[Any, str]]
) -> None:
    house.say("chat", "something")
    house.services.log.publish(house.tenant_id, house.now)
    folder = house.services.settings.data / "objects" / house.log_id / "batch"
    batch = max(folder.iterdir())
    data = bytearray(batch.read_bytes())
    data[-30] ^= 1
    batch.chmod(0o600)
    batch.write_bytes(data)
    report, said = walk()
    assert report.verdict is not Verdict.SOUND
    line = json.loads(said.splitlines()[0])
    assert (line["event"], line["level"]) == ("the record is not sound", "error")
    assert "muniment verify" in line["todo"]


def test_a_patrol_names_a_certificate_that_its_key_did_not_sign(
    house: Any, walk: Callable[[], tuple[Any, str]]
) -> None:
    house.say("chat", "something")
    house.services.log.publish(house.tenant_id, house.now)
    assert walk()[0].verdict is Verdict.SOUND
    name = "certificate/req_1/0001-final-" + "0" * 16 + ".json"
    forged = house.services.settings.data / "objects" / house.log_id / name
    forged.parent.mkdir(parents=True)
    forged.write_bytes(b"{}")
    report, said = walk()
    assert [(one.verdict, one.object) for one in report.findings] == [(Verdict.ALTERED, f"{house.log_id}/{name}")]
    assert json.loads(said.splitlines()[0])["findings"][0]["object"].endswith(name)


def test_the_service_has_the_jobs_that_its_promises_need(house: Any) -> None:
    names = set(house.services.jobs.names)
    assert {
        "retention", "deadlines", "patrol", "checkpoints", "anchors", "footprints", "answers", "snapshots", "outbox",
        "unverified", "packages",
    } <= names  # fmt: skip
    jobs = house.services.jobs
    assert not jobs.tick("retention"), "who does not lead takes no tick"
    house.services.heal_first()
    for name in ("retention", "deadlines", "patrol", "unverified", "footprints", "packages", "answers", "snapshots"):
        assert jobs._jobs[name].shared, f"{name}: its tick is a unique row"
        assert [jobs.tick(name), jobs.tick(name)] == [True, False], name

"""Letters to the person: which one, in which language, what it opens, and when there is none any more."""

from __future__ import annotations

import hashlib
import json
import re
import string
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from connectors.memory import Faults
from erasure.certificate import sign
from erasure.errors import InvalidRequest, LetterNotReady, ReportError, RequestDataGone, UnknownRequest
from erasure.footprint import end_footprints
from erasure.letters import Asked, write
from erasure.rendering import paper
from erasure.rendering.blocks import day_text
from erasure.rendering.carrier import certificate_in, opening_in
from erasure.rendering.compare import Pages, compare
from erasure.rendering.letter import KINDS, LetterFacts, letter_of, plain
from erasure.rendering.sheet import sheet_of
from erasure.rendering.wording import LANGUAGES, WORDS
from erasure.report_check import check, check_opening
from erasure.request import MAYBE_OURS, REFUSAL_GROUNDS, Right
from registry.models import Tenant
from tests.erasure.pdf_archive import faults

ADA = "email:ada@example.org"
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
CONTROLLER = {
    "name": "Beispiel GmbH",
    "contact": "privacy@beispiel.example",
    "dpo": "dpo@beispiel.example",
    "complaint_body": "BayLDA",
}


def letter(world: Any, request: str, **asked: str) -> dict[str, Any]:
    return write(world.parts, world.acting("ann"), request, Asked(**asked), world.now)


def say_who(world: Any) -> None:
    with world.parts.transactions(world.tenant.tenant_id) as session:
        row = session.get(Tenant, world.tenant.tenant_id)
        row.controller = CONTROLLER
        session.add(row)


def facts(**more: Any) -> LetterFacts:
    day = date(2026, 6, 1)
    known: dict[str, Any] = {
        "kind": "acknowledgement", "lang": "en", "request": "req_1", "right": "erasure", "regulation": "gdpr",
        "at": NOON, "today": day, "received": day, "due": date(2026, 7, 1), "controller": CONTROLLER,
        "tenant": "acme", "names": ["ada@example.org"],
    }  # fmt: skip
    return LetterFacts(**{**known, **more})


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_both_languages_have_every_sentence_with_the_same_places_to_fill() -> None:
    assert set(WORDS) == set(LANGUAGES)
    english, german = WORDS["en"], WORDS["de"]
    assert set(english) == set(german)
    assert {name for name in english if placeholders(english[name]) != placeholders(german[name])} == set()
    grounds = {ground for some in REFUSAL_GROUNDS.values() for ground in some}
    assert grounds <= {name.removeprefix("ground_") for name in english}
    assert {f"right_{right}" for right in Right} <= set(english)
    promise = re.compile(r"complian|konform|anonym", re.IGNORECASE)
    assert [text for words in WORDS.values() for text in words.values() if promise.search(text)] == []


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_written_in_every_language_and_form(kind: str, lang: str) -> None:
    statement = {"at": "2026-06-01T09:00:00.000000Z", "stores": ["db"], "data_classes": ["note"]}
    made = letter_of(facts(kind=kind, lang=lang, ground="excessive", reason="many systems", statement=statement))
    text = plain(made)
    assert "{" not in text
    assert "ada@example.org" in text
    assert ("BayLDA" in text) == (kind != "acknowledgement"), "who is refused or told an end can complain"
    assert faults(paper.letter_pdf(made)) == []
    html = paper.letter_html(made).decode()
    assert f'<html lang="{lang}">' in html
    assert "ada@example.org" in html


def test_the_answer_opens_the_commitment_by_hand_and_by_tool_and_nothing_else_does(world: Any) -> None:
    say_who(world)
    world.note("n1", "Ada wrote about her rash")
    request = world.erase()
    report = world.reader.certificate(world.acting(), request)
    made = letter(world, request, language="en")
    text = plain(made)
    salt = re.search(r"Secret \(salt\): ([0-9a-f]{64})", text)
    number = re.search(r"Number: ([0-9a-f]{64})", text)
    assert salt is not None
    assert number is not None
    by_hand = hashlib.sha256(b"muniment-subject-commitment/v1\n" + bytes.fromhex(salt[1]) + ADA.encode()).hexdigest()
    assert json.loads(report)["certificate"]["subject_commitments"] == [number[1]] == [by_hand]
    quoted = "\n".join(f"> {line}" for line in text.replace(salt[1], f"{salt[1][:40]}\n{salt[1][40:]}").splitlines())
    german = plain(letter(world, request, language="de"))
    for carried in (
        paper.letter_pdf(made),
        paper.letter_html(made),
        json.dumps(made["opening"]).encode(),
        text.encode(),
        quoted.replace("\n", "\r\n").encode(),
        german.encode(),
    ):
        assert "about the person of the letter" in check_opening(report, opening_in(carried))
    other = {**made["opening"], "openings": [{**made["opening"]["openings"][0], "subject": "email:eve@example.org"}]}
    for wrong in (json.dumps(other).encode(), b"{}", b"x", b'{"openings": []}'):
        with pytest.raises(Exception, match=r"opens none|no opening"):
            check_opening(report, opening_in(wrong))


def test_the_letter_counts_what_the_certificate_lists_and_says_what_stays(world: Any) -> None:
    world.classes(
        {
            "invoice": {
                "description": "bills",
                "erasure": {"on_request": "retain", "basis": "tax law", "until": "P8Y", "required": "L2"},
            }
        }
    )
    world.note("n1", "Ada wrote about her rash")
    (world.files / "bill.txt").write_text("bill of Ada")
    bill = {"data_class": "invoice", "store": "cvs", "locator": {"path": "bill.txt"}, "subjects": [ADA]}
    world.register(bill)
    request = world.erase()
    assert world.state(request) == "completed_with_retained"
    text = plain(letter(world, request))
    copies = json.loads(world.reader.certificate(world.acting(), request))["certificate"]["copies"]
    kept = sum(copy["state"] == "retained" for copy in copies)
    assert f"Wir haben {len(copies)} Kopien" in text, "Bavaria is written to in German"
    assert f"{kept} müssen wir vorerst" in text
    assert "Was wir behalten und warum" in text
    assert "bills: das Gesetz erlaubt uns, sie trotz Ihres Antrags zu behalten (tax law)" in text
    assert "invoice" not in text, "a person knows no names of our classes"


def test_a_letter_says_why_in_words_and_names_no_hold_of_ours(world: Any) -> None:
    from tests.erasure.test_erasure_collateral import hold

    kept = world.file("kept.txt", "Ada's summary")
    hold_id = hold(world, kept)
    request = world.erase()
    assert world.state(request) == "completed_with_retained"
    for language, reason in (("en", "a legal matter"), ("de", "einer rechtlichen Angelegenheit")):
        text = plain(letter(world, request, language=language))
        assert reason in text
        assert hold_id not in text
        assert "legal hold" not in text


def certified(*states: str, **more: Any) -> dict[str, Any]:
    copies = [
        {
            "copy": number,
            "state": state,
            "store": "db",
            "data_class": "note",
            "method": None,
            "collateral": None,
            **more,
        }
        for number, state in enumerate(states, start=1)
    ]
    return {"version": "final", "copies": copies, "retained": [], "residuals": []}


@pytest.mark.parametrize(
    ("states", "lang", "words"),
    [
        (("erased_physical",), "en", "We found one copy of your data in one of our systems. It is gone."),
        (
            ("erased_physical",),
            "de",
            "Wir haben eine Kopie Ihrer Daten in einem unserer Systeme gefunden. Sie ist weg.",
        ),
        (("erased_physical", "already_absent"), "en", "One of them is gone;"),
        (("erased_physical", "already_absent"), "en", "One was not there any more when we came to erase it"),
        (("already_absent", "already_absent"), "de", "2 waren nicht mehr da, als wir sie löschen wollten"),
        (("retained", "failed", "key_destroyed"), "en", "One we have to keep for now, see below. One could not be"),
    ],
)
def test_an_answer_counts_in_singular_and_plural_and_what_was_gone_already_apart(
    states: tuple[str, ...], lang: str, words: str
) -> None:
    text = plain(letter_of(facts(kind="answer", lang=lang, certificate=certified(*states))))
    assert words in text
    assert re.search(r"\b1 (copies|Kopien|of|davon|were|waren)\b", text) is None
    if states == ("already_absent", "already_absent"):
        assert "Sie sind alle weg" not in text


def test_an_answer_does_not_say_that_a_copy_was_gone_before_us_where_an_earlier_attempt_may_have_erased_it() -> None:
    certificate = certified("already_absent", "already_absent", "already_absent")
    for copy in certificate["copies"][:2]:
        copy["method"] = f"found absent; {MAYBE_OURS}"
    for lang, words in (
        (
            "en",
            ("2 were not there any more when we tried again", "One was not there any more when we came to erase it"),
        ),
        ("de", ("2 waren nicht mehr da, als wir noch einmal versuchten", "Eine war nicht mehr da, als wir sie")),
    ):
        text = plain(letter_of(facts(kind="answer", lang=lang, certificate=certificate)))
        assert all(one in text for one in words)


def test_an_answer_says_how_much_of_what_is_gone_was_about_others_too() -> None:
    certificate = certified("erased_physical", "erased_physical", collateral={"subjects": 1})
    assert "2 of what is gone were also by or about other people" in plain(
        letter_of(facts(kind="answer", certificate=certificate))
    )


def test_certificate_and_letter_say_what_a_request_was_limited_to_and_nobody_can_widen_it(world: Any) -> None:
    world.note("n1", "Ada wrote about her rash")
    world.file("kept.txt", "Ada's summary")
    request = world.ask(scope={"data_classes": ["note"]})
    world.plan(request)
    world.approve(request)
    world.work()
    report = world.reader.certificate(world.acting(), request)
    certificate = json.loads(report)["certificate"]
    assert certificate["scope"] == {"of": "data_classes", "data_classes": ["note"]}
    check(report, world.certificate_key, world.log_key)
    certificate["scope"] = {"of": "all"}
    with sign(certificate, world.services.certificate_signer(world.tenant.log_id)) as signed:
        widened = signed.read()
    with pytest.raises(ReportError, match="/certificate/scope"):
        check(widened, world.certificate_key, world.log_key)
    assert "these classes of data: note, and nothing else" in sheet_of(report)["verdict"]
    assert "Er war auf diese Datenarten beschränkt: made up." in plain(letter(world, request))
    assert (world.files / "kept.txt").exists()


def test_what_stays_and_what_failed_stand_on_paper_and_letter_with_ground_and_approver(world: Any) -> None:
    world.classes(
        {"invoice": {"erasure": {"on_request": "retain", "basis": "tax law", "until": "P8Y", "required": "L2"}}}
    )
    (world.files / "bill.txt").write_text("bill of Ada")
    world.register({"data_class": "invoice", "store": "cvs", "locator": {"path": "bill.txt"}, "subjects": [ADA]})
    world.memory_store("odd", Faults(unreachable=True))
    world.keep_in_memory("odd", "a", "Ada wrote about her rash")
    world.note("n1", "Ada wrote about her rash")
    request = world.erase()
    assert world.state(request) == "partially_failed"
    with pytest.raises(LetterNotReady):
        letter(world, request, kind="answer")
    world.desk.accept_exceptions(world.acting("dan"), request, reason="the vendor is gone", now=world.now)
    world.work()
    report = world.reader.certificate(world.acting(), request)
    shown = paper.certificate_html(report).decode()
    for needle in ("Interim: ended with exceptions", "store not reached", "dan, ", "tax law", "invoice"):
        assert needle in shown, needle
    assert "vendor is gone" not in shown, "the reason is sealed"
    pdf = paper.certificate_pdf(report)
    assert compare(pdf, certificate_in(pdf)) is Pages.SAME
    check(report, world.certificate_key, world.log_key)
    text = plain(letter(world, request, language="en"))
    assert "could not be erased, see below" in text
    assert "- made up (our system «odd»)" in text
    assert "tax law" in text


def test_the_state_decides_which_letter_is_written(world: Any) -> None:
    request = world.ask()
    assert "Sie erhalten unsere Antwort spätestens am 1. Juli 2026." in plain(letter(world, request))
    for kind in ("extension", "refusal", "no_match", "answer", "restriction_lifting"):
        with pytest.raises(LetterNotReady):
            letter(world, request, kind=kind)
    world.desk.extend(world.acting("ann"), request, reason="three vendors hold copies", now=world.now)
    text = plain(letter(world, request, language="en"))
    assert "Reason: three vendors hold copies" in text
    assert "1 September 2026" in text
    world.desk.refuse(world.acting("ann"), request, ground="manifestly_unfounded", now=world.now)
    assert "the request is manifestly unfounded" in plain(letter(world, request, language="en"))
    with pytest.raises(LetterNotReady):
        letter(world, request, kind="answer")


def test_who_is_not_known_is_told_where_was_looked_and_gets_no_certificate(world: Any) -> None:
    request = world.ask("email:nobody@example.org")
    world.plan(request)
    assert world.state(request) == "no_match"
    made = letter(world, request, language="en")
    text = plain(made)
    assert "nobody@example.org" in text
    assert "We looked in the systems cvs, db" in text
    assert "no certificate of an erasure" in text
    assert made["opening"] is None


def test_unknown_kinds_languages_and_requests_are_named(world: Any) -> None:
    request = world.ask()
    for asked in ({"kind": "love"}, {"language": "fr"}):
        with pytest.raises(InvalidRequest):
            letter(world, request, **asked)
    with pytest.raises(UnknownRequest):
        letter(world, "req_none")


def test_a_letter_that_was_read_is_an_entry_of_the_record_without_a_name(world: Any) -> None:
    from sqlmodel import select

    from ledger.models import OutboxRow

    request = world.ask()
    letter(world, request)
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        kinds = [row.kind for row in session.exec(select(OutboxRow))]
    assert "content.read" in kinds


def test_once_the_words_are_destroyed_there_is_no_letter(world: Any) -> None:
    world.note("n1", "Ada wrote about her rash")
    request = world.erase()
    world.now += timedelta(days=2)
    world.services.keks.turn(world.now, force=True)
    world.work()
    world.now += timedelta(days=31)
    assert end_footprints(world.parts, world.tenant.tenant_id, world.now) == 1
    with pytest.raises(RequestDataGone):
        letter(world, request)


def test_dates_are_written_as_people_write_them() -> None:
    assert day_text(date(2026, 3, 1)) == "1 March 2026"
    assert day_text(date(2026, 3, 1), "de") == "1. März 2026"

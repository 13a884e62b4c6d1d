"""Clocks that wait: artifacts and keys of the record end with the consent that covers them, or with their event."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlmodel import col, select

from api.preview import due_under, ending_under, newly_due
from registry.artifacts import register
from registry.classes import in_force
from registry.declared import put_stream
from registry.duration import Duration
from registry.errors import InvalidDeclaration
from registry.identifiers import parse_subject
from registry.merging import propose_merge
from retention.consenting import consents_about, record_consent, renew, withdraw_consent
from retention.errors import NotKnown, NotOpen
from retention.models import KeyHintRow
from vault.models import DataKey, KeyState

ADA = "email:ada@example.org"
BOB = "email:bob@example.org"
DAY = timedelta(days=1)


def waiting(house: Any, name: str, starts: str, keep: str = "P0D", state: str = "conversation") -> None:
    retention = {"keep": keep, "from": starts, "latest": "P2Y", "then": "erase"}
    house.plain(name, state=state, retention=retention)


@pytest.fixture
def voice(house: Any) -> Any:
    """A house where voice is kept as long as consent covers it, in a store and in the record."""
    waiting(house, "voice", "consent")
    waiting(house, "spoken", "consent", state="record")
    waiting(house, "case", "event:case.closed", "P1M", state="record")
    return house


def consent(house: Any, subject: str = ADA, **more: Any) -> str:
    with house.transaction() as session:
        spec = {"subject": subject, "words": "notice of 1 June, version 3", **more}
        found = record_consent(session, house.services.vault, house.services.record, house.acting(), spec, house.now)
    return str(found["id"])


def withdraw(house: Any, consent_id: str, at: datetime | None = None) -> None:
    with house.transaction() as session:
        withdraw_consent(session, house.services.record, house.acting(), consent_id, at=at or house.now, now=house.now)


def live(house: Any, data_class: str) -> set[tuple[str, str]]:
    """The person and month of every live key of a class."""
    with house.transaction(write=False) as session:
        rows = session.exec(
            select(DataKey).where(DataKey.data_class == data_class, col(DataKey.state) == KeyState.LIVE.value)
        ).all()
    return {(str(row.subject_id), row.month) for row in rows}


def stream(house: Any, name: str, **scope: str) -> str:
    with house.transaction() as session:
        put_stream(session, house.services.vault, house.acting(), {"stream": name, "scope": scope}, house.now)
    return name


def test_voice_lasts_as_long_as_consent_covers_it(voice: Any) -> None:
    house = voice
    given = consent(house, data_classes=["voice"])
    house.note("a", "voice")
    house.note("b", "voice", BOB)
    house.now += 100 * DAY
    assert house.sweep()["counts"]["ends"] == 0
    withdraw(house, given)
    house.sweep()
    assert house.rows() == {"b"}, "Bob's waits for its cap: nothing says that he took anything back"
    house.note("late", "voice")
    house.now += timedelta(hours=1)
    house.sweep()
    assert house.rows() == {"b"}, "what comes after a withdrawal ends at once"


def test_a_preview_counts_what_a_consent_that_ended_would_end_under_another_class(house: Any) -> None:
    waiting(house, "voice", "consent", "P1Y")
    given, other = consent(house, data_classes=["voice"]), consent(house, BOB)
    ended = house.note("a", "voice")
    house.note("b", "voice", BOB)
    house.note("c", "voice", "email:cora@example.org")
    withdraw(house, given)
    withdraw(house, other)
    consent(house, BOB)  # who gave it again
    house.now += 10 * DAY
    with house.transaction(write=False) as session:
        known = in_force(session, house.tenant_id)["voice"]
        for keep, due in (("P11D", []), ("P9D", [ended])):
            wanted = replace(known, keep=Duration.parse(keep))
            assert newly_due(session, house.tenant_id, known, wanted, house.now) == due
            for count in (due_under, ending_under):
                assert count(session, house.tenant_id, known, house.now) == 0
                assert count(session, house.tenant_id, wanted, house.now) == len(due)
            assert newly_due(session, house.tenant_id, wanted, wanted, house.now) == []


def test_a_consent_with_an_end_ends_then_and_a_later_one_covers_on(voice: Any) -> None:
    house = voice
    consent(house, until=(house.now + 30 * DAY).isoformat())
    house.note("a", "voice")
    house.now += 29 * DAY
    house.sweep()
    second = consent(house, until=(house.now + 30 * DAY).isoformat())
    house.now += 2 * DAY
    house.sweep()
    assert house.rows() == {"a"}
    withdraw(house, second)
    house.now += DAY
    house.sweep()
    assert house.rows() == set()


def test_an_item_that_comes_into_the_class_later_ends_with_a_consent_that_ended_before(voice: Any) -> None:
    house = voice
    house.plain("clip")
    withdraw(house, consent(house))
    house.note("a", "clip")
    house.now += DAY
    house.sweep()
    item = {"data_class": "voice", "store": "app", "locator": {"table": "note", "key": {"id": "a"}}, "subjects": [ADA]}
    with house.transaction() as session:
        [result] = register(session, house.services.vault, house.acting(), [item], house.now)
    assert result["status"] == "changed"
    house.sweep()
    assert house.rows() == set()


def test_a_consent_covers_its_classes_and_scopes_and_no_others(voice: Any) -> None:
    house = voice
    waiting(house, "image", "consent")
    given = [consent(house, data_classes=["image"]), consent(house, scope={"role": "r2"}), consent(house)]
    house.note("a", "voice", scope={"role": "r1"})
    house.note("b", "voice", scope={"role": "r2"})
    house.note("c", "image", scope={"role": "r1"})
    withdraw(house, given[2])
    house.now += DAY
    house.sweep()
    assert house.rows() == {"b", "c"}
    withdraw(house, given[0])
    house.sweep()
    assert house.rows() == {"b"}
    withdraw(house, given[1])
    house.sweep()
    assert house.rows() == set()


def test_what_is_about_two_ends_with_the_consent_of_the_first_who_takes_it_back(voice: Any) -> None:
    house = voice
    mine, _ = consent(house), consent(house, BOB)
    house.note("both", "voice", subjects=[ADA, BOB])
    house.now += DAY
    house.sweep()
    assert house.rows() == {"both"}
    withdraw(house, mine)
    house.sweep()
    assert house.rows() == set()


def test_who_joins_an_item_by_a_late_source_ends_it_with_their_consent(voice: Any) -> None:
    """The date by which a pass finds it stayed that of those whom it was about before."""
    house = voice
    house.plain("text")
    consent(house)
    withdraw(house, consent(house, BOB))
    house.note("a", "voice")
    made = house.note("made", "voice", sources=[house.note("b", "voice")])
    said = house.note("said", "text", BOB)
    house.now += DAY
    house.sweep()
    assert house.rows() == {"a", "b", "made", "said"}
    for key in ("a", "b"):
        item = {"data_class": "voice", "store": "app", "locator": {"table": "note", "key": {"id": key}},
                "subjects": [ADA], "sources": [said]}  # fmt: skip
        with house.transaction() as session:
            [result] = register(session, house.services.vault, house.acting(), [item], house.now)
        assert result["status"] in {"exists", "changed"}, result
    assert house.artifact(made).status == "live"
    house.sweep()
    assert house.rows() == {"said"}


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
def test_all_that_a_withdrawal_concerns_ends_however_much_it_is(voice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retention.consenting.MAX_HINTS", 1)
    house = voice
    given = consent(house)
    for key in "abc":
        house.note(key, "voice")
    house.now += 40 * DAY
    house.sweep()
    withdraw(house, given)
    house.sweep()
    assert house.rows() == set()


def test_people_who_turn_out_to_be_one_end_their_items_by_the_consents_of_both(voice: Any) -> None:
    house = voice
    withdraw(house, consent(house, BOB))
    house.note("a", "voice")
    house.say("chat", "my voice", "spoken")
    house.now = datetime(2040, 7, 2, tzinfo=UTC)
    house.sweep()
    assert house.rows() == {"a"}
    assert len(live(house, "spoken")) == 1
    with house.transaction() as session:
        done = propose_merge(
            session, house.services.vault, house.acting(), [parse_subject(ADA), parse_subject(BOB)], reason="r",
            now=house.now, single=True,
        )  # fmt: skip
        renew(session, house.tenant_id, done.numbers)
    assert done.state == "done"
    house.sweep()
    assert house.rows() == set()
    assert live(house, "spoken") == set()


def test_a_held_voice_stays_although_consent_ended(voice: Any) -> None:
    house = voice
    given = consent(house)
    house.note("a", "voice")
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"subjects": [ADA]}}
    house.holds.place(house.acting(), spec, house.now)
    withdraw(house, given)
    assert house.sweep()["kept"] == {"hold": 1}
    assert house.rows() == {"a"}


def test_a_month_of_the_record_ends_when_it_is_over_and_consent_has_ended(voice: Any) -> None:
    house = voice
    given = consent(house)
    house.say("chat", "my voice", "spoken")
    house.say("chat", "his voice", "spoken", BOB)
    house.now += 10 * DAY
    withdraw(house, given)
    house.sweep()
    assert len(live(house, "spoken")) == 2, "more may come under the key while its month lasts"
    house.now = datetime(2040, 7, 1, 2, tzinfo=UTC)
    house.sweep()
    assert len(live(house, "spoken")) == 1
    house.now = datetime(2042, 7, 2, tzinfo=UTC)
    house.sweep()
    assert live(house, "spoken") == set(), "nobody asked Bob: the cap ends it"


def test_a_withdrawal_long_after_the_month_ends_its_key_at_once(voice: Any) -> None:
    house = voice
    given = consent(house)
    house.say("chat", "my voice", "spoken")
    house.now = datetime(2041, 1, 10, tzinfo=UTC)
    house.sweep()
    assert len(live(house, "spoken")) == 1
    withdraw(house, given)
    house.now += timedelta(hours=1)
    run = house.sweep()
    assert run["counts"]["removed"] == 1
    assert live(house, "spoken") == set()


def test_a_key_ends_with_the_last_of_its_conversations(voice: Any) -> None:
    house = voice
    house.say(stream(house, "one", case="c1"), "first", "case")
    house.say(stream(house, "two", case="c2"), "second", "case")
    house.event("case.closed", case="c1")
    house.now = datetime(2040, 9, 1, tzinfo=UTC)
    house.sweep()
    assert len(live(house, "case")) == 1, "the other case is open"
    house.event("case.closed", case="c2")
    house.now = datetime(2040, 9, 30, 23, tzinfo=UTC)
    house.sweep()
    assert len(live(house, "case")) == 1
    house.now = datetime(2040, 10, 1, 0, tzinfo=UTC)
    house.sweep()
    assert live(house, "case") == set()


def test_an_event_names_a_conversation_by_its_name_and_one_person_by_theirs(voice: Any) -> None:
    house = voice
    house.say("one", "mine", "case")
    house.say(stream(house, "two", case="c2"), "mine", "case", BOB)
    house.say("two", "hers", "case", "email:cleo@example.org")
    house.event("case.closed", conversation="one")
    house.event("case.closed", subject=BOB, case="c2")
    house.now = datetime(2040, 8, 2, tzinfo=UTC)
    house.sweep()
    assert len(live(house, "case")) == 1


def test_a_consent_is_proven_readable_by_the_desk_and_ends_once(voice: Any) -> None:
    house = voice
    given = consent(house, data_classes=["voice"])
    with house.transaction() as session:
        [shown] = consents_about(session, house.services.vault, house.acting(), ADA, house.now)
    assert (shown["id"], shown["words"]) == (given, "notice of 1 June, version 3")
    withdraw(house, given)
    with pytest.raises(NotOpen):
        withdraw(house, given)
    with pytest.raises(NotKnown):
        withdraw(house, "cns_none")


@pytest.mark.parametrize(
    "spec",
    [
        {"subject": "ada*"},
        {"words": ""},
        {"data_classes": ["nothing"]},
        {"data_classes": ["cv_file"]},
        {"given_at": "2040-06-02T09:00:00Z"},
        {"until": "2040-05-01T09:00:00Z"},
        {"scope": {}},
        {"scope": {"Conversation": "c"}},
        {"more": 1},
    ],
)
def test_a_consent_that_says_nothing_clear_is_refused(voice: Any, spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidDeclaration):
        consent(voice, **({"subject": ADA} | spec))


# ── the record, against a naive model ─────────────────────────────────────────────────────────────────────────────


class Model:
    """What a person with paper and a calendar would say; written without `retention`."""

    def __init__(self) -> None:
        self.cases: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self.spoken: set[tuple[str, str]] = set()
        self.closed: dict[str, datetime] = {}
        self.consents: defaultdict[str, list[datetime | None]] = defaultdict(list)

    @staticmethod
    def month_end(month: str) -> datetime:
        year, number = int(month[:4]), int(month[5:])
        following = datetime(year + (number == 12), number % 12 + 1, 1, tzinfo=UTC)
        return following - timedelta(microseconds=1)

    @staticmethod
    def later(at: datetime, *, months: int = 0, years: int = 0) -> datetime:
        total = at.year * 12 + at.month - 1 + months + 12 * years
        year, month = divmod(total, 12)
        for day in range(at.day, 0, -1):
            try:
                return at.replace(year=year, month=month + 1, day=day)
            except ValueError:
                continue
        raise AssertionError

    def case_end(self, key: tuple[str, str]) -> datetime:
        end = self.month_end(key[1])
        cap = self.later(end, years=2)
        if any(case not in self.closed for case in self.cases[key]):
            return cap
        start = max(end, *(self.closed[case] for case in self.cases[key]))
        return min(cap, self.later(start, months=1))

    def spoken_end(self, key: tuple[str, str]) -> datetime:
        end = self.month_end(key[1])
        cap = self.later(end, years=2)
        given = self.consents[key[0]]
        if not given or None in given:
            return cap
        return min(cap, max(end, *(one for one in given if one is not None)))


@pytest.mark.timeout(600)
def test_every_key_ends_in_the_pass_that_a_naive_model_says(voice: Any, full_length: bool) -> None:
    """Random conversations, cases that close and close again, consents given and withdrawn; a pass every few days."""
    house, chance, model = voice, random.Random(7), Model()
    people = [f"email:p{number}@example.org" for number in range(4)]
    numbers: dict[str, str] = {}
    streams = {f"s{number}": f"c{number % 5}" for number in range(8)}
    for name, case in streams.items():
        stream(house, name, case=case)
    open_consents: list[tuple[str, str, int]] = []
    checked = 0
    for step in range(600 if full_length else 60):
        house.now += timedelta(days=chance.randrange(1, 13), hours=chance.randrange(24))
        month, who = f"{house.now:%Y-%m}", chance.choice(people)
        what = chance.random()
        if what < 0.35:
            where = chance.choice(sorted(streams))
            house.say(where, f"line {step}", "case", who)
            model.cases[who, month].add(streams[where])
        elif what < 0.55:
            house.say(chance.choice(sorted(streams)), f"line {step}", "spoken", who)
            model.spoken.add((who, month))
        elif what < 0.75:
            case = chance.choice(sorted(set(streams.values())))
            house.event("case.closed", case=case)
            model.closed[case] = house.now
        elif what < 0.9 or not open_consents:
            open_consents.append((consent(house, who), who, len(model.consents[who])))
            model.consents[who].append(None)
        else:
            given, whose, place = open_consents.pop(chance.randrange(len(open_consents)))
            withdraw(house, given)
            model.consents[whose][place] = house.now
        if step % 3:
            continue
        house.sweep()
        if not numbers:
            numbers = names(house, people)
        numbers |= names(house, people)
        expected = {
            "case": {(numbers[who], month) for who, month in model.cases if model.case_end((who, month)) > house.now},
            "spoken": {key for key in model.spoken if model.spoken_end(key) > house.now},
        }
        expected["spoken"] = {(numbers[who], month) for who, month in expected["spoken"]}
        for name, keys in expected.items():
            assert live(house, name) == keys, f"{name} at {house.now}"
        checked += 1
        # What has ended is over: a case that closes again, or a new consent, does not bring it back.
        for key in [key for key in model.cases if model.case_end(key) <= house.now]:
            del model.cases[key]
        model.spoken = {key for key in model.spoken if model.spoken_end(key) > house.now}
    assert checked >= 20


def names(house: Any, people: list[str]) -> dict[str, str]:
    from registry.identifiers import parse_subject
    from registry.subjects import resolve

    with house.transaction() as session:
        found = resolve(
            session, house.services.vault, house.acting(), [parse_subject(one) for one in people], house.now
        )
    return {who: str(number) for who, number in zip(people, found, strict=True)}


# ── what was made from the record ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def told(house: Any) -> Any:
    """A house with two months of talk, and classes that derive from it."""
    house.plain("talk", state="record", retention={"keep": "P2M", "from": "created", "then": "erase"})
    long = {"keep": "P7Y", "from": "created", "then": "erase"}
    house.plain("summary", retention=long)
    house.plain("ruling", retention=long, derived={"default": "cascade", "may_outlive_source": True})
    house.plain("digest", retention=long, derived={"default": "keep_if_other_sources"})
    return house


def test_what_was_made_from_an_entry_ends_with_it(told: Any) -> None:
    house = told
    first = house.say("chat", "I live in Lima", "talk")
    house.note("summary", "summary", sources=[f"entry:{first}"])
    house.note("ruling", "ruling", sources=[f"entry:{first}"])
    house.now = datetime(2040, 7, 1, 9, tzinfo=UTC)
    second = house.say("chat", "and moved", "talk")
    house.note("digest", "digest", sources=[f"entry:{first}", f"entry:{second}"])
    house.now = datetime(2040, 8, 31, 1, tzinfo=UTC)
    house.sweep()
    assert house.rows() == {"summary", "ruling", "digest"}, "its key goes in this pass"
    house.now += timedelta(hours=1)
    run = house.sweep()
    assert house.rows() == {"ruling", "digest"}
    assert [copy["rule"] for copy in house.sweeps.report(house.acting(), run["id"])["copies"]] == ["source_end"]
    house.now = datetime(2040, 10, 1, 1, tzinfo=UTC)
    house.sweep()
    house.now += timedelta(hours=1)
    house.sweep()
    assert house.rows() == {"ruling"}, "no source of the digest is left"


def test_an_entry_that_a_hold_keeps_keeps_what_was_made_from_it(told: Any) -> None:
    house = told
    said = house.say("chat", "I live in Lima", "talk")
    house.note("summary", "summary", BOB, sources=[f"entry:{said}"])
    spec = {"name": "n", "matter": "m", "reason": "r", "selector": {"data_classes": ["talk"]}}
    placed = house.holds.place(house.acting("ann"), spec, house.now)
    house.now = datetime(2040, 9, 20, tzinfo=UTC)
    for _ in range(2):
        house.sweep()
        house.now += timedelta(hours=1)
    assert house.rows() == {"summary"}
    house.holds.release(house.acting("bea"), placed["id"], preview=False, now=house.now)
    for _ in range(2):
        house.sweep()
        house.now += timedelta(hours=1)
    assert house.rows() == set()


def hints(house: Any) -> int:
    with house.transaction(write=False) as session:
        return len(session.exec(select(KeyHintRow)).all())


def test_a_class_that_stops_waiting_is_found_by_month_again_and_leaves_no_hints(voice: Any) -> None:
    house = voice
    house.say("one", "mine", "case")
    house.now = datetime(2040, 7, 2, tzinfo=UTC)
    house.sweep()
    assert hints(house) == 1
    house.plain("case", state="record", retention={"keep": "P1M", "from": "created", "then": "erase"})
    house.now = datetime(2040, 7, 30, tzinfo=UTC)
    house.sweep()
    assert hints(house) == 0
    assert len(live(house, "case")) == 1
    house.now = datetime(2040, 8, 1, tzinfo=UTC)
    house.sweep()
    assert live(house, "case") == set()


def test_the_hint_of_a_key_goes_with_the_key(voice: Any) -> None:
    house = voice
    house.say("one", "mine", "case")
    house.event("case.closed", conversation="one")
    house.now = datetime(2040, 8, 2, tzinfo=UTC)
    house.sweep()
    assert live(house, "case") == set()
    house.now += timedelta(hours=1)
    house.sweep()
    assert hints(house) == 0

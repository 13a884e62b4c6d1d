"""What is decided for many copies at once is what is decided about each of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erasure import alike
from erasure.alike import Kin, all_go, are_told_apart
from retention.decide import DESTRUCTIVE, Claim, Hold, Item, Restriction, Rules, SourceEnd, decide
from tests.erasure.conftest import ADA, BOB, World

NOW = datetime(2026, 6, 1, tzinfo=UTC)
NONE: frozenset[Any] = frozenset()
people = st.frozensets(st.integers(1, 3))
classes = st.frozensets(st.sampled_from(["note", "mail"]))
scopes = st.frozensets(st.sampled_from(["s1", "s2"]))
instants = st.integers(-900, 900).map(lambda days: NOW + timedelta(days=days))
maybe = st.none() | instants


class Days:
    """A period as `decide` uses it."""

    def __init__(self, days: int) -> None:
        self.days = days

    def add_to(self, instant: datetime) -> datetime:
        return instant + timedelta(days=self.days)


periods = st.integers(1, 900).map(Days)
rules = st.builds(
    Rules, name=st.just("note"), keep=st.none() | periods, starts=st.sampled_from(["created", "observed", "consent"]),
    latest=st.none() | periods, then=st.sampled_from(["erase", "review"]), floor_for=st.none() | periods,
    floor_covers=st.sampled_from(["content", "skeleton"]), ceiling_for=st.none() | periods,
    on_request=st.sampled_from(["erase", "regenerate", "retain"]), exempt_for=st.none() | periods,
    exempt_until=maybe, derived=st.sampled_from(["cascade", "regenerate", "keep_if_other_sources", "review"]),
    may_outlive_source=st.booleans(),
)  # fmt: skip
claims = st.builds(
    Claim, request_id=st.just("req_1"), right=st.sampled_from(["erasure", "access"]), subjects=people, at=instants,
    due_at=instants, data_classes=st.none() | classes, scopes=st.none() | scopes,
    artifacts=st.none() | st.frozensets(st.integers(1, 9)), roots=st.frozensets(st.integers(1, 9)),
)  # fmt: skip
holds = st.lists(
    st.builds(Hold, hold_id=st.just("h"), subjects=people, data_classes=classes, scopes=st.just(NONE) | scopes,
              artifacts=st.just(NONE) | st.frozensets(st.integers(1, 9))),
    max_size=2,
)  # fmt: skip
restrictions = st.lists(
    st.builds(Restriction, request_id=st.just("r"), subject=st.integers(1, 3), since=instants,
              data_classes=st.none() | classes, scopes=st.none() | scopes),
    max_size=2,
)  # fmt: skip
sources = st.lists(
    st.builds(SourceEnd, st.sampled_from(["live", "erased", "erasing", "retained"]), maybe, st.booleans()), max_size=3
).map(tuple)
items = st.builds(
    Item, item_id=st.integers(1, 9), data_class=st.sampled_from(["note", "mail"]), created=instants, subjects=people,
    own_subjects=people, observed=maybe, last_activity=maybe, consent_until=maybe, expires_at=maybe, scopes=scopes,
    sources=sources, kept_until=maybe, events=st.dictionaries(st.sampled_from("ab"), maybe),
)  # fmt: skip


@given(item=items, rule=rules, claim=claims, held=holds, restricted=restrictions, others=st.lists(claims, max_size=1))
def test_no_item_is_ended_with_its_kin_that_would_stay_by_itself(
    item: Item, rule: Rules, claim: Claim, held: list[Hold], restricted: list[Restriction], others: list[Claim]
) -> None:
    kin = Kin(item.data_class, item.subjects, item.own_subjects)
    if are_told_apart(claim, held, restricted) or not all_go(kin, rule, claim, held, restricted, NOW):
        return
    exports = [other for other in others if other.right == "access"]
    decision = decide(item, rule, held, restricted, [claim, *exports], NOW)
    assert (decision.action in DESTRUCTIVE, decision.rule) == (True, "request")
    assert item.subjects <= claim.subjects


PLAIN = Rules(name="note", keep=None, starts="created")
ASKED = Claim("req_1", "erasure", frozenset({1}), NOW, NOW + timedelta(days=30))
MINE = Kin("note", frozenset({1}), frozenset({1}))
MADE = MINE._replace(own_subjects=frozenset())


@pytest.mark.parametrize(
    ("kin", "changes", "goes"),
    [
        (MINE, {}, True),
        (MADE, {}, True),
        (MADE, {"derived": "keep_if_other_sources"}, False),
        (MINE, {"derived": "keep_if_other_sources"}, True),
        (MADE, {"derived": "review"}, False),
        (MINE, {"on_request": "regenerate"}, True),
        (MINE, {"on_request": "retain"}, False),
        (MINE, {"floor_for": Days(5)}, False),
        (MINE._replace(subjects=frozenset({1, 2})), {}, False),
        (MINE._replace(subjects=frozenset({2})), {}, False),
        (MINE._replace(data_class="mail"), {}, True),
    ],
)
def test_what_goes_with_its_kin(kin: Kin, changes: dict[str, Any], goes: bool) -> None:
    assert all_go(kin, replace(PLAIN, **changes), ASKED, [], [], NOW) is goes


@pytest.mark.parametrize(
    ("hold", "goes"),
    [
        (Hold("h", subjects=frozenset({2})), True),
        (Hold("h", subjects=frozenset({1})), False),
        (Hold("h", data_classes=frozenset({"note"})), False),
    ],
)
def test_a_hold_on_a_person_or_class_is_asked_of_all_at_once(hold: Hold, goes: bool) -> None:
    assert not are_told_apart(ASKED, [hold], [])
    assert all_go(MINE, PLAIN, ASKED, [hold], [], NOW) is goes


@pytest.mark.parametrize(
    ("claim", "held", "restricted"),
    [
        (ASKED._replace(scopes=frozenset({"s"})), [], []),
        (ASKED._replace(artifacts=frozenset({1})), [], []),
        (ASKED, [Hold("h", artifacts=frozenset({5}))], []),
        (ASKED, [Hold("h", entries=frozenset({5}))], []),
        (ASKED, [Hold("h", scopes=frozenset({"s"}))], []),
        (ASKED, [], [Restriction("r", 2, NOW, scopes=frozenset({"s"}))]),
    ],
)
def test_what_names_items_or_conversations_has_each_decided_by_itself(
    claim: Claim, held: list[Hold], restricted: list[Restriction]
) -> None:
    assert are_told_apart(claim, held, restricted)


def test_copies_that_differ_in_nothing_are_decided_once_and_the_others_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        world.note(f"n{number}", f"remark {number} of Ada")
    both = world.register(
        {"data_class": "note", "store": "db", "locator": {"table": "note", "key": {"id": "n9"}}, "subjects": [ADA, BOB]}
    )[0]
    request = world.ask()
    world.plan(request)
    world.approve(request)
    asked: list[frozenset[int]] = []

    def counted(item: Item, *more: Any) -> Any:
        asked.append(item.subjects)
        return decide(item, *more)

    monkeypatch.setattr(alike, "decide", counted)
    world.work(1)
    [ada] = {next(iter(some)) for some in asked}
    assert asked == [frozenset({ada})] * 2, "once without a source, once as if it had one"
    states = world.copy_states(request)
    assert states.pop(both) == "already_absent", "about Bob too, as the approved plan had shown"
    assert Counter(states.values())["erased_physical"] == len(range(5))
    assert not world.bytes_left("remark 0 of Ada")

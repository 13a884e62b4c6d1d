"""The part of the contract that is about trouble: what blocks, breaks off, is killed, restarted, refused or hidden."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from connectors.base import Level, Outcome, Selector
from connectors.errors import ConnectorError
from tests.connectors.beds import MIA, NOW, Bed, captured, elsewhere, erase, fill, shut_out, text_of
from tests.connectors.clauses import clause

# Erases in twos and dies between the second batch and the third.
_KILLED = f"""
for n in range(0, len(items), 2):
    if n == 4: os.kill(os.getpid(), signal.SIGKILL)
    connector.erase(items[n:n + 2], owner_identifiers=[{MIA!r}], now=NOW, deadline=30)
"""
# All that a worker does which knows nothing but the plan.
_BEGUN_ANEW = f"""
with connector:
    done = connector.erase(items, owner_identifiers=[{MIA!r}], now=NOW, deadline=60)
    report = connector.reclaim(Level.L2, now=NOW, deadline=60)
    seen = connector.verify(items, Level.L2, deadline=60, reclaimed=report)
said = [[each.outcome for each in done], sorted({{(each.level, each.present) for each in seen}}, key=str)]
"""
# Every verb once, and what each said; the values are judged by the test.
_TRIED = f"""
def tried(name, verb):
    try:
        answers[name] = verb()
    except ConnectorError as refused:
        answers[name] = [type(refused).__name__, str(refused)]
answers = said = {{}}
who, limit, at = [{MIA!r}], {{"deadline": 20}}, {{"deadline": 20, "now": NOW}}
with connector:
    tried("erase", lambda: sorted({{r.outcome for r in connector.erase(items, owner_identifiers=who, **at)}}))
    tried("verify", lambda: sorted({{str(each.present) for each in connector.verify(items, Level.L2, **limit)}}))
    tried("discover", lambda: len(list(connector.discover(Selector(identifiers=tuple(who)), **limit))))
    tried("walk", lambda: len(list(connector.walk(**limit))))
    tried("export", lambda: sorted({{content is None for _, content in connector.export(items, **limit)}}))
    tried("capture", lambda: sum(map(len, connector.capture(items, **limit).values())))
    tried("residue", lambda: len(connector.residue(items[0].canaries, **limit)))
    tried("reclaim", lambda: connector.reclaim(Level.L2, now=NOW, **limit).level)
    report = connector.check(now=NOW, **limit)
    answers["check"] = [report.reachable, report.can_erase, report.level_reached, *report.findings]
"""


_LOOKED = """
def said_or(name, verb):
    try:
        return verb()
    except ConnectorError as refused:
        return name or type(refused).__name__
with connector:
    found = connector.verify
    said = [
        said_or("refused", lambda: [each.present for each in found(items, Level.L2, deadline=20)]),
        said_or("", lambda: len(connector.residue(items[0].canaries, deadline=20))),
    ]
"""


def timed(verb: Callable[[], object]) -> tuple[object, float]:
    """Return what a verb said, None where it raised an error of ours, and the seconds it took."""
    started = time.monotonic()
    try:
        said = verb()
    except ConnectorError:
        said = None
    return said, time.monotonic() - started


class Troubles:
    """Whatever happens to a store or a worker, nothing is called gone that is there, and the next run ends the same."""

    @clause("time-outs")
    def test_a_store_that_blocks_ends_at_the_deadline_and_recovers(self, bed: Bed) -> None:
        mine, _ = fill(bed, 1)
        release = bed.block()
        started = datetime.now(UTC)
        try:
            with bed.open() as connector:
                try:
                    outcome = erase(connector, mine, deadline=0.7)[0].outcome
                except ConnectorError:
                    outcome = Outcome.FAILED
        finally:
            release()
        assert outcome is Outcome.FAILED
        assert (datetime.now(UTC) - started).total_seconds() < 5
        assert bed.get("mia-0") == text_of("mia-0")
        with bed.open() as connector:
            assert erase(connector, mine)[0].outcome is Outcome.ERASED

    @clause("time-outs")
    def test_no_verb_outlasts_its_deadline_in_a_store_that_blocks_and_none_makes_an_absence_of_it(
        self, bed: Bed
    ) -> None:
        mine, _ = fill(bed, 1)
        with bed.open() as connector:
            items = captured(connector, mine)
        release = bed.block()
        took: dict[str, float] = {}

        def said(name: str, verb: Callable[[], Any]) -> Any:
            answer, took[name] = timed(verb)
            return answer

        limit = 0.25
        try:
            with bed.open() as connector:
                kept = said("verify", lambda: [f.present for f in connector.verify(items, Level.L2, deadline=limit)])
                content = said("export", lambda: [text for _, text in connector.export(items, deadline=limit)])
                selector = Selector(identifiers=(MIA,))
                found = said("discover", lambda: len(list(connector.discover(selector, deadline=limit))))
                walked = said("walk", lambda: len(list(connector.walk(deadline=limit))))
                held = said("residue", lambda: len(connector.residue(items[0].canaries, deadline=limit)))
                said("capture", lambda: connector.capture(items, deadline=limit))
                freed = said("reclaim", lambda: connector.reclaim(Level.L2, now=NOW, deadline=limit).level)
        finally:
            release()
        assert max(took.values()) < 5, took
        assert kept is None or False not in kept
        assert content is None or None not in content
        # A partial list is no answer: everything or an error.
        assert found in {None, 1}
        assert walked is None or walked >= 2
        assert held is None or held >= 1 or bed.hits(text_of("mia-0")) == 0
        assert freed is None or freed in {Level.L1, Level.L2}
        assert bed.get("mia-0") == text_of("mia-0")

    @clause("partial failure in the middle of a batch")
    def test_an_item_that_the_store_will_not_let_go_fails_alone_and_goes_the_next_time(self, bed: Bed) -> None:
        found, others = fill(bed, 5)
        with bed.open() as connector:
            mine = captured(connector, found)
        release = bed.refuse("mia-2")
        try:
            with bed.open() as connector:
                try:
                    receipts = [(r.outcome, r.level) for r in erase(connector, mine)]
                except ConnectorError:
                    receipts = [(Outcome.FAILED, None)] * 5
            there = [bed.get(item.copy_id) == text_of(item.copy_id) for item in mine]
        finally:
            release()
        refused = {(Outcome.FAILED, None), (Outcome.LOCKED, None)}
        if bed.all_or_nothing:
            assert set(receipts) <= refused
            assert there == [True] * 5
        else:
            assert receipts[2] in refused
            assert receipts[:2] + receipts[3:] == [(Outcome.ERASED, Level.L1)] * 4
            assert there == [False, False, True, False, False]
        with bed.open() as connector:
            again = [r.outcome for r in erase(connector, mine)]
        assert again == [Outcome.ERASED if each else Outcome.ALREADY_ABSENT for each in there]
        assert [bed.get(item.copy_id) for item in mine] == [None] * 5
        assert [bed.get(item.copy_id) for item in others] == [text_of(item.copy_id) for item in others]

    @clause("kill -9 between batches")
    @pytest.mark.scenario("S40")
    def test_killed_between_batches_it_starts_again_and_ends_the_same(self, bed: Bed) -> None:
        mine, others = fill(bed)
        with bed.open() as connector:
            items = captured(connector, mine)
            reach = connector.capabilities().verify_level
        assert elsewhere(bed.source(), _KILLED, items) == 9
        with bed.open() as connector:
            receipts = erase(connector, items)
            report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        assert [r.outcome for r in receipts] == [Outcome.ALREADY_ABSENT] * 4 + [Outcome.ERASED] * 3
        with bed.open(read_only=True) as verifier:
            findings = verifier.verify(items, Level.L2, deadline=30, reclaimed=report)
        assert {(f.level, f.present) for f in findings} == {reached(reach)}
        assert [bed.get(item.copy_id) for item in others] == [text_of(item.copy_id) for item in others]

    @clause("store restarted in between")
    def test_restarted_between_batches_nothing_counts_as_absent_and_another_process_ends_it(self, bed: Bed) -> None:
        mine, others = fill(bed)
        kept = {item.copy_id: bed.whole(item.copy_id) for item in others}
        between: set[Outcome] = set()
        with bed.open() as connector:
            reach = connector.capabilities().verify_level
            items = captured(connector, mine)
            assert {r.outcome for r in erase(connector, items[:3])} == {Outcome.ERASED}
            if bed.serves:
                bed.restart()
                # The connection went with the server: an error, or one made anew, and never an absence.
                try:
                    between = {r.outcome for r in erase(connector, items[3:5])}
                except ConnectorError:
                    between = {Outcome.FAILED}
        if not bed.serves:
            bed.restart()
        assert between <= {Outcome.ERASED, Outcome.FAILED}
        outcomes, seen = elsewhere(bed.source(), _BEGUN_ANEW, items)
        absent, erased = str(Outcome.ALREADY_ABSENT), str(Outcome.ERASED)
        assert outcomes[:3] == [absent] * 3
        assert set(outcomes[3:5]) <= ({erased, absent} if Outcome.ERASED in between else {erased})
        assert outcomes[5:] == [erased] * 2
        assert seen == [list(reached(reach))]
        if reach >= Level.L2:
            # Before this process opens it: an engine may write old memory of its process, which has read these texts.
            assert [bed.hits(text_of(item.copy_id)) for item in mine] == [0] * len(mine)
        assert [bed.get(item.copy_id) for item in mine] == [None] * len(mine)
        assert {item.copy_id: bed.whole(item.copy_id) for item in others} == kept

    @clause("wrong credentials")
    def test_whom_the_store_refuses_sees_nothing_changes_nothing_and_proves_nothing(self, bed: Bed) -> None:
        mine, _ = fill(bed, 2)
        with bed.open() as connector:
            items = captured(connector, mine)
        with bed.stranger() as source:
            said = elsewhere(source, _TRIED, items)
        if bed.no_credentials:
            # Nobody is asked who he is: with a secret of nonsense it is the store's own doing that all of it works.
            assert said["erase"] == [str(Outcome.ERASED)]
            assert said["check"][1] is True
            return
        assert bed.get("mia-0") == text_of("mia-0")
        outcomes = said["erase"]
        assert outcomes == ["failed"] or outcomes[0] in {"WrongCredentials", "StoreUnreachable"}, said
        for verb, worst in (("verify", "False"), ("export", True)):
            assert worst not in said[verb], said
        # Zero found would read as «nothing there».
        for verb in ("discover", "walk", "capture", "residue"):
            assert isinstance(said[verb], list), (verb, said[verb])
        assert said["check"][1:3] == [False, None]
        assert "hunter2" not in str(said)
        assert "Blackthorn" not in str(said)

    @clause("wrong credentials")
    def test_a_part_of_the_store_that_may_not_be_read_is_no_proof_that_nothing_is_in_it(self, bed: Bed) -> None:
        mine, _ = fill(bed, 1)
        with bed.open() as connector:
            items = captured(connector, mine)
            erase(connector, items)
            connector.reclaim(Level.L2, now=NOW, deadline=30)
        folder = bed.folder()
        if folder is None:
            assert bed.serves or bed.no_folder, "a store in a folder has to name it"
            return
        part = folder / "somebody's"
        part.mkdir()
        (part / "copy").write_bytes(b"\0".join([text_of("mia-0").encode(), *items[0].canaries]))
        with shut_out(part, bed.source()) as source:
            present, residue = elsewhere(source, _LOOKED, items)
        assert present != [False]
        assert residue in {"WrongCredentials", "StoreUnreachable"}
        with bed.open(read_only=True) as verifier:
            finding = verifier.verify(items, Level.L2, deadline=30)[0]
        assert finding.present is not False
        shutil.rmtree(part)

    @clause("wrong scope")
    @pytest.mark.scenario("S37")
    def test_not_seen_from_the_wrong_scope_is_never_reported_as_absent(self, bed: Bed) -> None:
        mine, _ = fill(bed, 2)
        with bed.wrong() as connector:
            try:
                outcomes = {r.outcome for r in erase(connector, mine)}
            except ConnectorError:
                outcomes = {Outcome.FAILED}
        assert outcomes == {Outcome.FAILED}
        assert bed.get("mia-0") is not None

    @clause("wrong scope")
    @pytest.mark.scenario("S37")
    def test_looking_from_the_wrong_scope_is_never_an_answer(self, bed: Bed) -> None:
        mine, _ = fill(bed, 2)
        with bed.wrong() as connector:
            with pytest.raises(ConnectorError):
                list(connector.discover(Selector(identifiers=(MIA,)), deadline=30))
            with pytest.raises(ConnectorError):
                list(connector.walk(deadline=30))
            try:
                present = {finding.present for finding in connector.verify(mine, Level.L1, deadline=30)}
            except ConnectorError:
                present = {None}
        assert False not in present


def reached(reach: Level) -> tuple[Level, bool | None]:
    """Return level and presence of what is gone when L2 was asked: below it nobody says that the bytes are gone."""
    return (Level.L2, False) if reach >= Level.L2 else (reach, None)

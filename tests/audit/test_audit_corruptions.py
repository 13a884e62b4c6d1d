"""Every corruption we know is noticed, by the right word, at the right place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from audit.corruptions import CORRUPTIONS, HOT, SINCE, Copy, Corruption
from audit.findings import Report, Verdict
from audit.forge import MemoryBucket, note_of
from audit.prove import proof_json, prove
from audit.verify import Options, verify

EXPECTED = {
    "flip a bit in the headers of a batch": "altered",
    "flip the first bits of a batch's headers": "altered",
    "flip the last bits of the last batch's headers": "altered",
    "exchange a header in the middle": "altered",
    "exchange the last header": "altered",
    "exchange the last header of a batch": "altered",
    "change what a header names before it": "altered",
    "add an unknown field to a header": "altered",
    "change the count of a batch": "altered",
    "give the last batch an older fence": "forked",
    "let a batch name another checkpoint": "altered",
    "put a batch of another log at the end": "altered",
    "cut a batch in half": "altered",
    "empty a batch": "altered",
    "add white space to a batch": "altered",
    "drop the first batch": "missing",
    "drop a batch in the middle": "missing",
    "drop the last batch": "rolled_back",
    "drop the last batches with their checkpoints": "rolled_back",
    "roll everything back to an earlier head": "rolled_back",
    "swap two batches": "altered",
    "append a batch a second time": "altered",
    "lay a second batch over an index": "forked",
    "put a foreign object among the batches": "altered",
    "remove an entry from a batch": "altered",
    "insert an entry into a batch": "forked",
    "exchange the order of two entries": "altered",
    "write another end of the log without the key": "forked",
    "forge the whole log with another key": "forked",
    "sign everything again with another key": "forked",
    "rewrite the whole log with the log's own key": "forked",
    "sign two histories with the log's own key": "forked",
    "leave an entry of a stream out from the beginning": "missing",
    "splice in a second genesis": "forked",
    "change the root in a checkpoint": "altered",
    "sign the newest checkpoint with another key": "altered",
    "break the signature of a checkpoint": "altered",
    "swap two checkpoints": "altered",
    "drop a checkpoint that a batch names": "missing",
    "drop the newest checkpoint": "missing",
    "drop all checkpoints": "missing",
    "flip a bit in a payload": "altered",
    "cut a payload off": "altered",
    "empty a payload": "altered",
    "drop a payload": "missing",
    "put the part of another entry in its place": "altered",
    "let a header name an object that is no payload": "altered",
    "hide a batch under a delete marker": "hidden",
    "hide the last batch under a delete marker": "hidden",
    "hide a checkpoint under a delete marker": "hidden",
    "hide a payload under a delete marker": "hidden",
    "lay a second version over a batch": "hidden",
    "lay a second version over a checkpoint": "hidden",
    "lay a second version over a payload": "hidden",
    "let the store refuse a batch": "unreadable",
    "let the store refuse a payload": "unreadable",
    "change a tile": "altered",
    "drop a tile": "missing",
}


def audit(log: Copy, *, since: bytes | None = None, hot: bool = True) -> Report:
    return verify(
        log.bucket,
        log_id=log.history.log_id,
        keys=[log.key.vkey],
        options=Options(since=since),
        hot=log.hot if hot else None,
    )


@pytest.mark.scenario("L1", "L2", "L16")
@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda corruption: corruption.name)
def test_each_corruption_is_noticed_by_its_word(corruption: Corruption, log_with_tiles: Copy) -> None:
    since = note_of(log_with_tiles.history, log_with_tiles.history.sizes[-1], log_with_tiles.key)
    log = log_with_tiles.fresh()
    corruption.apply(log)
    report = audit(log, since=since if SINCE in corruption.needs else None)
    assert report.verdict.value == EXPECTED[corruption.name], [one.detail for one in report.findings]
    assert all(one.detail for one in report.findings)
    assert report.exit_code == (2 if report.verdict is Verdict.UNREADABLE else 1)


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda corruption: corruption.name)
def test_only_what_is_whole_in_itself_needs_more_than_the_key(corruption: Corruption, log_with_tiles: Copy) -> None:
    log = log_with_tiles.fresh()
    corruption.apply(log)
    report = audit(log, hot=HOT not in corruption.needs and SINCE not in corruption.needs)
    assert (report.verdict is Verdict.SOUND) == bool(corruption.needs)


def test_the_untouched_log_is_sound(log_with_tiles: Copy) -> None:
    report = audit(log_with_tiles)
    assert (report.word, report.exit_code, report.size, report.checked) == ("sound", 0, 600, 600)
    assert report.signed_size == 600
    assert not report.anchored


def test_proving_notices_everything_with_a_pinned_head(log_with_tiles: Copy) -> None:
    proof = prove(
        log_with_tiles.bucket, log_id=log_with_tiles.history.log_id, origin=log_with_tiles.key.name, with_since=True
    )
    assert proof.reason is None
    assert {one.outcome for one in proof.shown} == {"noticed"}, [one for one in proof.shown if one.outcome != "noticed"]
    assert len(proof.shown) >= 25
    assert proof.exit_code == 0


def test_proving_without_a_pinned_head_says_what_needs_one(log_with_tiles: Copy) -> None:
    proof = prove(
        log_with_tiles.bucket, log_id=log_with_tiles.history.log_id, origin=log_with_tiles.key.name, with_since=False
    )
    assert {one.name for one in proof.shown if one.outcome == "needs --since"} == {
        corruption.name for corruption in CORRUPTIONS if SINCE in corruption.needs
    }
    assert proof.exit_code == 0


def test_a_short_log_says_what_could_not_be_tried(make_log: object) -> None:
    log = make_log(batches=1, per_batch=1)  # type: ignore[operator]
    proof = prove(log.bucket, log_id=log.history.log_id, origin=log.key.name, with_since=True)
    assert {one.outcome for one in proof.shown} == {"noticed", "nothing to change"}, [
        one for one in proof.shown if one.outcome not in ("noticed", "nothing to change")
    ]


def test_a_damaged_log_is_not_proven_on(small_log: Copy) -> None:
    log = small_log.fresh()
    del log.bucket.objects[log.batch(1)]
    proof = prove(log.bucket, log_id=log.history.log_id, origin=log.key.name, with_since=False)
    assert proof.exit_code == 2
    assert proof.reason is not None


@pytest.mark.parametrize(("batches", "per_batch"), [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("fence", [(1, 1, 1), (1, 2, 3)])
def test_what_a_short_log_has_nothing_of_is_named_and_is_no_failure(
    make_log: Any, batches: int, per_batch: int, fence: tuple[int, ...]
) -> None:
    log: Copy = make_log(batches=batches, per_batch=per_batch)
    log.write(replace(log.history, fences=fence[:batches]), log.key)
    proof = prove(log.bucket, log_id=log.history.log_id, origin=log.key.name, with_since=True)
    assert proof.reason is None
    assert proof.exit_code == 0, [one for one in proof.shown if one.is_fault]
    told = proof_json(proof)
    assert told["not_tried"]
    assert told["noticed"] + len(told["not_tried"]) == told["of"] == len(CORRUPTIONS)


def test_a_log_without_a_checkpoint_is_said_so() -> None:
    proof = prove(MemoryBucket({}), log_id="0" * 32, origin="muniment/x", with_since=False)
    assert (proof.exit_code, proof.reason) == (
        2,
        "no checkpoint is there yet, so nothing is signed that could be altered",
    )

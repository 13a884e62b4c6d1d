"""Receipts that a caller kept against the log that gave them: what it lost, replaced or hid is found and named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from msgspec import structs

from audit.corruptions import Copy
from audit.errors import BadPin, BadReceipts
from audit.findings import Verdict
from audit.forge import MemoryBucket, StandInKey, chained, cut
from audit.receipt_file import origin_of, parse_receipt, read_answers
from audit.receipts import ReceiptReport, Standing, check_receipts
from ledger.batches import decode_batch, encode_batch
from ledger.checkpoint import sign_note
from ledger.entry import Kind
from ledger.errors import MalformedNote

AT = "2026-03-01T12:00:00.000000Z"


def note(log: Copy, batch: int, *, batches: int = 1, key: StandInKey | None = None, **other: Any) -> str:
    """The receipt that the log signs over a flush of batches; `other` lines instead of some of its own."""
    first = log.history.spans()[batch][0]
    start, end = log.history.spans()[batch + batches - 1]
    said = {
        "form": "muniment-receipt/v1",
        "origin": log.key.name,
        "first": first,
        "count": end - first,
        "digest": sha256(log.bucket.objects[f"{log.history.prefix}batch/{start:020d}"]).hexdigest(),
        "at": AT,
    } | other
    return sign_note("".join(f"{value}\n" for value in said.values()), [key or log.key]).decode()


def answer(log: Copy, batch: int, **options: Any) -> dict[str, Any]:
    """The answer to a call whose entries are all of a batch, or of several."""
    first, end = log.history.spans()[batch][0], log.history.spans()[batch + options.get("batches", 1) - 1][1]
    results = [{"id": log.history.headers[at].id, "status": "stored", "index": at} for at in range(first, end)]
    return {"results": results, "receipt": {"note": note(log, batch, **options)}}


def check(log: Copy, *answers: dict[str, Any] | str | bytes, keys: list[str] | None = None) -> ReceiptReport:
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in answers]
    return check_receipts(
        log.bucket, log_id=log.history.log_id, keys=keys or [log.key.vkey], answers=read_answers(b"\n".join(lines))
    )


def standings(report: ReceiptReport) -> list[Standing]:
    return [one.standing for one in report.checked]


def test_what_was_acknowledged_and_stands_is_covered_in_every_form_that_a_caller_may_keep(small_log: Copy) -> None:
    whole = answer(small_log, 1)
    for form in (whole, whole["receipt"], note(small_log, 1), {"receipt": note(small_log, 1), "results": []}):
        report = check(small_log, form)
        assert (report.verdict, standings(report), report.covered_size) == (Verdict.SOUND, [Standing.COVERED], 10)
    many = check(small_log, *[answer(small_log, at) for at in (3, 0, 2, 1)])
    assert standings(many) == [Standing.COVERED] * 4
    assert many.covered_size == 20
    bare = check_receipts(
        small_log.bucket,
        log_id=small_log.history.log_id,
        keys=[small_log.key.vkey],
        answers=read_answers(note(small_log, 0).encode()),
    )
    assert standings(bare) == [Standing.COVERED]
    assert standings(check(small_log, json.dumps(whole, indent=2).encode())) == [Standing.COVERED]


def test_one_receipt_over_several_batches_binds_each_of_them(small_log: Copy) -> None:
    log = small_log.fresh()
    one = answer(log, 0, batches=3)
    assert standings(check(log, one)) == [Standing.COVERED]
    del log.bucket.objects[log.batch(1)]
    report = check(log, one)
    assert standings(report) == [Standing.LOST]
    assert (report.checked[0].verdict, report.checked[0].object) == (Verdict.MISSING, log.batch(1))


def test_an_answer_with_notes_of_several_flushes_has_each_of_them_checked(small_log: Copy) -> None:
    both = answer(small_log, 0)
    both["receipt"]["later"] = [note(small_log, 2)]
    both["results"] += answer(small_log, 2)["results"]
    assert standings(check(small_log, both)) == [Standing.COVERED] * 2
    assert [one.receipt.first for one in check(small_log, both).checked if one.receipt] == [0, 10]


def test_entries_behind_the_newest_checkpoint_are_stored_and_not_called_covered(small_log: Copy) -> None:
    log = small_log.fresh()
    del log.bucket.objects[log.checkpoint(-1)]
    report = check(log, answer(log, 2), answer(log, 3))
    assert (standings(report), report.verdict) == ([Standing.COVERED, Standing.STORED], Verdict.SOUND)
    for at in range(3):
        del log.bucket.objects[log.checkpoint(at)]
    assert standings(check(log, answer(log, 2))) == [Standing.STORED]


@pytest.mark.scenario("L5", "L6")
def test_a_log_that_was_rolled_back_lost_what_it_had_acknowledged(small_log: Copy) -> None:
    # It is sound in itself, and without a kept head nothing else shows it.
    log = small_log.fresh()
    kept = [answer(log, at) for at in range(4)]
    log.write(cut(log.history, 10), log.key)
    report = check(log, *kept)
    assert standings(report) == [Standing.COVERED, Standing.COVERED, Standing.LOST, Standing.LOST]
    assert report.verdict is Verdict.ROLLED_BACK
    assert [(one.index, "it ends at 10 now" in one.detail) for one in report.findings] == [(10, True), (15, True)]


def test_a_history_that_was_written_anew_is_forked_from_the_changed_entry_on(small_log: Copy) -> None:
    log = small_log.fresh()
    kept = [answer(log, at) for at in range(4)]
    headers = list(log.history.headers)
    headers[7] = structs.replace(headers[7], kind=Kind.NOTE)
    log.write(replace(log.history, headers=chained(headers)), log.key)
    report = check(log, *kept)
    assert standings(report) == [Standing.COVERED, *[Standing.REPLACED] * 3]
    assert report.verdict is Verdict.FORKED


def test_no_changed_byte_of_the_batch_is_called_a_second_history(small_log: Copy) -> None:
    whole = small_log.bucket.objects[small_log.batch(1)]
    kept = answer(small_log, 1)
    for at in range(0, len(whole), 7):
        log = small_log.fresh()
        log.bucket.objects[log.batch(1)] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        report = check(log, kept)
        assert (standings(report), report.verdict) == ([Standing.DAMAGED], Verdict.ALTERED), at
        assert report.findings[0].object == log.batch(1)


def test_a_well_formed_batch_in_place_of_the_one_that_its_successor_names_is_altered(small_log: Copy) -> None:
    log = small_log.fresh()
    kept = answer(log, 1)
    batch = decode_batch(log.bucket.objects[log.batch(1)])
    log.bucket.objects[log.batch(1)] = encode_batch(replace(batch, fence=batch.fence + 1))
    assert standings(check(log, kept)) == [Standing.DAMAGED]


def hide(log: Copy) -> None:
    log.bucket.hidden.add(log.batch(1))


def cover(log: Copy) -> None:
    log.bucket.covered[log.batch(1)] = b"other"


def deny(log: Copy) -> None:
    log.bucket.denied.add(log.batch(1))


@pytest.mark.parametrize(
    ("harm", "standing", "verdict"),
    [
        (hide, Standing.HIDDEN, Verdict.HIDDEN),
        (cover, Standing.HIDDEN, Verdict.HIDDEN),
        (deny, Standing.UNREADABLE, Verdict.UNREADABLE),
    ],
)
def test_what_is_hidden_or_cannot_be_read_is_called_neither_lost_nor_fine(
    small_log: Copy, harm: Callable[[Copy], None], standing: Standing, verdict: Verdict
) -> None:
    log = small_log.fresh()
    harm(log)
    report = check(log, answer(small_log, 1))
    assert (standings(report), report.checked[0].verdict) == ([standing], verdict)
    assert report.findings[0].object == log.batch(1)


def test_damage_before_an_entry_leaves_it_stored_and_is_named_itself(small_log: Copy) -> None:
    log = small_log.fresh()
    log.bucket.objects[log.batch(0)] += b"x"
    report = check(log, answer(log, 2))
    assert (standings(report), report.covered_size, report.verdict) == ([Standing.STORED], 0, Verdict.ALTERED)
    assert [one.object for one in report.beside] == [log.batch(0)]


def lose_first(log: Copy) -> None:
    del log.bucket.objects[log.batch(0)]


def hide_first(log: Copy) -> None:
    log.bucket.hidden.add(log.batch(0))


def cut_behind(log: Copy) -> None:
    for at in (2, 3):
        del log.bucket.objects[log.batch(at)]
    del log.bucket.objects[log.checkpoint(1)]


def break_checkpoint(log: Copy) -> None:
    whole = log.bucket.objects[log.checkpoint(1)]
    log.bucket.objects[log.checkpoint(1)] = whole.replace(b"\n10\n", b"\n11\n")


def move_checkpoint(log: Copy) -> None:
    log.bucket.objects[log.checkpoint(1)] = log.bucket.objects[log.checkpoint(0)]


@pytest.mark.parametrize(
    ("harm", "verdict", "named", "standing"),
    [
        (lose_first, Verdict.MISSING, "batch/" + "0" * 20, Standing.STORED),
        (hide_first, Verdict.HIDDEN, "batch/" + "0" * 20, Standing.STORED),
        (cut_behind, Verdict.ROLLED_BACK, "batch/" + "0" * 18 + "10", Standing.STORED),
        (break_checkpoint, Verdict.UNREADABLE, "checkpoint/" + "0" * 18 + "10", Standing.COVERED),
        (move_checkpoint, Verdict.ALTERED, "checkpoint/" + "0" * 18 + "10", Standing.COVERED),
    ],
)
def test_what_keeps_an_entry_from_being_covered_is_named_with_its_object(
    small_log: Copy, harm: Callable[[Copy], None], verdict: Verdict, named: str, standing: Standing
) -> None:
    log = small_log.fresh()
    kept = answer(log, 1)
    harm(log)
    report = check(log, kept)
    assert (standings(report), report.verdict) == ([standing], verdict)
    assert [one.object for one in report.beside] == [f"{log.history.prefix}{named}"]


def test_a_log_full_of_checkpoints_that_no_key_signed_is_told_of_a_few(make_log: Callable[..., Copy]) -> None:
    log = make_log(batches=30, per_batch=1)
    report = check(log, note(log, 3), keys=[f"{log.key.vkey} 4-4"])
    assert standings(report) == [Standing.COVERED]
    report = check(log, note(log, 3, key=log.forger), keys=[log.forger.vkey])
    assert (standings(report), len(report.beside)) == ([Standing.STORED], 20)


def test_a_batch_in_the_place_of_another_is_damage_and_another_objects_name_means_nothing(small_log: Copy) -> None:
    log = small_log.fresh()
    kept = [answer(log, at) for at in range(4)]
    log.bucket.objects[f"{log.history.prefix}batch/notes"] = b"x"
    assert standings(check(log, *kept)) == [Standing.COVERED] * 4
    log.bucket.objects[log.batch(2)] = log.bucket.objects[log.batch(1)]
    assert standings(check(log, *kept))[2] is Standing.DAMAGED


class Growing(MemoryBucket):
    """A bucket whose listing is older than its objects."""

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        return (key for key in MemoryBucket.list(self, prefix, after) if not key.endswith("15"))


def test_what_cannot_be_asked_for_or_was_not_listed_yet_is_not_called_lost(small_log: Copy) -> None:
    kept = answer(small_log, 3)
    denied = small_log.fresh()
    del denied.bucket.objects[denied.batch(3)]
    denied.bucket.denied.add(denied.batch(3))
    assert standings(check(denied, kept)) == [Standing.UNREADABLE]
    growing = replace(small_log.fresh(), bucket=Growing(dict(small_log.bucket.objects)))
    report = check(growing, kept)
    assert (standings(report), report.verdict) == ([Standing.UNREADABLE], Verdict.UNREADABLE)
    assert "check again" in report.findings[0].detail


def test_batches_under_a_checkpoint_of_other_batches_are_two_histories(small_log: Copy) -> None:
    log = small_log.fresh()
    kept = answer(log, 3)
    other = log.fresh()
    headers = list(log.history.headers)
    headers[7] = structs.replace(headers[7], kind=Kind.NOTE)
    other.write(replace(log.history, headers=chained(headers)), log.key)
    log.bucket.objects[log.checkpoint(-1)] = other.bucket.objects[log.checkpoint(-1)]
    report = check(log, kept)
    assert (standings(report), report.verdict, report.covered_size) == ([Standing.STORED], Verdict.FORKED, 0)


def test_every_changed_character_of_a_receipt_is_refused_and_accuses_nobody(small_log: Copy) -> None:
    whole = note(small_log, 1)
    for at, character in enumerate(whole):
        changed = whole[:at] + ("0" if character != "0" else "1") + whole[at + 1 :]
        report = check(small_log, changed)
        assert standings(report) == [Standing.REFUSED], (at, character)
        assert report.verdict is Verdict.UNREADABLE
        for shorter in (whole[:at], whole[:at] + whole[at + 1 :]):
            if shorter:
                assert standings(check(small_log, shorter)) == [Standing.REFUSED], at


@pytest.mark.parametrize(
    "other",
    [
        {"form": "muniment-receipt/v2"},
        {"first": "01"},
        {"first": -1},
        {"count": 0},
        {"first": 2**63 - 3},
        {"digest": "AB" * 32},
        {"at": "2026-03-01T12:00:00Z"},
        {"more": "a line"},
    ],
)
def test_a_text_that_is_signed_and_no_receipt_is_refused(small_log: Copy, other: dict[str, Any]) -> None:
    report = check(small_log, note(small_log, 1, **other))
    assert standings(report) == [Standing.REFUSED]
    assert "no receipt" in report.findings[0].detail


@pytest.mark.parametrize("other", [{"first": 6, "count": 4}, {"count": 4}, {"digest": "ab" * 32}])
def test_a_receipt_that_its_log_signed_and_does_not_keep_is_a_fault_of_the_log(
    small_log: Copy, other: dict[str, Any]
) -> None:
    report = check(small_log, note(small_log, 1, **other))
    assert (standings(report), report.verdict) == ([Standing.REPLACED], Verdict.FORKED)


def test_a_receipt_of_another_key_or_another_log_is_refused(small_log: Copy) -> None:
    forged = check(small_log, note(small_log, 1, key=small_log.forger))
    assert "signed by no key of this log" in forged.findings[0].detail
    other = StandInKey("muniment/" + "cd" * 16)
    assert standings(check(small_log, note(small_log, 1, key=other, origin=other.name))) == [Standing.REFUSED]
    assert "of another log" in check(small_log, note(small_log, 1, origin=other.name)).findings[0].detail
    assert [origin_of(one) for one in read_answers(note(small_log, 1, origin=other.name).encode())] == [other.name]
    assert [one.standing for one in forged.checked] == [Standing.REFUSED]
    with pytest.raises(BadPin):
        check(small_log, note(small_log, 1), keys=["no key"])


def test_a_key_counts_for_receipts_within_its_window_and_a_stolen_one_is_named(small_log: Copy) -> None:
    log = small_log.fresh()
    keys = [f"{log.key.vkey} 0-10", f"{log.forger.vkey} 11-"]
    report = check(
        log, note(log, 1), note(log, 2), note(log, 2, key=log.forger), note(log, 0, key=log.forger), keys=keys
    )
    assert standings(report) == [Standing.COVERED, Standing.REFUSED, Standing.STORED, Standing.REFUSED]
    assert ["revoked or replaced" in one.detail for one in report.findings[:2]] == [True, True]
    lost = check(log, note(log, 1, digest="ab" * 32), note(log, 2, key=log.forger, digest="ab" * 32), keys=keys)
    assert ["if it was stolen" in one.detail for one in lost.checked] == [True, False]
    assert standings(lost) == [Standing.REPLACED] * 2


def test_an_answer_that_names_other_entries_than_its_receipt_signs_differs(small_log: Copy) -> None:
    changed = answer(small_log, 1)
    changed["results"][2]["id"] = small_log.history.headers[0].id
    report = check(small_log, changed)
    assert (standings(report), report.verdict) == ([Standing.DIFFERS], Verdict.UNREADABLE)
    assert (report.findings[0].index, report.findings[0].entry) == (7, small_log.history.headers[0].id)


def test_an_answer_to_a_repeat_has_no_receipt_and_its_entries_are_looked_for(small_log: Copy) -> None:
    repeat = answer(small_log, 1) | {"receipt": None}
    assert standings(check(small_log, repeat)) == [Standing.COVERED]
    log = small_log.fresh()
    log.write(cut(log.history, 5), log.key)
    report = check(log, repeat)
    assert (standings(report), report.verdict) == ([Standing.DIFFERS], Verdict.UNREADABLE)
    mixed = answer(small_log, 1)
    mixed["results"] += answer(small_log, 0)["results"]
    assert standings(check(small_log, mixed)) == [Standing.COVERED]


def test_a_place_without_this_log_is_no_proof_that_it_lost_anything(small_log: Copy) -> None:
    log = small_log.fresh()
    kept = answer(log, 1)
    log.bucket.objects.clear()
    report = check(log, kept)
    assert (standings(report), report.verdict) == ([Standing.UNREADABLE], Verdict.UNREADABLE)


def test_a_damaged_line_is_named_and_hides_no_other(small_log: Copy) -> None:
    good = json.dumps(answer(small_log, 1)).encode()
    report = check(
        small_log, good, b'{"results": [', b"[1]", b'{"a": 1}', b'{"results": 3, "receipt": null}', good, good[:50]
    )
    assert standings(report) == [Standing.COVERED, *[Standing.REFUSED] * 4, Standing.COVERED, Standing.REFUSED]
    assert [one.line for one in report.checked] == [1, 2, 3, 4, 5, 6, 7]
    assert "cut short" in report.checked[-1].detail
    assert "cut short" not in report.checked[1].detail


@pytest.mark.parametrize(
    "data", [b"", b"\n\n", b'{"results": [], "receipt": null}', b'{"results": [{"id": "x"}], "receipt": null}']
)
def test_a_file_without_any_receipt_could_not_be_checked(data: bytes) -> None:
    with pytest.raises(BadReceipts):
        read_answers(data)


@pytest.mark.parametrize(
    "odd",
    [
        b"\xff\xfe", b"[" * 100_000, b'{"receipt": {"note": 3}}', b'{"receipt": {"note": "x", "later": {}}}',
        b'{"receipt": null, "results": [{"id": 3, "index": 1}]}', b'{"receipt": null, "results": [1]}',
        b'{"receipt": null, "results": [{"id": "018f0000-0000-7000-8000-000000000000", "index": true}]}',
        b'{"receipt": null, "results": [{"id": "018f0000-0000-7000-8000-000000000000", "index": 1e400}]}',
        b'"\\ud800"', b'{"receipt": "note"}', b"%PDF-1.7",
    ],
)  # fmt: skip
def test_a_foreign_file_is_refused_and_never_an_error_of_ours(small_log: Copy, odd: bytes) -> None:
    report = check(small_log, odd)
    assert standings(report) == [Standing.REFUSED]


def test_a_receipt_has_one_spelling(small_log: Copy) -> None:
    text = note(small_log, 1).partition("\n\n")[0] + "\n"
    assert (parse_receipt(text).first, parse_receipt(text).end) == (5, 10)
    for other in (text + "\n", text.replace("\n5\n", "\n+5\n", 1), text[:-1], text.upper(), ""):
        with pytest.raises(MalformedNote):
            parse_receipt(other)

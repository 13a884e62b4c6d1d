"""The numbered procedure: exact places, pins, samples, logs that grow meanwhile, and what could not be checked."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from audit.corruptions import Copy
from audit.errors import BadPin
from audit.findings import (
    MAX_FINDINGS,
    Findings,
    Integrity,
    Report,
    Verdict,
    exit_code_of,
    report_json,
    worst,
    worst_integrity,
)
from audit.forge import MemoryBucket, StandInKey, chained, cut, hot_objects, note_of, written
from audit.verify import UNANCHORED, Options, verify
from ledger.batches import batch_key, decode_batch, encode_batch
from ledger.checkpoint import sign_note
from ledger.entry import Kind, encode_header
from ledger.errors import StoreUnavailable

MakeLog = Callable[..., Copy]


def audit(log: Copy, **options: Any) -> Report:
    return verify(log.bucket, log_id=log.history.log_id, keys=[log.key.vkey], options=Options(**options))


# ── exact places ──


@pytest.mark.timeout(900)
@pytest.mark.scenario("L1")
def test_no_flipped_bit_in_any_batch_is_called_sound_and_the_place_is_named(
    small_log: Copy,
    full_length: bool,
) -> None:
    places = [
        (number, at, bit)
        for number in range(len(small_log.history.starts))
        for at in range(len(small_log.bucket.objects[small_log.batch(number)]))
        for bit in range(8)
    ]
    for number, at, bit in places if full_length else random.Random(20).sample(places, 500):
        log = small_log.fresh()
        key = log.batch(number)
        raw = bytearray(log.bucket.objects[key])
        raw[at] ^= 1 << bit
        log.bucket.objects[key] = bytes(raw)
        report = audit(log)
        assert report.exit_code == 1, (number, at, bit)
        start, end = log.history.spans()[number]
        named = [one for one in report.findings if one.verdict is Verdict.ALTERED and one.index is not None]
        assert any(start <= (one.index or 0) < end for one in named), (number, at, bit, report.findings)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_an_exchanged_header_is_named_by_its_exact_index_and_no_other(small_log: Copy, data: st.DataObject) -> None:
    log = small_log.fresh()
    index = data.draw(st.integers(0, len(log.history.headers) - 1))
    field = data.draw(st.sampled_from(["kind", "data_class", "seq", "previous"]))
    change: Any = {"kind": Kind.NOTE, "data_class": "other", "seq": 9_999, "previous": bytes(31) + b"x"}[field]
    number = max(at for at, start in enumerate(log.history.starts) if start <= index)
    key = log.batch(number)
    batch = decode_batch(log.bucket.objects[key])
    headers = list(batch.headers)
    headers[index - batch.first] = encode_header(structs.replace(log.history.headers[index], **{field: change}))
    log.bucket.objects[key] = encode_batch(replace(batch, headers=tuple(headers)))
    report = audit(log)
    assert report.verdict is Verdict.ALTERED
    assert {one.index for one in report.findings} == {index}


def test_behind_one_altered_entry_all_the_others_are_still_proven(small_log: Copy) -> None:
    log = small_log.fresh()
    batch = decode_batch(log.bucket.objects[log.batch(1)])
    headers = list(batch.headers)
    headers[2] = encode_header(structs.replace(log.history.headers[batch.first + 2], kind=Kind.NOTE))
    log.bucket.objects[log.batch(1)] = encode_batch(replace(batch, headers=tuple(headers)))
    report = audit(log)
    assert report.signed_size == report.size == 20
    assert [one.index for one in report.findings] == [batch.first + 2]


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_no_flipped_bit_in_any_payload_is_missed_and_its_entry_is_named(small_log: Copy, data: st.DataObject) -> None:
    log = small_log.fresh()
    index = data.draw(st.integers(0, len(log.history.headers) - 1))
    part = data.draw(st.sampled_from(log.history.headers[index].parts))
    key = log.history.prefix + part.object
    raw = bytearray(log.bucket.objects[key])
    raw[part.offset + data.draw(st.integers(0, part.length - 1))] ^= 1
    log.bucket.objects[key] = bytes(raw)
    report = audit(log)
    assert [(one.verdict, one.index, one.entry) for one in report.findings] == [
        (Verdict.ALTERED, index, log.history.headers[index].id)
    ]


def test_no_flipped_bit_in_a_checkpoint_is_called_sound(small_log: Copy) -> None:
    key = small_log.checkpoint(1)
    for at in range(len(small_log.bucket.objects[key])):
        log = small_log.fresh()
        raw = bytearray(log.bucket.objects[key])
        raw[at] ^= 1
        log.bucket.objects[key] = bytes(raw)
        assert audit(log).verdict is Verdict.ALTERED, at


def test_the_same_log_gives_the_same_report(small_log: Copy) -> None:
    log = small_log.fresh()
    del log.bucket.objects[log.part()[0]]
    assert audit(log) == audit(log)


# ── pins ──


def test_a_kept_head_that_the_log_continues_anchors_the_report(small_log: Copy) -> None:
    for size in (*small_log.history.sizes, 7):
        report = audit(small_log, since=note_of(small_log.history, size, small_log.key))
        assert (report.word, report.anchored) == ("sound", True)
        assert UNANCHORED not in report.notes


@pytest.mark.scenario("L2", "L16")
def test_every_rewritten_history_and_every_shorter_one_is_found_by_a_kept_head(small_log: Copy) -> None:
    since = note_of(small_log.history, 20, small_log.key)
    for at in range(20):
        headers = list(small_log.history.headers)
        headers[at] = structs.replace(headers[at], data_class="other")
        log = small_log.fresh()
        log.write(replace(small_log.history, headers=chained(headers)), log.key)
        assert audit(log).verdict is Verdict.SOUND
        report = audit(log, since=since)
        assert (report.verdict, report.anchored) == (Verdict.FORKED, False)
    for size in small_log.history.sizes[:-1]:
        log = small_log.fresh()
        log.write(cut(small_log.history, size), log.key)
        report = audit(log, since=since)
        assert (report.verdict, report.anchored) == (Verdict.ROLLED_BACK, False)
        assert report.findings[0].index == size


def test_a_log_whose_key_was_exchanged_is_forked_for_who_kept_a_head(small_log: Copy) -> None:
    log = small_log.fresh()
    log.write(log.history, log.forger)
    since = note_of(small_log.history, 20, small_log.key)
    report = verify(log.bucket, log_id=log.history.log_id, keys=[log.forger.vkey], options=Options(since=since))
    assert report.verdict is Verdict.FORKED


def test_a_rotated_key_verifies_when_both_are_pinned(small_log: Copy) -> None:
    log = small_log.fresh()
    old, new = log.key, log.forger
    notes = {size: note_of(log.history, size, old if size <= 10 else new) for size in log.history.sizes}
    bare = replace(log.history, names=(0,) * len(log.history.names))
    log.bucket.objects |= written(bare, old) | {
        f"{log.history.prefix}checkpoint/{size:020d}": note for size, note in notes.items()
    }
    keys = [old.vkey, new.vkey]
    assert verify(log.bucket, log_id=log.history.log_id, keys=keys).verdict is Verdict.SOUND
    assert verify(log.bucket, log_id=log.history.log_id, keys=keys[::-1]).verdict is Verdict.SOUND
    assert verify(log.bucket, log_id=log.history.log_id, keys=[new.vkey]).verdict is Verdict.ALTERED


@pytest.mark.parametrize("note", [b"", b"x", b"a\n1\nAAAA\n\n", b"\xff\xfe"])
def test_a_kept_head_that_is_no_note_is_refused_and_not_a_fault_of_the_log(small_log: Copy, note: bytes) -> None:
    with pytest.raises(BadPin):
        audit(small_log, since=note)


def test_a_kept_head_of_another_log_or_a_broken_one_is_refused(small_log: Copy) -> None:
    other = StandInKey("muniment/other")
    with pytest.raises(BadPin):
        audit(small_log, since=note_of(small_log.history, 5, other))
    with pytest.raises(BadPin):
        audit(small_log, since=sign_note("not a checkpoint\n", [small_log.forger]))


@pytest.mark.parametrize("key", ["", "x", "a+00000000+AQ==", "name+12345678+notbase64"])
def test_a_key_that_is_none_is_refused(small_log: Copy, key: str) -> None:
    with pytest.raises(BadPin):
        verify(small_log.bucket, log_id=small_log.history.log_id, keys=[key])


def test_without_any_key_nothing_is_called_sound(small_log: Copy) -> None:
    report = verify(small_log.bucket, log_id=small_log.history.log_id, keys=[])
    assert (report.verdict, report.exit_code) == (Verdict.UNREADABLE, 2)


def test_a_size_that_the_database_knew_shows_a_rollback(small_log: Copy) -> None:
    assert audit(small_log, known_size=20).verdict is Verdict.SOUND
    assert audit(small_log, known_size=21).verdict is Verdict.ROLLED_BACK


# ── what could not be checked ──


def test_an_empty_log_could_not_be_checked(small_log: Copy) -> None:
    report = verify(MemoryBucket(), log_id=small_log.history.log_id, keys=[small_log.key.vkey])
    assert (report.verdict, report.exit_code, report.size) == (Verdict.UNREADABLE, 2, 0)


def test_a_log_without_any_checkpoint_yet_could_not_be_checked(make_log: MakeLog) -> None:
    log = make_log(batches=1)
    del log.bucket.objects[log.checkpoint(0)]
    assert audit(log).verdict is Verdict.UNREADABLE


def test_entries_behind_the_newest_checkpoint_are_named_as_not_yet_signed(small_log: Copy) -> None:
    log = small_log.fresh()
    del log.bucket.objects[log.checkpoint(-1)]
    report = audit(log)
    assert (report.verdict, report.size, report.signed_size) == (Verdict.SOUND, 20, 15)
    assert any("5 entries" in note for note in report.notes)


class Failing(MemoryBucket):
    """A bucket that stops answering at the n-th call."""

    __slots__ = ("calls", "limit")

    def __init__(self, bucket: MemoryBucket, limit: int) -> None:
        super().__init__(bucket.objects)
        self.calls, self.limit = 0, limit

    def _answer(self) -> None:
        self.calls += 1
        if self.calls > self.limit:
            raise StoreUnavailable("no answer")

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        self._answer()
        return MemoryBucket.get(self, key, offset=offset, length=length)

    def head(self, key: str) -> Any:
        self._answer()
        return MemoryBucket.head(self, key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        self._answer()
        return MemoryBucket.list(self, prefix, after)


def test_a_store_that_stops_answering_anywhere_is_never_called_altered_nor_fine(small_log: Copy) -> None:
    for limit in range(200):
        bucket = Failing(small_log.bucket, limit)
        report = verify(bucket, log_id=small_log.history.log_id, keys=[small_log.key.vkey])
        if bucket.calls <= limit:
            assert report.verdict is Verdict.SOUND
            return
        assert report.verdict is Verdict.UNREADABLE, (limit, [one.detail for one in report.findings])
    pytest.fail("the bucket never answered to the end")


class Growing(MemoryBucket):
    """A bucket whose log goes on while it is read: the rest arrives after some calls, newest objects last."""

    __slots__ = ("calls", "limit", "rest")

    def __init__(self, now: dict[str, bytes], rest: Mapping[str, bytes], limit: int) -> None:
        super().__init__(now)
        self.rest, self.calls, self.limit = rest, 0, limit

    def _step(self) -> None:
        self.calls += 1
        if self.calls == self.limit:
            self.objects.update(self.rest)

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        self._step()
        return MemoryBucket.get(self, key, offset=offset, length=length)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        self._step()
        return MemoryBucket.list(self, prefix, after)


@pytest.mark.scenario("L5")
def test_a_log_that_grows_while_it_is_read_is_sound_at_every_moment(small_log: Copy) -> None:
    payload = {key: data for key, data in small_log.bucket.objects.items() if "/payload/" in key}
    whole = written(small_log.history, small_log.key)
    early = payload | written(cut(small_log.history, 10), small_log.key)
    for limit in range(1, 40):
        bucket = Growing(dict(early), whole, limit)
        report = verify(bucket, log_id=small_log.history.log_id, keys=[small_log.key.vkey])
        assert report.verdict is Verdict.SOUND, (limit, [one.detail for one in report.findings])
        assert report.size >= 10


# ── holes that are explained ──


def test_parts_whose_keys_are_gone_may_be_gone_too_and_nothing_else_may(small_log: Copy) -> None:
    log = small_log.fresh()
    batch = 1
    start, end = log.history.spans()[batch]
    del log.bucket.objects[log.history.prefix + log.history.headers[start].parts[0].object]

    def states(first: int, last: int) -> dict[tuple[int, int], str]:
        wanted = {(index, part): "erased" if index % 2 else "expired" for index in range(start, end) for part in (0, 1)}
        return {place: state for place, state in wanted.items() if first <= place[0] < last}

    def audited(part_states: Callable[[int, int], dict[tuple[int, int], str]]) -> Report:
        return verify(log.bucket, log_id=log.history.log_id, keys=[log.key.vkey], part_states=part_states)

    report = audited(states)
    assert (report.word, report.erased, report.expired) == ("sound", 3, 2)
    report = audited(
        lambda first, last: {place: state for place, state in states(first, last).items() if place[1] == 0}
    )
    assert report.verdict is Verdict.MISSING
    assert report.findings[0].index == start


def test_bytes_that_are_there_must_be_right_even_when_their_key_is_gone(small_log: Copy) -> None:
    log = small_log.fresh()
    key, part = log.part()
    log.bucket.objects[key] = bytes(len(log.bucket.objects[key]))
    everything = {(index, number): "erased" for index in range(20) for number in (0, 1)}
    report = verify(
        log.bucket, log_id=log.history.log_id, keys=[log.key.vkey], part_states=lambda _first, _end: everything
    )
    assert report.verdict is Verdict.ALTERED
    assert part.length


# ── samples, streams, tiles, bounds ──


def test_a_sample_looks_into_as_many_entries_and_checks_the_whole_chain(small_log: Copy) -> None:
    report = audit(small_log, sample=6, seed=1)
    assert (report.word, report.checked, report.exit_code) == ("sampled 6 of 20", 6, 0)
    assert audit(small_log, sample=99).word == "sampled 20 of 20"
    log = small_log.fresh()
    log.bucket.objects[log.batch(0)] = b""
    assert audit(log, sample=1).verdict is Verdict.ALTERED


def test_a_stream_is_checked_alone_within_the_whole_chain(small_log: Copy) -> None:
    report = audit(small_log, stream=f"{1:032x}")
    assert (report.word, report.checked) == ("sound", 7)
    assert audit(small_log, stream="0" * 31 + "f").verdict is Verdict.UNREADABLE


def test_tiles_of_a_longer_log_show_that_entries_were_taken_away(make_log: MakeLog) -> None:
    log = make_log(batches=6, per_batch=100)
    hot = dict(log.hot.objects)
    log.write(cut(log.history, 200), log.key)
    pointer = f"{log.history.prefix}checkpoint"
    log.hot.objects = {key: data for key, data in hot.items() if key != pointer}
    report = verify(log.bucket, log_id=log.history.log_id, keys=[log.key.vkey], hot=log.hot)
    assert report.verdict is Verdict.ROLLED_BACK


def test_tiles_of_a_large_log_are_compared_on_every_level(make_log: MakeLog) -> None:
    log = make_log(batches=2, per_batch=128, part_bytes=32)
    assert set(hot_objects(log.history, log.key)) == {
        f"{log.history.prefix}tile/0/000",
        f"{log.history.prefix}checkpoint",
    }
    report = verify(log.bucket, log_id=log.history.log_id, keys=[log.key.vkey], hot=log.hot)
    assert report.verdict is Verdict.SOUND


def test_progress_counts_entries_up_to_the_end(small_log: Copy) -> None:
    seen: list[int] = []
    verify(small_log.bucket, log_id=small_log.history.log_id, keys=[small_log.key.vkey], progress=seen.append)
    assert seen == [5, 10, 15, 20]


def test_findings_are_bounded_and_the_worst_is_never_left_out() -> None:
    findings = Findings()
    for index in range(MAX_FINDINGS + 5):
        findings.add(Verdict.MISSING, "x", index=index)
    findings.add(Verdict.FORKED, "x")
    assert (len(findings.kept), findings.left_out, findings.verdict) == (MAX_FINDINGS, 6, Verdict.FORKED)


def test_the_words_keep_their_order_and_their_exit_codes() -> None:
    assert worst([]) is Verdict.SOUND
    assert worst([Verdict.UNREADABLE, Verdict.ALTERED]) is Verdict.ALTERED
    assert worst(Verdict) is Verdict.FORKED
    assert worst_integrity([]) is Integrity.VERIFIED
    assert worst_integrity([Integrity.UNANCHORED, Integrity.ERASED]) is Integrity.ERASED
    assert {verdict: exit_code_of(verdict) for verdict in Verdict} == {
        Verdict.SOUND: 0,
        Verdict.ALTERED: 1,
        Verdict.MISSING: 1,
        Verdict.FORKED: 1,
        Verdict.ROLLED_BACK: 1,
        Verdict.HIDDEN: 1,
        Verdict.UNREADABLE: 2,
    }


def test_the_report_has_the_shape_of_the_contract(small_log: Copy) -> None:
    log = small_log.fresh()
    log.bucket.objects[log.batch(0)] = b"{}"
    found = report_json(audit(log))
    assert {"verdict", "anchored", "size", "checked", "erased", "expired", "findings"} <= set(found)
    assert set(found["findings"][0]) == {"verdict", "object", "entry", "index", "detail"}
    assert found["findings"][0]["object"] == f"{log.history.prefix}{batch_key(0)}"

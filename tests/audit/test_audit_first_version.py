"""A damaged batch of version 1: the exact entry is named, and all the others are still read and checked."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from audit.corruptions import Copy
from audit.findings import Report, Verdict
from audit.verify import Options, verify
from ledger.batches import Batch, batch_digest, decode_batch, encode_batch
from ledger.batches_v1 import _ENCODER, WireV1


def encode_v1(batch: Batch) -> bytes:
    """What version 1 wrote."""
    return _ENCODER.encode(
        WireV1(
            checkpoint_digest=batch.checkpoint_digest,
            checkpoint_size=batch.checkpoint_size,
            count=batch.count,
            fence=batch.fence,
            first=batch.first,
            headers=batch.headers,
            log_id=batch.log_id,
            previous_count=batch.previous_count,
            previous_digest=batch.previous_digest,
            previous_key=batch.previous_key,
            v=1,
        )
    )


@pytest.fixture
def old(small_log: Copy) -> Copy:
    """A log that was begun by version 1: its first two batches of five entries are of it."""
    log = small_log.fresh()
    before: bytes | None = None
    for at in range(len(log.history.starts)):
        key = log.batch(at)
        batch = replace(decode_batch(log.bucket.objects[key]), previous_digest=before)
        data = encode_v1(batch) if at <= 1 else encode_batch(batch)
        log.bucket.objects[key], before = data, batch_digest(data)
    return log


def audit(log: Copy) -> Report:
    return verify(log.bucket, log_id=log.history.log_id, keys=[log.key.vkey], options=Options())


def test_a_log_of_both_versions_is_sound(old: Copy) -> None:
    assert (audit(old).verdict, audit(old).checked) == (Verdict.SOUND, 20)


def test_a_damaged_header_costs_its_own_entry_and_no_other(old: Copy) -> None:
    key = old.batch(1)
    data = old.bucket.objects[key]
    start = data.index(b'"headers":["') + len(b'"headers":["')
    width = data.index(b'","', start) + 3 - start
    for offset in (0, 2):
        log = old.fresh()
        place = start + offset * width + 40
        log.bucket.objects[key] = data[:place] + b"*" + data[place + 1 :]
        report = audit(log)
        assert report.verdict is Verdict.ALTERED
        # The batch behind names other bytes of it; that is one fault, and named once.
        assert {(one.object, one.index) for one in report.findings} == {(key, 5 + offset)}
        assert (report.checked, report.signed_size) == (19, 20)


def test_a_damaged_envelope_costs_no_entry(old: Copy) -> None:
    key = old.batch(1)
    log = old.fresh()
    log.bucket.objects[key] = log.bucket.objects[key].replace(b'"fence":1,', b'"fence":x,')
    assert audit(log).findings[0].object == key
    log.bucket.objects[key] = old.bucket.objects[key].replace(b'"v":1}', b'"v":1]')
    report = audit(log)
    assert [(one.verdict, one.object, one.index) for one in report.findings] == [(Verdict.ALTERED, key, 5)]
    assert (report.checked, report.signed_size) == (20, 20)


def test_any_changed_byte_is_altered_and_named_in_its_batch(old: Copy, full_length: bool) -> None:
    chance = random.Random(20261130)
    for at in (0, 1):
        key = old.batch(at)
        data = old.bucket.objects[key]
        for place in range(0, len(data), 7 if full_length else 97):
            log = old.fresh()
            log.bucket.objects[key] = data[:place] + bytes([data[place] ^ chance.randrange(1, 256)]) + data[place + 1 :]
            report = audit(log)
            assert report.verdict is Verdict.ALTERED, (at, place, report.findings[:3])
            assert any(one.index is not None and at * 5 <= one.index < at * 5 + 5 for one in report.findings)

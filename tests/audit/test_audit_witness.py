"""What a pinned witness cosigned vouches for the log, also when nobody kept a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from audit.corruptions import Copy
from audit.errors import BadPin
from audit.findings import Report, Verdict
from audit.verify import UNANCHORED, Options, verify
from ledger.checkpoint import parse_note, with_signature
from ledger.signing import Ed25519CosignatureVerifier, Ed25519Cosigner

MakeLog = Callable[..., Copy]
AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
WITNESS = Ed25519Cosigner.from_seed("witness.example/one", b"w" * 32)
VKEY = Ed25519CosignatureVerifier(WITNESS.name, WITNESS._key.public_key().public_bytes_raw()).vkey


def audit(log: Copy, *witnesses: str, **options: Any) -> Report:
    chosen = Options(witnesses=witnesses, **options)
    return verify(log.bucket, log_id=log.history.log_id, keys=[log.key.vkey], options=chosen)


def cosigned(log: Copy, at: int = -1) -> str:
    """Let the witness sign a checkpoint of the log, and store it as the service does."""
    size = log.history.sizes[at]
    note = log.bucket.objects[log.checkpoint(at)]
    key = f"{log.history.prefix}anchor/{size:020d}-{WITNESS.key_id.hex()}"
    log.bucket.objects[key] = with_signature(note, WITNESS.cosign(parse_note(note).text, AT))
    return key


def test_a_stored_cosignature_of_a_pinned_witness_anchors_the_log(small_log: Copy) -> None:
    log = small_log.fresh()
    cosigned(log, 1)
    cosigned(log)
    report = audit(log, VKEY)
    assert (report.verdict, report.anchored) == (Verdict.SOUND, True)
    assert report.notes == ("anchored: the witness witness.example/one cosigned the first 20 of 20 entries",)


def test_a_cosignature_that_nobody_pinned_vouches_for_nothing(small_log: Copy) -> None:
    log = small_log.fresh()
    cosigned(log)
    report = audit(log)
    assert (report.verdict, report.anchored) == (Verdict.SOUND, False)
    assert UNANCHORED in report.notes


@pytest.mark.scenario("L3")
def test_a_log_written_anew_is_forked_by_what_the_witness_cosigned(small_log: Copy, make_log: MakeLog) -> None:
    log = small_log.fresh()
    key = cosigned(log, 1)
    other = make_log(part_bytes=96)
    log.write(other.history, log.key)
    log.bucket.objects |= {key: data for key, data in other.bucket.objects.items() if "/payload/" in key}
    for pinned in ((VKEY,), ()):  # the log's own signature in it says as much, as long as nobody takes the note away
        report = audit(log, *pinned)
        assert (report.verdict, report.anchored) == (Verdict.FORKED, False)
    del log.bucket.objects[key]
    assert audit(log).verdict is Verdict.SOUND


def test_a_log_cut_behind_its_witness_is_rolled_back(small_log: Copy) -> None:
    log = small_log.fresh()
    cosigned(log)
    log.bucket.objects.pop(log.checkpoint(-1))
    log.bucket.objects.pop(log.batch(-1))
    report = audit(log, VKEY)
    assert (report.verdict, report.anchored) == (Verdict.ROLLED_BACK, False)


def test_an_altered_cosignature_is_named_and_does_not_anchor(small_log: Copy) -> None:
    log = small_log.fresh()
    key = cosigned(log)
    for place in (10, len(log.bucket.objects[key]) - 10):
        changed = log.fresh()
        raw = bytearray(log.bucket.objects[key])
        raw[place] ^= 1
        changed.bucket.objects[key] = bytes(raw)
        report = audit(changed, VKEY)
        assert (report.verdict, report.anchored) == (Verdict.ALTERED, False)
        assert [one.object for one in report.findings] == [key]
    moved = log.fresh()
    moved.bucket.objects[key.replace("020-", "010-")] = moved.bucket.objects.pop(key)
    assert audit(moved, VKEY).verdict is Verdict.ALTERED


def test_a_key_of_another_type_is_no_witness(small_log: Copy) -> None:
    with pytest.raises(BadPin, match="0x04"):
        audit(small_log, small_log.key.vkey)


def test_bytes_beyond_the_parts_of_a_payload_are_told_and_no_fault(small_log: Copy) -> None:
    log = small_log.fresh()
    name, _ = log.part()
    log.bucket.objects[name] += b"x" * 100
    report = audit(log)
    assert report.verdict is Verdict.SOUND
    assert any(note.startswith("100 bytes in 1 payload objects belong to no entry") for note in report.notes)
    assert not any("belong to no entry" in note for note in audit(log, sample=5).notes)
    assert not any("belong to no entry" in note for note in audit(small_log).notes)


def test_a_part_that_a_header_no_longer_names_is_told_too(small_log: Copy) -> None:
    log = small_log.fresh()
    history = log.history
    headers = list(history.headers)
    headers[-1] = structs.replace(headers[-1], parts=headers[-1].parts[:1])
    log.write(replace(history, headers=tuple(headers)), log.key)
    assert any("64 bytes in 1 payload" in note for note in audit(log).notes)


def test_an_object_that_two_batches_of_one_flush_share_holds_nothing_that_belongs_to_no_entry(small_log: Copy) -> None:
    log = small_log.fresh()
    starts = tuple(start + more for start in log.history.starts for more in (0, 2))
    names = tuple(start for start in log.history.starts for _ in range(2))
    log.write(replace(log.history, starts=starts, names=names, fences=(1,) * len(starts)), log.key)
    report = audit(log)
    assert report.verdict is Verdict.SOUND
    assert report.notes == (UNANCHORED,)
    log.bucket.objects[log.part()[0]] += b"x" * 100
    assert any(note.startswith("100 bytes in 1 payload objects belong to no entry") for note in audit(log).notes)

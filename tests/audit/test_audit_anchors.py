"""What lies beside a log's checkpoints as somebody else's word: time stamps and cosigned notes, byte for byte."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from audit.anchored import LARGEST
from audit.corruptions import Copy
from audit.errors import BadPin
from audit.findings import Report, Verdict
from audit.forge import MemoryBucket
from audit.verify import UNANCHORED, Options, verify
from ledger.timestamps import query
from tests.audit.conftest import make_log
from tests.audit.test_audit_witness import VKEY, WITNESS, cosigned
from tests.ledger.test_ledger_timestamps import authority_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """A log whose newest checkpoint an authority stamped; `key` is the time stamp's object."""

    log: Copy
    key: str
    pin: str
    answer: bytes

    def audit(self, *pins: str, log: Copy | None = None, **options: Any) -> Report:
        log = log or self.log
        chosen = Options(authorities=pins, **options)
        return verify(log.bucket, log_id=log.history.log_id, keys=[log.key.vkey], options=chosen)

    def holding(self, data: bytes, key: str | None = None) -> Copy:
        """The log with other bytes in place of the time stamp, or under another name."""
        log = self.log.fresh()
        del log.bucket.objects[self.key]
        log.bucket.objects[key or self.key] = data
        return log


@pytest.fixture(scope="module")
def stamped(tmp_path_factory: pytest.TempPathFactory) -> Stamped:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, which plays the time stamp authority")
    authority = authority_in(tmp_path_factory.mktemp("audited") / "tsa", ec.generate_private_key(ec.SECP256R1()))
    log = make_log()
    answer = authority.reply(query(log.bucket.objects[log.checkpoint(-1)], 1))
    pin = authority.issuer.fingerprint(hashes.SHA256()).hex()
    name = f"{log.history.sizes[-1]:020d}-{pin[:16]}-{sha256(answer).hexdigest()[:16]}.tsr"
    key = f"{log.history.prefix}anchor/{name}"
    log.bucket.objects[key] = answer
    return Stamped(log=log, key=key, pin=pin, answer=answer)


def flipped(data: bytes, place: int, by: int) -> bytes:
    return data[:place] + bytes([data[place] ^ by]) + data[place + 1 :]


def named(report: Report) -> list[tuple[Verdict, str | None]]:
    return [(one.verdict, one.object) for one in report.findings]


def test_a_time_stamp_by_a_pinned_authority_is_told_and_still_no_anchor(stamped: Stamped) -> None:
    for pin in (stamped.pin, stamped.pin.upper()):
        report = stamped.audit(pin)
        assert (report.verdict, report.anchored, report.notes[0]) == (Verdict.SOUND, False, UNANCHORED)
        assert "says that the first 20 entries were there at 20" in report.notes[1]


def test_without_a_pin_its_authority_is_said_not_to_be_checked(stamped: Stamped) -> None:
    for pins in ((), ("ab" * 32,)):
        report = stamped.audit(*pins)
        assert report.verdict is Verdict.SOUND
        assert report.notes[1:] == ("the authorities of 1 time stamps were not checked: no pinned TSA (--tsa)",)
    with pytest.raises(BadPin, match="64"):
        stamped.audit("ab" * 31)


@pytest.mark.scenario("L1")
def test_any_changed_byte_of_a_time_stamp_is_altered_and_names_it_with_a_pin_and_without(
    stamped: Stamped, full_length: bool
) -> None:
    chance = random.Random(20261130)
    places = range(len(stamped.answer))
    for place in places if full_length else chance.sample(places, 40):
        changed = stamped.holding(flipped(stamped.answer, place, chance.randrange(1, 256)))
        for pins in ((stamped.pin,), ()):
            assert named(stamped.audit(*pins, log=changed)) == [(Verdict.ALTERED, stamped.key)], place
    assert named(stamped.audit(log=stamped.holding(stamped.answer[:-1]))) == [(Verdict.ALTERED, stamped.key)]


def under(stamped: Stamped, data: bytes, **parts: str) -> str:
    """The name of a time stamp that stands for these bytes, with other parts."""
    given = {"size": f"{20:020d}", "pin": stamped.pin[:16], "digest": "-" + sha256(data).hexdigest()[:16]} | parts
    return f"{stamped.log.history.prefix}anchor/{given['size']}-{given['pin']}{given['digest']}.tsr"


def test_a_time_stamp_that_is_about_something_else_is_altered_though_its_name_fits(stamped: Stamped) -> None:
    bad = [
        # Of another checkpoint, and what an earlier version named without a digest.
        stamped.holding(stamped.answer, under(stamped, stamped.answer, size=f"{15:020d}")),
        stamped.holding(flipped(stamped.answer, len(stamped.answer) - 1, 1), under(stamped, b"", digest="")),
        stamped.holding(b"nonsense", under(stamped, b"nonsense")),
    ]
    for log in bad:
        report = stamped.audit(stamped.pin, log=log)
        assert [one.verdict for one in report.findings] == [Verdict.ALTERED]
        assert "no time stamp over the checkpoint" in report.findings[0].detail
    other = "cd" * 8
    key = under(stamped, stamped.answer, pin=other)
    report = stamped.audit(other + "ef" * 24, log=stamped.holding(stamped.answer, key))
    assert named(report) == [(Verdict.ALTERED, key)], "the pinned authority did not sign it"
    old = stamped.holding(stamped.answer, under(stamped, b"", digest=""))
    assert stamped.audit(stamped.pin, log=old).verdict is Verdict.SOUND


def test_a_damaged_checkpoint_is_named_and_what_stamps_it_is_not(stamped: Stamped) -> None:
    log = stamped.log.fresh()
    key = log.checkpoint(-1)
    log.bucket.objects[key] = flipped(log.bucket.objects[key], len(log.bucket.objects[key]) - 5, 1)
    report = stamped.audit(stamped.pin, log=log)
    assert named(report) == [(Verdict.ALTERED, key)]
    assert any("1 anchors could not be compared" in note for note in report.notes)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda log, key: log.bucket.objects.update({key + "x": b""}), Verdict.ALTERED),
        (lambda log, key: log.bucket.objects.update({key.replace(".tsr", ""): b""}), Verdict.ALTERED),
        (lambda log, key: log.bucket.objects.update({key: bytes(LARGEST + 1)}), Verdict.ALTERED),
        (lambda log, key: log.bucket.covered.update({key: b"x"}), Verdict.HIDDEN),
        (lambda log, key: log.bucket.denied.add(key), Verdict.UNREADABLE),
    ],
    ids=["a foreign name", "a name without its end", "far too large", "a second version", "no answer"],
)
def test_whatever_lies_among_the_anchors_is_judged(
    stamped: Stamped, change: Callable[[Copy, str], object], verdict: Verdict
) -> None:
    log = stamped.log.fresh()
    change(log, stamped.key)
    report = stamped.audit(stamped.pin, log=log)
    assert [one.verdict for one in report.findings] == [verdict]
    assert report.findings[0].object is not None
    assert "/anchor/" in report.findings[0].object


def test_a_note_that_nobody_s_pinned_witness_cosigned_is_still_checked_against_the_log(small_log: Copy) -> None:
    log = small_log.fresh()
    key = cosigned(log)
    data = log.bucket.objects.pop(key)
    full = f"{key}-{sha256(data).hexdigest()[:16]}"
    log.bucket.objects[full] = data
    for witnesses in ((), (VKEY,)):
        options = Options(witnesses=witnesses)
        report = verify(log.bucket, log_id=log.history.log_id, keys=[log.key.vkey], options=options)
        assert report.verdict is Verdict.SOUND
        assert any("cosignatures were not" in note for note in report.notes) is not bool(witnesses)
        for place in range(0, len(data), 7):
            log.bucket.objects[full] = flipped(data, place, 1)
            report = verify(log.bucket, log_id=log.history.log_id, keys=[log.key.vkey], options=options)
            assert named(report) == [(Verdict.ALTERED, full)]
        log.bucket.objects[full] = data
    others = replace(log, bucket=log.bucket.copy())
    note = others.bucket.objects[log.checkpoint(0)]
    others.bucket.objects = {name: one for name, one in others.bucket.objects.items() if name != full}
    for name in (f"{5:020d}-{WITNESS.key_id.hex()}", f"{20:020d}-{'ab' * 4}"):
        bad = others.fresh()
        bad.bucket.objects[f"{log.history.prefix}anchor/{name}"] = note
        report = verify(bad.bucket, log_id=log.history.log_id, keys=[log.key.vkey])
        assert [one.verdict for one in report.findings] == [Verdict.ALTERED]


def test_a_note_over_more_than_the_log_has_shows_that_it_was_rolled_back(small_log: Copy) -> None:
    """Nobody pinned the witness: it is the log's own signature that shows it."""
    log = small_log.fresh()
    cosigned(log)
    last = log.checkpoint(-1)
    del log.bucket.objects[last]
    del log.bucket.objects[log.batch(-1)]
    report = verify(log.bucket, log_id=log.history.log_id, keys=[log.key.vkey])
    assert [(one.verdict, one.object, one.index) for one in report.findings] == [(Verdict.ROLLED_BACK, last, 15)]
    report = verify(log.bucket, log_id=log.history.log_id, keys=[log.forger.vkey])
    assert Verdict.ROLLED_BACK not in {one.verdict for one in report.findings}


def test_an_anchor_that_was_taken_away_is_missed_by_who_kept_its_name(small_log: Copy) -> None:
    log = small_log.fresh()
    keys = [cosigned(log, at) for at in range(3)]
    elsewhere = f"another/anchor/{1:020d}-{'ab' * 4}"
    options = Options(anchors=(*keys, elsewhere, keys[0]))

    def look() -> list[tuple[Verdict, str | None]]:
        return named(verify(log.bucket, log_id=log.history.log_id, keys=[log.key.vkey], options=options))

    assert look() == []
    del log.bucket.objects[keys[1]]
    assert look() == [(Verdict.MISSING, keys[1])]
    assert verify(log.bucket, log_id=log.history.log_id, keys=[log.key.vkey]).verdict is Verdict.SOUND
    log.bucket.hidden.add(keys[2])
    assert look() == [(Verdict.MISSING, keys[1]), (Verdict.HIDDEN, keys[2])]


@pytest.mark.parametrize("name", ["anchor/x", "log/anchor/x", f"log/checkpoint/{1:020d}", f"/anchor/{1:020d}-abcdabcd"])
def test_a_list_of_anchors_that_names_something_else_is_refused(small_log: Copy, name: str) -> None:
    with pytest.raises(BadPin):
        verify(small_log.bucket, log_id="x", keys=[small_log.key.vkey], options=Options(anchors=(name,)))


def test_a_sampled_run_looks_at_as_many_anchors_as_entries(small_log: Copy) -> None:
    log = small_log.fresh()
    keys = [cosigned(log, at) for at in range(4)]
    reads: list[str] = []

    class Counting(MemoryBucket):
        def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
            reads.append(key)
            return MemoryBucket.get(self, key, offset=offset, length=length)

    bucket = Counting(log.bucket.objects)
    for sample, read in ((2, 2), (None, 4)):
        reads.clear()
        options = Options(sample=sample, seed=1)
        verify(bucket, log_id=log.history.log_id, keys=[log.key.vkey], options=options)
        assert len(set(keys) & set(reads)) == read

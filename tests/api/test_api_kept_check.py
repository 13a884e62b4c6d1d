"""Certificates and key changes in the locked store: one changed byte of any is named, and so is one that is gone."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
import sqlalchemy as sa

from api.kept_check import check_kept, known_certificates
from api.verification import KnownLog, _followed, verify_log
from audit.corruptions import Copy
from audit.findings import Report, Verdict
from audit.forge import MemoryBucket
from audit.verify import Options
from erasure.models import CertificatePiece
from ledger.checkpoint import format_checkpoint, parse_checkpoint, parse_note, sign_note
from ledger.entry import Kind, uuid7
from ledger.keyring import CERTIFICATE, LOG, change_key, keys_prefix, read_windows
from ledger.memory_objects import MemoryStore
from ledger.signing import Ed25519Signer
from tests.audit.conftest import small_log
from tests.audit.test_audit_witness import cosigned
from tests.erasure.test_erasure_report_check import issued, resigned
from tests.ledger.test_object_store_contract import s3_bench, s3_buckets

__all__ = ["issued", "s3_buckets", "small_log"]
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LOG_ID = "5f0c" * 8


class Undone(Exception):
    """What a test did to the database is taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A log with one certificate in its bucket, and what its sound record came to."""

    world: Any
    bucket: MemoryBucket
    report: Report
    key: str

    @property
    def body(self) -> bytes:
        return self.bucket.objects[self.key]

    def check(
        self, bucket: MemoryBucket, *certificate_keys: str, known: bool = True, listed: bytes | None = None
    ) -> Report:
        """What certificates add to the report of the record; `listed`: what the unlocked store holds for the keys."""
        rows = known_certificates(self.sessions, self.world.tenant.tenant_id) if known else ()
        hot = MemoryBucket({} if listed is None else {self.list_key: listed})
        pins = [self.world.log_key]
        return check_kept(self.report, bucket=bucket, hot=hot, keys=pins, certificate_keys=certificate_keys, known=rows)

    @property
    def list_key(self) -> str:
        return f"{self.world.tenant.log_id}/keys"

    def with_object(self, body: bytes, key: str | None = None) -> MemoryBucket:
        changed = self.bucket.copy()
        changed.objects[key or self.key] = body
        return changed

    @contextmanager
    def sessions(self, tenant_id: int) -> Iterator[Any]:
        with self.world.services.database.transaction(tenant_id, write=False) as session:
            yield session


@pytest.fixture(scope="module")
def stored(issued: Any) -> Stored:
    world, tenant = issued, issued.tenant
    world.services.record.ship_outbox(tenant.tenant_id, world.now)
    world.services.log.publish(tenant.tenant_id, world.now)
    assert world.services.certificates.store_due(tenant.tenant_id, tenant.log_id, world.now) == 1
    locked = world.services.locked
    bucket = MemoryBucket({key: locked.get(key) for key in locked.list(f"{tenant.log_id}/")})
    (key,) = bucket.list(f"{tenant.log_id}/certificate/")
    log = KnownLog(tenant_id=None, tenant=None, log_id=tenant.log_id)
    report = verify_log(
        log,
        bucket=bucket,
        hot=MemoryBucket(),
        keys=[world.log_key],
        certificate_keys=[world.certificate_key],
        options=Options(),
        sessions=None,
    )
    made = Stored(world=world, bucket=bucket, report=report, key=key)
    # The keys of what was erased are known to the database only, which is not asked here.
    assert {one.verdict for one in report.findings} <= {Verdict.MISSING}
    assert report.made == {Kind.CERTIFICATE_ISSUED: 1}
    return replace(made, report=replace(report, findings=(), verdict=Verdict.SOUND))


def named(report: Report) -> list[tuple[Verdict, str | None]]:
    return [(one.verdict, one.object) for one in report.findings]


def test_a_certificate_that_is_what_was_issued_adds_nothing(stored: Stored) -> None:
    for known in (True, False):
        report = stored.check(stored.bucket, stored.world.certificate_key, known=known)
        assert (report.verdict, report.notes) == (Verdict.SOUND, stored.report.notes)


@pytest.mark.scenario("L1")
def test_any_changed_byte_of_a_certificate_is_altered_and_named_with_a_key_and_without(
    stored: Stored, full_length: bool
) -> None:
    chance = random.Random(20261130)
    for place in chance.sample(range(len(stored.body)), 1_000 if full_length else 60):
        body = bytearray(stored.body)
        body[place] ^= chance.randrange(1, 256)
        for pins in ((stored.world.certificate_key,), ()):
            report = stored.check(stored.with_object(bytes(body)), *pins, known=False)
            assert named(report) == [(Verdict.ALTERED, stored.key)], place


def test_behind_a_damaged_key_change_no_certificate_is_called_altered(stored: Stored) -> None:
    for use in (LOG, CERTIFICATE):
        key = f"{keys_prefix(stored.world.tenant.log_id, use)}000001"
        report = stored.check(stored.with_object(b"damaged", key), Ed25519Signer.from_seed("x", b"x" * 32).vkey)
        assert named(report) == [(Verdict.ALTERED, key)]
        assert report.notes[-1].endswith("certificates were not checked: a change of a key is damaged")


def test_a_wrong_list_of_keys_hides_no_certificate_that_is_wrong_or_gone(stored: Stored) -> None:
    """The unlocked store is easier to write to: what lies there must not keep anything from being checked."""
    body = resigned(stored.world, ("plan_hash",), lambda _: "0" * 64)
    key = renamed(stored, body)
    report = stored.check(stored.with_object(body, key), stored.world.certificate_key, listed=b"{}")
    assert set(named(report)) == {(Verdict.ALTERED, key), (Verdict.ALTERED, stored.list_key)}
    gone = stored.bucket.copy()
    del gone.objects[stored.key]
    report = stored.check(gone, stored.world.certificate_key, listed=b"{}", known=False)
    folder = f"{stored.world.tenant.log_id}/certificate/"
    assert set(named(report)) == {(Verdict.MISSING, folder), (Verdict.ALTERED, stored.list_key)}


def test_without_a_pinned_key_the_signature_is_said_not_to_be_checked(stored: Stored) -> None:
    report = stored.check(stored.bucket)
    assert report.verdict is Verdict.SOUND
    assert report.notes[-1] == "the signatures of 1 certificates were not checked: no pinned key (--certificate-key)"
    other = Ed25519Signer.from_seed("somebody", b"o" * 32).vkey
    assert named(stored.check(stored.bucket, other)) == [(Verdict.ALTERED, stored.key)]


def renamed(stored: Stored, body: bytes, **parts: str) -> str:
    """The name that these bytes would have."""
    folder, _, file = stored.key.rpartition("/")
    number, version, _ = file.split("-")
    given = {"number": number, "version": version} | parts
    return f"{folder}/{given['number']}-{given['version']}-{sha256(body).hexdigest()[:16]}.json"


def test_a_certificate_that_its_own_issuer_changed_is_altered_though_its_name_fits(stored: Stored) -> None:
    body = resigned(stored.world, ("plan_hash",), lambda _: "0" * 64)
    for extra, key in ((body, renamed(stored, body)), (stored.body, renamed(stored, stored.body, version="final"))):
        report = stored.check(stored.with_object(extra, key), stored.world.certificate_key)
        assert named(report) == [(Verdict.ALTERED, key)]
    strange = f"{stored.world.tenant.log_id}/certificate/readme"
    assert named(stored.check(stored.with_object(b"x", strange), stored.world.certificate_key)) == [
        (Verdict.ALTERED, strange)
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"\xff", b'{"certificate":[]}', b"[" * 5_000, b'{"certificate":{"request":1e400}}',
        b'{"certificate":{"request":"R","version":"V","log":{"checkpoint":7}}}',
        b'{"certificate":{"request":"R","version":"V","log":{"checkpoint":"\\ud800"}}}',
    ],
)  # fmt: skip
def test_nonsense_under_a_certificate_s_name_is_altered_and_stops_nothing(stored: Stored, body: bytes) -> None:
    parts = stored.key.rpartition("/")
    body = body.replace(b'"R"', json.dumps(parts[0].rpartition("/")[2]).encode())
    body = body.replace(b'"V"', json.dumps(parts[2].split("-")[1]).encode())
    key = renamed(stored, body)
    for pins in ((), (stored.world.certificate_key,)):
        assert named(stored.check(stored.with_object(body, key), *pins)) == [(Verdict.ALTERED, key)]


def test_a_certificate_under_another_head_than_the_bucket_s_is_forked_or_names_what_is_missing(stored: Stored) -> None:
    note = stored.world.document["certificate"]["log"]["checkpoint"]
    head = parse_checkpoint(parse_note(note.encode()).text)
    key = f"{stored.world.tenant.log_id}/checkpoint/{head.size:020d}"
    other = stored.bucket.copy()
    forger = Ed25519Signer.from_seed(head.origin, b"f" * 32)
    other.objects[key] = sign_note(format_checkpoint(head.origin, head.size, b"r" * 32), [forger])
    assert named(stored.check(other, stored.world.certificate_key)) == [(Verdict.FORKED, key)]
    del other.objects[key]
    assert named(stored.check(other, stored.world.certificate_key)) == [(Verdict.MISSING, key)]
    short = replace(stored, report=replace(stored.report, size=head.size - 1))
    assert named(short.check(other, stored.world.certificate_key)) == [(Verdict.ROLLED_BACK, key)]


def test_a_certificate_that_the_database_has_not_whole_any_more_is_named(stored: Stored) -> None:
    world = stored.world
    lost = sa.delete(CertificatePiece)
    with suppress(Undone), world.parts.transactions(world.tenant.tenant_id) as session:
        session.connection().execute(lost)
        known = known_certificates(lambda _: nullcontext(session), world.tenant.tenant_id)
        gone = stored.bucket.copy()
        del gone.objects[stored.key]
        nowhere = f"{stored.key.rpartition('-')[0]}-cut.json"
        # That the object holds was said without a look at it.
        for bucket, places, said in (
            (stored.bucket, [(Verdict.ALTERED, stored.key)], "the object of it does"),
            (stored.with_object(b"{}"), [(Verdict.ALTERED, stored.key)] * 2, "the object of it does not hold either"),
            (gone, [(Verdict.MISSING, nowhere)], "nor does the store"),
        ):
            report = check_kept(
                stored.report,
                bucket=bucket,
                hot=MemoryBucket(),
                keys=[world.log_key],
                certificate_keys=(),
                known=known,
            )
            assert named(report) == places
            assert any(finding.detail.endswith(f"any more; {said}") for finding in report.findings)
        raise Undone
    assert named(stored.check(stored.bucket, world.certificate_key)) == []


def test_a_certificate_that_is_gone_is_missing_by_the_database_or_by_the_record(stored: Stored) -> None:
    gone = stored.bucket.copy()
    del gone.objects[stored.key]
    assert named(stored.check(gone, stored.world.certificate_key)) == [(Verdict.MISSING, stored.key)]
    folder = f"{stored.world.tenant.log_id}/certificate/"
    assert named(stored.check(gone, stored.world.certificate_key, known=False)) == [(Verdict.MISSING, folder)]
    hidden = stored.bucket.copy()
    hidden.hidden.add(stored.key)
    assert named(stored.check(hidden, stored.world.certificate_key)) == [(Verdict.HIDDEN, stored.key)]
    denied = stored.bucket.copy()
    denied.denied.add(stored.key)
    assert named(stored.check(denied, stored.world.certificate_key)) == [(Verdict.UNREADABLE, stored.key)]


# ── key changes ──


def signer(use: str, generation: int) -> Ed25519Signer:
    name = f"muniment/{LOG_ID}" + ("/certificate" if use == CERTIFICATE else "")
    return Ed25519Signer.from_seed(name, f"{use} {generation}".encode().ljust(32, b"."))


@pytest.fixture(scope="module")
def changes() -> MemoryBucket:
    """Two changes of the log's key and one of that of its certificates."""
    store = MemoryStore(lambda: NOW)
    for use, size in ((LOG, 10), (LOG, 20), (CERTIFICATE, 15)):
        change_key(
            store,
            log_id=LOG_ID,
            keys=read_windows(store, LOG_ID, use, signer(use, 0).vkey),
            signer_of=lambda generation, use=use: signer(use, generation),  # type: ignore[misc]  # a default argument
            size=size,
            revoke=False,
            now=NOW,
            lock_until=NOW + timedelta(days=1),
        )
    return MemoryBucket({key: store.get(key) for key in store.list(LOG_ID)})


def checked(bucket: MemoryBucket, made: int = 3) -> list[tuple[Verdict, str | None]]:
    return named(report_of(bucket, made))


def report_of(bucket: MemoryBucket, made: int = 3, listed: bytes | None = None) -> Report:
    hot = MemoryBucket({} if listed is None else {f"{LOG_ID}/keys": listed})
    report = Report(
        log_id=LOG_ID, verdict=Verdict.SOUND, anchored=False, size=30, signed_size=30, checked=30, erased=0, expired=0,
        findings=(), made={Kind.KEY_ROTATED: made},
    )  # fmt: skip
    return check_kept(report, bucket=bucket, hot=hot, keys=[signer(LOG, 0).vkey], certificate_keys=[])


def test_any_changed_byte_of_a_key_change_is_altered_and_named(changes: MemoryBucket) -> None:
    assert checked(changes) == []
    for key, note in changes.objects.items():
        for place in range(0, len(note), 29):
            changed = changes.copy()
            changed.objects[key] = note[:place] + bytes([note[place] ^ 1]) + note[place + 1 :]
            assert checked(changed) == [(Verdict.ALTERED, key)]


def test_a_key_change_that_is_gone_moved_or_another_log_s_is_named(changes: MemoryBucket) -> None:
    first, second = (f"{keys_prefix(LOG_ID, LOG)}{number:06d}" for number in (1, 2))
    gone = changes.copy()
    del gone.objects[first]
    assert checked(gone) == [(Verdict.MISSING, first)]
    last = changes.copy()
    del last.objects[second]
    assert checked(last) == [], "nothing says that it was there, but a count of what may have been told twice"
    (note,) = report_of(last).notes
    assert note.startswith("the record tells of 3 changes of a key, and 2 lie here")
    assert report_of(last, made=2).notes == ()
    moved = changes.copy()
    moved.objects[first], moved.objects[second] = moved.objects[second], moved.objects[first]
    assert checked(moved) == [(Verdict.ALTERED, first)]
    twice = changes.copy()
    twice.objects[f"{keys_prefix(LOG_ID, LOG)}000003"] = twice.objects[second]
    assert checked(twice) == [(Verdict.ALTERED, f"{keys_prefix(LOG_ID, LOG)}000003")]


STRANGE = (
    "anchors/x", "batch/00000000000000000000", "odd/x", "payload/2040-07/deep/er", "payload/none/readme", "zz/y", "zzz",
)  # fmt: skip


def test_an_object_that_this_program_does_not_write_is_told_and_no_fault(changes: MemoryBucket) -> None:
    assert report_of(changes).notes == ()
    strange = changes.copy()
    for name in (f"payload/none/{uuid7(NOW)}", *STRANGE):
        strange.objects[f"{LOG_ID}/{name}"] = b"x"
    report = report_of(strange)
    told = f"6 objects bear names that this program does not write; the first is {LOG_ID}/payload/2040-07/deep/er"
    assert (report.verdict, report.notes) == (Verdict.SOUND, (told,))


@pytest.mark.s3
def test_a_bucket_that_lists_folders_first_tells_the_same_objects(s3_buckets: Any) -> None:
    store = s3_bench(s3_buckets).locked
    for name in (f"payload/none/{uuid7(NOW)}", *STRANGE):
        store.put(f"{LOG_ID}/{name}", b"x", lock_until=None)
    report = Report(
        log_id=LOG_ID, verdict=Verdict.SOUND, anchored=False, size=0, signed_size=0, checked=0, erased=0, expired=0,
        findings=(),
    )  # fmt: skip
    checked = check_kept(report, bucket=store, hot=MemoryBucket(), keys=[], certificate_keys=[])
    assert [note.partition(";")[0] for note in checked.notes] == [
        "6 objects bear names that this program does not write"
    ]


def test_behind_a_damaged_key_change_checkpoints_could_not_be_checked_and_are_not_called_altered(
    changes: MemoryBucket, small_log: Copy
) -> None:
    first, second = (f"{keys_prefix(LOG_ID, LOG)}{number:06d}" for number in (1, 2))
    known_log = KnownLog(tenant_id=None, tenant=None, log_id=LOG_ID)
    pinned = signer(LOG, 0).vkey
    pins, whole = _followed(changes, known_log, LOG, pinned)
    assert (len(pins), whole) == (3, True)
    for damaged, known in ((second, 2), (first, 1)):
        bucket = changes.copy()
        bucket.objects[damaged] = bucket.objects[damaged][:-1]
        pins, whole = _followed(bucket, known_log, LOG, pinned)
        assert (len(pins), whole) == (known, False)
    cosigned(log := small_log.fresh())
    bucket = log.bucket
    bucket.objects |= {first: b"damaged"}
    report = verify_log(
        known_log,
        bucket=bucket,
        hot=MemoryBucket(),
        keys=[pinned],
        certificate_keys=[],
        options=Options(),
        sessions=None,
    )
    heads = [(Verdict.UNREADABLE, small_log.checkpoint(number)) for number in range(4)]
    assert sorted(named(report)) == sorted([(Verdict.ALTERED, first), *heads])


def test_any_changed_byte_of_the_list_of_keys_is_altered_and_one_that_is_late_is_not(changes: MemoryBucket) -> None:
    def keys_of(use: str, bucket: MemoryBucket) -> list[dict[str, Any]]:
        return [window.as_json() for window in read_windows(bucket, LOG_ID, use, signer(use, 0).vkey)]

    whole = {use: keys_of(use, changes) for use in (LOG, CERTIFICATE)}
    data = json.dumps(whole).encode()
    before = changes.copy()
    del before.objects[f"{keys_prefix(LOG_ID, LOG)}000002"]
    late = whole | {LOG: keys_of(LOG, before)}
    for sound in (whole, late, whole | {LOG: whole[LOG][:-1]}):
        assert report_of(changes, listed=json.dumps(sound).encode()).findings == ()
    for place in range(0, len(data), 61):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        found = named(report_of(changes, listed=changed))
        assert found[:1] == [(Verdict.ALTERED, f"{LOG_ID}/keys")], changed[place - 20 : place + 20]
        assert set(found) == set(found[:1])

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config

from connectors.base import Connector, Deadline, Holder, Item, Level, Outcome, Selector, open_connector
from connectors.errors import BadConfig, ReadOnlyConnector, StoreUnreachable, WrongCredentials
from connectors.s3_bucket import Bucket
from tests.connectors.contract import MIA, NOW, OF_PROCESSES, Bed, Contract, captured, erase, fill, text_of

pytestmark = pytest.mark.s3
_numbers = itertools.count()


class Door:
    """A TCP relay to the store that can stop passing bytes, as a stuck store or network does."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> Callable[[], None]:
        self._open.clear()
        return self._open.set

    def close(self) -> None:
        self._open.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                self._open.wait()
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class S3Bed(Bed):
    """A bucket of its own, with versions."""

    serves = True
    no_search = "objects are found by their keys"

    def __init__(self, service: Any, *, versioned: bool = True, locked: bool = False) -> None:
        self.service = service
        self.keys = {"access_key": service.access_key, "secret_key": service.secret_key}
        self.s3 = boto3.client(
            "s3",
            endpoint_url=service.endpoint,
            aws_access_key_id=service.access_key,
            aws_secret_access_key=service.secret_key,
            region_name="us-east-1",
            config=Config(request_checksum_calculation="when_required"),
        )
        self.bucket = f"bed-{os.getpid()}-{next(_numbers)}"
        self.s3.create_bucket(Bucket=self.bucket, ObjectLockEnabledForBucket=locked)
        self.versioned, self.locked = versioned or locked, locked
        if versioned:
            self.s3.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"})
        where = urlsplit(service.endpoint)
        self.door = Door((str(where.hostname), int(where.port or 0)))

    def restart(self) -> None:
        self.service.restart()

    def refuse(self, name: str) -> Callable[[], None]:
        """Lay a legal hold on one object; without locks, take from the key in use the right to delete."""
        if not self.locked:
            self.keys |= {
                "access_key": self.service.reader_access_key,
                "secret_key": self.service.reader_secret_key,
            }
            return lambda: self.keys.update(access_key=self.service.access_key, secret_key=self.service.secret_key)

        def hold(status: Literal["ON", "OFF"]) -> None:
            self.s3.put_object_legal_hold(Bucket=self.bucket, Key=f"notes/{name}.txt", LegalHold={"Status": status})

        hold("ON")
        return lambda: hold("OFF")

    @contextlib.contextmanager
    def stranger(self) -> Iterator[str]:
        yield self.source(secret_key="hunter2hunter2hunter2")

    def whole(self, name: str) -> object:
        found = self.s3.get_object(Bucket=self.bucket, Key=f"notes/{name}.txt")
        named = ("VersionId", "ETag", "LastModified", "Metadata")
        return found["Body"].read(), [found.get(each) for each in named]

    def close(self) -> None:
        self.door.close()
        self.s3.close()

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        key = f"notes/{name}.txt"
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=text.encode(), Metadata={"owner": owner})
        return {"key": key}

    def get(self, name: str) -> str | None:
        try:
            return str(self.s3.get_object(Bucket=self.bucket, Key=f"notes/{name}.txt")["Body"].read().decode())
        except self.s3.exceptions.NoSuchKey:
            return None

    def config(self, **more: object) -> dict[str, Any]:
        return {
            "bucket": self.bucket,
            "endpoint_url": f"http://127.0.0.1:{self.door.port}",
            **self.keys,
            "owner_field": "owner",
            **more,
        }

    def open(self, *, read_only: bool = False, owner: bool = True, **more: object) -> Connector:
        return open_connector(
            "s3", self.config(**more, **({} if owner else {"owner_field": None})), secrets=str, read_only=read_only
        )

    def hits(self, canary: str) -> int:
        """Count in every version that the bucket lists, and in the names."""
        listed = self.s3.list_object_versions(Bucket=self.bucket)
        assert not listed.get("IsTruncated")
        bodies = [
            self.s3.get_object(Bucket=self.bucket, Key=row["Key"], VersionId=row["VersionId"])["Body"].read()
            for row in listed.get("Versions", ())
        ]
        names = [row["Key"].encode() for row in (*listed.get("Versions", ()), *listed.get("DeleteMarkers", ()))]
        return sum(each.count(canary.encode()) for each in (*bodies, *names))

    def listed(self) -> list[tuple[str, str]]:
        found = self.s3.list_object_versions(Bucket=self.bucket)
        return [(row["Key"], row["VersionId"]) for row in (*found.get("Versions", ()), *found.get("DeleteMarkers", ()))]

    def block(self) -> Callable[[], None]:
        return self.door.shut()

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"key": "notes/"},
            {"key": ""},
            {"key": 7},
            {"prefix": "notes/mia"},
            {"key": "notes/mia-0.txt", "version": "x"},
            {"key": "notes/../notes/mia-0.txt"},
            {"key": "notes/./mia-0.txt"},
            {"key": "x" * 1025},
            {"key": "notes/mia\0.txt"},
            {"key": ["notes/mia-0.txt"]},
        ]

    def wrong(self) -> Connector:
        return self.open(bucket="not-the-bucket-of-this-store")

    def source(self, **more: object) -> str:
        config = self.config(endpoint_url=self.service.endpoint, **more)
        return f"from connectors.base import open_connector\nconnector = open_connector('s3', {config!r}, secrets=str)"

    def own_delete(self, name: str) -> None:
        self.s3.delete_object(Bucket=self.bucket, Key=f"notes/{name}.txt")

    def hit_bytes_remain_after_own_delete(self) -> bool:
        return self.versioned


@pytest.fixture
def make_bed(s3_service: Any) -> Iterator[Callable[..., S3Bed]]:
    with contextlib.ExitStack() as stack:

        def make(**how: bool) -> S3Bed:
            made = S3Bed(s3_service, **how)
            stack.callback(made.close)
            return made

        yield make


# The server takes some ten seconds to find its own feet.
_SLOW = frozenset({"test_restarted_between_batches_nothing_counts_as_absent_and_another_process_ends_it"})


class TestVersionedBucket(Contract):
    holds = "s3, versions and locks"
    slow: ClassVar = _SLOW

    @pytest.fixture
    def bed(self, make_bed: Callable[..., S3Bed]) -> S3Bed:
        return make_bed(locked=True)


class _WithoutVersions(S3Bed):
    all_or_nothing = "without locks the store knows rights of a whole bucket alone"


class TestBucketWithoutVersions(Contract):
    holds = "s3, no versions"
    slow: ClassVar = OF_PROCESSES

    @pytest.fixture
    def bed(self, s3_service: Any) -> Iterator[S3Bed]:
        made = _WithoutVersions(s3_service, versioned=False)
        yield made
        made.close()


@pytest.fixture
def bed(make_bed: Callable[..., S3Bed]) -> S3Bed:
    return make_bed()


def test_every_version_and_marker_of_the_key_goes_and_longer_keys_stay(bed: S3Bed) -> None:
    locator = bed.put("mia-0", text_of("mia-0"), "mia")
    bed.put("mia-0", "corrected: " + text_of("mia-0"), "mia")
    bed.own_delete("mia-0")
    bed.put("mia-0.txt.bak", "a longer key", "mia")
    with bed.open() as connector:
        receipt = erase(connector, [Item(copy_id="a", locator=locator)])[0]
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        finding = connector.verify([Item(copy_id="a", locator=locator)], Level.L2, deadline=30, reclaimed=report)[0]
    assert receipt.outcome is Outcome.ERASED
    assert receipt.detail.startswith("3 versions and markers")
    assert (finding.level, finding.present) == (Level.L2, False)
    assert [key for key, _ in bed.listed()] == ["notes/mia-0.txt.bak.txt"]


@pytest.mark.scenario("A3")
def test_what_a_marker_hides_is_present_for_verify_and_handed_out(bed: S3Bed) -> None:
    item = Item(copy_id="a", locator=bed.put("mia-0", text_of("mia-0"), "mia"))
    bed.own_delete("mia-0")
    with bed.open(read_only=True) as connector:
        assert connector.verify([item], Level.L1, deadline=30)[0].present is True
        assert dict(connector.export([item], deadline=30))["a"] == text_of("mia-0").encode()
        assert list(connector.discover(Selector(identifiers=(MIA,)), deadline=30)) == [dict(item.locator)]


def test_a_key_with_an_older_version_of_somebody_else_is_left_whole(bed: S3Bed) -> None:
    bed.put("mia-0", "ben wrote this first", "user:ben")
    locator = bed.put("mia-0", text_of("mia-0"), "mia")
    before = bed.listed()
    with bed.open() as connector:
        receipt = erase(connector, [Item(copy_id="a", locator=locator)])[0]
    assert receipt.outcome is Outcome.OWNER_MISMATCH
    assert bed.listed() == before


def test_unfinished_uploads_of_the_key_are_thrown_away(bed: S3Bed) -> None:
    locator = bed.put("mia-0", text_of("mia-0"), "mia")
    key = locator["key"]
    upload = bed.s3.create_multipart_upload(Bucket=bed.bucket, Key=key)["UploadId"]
    bed.s3.upload_part(Bucket=bed.bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"half a letter of mia")
    other = bed.s3.create_multipart_upload(Bucket=bed.bucket, Key="notes/ben-0.txt")["UploadId"]
    item = Item(copy_id="a", locator=locator)
    bed.s3.delete_object(Bucket=bed.bucket, Key="nothing")
    with bed.open() as connector:
        assert connector.verify([item], Level.L1, deadline=30)[0].present is True
        assert erase(connector, [item])[0].outcome is Outcome.ERASED
        assert connector.verify([item], Level.L2, deadline=30)[0].present is False
    left = bed.s3.list_multipart_uploads(Bucket=bed.bucket).get("Uploads", [])
    assert [row["UploadId"] for row in left] == [other]


def test_an_upload_alone_names_no_owner_and_is_left(bed: S3Bed) -> None:
    bed.s3.create_multipart_upload(Bucket=bed.bucket, Key="notes/x.txt")
    item = Item(copy_id="a", locator={"key": "notes/x.txt"})
    with bed.open() as connector:
        assert erase(connector, [item])[0].outcome is Outcome.OWNER_MISMATCH
    with bed.open(owner=False) as connector:
        assert erase(connector, [item])[0].outcome is Outcome.ERASED


@pytest.mark.scenario("E12")
def test_what_a_lock_protects_is_reported_with_its_date_and_the_rest_goes(make_bed: Callable[..., S3Bed]) -> None:
    bed = make_bed(locked=True)
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    items = [Item(copy_id=n, locator=bed.put(n, text_of(n), "mia")) for n in ("mia-0", "mia-1", "mia-2")]
    bed.s3.put_object_retention(
        Bucket=bed.bucket, Key="notes/mia-1.txt", Retention={"Mode": "GOVERNANCE", "RetainUntilDate": until}
    )
    bed.s3.put_object_legal_hold(Bucket=bed.bucket, Key="notes/mia-2.txt", LegalHold={"Status": "ON"})
    with bed.open() as connector:
        receipts = erase(connector, items)
        present = [finding.present for finding in connector.verify(items, Level.L2, deadline=30)]
    assert [r.outcome for r in receipts] == [Outcome.ERASED, Outcome.LOCKED, Outcome.LOCKED]
    assert until.isoformat() in receipts[1].detail
    assert "governance retention" in receipts[1].detail
    assert "without a date: legal hold" in receipts[2].detail
    assert present == [False, True, True]
    assert bed.get("mia-1") == text_of("mia-1"), "a lock is never hidden behind a marker"
    bed.s3.put_object_legal_hold(Bucket=bed.bucket, Key="notes/mia-2.txt", LegalHold={"Status": "OFF"})
    with bed.open() as connector:
        assert erase(connector, items[2:])[0].outcome is Outcome.ERASED


def test_check_writes_nothing_where_every_new_object_is_locked(make_bed: Callable[..., S3Bed]) -> None:
    bed = make_bed(locked=True)
    bed.s3.put_object_lock_configuration(
        Bucket=bed.bucket,
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 3}},
        },
    )
    with bed.open() as connector:
        report = connector.check(now=NOW, deadline=30)
    assert (report.reachable, report.can_erase, report.level_reached) == (True, False, None)
    assert "3 days" in report.findings[0]
    assert bed.listed() == []


def test_a_hold_is_set_on_every_version_and_lifted_where_nobody_else_holds_the_key(
    make_bed: Callable[..., S3Bed],
) -> None:
    bed = make_bed(locked=True)
    item = Item(copy_id="a", locator=bed.put("mia-0", text_of("mia-0"), "mia"))
    key = "notes/mia-0.txt"
    theirs = bed.s3.head_object(Bucket=bed.bucket, Key=key)["VersionId"]
    bed.s3.put_object_legal_hold(Bucket=bed.bucket, Key=key, LegalHold={"Status": "ON"})
    bed.put("mia-0", "a second version", "mia")
    gone = Item(copy_id="b", locator={"key": "notes/none.txt"})
    with bed.open() as connector:
        assert isinstance(connector, Holder)
        first, absent = connector.hold([item, gone], deadline=30)
        assert (first.state, len(first.versions), absent.state) == ("set", 1, "absent")
        again = connector.hold([item], deadline=30)[0]
        assert (again.state, again.versions) == ("set", ()), "somebody else's hold, and our own, are not set again"
        assert erase(connector, [item])[0].outcome is Outcome.LOCKED
        lifted = connector.lift([(item, first.versions)], deadline=30)[0]
        # Who holds the key may mean every version of it.
        assert (lifted.state, lifted.versions) == ("left", ())
        assert bed.get("mia-0") == "a second version"
        bed.s3.put_object_legal_hold(Bucket=bed.bucket, Key=key, VersionId=theirs, LegalHold={"Status": "OFF"})
        assert connector.lift([(item, first.versions)], deadline=30, doubted=True)[0].state == "left"
        lifted = connector.lift([(item, first.versions)], deadline=30)[0]
        assert (lifted.state, lifted.versions) == ("lifted", first.versions)
        assert connector.lift([(item, first.versions)], deadline=30, doubted=True)[0].state == "lifted", "nothing is on"
        assert erase(connector, [item])[0].outcome is Outcome.ERASED
    with bed.open(read_only=True) as connector, pytest.raises(ReadOnlyConnector):
        connector.hold([item], deadline=30)  # type: ignore[attr-defined]  # a Holder, as above


def test_a_bucket_without_object_lock_refuses_a_hold_and_says_so(bed: S3Bed) -> None:
    item = Item(copy_id="a", locator=bed.put("mia-0", text_of("mia-0"), "mia"))
    with bed.open() as connector:
        held = connector.hold([item], deadline=30)[0]  # type: ignore[attr-defined]  # a Holder, as above
    assert held.state == "refused"
    assert held.detail == "the bucket has no Object Lock, so a hold would hold nothing"


@pytest.mark.scenario("A10")
def test_who_may_read_and_not_delete_fails_key_by_key_and_never_reports_absence(bed: S3Bed, s3_service: Any) -> None:
    mine, _ = fill(bed, 2)
    reader = {"access_key": s3_service.reader_access_key, "secret_key": s3_service.reader_secret_key}
    with bed.open(**reader) as connector:
        receipts = erase(connector, [*mine, Item(copy_id="none", locator={"key": "notes/none.txt"})])
        assert [f.present for f in connector.verify(mine, Level.L2, deadline=30)] == [True, True]
    assert [r.outcome for r in receipts] == [Outcome.FAILED, Outcome.FAILED, Outcome.ALREADY_ABSENT]
    assert receipts[0].detail == "the store refused the delete: AccessDenied"
    assert bed.get("mia-0") == text_of("mia-0")


def test_threads_that_ask_at_once_get_the_same_client_and_closing_closes_it(bed: S3Bed) -> None:
    # Of two that were made at the same moment the first was closed by nobody, with its connections.
    bucket = Bucket(bed.bucket, {"endpoint_url": bed.service.endpoint, "region_name": "us-east-1"})
    together = threading.Barrier(8)

    def ask(_: int) -> Any:
        together.wait()
        return bucket.client(Deadline("test", 30))

    with closing(bucket), ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(ask, range(8))))) == 1


def test_a_walk_names_every_key_with_content_once(bed: S3Bed) -> None:
    fill(bed, 2)
    bed.put("mia-0", "again", "mia")
    bed.own_delete("ben-0")
    bed.s3.put_object(Bucket=bed.bucket, Key="folder/", Body=b"")
    bed.s3.create_multipart_upload(Bucket=bed.bucket, Key="notes/part.bin")
    with bed.open(read_only=True) as connector:
        walked = [place["key"] for place in connector.walk(deadline=30)]
    names = ["ben-0.txt", "ben-1.txt", "mia-0.txt", "mia-1.txt", "part.bin"]
    assert walked == [f"notes/{name}" for name in names]


def test_wrong_credentials_and_no_answer_are_told_apart(bed: S3Bed) -> None:
    item = Item(copy_id="a", locator={"key": "notes/mia-0.txt"})
    with bed.open(secret_key="wrong") as connector, pytest.raises(WrongCredentials):
        erase(connector, [item])
    with bed.open(endpoint_url="http://127.0.0.1:9") as connector, pytest.raises(StoreUnreachable):
        erase(connector, [item])
    with bed.open(endpoint_url="http://127.0.0.1:9") as connector:
        assert connector.check(now=NOW, deadline=5).reachable is False


def test_a_long_object_is_captured_at_three_places_and_found_in_older_versions(bed: S3Bed) -> None:
    text = "".join(f"{n}: {text_of(str(n))}\n" for n in range(5000))
    item = Item(copy_id="a", locator=bed.put("mia-0", text, "mia"))
    bed.put("mia-0", "short now, and new", "mia")
    with bed.open(read_only=True) as connector:
        [held] = [each.canaries for each in captured(connector, [item])]
        assert len(held) == 4
        assert all(canary in (text + "short now, and new").encode() for canary in held)
        assert {hit.canary for hit in connector.residue(held, deadline=30)} == {0, 1, 2, 3}


def test_a_batch_of_many_keys_is_erased_with_every_version(bed: S3Bed) -> None:
    items = [Item(copy_id=str(n), locator=bed.put(f"mia-{n}", text_of(str(n)), "mia")) for n in range(60)]
    with bed.open() as connector:
        assert {r.outcome for r in erase(connector, items)} == {Outcome.ERASED}
    assert bed.listed() == []


@pytest.mark.parametrize(
    "config", [{}, {"bucket": ""}, {"bucket": "b", "access_key": "a"}, {"bucket": "b", "x": "y"}, {"bucket": 3}]
)
def test_a_configuration_that_does_not_fit_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        open_connector("s3", config, secrets=str)

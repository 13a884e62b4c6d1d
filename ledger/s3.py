"""The object store on S3 with Object Lock.

Guarantees: every locked object is created with its mode and date in one request and only if its key is
free; nothing is multipart, copied or left to a bucket's default. What the store did is read back: the
first object of each day and lock date, then a sample. Answers are judged by HTTP status. It never sends
the bypass header. It does not know who else may write to the bucket: that is the bucket policy's part.

A retry after a lost answer may find our own object. Only then is a 412 looked at closer: the same bytes
are ours, if their lock is at least the one we asked for (LockNotEnforced otherwise); other bytes are
another writer's (ObjectExists).

Source: Amazon S3 API, PutObject (If-None-Match, Object Lock headers), ListObjectVersions.
"""

from __future__ import annotations

import random
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.exceptions import ConnectionError as NoConnection
from botocore.parsers import ResponseParserError

from ledger.errors import (
    LedgerError,
    LockNotEnforced,
    ObjectExists,
    ObjectHidden,
    ObjectLocked,
    ObjectMissing,
    StoreDenied,
    StoreUnavailable,
)
from ledger.objects import LOCK_TOLERANCE, Attack, ObjectInfo, check_key, check_lock, check_prefix
from ledger.s3_attacks import Target
from ledger.s3_body import Reading

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Mode = Literal["GOVERNANCE", "COMPLIANCE"]
T = TypeVar("T")

ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
CONNECT_SECONDS = 5
READ_SECONDS = 30
# Every so many locked objects one is read back, beside the first of each day and lock date.
SAMPLE = 64

_PIECE = 206
_MISSING = 404
_CONFLICT = 409
_PRECONDITION_FAILED = 412
_RANGE_BEYOND = 416
_TOO_MANY = 429
_SERVER_ERROR = 500
_MARKERS = ("ContinuationToken", "KeyMarker", "VersionIdMarker")
_ANOTHER_REGION = "the bucket is in another region: set AWS_DEFAULT_REGION to the bucket's own"
# Bytes of a large object that are read back at once.
_AT_ONCE = 8 << 20
# Only for the sentence that an operator reads: clones use other codes, so nothing is decided by them.
_SAID = {
    "ExpiredToken": "the credentials have expired: renew them",
    "InvalidAccessKeyId": "the credentials are not known to the store",
    "SignatureDoesNotMatch": "the secret of the credentials is wrong",
    "RequestTimeTooSkewed": "our clock and the store's differ too much: set the clock (NTP)",
    "AuthorizationHeaderMalformed": _ANOTHER_REGION,
    "PermanentRedirect": _ANOTHER_REGION,
    "IllegalLocationConstraintException": _ANOTHER_REGION,
    "301": _ANOTHER_REGION,
    "403": "the credentials do not allow it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """One version of an object, or a delete marker, as the bucket lists it."""

    id: str
    is_marker: bool


class _Refused(Exception):
    """The store answered with an HTTP status that is not success."""

    def __init__(self, status: int, *, marker: bool, code: str = "") -> None:
        super().__init__(str(status))
        self.status = status
        self.marker = marker
        self.code = code


class _NoAnswer(Exception):
    """Nobody knows whether the request was carried out."""


class S3Store:
    """A locked store in a bucket with Object Lock, or with `locked=False` a hot one in a plain bucket.

    Use `open_s3`, which also checks the bucket; the constructor asks nothing.
    """

    def __init__(
        self,
        client: S3Client,
        bucket: str,
        prefix: str = "",
        *,
        mode: Mode = "COMPLIANCE",
        locked: bool = True,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take a client whose own retries are off, or it would hide lost answers from us."""
        self._client = client
        self._bucket = bucket
        self._prefix = check_prefix(prefix.rstrip("/") + "/") if prefix.strip("/") else ""
        self._mode = mode
        self._locked = locked
        self._pause = pause
        self._seen: set[tuple[str, str]] = set()
        self._since_read_back = 0
        self._guard = threading.Lock()

    # ── the port ──

    def put(self, key: str, data: bytes | memoryview, *, lock_until: datetime | None) -> None:
        """Create the object under its lock. Raises: see `ObjectStore`."""
        check_lock(None, lock_until, locked=self._locked)
        name = self._name(key)
        until = None if lock_until is None else _whole_second(lock_until)
        arguments = self._put_arguments(name, data, until)
        answer_lost = False
        for attempt in range(ATTEMPTS):
            if isinstance(arguments["Body"], Reading):
                arguments["Body"].seek(0)
            try:
                answer = self._once(lambda: self._client.put_object(**arguments, IfNoneMatch="*"))
            except _NoAnswer:
                answer_lost = True
            except _Refused as refused:
                if refused.status == _PRECONDITION_FAILED:
                    if answer_lost and self._is_ours(key, data, until):
                        return
                    raise ObjectExists(key) from refused
                # 409 is ConditionalRequestConflict: another create of this key is under way, ask again.
                if refused.status != _CONFLICT:
                    raise _denied("PutObject", refused) from refused
            else:
                self._read_back(key, data, until, answer)
                return
            self._wait(attempt)
        detail = f"PutObject had no answer after {ATTEMPTS} attempts"
        raise StoreUnavailable(detail)

    def replace(self, key: str, data: bytes) -> None:
        """Create or replace the object. Raises: StoreDenied on a locked store."""
        if self._locked:
            detail = "a locked store replaces nothing"
            raise StoreDenied(detail)
        arguments = self._put_arguments(self._name(key), data, None)
        self._call("PutObject", key, lambda: self._client.put_object(**arguments))

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of the newest version, or a range. Raises: see `ObjectStore`."""
        name = self._name(key)
        if length == 0:
            self.head(key)
            return b""
        extra: dict[str, Any] = {}
        if offset or length is not None:
            last = "" if length is None else str(offset + length - 1)
            extra["Range"] = f"bytes={offset}-{last}"

        def read() -> bytes:
            answer = self._client.get_object(Bucket=self._bucket, Key=name, **extra)
            data = answer["Body"].read()
            if not extra or answer["ResponseMetadata"]["HTTPStatusCode"] == _PIECE:
                return data
            # It gave all of it, which is no change of a byte.
            return data[offset:] if length is None else data[offset : offset + length]

        try:
            return self._call("GetObject", key, read)
        except _Refused as refused:
            if refused.status == _RANGE_BEYOND:
                return b""
            raise _denied("GetObject", refused) from refused

    def head(self, key: str) -> ObjectInfo:
        """Return what is known about the oldest version, and whether others lie over it.

        Raises: ObjectMissing.
        """
        name = self._name(key)
        if not self._locked:
            found = self._call("HeadObject", key, lambda: self._client.head_object(Bucket=self._bucket, Key=name))
            return ObjectInfo(size=found["ContentLength"], locked_until=None, mode=None, hidden=False, versions=1)
        versions = self._versions(key)
        if not versions:
            raise ObjectMissing(key)
        real = [version for version in versions if not version.is_marker]
        hidden = len(versions) > 1 or not real
        if not real:
            return ObjectInfo(size=0, locked_until=None, mode=None, hidden=hidden, versions=0)
        oldest = real[-1].id
        found = self._call(
            "HeadObject",
            key,
            lambda: self._client.head_object(Bucket=self._bucket, Key=name, VersionId=oldest),
        )
        until: datetime | None = found.get("ObjectLockRetainUntilDate")
        return ObjectInfo(
            size=found["ContentLength"],
            locked_until=None if until is None else until.astimezone(UTC),
            mode=found.get("ObjectLockMode"),
            hidden=hidden,
            versions=len(real),
            held=found.get("ObjectLockLegalHoldStatus") == "ON",
        )

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Yield keys in byte order, a page at a time; hidden objects are left out."""
        check_prefix(prefix)
        start: dict[str, Any] = {} if after is None else {"StartAfter": f"{self._prefix}{after}"}
        token: dict[str, Any] = {}
        while True:
            page = self._call(
                "ListObjectsV2",
                prefix,
                lambda token=token: self._page(  # type: ignore[misc]  # one default per page
                    self._client.list_objects_v2, Prefix=f"{self._prefix}{prefix}", **start, **token
                ),
            )
            for item in page.get("Contents", []):
                key = item["Key"].removeprefix(self._prefix)
                # Across folders SeaweedFS answers some keys that sort before StartAfter.
                if after is None or key > after:
                    yield key
            if not page["IsTruncated"]:
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        """Remove every version, then every delete marker. Raises: ObjectLocked."""
        name = self._name(key)
        if not self._locked:
            self._call("DeleteObject", key, lambda: self._client.delete_object(Bucket=self._bucket, Key=name))
            return
        # Versions first: while one of them is locked, a marker over it stays as evidence.
        for version in sorted(self._versions(key), key=lambda item: item.is_marker):
            self._delete_version(key, version.id)

    def hold(self, key: str, *, on: bool) -> None:
        """Set or lift the legal hold of every version. Raises: see `HoldingStore`."""
        name = self._name(key)
        for version in self._real(key):
            self._call(
                "PutObjectLegalHold",
                key,
                lambda version=version: self._client.put_object_legal_hold(  # type: ignore[misc]  # as in list
                    Bucket=self._bucket, Key=name, VersionId=version, LegalHold={"Status": "ON" if on else "OFF"}
                ),
            )

    def prolong(self, key: str, until: datetime) -> None:
        """Move the end of the lock of the oldest version to a later date. Raises: see `HoldingStore`."""
        known = self.head(key).locked_until
        if known is None:
            detail = f"object {key} was created without a lock"
            raise LockNotEnforced(detail)
        if known < until:
            until = _whole_second(until)
            self._retain(key, self._real(key)[-1], self._mode, until)
            self._require_lock(key, until)

    def _real(self, key: str) -> tuple[str, ...]:
        """Return the ids of the versions that hold bytes, the newest first. Raises: ObjectMissing."""
        real = tuple(version.id for version in self._versions(key) if not version.is_marker)
        if not real:
            raise ObjectMissing(key)
        return real

    # ── what the interface has beyond the port ──

    def attacks(self, key: str) -> Sequence[Attack]:
        """Return what Object Lock must withstand, for `probe`: on an object of their own, locked like `key`."""
        target = f"{key}-attacked"
        self.put(target, b"under it", lock_until=self.head(key).locked_until)
        (version,) = self._real(target)

        def uncover() -> None:
            for laid in self._versions(target):
                # A default rule of the bucket, or a copy that took the lock along: a later probe removes it.
                with suppress(LedgerError):
                    if laid.id != version:
                        self._delete_version(target, laid.id)

        return Target(
            client=self._client,
            bucket=self._bucket,
            name=self._name(target),
            key=target,
            version=version,
            mode=self._mode,
            ask=self._call,
            head=lambda: self.head(target),
            versions=lambda: len(self._versions(target)),
            uncover=uncover,
        ).attacks()

    def check_bucket(self) -> None:
        """Check that the bucket is of the kind this store needs.

        Raises: LockNotEnforced when Object Lock or versioning is off for a locked store; StoreDenied when
        a hot bucket keeps versions, since replaced keys would survive there; StoreUnavailable.
        """
        # Typed as always there, but a bucket that never had versioning has no Status.
        status: str | None = self._call(
            "GetBucketVersioning", self._bucket, lambda: self._client.get_bucket_versioning(Bucket=self._bucket)
        ).get("Status")
        if not self._locked:
            if status:
                detail = "the hot bucket keeps old versions, so erased keys would survive in it"
                raise StoreDenied(detail)
            return
        try:
            found = self._call(
                "GetObjectLockConfiguration",
                self._bucket,
                lambda: self._client.get_object_lock_configuration(Bucket=self._bucket),
            )
        except ObjectMissing:
            enabled = None
        else:
            enabled = found.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled")
        if enabled != "Enabled" or status != "Enabled":
            detail = "the bucket has no Object Lock with versioning; create it with Object Lock enabled"
            raise LockNotEnforced(detail)

    def close(self) -> None:
        """Close the connections of the client it was given."""
        self._client.close()

    # ── requests ──

    def _name(self, key: str) -> str:
        return f"{self._prefix}{check_key(key)}"

    def _put_arguments(self, name: str, data: bytes | memoryview, until: datetime | None) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "Bucket": self._bucket,
            "Key": name,
            "Body": Reading(data) if isinstance(data, memoryview) else data,
            "ContentType": "application/octet-stream",
            "ChecksumSHA256": b64encode(sha256(data).digest()).decode("ascii"),
        }
        if until is not None:
            arguments |= {"ObjectLockMode": self._mode, "ObjectLockRetainUntilDate": until}
        return arguments

    def _page(self, listing: Callable[..., Any], **asked: Any) -> Mapping[str, Any]:
        """Return one page of a list. Raises: _NoAnswer for a success that holds none, or the page that was asked with.

        Taken for an empty list, it would say that nothing is there.
        """
        page: Mapping[str, Any] = listing(Bucket=self._bucket, **asked)
        after = [page.get(f"Next{name}") for name in _MARKERS]
        goes_on = any(after) and after != [asked.get(name) for name in _MARKERS]
        if "IsTruncated" not in page or (page["IsTruncated"] and not goes_on):
            raise _NoAnswer
        return page

    def _once(self, request: Callable[[], T]) -> T:
        """Return the answer to one try. Raises: _Refused, _NoAnswer."""
        try:
            return request()
        except ClientError as error:
            answer: dict[str, Any] = dict(error.response.get("ResponseMetadata", {}))
            status = int(answer.get("HTTPStatusCode", 0))
            if not status or status >= _SERVER_ERROR or status == _TOO_MANY:
                raise _NoAnswer from error
            marker = str(answer.get("HTTPHeaders", {}).get("x-amz-delete-marker", "")).lower() == "true"
            code = str(error.response.get("Error", {}).get("Code", ""))
            raise _Refused(status, marker=marker, code=code) from error
        except (HTTPClientError, NoConnection, IncompleteReadError) as error:
            raise _NoAnswer from error
        except RecursionError as error:
            raise StoreDenied("it redirects in circles: check the endpoint and what lies before it") from error
        except BotoCoreError as error:
            # No credentials, a bad endpoint, a parameter botocore refuses: nothing was sent.
            raise StoreDenied(type(error).__name__) from error
        except (ResponseParserError, ValueError) as error:
            # Something that does not speak S3 answered; who knows what it did with the request.
            raise _NoAnswer from error
        except OSError as error:
            raise _NoAnswer from error

    def _call(self, operation: str, key: str, request: Callable[[], T]) -> T:
        """Return the answer to a request that may be repeated freely.

        Raises: ObjectMissing, ObjectHidden, StoreDenied, StoreUnavailable; _Refused for a range.
        """
        for attempt in range(ATTEMPTS):
            try:
                return self._once(request)
            except _NoAnswer:
                self._wait(attempt)
            except _Refused as refused:
                if refused.marker:
                    raise ObjectHidden(key) from refused
                if refused.status == _MISSING:
                    raise ObjectMissing(key) from refused
                if refused.status == _RANGE_BEYOND:
                    raise
                if refused.status != _CONFLICT:
                    raise _denied(operation, refused) from refused
                self._wait(attempt)
        detail = f"{operation} had no answer after {ATTEMPTS} attempts"
        raise StoreUnavailable(detail)

    def _wait(self, attempt: int) -> None:
        """Pause with full jitter, so that many writers do not come back at once."""
        if attempt + 1 < ATTEMPTS:
            longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**attempt)
            self._pause(random.uniform(0, longest))  # noqa: S311 (not a secret)

    def _versions(self, key: str) -> tuple[_Version, ...]:
        """Return versions and delete markers of exactly this key, the newest first of each kind."""
        name = self._name(key)
        found: list[_Version] = []
        markers: dict[str, Any] = {}
        while True:
            page = self._call(
                "ListObjectVersions",
                key,
                lambda markers=markers: self._page(  # type: ignore[misc]  # as in list
                    self._client.list_object_versions, Prefix=name, **markers
                ),
            )
            listed: list[tuple[Any, bool]] = [(item, False) for item in page.get("Versions", [])]
            listed += [(item, True) for item in page.get("DeleteMarkers", [])]
            found.extend(
                _Version(id=str(item["VersionId"]), is_marker=marker) for item, marker in listed if item["Key"] == name
            )
            # Keys come in order and this one is the shortest with its prefix, so it stands at the front.
            if not page["IsTruncated"] or any(item["Key"] != name for item, _ in listed):
                return tuple(found)
            markers = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page.get("NextVersionIdMarker", "")}

    def _delete_version(self, key: str, version: str) -> None:
        name = self._name(key)
        try:
            self._call(
                "DeleteObject",
                key,
                lambda: self._client.delete_object(Bucket=self._bucket, Key=name, VersionId=version),
            )
        except ObjectMissing:
            return
        except StoreDenied as denied:
            until, is_held = self._lock_of(key, version)
            if until is None and not is_held:
                raise
            raise ObjectLocked(key, None if is_held else until) from denied

    def _lock_of(self, key: str, version: str) -> tuple[datetime | None, bool]:
        """Return the end of a version's lock and whether a legal hold lies on it; nothing when it cannot be asked."""
        name = self._name(key)
        try:
            found = self._call(
                "HeadObject",
                key,
                lambda: self._client.head_object(Bucket=self._bucket, Key=name, VersionId=version),
            )
        except LedgerError:
            return None, False
        return found.get("ObjectLockRetainUntilDate"), found.get("ObjectLockLegalHoldStatus") == "ON"

    def _retain(self, key: str, version: str, mode: Mode, until: datetime) -> None:
        name = self._name(key)
        self._call(
            "PutObjectRetention",
            key,
            lambda: self._client.put_object_retention(
                Bucket=self._bucket,
                Key=name,
                VersionId=version,
                Retention={"Mode": mode, "RetainUntilDate": until},
            ),
        )

    # ── reading back ──

    def _is_ours(self, key: str, data: bytes | memoryview, until: datetime | None) -> bool:
        """Return whether the object that is there is the one we wrote before the answer was lost."""
        try:
            if not self._has(key, data):
                return False
            if until is not None:
                self._require_lock(key, until)
        except (ObjectMissing, ObjectHidden):
            return False
        return True

    def _read_back(self, key: str, data: bytes | memoryview, until: datetime | None, answer: Any) -> None:
        """Check lock and bytes of the first object of each day and lock date, and of a sample."""
        if until is None:
            return
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        day = (str(headers.get("date", ""))[:16], until.date().isoformat())
        with self._guard:
            self._since_read_back += 1
            due = day not in self._seen or self._since_read_back >= SAMPLE
        if not due:
            return
        try:
            self._require_lock(key, until)
            if not self._has(key, data):
                detail = f"object {key} reads back other bytes than were written"
                raise LockNotEnforced(detail)
        except (ObjectMissing, ObjectHidden) as error:
            detail = f"object {key} is not there after the store said so"
            raise LockNotEnforced(detail) from error
        with self._guard:
            self._seen.add(day)
            self._since_read_back = 0

    def _has(self, key: str, data: bytes | memoryview) -> bool:
        """Return whether the object holds these bytes and no more; a large one is read in pieces."""
        if len(data) <= _AT_ONCE:
            return sha256(self.get(key)).digest() == sha256(data).digest()
        for offset in range(0, len(data), _AT_ONCE):
            if self.get(key, offset=offset, length=_AT_ONCE) != data[offset : offset + _AT_ONCE]:
                return False
        return self.get(key, offset=len(data), length=1) == b""

    def _require_lock(self, key: str, until: datetime) -> None:
        info = self.head(key)
        if info.mode != self._mode or info.locked_until is None or info.locked_until < until - LOCK_TOLERANCE:
            shown = "no date" if info.locked_until is None else info.locked_until.isoformat()
            detail = f"object {key}: expected {self._mode} until {until.isoformat()}, got {info.mode} until {shown}"
            raise LockNotEnforced(detail)


def open_s3(
    url: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    mode: Mode = "COMPLIANCE",
    locked: bool = True,
) -> S3Store:
    """Return the store at `s3://bucket/prefix`, after checking that the bucket is of the right kind.

    The caller closes it. Credentials: boto3's own chain. Raises: LockNotEnforced, StoreDenied, StoreUnavailable.
    """
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
        detail = "an S3 store is written s3://bucket/prefix"
        raise StoreDenied(detail)
    store = S3Store(
        s3_client(endpoint_url=endpoint_url, region=region),
        parts.netloc,
        parts.path.strip("/"),
        mode=mode,
        locked=locked,
    )
    with ExitStack() as unless_sound:
        unless_sound.callback(store.close)
        try:
            store.check_bucket()
        except ObjectMissing as error:
            detail = "the bucket does not exist"
            raise StoreDenied(detail) from error
        unless_sound.pop_all()
    return store


def s3_client(
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    profile: str | None = None,
) -> S3Client:
    """Return a client as `S3Store` needs it: no retries of its own, no checksums that clones refuse.

    The caller closes it. `profile` is a section of the shared credentials file. Raises: botocore's ProfileNotFound.
    """
    config = Config(
        # One attempt: a retry inside botocore would turn a lost answer into an unexplained 412.
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Clones of S3 fail on the CRC32 that boto3 adds since 1.36; we send SHA-256 ourselves.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=32,
        s3={"addressing_style": "path" if endpoint_url else "auto"},
    )
    session = boto3.session.Session(
        aws_access_key_id=access_key, aws_secret_access_key=secret_key, region_name=region, profile_name=profile
    )
    client: S3Client = session.client("s3", endpoint_url=endpoint_url, config=config)
    return client


def _whole_second(at: datetime) -> datetime:
    """Return the time in UTC, rounded up: S3 keeps whole seconds and must never keep less than asked."""
    aware = at.astimezone(UTC)
    return aware if not aware.microsecond else aware.replace(microsecond=0) + timedelta(seconds=1)


def _denied(operation: str, refused: _Refused) -> StoreDenied:
    shown = _SAID.get(refused.code) or _SAID.get(str(refused.status)) or f"HTTP {refused.status}"
    return StoreDenied(f"{operation}: {shown}")

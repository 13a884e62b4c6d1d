"""What nobody may be able to do to a locked object in a bucket: the attacks by which `doctor` tries Object Lock.

Guarantees: an attack raises ObjectLocked or StoreDenied when the bucket withstood it and returns when it did not. S3
lets anybody who may write lay a version or a delete marker over a locked object; there the first version has to stand
as it did, and what covers it has to show. What an attack laid there, or switched off, is taken back again, but for
what the bucket itself has locked by then. The bypass header is never sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from ledger.errors import ObjectLocked, StoreDenied, StoreUnavailable
from ledger.objects import Attack, ObjectInfo

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.literals import ObjectLockRetentionModeType

T = TypeVar("T")
_CLIENT_ERRORS = range(400, 500)
_STEP = timedelta(minutes=30)


class Ask(Protocol):
    """Sends a request that may be repeated freely, as `S3Store` does."""

    def __call__(self, operation: str, key: str, request: Callable[[], T]) -> T:
        """Return the answer. Raises: StoreDenied, StoreUnavailable, ObjectMissing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One locked object: `name` in its bucket, `key` in its store, and the version that its writer made."""

    client: S3Client
    bucket: str
    name: str
    key: str
    version: str
    mode: ObjectLockRetentionModeType
    ask: Ask
    head: Callable[[], ObjectInfo]
    versions: Callable[[], int]
    """Counts versions and delete markers of the object, as `verify` would see them."""
    uncover: Callable[[], None]
    """Removes what lies over the version, as far as no lock keeps it."""

    def attacks(self) -> Sequence[Attack]:
        """Return every attack, in the order in which they are tried."""
        until = self._until()
        named: list[tuple[str, Callable[[], None]]] = [
            ("a batch delete is refused", self._delete_in_batch),
            ("a shorter lock is refused", lambda: self._retain(self.mode, until - _STEP)),
            ("lifting the lock is refused", self._lift),
            ("a plain overwrite takes nothing away", lambda: self._cover("PutObject", self._overwrite)),
            ("a copy over it takes nothing away", lambda: self._cover("CopyObject", self._copy)),
            ("a plain delete takes nothing away", lambda: self._cover("DeleteObject", self._mark)),
            ("suspending the versions is refused", self._suspend),
        ]
        if self.mode == "COMPLIANCE":
            named.insert(2, ("a weaker mode is refused", lambda: self._retain("GOVERNANCE", until + _STEP)))
        return [Attack(name=name, attempt=attempt) for name, attempt in named]

    def _until(self) -> datetime:
        until = self.head().locked_until
        if until is None:
            raise StoreDenied(f"object {self.key} has no lock that could be attacked")
        return until

    def _delete_in_batch(self) -> None:
        def request() -> Any:
            return self.client.delete_objects(
                Bucket=self.bucket, Delete={"Objects": [{"Key": self.name, "VersionId": self.version}]}
            )

        if self.ask("DeleteObjects", self.key, request).get("Errors"):
            raise ObjectLocked(self.key, None)

    def _retain(self, mode: ObjectLockRetentionModeType, until: datetime) -> None:
        self.ask(
            "PutObjectRetention",
            self.key,
            lambda: self.client.put_object_retention(
                Bucket=self.bucket,
                Key=self.name,
                VersionId=self.version,
                Retention={"Mode": mode, "RetainUntilDate": until},
            ),
        )

    def _lift(self) -> None:
        self.ask(
            "PutObjectRetention",
            self.key,
            lambda: self.client.put_object_retention(
                Bucket=self.bucket, Key=self.name, VersionId=self.version, Retention={}
            ),
        )

    def _overwrite(self) -> object:
        return self.client.put_object(Bucket=self.bucket, Key=self.name, Body=b"over it")

    def _copy(self) -> object:
        return self.client.copy_object(
            Bucket=self.bucket,
            Key=self.name,
            CopySource={"Bucket": self.bucket, "Key": self.name, "VersionId": self.version},
            MetadataDirective="REPLACE",
        )

    def _mark(self) -> object:
        return self.client.delete_object(Bucket=self.bucket, Key=self.name)

    def _cover(self, operation: str, lay: Callable[[], object]) -> None:
        """Lay something over the object. Raises: ObjectLocked when the first version stands and the cover shows."""
        before, count = self._standing(), self.versions()
        try:
            self.ask(operation, self.key, lay)
            stands, is_told = self._standing() == before, self.versions() > count
        finally:
            self.uncover()
        if stands and is_told:
            raise ObjectLocked(self.key, None)

    def _standing(self) -> tuple[bytes, str | None, datetime | None]:
        """The bytes and the lock of the version."""
        found = self.ask(
            "GetObject",
            self.key,
            lambda: self.client.get_object(Bucket=self.bucket, Key=self.name, VersionId=self.version),
        )
        return found["Body"].read(), found.get("ObjectLockMode"), found.get("ObjectLockRetainUntilDate")

    def _suspend(self) -> None:
        """Ask for what would let the next plain PUT or DELETE take an object's place; undone if it was done."""
        # Not through `ask`, which takes the 409 that is the right answer here for a reason to come again.
        try:
            self._set_versioning("Suspended")
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if status in _CLIENT_ERRORS:
                raise StoreDenied(f"PutBucketVersioning: HTTP {status}") from error
            raise StoreUnavailable("PutBucketVersioning had no answer") from error
        except BotoCoreError as error:
            raise StoreUnavailable("PutBucketVersioning had no answer") from error
        finally:
            self._keep_versions()

    def _keep_versions(self) -> None:
        found = self.ask("GetBucketVersioning", self.key, lambda: self.client.get_bucket_versioning(Bucket=self.bucket))
        if found.get("Status") != "Enabled":
            self.ask("PutBucketVersioning", self.key, lambda: self._set_versioning("Enabled"))

    def _set_versioning(self, status: Any) -> None:
        self.client.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": status})

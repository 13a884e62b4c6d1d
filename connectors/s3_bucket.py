"""One bucket behind kind `s3`: listing exact keys with every version, and what S3's answers mean.

Guarantees: a listing is read to its end or raises; keys are compared whole, never by prefix; each request ends within
the time its caller has left. Denied, missing bucket and no answer are told apart and never read as an empty listing.
Does not decide what is deleted.
"""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.loaders import Loader

from connectors.errors import BadConfig, StoreUnreachable, WrongCredentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from connectors.base import Deadline

_REFUSED = frozenset(
    {"AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch",
     "403", "401"}
)  # fmt: skip
_GONE = frozenset({"NoSuchKey", "NoSuchVersion", "NoSuchUpload", "404"})
_TIMEOUTS = (60.0, 15.0, 5.0, 1.0)
"""Limits of one request, so that calls with much time share a client and those with little have their own."""
THREADS = 8
_MODELS = Loader(include_default_search_paths=True)
"""The descriptions of S3's requests, read once: they take longer to parse than most requests take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a key: an object, or a delete marker that hides those below it."""

    key: str = field(repr=False)
    version_id: str
    is_marker: bool
    modified: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A multipart upload that was begun and not completed; its parts are stored and in no listing of objects."""

    key: str = field(repr=False)
    upload_id: str = field(repr=False)


class Refused(Exception):
    """S3 refused one request about one item; `code` is its error code, without the message, which may name things."""

    def __init__(self, code: str) -> None:
        super().__init__(f"the store refused: {code}")
        self.code = code


class Bucket:
    """Requests about one bucket. Clients are safe for threads, so several items are asked for at once."""

    def __init__(self, name: str, settings: Mapping[str, str]) -> None:
        self.name = name
        self._settings = dict(settings)
        self._clients: dict[float, Any] = {}
        self._making = threading.Lock()

    def client(self, limit: Deadline) -> Any:
        """Return a client whose requests end within the limit. Raises: Timeout, BadConfig."""
        limit.check()
        left = limit.left()
        seconds = next((each for each in _TIMEOUTS if each <= left), round(max(left, 0.05), 1) or 0.1)
        # Of two that threads make at once nobody would close the first.
        with self._making:
            if seconds not in self._clients:
                self._clients[seconds] = self._make(seconds)
            return self._clients[seconds]

    def _make(self, seconds: float) -> Any:
        config = Config(
            connect_timeout=seconds,
            read_timeout=seconds,
            retries={"total_max_attempts": 1},
            max_pool_connections=THREADS * 2,
            # Newer defaults add checksums that other servers than AWS refuse. Source: botocore #3352.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            session = botocore.session.Session()
            session.register_component("data_loader", _MODELS)
            make: Any = session.create_client
            return make("s3", config=config, **self._settings)
        except (BotoCoreError, ValueError):
            raise BadConfig("bucket, endpoint_url, region, access_key and secret_key do not fit together") from None

    @contextmanager
    def guard(self, limit: Deadline, *, about_item: bool = False) -> Iterator[None]:
        """Turn S3's errors into ours. Raises: Refused where one item is concerned and S3 answered, else by cause."""
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            if code == "NoSuchBucket":
                raise StoreUnreachable("s3", "there is no such bucket, or not for this account") from None
            if status >= 500 or code == "SlowDown":  # noqa: PLR2004 -- RFC 9110 §15.6
                raise StoreUnreachable("s3", f"the store failed with status {status}") from None
            if about_item:
                raise Refused(code if code.isalnum() else str(status)) from None
            if code in _REFUSED or status in {401, 403}:
                raise WrongCredentials("s3") from None
            raise StoreUnreachable("s3", f"an answer that is not understood, status {status}") from None
        except (HTTPClientError, BotoCoreError) as error:
            if limit.is_over() or "Timeout" in type(error).__name__:
                raise (limit.error() if limit.left() < 1 else StoreUnreachable("s3")) from None
            if "Credential" in type(error).__name__:
                raise WrongCredentials("s3", "there are no credentials") from None
            raise StoreUnreachable("s3") from None

    def versions(self, key: str, limit: Deadline) -> list[Version]:
        """Return every version and marker of exactly this key, newest first."""
        found: list[Version] = []
        for version in self.all_versions(limit, prefix=key):
            if version.key == key:
                found.append(version)
            elif version.key.encode() > key.encode():
                break
        return found

    def all_versions(self, limit: Deadline, *, prefix: str = "") -> Iterator[Version]:
        """Yield the versions and markers below a prefix, by key, page by page."""
        more: dict[str, str] = {}
        while True:
            with self.guard(limit):
                page = self.client(limit).list_object_versions(Bucket=self.name, Prefix=prefix, **more)
            rows = [(row, False) for row in page.get("Versions", ())]
            rows += [(row, True) for row in page.get("DeleteMarkers", ())]
            found = [
                Version(
                    key=row["Key"],
                    version_id=row.get("VersionId") or "null",
                    is_marker=marker,
                    modified=row["LastModified"],
                )
                for row, marker in rows
            ]
            # A page gives objects and markers apart; within a page the order of one listing is by key, newest first.
            found.sort(key=lambda each: each.modified, reverse=True)
            found.sort(key=lambda each: each.key.encode())
            yield from found
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"]}
            if page.get("NextVersionIdMarker"):
                more["VersionIdMarker"] = page["NextVersionIdMarker"]

    def uploads(self, limit: Deadline, *, prefix: str = "") -> Iterator[Upload]:
        """Yield the unfinished uploads below a prefix."""
        more: dict[str, str] = {}
        while True:
            with self.guard(limit):
                page = self.client(limit).list_multipart_uploads(Bucket=self.name, Prefix=prefix, **more)
            for row in page.get("Uploads", ()):
                yield Upload(key=row["Key"], upload_id=row["UploadId"])
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def head(self, version: Version, limit: Deadline) -> dict[str, Any] | None:
        """Return a version's headers, None when it is gone. Raises: Refused."""
        try:
            with self.guard(limit, about_item=True):
                named: dict[str, Any] = self.client(limit).head_object(
                    Bucket=self.name, Key=version.key, VersionId=version.version_id
                )
        except Refused as refused:
            if refused.code in _GONE:
                return None
            raise
        return named

    def read(self, version: Version, limit: Deadline, *, span: str | None = None) -> Iterator[bytes]:
        """Yield a version's bytes, or those of one range; nothing when it is gone. Raises: Refused, Timeout."""
        more = {"Range": span} if span else {}
        try:
            with self.guard(limit, about_item=True):
                body = self.client(limit).get_object(
                    Bucket=self.name, Key=version.key, VersionId=version.version_id, **more
                )["Body"]
                # What is not read to its end goes back to no pool.
                with closing(body):
                    for chunk in body.iter_chunks(1 << 20):
                        limit.check()
                        yield chunk
        except Refused as refused:
            if refused.code not in _GONE:
                raise

    def set_hold(self, version: Version, limit: Deadline, *, on: bool) -> None:
        """Set or lift the legal hold of one version. Raises: Refused."""
        with self.guard(limit, about_item=True):
            self.client(limit).put_object_legal_hold(
                Bucket=self.name,
                Key=version.key,
                VersionId=version.version_id,
                LegalHold={"Status": "ON" if on else "OFF"},
            )

    def delete(self, versions: list[Version], limit: Deadline) -> dict[Version, str]:
        """Delete these versions and no other by one request; return the refused ones with S3's code."""
        named = [{"Key": version.key, "VersionId": version.version_id} for version in versions]
        try:
            with self.guard(limit, about_item=True):
                answer = self.client(limit).delete_objects(Bucket=self.name, Delete={"Objects": named, "Quiet": True})
        except Refused as refused:
            return dict.fromkeys(versions, refused.code)
        failed = {
            (row.get("Key"), row.get("VersionId") or "null"): str(row.get("Code") or "unknown")
            for row in answer.get("Errors", ())
        }
        return {
            version: failed[version.key, version.version_id]
            for version in versions
            if (version.key, version.version_id) in failed
        }

    def abort(self, upload: Upload, limit: Deadline) -> str | None:
        """Throw an unfinished upload away; return S3's code when it refuses."""
        try:
            with self.guard(limit, about_item=True):
                self.client(limit).abort_multipart_upload(Bucket=self.name, Key=upload.key, UploadId=upload.upload_id)
        except Refused as refused:
            return None if refused.code in _GONE else refused.code
        return None

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

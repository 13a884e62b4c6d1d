"""The root in AWS KMS: `aws-kms://KEY?region=…`, one KMS key a month, the key's bytes never here.

Guarantees: every call carries an encryption context that binds tenant, version and what is wrapped, so a wrapped key
moved elsewhere does not open; a version counts as destroyed only when KMS answers that the key does not exist. A key
that is scheduled for deletion can be brought back for 7 to 30 days, so until then nothing here calls it gone, and no
certificate is `final`. A call that has no answer is repeated a few times and is then RootUnavailable, never RootGone:
an outage is no proof that a key is destroyed.

Which key is which version stands in small files (`root/<version>.kms`) beside the key-encryption keys; they hold ids
and dates only. The first version is the key that the operator names; it must serve nothing else, because it is
deleted a month later. A later one is made with the same policy, tags and description, and the alias, if the operator
named one, is moved to it. A crash between making a key and writing its file leaves a key without use; its tags
`muniment-root` and `muniment-version` tell. Rotation inside one KMS key is no turn: AWS keeps all of its old bytes.

Rights needed: kms:Encrypt, Decrypt, DescribeKey, and for the turn CreateKey, TagResource, GetKeyPolicy,
ListResourceTags, UpdateAlias, ScheduleKeyDeletion.

Source: AWS KMS API Reference, Encrypt, Decrypt, ScheduleKeyDeletion; "Key states of AWS KMS keys".
"""

from __future__ import annotations

import json
import random
import time
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnection

from vault import durable
from vault.errors import RootGone, RootRefused, RootUnavailable
from vault.providers import VERSION_BYTES, RootVersion, root_version

if TYPE_CHECKING:
    from mypy_boto3_kms import KMSClient

T = TypeVar("T")

SCHEME = "aws-kms"
ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
CONNECT_SECONDS = 3
READ_SECONDS = 10
SHORTEST_WINDOW_DAYS = 7
LONGEST_WINDOW_DAYS = 30
_LABEL = "muniment/root/v1"
_FIRST = 1
_PENDING = "PendingDeletion"
_TRY_AGAIN = frozenset(
    {
        "ThrottlingException",
        "Throttling",
        "LimitExceededException",
        "KMSInternalException",
        "DependencyTimeoutException",
        "KeyUnavailableException",
        "InternalFailure",
        "ServiceUnavailable",
        "RequestTimeout",
    }
)
_NOT_THESE_BYTES = frozenset({"InvalidCiphertextException", "IncorrectKeyException"})


@dataclass(frozen=True, slots=True, kw_only=True)
class KmsAddress:
    """What the setting names. `key` is an id, an ARN or `alias/…`; `folder` is where the wrapped keys lie, if named."""

    key: str
    region: str | None
    window_days: int
    folder: Path | None


def parse_address(url: str) -> KmsAddress:
    """Return the parts of `aws-kms://KEY?region=…&window=7&folder=/…`. Raises RootUnavailable, saying what is wrong."""
    parts = urlsplit(url)
    key = unquote(parts.netloc + parts.path).strip("/")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    unknown = sorted(set(query) - {"region", "window", "folder"})
    if parts.scheme != SCHEME or not key or unknown:
        detail = f"unknown option {unknown[0]!r}" if unknown else "a KMS key is written aws-kms://KEY?region=REGION"
        raise RootUnavailable(detail)
    window = query.get("window", str(SHORTEST_WINDOW_DAYS))
    if not window.isdigit() or not SHORTEST_WINDOW_DAYS <= int(window) <= LONGEST_WINDOW_DAYS:
        raise RootUnavailable(f"window is 7 to 30 days, got {window!r}")
    folder = None if "folder" not in query else Path(query["folder"])
    return KmsAddress(key=key, region=query.get("region"), window_days=int(window), folder=folder)


def kms_client(region: str | None, *, endpoint_url: str | None = None) -> KMSClient:
    """Return a client without retries of its own, with short time limits; whoever takes it closes it.

    Credentials: boto3's own chain. Raises: RootUnavailable.
    """
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
    )
    try:
        client: KMSClient = boto3.session.Session(region_name=region).client(
            "kms", endpoint_url=endpoint_url, config=config
        )
    except BotoCoreError as error:
        raise RootUnavailable(f"AWS KMS: {type(error).__name__}; name the region in the address") from error
    return client


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """One version as its file has it. `ends_at` is the date KMS gave when it was scheduled for deletion."""

    version: int
    key_id: str
    created_at: datetime
    ends_at: datetime | None = None
    destroyed_at: datetime | None = None


class AwsKmsRoot:
    """The root as KMS keys; see the module. One instance a process; nothing of a key stays in memory."""

    def __init__(
        self,
        client: KMSClient,
        key: str,
        folder: Path,
        *,
        clock: Callable[[], datetime],
        window_days: int = SHORTEST_WINDOW_DAYS,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open or make the folder. Asks KMS nothing yet. Raises RootUnavailable if others may look into it."""
        self._client = client
        self._key = key
        self._root = durable.private_folder(durable.private_folder(folder) / "root")
        self._clock = clock
        self._window_days = window_days
        self._pause = pause

    @property
    def kind(self) -> str:
        """Return ``kms``."""
        return "kms"

    def wrap(self, tenant: str, plaintext: bytes, aad: bytes) -> bytes:
        """Return the version and KMS's ciphertext under the newest version. Raises RootUnavailable."""
        newest = self._newest() or self._first()
        answer = self._call(
            "Encrypt",
            lambda: self._client.encrypt(
                KeyId=newest.key_id, Plaintext=plaintext, EncryptionContext=_context(tenant, newest.version, aad)
            ),
        )
        return newest.version.to_bytes(VERSION_BYTES, "big") + answer["CiphertextBlob"]

    def unwrap(self, tenant: str, wrapped: bytes, aad: bytes) -> bytes:
        """Return the plaintext. Raises RootGone for a version that is gone or bytes not its own; RootUnavailable."""
        version = root_version(wrapped)
        known = self._known().get(version)
        if known is None or known.destroyed_at is not None:
            raise RootGone(f"root version {version} is not known or is destroyed")
        answer = self._call(
            "Decrypt",
            lambda: self._client.decrypt(
                KeyId=known.key_id,
                CiphertextBlob=wrapped[VERSION_BYTES:],
                EncryptionContext=_context(tenant, version, aad),
            ),
        )
        plaintext: bytes = answer["Plaintext"]
        return plaintext

    def rotate(self, now: datetime, *, force: bool = False) -> int:
        """Return the newest version; a calendar month in UTC has a KMS key of its own."""
        newest = self._newest() or self._first()
        month = now.astimezone(UTC)
        made = newest.created_at
        if not force and (made.year, made.month) >= (month.year, month.month):
            return newest.version
        known = _Known(version=newest.version + 1, key_id=self._make_key(newest, newest.version + 1), created_at=month)
        if not durable.create_once(self._path(known.version), _dump(known)):
            # Another process was faster: the key we made wraps nothing and goes again.
            self._schedule(known.key_id)
            return self._known()[known.version].version
        if self._key.startswith("alias/"):
            self._call("UpdateAlias", lambda: self._client.update_alias(AliasName=self._key, TargetKeyId=known.key_id))
        return known.version

    def retire(self, in_use: Collection[int], now: datetime) -> list[int]:
        """Schedule the deletion of old versions nothing needs; return those that KMS says are gone by now."""
        gone = []
        known = self._known()
        newest = max(known, default=0)
        for version, one in sorted(known.items()):
            if version == newest or version in in_use or one.destroyed_at is not None:
                continue
            # Asked each time: somebody may have cancelled a deletion, and then it is scheduled again.
            found = self._describe(one.key_id)
            if found is None:
                self._write(replace(one, destroyed_at=now.astimezone(UTC)))
                gone.append(version)
                continue
            ends_at = found.get("DeletionDate") if found.get("KeyState") == _PENDING else self._schedule(one.key_id)
            if ends_at != one.ends_at:
                self._write(replace(one, ends_at=ends_at))
        return gone

    def versions(self) -> Mapping[int, RootVersion]:
        """Return every version; one whose deletion date has passed is asked for, and only gone when KMS lacks it."""
        found = {}
        now = self._clock().astimezone(UTC)
        for version, one in self._known().items():
            known = one
            if one.destroyed_at is None and one.ends_at is not None and one.ends_at <= now:
                known = self._seen_gone(one, now)
            found[version] = RootVersion(version=version, created_at=known.created_at, destroyed_at=known.destroyed_at)
        return found

    def pending(self) -> Mapping[int, datetime]:
        """Return the versions scheduled for deletion and not gone yet, with the date KMS gave."""
        known = self._known().values()
        return {one.version: one.ends_at for one in known if one.ends_at is not None and one.destroyed_at is None}

    # ── inside ──

    def _seen_gone(self, one: _Known, now: datetime) -> _Known:
        if self._describe(one.key_id) is not None:
            return one
        gone = replace(one, destroyed_at=now)
        self._write(gone)
        return gone

    def close(self) -> None:
        """Close the client's connections; a later call makes them again."""
        self._client.close()

    def _newest(self) -> _Known | None:
        known = self._known()
        return known[max(known)] if known else None

    def _first(self) -> _Known:
        """The operator's own key, looked up once: an alias may point elsewhere tomorrow."""
        found = self._describe(self._key)
        if found is None:
            raise RootUnavailable("AWS KMS has no such key; check key, region and account")
        if found.get("KeySpec") != "SYMMETRIC_DEFAULT":
            raise RootUnavailable("the root has to be a symmetric KMS key for encryption (SYMMETRIC_DEFAULT)")
        if found.get("KeyManager") != "CUSTOMER":
            raise RootUnavailable("the root has to be a customer managed KMS key: others cannot be deleted")
        known = _Known(version=_FIRST, key_id=found["Arn"], created_at=self._clock().astimezone(UTC))
        durable.create_once(self._path(_FIRST), _dump(known))
        return self._known()[_FIRST]

    def _make_key(self, former: _Known, version: int) -> str:
        bare = _bare(former.key_id)
        policy = self._call("GetKeyPolicy", lambda: self._client.get_key_policy(KeyId=bare, PolicyName="default"))
        about = self._describe(former.key_id) or {}
        listed = self._call("ListResourceTags", lambda: self._client.list_resource_tags(KeyId=bare))
        tags = {tag["TagKey"]: tag["TagValue"] for tag in listed["Tags"]}
        tags |= {"muniment-root": tags.get("muniment-root", bare)}
        tags["muniment-version"] = str(version)
        answer = self._call(
            "CreateKey",
            lambda: self._client.create_key(
                Policy=policy["Policy"],
                Description=about.get("Description", ""),
                KeyUsage="ENCRYPT_DECRYPT",
                KeySpec="SYMMETRIC_DEFAULT",
                Tags=[{"TagKey": name, "TagValue": value} for name, value in sorted(tags.items())],
            ),
            # A repeat after a lost answer would leave a second key behind.
            attempts=1,
        )
        arn: str = answer["KeyMetadata"]["Arn"]
        return arn

    def _describe(self, key: str) -> dict[str, Any] | None:
        """Return KMS's facts about a key, None when it does not exist."""
        try:
            answer = self._call("DescribeKey", lambda: self._client.describe_key(KeyId=key))
        except RootGone:
            return None
        return dict(answer["KeyMetadata"])

    def _schedule(self, key: str) -> datetime:
        answer = self._call(
            "ScheduleKeyDeletion",
            lambda: self._client.schedule_key_deletion(KeyId=_bare(key), PendingWindowInDays=self._window_days),
        )
        ends_at: datetime = answer["DeletionDate"]
        return ends_at.astimezone(UTC)

    def _known(self) -> dict[int, _Known]:
        found = {}
        for path in self._root.glob("*.kms"):
            one = _load(int(path.stem), path.read_bytes())
            found[one.version] = one
        return found

    def _write(self, known: _Known) -> None:
        durable.replace(self._path(known.version), _dump(known))

    def _path(self, version: int) -> Path:
        return self._root / f"{version:08}.kms"

    def _call(self, operation: str, ask: Callable[[], T], *, attempts: int = ATTEMPTS) -> T:
        """Return the answer; repeat what had none. Raises RootGone, RootRefused, RootUnavailable."""
        code = ""
        for attempt in range(attempts):
            if attempt:
                longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**attempt)
                self._pause(longest * (0.5 + random.random() / 2))  # noqa: S311 - spreads repeats, guards nothing
            try:
                return ask()
            except ClientError as error:
                code = str(error.response.get("Error", {}).get("Code", "unknown"))
                if code not in _TRY_AGAIN:
                    raise _refusal(operation, code) from error
            except (NoConnection, HTTPClientError) as error:
                code = type(error).__name__
            except BotoCoreError as error:
                # Credentials that are missing, a region without KMS: asking again changes nothing.
                raise RootRefused(operation, type(error).__name__) from error
        raise RootUnavailable(f"AWS KMS: {operation} had no answer after {attempts} attempts ({code})")


def _bare(arn: str) -> str:
    """The id in an ARN: calls that change a key work inside one account only, where it is enough."""
    return arn.rpartition("/")[2]


def _refusal(operation: str, code: str) -> RootUnavailable:
    if code in _NOT_THESE_BYTES:
        return RootGone(f"AWS KMS: {operation}: the bytes are not of this root, tenant and purpose")
    if code == "NotFoundException":
        return RootGone(f"AWS KMS: {operation}: the key does not exist")
    return RootRefused(operation, code)


def _context(tenant: str, version: int, aad: bytes) -> dict[str, str]:
    """The encryption context: authenticated, and written to CloudTrail, so it holds ids of ours only."""
    return {"purpose": _LABEL, "tenant": tenant, "version": str(version), "binding": b64encode(aad).decode() or "-"}


def _dump(known: _Known) -> bytes:
    dates = {"created_at": known.created_at, "ends_at": known.ends_at, "destroyed_at": known.destroyed_at}
    written = {name: None if at is None else at.isoformat() for name, at in dates.items()}
    return json.dumps({"key_id": known.key_id, **written}).encode()


def _load(version: int, data: bytes) -> _Known:
    raw = json.loads(data)
    ends, gone = raw["ends_at"], raw["destroyed_at"]
    return _Known(
        version=version,
        key_id=raw["key_id"],
        created_at=datetime.fromisoformat(raw["created_at"]),
        ends_at=None if ends is None else datetime.fromisoformat(ends),
        destroyed_at=None if gone is None else datetime.fromisoformat(gone),
    )

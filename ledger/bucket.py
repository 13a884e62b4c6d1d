"""A bucket in another account as an anchor: each new checkpoint, kept there under a lock that we cannot lift.

`s3://BUCKET[/PREFIX]?account=ID&region=…&endpoint=URL&profile=NAME`; all after `?` may be missing. `account` is the
owner that every request names, so that S3 itself refuses a bucket of anybody else (x-amz-expected-bucket-owner);
`profile` is a section of the credentials file, without it boto3's own chain signs.

Guarantees: a checkpoint is created once under `PREFIX/<log id>/checkpoint/<size>`, locked in the same request, in a
bucket with Object Lock and versioning, or not at all. Before that the newest one that lies there is compared with the
log's tree: a log that is shorter than it, or has another root at its size, is refused. What is no checkpoint of this
log is passed over. Does not show that the account is another party's: who reads the anchor knows whose it is.

Source: DESIGN §3 "Trust without the operator"; Amazon S3 API, ExpectedBucketOwner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from ledger.checkpoint import Checkpoint
from ledger.errors import (
    AnchorRefused,
    AnchorUnavailable,
    BadSignature,
    LockNotEnforced,
    MalformedAnchor,
    MalformedNote,
    ObjectExists,
    ObjectHidden,
    ObjectMissing,
    StoreDenied,
    StoreUnavailable,
)
from ledger.head import checkpoint_key
from ledger.keyring import KeyWindow, open_checkpoint
from ledger.objects import ObjectStore, check_prefix

if TYPE_CHECKING:
    from ledger.s3 import S3Store

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ACCOUNT = re.compile(r"[0-9]{12}")
_OPTIONS = frozenset({"account", "region", "endpoint", "profile"})
_EXPECTED = "expected s3://BUCKET[/PREFIX][?account=12 DIGITS&region=…&endpoint=URL&profile=NAME]"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAddress:
    """Where a bucket lies, whose it is, and as whom to ask. `shown` is what tells it from others."""

    bucket: str
    prefix: str
    account: str | None = None
    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None

    @property
    def shown(self) -> str:
        """The bucket, and the account it must belong to."""
        path = f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
        return path if self.account is None else f"{path}?account={self.account}"


def parse_bucket(text: str) -> BucketAddress:
    """Return the bucket of an anchor's text. Raises: MalformedAnchor."""
    try:
        parts = urlsplit(text)
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if parts.query else {}
        prefix = parts.path.strip("/")
        check_prefix(f"{prefix}/" if prefix else "")
    except (ValueError, StoreDenied) as error:
        raise MalformedAnchor(_EXPECTED) from error
    if parts.scheme != "s3" or parts.fragment or not _BUCKET.fullmatch(parts.netloc):
        raise MalformedAnchor(_EXPECTED)
    if unknown := sorted(given.keys() - _OPTIONS):
        raise MalformedAnchor(f"{unknown[0][:20]!r} is no option of a bucket; {_EXPECTED}")
    if not all(given.values()) or not _ACCOUNT.fullmatch(given.get("account", "0" * 12)):
        raise MalformedAnchor(_EXPECTED)
    if urlsplit(given.get("endpoint", "https:")).scheme not in ("http", "https"):
        raise MalformedAnchor("the endpoint of a bucket is an http or https URL")
    return BucketAddress(bucket=parts.netloc, prefix=prefix, **given)


def open_bucket(address: BucketAddress) -> S3Store:
    """Return the bucket as a locked store, after a look whether it is one; the caller closes it.

    Raises: AnchorUnavailable.
    """
    # Heavy, and most deployments have no such anchor.
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    from ledger.s3 import S3Store, s3_client  # noqa: PLC0415

    try:
        with ExitStack() as unless_sound:
            client = s3_client(endpoint_url=address.endpoint, region=address.region, profile=address.profile)
            unless_sound.callback(client.close)
            if address.account is not None:
                client.meta.events.register("provide-client-params.s3", _naming(address.account))
            store = S3Store(client, address.bucket, address.prefix)
            store.check_bucket()
            unless_sound.pop_all()
    except ObjectMissing as error:
        raise AnchorUnavailable("the bucket does not exist") from error
    except BotoCoreError as error:
        raise AnchorUnavailable(f"its client cannot be made ({type(error).__name__})") from error
    except StoreUnavailable as error:
        raise AnchorUnavailable("the bucket does not answer") from error
    except (LockNotEnforced, StoreDenied) as error:
        raise AnchorUnavailable(error.detail) from error
    return store


def _naming(account: str) -> Callable[..., None]:
    def name_owner(params: dict[str, Any], **_: object) -> None:
        params["ExpectedBucketOwner"] = account

    return name_owner


def keep_note(
    store: ObjectStore,
    note: bytes,
    *,
    log_id: str,
    keys: Sequence[KeyWindow],
    checkpoint: Checkpoint,
    known: int,
    root_at: Callable[[int], bytes],
    lock_until: datetime,
) -> None:
    """Create the checkpoint's object in the bucket unless it is there. `known` is the size it had last: a hint.

    Raises: AnchorRefused when the bucket has another or a longer history, AnchorUnavailable for what the bucket is not
    or does not do.
    """
    key = f"{log_id}/{checkpoint_key(checkpoint.size)}"
    try:
        found = _newest(store, log_id, keys, checkpoint.origin, known=known)
        if found is not None:
            _require_extended(found, checkpoint, root_at)
            if found.size == checkpoint.size:
                return
        store.put(key, note, lock_until=lock_until)
    except ObjectExists as error:
        # Created meanwhile: by this process before a lost answer, or by the leader before it.
        there = _read(store, key, keys, checkpoint.origin)
        if there is None:
            raise AnchorUnavailable("where the checkpoint belongs lies something else") from error
        _require_extended(there, checkpoint, root_at)
    except ObjectHidden as error:
        raise AnchorUnavailable("a delete marker lies over a checkpoint") from error
    except (LockNotEnforced, StoreDenied) as error:
        raise AnchorUnavailable(error.detail) from error
    except StoreUnavailable as error:
        raise AnchorUnavailable("the bucket does not answer") from error


def _newest(
    store: ObjectStore, log_id: str, keys: Sequence[KeyWindow], origin: str, *, known: int
) -> Checkpoint | None:
    """Return the newest checkpoint of this log that lies there, looked for from the size that it is known to have."""
    prefix = f"{log_id}/checkpoint/"
    for after in (f"{log_id}/{checkpoint_key(known - 1)}", None) if known > 1 else (None,):
        for key in reversed(list(store.list(prefix, after=after))):
            found = _read(store, key, keys, origin)
            if found is not None:
                return found
    return None


def _read(store: ObjectStore, key: str, keys: Sequence[KeyWindow], origin: str) -> Checkpoint | None:
    try:
        found = open_checkpoint(store.get(key), keys)
    except (MalformedNote, BadSignature, ObjectMissing):
        return None  # somebody else's, or another text
    return found if found.origin == origin and key.endswith(checkpoint_key(found.size)) else None


def _require_extended(last: Checkpoint, newest: Checkpoint, root_at: Callable[[int], bytes]) -> None:
    if last.size > newest.size:
        raise AnchorRefused(
            f"the bucket has size {last.size}, this log has {newest.size}: it is rolled back", size=last.size
        )
    if root_at(last.size) != last.root:
        raise AnchorRefused(f"the bucket has another root of size {last.size}: the log is forked", size=last.size)

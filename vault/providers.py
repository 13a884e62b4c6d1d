"""The root: the one key everything else is wrapped under, outside the database and outside its backups.

A provider wraps a tenant's key-encryption key and can turn: a new version wraps from then on, and an old version is
destroyed once nothing is wrapped under it. What was destroyed before that moment is then beyond any backup of the
key folder that lacks the root. The certificate prints ``kind``; ``file`` means: as safe as one folder on one disk.
"""

import os
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from vault.durable import create_once, destroy_file, folder_lock, private_folder
from vault.errors import ProviderNotBuilt, RootGone

_KEY_BYTES = 32
_NONCE_BYTES = 12
VERSION_BYTES = 4
_AWS_KMS = "aws-kms"


@dataclass(frozen=True, slots=True, kw_only=True)
class RootVersion:
    """One version of the root: when it began, and when it was destroyed, if it was."""

    version: int
    created_at: datetime
    destroyed_at: datetime | None


class RootProvider(Protocol):
    """A root key. The first four bytes of what ``wrap`` returns name the version, big-endian (``root_version``).

    ``wrap`` uses the newest version and takes at least one byte; ``unwrap`` raises RootGone for a version that is gone
    or for bytes that are not its own, and another RootUnavailable when nobody can tell. ``rotate`` makes a new version
    when the month of ``now`` (UTC) differs from the newest one's and returns the newest. ``retire`` ends every version
    older than the newest that is not in ``in_use``; one counts as destroyed only when no way back is left.
    """

    @property
    def kind(self) -> str:
        """Return ``file``, ``kms`` or ``hsm``."""

    def wrap(self, tenant: str, plaintext: bytes, aad: bytes) -> bytes:
        """Return the bytes wrapped under the newest version, bound to tenant and ``aad``."""

    def unwrap(self, tenant: str, wrapped: bytes, aad: bytes) -> bytes:
        """Return the plaintext. Raises RootUnavailable."""

    def rotate(self, now: datetime, *, force: bool = False) -> int:
        """Return the newest version, made new if the month changed or ``force`` is set."""

    def retire(self, in_use: Collection[int], now: datetime) -> list[int]:
        """Return the versions destroyed by this call."""

    def versions(self) -> Mapping[int, RootVersion]:
        """Return every version that ever was, by number."""

    def close(self) -> None:
        """Close the connections to it; a later call makes them again."""


def root_version(wrapped: bytes) -> int:
    """Return the root's version that wrapped these bytes."""
    if len(wrapped) <= VERSION_BYTES:
        raise RootGone("the wrapped bytes are too short to name a root version")
    return int.from_bytes(wrapped[:VERSION_BYTES], "big")


def key_folder(url: str, default: Path) -> Path:
    """Return the folder of the key-encryption keys: in ``file://`` the root's own, with KMS `folder=` or the default.

    Raises ProviderNotBuilt for a kind there is not, RootUnavailable for a malformed address.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        # `file://data.keys` names a relative folder: what a URL calls its host is the path's first step.
        return Path(unquote(parts.netloc + parts.path)).absolute()
    if parts.scheme == _AWS_KMS:
        from vault.aws_kms import parse_address  # noqa: PLC0415 - boto3 is loaded only where KMS is used

        return (parse_address(url).folder or default).absolute()
    raise ProviderNotBuilt(parts.scheme)


def open_root(url: str, *, clock: Callable[[], datetime], folder: Path | None = None) -> RootProvider:
    """Return the provider of ``file:///absolute/folder`` or ``aws-kms://KEY?region=…``; ``folder`` is for the latter.

    The caller closes it. Raises ProviderNotBuilt for every other kind, RootUnavailable for a folder or address that
    cannot serve.
    """
    parts = urlsplit(url)
    place = key_folder(url, folder or Path())
    if parts.scheme != _AWS_KMS:
        return FileRoot(place, clock=clock)
    from vault.aws_kms import AwsKmsRoot, kms_client, parse_address  # noqa: PLC0415 - as above

    address = parse_address(url)
    client = kms_client(address.region)
    return AwsKmsRoot(client, address.key, place, clock=clock, window_days=address.window_days)


class FileRoot:
    """The root in files of mode 0600 in a folder of mode 0700, one file a version, made on first use.

    Nothing of it stays in memory between calls. ``clock`` dates a version; it decides nothing else.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], datetime]) -> None:
        """Open or make the folder. Raises RootUnavailable if group or others may look into it."""
        self.folder = private_folder(folder)
        self._root = private_folder(folder / "root")
        self._clock = clock

    @property
    def kind(self) -> str:
        """Return ``file``."""
        return "file"

    def wrap(self, tenant: str, plaintext: bytes, aad: bytes) -> bytes:
        """Return version, nonce and AES-256-GCM ciphertext."""
        version = self._newest() or self._make(1, self._clock())
        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._key(version)).encrypt(nonce, plaintext, _bind(tenant, version, aad))
        return version.to_bytes(VERSION_BYTES, "big") + nonce + sealed

    def unwrap(self, tenant: str, wrapped: bytes, aad: bytes) -> bytes:
        """Return the plaintext. Raises RootUnavailable."""
        version = root_version(wrapped)
        nonce, sealed = (
            wrapped[VERSION_BYTES : VERSION_BYTES + _NONCE_BYTES],
            wrapped[VERSION_BYTES + _NONCE_BYTES :],
        )
        if len(nonce) < _NONCE_BYTES:
            raise RootGone("the wrapped bytes are truncated")
        try:
            return AESGCM(self._key(version)).decrypt(nonce, sealed, _bind(tenant, version, aad))
        except InvalidTag as error:
            raise RootGone(f"root version {version} does not open these bytes") from error

    def rotate(self, now: datetime, *, force: bool = False) -> int:
        """Return the newest version; a calendar month in UTC has one of its own."""
        newest = self._newest()
        if newest and not force:
            made = self.versions()[newest].created_at
            if (made.year, made.month) >= (now.astimezone(UTC).year, now.astimezone(UTC).month):
                return newest
        return self._make(newest + 1, now)

    def retire(self, in_use: Collection[int], now: datetime) -> list[int]:
        """Destroy the old versions nothing needs; run again after a crash, it finishes what was begun."""
        gone = []
        newest = self._newest()
        with folder_lock(self._root, exclusive=True):
            for path in sorted(self._root.glob("*.key")):
                version = int(path.stem)
                if version == newest or version in in_use:
                    continue
                # The tombstone first: a crash between the two leaves a key that is destroyed by the next call.
                create_once(
                    self._tombstone(version), f"{self._created(version)}\n{now.astimezone(UTC).isoformat()}".encode()
                )
                destroy_file(path)
                gone.append(version)
        return gone

    def versions(self) -> Mapping[int, RootVersion]:
        """Return every version; one counts as destroyed only when its key file is gone."""
        found = {}
        for path in self._root.glob("*.gone"):
            created, destroyed = path.read_text().split("\n")
            found[int(path.stem)] = RootVersion(
                version=int(path.stem),
                created_at=datetime.fromisoformat(created),
                destroyed_at=datetime.fromisoformat(destroyed),
            )
        for path in self._root.glob("*.key"):
            version = int(path.stem)
            created_at = datetime.fromisoformat(self._created(version))
            found[version] = RootVersion(version=version, created_at=created_at, destroyed_at=None)
        return found

    def close(self) -> None:
        """Return at once: no file stays open between calls."""

    def _newest(self) -> int:
        return max((int(path.stem) for path in self._root.glob("*.key")), default=0)

    def _make(self, version: int, now: datetime) -> int:
        # Two processes may race: one creates, the other finds the name taken and uses that version.
        stamp = now.astimezone(UTC).isoformat().encode()
        while self._tombstone(version).exists():
            version += 1
        create_once(self._path(version), secrets.token_bytes(_KEY_BYTES) + stamp)
        return version

    def _key(self, version: int) -> bytes:
        try:
            data = self._path(version).read_bytes()
        except FileNotFoundError as error:
            raise RootGone(f"root version {version} is not in the key folder") from error
        if len(data) <= _KEY_BYTES:
            raise RootGone(f"the file of root version {version} is damaged")
        return data[:_KEY_BYTES]

    def _created(self, version: int) -> str:
        return self._path(version).read_bytes()[_KEY_BYTES:].decode()

    def _path(self, version: int) -> Path:
        return self._root / f"{version:08}.key"

    def _tombstone(self, version: int) -> Path:
        return self._root / f"{version:08}.gone"


def _bind(tenant: str, version: int, aad: bytes) -> bytes:
    name = tenant.encode()
    return b"muniment/root/v1\x00" + version.to_bytes(4, "big") + len(name).to_bytes(4, "big") + name + aad

"""Key-encryption keys of tenants and groups, look-up keys and signing seeds: files beside the root, never rows.

Decides where a key-encryption key lives and that it can be destroyed for good. Does not decide when.
Layout under the key folder (each file mode 0600, wrapped, its header bound)::

    kek/<tenant>/root-<v>.kek             the tenant's key under version v of the root: one for each version
    kek/<tenant>/group-<no>-<epoch>.kek   a group's key under the tenant's key
    kek/<tenant>/group-<no>-<epoch>.gone  tombstone: destroyed when, and which root versions ever wrapped it
    kek/<tenant>/lookup-<v>.key           HMAC key for looking identifiers up
    kek/<tenant>/journal.key              seals the rows that a lost database is rebuilt from
    kek/signing/seed-<name>.key           Ed25519 seed

A tenant's key changes with the root, so that a stolen copy of a destroyed group file dies with the old root.
A plaintext key stays in this process for at most ``cache_seconds``. With one folder shared by several processes,
creating holds the folder's lock shared and turning holds it exclusively, so nothing is made under a root that goes.
"""

import json
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from vault.cache import TimedCache, awake_or_asleep
from vault.cores import forbid_cores
from vault.durable import create_once, destroy_file, folder_lock, private_folder, replace
from vault.errors import KekDestroyed, KekUnknown, NotDecryptable, RootGone, RootUnavailable
from vault.providers import RootProvider, root_version

KEY_BYTES = 32
_HEAD_BYTES = 9
_NONCE_BYTES = 12
_FORMAT = 1
_SIGNING = "signing"
_JOURNAL = "journal.key"
_TENANT = re.compile(r"[a-z0-9_-]{1,64}")
_GROUP_FILE = re.compile(r"group-(\d{10})-(\d{6})\.(kek|gone)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KekStatus:
    """One epoch of one group. ``first_root`` to ``last_root`` are the root versions that ever wrapped it."""

    group_no: int
    epoch: int
    destroyed_at: datetime | None
    first_root: int
    last_root: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReport:
    """What a turn of the root did: the version in use, files wrapped anew, root versions destroyed."""

    version: int
    rewrapped: int
    roots_destroyed: tuple[int, ...]


class KekStore:
    """The keys of one key folder."""

    def __init__(
        self,
        folder: Path,
        root: RootProvider,
        *,
        cache_seconds: float = 60.0,
        monotonic: Callable[[], float] = awake_or_asleep,
    ) -> None:
        """Open or make the folder. Raises RootUnavailable if group or others may look into it.

        From here on this process leaves no core.
        """
        forbid_cores()
        self.folder = private_folder(folder)
        self.root = root
        self._keks = private_folder(folder / "kek")
        self._cache: TimedCache[tuple[str, str], bytes] = TimedCache(
            capacity=4096, seconds=cache_seconds, monotonic=monotonic
        )

    def knows(self, tenant: str) -> bool:
        """Return whether there is a folder of that tenant, or of one that had the name before."""
        return (self._keks / tenant).is_dir()

    def create(self, tenant: str, group_no: int, epoch: int) -> None:
        """Make the key of this epoch if there is none. Raises KekDestroyed: a destroyed epoch is never made again."""
        self._refuse_destroyed(tenant, group_no, epoch)
        self._create(tenant, _group_file(group_no, epoch))

    def get(self, tenant: str, group_no: int, epoch: int) -> bytes:
        """Return the 32 bytes of a group's key. Raises KekDestroyed, KekUnknown, RootUnavailable, NotDecryptable."""
        self._refuse_destroyed(tenant, group_no, epoch)
        return self._get(tenant, _group_file(group_no, epoch))

    def destroy(self, tenant: str, group_no: int, epoch: int, now: datetime) -> datetime:
        """Destroy the key of this epoch durably and return since when it is gone; again: finishes and returns the same.

        Order: 1 tombstone, 2 overwrite and unlink, 3 evict. A crash after 1 leaves a key that ``get`` refuses, that
        ``epochs`` still shows as not destroyed, and that the next call removes.
        """
        name = _group_file(group_no, epoch)
        folder = self._tenant(tenant)
        path, tombstone = folder / name, folder / _tombstone(name)
        with folder_lock(self.folder, exclusive=False):
            # A file that is missing without a tombstone may be in a copy of the folder under any root so far.
            first, last = _roots_of(path) if path.exists() else (1, max(self.root.versions(), default=0))
            record = {"destroyed_at": now.astimezone(UTC).isoformat(), "first_root": first, "last_root": last}
            create_once(tombstone, json.dumps(record).encode())  # 1
            destroy_file(path)  # 2
        self._cache.evict([(tenant, name)])  # 3
        return datetime.fromisoformat(json.loads(tombstone.read_bytes())["destroyed_at"])

    def epochs(self, tenant: str, group_no: int | None = None) -> list[KekStatus]:
        """Return every epoch there is or was, in order; one whose bytes are still there is not destroyed."""
        folder = self._tenant(tenant)
        pattern = "group-*" if group_no is None else f"group-{group_no:010}-*"
        found: dict[tuple[int, int], KekStatus] = {}
        # Sorted, "gone" comes before "kek": a file that is still there, or came back, outweighs its tombstone.
        for path in sorted(folder.glob(pattern)):
            match = _GROUP_FILE.fullmatch(path.name)
            if match is None:
                continue
            number, epoch = int(match[1]), int(match[2])
            found[number, epoch] = _status(path, number, epoch)
        return [found[key] for key in sorted(found)]

    def recover(self, tenant: str, group_no: int, epoch: int) -> bytes:
        """Return the key by any means left, its tombstone and every cache set aside: for proving that none is.

        Raises KekUnknown where there is no file or no root for it, NotDecryptable where the file is damaged,
        RootUnavailable where the root cannot be asked: an outage proves nothing.
        """
        name = _group_file(group_no, epoch)
        try:
            return self._read(tenant, name)
        except RootGone as error:
            raise KekUnknown(tenant, name) from error

    def lookup_key(self, tenant: str) -> tuple[int, bytes]:
        """Return the newest look-up key and its version, made on first use."""
        version = self.lookup_versions(tenant)[-1]
        return version, self.lookup_key_of(tenant, version)

    def lookup_key_of(self, tenant: str, version: int) -> bytes:
        """Return one version of the look-up key. Raises KekUnknown."""
        return self._get(tenant, _lookup_file(version))

    def lookup_versions(self, tenant: str) -> list[int]:
        """Return the versions of the look-up key, oldest first; the first is made on first use."""
        folder = self._tenant(tenant)
        names = [path.stem for path in folder.glob("lookup-*.key")]
        if not names:
            self._create(tenant, _lookup_file(1))
            names = [path.stem for path in folder.glob("lookup-*.key")]
        return sorted(int(name.removeprefix("lookup-")) for name in names)

    def turn_lookup(self, tenant: str) -> int:
        """Make the next version of the look-up key and return its number; older ones go on to be readable."""
        version = self.lookup_versions(tenant)[-1] + 1
        self._create(tenant, _lookup_file(version))
        return version

    def journal_key(self, tenant: str, *, make: bool = True) -> bytes:
        """Return the key that seals the tenant's rows in the unlocked store, made on first use if ``make``.

        Raises KekUnknown where there is none and none may be made.
        """
        if make:
            self._create(tenant, _JOURNAL)
        return self._get(tenant, _JOURNAL)

    def signing_seed(self, name: str) -> bytes:
        """Return the 32-byte seed of this name, made once."""
        file = f"seed-{quote(name, safe='')}.key"
        if not (self._tenant(_SIGNING) / file).exists():
            self._create(_SIGNING, file)
        return self._get(_SIGNING, file)

    def evict_all(self) -> None:
        """Forget every key held in this process."""
        self._cache.evict_all()

    def expire(self) -> None:
        """Forget what is past its time."""
        self._cache.expire()

    def fresh(self) -> "KekStore":
        """Return a second instance on the same folder that holds nothing in memory."""
        return KekStore(self.folder, self.root)

    def turn(self, now: datetime, *, force: bool = False) -> TurnReport:
        """Turn the root if its month is over, wrap everything anew, destroy the old tenants' keys, then the old root.

        Every step can be run again: a file already under the newest root is left alone.
        """
        rewrapped = 0
        with folder_lock(self.folder, exclusive=True):
            version = self.root.rotate(now, force=force)
            for folder in sorted(path for path in self._keks.iterdir() if path.is_dir()):
                rewrapped += self._turn_tenant(folder, version)
            in_use = {int(path.stem.removeprefix("root-")) for path in self._keks.glob("*/root-*.kek")}
            destroyed = self.root.retire(in_use, now)
        self._cache.evict_all()
        return TurnReport(version=version, rewrapped=rewrapped, roots_destroyed=tuple(destroyed))

    def final_at(self, tenant: str, group_no: int, epoch: int) -> datetime | None:
        """Return since when no root is left that could open a copy of this group's epochs up to ``epoch``, or None.

        Source: DESIGN §4, a certificate is final only when every root that could open the destroyed key is gone.
        """
        known = [status for status in self.epochs(tenant, group_no) if status.epoch <= epoch]
        roots = self.root.versions()
        ends: list[datetime] = []
        for status in known:
            if status.destroyed_at is None:
                return None
            ends.append(status.destroyed_at)
            for version in range(status.first_root, status.last_root + 1):
                # A version the root does not know never was or left no trace; only a recorded end counts.
                end = roots[version].destroyed_at if version in roots else None
                if end is None:
                    return None
                ends.append(end)
        return max(ends, default=None)

    def _turn_tenant(self, folder: Path, version: int) -> int:
        count = 0
        if not any(folder.iterdir()):
            return 0
        self._tenant_key(folder.name, version)
        for path in sorted(folder.glob("*.k*")):
            if path.name.startswith(("root-", ".")):
                continue
            first, last = _roots_of(path)
            if last == version:
                continue
            plaintext = self._read_locked(folder.name, path.name)
            replace(path, self._wrapped(folder.name, path.name, plaintext, first, version))
            count += 1
        for path in folder.glob("root-*.kek"):
            if path.name != _tenant_file(version):
                destroy_file(path)
        return count

    def _create(self, tenant: str, name: str) -> None:
        folder = self._tenant(tenant)
        if (folder / name).exists():
            return
        with folder_lock(self.folder, exclusive=False):
            version = self._newest_tenant_version(folder)
            plaintext = secrets.token_bytes(KEY_BYTES)
            create_once(folder / name, self._wrapped(tenant, name, plaintext, version, version))

    def _get(self, tenant: str, name: str) -> bytes:
        key = (tenant, name)
        held = self._cache.get(key)
        if held is None:
            generation = self._cache.generation
            held = self._read(tenant, name)
            self._cache.put(key, held, generation)
        return held

    def _read(self, tenant: str, name: str) -> bytes:
        with folder_lock(self.folder, exclusive=False):
            return self._read_locked(tenant, name)

    def _read_locked(self, tenant: str, name: str) -> bytes:
        try:
            data = (self._tenant(tenant) / name).read_bytes()
        except FileNotFoundError as error:
            raise KekUnknown(tenant, name) from error
        first, last = _parse_head(data)
        nonce, sealed = data[_HEAD_BYTES : _HEAD_BYTES + _NONCE_BYTES], data[_HEAD_BYTES + _NONCE_BYTES :]
        try:
            return AESGCM(self._tenant_key(tenant, last, make=False)).decrypt(
                nonce, sealed, _bind(tenant, name, first, last)
            )
        except (InvalidTag, ValueError) as error:
            raise NotDecryptable(f"the key file {name} of tenant {tenant} is damaged") from error

    def _wrapped(self, tenant: str, name: str, plaintext: bytes, first: int, last: int) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._tenant_key(tenant, last)).encrypt(nonce, plaintext, _bind(tenant, name, first, last))
        return _head(first, last) + nonce + sealed

    def _newest_tenant_version(self, folder: Path) -> int:
        # By their names alone: a tenant with many groups has thousands of files here.
        with os.scandir(folder) as found:
            names = [one.name for one in found if one.name.startswith("root-") and one.name.endswith(".kek")]
        versions = [int(name.removeprefix("root-").removesuffix(".kek")) for name in names]
        if versions:
            return max(versions)
        # What the root wraps with right now is its newest version; a turn cannot happen while the lock is held.
        return root_version(self.root.wrap(folder.name, b"\x00", b""))

    def _tenant_key(self, tenant: str, version: int, *, make: bool = True) -> bytes:
        name = _tenant_file(version)
        held = self._cache.get((tenant, name))
        if held is not None:
            return held
        generation = self._cache.generation
        path = self._tenant(tenant) / name
        aad = f"tenant-kek/{version}".encode()
        if make and not path.exists():
            wrapped = self.root.wrap(tenant, secrets.token_bytes(KEY_BYTES), aad)
            if root_version(wrapped) != version:
                raise RootUnavailable(f"expected root version {version}, got {root_version(wrapped)}")
            create_once(path, wrapped)
        try:
            held = self.root.unwrap(tenant, path.read_bytes(), aad)
        except FileNotFoundError as error:
            raise KekUnknown(tenant, name) from error
        self._cache.put((tenant, name), held, generation)
        return held

    def _refuse_destroyed(self, tenant: str, group_no: int, epoch: int) -> None:
        # Looked up on disk each time, so that a restored key file is not used and another process's act counts.
        name = _group_file(group_no, epoch)
        try:
            record = json.loads((self._tenant(tenant) / _tombstone(name)).read_bytes())
        except FileNotFoundError:
            return
        self._cache.evict([(tenant, name)])
        raise KekDestroyed(tenant, group_no, epoch, datetime.fromisoformat(record["destroyed_at"]))

    def _tenant(self, tenant: str) -> Path:
        if not _TENANT.fullmatch(tenant):
            raise KekUnknown("(malformed)", "folder")
        folder = self._keks / tenant
        return folder if folder.is_dir() else private_folder(folder)


def _status(path: Path, group_no: int, epoch: int) -> KekStatus:
    if path.suffix == ".gone":
        record = json.loads(path.read_bytes())
        destroyed_at = datetime.fromisoformat(record["destroyed_at"])
        first, last = record["first_root"], record["last_root"]
    else:
        destroyed_at = None
        first, last = _roots_of(path)
    return KekStatus(group_no=group_no, epoch=epoch, destroyed_at=destroyed_at, first_root=first, last_root=last)


def _roots_of(path: Path) -> tuple[int, int]:
    with path.open("rb") as file:
        return _parse_head(file.read(_HEAD_BYTES))


def _head(first: int, last: int) -> bytes:
    return bytes([_FORMAT]) + first.to_bytes(4, "big") + last.to_bytes(4, "big")


def _parse_head(data: bytes) -> tuple[int, int]:
    if len(data) < _HEAD_BYTES or data[0] != _FORMAT:
        raise NotDecryptable("a key file has an unknown format")
    return int.from_bytes(data[1:5], "big"), int.from_bytes(data[5:9], "big")


def _bind(tenant: str, name: str, first: int, last: int) -> bytes:
    return f"muniment/kek/v1\x00{tenant}/{name}/{first}/{last}".encode()


def _tenant_file(version: int) -> str:
    return f"root-{version:08}.kek"


def _group_file(group_no: int, epoch: int) -> str:
    return f"group-{group_no:010}-{epoch:06}.kek"


def _lookup_file(version: int) -> str:
    return f"lookup-{version:06}.key"


def _tombstone(name: str) -> str:
    return name.removesuffix(".kek") + ".gone"

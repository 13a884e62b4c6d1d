"""Keyed look-ups and small seals: the one place where the registry meets the vault.

Guarantees: every look-up is HMAC-SHA-256 under the tenant's look-up key with its own label, so that equal texts of two
kinds or two tenants share nothing; of places the first 128 bits stand. Readable values are sealed under a person's
identity key, or under the tenant's own (subject 0) where there is nobody or the person is fenced. Does not decide who
may read.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hmac import compare_digest
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from ledger.statements import select_in
from registry.errors import SealRefused
from vault.envelope import joint_prk
from vault.errors import KekUnknown, KeyDestroyed, KeyFenced, NotDecryptable
from vault.mac import Mac
from vault.small import seal_value, unseal_value
from vault.vault import Vault
from vault.wrapping import KeySpec

IDENTITY_CLASS = "identity"
NO_MONTH = "0000-00"
NOBODY = 0
"""The subject number of the tenant itself."""
_LOCK_SPACE = 0x6D75  # "mu": the advisory locks of this package
_LOCK_RANGE = 2**31


_Value = TypeVar("_Value")
_CHUNK = 500
_KEY_IDS = (
    "SELECT subject_id, key_id FROM vault_data_key "
    "WHERE tenant_id = ? AND data_class = ? AND month = ? AND wrapped IS NOT NULL AND subject_id"
)
_VERSION_BYTES = 4
_PLACE_BYTES = 16
"""Of the look-up of a place, which stands in the row and in an index of everything that is registered."""


def chunks(values: Sequence[_Value]) -> Iterator[Sequence[_Value]]:
    """The values in slices small enough for one IN list."""
    return (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))


def hold_writer(session: Session, tenant_id: int) -> None:
    """Wait until no other transaction makes subjects, sets or artifacts of the tenant; released at its end.

    SQLite has one writer anyway; on PostgreSQL it closes the gap between «is it there» and «make it». There the rest of
    the transaction is planned for the tables as they are: a plan made while they were empty reads them whole, and would
    be kept until somebody gathers statistics. An import of a hundred thousand items is over before.
    """
    if session.get_bind().dialect.name == "postgresql":
        lock = sa.func.pg_advisory_xact_lock(_LOCK_SPACE, tenant_id % _LOCK_RANGE)
        session.execute(sa.select(lock, sa.func.set_config("plan_cache_mode", "force_custom_plan", sa.true())))


@lru_cache(maxsize=64)
def _framed(text: str) -> bytes:
    """A label or a store's name with its length before it. Only those: nothing of a person may stay in a cache."""
    data = text.encode()
    return len(data).to_bytes(4, "big") + data


def _frames(label: str, parts: Sequence[str | bytes]) -> list[bytes]:
    """A label and parts, each with its length before it: what every digest of a tenant is made over."""
    pieces = [_framed(label)]
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        pieces += (len(data).to_bytes(4, "big"), data)
    return pieces


class Lookups:
    """HMACs of one tenant under its newest look-up key, for one batch."""

    __slots__ = ("_mac", "key", "version")

    def __init__(self, vault: Vault, tenant_id: int, *, version: int | None = None) -> None:
        """Under the newest key, or that of a version. Raises KekUnknown where there is none of it."""
        keks, tenant = vault.keks, str(tenant_id)
        found = keks.lookup_key(tenant) if version is None else (version, keks.lookup_key_of(tenant, version))
        self.version, self.key = found
        self._mac = Mac(self.key)

    def of(self, label: str, *parts: str | bytes) -> bytes:
        """The 32-byte look-up of length-framed parts under a label."""
        return self._mac.of(b"".join(_frames(label, parts)))

    def subject(self, identifier_type: str, value: str) -> bytes:
        """The look-up of a normalised identifier."""
        return self.of("subject", identifier_type, value)

    def locator(self, store: str, canonical: bytes) -> bytes:
        """The natural key of an artifact: 128 bits, which nobody without the key can make two places share."""
        message = _framed("locator") + _framed(store) + len(canonical).to_bytes(4, "big") + canonical
        return self._mac.of(message)[:_PLACE_BYTES]

    def scope(self, name: str, value: str) -> bytes:
        """The look-up of one `name=value` of a scope; the key of a named event is looked up alike."""
        return self.of("scope", name, value)

    def digest(self, hexadecimal: str) -> bytes:
        """The keyed form of a content digest, so that equal content cannot be guessed from outside."""
        return self.of("digest", bytes.fromhex(hexadecimal))


class RowDigests:
    """What `ledger.row_digests` asks for: the version of the look-up key, and the look-up of the row's parts under it.

    The same bytes as `Lookups.of`, without a copy of the row, which may have a megabyte.
    A row that was written before the key was turned fits as long as the key folder has the version.
    """

    __slots__ = ("_lookups", "_tenant_id", "_vault")

    def __init__(self, vault: Vault, tenant_id: int) -> None:
        self._vault, self._tenant_id = vault, tenant_id
        newest = Lookups(vault, tenant_id)
        self._lookups = {newest.version: newest}

    def of(self, label: str, *parts: str | bytes) -> bytes:
        """The digest that a row of this kind gets now."""
        newest = self._lookups[max(self._lookups)]
        return newest.version.to_bytes(_VERSION_BYTES, "big") + self._made(newest, label, parts)

    def fits(self, digest: bytes | None, label: str, *parts: str | bytes) -> bool:
        """Whether a row's digest was made over these by one who has the key."""
        if digest is None:
            return False
        version = int.from_bytes(digest[:_VERSION_BYTES], "big")
        try:
            if version not in self._lookups:
                self._lookups[version] = Lookups(self._vault, self._tenant_id, version=version)
        except KekUnknown:
            return False
        return compare_digest(digest[_VERSION_BYTES:], self._made(self._lookups[version], label, parts))

    @staticmethod
    def _made(lookups: Lookups, label: str, parts: Sequence[str | bytes]) -> bytes:
        mac = hmac.new(lookups.key, digestmod="sha256")
        for piece in _frames(label, parts):
            mac.update(piece)
        return mac.digest()


class Seals:
    """Seals and opens small values of one tenant; keeps the identity keys of one batch, so short-lived.

    Do not seal for a fenced person: `holder` passes over keys that the vault refuses to make, and callers leave
    out whom `subjects.fenced` names.
    """

    __slots__ = ("_keys", "_session", "_tenant", "_tenant_id", "_vault")

    def __init__(self, session: Session, vault: Vault, tenant_id: int) -> None:
        self._session = session
        self._vault = vault
        self._tenant_id = tenant_id
        self._tenant = str(tenant_id)
        self._keys: dict[int, bytes | None] = {}

    def load(self, subject_nos: Iterable[int]) -> None:
        """Open the identity keys that exist, of many people in one go. Reading needs this even behind a fence."""
        wanted = sorted(set(subject_nos) - self._keys.keys())
        known = (self._tenant_id, IDENTITY_CLASS, NO_MONTH)
        ids = dict(select_in(self._session, _KEY_IDS, known, wanted, "int8"))
        if ids:
            opened = self._vault.open_keys(self._session, self._tenant_id, ids.values())
            self._keys.update({subject_no: opened[key_id] for subject_no, key_id in ids.items()})

    def prepare(self, subject_nos: Iterable[int]) -> None:
        """Get or make the identity keys of many people in one go, to seal with."""
        wanted = sorted(set(subject_nos) - self._keys.keys())
        specs = {
            subject_no: KeySpec(subject_id=subject_no, data_class=IDENTITY_CLASS, month=NO_MONTH)
            for subject_no in wanted
        }
        try:
            handles = self._vault.keys_for(self._session, self._tenant_id, specs.values())
        except (KeyDestroyed, KeyFenced):
            return  # one of them is closed; each is then asked for alone
        self._keys.update({subject_no: handles[spec].key32 for subject_no, spec in specs.items()})

    def can(self, subject_no: int) -> bool:
        """Whether there is a key to seal with for this person, or for the tenant itself."""
        return self._sealing_key(subject_no) is not None

    def holder(self, candidates: Iterable[int]) -> int:
        """The first person whose identity key can seal; the tenant itself when there is none."""
        for subject_no in candidates:
            if self._sealing_key(subject_no) is not None:
                return subject_no
        return NOBODY

    def seal(self, holder_no: int, label: str, name: str, plaintext: bytes) -> bytes:
        """The ciphertext bound to tenant, label and name. Raises: SealRefused where the holder has no usable key."""
        key = self._sealing_key(holder_no)
        if key is None:
            raise SealRefused(holder_no)
        return seal_value(key, plaintext, tenant=self._tenant, label=label, name=name)

    def open(self, holder_no: int, label: str, name: str, sealed: bytes | None) -> bytes | None:
        """The plaintext; None once it was removed or its key is gone. Raises: NotDecryptable when it was altered."""
        if sealed is None:
            return None
        if holder_no not in self._keys:
            self.load((holder_no,))
        key = self._keys.get(holder_no)
        return None if key is None else unseal_value(key, sealed, tenant=self._tenant, label=label, name=name)

    def seal_jointly(self, people: Iterable[int], label: str, name: str, plaintext: bytes) -> bytes:
        """The same for what is said about several people: it is gone with the first of them.

        A key that is there counts even behind a fence, so that what is said of somebody who is being erased goes too.
        Who has no key, and can get none, is left out; where nobody is left it is under the tenant's own.
        """
        wanted = sorted(set(people))
        self.load(wanted)
        self.prepare(wanted)
        keys = {number: key for number in wanted if (key := self._sealing_key(number)) is not None}
        if not keys:
            return self.seal(NOBODY, label, name, plaintext)
        return seal_value(_joint(keys), plaintext, tenant=self._tenant, label=label, name=name)

    def open_jointly(self, people: Iterable[int], label: str, name: str, sealed: bytes | None) -> bytes | None:
        """The plaintext; None once one of their keys is gone. Raises: NotDecryptable when it was altered."""
        wanted = sorted(set(people))
        self.load(wanted)
        keys = {number: key for number in wanted if (key := self._keys.get(number)) is not None}
        if sealed is None:
            return None
        if keys:
            with suppress(NotDecryptable):
                return unseal_value(_joint(keys), sealed, tenant=self._tenant, label=label, name=name)
        opened = None
        with suppress(NotDecryptable):
            opened = self.open(NOBODY, label, name, sealed)  # nobody was left, or it is from before it was theirs
        if opened is None and len(keys) == len(wanted):
            raise NotDecryptable("what was said about several people does not open under the keys of all of them")
        return opened

    def _sealing_key(self, subject_no: int) -> bytes | None:
        if subject_no not in self._keys:
            try:
                handle = self._vault.key_for(self._session, self._tenant_id, subject_no, IDENTITY_CLASS, NO_MONTH)
                self._keys[subject_no] = handle.key32
            except (KeyDestroyed, KeyFenced):
                self._keys[subject_no] = None
        return self._keys[subject_no]


def _joint(keys: Mapping[int, bytes]) -> bytes:
    return joint_prk({str(number): key for number, key in keys.items()})


_encoder = msgspec.json.Encoder(order="sorted")


def canonical_json(value: Mapping[str, Any]) -> bytes:
    """Sorted, compact JSON; integers and texts stay apart (1 is not "1"). Raises: UnicodeEncodeError."""
    return _encoder.encode(value)

"""How the record meets the vault: keys of parts for sealing, and of stored parts for reading.

Guarantees: one batch asks for each key once; a part whose key is destroyed reads as erased, with the fact, never as an
error and never as altered. Not here: who may read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlmodel import Session

from ledger.entry import Part
from registry.classes import get_class
from registry.declaration import DataClass
from registry.errors import UnknownClass
from registry.keyed import NOBODY
from vault.envelope import context, joint_prk, unseal, unseal_with_part_key
from vault.errors import KeyClosing, KeyDestroyed, VaultError
from vault.packing import unpack
from vault.vault import Vault
from vault.wrapping import KeyHandle

SKELETON = "skeleton"
REQUEST_PREFIX = "req_"
MAX_SUCCESSORS = 32
"""Limited erasures of one person's class in one month; the next one is refused by the vault."""
ALGORITHM = "c2sp-chunked-aes256gcm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What reading one part gave: its bytes, or the destruction that took them, or the fault found."""

    data: bytes | None = None
    destroyed: KeyDestroyed | None = None
    fault: str | None = None


class Keyring:
    """The keys of one batch in one transaction; short-lived."""

    def __init__(self, vault: Vault, session: Session, tenant_id: int) -> None:
        self._vault = vault
        self._session = session
        self._tenant_id = tenant_id
        self._sealing: dict[tuple[int, str, str], KeyHandle] = {}
        self._open: dict[str, bytes] = {}
        self._gone: dict[str, KeyDestroyed] = {}
        self._kept: dict[tuple[str, int], bytes | KeyDestroyed | None] = {}

    def key(self, subject_no: int, data_class: str, month: str) -> KeyHandle:
        """Return the key to seal with. Raises: KeyFenced, KeyDestroyed.

        An erasure that was limited to a class or a conversation took the month's key, and no fence stands before the
        person: what they say next is sealed under a successor, told apart by the request that took the former.
        """
        spec = (subject_no, data_class, month)
        if spec not in self._sealing:
            self._sealing[spec] = self._successor(subject_no, data_class, month)
        return self._sealing[spec]

    def _successor(self, subject_no: int, data_class: str, month: str) -> KeyHandle:
        scope = ""
        for _ in range(MAX_SUCCESSORS):
            try:
                return self._vault.key_for(self._session, self._tenant_id, subject_no, data_class, month, scope)
            except (KeyClosing, KeyDestroyed) as fact:
                if not (fact.request or "").startswith(REQUEST_PREFIX) or fact.request == scope:
                    raise
                scope = fact.request or ""
        return self._vault.key_for(self._session, self._tenant_id, subject_no, data_class, month, scope)

    def load(self, key_ids: Iterable[Sequence[str]]) -> None:
        """Open what is there of these keys, in one look-up."""
        wanted = {key_id for group in key_ids for key_id in group} - self._open.keys() - self._gone.keys()
        reading = self._vault.try_open_keys(self._session, self._tenant_id, wanted)
        self._open.update(reading.opened)
        self._gone.update(reading.destroyed)

    def open_all(self, key_ids: Iterable[Sequence[str]]) -> Mapping[str, bytes]:
        """Return every key that opens."""
        self.load(key_ids)
        return self._open

    def load_kept(self, parts: Iterable[tuple[str, int, Sequence[str]]]) -> None:
        """Open the keys of their own that parts (entry id, number, data keys) have whose data keys went, at once."""
        names = [
            (entry_id, number)
            for entry_id, number, keys in parts
            if (entry_id, number) not in self._kept and (not keys or any(key_id in self._gone for key_id in keys))
        ]
        if not names:
            return
        reading = self._vault.try_open_parts(self._session, self._tenant_id, names)
        self._kept.update(dict.fromkeys(names))
        self._kept.update(reading.opened)
        self._kept.update(reading.destroyed)

    def ended(self, *, entry_id: str, number: int, keys: Sequence[str]) -> KeyDestroyed | None:
        """Return the destruction that ended a part, the last one if it outlived its key; None while it opens."""
        lost = next((self._gone[key_id] for key_id in keys if key_id in self._gone), None)
        if lost is None:
            return None
        kept = self._own_key(entry_id, number)
        if isinstance(kept, KeyDestroyed):
            return kept
        return lost if kept is None else None

    def _own_key(self, entry_id: str, number: int) -> bytes | KeyDestroyed | None:
        if (entry_id, number) not in self._kept:
            self.load_kept([(entry_id, number, ())])
        return self._kept[entry_id, number]

    def read(
        self, part: Part, ciphertext: bytes, *, entry_id: str, number: int, log_id: str, keys: Sequence[str]
    ) -> Opened:
        """Return what one part says. The ciphertext was checked against the header by the caller."""
        try:
            lost = self.ended(entry_id=entry_id, number=number, keys=keys)
            if lost is not None:
                return Opened(destroyed=lost)
            if not keys or any(key_id in self._gone for key_id in keys):
                kept = self._own_key(entry_id, number)
                if not isinstance(kept, bytes):
                    return Opened(fault="no key is known for this part")
                return Opened(data=unpack(unseal_with_part_key(kept, ciphertext)))
            prk = joint_prk({key_id: self._open[key_id] for key_id in keys})
            bound = context(str(self._tenant_id), log_id, entry_id, part.role)
            return Opened(data=unpack(unseal(prk, ciphertext, bound)))
        except VaultError as error:
            return Opened(fault=type(error).__name__)


def skeleton_class(session: Session, tenant_id: int) -> DataClass:
    """Return the class of skeletons and of the service's own events; a starter class, which every tenant has."""
    try:
        return get_class(session, tenant_id, SKELETON)
    except UnknownClass as error:
        raise UnknownClass(SKELETON) from error


__all__ = ["ALGORITHM", "NOBODY", "Keyring", "Opened", "skeleton_class"]

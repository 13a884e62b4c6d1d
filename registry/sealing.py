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
from vault.errors import KeyDestroyed, VaultError
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
            except KeyDestroyed as fact:
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

    def read(
        self, part: Part, ciphertext: bytes, *, entry_id: str, number: int, log_id: str, keys: Sequence[str]
    ) -> Opened:
        """Return what one part says. The ciphertext was checked against the header by the caller."""
        try:
            lost = next((self._gone[key_id] for key_id in keys if key_id in self._gone), None)
            if lost is not None or not keys:
                kept = self._vault.open_parts(self._session, self._tenant_id, [(entry_id, number)])
                if (entry_id, number) not in kept:
                    return Opened(destroyed=lost) if lost else Opened(fault="no key is known for this part")
                return Opened(data=unpack(unseal_with_part_key(kept[entry_id, number], ciphertext)))
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

"""The provider's own id of an action that was settled, which may name a person as any id may.

Guarantees: it is sealed under the identity keys of everybody who was in the action's stream when it was settled, so it
is gone with the first of them who is erased; the entry and the state of the action stay. Under the tenant's own key
where the stream has nobody, was not named, or was not in the record when the action was claimed.

Layout: the number of the set of people, 8 bytes, and a small value. What was sealed before stands without the number,
under the tenant's own key; the length tells them apart (`vault.small`).
"""

from __future__ import annotations

from sqlmodel import Session

from ledger.models import ActionRow
from registry.keyed import NOBODY, Seals
from registry.models import StreamRow
from registry.sets import EMPTY_SET, members
from vault.errors import NotDecryptable
from vault.small import OVERHEAD, STEP
from vault.vault import Vault

_LABEL = "action"
_SET_BYTES = 8


def seal_reference(session: Session, vault: Vault, row: ActionRow, reference: str) -> bytes:
    """Return what the row keeps of a provider's reference."""
    stream = None if row.stream_no is None else session.get(StreamRow, (row.tenant_id, row.stream_no))
    set_id = EMPTY_SET if stream is None else stream.set_id
    people = members(session, row.tenant_id, [set_id])[set_id]
    seals = Seals(session, vault, row.tenant_id)
    sealed = seals.seal_jointly(people, _LABEL, _name(row, set_id), reference.encode())
    return set_id.to_bytes(_SET_BYTES, "big", signed=True) + sealed


def open_reference(session: Session, vault: Vault, row: ActionRow) -> str | None:
    """Return the provider's reference; None where there is none, and once one of its people is erased.

    Raises: NotDecryptable when it was altered.
    """
    kept = row.provider_ref
    if kept is None:
        return None
    seals = Seals(session, vault, row.tenant_id)
    if (len(kept) - OVERHEAD - _SET_BYTES) % STEP:
        opened = seals.open(NOBODY, _LABEL, row.lookup.hex(), kept)
    else:
        set_id = int.from_bytes(kept[:_SET_BYTES], "big", signed=True)
        people = members(session, row.tenant_id, [set_id])[set_id]
        if set_id != EMPTY_SET and not people:
            raise NotDecryptable("nobody is in the set of people that an action's reference is sealed under")
        opened = seals.open_jointly(people, _LABEL, _name(row, set_id), kept[_SET_BYTES:])
    return None if opened is None else opened.decode()


def _name(row: ActionRow, set_id: int) -> str:
    return f"{row.lookup.hex()}:{set_id}"

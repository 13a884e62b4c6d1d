"""Opens wrapped rows, and makes rows for keys that are asked for the first time. Keeps nothing in memory itself.

Guarantees that two who first ask for one key end with the same, that a tombstone or fence is obeyed, and that a
row's key-encryption key is on disk before the row can be committed.
"""

import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import Connection
from sqlmodel import Session

from vault import rows
from vault.envelope import KEY_BYTES
from vault.errors import KeyClosing, KeyDestroyed, KeyFenced, VaultError
from vault.keks import KekStore
from vault.models import KeyState
from vault.rows import AnyRow, Slots, binding_of
from vault.transaction import pending
from vault.wrapping import KeySpec, unwrap, wrap

KEY_ID_BYTES = 10
"""A key's id stands twice in the index for every part it seals. Where two meet, the later one draws again."""
# 0000-00 is the month of keys that belong to none: identity and request keys.
_MONTH = re.compile(r"0000-00|\d{4}-(0[1-9]|1[0-2])")


def open_key(keks: KekStore, row: AnyRow) -> bytes:
    """Return a data key's 32 bytes. Raises KeyDestroyed, KekDestroyed, KekUnknown, NotDecryptable."""
    return Opener(keks).open_key(row)


class Opener:
    """Opens the rows of one call: it asks for each key-encryption key once, which looks at the disk each time."""

    __slots__ = ("_held", "_keks")

    def __init__(self, keks: KekStore) -> None:
        self._keks = keks
        self._held: dict[tuple[int, int, int], bytes] = {}

    def open_key(self, row: AnyRow) -> bytes:
        """Return a data key's 32 bytes. Raises KeyDestroyed, KekDestroyed, KekUnknown, NotDecryptable."""
        if row["wrapped"] is None:
            raise KeyDestroyed(row["key_id"], row["destroyed_at"], row["request"])
        place = (row["tenant_id"], row["group_no"], row["epoch"])
        kek = self._held.get(place)
        if kek is None:
            kek = self._held[place] = self._keks.get(str(place[0]), *place[1:])
        return unwrap(kek, binding_of(rows.KEYS, row), row["wrapped"])


def slot_kek(keks: KekStore, tenant_id: int, slots: Slots) -> bytes:
    """Return the key-encryption key for new rows in these slots."""
    if slots.new:
        # Durable before the rows that need it can be committed; if they are not, it is a key that wraps nothing.
        keks.create(str(tenant_id), slots.group_no, slots.epoch)
    return keks.get(str(tenant_id), slots.group_no, slots.epoch)


def rows_for_sealing(
    session: Session, keks: KekStore, tenant_id: int, specs: Sequence[KeySpec], now: datetime
) -> dict[KeySpec, rows.AnyRow]:
    """Return the live rows of these specs, made where there are none.

    Raises KeyFenced and KeyDestroyed, each naming the first such spec's subject or key.
    """
    db = rows.connection(session)
    closed = rows.fenced(db, tenant_id, {spec.subject_id for spec in specs})
    for spec in specs:
        if spec.subject_id in closed:
            raise KeyFenced(spec.subject_id)
        if not _MONTH.fullmatch(spec.month):
            raise VaultError(f"a key's month is YYYY-MM, got {spec.month!r}")
    found: dict[KeySpec, rows.AnyRow] = {**rows.keys_by_spec(db, tenant_id, specs)}
    while missing := [spec for spec in specs if spec not in found]:
        made = _make(db, keks, tenant_id, missing, now=now)
        pending(session).keys.update(row["key_id"] for row in made.values())
        # What another process inserted first is read here: its key is used, ours was never given out.
        found |= made | rows.keys_by_spec(db, tenant_id, [spec for spec in missing if spec not in made])
    for spec, row in found.items():
        if row["wrapped"] is None:
            raise KeyDestroyed(row["key_id"], row["destroyed_at"], row["request"])
        if row["state"] != KeyState.LIVE:
            raise KeyClosing(spec.subject_id, row["request"])
    return {spec: found[spec] for spec in specs}


def _make(
    db: Connection, keks: KekStore, tenant_id: int, specs: Sequence[KeySpec], *, now: datetime
) -> dict[KeySpec, rows.AnyRow]:
    """Insert a row for each spec; those that nobody else inserted first."""
    made: dict[KeySpec, rows.AnyRow] = {}
    left = iter(specs)
    for slots in rows.take_slots(db, tenant_id, len(specs)):
        kek = slot_kek(keks, tenant_id, slots)
        asked = list(islice(left, slots.count))
        # By id, so that of two that drew one id one is made, and the other is asked for again.
        batch = {row["key_id"]: row for row in (_new_row(tenant_id, spec, slots, kek, now) for spec in asked)}
        inserted = [batch[row["key_id"]] for row in rows.insert_missing(db, rows.KEYS, list(batch.values()))]
        if len(inserted) < len(asked):
            rows.give_back(db, tenant_id, slots.group_no, len(asked) - len(inserted))
        made.update((rows.spec_of(row), row) for row in inserted)
    return made


def _new_row(tenant_id: int, spec: KeySpec, slots: Slots, kek: bytes, now: datetime) -> dict[str, Any]:
    row: dict[str, Any] = {
        "tenant_id": tenant_id,
        "key_id": secrets.token_hex(KEY_ID_BYTES),
        "subject_id": spec.subject_id,
        "data_class": spec.data_class,
        "month": spec.month,
        "scope": spec.scope,
        "group_no": slots.group_no,
        "epoch": slots.epoch,
    }
    wrapped = wrap(kek, binding_of(rows.KEYS, row), secrets.token_bytes(KEY_BYTES))
    return {**row, "wrapped": wrapped, "created_at": now, "state": KeyState.LIVE}

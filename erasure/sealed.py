"""What a person said and what a plan captured, sealed under the request's own key.

Guarantees: identifiers, notes, locators and canaries of a request are readable only while its key lives; the key goes
with the request's footprint. A sweep of retention has no person's words: its captures are sealed under a key of the
tenant that is this sweep's own. Not here: how long the key lives.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlmodel import Session

from connectors.base import Item
from erasure.models import RequestRow
from registry.keyed import NO_MONTH, canonical_json
from vault.small import seal_value, unseal_value, unseal_values
from vault.vault import Vault

REQUEST_CLASS = "request"
SWEEP_KEY = 0
"""The key owner of sweeps: the tenant itself."""


@dataclass(frozen=True, slots=True)
class Capture:
    """What later steps need of one copy, read while it was still there."""

    locator: Mapping[str, Any] = field(repr=False)
    canaries: tuple[bytes, ...] = field(repr=False, default=())
    captured: bool = False
    """Whether all was read that is looked for later; False where the store did not answer."""

    def item(self, copy_no: int) -> Item:
        """The connector's view of the copy."""
        return Item(copy_id=str(copy_no), locator=self.locator, canaries=self.canaries)


class _Stored(msgspec.Struct):
    """A capture as it is sealed: its canaries in base64."""

    locator: dict[str, Any]
    canaries: tuple[bytes, ...]
    captured: bool


_CAPTURES = msgspec.json.Decoder(_Stored)


class RequestSeal:
    """Seals and opens the texts of one request; lives as long as one transaction.

    A request whose traces have ended (`erasure.footprint`) has no key any more. What comes later, such as the place
    of a late copy, is sealed under a key of its own, which goes like the first one.
    """

    __slots__ = ("_found", "_has_footprint", "_key_no", "_owner", "_session", "_tenant", "_tenant_id", "_vault")

    def __init__(self, session: Session, vault: Vault, tenant_id: int, *, owner: str, key_no: int) -> None:
        self._session = session
        self._vault = vault
        self._tenant_id = tenant_id
        self._key_no = key_no
        self._owner = owner
        self._tenant = str(tenant_id)
        self._found: bytes | None = None
        self._has_footprint = False

    @property
    def _key(self) -> bytes:
        # Asked for only when something is sealed or opened: an ended request has nothing to open.
        if self._found is None:
            scope = self._owner if self._key_no == SWEEP_KEY else self._after_the_end()
            handle = self._vault.key_for(self._session, self._tenant_id, self._key_no, REQUEST_CLASS, NO_MONTH, scope)
            self._found = handle.key32
        return self._found

    def _after_the_end(self) -> str:
        row = self._row()
        ended = 0 if row is None else int(row.details.get("footprints", 0))
        return f"after-{ended}" if ended else ""

    def _row(self) -> RequestRow | None:
        return self._session.get(RequestRow, (self._tenant_id, self._owner))

    def seal(self, name: str, value: Mapping[str, Any]) -> bytes:
        """The ciphertext of a JSON value, bound to the owner and the name."""
        return self._seal(name, canonical_json(value))

    def open(self, name: str, sealed: bytes | None) -> dict[str, Any]:
        """The value that was sealed under this name; empty where there is none."""
        if sealed is None:
            return {}
        found: dict[str, Any] = msgspec.json.decode(self._open(name, sealed))
        return found

    def seal_capture(self, capture: Capture, ref: str) -> bytes:
        """The ciphertext of a copy's capture, bound to the copy's public id."""
        canaries = [b64encode(canary).decode("ascii") for canary in capture.canaries]
        body = {"locator": dict(capture.locator), "canaries": canaries, "captured": capture.captured}
        self._begin_footprint()
        return self._seal(f"copy/{ref}", json.dumps(body, ensure_ascii=False, sort_keys=True).encode())

    def _begin_footprint(self) -> None:
        if self._has_footprint:
            return
        row = None if self._key_no == SWEEP_KEY else self._row()
        if row is not None and row.sealed is None:
            # The sealed words are how `erasure.footprint` sees that there is something to end, again.
            row.sealed = self.seal("said", {})
            self._session.add(row)
        self._has_footprint = True

    def open_captures(self, sealed: Sequence[tuple[str, bytes]]) -> list[Capture]:
        """The captures of copies, by their public ids and what was sealed, in that order."""
        if not sealed:
            return []
        named = [(f"{self._owner}/copy/{ref}", data) for ref, data in sealed]
        opened = unseal_values(self._key, named, tenant=self._tenant, label=REQUEST_CLASS)
        bodies = map(_CAPTURES.decode, opened)
        return [Capture(body.locator, body.canaries, body.captured) for body in bodies]

    def _open(self, name: str, sealed: bytes) -> bytes:
        return unseal_value(self._key, sealed, tenant=self._tenant, label=REQUEST_CLASS, name=f"{self._owner}/{name}")

    def _seal(self, name: str, data: bytes) -> bytes:
        return seal_value(self._key, data, tenant=self._tenant, label=REQUEST_CLASS, name=f"{self._owner}/{name}")

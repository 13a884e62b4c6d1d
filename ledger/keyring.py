"""The signing keys of a log and of its certificates: which key may sign what, and how one follows another.

Guarantees: a key signs checkpoints of the sizes in its window and no others; who reads the bucket sees the same
windows as the writer, because each change is a signed note that is created once in the locked store (`<log
id>/keys/<use>/<n>`), by the new key and by every key that signed until then. An auditor who pinned an old key follows
it to the new one with these notes alone. After a plain rotation the key before signs along until the next one; after
a revocation no earlier key counts for any later size. Does not keep private keys, and does not write the entry of the
record: see `api.rotation`. A thief of an old key can still sign a false checkpoint of a size before its end: anchors
show that.

Example: keys 0 and 1, rotated at size 40, revoked by key 2 at size 90 → key 0: 0–90, key 1: 41–90, key 2: 91–.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol

from ledger.checkpoint import (
    MAX_SIZE,
    Checkpoint,
    NoteSignature,
    SignatureType,
    Signer,
    open_note,
    parse_checkpoint,
    parse_note,
    parse_vkey,
    sign_note,
)
from ledger.errors import BadSignature, LogForked, MalformedNote, ObjectExists, SigningKeyMissing
from ledger.objects import ObjectStore
from ledger.signing import verifier_from_vkey

LOG = "log"
CERTIFICATE = "certificate"
_FIRST_LINE = "muniment-key/v1"
_NAMED = re.compile(r"(log|use|generation|size|at|old|revoke|new) ([^ ]+)")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_AT = "%Y-%m-%dT%H:%M:%S.%fZ"


class NamedSigner(Signer, Protocol):
    """A signer that knows its own public text form."""

    @property
    def vkey(self) -> str:
        """The key in C2SP text form, to pin."""


SignerOf = Callable[[int], NamedSigner]
"""Gives the signer of a generation; 0 is the first. Makes the key when there is none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """One rotation: from `size` on `new` signs too; with `revoke` the `old` ones end there."""

    log_id: str
    use: str
    generation: int
    size: int
    at: str
    old: tuple[str, ...]
    revoke: bool
    new: str

    def text(self) -> str:
        """Return the text that is signed."""
        lines = [_FIRST_LINE, f"log {self.log_id}", f"use {self.use}", f"generation {self.generation}"]
        lines += [f"size {self.size}", f"at {self.at}", *(f"old {vkey}" for vkey in self.old)]
        lines += [f"revoke {'yes' if self.revoke else 'no'}", f"new {self.new}"]
        return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWindow:
    """A public key and the tree sizes it may sign, both ends included; `until_size` None: still signing.

    `statement` is the signed note that brought the key in, empty for the first one.
    """

    use: str
    vkey: str
    generation: int
    from_size: int
    until_size: int | None = None
    revoked: bool = False
    since: str = ""
    statement: str = ""

    @property
    def state(self) -> str:
        """`active`, `ended` or `revoked`."""
        return "active" if self.until_size is None else "revoked" if self.revoked else "ended"

    @property
    def pin(self) -> str:
        """The key with its window, as `audit.keys.log_key` reads it."""
        return f"{self.vkey} {self.from_size}-{'' if self.until_size is None else self.until_size}"

    def covers(self, size: int) -> bool:
        """Whether the key may sign a tree of this size."""
        return self.from_size <= size <= (MAX_SIZE if self.until_size is None else self.until_size)

    def as_json(self) -> dict[str, Any]:
        """Return the key as the key list shows it."""
        return {
            "use": self.use,
            "vkey": self.vkey,
            "state": self.state,
            "generation": self.generation,
            "from_size": self.from_size,
            "until_size": self.until_size,
            "since": self.since or None,
            "statement": self.statement or None,
        }


def parse_change(note: bytes) -> KeyChange:
    """Return the key change in a note that the new key and every old key signed.

    Raises: MalformedNote, BadSignature.
    """
    change = _parse_text(parse_note(note).text)
    verifiers = [verifier_from_vkey(vkey) for vkey in (*change.old, change.new)]
    signed = {(item.name, item.key_id) for item in open_note(note, verifiers).signatures}
    for verifier in verifiers:
        if (verifier.name, verifier.key_id) not in signed:
            reason = "a key change is signed by the new key and by every key before it"
            raise BadSignature(reason, name=verifier.name)
    return change


def windows(use: str, first_vkey: str, notes: Sequence[bytes]) -> tuple[KeyWindow, ...]:
    """Return the keys of a use with the sizes they may sign, oldest first, from the notes of all changes in order.

    Raises: MalformedNote, BadSignature; LogForked when a change does not follow the one before.
    """
    found = [KeyWindow(use=use, vkey=first_vkey, generation=0, from_size=0)]
    log_id, size = None, 0
    for number, note in enumerate(notes, start=1):
        change = parse_change(note)
        signing = tuple(window.vkey for window in found if window.until_size is None)
        log_id = log_id or change.log_id
        if (change.use, change.generation, change.log_id) != (use, number, log_id) or change.size < size:
            raise LogForked(f"change {number} of the {use} key does not follow the one before", size=change.size)
        if change.old != signing:
            raise LogForked(f"change {number} of the {use} key names other keys before it", size=change.size)
        size = change.size
        found = [_after(window, change) for window in found]
        found.append(
            KeyWindow(
                use=use,
                vkey=change.new,
                generation=number,
                from_size=size if use == CERTIFICATE else size + 1,
                since=change.at,
                statement=note.decode(),
            )
        )
    return tuple(found)


def _after(window: KeyWindow, change: KeyChange) -> KeyWindow:
    """Return the window as a change leaves it."""
    overlaps = change.use == LOG and window.generation == change.generation - 1
    if window.until_size is not None or (overlaps and not change.revoke):
        return window
    return KeyWindow(
        use=window.use,
        vkey=window.vkey,
        generation=window.generation,
        from_size=window.from_size,
        until_size=change.size,
        revoked=change.revoke,
        since=window.since,
        statement=window.statement,
    )


def open_checkpoint(note: bytes, keys: Sequence[KeyWindow]) -> Checkpoint:
    """Return the checkpoint that at least one of the keys signed within its window.

    One bad signature by any of the keys rejects the note; the order of the keys and of the signatures decides nothing.
    Raises: MalformedNote; BadSignature, also for a size after the end of every key that signed.
    """
    signed = open_note(note, [verifier_from_vkey(window.vkey) for window in keys])
    checkpoint = parse_checkpoint(signed.text)
    by = _windows_of(signed.signatures, keys)
    if not any(window.covers(checkpoint.size) for window in by):
        ends = max((window.until_size or 0 for window in by), default=0)
        reason = f"size {checkpoint.size} is signed only by keys whose validity ended at size {ends} or begins later"
        raise BadSignature(reason, name=by[0].vkey.partition("+")[0] if by else "")
    return checkpoint


def _windows_of(signatures: Sequence[NoteSignature], keys: Sequence[KeyWindow]) -> list[KeyWindow]:
    places = {(item.name, item.key_id) for item in signatures}
    found = []
    for window in sorted(keys, key=lambda one: one.generation):
        key = parse_vkey(window.vkey)
        if (key.name, key.key_id) in places:
            found.append(window)
    return found


def keys_prefix(log_id: str, use: str) -> str:
    """Return where the changes of a use lie in the locked store."""
    return f"{log_id}/keys/{use}/"


class Listing(Protocol):
    """The two methods of a store that reading needs; a bucket reader of the auditor has them too."""

    def get(self, key: str) -> bytes:
        """Return the bytes."""

    def list(self, prefix: str) -> Any:
        """Yield the keys below the prefix, in byte order."""


def read_windows(store: Listing, log_id: str, use: str, first_vkey: str) -> tuple[KeyWindow, ...]:
    """Return the keys of a log as its bucket knows them. Raises: what `windows` and the store raise."""
    notes = [store.get(key) for key in store.list(keys_prefix(log_id, use))]
    found = windows(use, first_vkey, notes)
    if notes and parse_change(notes[0]).log_id != log_id:
        raise LogForked("the key changes in this bucket belong to another log")
    return found


def follow(store: Listing, log_id: str, use: str, pinned: str) -> tuple[KeyWindow, ...]:
    """Return the keys of a log for somebody who pinned any one of them.

    The change notes tie all of them to the pinned one. Raises: BadSignature when it is none of them, and what
    `read_windows` raises.
    """
    first = next(iter(store.list(keys_prefix(log_id, use))), None)
    before = pinned if first is None else parse_change(store.get(first)).old[0]
    found = read_windows(store, log_id, use, before)
    if pinned not in {window.vkey for window in found}:
        reason = "the pinned key is none of this log's keys"
        raise BadSignature(reason, name=pinned.partition("+")[0])
    return found


def signers(keys: Sequence[KeyWindow], signer_of: SignerOf) -> tuple[NamedSigner, ...]:
    """Return the signers of the keys that sign now, the newest last. Raises: SigningKeyMissing."""
    found = []
    for window in keys:
        if window.until_size is None:
            signer = signer_of(window.generation)
            if signer.vkey != window.vkey:
                raise SigningKeyMissing(use=window.use, generation=window.generation)
            found.append(signer)
    return tuple(found)


def change_key(
    store: ObjectStore,
    *,
    log_id: str,
    keys: Sequence[KeyWindow],
    signer_of: SignerOf,
    size: int,
    revoke: bool,
    now: datetime,
    lock_until: datetime,
    pinned: AbstractContextManager[None] | None = None,
) -> bytes:
    """Make the next key and create the signed note of the change; returns the note.

    The caller holds the log, whose newest checkpoint has this size; `pinned` sees to it that it still does while the
    note is put, since making a key may take long and nobody can take the note back. Crash before the put: an unused
    key, taken up by the next try. Raises: ObjectExists when another process changed the key meanwhile,
    SigningKeyMissing, ….
    """
    before = signers(keys, signer_of)
    generation = keys[-1].generation + 1
    new = signer_of(generation)
    change = KeyChange(
        log_id=log_id,
        use=keys[-1].use,
        generation=generation,
        size=size,
        at=now.strftime(_AT),
        old=tuple(signer.vkey for signer in before),
        revoke=revoke,
        new=new.vkey,
    )
    note = sign_note(change.text(), [*before, new])
    key = f"{keys_prefix(log_id, change.use)}{generation:06d}"
    with pinned or nullcontext():
        try:
            store.put(key, note, lock_until=lock_until)
        except ObjectExists:
            # A lost answer of our own put leaves the same bytes, since Ed25519 signs deterministically.
            if store.get(key) != note:
                raise
    return note


def event_body(note: bytes) -> Mapping[str, Any]:
    """Return what the entry of the record says about a key change."""
    change = parse_change(note)
    return {
        "use": change.use,
        "generation": change.generation,
        "size": change.size,
        "old": list(change.old),
        "new": change.new,
        "revoke": change.revoke,
        "statement_sha256": sha256(note).hexdigest(),
    }


def _parse_text(text: str) -> KeyChange:
    first, *lines = text.removesuffix("\n").split("\n")
    values: dict[str, list[str]] = {}
    for line in lines:
        match = _NAMED.fullmatch(line)
        if first != _FIRST_LINE or match is None:
            reason = "not a key change"
            raise MalformedNote(reason)
        values.setdefault(match[1], []).append(match[2])
    single = {name: given[0] for name, given in values.items() if name != "old" and len(given) == 1}
    if set(single) != {"log", "use", "generation", "size", "at", "revoke", "new"} or not values.get("old"):
        reason = "a key change names log, use, generation, size, time, old keys and new key"
        raise MalformedNote(reason)
    if single["use"] not in (LOG, CERTIFICATE) or not all(_NUMBER.fullmatch(single[n]) for n in ("generation", "size")):
        reason = "a key change has an unknown use or a malformed number"
        raise MalformedNote(reason)
    change = KeyChange(
        log_id=single["log"],
        use=single["use"],
        generation=int(single["generation"]),
        size=int(single["size"]),
        at=single["at"],
        old=tuple(values["old"]),
        revoke=single["revoke"] == "yes",
        new=single["new"],
    )
    if change.text() != text or change.size > MAX_SIZE:
        reason = "not the canonical spelling of a key change"
        raise MalformedNote(reason)
    names = {(key.name, key.algorithm) for key in map(parse_vkey, (*change.old, change.new))}
    if len(names) != 1 or next(iter(names))[1] != SignatureType.ED25519:
        reason = "old and new key have one name and the type Ed25519"
        raise MalformedNote(reason)
    return change

"""Offline check that one entry is in the log, with nothing but a pinned key and the standard library.

Proves: the header bytes are the leaf at `index` of a tree of `tree_size` whose root the pinned key signed. Does not
prove: what the content was (the header commits to ciphertexts), that the log shows everybody the same tree (anchors
do), or that the key is the log's (whoever pinned it knows).

The numbered steps are those of `verify_proof`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muniment.ed25519 import verifies
from muniment.errors import ProofError

_ED25519 = 0x01
_HASH_BYTES = 32
_KEY_ID_BYTES = 4
_MAX_NOTE_BYTES = 64 << 10
_MAX_SIGNATURES = 64
_MAX_SIZE = 1 << 63
_CHECKPOINT_LINES = 3
_VKEY_PARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResult:
    """What was proven: this header stands at `index` of the log `origin` as it was at `tree_size`."""

    index: int
    tree_size: int
    origin: str
    root: bytes
    header: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierKey:
    """A C2SP verifier key: the log's name, the key's id and the Ed25519 key."""

    name: str
    key_id: bytes
    public_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCheckpoint:
    """The text of a checkpoint whose signature was verified."""

    origin: str
    size: int
    root: bytes


def verify_proof(proof: Mapping[str, Any], vkey: str, *, entry_id: str | None = None) -> ProofResult:
    """Return what the proof proves under the pinned `vkey`; with `entry_id`, that it is of this entry too.

    Raises: ProofError, whose `step` says which check failed. Source: API.md §5, RFC 9162 §2.1.3.2, C2SP signed-note.
    """
    # 1. The key that the reader trusts.
    key = parse_vkey(vkey)
    # 2. The checkpoint is signed by it and is of its log.
    checkpoint = open_checkpoint(_text(proof, "checkpoint"), key)
    # 3. The proof is of the tree that the checkpoint commits to.
    index, size = _number(proof, "index"), _number(proof, "tree_size")
    if size != checkpoint.size:
        raise ProofError("tree_size", f"proof is of {size} entries, checkpoint of {checkpoint.size}")
    # 4. The leaf hash is that of the header bytes.
    header = _base64(_text(proof, "header"), "header")
    leaf = hashlib.sha256(b"\x00" + header).digest()
    if _hash(_text(proof, "leaf_hash"), "leaf_hash") != leaf:
        raise ProofError("leaf_hash", "it is not the hash of the header")
    # 5. The path from the leaf leads to the signed root.
    path = proof.get("inclusion")
    if not isinstance(path, list):
        raise ProofError("inclusion", "missing or not a list")
    verify_inclusion(index, size, leaf, [_hash(each, "inclusion") for each in path], checkpoint.root)
    # 6. The header is the entry asked for.
    parsed = _parse_header(header)
    if entry_id is not None and parsed.get("id") != entry_id:
        raise ProofError("entry", "the header is of another entry")
    return ProofResult(index=index, tree_size=size, origin=checkpoint.origin, root=checkpoint.root, header=parsed)


def parse_vkey(vkey: str) -> VerifierKey:
    """Return the parts of a C2SP vkey, its key id checked. Raises: ProofError. Source: C2SP signed-note."""
    pieces = vkey.strip().split("+", 2)
    if len(pieces) != _VKEY_PARTS or not _is_name(pieces[0]):
        raise ProofError("key", "not a verifier key of the form name+id+key")
    name, id_text, key_text = pieces
    blob = _base64(key_text, "key")
    if len(blob) != 1 + _HASH_BYTES or blob[0] != _ED25519:
        raise ProofError("key", "not an Ed25519 key")
    key_id = hashlib.sha256(_utf8(name, "key") + b"\n" + blob).digest()[:_KEY_ID_BYTES]
    if id_text != key_id.hex():
        raise ProofError("key", "its id does not belong to it")
    return VerifierKey(name=name, key_id=key_id, public_key=blob[1:])


def open_note(note: str, key: VerifierKey) -> str:
    """Return the text of a signed note if `key` signed it.

    Signatures of other keys are ignored; one of this key that is wrong refuses the note, even beside a good one.

    Raises: ProofError. Source: C2SP signed-note.
    """
    if len(_utf8(note, "checkpoint")) > _MAX_NOTE_BYTES:
        raise ProofError("checkpoint", "note too large")
    text, separator, tail = note.rpartition("\n\n")
    lines = tail.split("\n")
    if not separator or lines.pop() or not lines or len(lines) > _MAX_SIGNATURES:
        raise ProofError("checkpoint", "not a signed note")
    if any(each < " " and each != "\n" for each in note):
        raise ProofError("checkpoint", "control characters in the note")
    text += "\n"
    good = False
    for line in lines:
        name, blob = _signature_line(line)
        if name != key.name or blob[:_KEY_ID_BYTES] != key.key_id:
            continue
        if not verifies(key.public_key, text.encode(), blob[_KEY_ID_BYTES:]):
            raise ProofError("signature", "the pinned key's signature is wrong")
        good = True
    if not good:
        raise ProofError("signature", "not signed by the pinned key")
    return text


def open_checkpoint(note: str, key: VerifierKey) -> SignedCheckpoint:
    """Return the checkpoint in a note that `key` signed. Raises: ProofError. Source: C2SP tlog-checkpoint."""
    lines = open_note(note, key).split("\n")
    lines.pop()
    if len(lines) < _CHECKPOINT_LINES or not all(lines):
        raise ProofError("checkpoint", "not origin, size and root")
    origin, size_text, root_text = lines[:_CHECKPOINT_LINES]
    if origin != key.name:
        raise ProofError("checkpoint", "it is of another log than the key")
    if not (size_text.isascii() and size_text.isdigit()) or (size_text != "0" and size_text.startswith("0")):
        raise ProofError("checkpoint", "size is not a plain number")
    root = _base64(root_text, "checkpoint")
    if len(root) != _HASH_BYTES or len(size_text) > len(str(_MAX_SIZE)):
        raise ProofError("checkpoint", "root or size out of range")
    return SignedCheckpoint(origin=origin, size=int(size_text), root=root)


def verify_inclusion(index: int, size: int, leaf: bytes, path: Sequence[bytes], root: bytes) -> None:
    """Return if `leaf` is at `index` of the tree of `size` with `root`. Raises: ProofError.

    Source: RFC 9162 §2.1.3.2.
    """
    if not 0 <= index < size:
        raise ProofError("inclusion", f"index {index} is not in a tree of {size}")
    node, last, found = index, size - 1, leaf
    for each in path:
        if last == 0:
            raise ProofError("inclusion", "path too long")
        if node & 1 or node == last:
            found = hashlib.sha256(b"\x01" + each + found).digest()
            while not node & 1 and node:
                node >>= 1
                last >>= 1
        else:
            found = hashlib.sha256(b"\x01" + found + each).digest()
        node >>= 1
        last >>= 1
    if last:
        raise ProofError("inclusion", "path too short")
    if found != root:
        raise ProofError("inclusion", "the path does not lead to the signed root")


def _signature_line(line: str) -> tuple[str, bytes]:
    prefix, _, rest = line.partition(" ")
    name, _, blob_text = rest.partition(" ")
    if prefix != "\u2014" or not _is_name(name):
        raise ProofError("checkpoint", "malformed signature line")
    blob = _base64(blob_text, "checkpoint")
    if len(blob) <= _KEY_ID_BYTES:
        raise ProofError("checkpoint", "malformed signature line")
    return name, blob


def _is_name(name: str) -> bool:
    return bool(name) and "+" not in name and not any(each.isspace() for each in name)


def _text(proof: Mapping[str, Any], field: str) -> str:
    value = proof.get(field)
    if not isinstance(value, str):
        raise ProofError(field, "missing or not text")
    return value


def _number(proof: Mapping[str, Any], field: str) -> int:
    value = proof.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_SIZE:
        raise ProofError(field, "missing or not a number in range")
    return value


def _utf8(text: str, step: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ProofError(step, "not a text that UTF-8 can write") from error


def _base64(text: str, step: str) -> bytes:
    """Return the bytes of strict, canonical base64."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProofError(step, "not base64") from error
    if base64.b64encode(data).decode() != text:
        raise ProofError(step, "not canonical base64")
    return data


def _hash(text: object, step: str) -> bytes:
    if not isinstance(text, str) or len(text) != 2 * _HASH_BYTES or text != text.lower():
        raise ProofError(step, "not a lowercase hex SHA-256")
    try:
        return bytes.fromhex(text) if text.isalnum() else _refuse_hash(step)
    except ValueError as error:
        raise ProofError(step, "not a lowercase hex SHA-256") from error


def _refuse_hash(step: str) -> bytes:
    raise ProofError(step, "not a lowercase hex SHA-256")


def _parse_header(header: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ProofError("header", "not JSON") from error
    if not isinstance(parsed, dict):
        raise ProofError("header", "not an object")
    return parsed

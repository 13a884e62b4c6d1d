r"""The certificate: its model, its canonical bytes and its signature. Pure.

Guarantees: what it says of a copy comes from a verification record or says so; a copy that counts as gone without one
is refused (`NotVerified`). It holds no identifier, no locator and no digest that could be guessed: the person appears
as a salted commitment whose opening is in the letter only. Which fields the log proves and which are only stated stands
in `marks`, and `erasure.report_check` accepts no other division. It claims support for compliance, never compliance.

    {"certificate": {…}, "signature": {"key": "<name>+<key id>", "ed25519": "<base64>"}}

The whole file is RFC 8785; the signature is over `muniment-certificate/v1\n` and the RFC 8785 bytes of `certificate`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Protocol, Self

from erasure.errors import NotVerified
from erasure.request import GONE
from erasure.signed_file import PIECE, SignedFile, looked_at, unnamed
from ledger import canonical

SCHEMA = "muniment-certificate/v1"
PREFIX = b"muniment-certificate/v1\n"
_BEFORE = b'{"certificate":'
"""What stands before the certificate in its file; shorter than what stands before it in what is signed."""
_COMMITMENT = b"muniment-subject-commitment/v1\n"

PROVEN = (
    "/request",
    "/right",
    "/scope",
    "/regulation",
    "/received_at",
    "/plan_hash",
    "/approval",
    "/approvals",
    "/copies (number)",
    "/copies/*/copy (gone)",
    "/copies/*/id (keys)",
    "/copies/*/state (gone)",
    "/copies/*/level (gone)",
    "/copies/*/key (gone)",
    "/copies/*/evidence (gone)",
    "/log",
)
"""What the log proves when `erasure.report_check` passes: said in an event that stands in the log, or is that proof.

`(gone)` and `(keys)`: of copies that are gone, and of keys that are.
"""
STATED = (
    "/schema",
    "/version",
    "/claim",
    "/marks",
    "/supersedes",
    "/tenant",
    "/controller",
    "/jurisdiction",
    "/timezone",
    "/due_at",
    "/due_on",
    "/answered_at",
    "/issued_at",
    "/completed_at",
    "/state",
    "/subject_commitments",
    "/coverage",
    "/not_covered",
    "/copies/*/copy",
    "/copies/*/kind",
    "/copies/*/id",
    "/copies/*/data_class",
    "/copies/*/store",
    "/copies/*/path",
    "/copies/*/action",
    "/copies/*/rule",
    "/copies/*/state",
    "/copies/*/required",
    "/copies/*/level",
    "/copies/*/key",
    "/copies/*/method",
    "/copies/*/detail",
    "/copies/*/attempts",
    "/copies/*/collateral",
    "/copies/*/started_at",
    "/copies/*/finished_at",
    "/copies/*/verified_at",
    "/copies/*/verified_how",
    "/copies/*/residual_until",
    "/copies/*/evidence",
    "/retained",
    "/skeleton",
    "/recipients",
    "/residuals",
    "/exceptions",
    "/verifier",
)
CLAIM = (
    "This document states what was erased, what was not, and how that was checked. It is designed to support an answer "
    "under data protection law and is no legal opinion."
)


class Signing(Protocol):
    """What signs a certificate."""

    @property
    def name(self) -> str:
        """The key's name."""
        ...

    @property
    def key_id(self) -> bytes:
        """The four bytes of its C2SP key id."""
        ...

    def sign(self, message: bytes | memoryview) -> bytes:
        """The Ed25519 signature; a view is read in place."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One event of the record: its header, why it is in the log, and the key of its one part."""

    entry: str
    index: int
    header: bytes
    inclusion: tuple[bytes, ...]
    part: bytes
    part_key: bytes

    def as_json(self) -> dict[str, Any]:
        """The event as a certificate shows it."""
        return {
            "entry": self.entry,
            "index": self.index,
            "header": _base64(self.header),
            "inclusion": [node.hex() for node in self.inclusion],
            "part": _base64(self.part),
            "part_key": _base64(self.part_key),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvidence:
    """Events proven against one signed checkpoint of the log whose key is `key`."""

    checkpoint: str
    key: str
    proofs: Listed
    """Each as `Proof.as_json` gives it."""


def scope_of(details: Mapping[str, Any]) -> dict[str, Any]:
    """What a request was limited to, without a name: `all`, some classes, one conversation, or one memory."""
    if "data_classes" in details:
        return {"of": "data_classes", "data_classes": list(details["data_classes"])}
    if "artifacts" in details:
        return {"of": "memory"}
    return {"of": "conversation"} if "scopes" in details else {"of": "all"}


def commitment(salt: bytes, identifier: str) -> str:
    """The salted commitment of a person's name; without the 32 random bytes it cannot be guessed."""
    return hashlib.sha256(_COMMITMENT + salt + identifier.encode()).hexdigest()


class Listed:
    """A long list of a certificate, taken in page by page and kept in canonical form alone, most of it in a file.

    The file has no name and ends with them; what is in it is what the certificate says.
    """

    def __init__(self) -> None:
        self._file = unnamed()

    def add(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Take in some values, in their order."""
        if values:
            comma = b"," if self._file.tell() else b""
            self._file.write(comma + canonical.dumps(list(values))[1:-1])

    def write_to(self, file: IO[bytes]) -> None:
        """Write the list in canonical form."""
        self._file.seek(0)
        file.write(b"[")
        shutil.copyfileobj(self._file, file, PIECE)
        file.write(b"]")

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the file back."""
        self._file.close()


class Lines(Listed):
    """The copies of a certificate, with the events that they lean on."""

    def __init__(self) -> None:
        super().__init__()
        self._evidence: dict[str, None] = {}
        self._unverified: list[int] = []

    def add(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Take in some copies, in their order."""
        for line in values:
            if line["state"] in GONE and line["verified_at"] is None:
                self._unverified.append(int(line["copy"]))
            self._evidence.update(dict.fromkeys(line["evidence"]))
        super().add(values)

    def write_to(self, file: IO[bytes]) -> None:
        """Write the list in canonical form. Raises: NotVerified where a copy counts as gone that nobody saw gone."""
        if self._unverified:
            raise NotVerified(self._unverified)
        super().write_to(file)

    def evidence_ids(self, *others: str | None) -> list[str]:
        """Every event that a certificate leans on, once, in a stable order."""
        return list(dict.fromkeys([*(entry for entry in others if entry), *self._evidence]))


def build(facts: Mapping[str, Any], evidence: LogEvidence, *, version: str) -> dict[str, Any]:
    """The certificate's value. `facts` are its other members, as JSON; a long list among them may be a `Listed`."""
    return {
        **facts,
        "schema": SCHEMA,
        "version": version,
        "claim": CLAIM,
        "marks": {"proven": list(PROVEN), "stated": list(STATED)},
        "log": {"checkpoint": evidence.checkpoint, "key": evidence.key, "proofs": evidence.proofs},
    }


def sign(certificate: Mapping[str, Any], signer: Signing) -> SignedFile:
    """The file: certificate and signature, canonical.

    What is signed is looked at in the file where it is written, and the file is made of it in place.

    Raises: NotVerified.
    """
    with ExitStack() as stack:
        file = stack.enter_context(unnamed())
        file.write(PREFIX)
        _write(certificate, file)
        signature = signer.sign(looked_at(file))
        file.seek(0, os.SEEK_END)
        key = f"{signer.name}+{signer.key_id.hex()}"
        file.write(b',"signature":' + canonical.dumps({"key": key, "ed25519": _base64(signature)}) + b"}")
        # The canonical form of the file holds that of the certificate as it was signed.
        start = len(PREFIX) - len(_BEFORE)
        file.seek(start)
        file.write(_BEFORE)
        stack.pop_all()
        return SignedFile(file, start)


def _write(value: Mapping[str, Any], file: IO[bytes]) -> None:
    """Write the canonical form of an object whose members, or theirs, may be a `Listed`."""
    separator = b"{"
    for name in sorted(value):
        file.write(separator + canonical.dumps(name) + b":")
        member = value[name]
        if isinstance(member, Listed):
            member.write_to(file)
        elif isinstance(member, dict) and any(isinstance(one, Listed) for one in member.values()):
            _write(member, file)
        else:
            file.write(canonical.dumps(member))
        separator = b","
    file.write(b"}")


def mark_of(path: Sequence[str], certificate: Mapping[str, Any]) -> str:
    """`proven` or `stated`, of the member at this path. Raises: KeyError for one that has no mark."""
    names = tuple(path)
    copy: Mapping[str, Any] = {}
    if names[0] == "copies" and len(names) > 1:
        copy = certificate["copies"][int(names[1])]
        names = ("copies", "*", *names[2:])
    marks = {f"/{'/'.join(names[:length])}" for length in range(1, len(names) + 1)}
    conditions = {"(gone)": copy.get("state") in GONE, "(keys)": copy.get("key") in ("destroyed", "final")}
    for pattern in PROVEN:
        where, _, condition = pattern.partition(" ")
        if where in marks and conditions.get(condition, not condition):
            return "proven"
    if marks & set(STATED):
        return "stated"
    raise KeyError("/".join(path))


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")

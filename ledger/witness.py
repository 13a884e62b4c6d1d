"""The client of a witness: offers a checkpoint, and believes the answer only by the pinned key.

Guarantees: what comes back is a cosignature by the pinned key over exactly the offered text, or an error. A redirect is
an error, an answer is read up to 64 KiB and only until a deadline, and nothing an answer says is repeated in a message.
"Refuses" (the witness saw another history) is never the same error as "does not answer".
Source: c2sp.org/tlog-witness, c2sp.org/tlog-cosignature.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from urllib.parse import urlsplit

from ledger.checkpoint import Checkpoint, NoteSignature, open_note, parse_note, with_signature
from ledger.errors import AnchorRefused, AnchorUnavailable, BadSignature, MalformedAnchor, MalformedNote
from ledger.signing import Ed25519CosignatureVerifier, cosigned_at

DEADLINE_S = 20.0
STEP_S = 10.0
MAX_ANSWER = 64 * 1024
_OK, _CONFLICT, _UNPROCESSABLE = 200, 409, 422
_ADVICE = {
    400: "it finds the request malformed",
    403: "it does not know the key that signed; give its operator the log's vkey",
    404: "it does not witness this log; give its operator the log's vkey",
}
_SIZE = re.compile(rb"(0|[1-9][0-9]{0,18})\n?")

Proof = Callable[[int], Sequence[bytes]]
"""Gives the consistency proof from a size to the offered one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessAddress:
    """Where a witness listens, and the key it signs with. `shown` is the address without the key."""

    secure: bool
    host: str
    port: int
    path: str
    verifier: Ed25519CosignatureVerifier

    @property
    def shown(self) -> str:
        """The address, as settings write it, without the key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"witness+http{'s' if self.secure else ''}://{host}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosigned:
    """A checkpoint note that carries the witness's line too, and when the witness says it saw it."""

    note: bytes
    at: datetime


def parse_witness(text: str) -> WitnessAddress:
    """Return the witness in `witness+http[s]://host[:port][/path]#VKEY`. Raises: MalformedAnchor."""
    address, _, pinned = text.partition("#")
    try:
        parts = urlsplit(address.removeprefix("witness+"))
        port = parts.port
        verifier = Ed25519CosignatureVerifier.from_vkey(pinned)
    except MalformedNote as error:
        raise MalformedAnchor(f"the key after # is not a witness's vkey ({error.reason})") from error
    except ValueError as error:
        raise MalformedAnchor("the address of the witness is not a URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise MalformedAnchor("expected witness+http://host:port/path#VKEY, without user and query")
    secure = parts.scheme == "https"
    return WitnessAddress(
        secure=secure,
        host=parts.hostname,
        port=port or (443 if secure else 80),
        path=parts.path.rstrip("/"),
        verifier=verifier,
    )


def offer(witness: WitnessAddress, note: bytes, checkpoint: Checkpoint, *, known: int, proof: Proof) -> Cosigned:
    """Return the note with the witness's cosignature. `known` is the size it had last; a wrong one costs a second try.

    Raises: AnchorRefused when the witness has seen another or a longer history, AnchorUnavailable for all else.
    """
    status, answer = _post(witness, _request(note, min(known, checkpoint.size), checkpoint, proof))
    if status == _CONFLICT:
        size = _size_of(answer)
        if size > checkpoint.size:
            raise AnchorRefused(
                f"the witness has signed size {size}, this log has {checkpoint.size}: it is rolled back", size=size
            )
        status, answer = _post(witness, _request(note, size, checkpoint, proof))
    if status == _UNPROCESSABLE:
        raise AnchorRefused(
            f"the witness has signed a history that size {checkpoint.size} does not extend: the log is forked",
            size=checkpoint.size,
        )
    if status == _CONFLICT:
        raise AnchorUnavailable("somebody else moved the witness at the same time")
    if status != _OK:
        raise AnchorUnavailable(_ADVICE.get(status, f"the witness answered status {status}"))
    return cosigned(note, answer, witness.verifier)


def cosigned(note: bytes, answer: bytes, verifier: Ed25519CosignatureVerifier) -> Cosigned:
    """Return the note with the pinned key's line out of an answer. Raises: AnchorUnavailable."""
    text = parse_note(note).text
    try:
        lines = parse_note(f"{text}\n".encode() + answer).signatures
        mine = _line_of(lines, verifier)
        whole = with_signature(note, mine)
        open_note(whole, [verifier])
        return Cosigned(note=whole, at=cosigned_at(mine.signature, name=mine.name))
    except (MalformedNote, BadSignature) as error:
        raise AnchorUnavailable(f"the answer is no cosignature by the pinned key ({error.reason})") from error


def _line_of(lines: Sequence[NoteSignature], verifier: Ed25519CosignatureVerifier) -> NoteSignature:
    for line in lines:
        if (line.name, line.key_id) == (verifier.name, verifier.key_id):
            return line
    reason = "the pinned key did not sign"
    raise BadSignature(reason, name=verifier.name)


def _request(note: bytes, old: int, checkpoint: Checkpoint, proof: Proof) -> bytes:
    path = proof(old) if 0 < old < checkpoint.size else ()
    lines = [f"old {old}\n", *(f"{b64encode(node).decode()}\n" for node in path), "\n"]
    return "".join(lines).encode() + note


def _size_of(answer: bytes) -> int:
    match = _SIZE.fullmatch(answer)
    if match is None:
        raise AnchorUnavailable("the witness answered 409 without its size")
    return int(match[1])


def _post(witness: WitnessAddress, body: bytes) -> tuple[int, bytes]:
    return exchange(witness, f"{witness.path}/add-checkpoint", body, "text/plain")


class Address(Protocol):
    """Where a party listens."""

    @property
    def secure(self) -> bool:
        """Whether by TLS."""

    @property
    def host(self) -> str:
        """Its host."""

    @property
    def port(self) -> int:
        """Its port."""


def exchange(party: Address, path: str, body: bytes, media: str) -> tuple[int, bytes]:
    """Return status and body of one POST. Raises: AnchorUnavailable. http.client follows no redirect."""
    if party.secure:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            party.host, party.port, timeout=STEP_S, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(party.host, party.port, timeout=STEP_S)
    # A step's timeout starts anew with every byte; this ends a witness that drips.
    ender = threading.Timer(DEADLINE_S, _end, [connection])
    ender.daemon = True
    ender.start()
    try:
        connection.request("POST", path, body, {"content-type": media})
        response = connection.getresponse()
        return response.status, _read(response)
    except (OSError, http.client.HTTPException) as error:
        raise AnchorUnavailable(f"the other party does not answer ({type(error).__name__})") from error
    finally:
        ender.cancel()
        connection.close()


def _end(connection: http.client.HTTPConnection) -> None:
    with contextlib.suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)


def _read(response: http.client.HTTPResponse) -> bytes:
    data = b""
    while piece := response.read1(MAX_ANSWER + 1 - len(data)):
        data += piece
        if len(data) > MAX_ANSWER:
            raise AnchorUnavailable(f"the other party answers more than {MAX_ANSWER} bytes")
    return data

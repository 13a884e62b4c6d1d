"""Checks a certificate offline: no server, no database, no network.

 1. The file has one reading: strict JSON (`erasure.strict_json`); white space and the order of members do not count.
 2. The certificate's signature over its canonical bytes (RFC 8785), by the key that the caller pinned.
 3. The checkpoint's signature, by a log key that the caller pinned, else by the one inside (reported as not pinned).
 4. Each event: its header is canonical, stands in the tree of that checkpoint, and commits to the sealed part, which
    the disclosed part key opens to the event's body.
 5. What the certificate claims equals what the events say: the request, the plan, the approvals, every key that went,
    every copy's state and level, and their number.
 6. The state follows from the copies: nothing counts as completed that is open, failed or below its level.

Guarantees: raises at the first thing that does not hold; what it returns is what was proven, in words. It does not know
whether the operator's log was shown alike to everybody; pinning the log's key and comparing checkpoints does that.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

from erasure.canonical_file import canonical_document
from erasure.certificate import PREFIX, PROVEN, SCHEMA, STATED, commitment
from erasure.errors import BadPin, ReportError
from erasure.rendering.opened import ReadLines
from erasure.request import GONE, CopyFact, State, completion
from erasure.signed_file import Readable, SignedFile
from erasure.strict_json import canonical, parse
from ledger.checkpoint import Checkpoint, parse_checkpoint, verify_note
from ledger.entry import Kind, decode_header, header_hash
from ledger.errors import LedgerError
from ledger.merkle import verify_inclusion
from ledger.signing import Ed25519Verifier, verifier_from_vkey
from vault.envelope import unseal_with_part_key
from vault.errors import VaultError
from vault.packing import unpack

_COMPARED = frozenset({
    Kind.REQUEST_RECEIVED, Kind.REQUEST_PLANNED, Kind.REQUEST_APPROVED, Kind.REQUEST_STATE, Kind.FENCE_SET,
    Kind.KEY_DESTROYING, Kind.CERTIFICATE_ISSUED,
})  # fmt: skip
"""The kinds of events whose bodies are compared with what a certificate claims; others only show whose they are."""
_STANDING = ("state", "level", "key")
_WINDOW = re.compile(r"([0-9]{1,19})-([0-9]{1,19})?")
_UNSEEN = dict.fromkeys((0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF))
"""Characters that a page may hold between others for its line breaks: soft hyphen, zero-width ones, byte order mark."""
MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    entry: str
    index: int
    kind: str
    body: Mapping[str, Any]


class _Seen:
    """What the events say last of each copy of a request; most stand alike, and each standing is held once."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Any, ...]] = {}
        self._alike: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def add(self, event: _Event) -> None:
        """Take in an event that verified copies, in any order."""
        for line in event.body["copies"]:
            number, standing = line["copy"], (event.index, event.entry, *(line.get(name) for name in _STANDING))
            if self._last.get(number, standing)[0] <= event.index:
                self._last[number] = self._alike.setdefault(standing, standing)

    def of(self, number: int) -> tuple[str, Mapping[str, Any]]:
        """The event that verified a copy last, and how it stood; nothing where none did."""
        if number not in self._last:
            return "", {}
        _, entry, *standing = self._last[number]
        return entry, dict(zip(_STANDING, standing, strict=True))


def check(
    report: Readable, certificate_vkey: str | Sequence[str], log_vkey: str | Sequence[str] | None = None
) -> list[str]:
    """What was proven, a sentence each. Raises: ReportError naming the place that does not hold.

    Of several keys, of certificates or of the log, the one that the certificate names counts. A key that was rotated or
    revoked is written with its window, `VKEY 0-40` (the list of keys shows it): a checkpoint counts that lies in it.
    """
    document, signed = _parse(report)  # 1
    certificate = _member(document, "certificate", dict, "")
    pins = [certificate_vkey] if isinstance(certificate_vkey, str) else list(certificate_vkey)
    window = _check_signature(document, certificate, signed, pins)  # 2
    log = _member(certificate, "log", dict, "/certificate")
    logs = [log_vkey] if isinstance(log_vkey, str) else list(log_vkey or ())
    checkpoint = _checkpoint(log, logs)  # 3
    _check_window(window, checkpoint.size)
    proofs = _member(log, "proofs", (list, ReadLines), "/certificate/log")
    events, seen = _events(proofs, checkpoint, certificate.get("request"))  # 4
    proven = _guard(lambda: _claims(certificate, events, seen))  # 5
    _guard(lambda: _check_state(certificate))  # 6
    trust = "the pinned log key" if logs else "the log key inside, which is not pinned"
    return [
        "the file is unaltered and signed by the pinned certificate key",
        f"the checkpoint of size {checkpoint.size} is signed by {trust}",
        f"{len(events)} events stand in the log under that checkpoint and were opened",
        *proven,
    ]


def document_in(report: Readable) -> dict[str, Any]:
    """The certificate and its signature as they are, not checked; long lists are read as they are looked at.

    Raises: ReportError for what is no such document, or has two readings.
    """
    return _parse(report)[0]


def require_keys(certificate_vkeys: Sequence[str], log_vkeys: Sequence[str] = ()) -> None:
    """Return when these are keys that a certificate could be checked with. Raises: BadPin naming the one that is none.

    A caller's own mistake is told apart from a certificate that does not hold.
    """
    for what, pins in (("the certificate key", certificate_vkeys), ("the log key", log_vkeys)):
        for pin in pins:
            try:
                _pinned(pin)
            except (LedgerError, ReportError) as error:
                raise BadPin(what, getattr(error, "detail", str(error))) from error


def check_opening(report: Readable, opening: bytes) -> str:
    """That a letter's names and salts open the commitments of a checked certificate, in words. Raises: ReportError."""
    told = parse(opening)
    try:
        lines = [(bytes.fromhex(line["salt"]), str(line["subject"])) for line in told["openings"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ReportError("", "the letter holds no opening") from error
    certificate = _parse(report)[0]["certificate"]
    shown = certificate["subject_commitments"]
    opened = {commitment(salt, subject) for salt, subject in lines}
    if not opened or not opened <= set(shown):
        raise ReportError("/certificate/subject_commitments", "the letter opens none of them, or others")
    return f"the letter opens {len(opened)} of {len(shown)} names: the certificate is about the person of the letter"


def _parse(report: Readable) -> tuple[dict[str, Any], memoryview | None]:
    """The document, and what was signed where it lies in the file so: such a one is never in memory whole."""
    if len(report) > MAX_BYTES:
        raise ReportError("", f"the file has {len(report)} bytes, at most {MAX_BYTES} are read")
    found = canonical_document(report)
    document, signed = (parse(bytes(report)), None) if found is None else found
    if not isinstance(document, dict) or set(document) != {"certificate", "signature"}:
        raise ReportError("", "expected certificate and signature")
    return document, signed


_Window = tuple[int, int | None]


def _pinned(pin: str) -> tuple[Ed25519Verifier, _Window]:
    text, window = _split(pin)
    return Ed25519Verifier.from_vkey(text), window


def _split(pin: str) -> tuple[str, _Window]:
    """A vkey, with the window of tree sizes behind it if there is one, without what pages put between."""
    words = pin.translate(_UNSEEN).split()
    window = _WINDOW.fullmatch(words[-1]) if len(words) > 1 else None
    text = "".join(words[:-1] if window else words)
    if window is None and len(words) > 1:
        _check_no_window(words)
    span = (int(window[1]), int(window[2]) if window[2] else None) if window else (0, None)
    return text, span


def _check_no_window(words: Sequence[str]) -> None:
    """A key that was copied in pieces is one when they are put together; a key and something else is not."""
    try:
        Ed25519Verifier.from_vkey("".join(words))
    except LedgerError:
        detail = "behind the key stands no window of sizes such as 0-40"
        raise ReportError("/signature/key", detail) from None


def _check_window(window: _Window, size: int, place: str = "/signature/key", what: str = "certificates") -> None:
    """A stolen key that was revoked signs nothing new: what it signs needs a checkpoint of its time."""
    first, last = window
    if size < first or (last is not None and size > last):
        end = "now" if last is None else str(last)
        detail = f"this key signs {what} of tree sizes {first} to {end}, this one is of size {size}: it was revoked"
        raise ReportError(place, detail)


def _check_signature(
    document: Mapping[str, Any], certificate: Mapping[str, Any], signed: memoryview | None, pins: Sequence[str]
) -> _Window:
    signature = _member(document, "signature", dict, "")
    if set(signature) != {"key", "ed25519"}:
        raise ReportError("/signature", "expected key and ed25519")
    try:
        known = {
            f"{verifier.name}+{verifier.key_id.hex()}": (verifier, window) for verifier, window in map(_pinned, pins)
        }
        if signature["key"] not in known:
            raise ReportError("/signature/key", f"expected {' or '.join(known)}, got another")
        verifier, window = known[signature["key"]]
        proof = _bytes(signature["ed25519"], "/signature/ed25519")
        if signed is None:
            verifier.verify(PREFIX + canonical(dict(certificate)), proof)
        else:
            with SignedFile.of([PREFIX, signed]) as file:
                verifier.verify(file.view(), proof)
    except LedgerError as error:
        raise ReportError("/signature", str(error)) from error
    if certificate.get("schema") != SCHEMA:
        raise ReportError("/certificate/schema", f"expected {SCHEMA}")
    return window


def _checkpoint(log: Mapping[str, Any], pins: Sequence[str]) -> Checkpoint:
    place = "/certificate/log/checkpoint"
    note, inside = _member(log, "checkpoint", str, "/certificate/log"), _member(log, "key", str, "/certificate/log")
    known = dict(map(_split, pins))
    if known and inside not in known:
        detail = (
            "the log key inside is not the pinned one" if len(known) == 1 else "the log key inside is none of those"
        )
        raise ReportError("/certificate/log/key", detail)
    try:
        found = parse_checkpoint(verify_note(note.encode(), [verifier_from_vkey(inside)]))
    except LedgerError as error:
        raise ReportError(place, str(error)) from error
    if known:
        _check_window(known[inside], found.size, "/certificate/log/key", "checkpoints")
    return found


def _events(proofs: Iterable[Any], checkpoint: Checkpoint, request: Any) -> tuple[list[_Event], _Seen]:
    """The events, and what those that verified copies of the request say; their lists of copies are not kept beside."""
    events, seen = [], _Seen()
    for number, proof in enumerate(proofs):
        event = _event(proof, checkpoint, f"/certificate/log/proofs/{number}")
        if event.kind == Kind.COPY_VERIFIED and request in _whose(event):
            _guard(partial(seen.add, event))
        if event.kind not in _COMPARED:
            event = replace(event, body={name: event.body.get(name) for name in ("request", "owner")})
        events.append(event)
    return events, seen


def _whose(event: _Event) -> tuple[Any, Any]:
    return event.body.get("request"), event.body.get("owner")


def _event(proof: Any, checkpoint: Checkpoint, place: str) -> _Event:
    if not isinstance(proof, dict) or set(proof) != {"entry", "index", "header", "inclusion", "part", "part_key"}:
        raise ReportError(place, "not a proof")
    header_bytes = _bytes(proof["header"], f"{place}/header")
    part = _bytes(proof["part"], f"{place}/part")
    try:
        header = decode_header(header_bytes)
        inclusion = [_node(node) for node in proof["inclusion"]]
        verify_inclusion(proof["index"], checkpoint.size, header_hash(header_bytes), inclusion, checkpoint.root)
    except (LedgerError, ValueError, TypeError) as error:
        raise ReportError(place, f"the event is not in the log: {error}") from error
    if header.id != proof["entry"]:
        raise ReportError(f"{place}/entry", "the header is another entry's")
    _check_part(header.parts, part, place)
    try:
        body = json.loads(unpack(unseal_with_part_key(_bytes(proof["part_key"], f"{place}/part_key"), part)))
    except (VaultError, ValueError) as error:
        raise ReportError(f"{place}/part", f"the event does not open: {type(error).__name__}") from error
    if not isinstance(body, dict):
        raise ReportError(f"{place}/part", "the event holds no object")
    return _Event(entry=header.id, index=proof["index"], kind=header.kind, body=body)


def _node(text: str) -> bytes:
    node = bytes.fromhex(text)
    if node.hex() != text:
        message = "a node is not lower-case hexadecimal"
        raise ValueError(message)
    return node


def _check_part(parts: Sequence[Any], part: bytes, place: str) -> None:
    if len(parts) != 1 or parts[0].length != len(part) or parts[0].sha256 != sha256(part).digest():
        raise ReportError(f"{place}/part", "the header commits to other bytes")


def _claims(certificate: Mapping[str, Any], events: Sequence[_Event], seen: _Seen) -> list[str]:
    if certificate["marks"] != {"proven": list(PROVEN), "stated": list(STATED)}:
        raise ReportError("/certificate/marks", "claims another division into proven and stated than this checker's")
    request = certificate["request"]
    ordered = sorted(events, key=lambda event: event.index)
    mine = [event for event in ordered if request in _whose(event)]
    if len({event.entry for event in events}) != len(events):
        raise ReportError("/certificate/log/proofs", "an event is shown twice")
    _check_receipt(certificate, mine)
    _check_approval(certificate, mine)
    _check_keys(certificate, mine)
    gone = _check_copies(certificate, {event.entry for event in mine}, seen)
    counted = _check_count(certificate, mine)
    return [
        "the request was received when and as stated",
        f"plan {certificate['plan_hash']} was recorded before it was approved",
        f"{gone} copies were recorded as verified in the state and at the level stated",
        counted,
        *_check_earlier(certificate, mine),
    ]


def _check_earlier(certificate: Mapping[str, Any], events: Sequence[_Event]) -> list[str]:
    """The certificate that is superseded was issued for the same request, where the event that issued it is shown.

    A certificate from before that was shown has it stated alone, and so has one whose predecessor's event a restored
    database does not name; a checker from before takes the event for one more of the request.
    """
    earlier = certificate["supersedes"]
    issued = [event.body.get("sha256") for event in events if event.kind == Kind.CERTIFICATE_ISSUED]
    if not issued:
        return []
    if earlier is None or earlier not in issued:
        raise ReportError("/certificate/supersedes", "the record holds no such certificate of this request")
    return [f"the certificate that this one supersedes, {earlier}, was issued for the same request"]


def _check_receipt(certificate: Mapping[str, Any], events: Sequence[_Event]) -> None:
    received = _only(events, Kind.REQUEST_RECEIVED)
    for name in ("right", "scope", "regulation", "received_at"):
        if received.body.get(name) != certificate[name]:
            raise ReportError(f"/certificate/{name}", "the record says otherwise")


def _check_approval(certificate: Mapping[str, Any], events: Sequence[_Event]) -> None:
    planned = [event for event in events if event.kind == Kind.REQUEST_PLANNED]
    if not planned or planned[-1].body.get("plan_hash") != certificate["plan_hash"]:
        raise ReportError("/certificate/plan_hash", "the record holds another plan")
    approved = {event.entry: event for event in events if event.kind == Kind.REQUEST_APPROVED}
    if not certificate["approvals"]:
        raise ReportError("/certificate/approvals", "nobody approved")
    for number, line in enumerate(certificate["approvals"]):
        place = f"/certificate/approvals/{number}"
        event = approved.get(line["entry"])
        if event is None or event.index < planned[-1].index:
            raise ReportError(place, "this approval of this plan is not in the record")
        for name in ("by", "at"):
            if event.body.get(name) != line[name]:
                raise ReportError(f"{place}/{name}", "the record says otherwise")
        if event.body.get("plan_hash") != certificate["plan_hash"]:
            raise ReportError(place, "another plan was approved")
        if event.body.get("approval") != certificate["approval"]:
            raise ReportError("/certificate/approval", "the record says otherwise")
    if not any(event.kind == Kind.FENCE_SET for event in events):
        raise ReportError("/certificate/log/proofs", "no fence is in the record")


def _check_keys(certificate: Mapping[str, Any], events: Sequence[_Event]) -> None:
    going = {key for event in events if event.kind == Kind.KEY_DESTROYING for key in event.body["keys"]}
    for number, copy in enumerate(certificate["copies"]):
        if copy["kind"] == "key" and copy["state"] in GONE and copy["id"] not in going:
            raise ReportError(f"/certificate/copies/{number}/id", "the record names no such key as destroyed")


def _check_copies(certificate: Mapping[str, Any], shown: Collection[str], seen: _Seen) -> int:
    """Each copy that counts as gone stands so in the last event that verified it; returns how many."""
    gone = 0
    for number, copy in enumerate(certificate["copies"]):
        if copy["state"] not in GONE:
            continue
        gone += 1
        place = f"/certificate/copies/{number}"
        entry, line = seen.of(copy["copy"])
        if entry not in copy["evidence"]:
            raise ReportError(f"{place}/evidence", "no event verifies this copy")
        if not all(one in shown for one in copy["evidence"]):
            raise ReportError(f"{place}/evidence", "names an event that is not shown")
        for name in ("state", "level", "key"):
            if line.get(name) != copy[name]:
                raise ReportError(f"{place}/{name}", "the record says otherwise")
    return gone


def _check_count(certificate: Mapping[str, Any], events: Sequence[_Event]) -> str:
    """The copies are as many as the record says; what named them, in words.

    After a restore of the database the plan is what was left to do, told in an event of its own.
    """
    last = [event for event in events if event.kind == Kind.REQUEST_PLANNED][-1]
    count, named = last.body.get("copies", 0), "the plan and its additions named"
    for event in events:
        if event.kind == Kind.REQUEST_STATE and "lines" in event.body and event.index > last.index:
            last, count = event, event.body["lines"]
            named = "were left to do when the record was applied to a restored database, and additions since"
    later = [event for event in events if event.kind == Kind.REQUEST_STATE and event.index > last.index]
    added = {ref for event in later for ref in event.body.get("addendum", ())}
    expected = count + len(added)
    numbers, unseen = set(), set(added)
    for copy in certificate["copies"]:
        numbers.add(copy["copy"])
        unseen.discard(copy["id"])
    if len(certificate["copies"]) != expected or len(numbers) != expected:
        raise ReportError("/certificate/copies", f"expected {expected} copies, got {len(certificate['copies'])}")
    if unseen:
        raise ReportError("/certificate/copies", "an addition of the record is missing")
    return f"{expected} copies are all that {named}"


def _check_state(certificate: Mapping[str, Any]) -> None:
    facts = (
        CopyFact(
            copy_no=copy["copy"],
            state=copy["state"],
            required=copy["required"],
            level=copy["level"],
            key_state=copy["key"],
            verified=copy["verified_at"] is not None,
        )
        for copy in certificate["copies"]
    )
    follows = completion(facts).state
    stated = certificate["state"]
    accepted = follows is State.PARTIALLY_FAILED and stated == State.COMPLETED_WITH_EXCEPTIONS
    if stated != follows and not (accepted and certificate["exceptions"]):
        raise ReportError("/certificate/state", f"the copies make it {follows}, got {stated}")


def _only(events: Sequence[_Event], kind: Kind) -> _Event:
    found = [event for event in events if event.kind == kind]
    if len(found) != 1:
        raise ReportError("/certificate/log/proofs", f"expected one {kind.value} event, got {len(found)}")
    return found[0]


def _guard(run: Callable[[], Any]) -> Any:
    """A certificate that lacks a member, or holds another type, is refused like a wrong one."""
    try:
        return run()
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ReportError("/certificate", f"malformed: {type(error).__name__}") from error


def _member(value: Mapping[str, Any], name: str, kind: type[Any] | tuple[type[Any], ...], place: str) -> Any:
    found = value.get(name)
    if not isinstance(found, kind):
        expected = kind[0] if isinstance(kind, tuple) else kind
        raise ReportError(f"{place}/{name}", f"expected {expected.__name__}")
    return found


def _bytes(text: Any, place: str) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise ReportError(place, "not base64") from error
    if b64encode(data).decode("ascii") != text:
        raise ReportError(place, "not canonical base64")
    return data

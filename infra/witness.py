"""A witness for somebody else's log, in one file: copy it to a machine that the log's operator does not control.

It signs a checkpoint only if that extends the last one it signed for this log, so that two histories, or a shortened
one, cannot both be shown with its signature. It needs Python 3.11 and the package `cryptography`, nothing else.

    python witness.py --key witness.key --new-key witness.example.org/one      makes the key, prints the public one
    python witness.py --key witness.key --state state --origin 'muniment/ab…=muniment/ab…+1c2d3e4f+AV…' --port 8812

`--origin ORIGIN=VKEY` may be given again: for other logs, and for the next key of the same log when it was rotated.

Guarantees: check and store are one step under a lock that a second process on the folder cannot have; a checkpoint is
on the disk, synced, before its signature leaves this process, so a kill at any instant leaves no signature over what is
not remembered. Does not fetch logs, does not look at entries, speaks no TLS (put a proxy before it).

Source: c2sp.org/tlog-witness, c2sp.org/tlog-cosignature (cosignature/v1), c2sp.org/signed-note, RFC 9162 §2.1.4.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ED25519 = 1
COSIGNATURE = 4
HASH_SIZE = 32
KEY_SIZE = 32
MAX_BODY = 64 * 1024
MAX_PROOF = 63
MAX_SIZE = (1 << 63) - 1
CONNECTIONS = 64
TIMEOUT_S = 10
SIZE_TYPE = "text/x.tlog.size"
TEXT_TYPE = "text/plain; charset=utf-8"
_SECRET = "PRIVATE+KEY"  # noqa: S105 (the first words of a key file)


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, text: str, content_type: str = TEXT_TYPE) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.content_type = content_type


# ── notes and keys ──


def key_id(name: str, algorithm: int, public: bytes) -> bytes:
    """The four bytes that tell keys of one name apart."""
    return sha256(f"{name}\n".encode() + bytes([algorithm]) + public).digest()[:4]


def vkey(name: str, algorithm: int, public: bytes) -> str:
    """The public key as text."""
    shown = b64encode(bytes([algorithm]) + public).decode()
    return f"{name}+{key_id(name, algorithm, public).hex()}+{shown}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKey:
    """A key that a log signs its checkpoints with."""

    name: str
    id: bytes
    public: Ed25519PublicKey


def parse_vkey(text: str) -> LogKey:
    """The log key in a vkey. Raises ValueError."""
    name, shown_id, encoded = text.strip().split("+", 2)
    raw = b64decode(encoded, validate=True)
    if len(raw) != KEY_SIZE + 1 or raw[0] != ED25519 or key_id(name, ED25519, raw[1:]).hex() != shown_id:
        message = "expected the vkey of an Ed25519 log key (type 0x01)"
        raise ValueError(message)
    return LogKey(name=name, id=bytes.fromhex(shown_id), public=Ed25519PublicKey.from_public_bytes(raw[1:]))


class Cosigner:
    """The witness's own key."""

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        self.name = name
        self._key = key
        self._public = key.public_key().public_bytes_raw()

    @property
    def vkey(self) -> str:
        """The public key, for the log's operator and for auditors."""
        return vkey(self.name, COSIGNATURE, self._public)

    def line(self, text: str, at: int) -> str:
        """The signature line that says: seen at this second of 1970."""
        signed = self._key.sign(f"cosignature/v1\ntime {at}\n{text}".encode())
        blob = key_id(self.name, COSIGNATURE, self._public) + at.to_bytes(8, "big") + signed
        return f"\u2014 {self.name} {b64encode(blob).decode()}\n"


def new_key(file: Path, name: str) -> Cosigner:
    """Makes the key file, readable by its owner only. Raises FileExistsError, ValueError for a bad name."""
    if not name or "+" in name or any(char.isspace() or char < " " for char in name):
        message = "a key name is not empty and has no space and no plus sign"
        raise ValueError(message)
    key = Ed25519PrivateKey.generate()
    raw = key.private_bytes_raw()
    shown_id = key_id(name, COSIGNATURE, key.public_key().public_bytes_raw()).hex()
    text = f"{_SECRET}+{name}+{shown_id}+{b64encode(bytes([COSIGNATURE]) + raw).decode()}\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    sync_folder(file.parent)
    return Cosigner(name, key)


def read_key(file: Path) -> Cosigner:
    """The key in a file. Raises OSError, ValueError."""
    secret, word, name, shown_id, encoded = file.read_text().strip().split("+", 4)
    raw = b64decode(encoded, validate=True)
    if f"{secret}+{word}" != _SECRET or len(raw) != KEY_SIZE + 1 or raw[0] != COSIGNATURE:
        message = "expected a key file of type 0x04 as --new-key makes it"
        raise ValueError(message)
    key = Ed25519PrivateKey.from_private_bytes(raw[1:])
    if key_id(name, COSIGNATURE, key.public_key().public_bytes_raw()).hex() != shown_id:
        message = "the key does not fit its id"
        raise ValueError(message)
    return Cosigner(name, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a log signed: its note's text, and the signature lines of the log's own keys."""

    origin: str
    size: int
    root: bytes
    text: str
    lines: str


def parse_checkpoint(note: str) -> tuple[Checkpoint, list[tuple[str, bytes, bytes]]]:
    """The checkpoint in a note and its signatures (name, key id, signature), none checked. Raises ValueError."""
    text, separator, tail = note.rpartition("\n\n")
    text += "\n"
    origin, size, root, *more = text.split("\n")[:-1]
    if not separator or not tail.endswith("\n") or not origin or "" in more:
        message = "not a signed checkpoint"
        raise ValueError(message)
    if any(char < " " and char != "\n" for char in note) or f"{int(size)}" != size or not 0 <= int(size) <= MAX_SIZE:
        message = "not a canonical checkpoint"
        raise ValueError(message)
    raw = b64decode(root, validate=True)
    if len(raw) != HASH_SIZE or b64encode(raw).decode() != root:
        message = "not a root hash"
        raise ValueError(message)
    signatures = []
    for line in tail[:-1].split("\n"):
        dash, name, encoded = line.split(" ")
        blob = b64decode(encoded, validate=True)
        if dash != "\u2014" or not name or len(blob) <= 4:  # noqa: PLR2004 (the key id)
            message = "not a signature line"
            raise ValueError(message)
        signatures.append((name, blob[:4], blob[4:]))
    return Checkpoint(origin=origin, size=int(size), root=raw, text=text, lines=tail), signatures


def verified(note: str, keys: Sequence[LogKey]) -> Checkpoint:
    """The checkpoint that one of the keys signed and none signed wrongly, with their lines only. Raises Refused 403."""
    checkpoint, signatures = parse_checkpoint(note)
    by = {(key.name, key.id): key for key in keys}
    good = []
    for line, (name, number, signature) in zip(checkpoint.lines[:-1].split("\n"), signatures, strict=True):
        key = by.get((name, number))
        if key is None:
            continue
        try:
            key.public.verify(signature, checkpoint.text.encode())
        except InvalidSignature:
            raise Refused(403, "a signature by a known key is wrong\n") from None
        good.append(f"{line}\n")
    if not good:
        raise Refused(403, "not signed by a key of this log\n")
    return Checkpoint(
        origin=checkpoint.origin,
        size=checkpoint.size,
        root=checkpoint.root,
        text=checkpoint.text,
        lines="".join(good),
    )


def node(left: bytes, right: bytes) -> bytes:
    """The hash of an interior node. Source: RFC 9162 §2.1.1."""
    return sha256(b"\x01" + left + right).digest()


def extends(old: Checkpoint, new: Checkpoint, proof: Sequence[bytes]) -> bool:
    """Whether the proof shows that the old tree is a prefix of the new one. Source: RFC 9162 §2.1.4.2."""
    if old.size in (0, new.size):
        return not proof and (old.size == 0 or old.root == new.root)
    path = [old.root, *proof] if old.size & (old.size - 1) == 0 else list(proof)
    if not proof:
        return False
    fn, sn = old.size - 1, new.size - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    first = second = path[0]
    for hash_ in path[1:]:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            first, second = node(hash_, first), node(hash_, second)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            second = node(second, hash_)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and first == old.root and second == new.root


# ── the state ──


def sync_folder(folder: Path) -> None:
    """Makes what was created or renamed in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(slots=True, kw_only=True)
class Witness:
    """The logs this witness knows, and the last checkpoint it signed of each."""

    cosigner: Cosigner
    folder: Path
    logs: dict[str, list[LogKey]]
    _locks: dict[str, threading.Lock] = field(default_factory=dict)
    _lock_file: Any = None

    def open(self) -> None:
        """Takes the folder for this process. Raises BlockingIOError when another one has it, ValueError for damage."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_file = (self.folder / "lock").open("a")
        fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._locks = {origin: threading.Lock() for origin in self.logs}
        for origin in self.logs:
            self.latest(origin)  # a state that cannot be read stops the start: never begin again at nothing

    def file(self, origin: str) -> Path:
        """Where the last checkpoint of a log lies."""
        return self.folder / f"{sha256(origin.encode()).hexdigest()}.checkpoint"

    def latest(self, origin: str) -> Checkpoint | None:
        """The last checkpoint signed for this log. Raises OSError, ValueError."""
        try:
            note = self.file(origin).read_bytes().decode()
        except FileNotFoundError:
            return None
        checkpoint, _ = parse_checkpoint(note)
        if checkpoint.origin != origin:
            message = f"the state of {origin} holds another log's checkpoint"
            raise ValueError(message)
        return checkpoint

    def add(self, body: bytes, at: int) -> str:
        """The signature line over the checkpoint in a request. Raises Refused."""
        old_size, proof, note = parse_request(body)
        try:
            origin = parse_checkpoint(note)[0].origin
        except ValueError as error:
            raise Refused(400, f"{error}\n") from None
        keys = self.logs.get(origin)
        if keys is None:
            raise Refused(404, "this witness does not know the log\n")
        new = verified(note, keys)
        if old_size > new.size:
            raise Refused(400, "the old size is larger than the checkpoint's\n")
        with self._locks[origin]:
            return self._check_and_store(old_size, proof, new, at)

    def _check_and_store(self, old_size: int, proof: Sequence[bytes], new: Checkpoint, at: int) -> str:
        latest = self.latest(new.origin)
        known = latest.size if latest is not None else 0
        if old_size != known:
            raise Refused(409, f"{known}\n", SIZE_TYPE)
        old = latest or Checkpoint(origin=new.origin, size=0, root=b"", text="", lines="")
        if not extends(old, new, proof):
            raise Refused(422, "the checkpoint does not extend the last one\n")
        line = self.cosigner.line(new.text, at)
        # Killed before the rename: the old checkpoint stands, and this signature was never shown to anybody.
        # Killed after it: the new one stands, and the log asks again with its size.
        self._store(new.origin, f"{new.text}\n{new.lines}{line}".encode())
        return line

    def _store(self, origin: str, data: bytes) -> None:
        target = self.file(origin)
        temporary = target.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(target)
        sync_folder(self.folder)


def parse_request(body: bytes) -> tuple[int, list[bytes], str]:
    """The old size, the proof and the note of an add-checkpoint request. Raises Refused 400."""
    try:
        head, separator, note = body.decode().partition("\n\n")
        first, *lines = head.split("\n")
        word, size = first.split(" ")
        proof = [b64decode(line, validate=True) for line in lines]
        well_formed = (
            separator
            and word == "old"
            and size.isascii()
            and size.isdigit()
            and f"{int(size)}" == size
            and len(proof) <= MAX_PROOF
            and all(len(hash_) == HASH_SIZE for hash_ in proof)
        )
    except ValueError:
        well_formed = False
        size, proof, note = "0", [], ""
    if not well_formed:
        raise Refused(400, "expected: old SIZE, proof lines, an empty line, a checkpoint\n")
    return int(size), proof, note


# ── HTTP ──


class Server(ThreadingHTTPServer):
    """An HTTP server with a bound on open connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], witness: Witness) -> None:
        super().__init__(address, Handler)
        self.witness = witness
        self._free = threading.BoundedSemaphore(CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Waits for a free place, then answers in a thread."""
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class Handler(BaseHTTPRequestHandler):
    """POST /add-checkpoint and GET /<hex sha256(origin)>/checkpoint."""

    server_version = "muniment-witness/1"
    sys_version = ""
    timeout = TIMEOUT_S
    server: Server

    def do_POST(self) -> None:
        """Answers add-checkpoint."""
        if self.path != "/add-checkpoint":
            self._answer(404, "not found\n", TEXT_TYPE)
            return
        try:
            self._answer(200, self.server.witness.add(self._body(), int(time.time())), TEXT_TYPE)
        except Refused as refused:
            self._answer(refused.status, refused.text, refused.content_type)
        except (OSError, ValueError) as error:
            print(f"witness: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            self._answer(500, "the witness cannot read or write its state\n", TEXT_TYPE)

    def do_GET(self) -> None:
        """Answers the last checkpoint of a log, with the witness's signature."""
        witness = self.server.witness
        wanted = {f"/{sha256(origin.encode()).hexdigest()}/checkpoint": origin for origin in witness.logs}
        origin = wanted.get(self.path)
        try:
            latest = witness.latest(origin) if origin is not None else None
        except (OSError, ValueError):
            self._answer(500, "the witness cannot read its state\n", TEXT_TYPE)
            return
        if latest is None:
            self._answer(404, "not found\n", TEXT_TYPE)
            return
        self._answer(200, f"{latest.text}\n{latest.lines}", TEXT_TYPE)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class names it)
        """Says nothing: who asked is nobody's business."""

    def _body(self) -> bytes:
        length = self.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            raise Refused(400, "a request has a Content-Length\n")
        if int(length) > MAX_BODY:
            raise Refused(400, f"a request has at most {MAX_BODY} bytes\n")
        body = self.rfile.read(int(length))
        if len(body) != int(length):
            raise Refused(400, "the request is cut off\n")
        return body

    def _answer(self, status: int, text: str, content_type: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


# ── the command ──


def logs_of(given: Sequence[str]) -> dict[str, list[LogKey]]:
    """The logs of `ORIGIN=VKEY` items. Raises ValueError."""
    found: dict[str, list[LogKey]] = {}
    for item in given:
        origin, _, text = item.partition("=")
        key = parse_vkey(text)
        if key.name != origin:
            message = f"the key of {origin} is named {key.name}"
            raise ValueError(message)
        found.setdefault(origin, []).append(key)
    return found


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(description="Witness somebody else's log.")
    parser.add_argument("--key", type=Path, required=True, help="file of the witness's private key")
    parser.add_argument("--new-key", metavar="NAME", help="make the key file, print the public key, and end")
    parser.add_argument("--state", type=Path, help="folder that remembers the last checkpoints; back it up")
    parser.add_argument("--origin", action="append", default=[], metavar="ORIGIN=VKEY", help="a log to witness")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8812, help="0 picks a free one")
    found = parser.parse_args(given)
    if not found.new_key and (found.state is None or not found.origin):
        parser.error("--state and at least one --origin are needed")
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Runs the witness until it is told to end; returns the exit code."""
    chosen = arguments(given)
    try:
        if chosen.new_key:
            print(new_key(chosen.key, chosen.new_key).vkey)
            return 0
        witness = Witness(cosigner=read_key(chosen.key), folder=chosen.state, logs=logs_of(chosen.origin))
        witness.open()
        server = Server((chosen.host, chosen.port), witness)
    except BlockingIOError:
        print(f"witness: another process has the folder {chosen.state}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"witness: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"witness {witness.cosigner.vkey}", flush=True)
    print(f"ready http://{chosen.host}:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A reader of a log that knows nothing but `docs/formats.md`: it imports none of our packages.

Naive on purpose: recursion as the RFC draws it, everything in memory. `Wrong` says where something is not as the page
says. It is the second opinion of the tests, and what somebody would write who has the page and the objects only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zstandard
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

HEADER = (
    "at", "class", "id", "kind", "parts", "position", "previous", "received", "recorder", "seq", "sources",
    "sources_root", "stream", "v",
)  # fmt: skip
PART = ("alg", "len", "obj", "off", "role", "sha256")
ENVELOPE = (
    "bytes", "checkpoint_digest", "checkpoint_size", "count", "envelope", "fence", "first", "frame", "log",
    "previous_count", "previous_digest", "previous_key", "v",
)  # fmt: skip
MAX_HEADER, MAX_ENVELOPE, MAX_HEADERS, MAX_INTEGER = 16_384, 4_096, 67_108_864, 2**53 - 1


class Wrong(Exception):
    """Something is not as the page says; the first words name the object."""


def require(condition: bool, where: str, what: str) -> None:
    if not condition:
        raise Wrong(f"{where}: {what}")


# ── bytes ──


def field(value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">I", len(data)) + data


def b64(text: str, where: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise Wrong(f"{where}: no base64") from None
    require(base64.b64encode(data).decode() == text, where, "base64 in another spelling")
    return data


def canonical(value: Any) -> bytes:
    """RFC 8785 of values without floats and with ASCII names."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def strict(data: bytes, members: Sequence[str], where: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        raise Wrong(f"{where}: no JSON") from None
    require(isinstance(value, dict) and list(value) == sorted(members), where, "other members than the page names")
    require(canonical(value) == data, where, "JSON in another spelling")
    return dict(value)


# ── the tree ──


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256().digest()
    split = 1 << ((len(leaves) - 1).bit_length() - 1)
    return hashlib.sha256(b"\x01" + root(leaves[:split]) + root(leaves[split:])).digest()


def tile_names(size: int) -> Iterator[tuple[int, int, str]]:
    """Level, number and name of each full tile."""
    level = 0
    while count := size >> (8 * (level + 1)):
        for number in range(count):
            digits = f"{number:03d}" if number < 1000 else f"{number:0{-(-len(str(number)) // 3) * 3}d}"
            groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
            yield level, number, f"tile/{level}/" + "/".join(["x" + group for group in groups[:-1]] + groups[-1:])
        level += 1


# ── notes ──


@dataclass(frozen=True)
class Key:
    """A vkey."""

    name: str
    id: bytes
    public: bytes


def key_id(name: str, kind: int, public: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]


def vkey(text: str) -> Key:
    name, shown, encoded = text.split("+", 2)
    raw = b64(encoded, text)
    require(raw[0] == 1 and key_id(name, 1, raw[1:]).hex() == shown, text, "no vkey of Ed25519")
    return Key(name, bytes.fromhex(shown), raw[1:])


def open_note(data: bytes, keys: Sequence[Key], where: str) -> list[str]:
    """The lines of a note that these keys signed, at least one of them, none badly, and nobody else."""
    require(len(data) <= 524_288, where, "too large a note")
    try:
        whole = data.decode()
    except UnicodeDecodeError:
        raise Wrong(f"{where}: no UTF-8") from None
    text, found, tail = whole.rpartition("\n\n")
    require(bool(found) and tail.endswith("\n"), where, "no signatures")
    good = 0
    for line in tail[:-1].split("\n"):
        parts = line.split(" ")
        require(len(parts) == 3 and parts[0] == "\u2014", where, "no signature line")
        raw = b64(parts[2], where)
        require((parts[1], raw[:4]) in [(key.name, key.id) for key in keys], where, "a line by another key")
        for key in keys:
            if (key.name, key.id) == (parts[1], raw[:4]):
                try:
                    Ed25519PublicKey.from_public_bytes(key.public).verify(raw[4:], (text + "\n").encode())
                except InvalidSignature:
                    raise Wrong(f"{where}: a bad signature") from None
                good += 1
    require(good > 0, where, "no key that is known signed it")
    return text.split("\n")


# ── the log ──


@dataclass(frozen=True)
class Entry:
    """A header, its bytes and where it stands."""

    index: int
    raw: bytes
    header: Mapping[str, Any]
    batch: str


class Reader:
    """One log over two stores, each a function from a name below the log to its bytes."""

    def __init__(
        self, log: str, get: Callable[[str], bytes], names: Callable[[str], Sequence[str]], keys: Sequence[str]
    ) -> None:
        self.log, self.get, self.names = log, get, names
        self.keys = [vkey(text) for text in keys]

    def entries(self) -> list[Entry]:
        """Every entry, each batch and header checked against the one before."""
        found: list[Entry] = []
        before: tuple[str, int, bytes] | None = None
        previous, fence = bytes(32), 0
        positions: dict[str, int] = {}
        ids: set[str] = set()
        for name in sorted(self.names("batch/")):
            data = self.get(name)
            envelope, headers = self._batch(name, data)
            require(name == f"batch/{len(found):020d}" and envelope["first"] == len(found), name, "not the next index")
            said = (envelope["previous_key"], envelope["previous_count"], envelope["previous_digest"])
            if before is None:
                require(said == (None, 0, None), name, "names something before the first")
            else:
                require(said[:2] == before[:2] and b64(said[2], name) == before[2], name, "another batch before it")
            require(envelope["fence"] >= fence, name, "an older fence")
            if envelope["checkpoint_size"]:
                note = self.get(f"checkpoint/{envelope['checkpoint_size']:020d}")
                digest = hashlib.sha256(note).digest()
                require(b64(envelope["checkpoint_digest"], name) == digest, name, "another checkpoint before it")
            for raw in headers:
                where = f"{name} entry {len(found)}"
                header = self._header(raw, where)
                require(header["previous"] == previous.hex(), where, "another header before it")
                require(header["position"] == positions.get(header["stream"], 0), where, "a gap in its stream")
                require(header["id"] not in ids, where, "an id for the second time")
                positions[header["stream"]] = header["position"] + 1
                ids.add(header["id"])
                previous = leaf_hash(raw)
                found.append(Entry(len(found), raw, header, name))
            before, fence = (name, len(headers), hashlib.sha256(data).digest()), envelope["fence"]
        return found

    def check(self) -> tuple[list[Entry], int]:
        """Every entry, and the size of the newest signed head; all heads and parts are as signed."""
        entries = self.entries()
        leaves = [leaf_hash(entry.raw) for entry in entries]
        newest = 0
        for name in sorted(self.names("checkpoint/")):
            origin, size, shown, *rest = open_note(self.get(name), self.keys, name)
            require((origin, rest) == (f"muniment/{self.log}", []), name, "another log's")
            newest = int(size)
            require(name == f"checkpoint/{newest:020d}" and newest <= len(entries), name, "of another size")
            require(b64(shown, name) == root(leaves[:newest]), name, "another root")
        for entry in entries:
            for part in entry.header["parts"]:
                self.ciphertext(entry, part)
        return entries, newest

    def ciphertext(self, entry: Entry, part: Mapping[str, Any]) -> bytes:
        """The sealed bytes of a part, which have the digest in the header."""
        data = self.get(part["obj"])[part["off"] : part["off"] + part["len"]]
        where = f"{part['obj']} entry {entry.index}"
        require(hashlib.sha256(data).hexdigest() == part["sha256"], where, "other bytes than the header names")
        return data

    def tiles(self, entries: Sequence[Entry], get: Callable[[str], bytes], signed: int) -> int:
        """How many full tiles lie in the unlocked store, each as the headers give it."""
        rows = [[leaf_hash(entry.raw) for entry in entries[:signed]]]
        count = 0
        for level, number, name in tile_names(signed):
            if level == len(rows):
                below = rows[-1]
                rows.append([root(below[at : at + 256]) for at in range(0, len(below) - len(below) % 256, 256)])
            require(get(name) == b"".join(rows[level][number * 256 : number * 256 + 256]), name, "other hashes")
            count += 1
        return count

    def _batch(self, name: str, data: bytes) -> tuple[dict[str, Any], list[bytes]]:
        if not data.startswith(b'{"bytes"'):
            return self._first_version(name, data)
        text, found, frame = data.partition(b"\n")
        require(bool(found) and len(text) <= MAX_ENVELOPE, name, "no envelope")
        sealed = text.endswith(b',"v":3}')
        envelope = strict(text, [one for one in ENVELOPE if sealed or one != "envelope"], name)
        if sealed:
            rest = {member: value for member, value in envelope.items() if member != "envelope"}
            digest = hashlib.sha256(canonical(rest)).digest()
            require(b64(envelope["envelope"], name) == digest, name, "another envelope")
        require((envelope["v"], envelope["log"]) == (3 if sealed else 2, self.log), name, "another version or log")
        require(b64(envelope["frame"], name) == hashlib.sha256(frame).digest(), name, "another frame")
        require(0 < envelope["bytes"] <= MAX_HEADERS, name, "too many bytes of headers")
        plain = zstandard.ZstdDecompressor().decompress(frame, max_output_size=envelope["bytes"])
        headers = plain.split(b"\n")
        require((len(plain), len(headers)) == (envelope["bytes"], envelope["count"]), name, "other counts")
        return envelope, headers

    def _first_version(self, name: str, data: bytes) -> tuple[dict[str, Any], list[bytes]]:
        members = [one for one in ENVELOPE if one not in ("bytes", "envelope", "frame")]
        envelope = strict(data, [*members, "headers"], name)
        require((envelope["v"], envelope["log"]) == (1, self.log), name, "another version or log")
        headers = [b64(text, name) for text in envelope["headers"]]
        require(len(headers) == envelope["count"], name, "other counts")
        return envelope, headers

    def _header(self, raw: bytes, where: str) -> dict[str, Any]:
        require(0 < len(raw) <= MAX_HEADER, where, "too large a header")
        header = strict(raw, HEADER, where)
        require(header["v"] == 1, where, "another version")
        for number in ("position", "sources"):
            require(type(header[number]) is int and 0 <= header[number] <= MAX_INTEGER, where, f"no number {number}")
        for part in header["parts"]:
            require(sorted(part) == sorted(PART), where, "other members of a part")
        return header


# ── what is sealed ──


def context(tenant: int, log: str, entry: str, role: str) -> bytes:
    return field(str(tenant)) + field(log) + field(entry) + field(role)


def part_key(key: bytes, salt: bytes, bound: bytes) -> bytes:
    label = b"c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM"
    return HKDFExpand(SHA512(), 76, label + b"\x00" + salt + bound).derive(key)


def joint(keys: Mapping[str, bytes]) -> bytes:
    if len(keys) == 1:
        return next(iter(keys.values()))
    names = b"".join(field(name) for name in sorted(keys))
    info = b"muniment/joint-prk/v1\x00" + struct.pack(">I", len(keys)) + names
    return HKDF(SHA512(), 32, None, info).derive(b"".join(keys[name] for name in sorted(keys)))


def open_sealed(key: bytes, data: bytes, bound: bytes, where: str) -> bytes:
    return open_part(part_key(key, data[:24], bound), data, where)


def open_part(opening: bytes, data: bytes, where: str) -> bytes:
    """The plaintext of one ciphertext under its part key."""
    require(hmac.compare_digest(opening[44:], data[24:56]), where, "another key or place")
    cipher, base, plain, at, number = AESGCM(opening[:32]), int.from_bytes(opening[32:44], "big"), b"", 56, 0
    while True:
        chunk = data[at : at + 16_400]
        try:
            piece = cipher.decrypt((base ^ number).to_bytes(12, "big"), chunk, None)
        except (InvalidTag, ValueError):
            raise Wrong(f"{where}: chunk {number} does not open") from None
        plain, at, number = plain + piece, at + 16_400, number + 1
        if len(piece) < 16_384:
            require(at >= len(data), where, "bytes behind the last chunk")
            return plain


def padded(size: int) -> int:
    e = size.bit_length() - 1
    low = e - ((e.bit_length() - 1) + 1)
    return -(-size >> low) << low if low > 0 else size


def body_of(plain: bytes, dictionary: bytes, where: str) -> bytes:
    """The body in what was sealed, of either version."""
    if plain[0] == 2:
        end = 5 + struct.unpack(">I", plain[1:5])[0]
        require(len(plain) == padded(end + -end % 8) and not any(plain[end:]), where, "not padded so")
        return plain[5:end]
    require(plain[0] == 1, where, "another version of a body")
    end = 37 + struct.unpack(">I", plain[33:37])[0]
    require(len(plain) == padded(end) and not any(plain[end:]), where, "not padded so")
    known = zstandard.ZstdCompressionDict(dictionary)
    body = zstandard.ZstdDecompressor(dict_data=known).decompress(plain[37:end], max_output_size=33_554_432)
    require(hashlib.sha256(body).digest() == plain[1:33], where, "another body than its digest")
    return body


# ── keys ──


def msgpack(data: bytes) -> Any:
    """A value of msgpack: what our objects use of it."""
    value, end = _unpacked(data, 0)
    require(end == len(data), "msgpack", "bytes behind the value")
    return value


def _unpacked(data: bytes, at: int) -> tuple[Any, int]:
    code = data[at]
    at += 1
    if code < 0x80:
        return code, at
    if code >= 0xE0:
        return code - 256, at
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at
    if 0xCC <= code <= 0xD3:
        form = ">" + "BHIQbhiq"[code - 0xCC]
        size = struct.calcsize(form)
        return struct.unpack_from(form, data, at)[0], at + size
    if code in (0xCA, 0xCB):
        form = ">f" if code == 0xCA else ">d"
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if 0x80 <= code <= 0x8F or code in (0xDE, 0xDF):
        count, at = _length(data, at, code, {0xDE: 2, 0xDF: 4}, code - 0x80)
        made = {}
        for _ in range(count):
            name, at = _unpacked(data, at)
            made[name], at = _unpacked(data, at)
        return made, at
    if 0x90 <= code <= 0x9F or code in (0xDC, 0xDD):
        count, at = _length(data, at, code, {0xDC: 2, 0xDD: 4}, code - 0x90)
        items = []
        for _ in range(count):
            item, at = _unpacked(data, at)
            items.append(item)
        return items, at
    if 0xA0 <= code <= 0xBF or code in (0xD9, 0xDA, 0xDB):
        size, at = _length(data, at, code, {0xD9: 1, 0xDA: 2, 0xDB: 4}, code - 0xA0)
        return data[at : at + size].decode(), at + size
    if code in (0xC4, 0xC5, 0xC6):
        size, at = _length(data, at, code, {0xC4: 1, 0xC5: 2, 0xC6: 4}, 0)
        return data[at : at + size], at + size
    # Extensions: only times, which nobody here looks at.
    sizes = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
    size, at = (sizes[code], at) if code in sizes else _length(data, at, code, {0xC7: 1, 0xC8: 2, 0xC9: 4}, 0)
    return data[at + 1 : at + 1 + size], at + 1 + size


def _length(data: bytes, at: int, code: int, sizes: Mapping[int, int], short: int) -> tuple[int, int]:
    if code not in sizes:
        return short, at
    size = sizes[code]
    return int.from_bytes(data[at : at + size], "big"), at + size


def index_lines(data: bytes, ids: Sequence[str], where: str) -> list[list[list[str]]]:
    """Of each entry the key ids of its parts."""
    require(data[:1] == b"\x02", where, "another version of index lines")
    digest, shared, which, digests, widths = msgpack(zstandard.ZstdDecompressor().decompress(data[1:]))
    require(digest == hashlib.sha256("\n".join(ids).encode()).digest(), where, "the lines of other entries")
    require(len(which) == len(widths) == len(ids) and sum(widths) == len(digests), where, "other counts")
    return [shared[number][5] for number in which]


def rows_object(data: bytes, journal_key: bytes, log: str, name: str) -> dict[str, Any]:
    """What an object of rows holds."""
    version, tenant, sealed = msgpack(data)
    require(version == 1, name, "another version")
    plain = open_sealed(journal_key, sealed, context(tenant, log, name, "journal"), name)
    return dict(msgpack(zstandard.ZstdDecompressor().decompress(plain)))


def unwrapped(group_key: bytes, tenant: int, row: Mapping[str, Any], wrapped: bytes) -> bytes:
    """A data key out of its row."""
    bound = b"data\x00" + struct.pack(">QQQ", tenant, row["group_no"], row["subject_id"])
    bound += bytes.fromhex(row["key_id"]).ljust(16, b"\0")
    bound += field(row["data_class"]) + field(row["month"]) + field(row["scope"]) + struct.pack(">I", row["epoch"])
    salt = wrapped[1:17]
    once = hmac.digest(group_key, b"muniment/wrap/v1\x00" + salt + bound + b"\x01", "sha256")
    require(wrapped[:1] == b"\x01", row["key_id"], "another form of wrapped key")
    return AESGCM(once).decrypt(bytes(12), wrapped[17:], None)


def key_file(tenant_key: bytes, tenant: int, name: str, data: bytes) -> bytes:
    """A key out of its file in the key folder."""
    first, last = struct.unpack(">II", data[1:9])
    require(data[:1] == b"\x01", name, "another form of key file")
    bound = b"muniment/kek/v1\x00" + f"{tenant}/{name}/{first}/{last}".encode()
    return AESGCM(tenant_key).decrypt(data[9:21], data[21:], bound)


# ── the rest ──


def certificate(data: bytes, public: bytes) -> dict[str, Any]:
    """What a certificate says whose signature is by this key."""
    file = strict(data, ("certificate", "signature"), "certificate")
    signed = b"muniment-certificate/v1\n" + canonical(file["certificate"])
    try:
        key = Ed25519PublicKey.from_public_bytes(public)
        key.verify(b64(file["signature"]["ed25519"], "certificate"), signed)
    except InvalidSignature:
        raise Wrong("certificate: a bad signature") from None
    return dict(file["certificate"])


def spool_records(data: bytes) -> list[tuple[int, bytes]]:
    """The records of a segment, with their numbers."""
    require(data[:8] == b"MUNSPL1\n", "segment", "another form of spool")
    found, at = [], 32
    while data[at : at + 4] == b"\x01MR\x02":
        size, crc, number = struct.unpack_from("<IIQ", data, at + 4)
        record = data[at + 20 : at + 20 + size]
        require(zlib.crc32(record, (number ^ number >> 32) & 0xFFFFFFFF) == crc, "segment", "a damaged record")
        found.append((number, record))
        at += 20 + size
    return found

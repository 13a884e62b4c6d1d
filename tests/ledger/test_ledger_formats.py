"""`docs/formats.md` says what the programs write: its numbers, names and example, and a reader made of it alone."""

from __future__ import annotations

import ast
import json
import random
import re
import struct
import sys
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlmodel import select

from api.anchoring import rotate_key
from erasure import certificate
from ledger import batches, checkpoint, entry, keyring, placing, tiles
from ledger.batches import Batch, decode_batch, encode_batch, open_envelope
from ledger.entry import Header, Part, encode_header, header_hash, uuid7
from ledger.signing import Ed25519Signer
from muniment.frames import frame
from muniment.spool import Spool
from registry.sealing import ALGORITHM
from tests.audit.conftest import make_log as made_log
from tests.audit.test_audit_first_version import encode_v1
from tests.audit.test_audit_service import Kept, kept
from tests.ledger import formats_reader as page
from vault import envelope, packing, snapshot
from vault.models import DataKey
from vault.wrapping import KeySpec, data_key_binding, wrap

__all__ = ["kept"]
REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "formats.md").read_text(encoding="utf-8")
DICTIONARY = REPOSITORY / "vault" / "dictionaries" / "v1.zstd-dictionary"


def section(title: str) -> str:
    """What stands under a heading of the page, up to the next one of its rank."""
    rank = next(line for line in PAGE.splitlines() if line.lstrip("#") == f" {title}").partition(" ")[0]
    return PAGE.partition(f"\n{rank} {title}\n")[2].partition(f"\n{rank} ")[0]


def table(text: str) -> list[list[str]]:
    """The rows of the tables in a text, without their heads."""
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in text.splitlines() if row.startswith("|")]
    return [row for row in rows if not set("".join(row)) <= set("-|")]


def names(rows: Sequence[Sequence[str]]) -> list[str]:
    return [row[0].strip("`") for row in rows if row[0].startswith("`")]


def test_the_page_and_the_programs_agree_on_every_number() -> None:
    told = dict(table(section("Numbers"))[1:])
    assert told == {
        name: str(value)
        for name, value in {
            "version of a header": entry.VERSION,
            "version of a batch's envelope": batches.VERSION,
            "bytes of a header, at most": entry.MAX_HEADER_BYTES,
            "bytes of an envelope, at most": batches.MAX_ENVELOPE_BYTES,
            "bytes of the headers of a batch, at most": batches.MAX_HEADERS_BYTES,
            "an integer, at most": entry.MAX_INT,
            "bytes of a body, at most": packing.MAX_BODY_BYTES,
            "hashes of a full tile": tiles.TILE_WIDTH,
            "bytes of a note, at most": checkpoint.MAX_NOTE_BYTES,
            "signatures of a note, at most": checkpoint.MAX_SIGNATURES,
            "bytes of a salt": envelope.SALT_BYTES,
            "bytes of a commitment": envelope.COMMITMENT_BYTES,
            "bytes of a chunk's plaintext": envelope.CHUNK_BYTES,
            "bytes of a part key": envelope.PART_KEY_BYTES,
            "bytes of the dictionary of version 1": DICTIONARY.stat().st_size,
        }.items()
    }
    assert sha256(DICTIONARY.read_bytes()).hexdigest() in section("Sealed parts")


def header() -> Header:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    part = Part(role="part.0", algorithm=ALGORITHM, length=1, sha256=bytes(32), object="payload/none/x", offset=0)
    return Header(
        id=uuid7(at), kind="note", data_class="transcript", at=at, received=at, recorder="ab" * 16, seq=1,
        stream="0" * 32, position=0, previous=bytes(32), sources_count=1, sources_root=bytes(32), parts=(part,),
    )  # fmt: skip


def test_the_page_and_the_programs_agree_on_every_member() -> None:
    written = json.loads(encode_header(header()))
    rows = names(table(section("Headers")))
    assert rows == [*written, *written["parts"][0]] == [*page.HEADER, *page.PART]
    batch = Batch(
        log_id="l", first=0, count=1, previous_key=None, previous_count=0, previous_digest=None, checkpoint_size=0,
        checkpoint_digest=None, fence=1, headers=(b"{}",),
    )  # fmt: skip
    assert open_envelope(encode_batch(batch)).count == 1
    envelope_now = json.loads(encode_batch(batch).partition(b"\n")[0])
    assert names(table(section("Batches"))) == list(envelope_now) == list(page.ENVELOPE)
    assert f"`{ALGORITHM}`" in section("Headers")
    assert "`muniment-key-rows/v1`" in section("Wrapped keys")
    assert snapshot._Snapshot.__struct_fields__ == ("format", "tenant_id", "keys", "parts", "groups", "retired")
    change = keyring.KeyChange(
        log_id="l", use="log", generation=1, size=2, at="t", old=("k",), revoke=False, new="n"
    ).text()
    told = " ".join(section("Signing keys").split()).partition("in this order: ")[2].partition(". ")[0]
    said = [quoted.partition(" ")[0] for quoted in re.findall(r"`([^`]+)`", told)]
    assert [line.partition(" ")[0] for line in change.splitlines()] == list(dict.fromkeys(said))


def test_the_reader_imports_none_of_our_packages() -> None:
    tree = ast.parse((REPOSITORY / "tests" / "ledger" / "formats_reader.py").read_text(encoding="utf-8"))
    found = {
        (node.module or "" if isinstance(node, ast.ImportFrom) else name.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert found <= {*sys.stdlib_module_names, "cryptography", "zstandard"}


def example() -> dict[str, tuple[bytes, bytes]]:
    """Of each line of the example what the page's reader makes of it, and what the programs do."""
    log, name, bound_entry = "ab" * 16, f"muniment/{'0' * 32}", "018f0000-0000-7000-8000-000000000000"
    public = bytes(range(32))
    bound = page.context(7, log, bound_entry, "part.0")
    ours = envelope.context("7", log, bound_entry, "part.0")
    opening = page.part_key(b"\x01" * 32, b"\x02" * 24, bound)
    row = {
        "group_no": 1, "subject_id": 2, "key_id": "06" * 10, "data_class": "transcript", "month": "2026-11",
        "scope": "", "epoch": 1,
    }  # fmt: skip
    spec = KeySpec(subject_id=2, data_class="transcript", month="2026-11")
    wrapped = wrap(b"\x04" * 32, data_key_binding(7, "06" * 10, spec, 1, 1), b"\x03" * 32, salt=b"\x05" * 16)
    assert page.unwrapped(b"\x04" * 32, 7, row, wrapped) == b"\x03" * 32
    spooled = b"\x01MR\x02" + struct.pack("<IIQ", 2, zlib.crc32(b"{}", 1), 1) + b"{}"
    body = b"\x02" + struct.pack(">I", 2) + b"hi"
    said = f"muniment-receipt/v1\n{name}\n5\n2\n{'ab' * 32}\n2026-11-30T12:00:00.000000Z\n"
    private = Ed25519PrivateKey.from_private_bytes(public)
    line = page.key_id(name, 1, private.public_key().public_bytes_raw()) + private.sign(said.encode())
    receipt = f"{said}\n\u2014 {name} {b64encode(line).decode()}\n"
    text = placing.receipt_text(name, 5, 2, b"\xab" * 32, datetime(2026, 11, 30, 12, tzinfo=UTC))
    note = checkpoint.sign_note(text, [Ed25519Signer.from_seed(name, public)])
    return {
        "receipt": (sha256(receipt.encode()).digest(), sha256(note).digest()),
        "leaf hash": (page.leaf_hash(b'{"}'), header_hash(b'{"}')),
        "key id": (page.key_id(name, 1, public), checkpoint.key_id(name, 1, public)),
        "context": (bound, ours),
        "part key": (opening, envelope.derive_part_key(b"\x01" * 32, b"\x02" * 24, ours)),
        "body": (body.ljust(page.padded(8), b"\0"), packing.pack(b"hi")),
        "length": (b"%d" % page.padded(1000), b"%d" % packing.padded_size(1000)),
        "wrapped key": (wrapped, wrapped),
        "frame": (spooled, frame(1, b"{}")),
    }


def test_the_example_follows_from_the_page_and_from_the_programs() -> None:
    told = {row[0]: row[1].strip("`") for row in table(section("An example"))[1:]}
    made = example()
    assert len(told) == len(made)
    for what, value in told.items():
        start = next(name for name in made if what.startswith(name))
        by_page, by_programs = made[start]
        assert by_page == by_programs, what
        assert value == (by_page.decode() if start == "length" else by_page.hex()), what


def test_the_numbers_of_tiles_are_written_as_the_page_says() -> None:
    assert "1234067 is `x001/x234/067`" in section("Tiles")
    assert tiles.tile_path(0, 1_234_067) == "tile/0/x001/x234/067"
    size = 256 * 1_002
    assert [name for level, _, name in page.tile_names(size)] == [
        tile.path for tile in tiles.tiles_for(size) if tile.is_full
    ]


@pytest.mark.parametrize("size", [*range(9, 70), 255, 1000, 4095, 4097, 70_001])
def test_padding_is_as_the_page_says(size: int) -> None:
    assert page.padded(size) == packing.padded_size(size)


@dataclass(frozen=True)
class Bed:
    """A log that the service wrote, the reader over it, and the bodies that were sent, by entry."""

    made: Kept
    reader: page.Reader
    objects: dict[str, bytes]
    hot: dict[str, bytes]
    bodies: dict[str, bytes]
    receipt: str


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def bed(kept: Kept) -> Bed:
    """Short and long bodies, one of several chunks, parts of two people, full tiles, and a key that was rotated."""
    services, now = kept.services, kept.services.clock.now()
    noise = b64encode(random.Random(3).randbytes(40_000)).decode()
    texts = ["hi", "it came on Tuesday, and the box was open when it came " * 12, noise]
    texts += [f"text {number}" for number in range(270)]
    bodies: dict[str, bytes] = {}
    entries = []
    for number, text in enumerate(texts):
        body = json.dumps({"content": text}).encode()
        people = ["user:ada", "user:bob"] if number % 2 else ["user:ada"]
        one = {"id": uuid7(now + timedelta(milliseconds=number)), "stream": f"conv_{number % 3}", "kind": "turn.user",
               "at": "2026-03-01T12:00:00Z", "data_class": "transcript", "subjects": people}  # fmt: skip
        bodies[one["id"]] = body  # type: ignore[index]  # the id is a text
        entries.append(json.dumps(one).encode()[:-1] + b', "body": ' + body + b"}")
    done = services.record.append(kept.acting, entries, now)
    assert {one["status"] for one in done.results} == {"stored"}
    services.log.publish(kept.acting.tenant_id, now)
    rotate_key(services, kept.acting, "log", revoke=False)
    services.record.ship_outbox(kept.acting.tenant_id, now)
    services.log.publish(kept.acting.tenant_id, now)
    log_id = kept.acting.log_id
    objects, hot = files(kept.folder / "objects" / log_id), files(kept.folder / "hot" / log_id)

    def listed(prefix: str) -> list[str]:
        return [name for name in objects if name.startswith(prefix)]

    keys = [window.vkey for window in services.log.keys(kept.acting.tenant_id)]
    return Bed(
        kept, page.Reader(log_id, objects.__getitem__, listed, keys), objects, hot, bodies, (done.receipt or {})["note"]
    )


def test_a_reader_of_the_page_alone_checks_what_the_service_wrote(bed: Bed) -> None:
    entries, signed = bed.reader.check()
    assert signed == len(entries) > 256
    assert bed.reader.tiles(entries, bed.hot.__getitem__, signed) == signed // 256
    own = [one.header for one in entries if one.header["stream"] == bed.made.acting.log_id]
    numbers = [one["seq"] for one in own if one["recorder"] == bed.made.acting.log_id]
    assert numbers == list(range(1, len(numbers) + 1)), "announcements are numbered without a gap"
    assert {one["recorder"] for one in own} == {bed.made.acting.log_id, None}
    said, origin, first, count, digest, *_ = page.open_note(bed.receipt.encode(), bed.reader.keys, "receipt")
    flushed = next(one for one in entries if one.header["id"] in bed.bodies)
    assert (said, origin) == ("muniment-receipt/v1", f"muniment/{bed.made.acting.log_id}")
    assert (int(first), int(count)) == (flushed.index, len(bed.bodies))
    assert digest == sha256(bed.objects[flushed.batch]).hexdigest()
    change = page.open_note(bed.objects["keys/log/000001"], bed.reader.keys, "keys/log/000001")
    assert [line.partition(" ")[0] for line in change] == [
        "muniment-key/v1", "log", "use", "generation", "size", "at", "old", "revoke", "new",
    ]  # fmt: skip


def test_it_opens_every_part_from_the_key_folder_and_the_unlocked_store(bed: Bed) -> None:
    keks, tenant, log_id = bed.made.services.keks, bed.made.acting.tenant_id, bed.made.acting.log_id
    folder = keks.folder / "kek" / str(tenant)
    root = next(folder.glob("root-*.kek"))
    version = int(root.stem.removeprefix("root-"))
    tenant_key = keks.root.unwrap(str(tenant), root.read_bytes(), f"tenant-kek/{version}".encode())
    journal = page.key_file(tenant_key, tenant, "journal.key", (folder / "journal.key").read_bytes())
    keys: dict[str, bytes] = {}
    for name, data in bed.hot.items():
        if name.startswith("rows/"):
            for text in page.rows_object(data, journal, log_id, name)["keys"]:
                for row in json.loads(text)["keys"]:
                    file = f"group-{row['group_no']:010d}-{row['epoch']:06d}.kek"
                    group = page.key_file(tenant_key, tenant, file, (folder / file).read_bytes())
                    keys[row["key_id"]] = page.unwrapped(group, tenant, row, b64decode(row["wrapped"]))
    entries, _ = bed.reader.check()
    by_batch: dict[str, list[page.Entry]] = {}
    for one in entries:
        by_batch.setdefault(one.batch, []).append(one)
    seen: Counter[tuple[str, int]] = Counter()
    dictionary = DICTIONARY.read_bytes()
    for batch, members in by_batch.items():
        digest = sha256(bed.objects[batch]).hexdigest()[:16]
        name = f"index/{members[0].index:020d}-{digest}"
        lines = page.index_lines(bed.hot[name], [one.header["id"] for one in members], name)
        for one, line in zip(members, lines, strict=True):
            for part, key_ids in zip(one.header["parts"], line, strict=True):
                key = page.joint({key_id: keys[key_id] for key_id in key_ids})
                bound = page.context(tenant, log_id, one.header["id"], part["role"])
                plain = page.open_sealed(key, bed.reader.ciphertext(one, part), bound, one.header["id"])
                body = page.body_of(plain, dictionary, one.header["id"])
                seen[part["role"], plain[0]] += 1
                seen["keys", len(key_ids)] += 1
                if part["role"] == "skeleton" or one.header["stream"] == log_id:
                    assert body == page.canonical(json.loads(body)) or part["role"] == "skeleton"
                elif one.header["id"] in bed.bodies:
                    assert body == bed.bodies[one.header["id"]]
    assert seen["part.0", 1], "version 1"
    assert seen["part.0", 2], "version 2"
    assert seen["keys", 1], "a part of one person"
    assert seen["keys", 2], "a part of two"
    with bed.made.services.database.transaction(tenant, write=False) as session:
        assert set(keys) >= set(session.exec(select(DataKey.key_id).where(DataKey.tenant_id == tenant)))


def test_it_finds_every_changed_byte_and_names_its_object(bed: Bed, full_length: bool) -> None:
    chance = random.Random(20261130)
    named = [name for name in bed.objects if name.partition("/")[0] in ("batch", "checkpoint", "payload")]
    inside = {"batch", "checkpoint", "payload"}
    for number in range(2_000 if full_length else 30):
        kind = sorted(inside)[number % 3]
        name = chance.choice([one for one in named if one.startswith(kind)])
        whole = bed.objects[name]
        at = chance.randrange(len(whole))
        bed.objects[name] = whole[:at] + bytes([whole[at] ^ chance.randrange(1, 256)]) + whole[at + 1 :]
        with pytest.raises(page.Wrong) as wrong:
            bed.reader.check()
        bed.objects[name] = whole
        where = str(wrong.value)
        # Checkpoints are named by the batch that holds their digest; the first to meet it speaks.
        assert where.startswith((name, "batch/" if kind == "checkpoint" else name)), (name, where)
    bed.reader.check()


@pytest.mark.parametrize("version", [1, 2])
def test_batches_of_earlier_versions_are_read_as_the_page_says(version: int) -> None:
    log = made_log()
    prefix = log.history.prefix
    objects = {name.removeprefix(prefix): data for name, data in log.bucket.objects.items()}
    before: bytes | None = None
    for name in sorted(one for one in objects if one.startswith("batch/"))[:3]:
        batch = replace(decode_batch(objects[name]), previous_digest=before)
        data = encode_batch(batch)
        if not name.endswith(f"{log.history.starts[2]:020d}"):
            said, _, frame = data.partition(b"\n")
            told = {member: value for member, value in json.loads(said).items() if member != "envelope"} | {"v": 2}
            data = encode_v1(batch) if version == 1 else page.canonical(told) + b"\n" + frame
        objects[name], before = data, sha256(data).digest()
    last = f"batch/{log.history.starts[3]:020d}"
    objects[last] = encode_batch(replace(decode_batch(objects[last]), previous_digest=before))
    reader = page.Reader(
        log.history.log_id, objects.__getitem__, lambda start: [one for one in objects if one.startswith(start)],
        [log.key.vkey],
    )  # fmt: skip
    assert len(reader.check()[0]) == 20
    name = f"batch/{log.history.starts[1]:020d}"
    whole = objects[name]
    for at in range(0, len(whole), 7):
        objects[name] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(page.Wrong, match="batch/"):
            reader.check()


def test_a_certificate_is_signed_as_the_page_says() -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
    signer = Ed25519Signer.from_seed("muniment/x/certificate", b"\x07" * 32)
    said = {"schema": "muniment-certificate/v1", "copies": [{"copy": 1}], "tenant": "ü"}
    with certificate.sign(said, signer) as signed:
        file = signed.read()
    assert page.certificate(file, key.public_key().public_bytes_raw()) == said
    with pytest.raises(page.Wrong, match="bad signature"):
        page.certificate(file.replace(b'"copy":1', b'"copy":2'), key.public_key().public_bytes_raw())


def test_a_spool_is_read_as_the_page_says(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", max_bytes=1 << 20, segment_bytes=1 << 16)
    sent = [json.dumps({"content": "x" * number}).encode() for number in (1, 50, 9_000)]
    assert [spool.append(one) for one in sent] == [1, 2, 3]
    (segment,) = (tmp_path / "spool").glob("seg-*")
    assert segment.name == f"seg-{1:020d}"
    assert page.spool_records(segment.read_bytes()) == list(enumerate(sent, start=1))
    spool.close()

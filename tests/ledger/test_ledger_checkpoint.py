"""Signed notes: published notes and our own vectors, and every rule that rejects one."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import checkpoint, merkle
from ledger.errors import BadSignature, MalformedNote
from ledger.signing import (
    Ed25519CosignatureVerifier,
    Ed25519Cosigner,
    Ed25519Signer,
    Ed25519Verifier,
    cosigned_at,
    verifier_from_vkey,
)

VECTORS = Path(__file__).resolve().parents[2].parent / "shared" / "reference" / "merkle_vectors.json"
TEXT = checkpoint.format_checkpoint("audit.example/acme", 3, bytes(range(32)))
SIGNER = Ed25519Signer.from_seed("audit.example/acme", bytes(32))
VERIFIER = Ed25519Verifier.from_vkey(SIGNER.vkey)
WITNESS = Ed25519Cosigner.from_seed("witness.example/w1", bytes([1]) * 32)
NOW = datetime(2026, 3, 1, 12, 0, 0, 999_999, tzinfo=UTC)


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    if not VECTORS.exists():
        if os.environ.get("CI") == "true":
            pytest.fail("the shared vectors are missing")
        pytest.skip("the shared vectors are not beside this checkout")
    loaded: dict[str, Any] = json.loads(VECTORS.read_text())
    return loaded


def test_published_notes_verify_and_bad_ones_do_not(vectors: dict[str, Any]) -> None:
    cases = [case for case in vectors["signed_notes"] if "vkey" in case]
    assert len(cases) == 6
    for case in cases:
        data = case["note"].encode()
        verifier = verifier_from_vkey(case["vkey"])
        if case["expect"] == "valid":
            assert checkpoint.verify_note(data, [verifier]) == data.decode().rpartition("\n\n")[0] + "\n"
        else:
            with pytest.raises((BadSignature, MalformedNote)):
                checkpoint.parse_checkpoint(checkpoint.verify_note(data, [verifier]))


def test_our_signer_makes_the_note_of_the_vectors_byte_for_byte(vectors: dict[str, Any]) -> None:
    case = next(case for case in vectors["signed_notes"] if "seed_hex" in case)
    signer = Ed25519Signer.from_seed("audit.example/acme", bytes.fromhex(case["seed_hex"]))
    assert signer.vkey == case["vkey"]
    leaves = [merkle.leaf_hash(i.to_bytes(8, "big")) for i in range(300)]
    text = checkpoint.format_checkpoint("audit.example/acme", 300, merkle.root(leaves))
    assert checkpoint.sign_note(text, [signer]) == case["note"].encode()


def test_our_witness_makes_the_cosignature_of_the_vectors_byte_for_byte(vectors: dict[str, Any]) -> None:
    case = next(case for case in vectors["signed_notes"] if "witness_seed_hex" in case)
    note = case["note"].encode()
    witness = Ed25519Cosigner.from_seed("witness.example/w1", bytes.fromhex(case["witness_seed_hex"]))
    assert witness.vkey == case["witness_vkey"]
    at = datetime.fromtimestamp(case["timestamp"], tz=UTC)
    parsed = checkpoint.parse_note(note)
    assert witness.cosign(parsed.text, at) == parsed.signatures[1]
    opened = checkpoint.open_note(note, [Ed25519CosignatureVerifier.from_vkey(witness.vkey)])
    assert [cosigned_at(item.signature) for item in opened.signatures] == [at]


def test_the_key_id_of_a_public_log_is_computed_as_published(vectors: dict[str, Any]) -> None:
    for case in vectors["vkey_keyid_check"]:
        key = checkpoint.parse_vkey(case["vkey"])
        assert key.key_id.hex() == case["key_id_hex"]
        assert checkpoint.vkey(key.name, key.algorithm, key.public_key) == case["vkey"]


def test_a_whole_proof_file_checks_out(vectors: dict[str, Any]) -> None:
    case = vectors["tlog_proof_ours"]
    head, _, note = case["text"].partition("\n\n")
    _, index, *proof = head.split("\n")
    found = checkpoint.parse_checkpoint(
        checkpoint.verify_note(note.encode(), [Ed25519Verifier.from_vkey(case["vkey"])])
    )
    leaf = merkle.leaf_hash(bytes.fromhex(case["leaf_entry_hex"]))
    hashes = [checkpoint._unbase64(line) for line in proof]
    merkle.verify_inclusion(int(index.split(" ")[1]), found.size, leaf, hashes, found.root)


@given(
    origin=st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1),
    size=st.integers(0, checkpoint.MAX_SIZE),
    root=st.binary(min_size=32, max_size=32),
)
def test_checkpoints_read_back(origin: str, size: int, root: bytes) -> None:
    text = checkpoint.format_checkpoint(origin, size, root)
    assert checkpoint.parse_checkpoint(text) == checkpoint.Checkpoint(origin=origin, size=size, root=root)


def test_extension_lines_are_kept() -> None:
    assert checkpoint.parse_checkpoint(TEXT + "more\n").extensions == ("more",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "origin\n1\n",
        TEXT[:-1],
        TEXT.replace("\n3\n", "\n03\n"),
        TEXT.replace("\n3\n", "\n-3\n"),
        TEXT.replace("\n3\n", "\n3 \n"),
        TEXT.replace("\n3\n", "\n\u0663\n"),
        TEXT.replace("\n3\n", "\n99999999999999999999\n"),
        TEXT.replace("\n3\n", f"\n{1 << 63}\n"),
        TEXT.replace("=", ""),
        TEXT.replace("8=\n", "9=\n"),
        TEXT + "\n",
        TEXT + "\nmore\n",
        "\n" + TEXT.partition("\n")[2],
        "origin\n1\n" + b64encode(bytes(31)).decode() + "\n",
    ],
)
def test_other_texts_are_no_checkpoints(text: str) -> None:
    with pytest.raises(MalformedNote):
        checkpoint.parse_checkpoint(text)


def test_impossible_checkpoints_are_not_written() -> None:
    for origin, size, root in (
        ("", 1, bytes(32)),
        ("a\nb", 1, bytes(32)),
        ("a", -1, bytes(32)),
        ("a", 1 << 63, bytes(32)),
        ("a", True, bytes(32)),
        ("a", 1, bytes(31)),
    ):
        with pytest.raises(MalformedNote):
            checkpoint.format_checkpoint(origin, size, root)


def test_a_note_by_an_unknown_key_is_rejected_and_an_extra_unknown_signature_is_ignored() -> None:
    stranger = Ed25519Signer.from_seed("stranger", bytes([9]) * 32)
    with pytest.raises(BadSignature):
        checkpoint.verify_note(checkpoint.sign_note(TEXT, [stranger]), [VERIFIER])
    both = checkpoint.sign_note(TEXT, [stranger, SIGNER])
    opened = checkpoint.open_note(both, [VERIFIER])
    assert opened.text == TEXT
    assert [item.name for item in opened.signatures] == [SIGNER.name]


def test_one_bad_signature_by_a_known_key_rejects_a_note_with_a_good_one() -> None:
    note = checkpoint.parse_note(checkpoint.sign_note(TEXT, [SIGNER]))
    bad = checkpoint.NoteSignature(name=SIGNER.name, key_id=SIGNER.key_id, signature=bytes(64))
    for signatures in ((bad, *note.signatures), (*note.signatures, bad)):
        data = checkpoint.format_note(checkpoint.SignedNote(text=TEXT, signatures=signatures))
        with pytest.raises(BadSignature):
            checkpoint.verify_note(data, [VERIFIER])


def test_a_note_with_many_signatures_is_read() -> None:
    signers = [Ed25519Signer.from_seed(f"key{i}", bytes([i]) * 32) for i in range(64)]
    data = checkpoint.sign_note(TEXT, signers)
    verifiers = [Ed25519Verifier.from_vkey(signer.vkey) for signer in signers]
    assert len(checkpoint.open_note(data, verifiers).signatures) == 64


def test_too_many_signatures_and_too_many_bytes_are_refused() -> None:
    one = checkpoint.parse_note(checkpoint.sign_note(TEXT, [SIGNER])).signatures
    with pytest.raises(MalformedNote):
        checkpoint.format_note(checkpoint.SignedNote(text=TEXT, signatures=one * 101))
    with pytest.raises(MalformedNote):
        checkpoint.format_note(checkpoint.SignedNote(text="x" * checkpoint.MAX_NOTE_BYTES + "\n", signatures=one))
    with pytest.raises(MalformedNote):
        checkpoint.parse_note(bytes(checkpoint.MAX_NOTE_BYTES + 1))


def test_no_verifiers_accept_nothing_and_two_of_one_id_are_ambiguous() -> None:
    data = checkpoint.sign_note(TEXT, [SIGNER])
    with pytest.raises(BadSignature):
        checkpoint.verify_note(data, [])
    with pytest.raises(BadSignature):
        checkpoint.verify_note(data, [VERIFIER, VERIFIER])


def test_the_last_empty_line_separates_text_from_signatures() -> None:
    text = "a\n\nb\n\n\u2014 looks like a signature\n"
    assert checkpoint.verify_note(checkpoint.sign_note(text, [SIGNER]), [VERIFIER]) == text


@pytest.mark.parametrize(
    "damage",
    [
        lambda note: note[:-1],
        lambda note: note + b"\n",
        lambda note: note.replace("\u2014".encode(), b"-"),
        lambda note: note.replace("\u2014 ".encode(), "\u2014  ".encode()),
        lambda note: note.replace(b"\n\n", b"\n"),
        lambda note: note[:-2] + b" \n",
        lambda note: note[:-2] + b"\n",
        lambda note: b"\x00" + note,
        lambda note: b"\r" + note,
        lambda note: b"\xff" + note,
        lambda note: note.partition("\u2014".encode())[0],
        lambda note: note.rpartition(b" ")[0] + b" QUJDRA==\n",
        lambda note: note.rpartition(b" ")[0] + b"\n",
        lambda note: note[:0],
    ],
)
def test_damaged_notes_are_malformed(damage: Any) -> None:
    with pytest.raises(MalformedNote):
        checkpoint.parse_note(damage(checkpoint.sign_note(TEXT, [SIGNER])))


@given(data=st.data())
def test_no_single_changed_byte_of_a_note_is_accepted(data: st.DataObject) -> None:
    note = bytearray(checkpoint.sign_note(TEXT, [SIGNER]))
    position = data.draw(st.integers(0, len(note) - 1))
    note[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises((MalformedNote, BadSignature)):
        checkpoint.verify_note(bytes(note), [VERIFIER])


@given(data=st.binary(max_size=200))
def test_whatever_parses_as_a_note_is_written_the_same(data: bytes) -> None:
    try:
        note = checkpoint.parse_note(b"text\n\n\xe2\x80\x94 " + data)
    except MalformedNote:
        return
    assert checkpoint.format_note(note) == b"text\n\n\xe2\x80\x94 " + data


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\u00a0b", "a\nb", "a\x01"])
def test_key_names_have_no_space_and_no_plus(name: str) -> None:
    with pytest.raises(MalformedNote):
        Ed25519Signer.from_seed(name, bytes(32))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "name+00000000",
        "name+00000000+",
        "name+00000000+AQ==",
        "name+00000000+!!",
        SIGNER.vkey.upper(),
        SIGNER.vkey[:-1],
        SIGNER.vkey.replace(SIGNER.key_id.hex(), "00000000"),
        checkpoint.vkey("name", 0x06, bytes(1312)),
        checkpoint.vkey("name", 0x01, bytes(31)),
    ],
)
def test_verifier_keys_that_are_damaged_or_not_built_are_refused(text: str) -> None:
    with pytest.raises(MalformedNote):
        verifier_from_vkey(text)


def test_a_key_of_another_type_is_not_taken_for_a_log_key() -> None:
    with pytest.raises(MalformedNote):
        Ed25519Verifier.from_vkey(WITNESS.vkey)
    with pytest.raises(MalformedNote):
        Ed25519CosignatureVerifier.from_vkey(SIGNER.vkey)


def test_a_seed_of_the_wrong_length_is_refused() -> None:
    for make in (Ed25519Signer.from_seed, Ed25519Cosigner.from_seed):
        with pytest.raises(MalformedNote):
            make("name", bytes(31))


def test_a_cosignature_covers_its_time() -> None:
    note = checkpoint.with_signature(checkpoint.sign_note(TEXT, [SIGNER]), WITNESS.cosign(TEXT, NOW))
    verifier = verifier_from_vkey(WITNESS.vkey)
    opened = checkpoint.open_note(note, [VERIFIER, verifier])
    assert cosigned_at(opened.signatures[1].signature) == NOW.replace(microsecond=0)
    moved = WITNESS.cosign(TEXT, NOW + timedelta(hours=1)).signature[:8] + opened.signatures[1].signature[8:]
    with pytest.raises(BadSignature):
        verifier.verify(TEXT.encode(), moved)
    for bad in (b"", opened.signatures[1].signature[:-1], b"\xff" * 72):
        with pytest.raises(BadSignature):
            verifier.verify(TEXT.encode(), bad)


def test_a_cosignature_needs_an_aware_time() -> None:
    for at in (NOW.replace(tzinfo=None), datetime(1969, 1, 1, tzinfo=UTC)):
        with pytest.raises(MalformedNote):
            WITNESS.cosign(TEXT, at)


def test_text_that_is_not_unicode_is_not_signed() -> None:
    for text in ("\ud800\n", "no line feed", "\x00\n"):
        with pytest.raises(MalformedNote):
            checkpoint.sign_note(text, [SIGNER])


@pytest.mark.scenario("L38")
def test_a_signer_does_not_show_its_key() -> None:
    for shown in (repr(SIGNER), str(SIGNER), repr(WITNESS)):
        assert bytes(32).hex() not in shown
    assert not hasattr(SIGNER, "__dict__")

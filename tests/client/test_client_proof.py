"""Offline proofs: what is signed and included passes, every named change of it is refused."""

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from muniment import ProofError, verify_proof
from muniment.ed25519 import verifies
from muniment.proof import open_checkpoint, open_note, parse_vkey, verify_inclusion

ENTRY = "019bd1f0-0000-7000-8000-000000000001"


def leaf(data: bytes) -> bytes:
    return hashlib.sha256(b"\0" + data).digest()


def naive_root(leaves: list[bytes]) -> bytes:
    """RFC 6962 §2.1, word for word."""
    if len(leaves) == 1:
        return leaves[0]
    k = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + naive_root(leaves[:k]) + naive_root(leaves[k:])).digest()


def naive_path(index: int, leaves: list[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    k = 1 << (len(leaves) - 1).bit_length() - 1
    if index < k:
        return [*naive_path(index, leaves[:k]), naive_root(leaves[k:])]
    return [*naive_path(index - k, leaves[k:]), naive_root(leaves[:k])]


class Log:
    """A log of one key, to make proofs with."""

    def __init__(self, name: str = "audit.example/acme", seed: bytes = b"k" * 32) -> None:
        self.name = name
        self.key = Ed25519PrivateKey.from_private_bytes(seed)
        self.blob = b"\x01" + self.key.public_key().public_bytes_raw()
        self.id = hashlib.sha256(name.encode() + b"\n" + self.blob).digest()[:4]
        self.vkey = f"{name}+{self.id.hex()}+{base64.b64encode(self.blob).decode()}"

    def sign(self, text: str) -> str:
        signature = base64.b64encode(self.id + self.key.sign(text.encode())).decode()
        return f"{text}\n\u2014 {self.name} {signature}\n"

    def proof(self, index: int, headers: list[bytes]) -> dict[str, Any]:
        leaves = [leaf(header) for header in headers]
        root = base64.b64encode(naive_root(leaves)).decode()
        return {
            "index": index,
            "header": base64.b64encode(headers[index]).decode(),
            "leaf_hash": leaves[index].hex(),
            "inclusion": [each.hex() for each in naive_path(index, leaves)],
            "tree_size": len(headers),
            "checkpoint": self.sign(f"{self.name}\n{len(headers)}\n{root}\n"),
        }


def headers(count: int) -> list[bytes]:
    return [json.dumps({"id": ENTRY if n == 4 else str(n)}).encode() for n in range(count)]


@pytest.fixture(scope="module")
def vectors(shared_folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((shared_folder / "reference" / "merkle_vectors.json").read_text())
    return loaded


def test_a_sound_proof_names_the_place_and_the_header() -> None:
    log = Log()
    result = verify_proof(log.proof(4, headers(7)), log.vkey, entry_id=ENTRY)
    assert (result.index, result.tree_size, result.origin, result.header) == (4, 7, log.name, {"id": ENTRY})


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1))))
def test_every_entry_of_every_small_log_can_be_proven(place: tuple[int, int]) -> None:
    size, index = place
    log = Log()
    assert verify_proof(log.proof(index, headers(size)), log.vkey).index == index


def set_field(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda proof: proof.update({name: value})


def flip_root(proof: dict[str, Any]) -> None:
    lines = proof["checkpoint"].split("\n")
    lines[2] = base64.b64encode(b"r" * 32).decode()
    proof["checkpoint"] = "\n".join(lines)


@pytest.mark.scenario("L6")
@pytest.mark.parametrize(
    ("change", "step"),
    [
        (set_field("index", 3), "inclusion"),
        (set_field("index", 7), "inclusion"),
        (set_field("index", True), "index"),
        (set_field("index", -1), "index"),
        (set_field("tree_size", 8), "tree_size"),
        (set_field("leaf_hash", "00" * 32), "leaf_hash"),
        (set_field("leaf_hash", "AB" * 32), "leaf_hash"),
        (set_field("header", base64.b64encode(b"{}").decode()), "leaf_hash"),
        (set_field("header", "e30"), "header"),
        (set_field("inclusion", []), "inclusion"),
        (set_field("inclusion", "aa"), "inclusion"),
        (set_field("inclusion", [3]), "inclusion"),
        (set_field("checkpoint", None), "checkpoint"),
        (set_field("checkpoint", "no note"), "checkpoint"),
        (lambda proof: proof.pop("checkpoint"), "checkpoint"),
        (lambda proof: proof["inclusion"].append("00" * 32), "inclusion"),
        (lambda proof: proof["inclusion"].pop(), "inclusion"),
        (lambda proof: proof["inclusion"].reverse(), "inclusion"),
        (flip_root, "signature"),
        (lambda proof: proof.update(checkpoint=proof["checkpoint"].replace("\n7\n", "\n07\n")), "signature"),
        (lambda proof: proof.update(checkpoint=proof["checkpoint"].split("\n\u2014")[0] + "\n"), "checkpoint"),
    ],
)
def test_a_changed_proof_is_refused_at_its_step(change: Callable[[dict[str, Any]], None], step: str) -> None:
    log = Log()
    proof = log.proof(4, headers(7))
    change(proof)
    with pytest.raises(ProofError) as caught:
        verify_proof(proof, log.vkey)
    assert caught.value.step == step


@pytest.mark.scenario("L6")
def test_another_logs_key_another_entry_and_another_origin_are_refused() -> None:
    log, other = Log(), Log(seed=b"o" * 32)
    proof = log.proof(4, headers(7))
    for vkey, entry_id, step in [(other.vkey, None, "signature"), (log.vkey, "x", "entry")]:
        with pytest.raises(ProofError) as caught:
            verify_proof(proof, vkey, entry_id=entry_id)
        assert caught.value.step == step
    foreign = log.sign("another.example/log\n1\n" + base64.b64encode(bytes(32)).decode() + "\n")
    with pytest.raises(ProofError, match="another log"):
        open_checkpoint(foreign, parse_vkey(log.vkey))


@pytest.mark.scenario("L40")
def test_signatures_of_others_are_ignored_and_a_bad_one_of_ours_refuses_beside_a_good_one() -> None:
    log, witness = Log(), Log(name="witness.example", seed=b"w" * 32)
    text = log.proof(0, headers(1))["checkpoint"]
    body = text.split("\n\n")[0] + "\n"
    with_witness = text + witness.sign(body).rpartition("\n\n")[2]
    key = parse_vkey(log.vkey)
    assert open_note(with_witness, key) == open_note(text, key) == body
    bad = base64.b64encode(log.id + bytes(64)).decode()
    with pytest.raises(ProofError, match="signature is wrong"):
        open_note(text + f"\u2014 {log.name} {bad}\n", key)


@pytest.mark.parametrize(
    "vkey",
    [
        "",
        "\ud800+00000000+AQ==",
        "a+b",
        "a b+00000000+AQ==",
        "log+00000000+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
    ],
)
def test_a_key_that_is_none_is_refused(vkey: str) -> None:
    with pytest.raises(ProofError) as caught:
        parse_vkey(vkey)
    assert caught.value.step == "key"


def test_published_notes_and_inclusion_vectors_agree(vectors: dict[str, Any]) -> None:
    log_key = vectors["tlog_proof_ours"]["vkey"]
    for note in vectors["signed_notes"]:
        key = parse_vkey(note.get("vkey", log_key))  # one is of our log with a witness beside it
        if note["expect"] == "valid":
            open_note(note["note"], key)
        else:
            with pytest.raises(ProofError):
                open_note(note["note"], key)
    tree = vectors["rfc6962_reference_tree"]
    leaves = [leaf(bytes.fromhex(data)) for data in tree["inputs_hex"]]
    for case in vectors["inclusion_proofs_reference_tree"]:
        path = [bytes.fromhex(each) for each in case["proof_hex"]]
        root = naive_root(leaves[: case["size"]])
        verify_inclusion(case["index"], case["size"], leaves[case["index"]], path, root)
    refused = [case for case in vectors["negative_must_reject"] if case["kind"] == "inclusion"]
    assert refused
    for case in refused:
        with pytest.raises(ProofError):
            verify_inclusion(
                case["index"],
                case["size"],
                bytes.fromhex(case["leaf_hex"]),
                [bytes.fromhex(each) for each in case["proof_hex"]],
                bytes.fromhex(case["root_hex"]),
            )


# RFC 8032 §7.1, tests 1 to 3: public key, message, signature.
RFC_8032 = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize(("key", "message", "signature"), RFC_8032)
def test_the_published_signatures_verify_and_not_with_any_part_changed(key: str, message: str, signature: str) -> None:
    parts = [bytes.fromhex(key), bytes.fromhex(message), bytes.fromhex(signature)]
    assert verifies(*parts)
    assert not verifies(parts[0], parts[1] + b"x", parts[2])
    for position in (0, 31, 32, 63):
        changed = bytearray(parts[2])
        changed[position] ^= 1
        assert not verifies(parts[0], parts[1], bytes(changed))


def test_a_signature_with_s_beyond_the_order_is_refused() -> None:
    key, message, signature = (bytes.fromhex(part) for part in RFC_8032[1])
    order = 2**252 + 27742317777372353535851937790883648493
    stretched = (int.from_bytes(signature[32:], "little") + order).to_bytes(32, "little")
    assert not verifies(key, message, signature[:32] + stretched)


@pytest.mark.parametrize("key", [b"\x01" + bytes(31), bytes(32), b"\xec" + b"\xff" * 30 + b"\x7f", b"\xff" * 32])
def test_keys_of_small_order_and_no_point_are_refused(key: bytes) -> None:
    identity = b"\x01" + bytes(31)
    assert not verifies(key, b"anything", identity + bytes(32))


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200))
def test_signatures_of_another_implementation_verify(seed: bytes, message: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = key.public_key().public_bytes_raw()
    assert verifies(public, message, key.sign(message))
    assert not verifies(public, message + b"!", key.sign(message))

"""The tree: published vectors, a naive reading of RFC 6962 as second oracle, and every named corruption."""

from __future__ import annotations

import json
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import merkle
from ledger.errors import BadProof


@pytest.fixture(scope="module")
def vectors(shared_folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((shared_folder / "reference" / "merkle_vectors.json").read_text())
    return loaded


def unhex(values: list[str]) -> list[bytes]:
    return [bytes.fromhex(value) for value in values]


def reference_leaves(vectors: dict[str, Any]) -> list[bytes]:
    return [merkle.leaf_hash(entry) for entry in unhex(vectors["rfc6962_reference_tree"]["inputs_hex"])]


def counter_leaves(size: int) -> list[bytes]:
    return [merkle.leaf_hash(i.to_bytes(8, "big")) for i in range(size)]


# A transcription of RFC 6962 §2.1, as plain as the text. It shares nothing with the code under test.
def naive_root(leaves: list[bytes]) -> bytes:
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = naive_split(len(leaves))
    return sha256(b"\x01" + naive_root(leaves[:k]) + naive_root(leaves[k:])).digest()


def naive_split(n: int) -> int:
    k = 1
    while k * 2 < n:
        k *= 2
    return k


def naive_path(m: int, leaves: list[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    k = naive_split(len(leaves))
    if m < k:
        return [*naive_path(m, leaves[:k]), naive_root(leaves[k:])]
    return [*naive_path(m - k, leaves[k:]), naive_root(leaves[:k])]


def naive_subproof(m: int, leaves: list[bytes], *, known: bool) -> list[bytes]:
    n = len(leaves)
    if m == n:
        return [] if known else [naive_root(leaves)]
    k = naive_split(n)
    if m <= k:
        return [*naive_subproof(m, leaves[:k], known=known), naive_root(leaves[k:])]
    return [*naive_subproof(m - k, leaves[k:], known=False), naive_root(leaves[:k])]


trees = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=70)


def test_hashes_of_single_inputs_match_the_vectors(vectors: dict[str, Any]) -> None:
    expected = vectors["hash_primitives"]
    assert merkle.EMPTY_ROOT.hex() == expected["empty_root"]
    assert merkle.leaf_hash(b"").hex() == expected["empty_leaf"]
    assert merkle.leaf_hash(b"L123456").hex() == expected["leaf_L123456"]
    assert merkle.node_hash(b"N123", b"N456").hex() == expected["node_N123_N456"]


def test_every_root_and_node_of_the_reference_tree_matches(vectors: dict[str, Any]) -> None:
    tree = vectors["rfc6962_reference_tree"]
    leaves = reference_leaves(vectors)
    for size, expected in enumerate(tree["roots_by_size_hex"]):
        assert merkle.root(leaves[:size]).hex() == expected
        assert merkle.root_of(size, leaves).hex() == expected
    read = merkle.reader_of(leaves)
    for level, nodes in enumerate(tree["node_hashes_hex"]):
        assert [read(level, index).hex() for index in range(len(nodes))] == nodes


def test_every_inclusion_proof_of_the_reference_tree_is_built_and_verifies(vectors: dict[str, Any]) -> None:
    leaves = reference_leaves(vectors)
    cases = vectors["inclusion_proofs_reference_tree"]
    assert len(cases) == 36
    for case in cases:
        index, size, proof = case["index"], case["size"], unhex(case["proof_hex"])
        assert list(merkle.inclusion_proof(index, size, leaves)) == proof
        merkle.verify_inclusion(index, size, leaves[index], proof, merkle.root(leaves[:size]))


def test_every_consistency_proof_of_the_reference_tree_is_built_and_verifies(vectors: dict[str, Any]) -> None:
    leaves = reference_leaves(vectors)
    cases = vectors["consistency_proofs_reference_tree"]
    assert len(cases) == 36
    for case in cases:
        size1, size2, proof = case["size1"], case["size2"], unhex(case["proof_hex"])
        assert list(merkle.consistency_proof(size1, size2, leaves)) == proof
        merkle.verify_consistency(size1, size2, proof, merkle.root(leaves[:size1]), merkle.root(leaves[:size2]))


def verify_case(case: dict[str, Any]) -> None:
    proof = unhex(case["proof_hex"])
    if case["kind"] == "inclusion":
        leaf, root = bytes.fromhex(case["leaf_hex"]), bytes.fromhex(case["root_hex"])
        merkle.verify_inclusion(case["index"], case["size"], leaf, proof, root)
    else:
        root1, root2 = bytes.fromhex(case["root1_hex"]), bytes.fromhex(case["root2_hex"])
        merkle.verify_consistency(case["size1"], case["size2"], proof, root1, root2)


@pytest.mark.scenario("L6")
def test_every_named_corruption_is_rejected(vectors: dict[str, Any]) -> None:
    cases = vectors["negative_must_reject"]
    assert len(cases) == 43
    for case in cases:
        with pytest.raises(BadProof):
            verify_case(case)


@pytest.mark.scenario("L2")
def test_the_tree_heads_of_a_real_incident_are_inconsistent(vectors: dict[str, Any]) -> None:
    for case in vectors["incident_inconsistent_sth"]:
        proof = [b64decode(value) for value in case["proof"]]
        with pytest.raises(BadProof):
            merkle.verify_consistency(
                case["size1"], case["size2"], proof, b64decode(case["root1"]), b64decode(case["root2"])
            )


def test_roots_of_a_large_counting_tree_match(vectors: dict[str, Any]) -> None:
    expected = vectors["counter_tree_ours"]["roots_hex"]
    frontier = merkle.Frontier()
    for index, leaf in enumerate(counter_leaves(70_000)):
        frontier.append(leaf)
        if str(index + 1) in expected:
            assert frontier.root().hex() == expected[str(index + 1)]
    assert frontier.size == 70_000


def test_proofs_of_the_counting_tree_match(vectors: dict[str, Any]) -> None:
    tree = vectors["counter_tree_ours"]
    leaves = counter_leaves(300)
    read = merkle.reader_of(leaves)
    for case in tree["inclusion"]:
        proof = merkle.inclusion_proof(case["index"], case["size"], read)
        assert [node.hex() for node in proof] == case["proof_hex"]
    for case in tree["consistency"]:
        proof = merkle.consistency_proof(case["size1"], case["size2"], read)
        assert [node.hex() for node in proof] == case["proof_hex"]


@given(leaves=trees)
def test_the_frontier_has_the_root_that_the_rfc_recursion_gives(leaves: list[bytes]) -> None:
    assert merkle.root(leaves) == naive_root(leaves)
    assert merkle.root_of(len(leaves), leaves) == naive_root(leaves)


@given(leaves=trees, data=st.data())
def test_built_proofs_equal_the_rfc_recursion_and_verify(leaves: list[bytes], data: st.DataObject) -> None:
    size2 = len(leaves)
    index = data.draw(st.integers(0, size2 - 1))
    size1 = data.draw(st.integers(1, size2))
    inclusion = merkle.inclusion_proof(index, size2, leaves)
    consistency = merkle.consistency_proof(size1, size2, leaves)
    assert list(inclusion) == naive_path(index, leaves)
    assert list(consistency) == naive_subproof(size1, leaves, known=True)
    merkle.verify_inclusion(index, size2, leaves[index], inclusion, naive_root(leaves))
    merkle.verify_consistency(size1, size2, consistency, naive_root(leaves[:size1]), naive_root(leaves))


@pytest.mark.scenario("L16")
@given(size1=st.integers(1, 40), more=st.integers(1, 40), data=st.data())
def test_no_proof_joins_a_history_in_which_one_old_entry_was_changed(
    size1: int, more: int, data: st.DataObject
) -> None:
    leaves = counter_leaves(size1 + more)
    changed = list(leaves)
    changed[data.draw(st.integers(0, size1 - 1))] = merkle.leaf_hash(b"another history")
    proof = merkle.consistency_proof(size1, len(leaves), changed)
    with pytest.raises(BadProof):
        merkle.verify_consistency(size1, len(leaves), proof, merkle.root(leaves[:size1]), merkle.root(changed))


@given(leaves=st.lists(st.binary(min_size=32, max_size=32), min_size=2, max_size=40, unique=True), data=st.data())
def test_any_change_to_an_inclusion_proof_is_rejected(leaves: list[bytes], data: st.DataObject) -> None:
    size = len(leaves)
    index = data.draw(st.integers(0, size - 1))
    proof = list(merkle.inclusion_proof(index, size, leaves))
    position = data.draw(st.integers(0, len(proof) - 1))
    how = data.draw(st.sampled_from(["flip", "drop", "insert", "other leaf"]))
    leaf = leaves[index]
    if how == "flip":
        proof[position] = bytes([proof[position][0] ^ 1]) + proof[position][1:]
    elif how == "drop":
        del proof[position]
    elif how == "insert":
        proof.insert(position, proof[position])
    else:
        leaf = leaves[(index + 1) % size]
    with pytest.raises(BadProof):
        merkle.verify_inclusion(index, size, leaf, proof, merkle.root(leaves))


@given(leaves=trees, data=st.data())
def test_a_stored_frontier_goes_on_where_it_stopped(leaves: list[bytes], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(leaves)))
    first = merkle.Frontier()
    first.append_many(leaves[:cut])
    reopened = merkle.Frontier.from_nodes(first.size, first.nodes())
    branch = reopened.copy()
    reopened.append_many(leaves[cut:])
    assert reopened.root() == naive_root(leaves)
    assert branch.root() == naive_root(leaves[:cut])
    assert merkle.frontier_of(cut, leaves).nodes() == first.nodes()


def test_a_frontier_refuses_nodes_that_do_not_fit_its_size() -> None:
    hashes = counter_leaves(3)
    with pytest.raises(BadProof):
        merkle.Frontier.from_nodes(3, hashes)
    with pytest.raises(BadProof):
        merkle.Frontier.from_nodes(1, [b"short"])
    with pytest.raises(BadProof):
        merkle.Frontier.from_nodes(-1, hashes[:1])
    with pytest.raises(BadProof):
        merkle.Frontier().append(b"short")


def test_proofs_outside_the_tree_are_refused() -> None:
    leaves = counter_leaves(3)
    for index, size in ((-1, 3), (3, 3), (0, 0), (0, 5)):
        with pytest.raises(BadProof):
            merkle.inclusion_proof(index, size, leaves)
    for size1, size2 in ((0, 3), (3, 2), (4, 3), (1, 5)):
        with pytest.raises(BadProof):
            merkle.consistency_proof(size1, size2, leaves)


def test_the_empty_tree_has_the_hash_of_nothing_as_its_root() -> None:
    assert merkle.Frontier().root() == merkle.root([]) == merkle.root_of(0, []) == merkle.EMPTY_ROOT


def test_a_consistency_proof_of_wrong_length_is_rejected_when_roots_are_right() -> None:
    leaves = counter_leaves(8)
    root1, root2 = merkle.root(leaves[:6]), merkle.root(leaves)
    proof = merkle.consistency_proof(6, 8, leaves)
    for bad in (proof[:-1], (*proof, proof[0])):
        with pytest.raises(BadProof):
            merkle.verify_consistency(6, 8, bad, root1, root2)

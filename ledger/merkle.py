"""The Merkle tree of RFC 6962: hashes, roots, and both kinds of proof.

Guarantees: pure functions of hashes; a proof that verifies here proves exactly what RFC 9162 says.
Verification raises, it never returns a bool. It does not know what a leaf means, where hashes are
stored, or whether a root was signed.

Words: a *leaf* is always a leaf hash (32 bytes, `leaf_hash(entry)`). A *hash reader* answers
`reader(level, index)` with the node over the complete subtree of the leaves
`[index << level, (index + 1) << level)`; so level 0 is the leaf hashes. Proofs are built from such a
reader, so they run over stored tiles without holding the leaves.

Source: RFC 6962 §2.1, RFC 9162 §2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

from ledger.errors import BadProof

HASH_SIZE = 32
EMPTY_ROOT = sha256(b"").digest()

HashReader = Callable[[int, int], bytes]
HashSource = HashReader | Sequence[bytes]


def leaf_hash(entry: bytes) -> bytes:
    """Return the leaf hash of the entry's bytes. Source: RFC 9162 §2.1.1."""
    return sha256(b"\x00" + entry).digest()


def leaf_hashes(entries: Iterable[bytes]) -> list[bytes]:
    """Return what `leaf_hash` does for each, without a call for each."""
    return [sha256(b"\x00" + entry).digest() for entry in entries]


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an interior node. Source: RFC 9162 §2.1.1."""
    return sha256(b"\x01" + left + right).digest()


class Frontier:
    """A growing tree kept as the roots of its complete subtrees, the largest one first.

    It holds at most 64 hashes, however large the tree, and can be stored and reopened.
    """

    __slots__ = ("_nodes", "_size")

    def __init__(self) -> None:
        """Start with the empty tree."""
        self._size = 0
        self._nodes: list[bytes] = []

    @classmethod
    def from_nodes(cls, size: int, nodes: Sequence[bytes]) -> Frontier:
        """Return the frontier that `nodes()` of a tree of `size` leaves gave.

        Raises: BadProof when the number or the length of the nodes does not fit the size.
        """
        if size < 0 or len(nodes) != size.bit_count():
            reason = f"a frontier of size {size} has not {len(nodes)} nodes"
            raise BadProof(reason)
        _require_hashes(nodes)
        made = cls()
        made._size = size
        made._nodes = list(nodes)
        return made

    @property
    def size(self) -> int:
        """The number of leaves."""
        return self._size

    def nodes(self) -> tuple[bytes, ...]:
        """Return the roots of the complete subtrees, the largest one first."""
        return tuple(self._nodes)

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash."""
        self.append_many((leaf,))

    def append_many(self, leaves: Iterable[bytes]) -> list[list[bytes]]:
        """Add leaf hashes in order; returns the complete subtrees that are new, by level: the first are the leaves.

        Raises: BadProof for a leaf that is not 32 bytes; then nothing is added.
        """
        row = list(leaves)
        _require_hashes(row)
        levels = (level for level in range(self._size.bit_length()) if self._size >> level & 1)
        alone = dict(zip(levels, reversed(self._nodes), strict=True))
        self._size += len(row)
        made: list[list[bytes]] = []
        while row:
            made.append(row)
            level = len(made) - 1
            # A set bit of the old size is a complete subtree that waits for its right neighbour.
            pairs = [alone.pop(level), *row] if level in alone else row
            if len(pairs) % 2:
                alone[level] = pairs[-1]
            row = [
                sha256(b"\x01" + left + right).digest() for left, right in zip(pairs[::2], pairs[1::2], strict=False)
            ]
        self._nodes = [alone[level] for level in sorted(alone, reverse=True)]
        return made

    def root(self) -> bytes:
        """Return the root of the tree."""
        return _fold(self._nodes) if self._nodes else EMPTY_ROOT

    def copy(self) -> Frontier:
        """Return an independent frontier of the same tree."""
        return Frontier.from_nodes(self._size, self._nodes)


def root(leaves: Iterable[bytes]) -> bytes:
    """Return the root over the leaf hashes."""
    frontier = Frontier()
    frontier.append_many(leaves)
    return frontier.root()


def reader_of(leaves: Sequence[bytes]) -> HashReader:
    """Return a hash reader over leaf hashes held in memory."""
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([node_hash(below[i], below[i + 1]) for i in range(0, len(below) - 1, 2)])

    def read(level: int, index: int) -> bytes:
        try:
            return levels[level][index]
        except IndexError:
            reason = f"no complete subtree {index} at level {level}"
            raise BadProof(reason) from None

    return read


def root_of(size: int, source: HashSource) -> bytes:
    """Return the root of the first `size` leaves."""
    return _range_root(0, size, _reader(source)) if size else EMPTY_ROOT


def frontier_of(size: int, source: HashSource) -> Frontier:
    """Return the frontier of the first `size` leaves, to go on appending from there."""
    read = _reader(source)
    return Frontier.from_nodes(size, [read(level, index) for level, index in _subtrees(0, size)])


def inclusion_proof(index: int, size: int, source: HashSource) -> tuple[bytes, ...]:
    """Return the audit path of leaf `index` in the tree of the first `size` leaves, leaf side first.

    Raises: BadProof when the index is not in the tree. Source: RFC 9162 §2.1.3.1.
    """
    if not 0 <= index < size:
        reason = f"index {index} is not in a tree of size {size}"
        raise BadProof(reason)
    read = _reader(source)
    proof: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            proof.append(_range_root(middle, end, read))
            end = middle
        else:
            proof.append(_range_root(start, middle, read))
            start = middle
    return tuple(reversed(proof))


def consistency_proof(size1: int, size2: int, source: HashSource) -> tuple[bytes, ...]:
    """Return the proof that the tree of `size1` leaves is a prefix of the tree of `size2` leaves.

    Raises: BadProof unless 1 ≤ size1 ≤ size2. Source: RFC 9162 §2.1.4.1.
    """
    if not 1 <= size1 <= size2:
        reason = f"no proof leads from size {size1} to size {size2}"
        raise BadProof(reason)
    read = _reader(source)
    proof: list[bytes] = []
    start, end = 0, size2
    # `whole`: the old tree is so far exactly the left edge, so its root is known to the verifier.
    whole = True
    while size1 != end:
        middle = start + _split(end - start)
        if size1 <= middle:
            proof.append(_range_root(middle, end, read))
            end = middle
        else:
            proof.append(_range_root(start, middle, read))
            start = middle
            whole = False
    if not whole:
        proof.append(_range_root(start, end, read))
    return tuple(reversed(proof))


def verify_inclusion(index: int, size: int, leaf: bytes, proof: Sequence[bytes], root: bytes) -> None:
    """Check that `leaf` is the leaf hash number `index` of the tree (size, root).

    Raises: BadProof. Source: RFC 9162 §2.1.3.2.
    """
    if not 0 <= index < size:
        reason = f"index {index} is not in a tree of size {size}"
        raise BadProof(reason)
    _require_hashes([leaf, root, *proof])
    fn, sn, seen = index, size - 1, leaf
    for sibling in proof:
        if sn == 0:
            reason = "the inclusion proof is too long"
            raise BadProof(reason)
        if fn & 1 or fn == sn:
            seen = node_hash(sibling, seen)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            seen = node_hash(seen, sibling)
        fn, sn = fn >> 1, sn >> 1
    if sn:
        reason = "the inclusion proof is too short"
        raise BadProof(reason)
    if seen != root:
        reason = f"expected root {root.hex()}, got {seen.hex()}"
        raise BadProof(reason)


def verify_consistency(size1: int, size2: int, proof: Sequence[bytes], root1: bytes, root2: bytes) -> None:
    """Check that the tree (size1, root1) is a prefix of the tree (size2, root2).

    A size of 0 proves nothing and is refused: the caller treats "no previous tree" apart.
    Raises: BadProof. Source: RFC 9162 §2.1.4.2.
    """
    if not 1 <= size1 <= size2:
        reason = f"no proof leads from size {size1} to size {size2}"
        raise BadProof(reason)
    _require_hashes([root1, root2, *proof])
    if size1 == size2:
        if proof or root1 != root2:
            reason = "trees of one size must have one root and an empty proof"
            raise BadProof(reason)
        return
    if not proof:
        reason = "the consistency proof is empty"
        raise BadProof(reason)
    seen1, seen2 = _replay_consistency(size1, size2, proof, root1)
    if seen1 != root1:
        reason = f"expected old root {root1.hex()}, got {seen1.hex()}"
        raise BadProof(reason)
    if seen2 != root2:
        reason = f"expected new root {root2.hex()}, got {seen2.hex()}"
        raise BadProof(reason)


def _replay_consistency(size1: int, size2: int, proof: Sequence[bytes], root1: bytes) -> tuple[bytes, bytes]:
    """Return both roots as the proof derives them."""
    path = [root1, *proof] if size1.bit_count() == 1 else list(proof)
    fn, sn = size1 - 1, size2 - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    seen1 = seen2 = path[0]
    for sibling in path[1:]:
        if sn == 0:
            reason = "the consistency proof is too long"
            raise BadProof(reason)
        if fn & 1 or fn == sn:
            seen1, seen2 = node_hash(sibling, seen1), node_hash(sibling, seen2)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            seen2 = node_hash(seen2, sibling)
        fn, sn = fn >> 1, sn >> 1
    if sn:
        reason = "the consistency proof is too short"
        raise BadProof(reason)
    return seen1, seen2


def _reader(source: HashSource) -> HashReader:
    return source if callable(source) else reader_of(source)


def _require_hashes(hashes: Iterable[bytes]) -> None:
    for value in hashes:
        if len(value) != HASH_SIZE:
            reason = f"a hash has {HASH_SIZE} bytes, got {len(value)}"
            raise BadProof(reason)


def _split(count: int) -> int:
    """Return the largest power of two smaller than `count`, for a count of 2 or more."""
    return 1 << ((count - 1).bit_length() - 1)


def _subtrees(start: int, end: int) -> list[tuple[int, int]]:
    """Return the complete subtrees (level, index) that cover [start, end), left to right."""
    found: list[tuple[int, int]] = []
    while start < end:
        level = (end - start).bit_length() - 1
        if start:
            level = min(level, (start & -start).bit_length() - 1)
        found.append((level, start >> level))
        start += 1 << level
    return found


def _range_root(start: int, end: int, read: HashReader) -> bytes:
    """Return the root over [start, end), an aligned range as RFC 9162 splits them."""
    return _fold([read(level, index) for level, index in _subtrees(start, end)])


def _fold(nodes: Sequence[bytes]) -> bytes:
    """Return the root of complete subtrees, folding from the right edge."""
    seen = nodes[-1]
    for node in reversed(nodes[:-1]):
        seen = node_hash(node, seen)
    return seen

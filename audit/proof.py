"""One entry against one signed head: the smallest thing an auditor can check by himself.

Guarantees: header, index, size and root come from one tree, and the root counts only when a pinned key signed it for
this log; a right path to any other root proves nothing and is refused. Pure. Source: RFC 9162 §2.1.3, SCENARIOS L5, L6.
"""

from __future__ import annotations

from collections.abc import Sequence

from audit.keys import log_key, open_checkpoint
from ledger.checkpoint import Checkpoint
from ledger.entry import Header, decode_header, header_hash
from ledger.merkle import verify_inclusion


def verify_entry(header: bytes, *, index: int, inclusion: Sequence[bytes], note: bytes, vkey: str) -> Header:
    """Return the header that is proven to be entry `index` of the log whose key this is.

    Raises: MalformedHeader, MalformedNote, BadSignature, BadProof, BadPin.
    """
    key = log_key(vkey)
    checkpoint = open_checkpoint(note, [key], key.name)
    return included(header, index=index, inclusion=inclusion, checkpoint=checkpoint)


def included(header: bytes, *, index: int, inclusion: Sequence[bytes], checkpoint: Checkpoint) -> Header:
    """Return the header that is in the tree of a checkpoint that was opened before.

    Raises: MalformedHeader, BadProof.
    """
    decoded = decode_header(header)
    verify_inclusion(index, checkpoint.size, header_hash(header), inclusion, checkpoint.root)
    return decoded

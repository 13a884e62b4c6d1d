"""Headers of entries at the places that the index names, believed only as far as the batches bear the index out.

Guarantees: a header that is returned stands at its index in the batch that holds that index; everything else is a
RecordDamaged in its place, so that one damaged batch costs its own entries and no other. Not here: whether the header
is the one that was signed (`Log.proofs`), or the one that the caller asked for by its id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ledger.batches import Batch, batch_key, decode_batch
from ledger.errors import MalformedBatch, ObjectHidden, ObjectMissing, RecordDamaged

Found = bytes | RecordDamaged


def headers_at(
    get: Callable[[str], bytes], log_id: str, batch_of: Mapping[int, int], asked: Sequence[int]
) -> list[Found]:
    """Return the header of each index asked for, or what is wrong there; `batch_of` is what the index knows of it.

    Raises: what `get` raises for a store that does not answer.
    """
    batches = {first: _batch(get, log_id, first) for first in {batch_of[idx] for idx in asked if idx in batch_of}}
    return [_header(batches, batch_of.get(idx), idx) for idx in asked]


def _batch(get: Callable[[str], bytes], log_id: str, first: int) -> Batch | RecordDamaged:
    key = batch_key(first)
    try:
        batch = decode_batch(get(key))
    except ObjectMissing:
        return RecordDamaged("missing", f"{key} is gone")
    except ObjectHidden:
        return RecordDamaged("hidden", f"a delete marker lies over {key}")
    except MalformedBatch as error:
        return RecordDamaged("altered", f"{key} is not what the log writes ({error.reason})")
    if (batch.log_id, batch.first) != (log_id, first):
        return RecordDamaged("altered", f"{key} holds another batch")
    return batch


def _header(batches: Mapping[int, Batch | RecordDamaged], first: int | None, idx: int) -> Found:
    if first is None:
        return RecordDamaged("missing", f"the index knows no entry {idx}")
    batch = batches[first]
    if isinstance(batch, RecordDamaged):
        return batch
    if not batch.first <= idx < batch.end:
        return RecordDamaged("altered", f"the index looks for entry {idx} in {batch.key}, which does not hold it")
    return batch.headers[idx - batch.first]

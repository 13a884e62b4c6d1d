"""What travels to the sequencer: a sealed entry without its place, and the answer that gives it one.

Guarantees: nothing here is readable content; ciphertext and keyed digests only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec


class SealedPart(msgspec.Struct, frozen=True, kw_only=True):
    """One sealed part: its role in the header, its ciphertext, the day its lock ends (None: unlocked), its keys.

    `sha256` is the ciphertext's, where the sealer took it already.
    """

    role: str
    algorithm: str
    ciphertext: bytes
    lock_until: datetime | None
    key_ids: tuple[str, ...]
    sha256: bytes | None = None


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed entry on its way to the sequencer, which alone sets index, position and previous hash.

    `digest` is keyed and tells a repeat from an id conflict. `subjects` are the surrogates of the persons in each part,
    for the fence; `stream_no`, `run_no`, `set_id` are surrogates for the index. `stem` is the header's text but for its
    places (`entry.stem_of`), where whoever sealed made it already; it counts where no part is dropped.
    """

    entry_id: str
    kind: str
    data_class: str
    class_version: int
    at: datetime
    received: datetime
    recorder: str | None
    seq: int | None
    stream_id: str
    stream_no: int
    run_no: int | None
    set_id: int
    sources_count: int
    sources_root: bytes | None
    parts: tuple[SealedPart, ...]
    subjects: tuple[tuple[int, ...], ...]
    digest: bytes
    noncanonical: bool = False
    stem: tuple[str, ...] | None = None


class PlacedState(StrEnum):
    """What became of a draft."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    SUPPRESSED = "suppressed"
    DAMAGED = "damaged"
    """Whether it is in the log cannot be told: what would say so is damaged, or gone."""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """The sequencer's answer for one draft. `index` is that of an entry that was stored, now or before."""

    entry_id: str
    state: PlacedState
    index: int | None
    leaf: bytes | None = None
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The answers for one call of `append`, in its order, and the note that the log signed over the flush."""

    placed: Sequence[Placed]
    receipt: str | None

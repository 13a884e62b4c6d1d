"""A sound log in memory for the auditor's tests: several batches, heads, streams, recorders and payload objects."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest

from audit.corruptions import Copy
from audit.forge import History, MemoryBucket, StandInKey, chained, hot_objects, written
from ledger.entry import Header, Kind, Part, uuid7

LOG_ID = "5f0c" * 8
ORIGIN = f"muniment/{LOG_ID}"
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

MakeLog = Callable[..., Copy]


def make_log(*, batches: int = 4, per_batch: int = 5, streams: int = 3, part_bytes: int = 64) -> Copy:
    """Return a log of `batches × per_batch` entries with a head after every batch."""
    headers: list[Header] = []
    objects: dict[str, bytes] = {}
    positions: dict[int, int] = {}
    for batch in range(batches):
        name = f"payload/2026-09/{uuid7(START + timedelta(seconds=batch), sha256(b'%d' % batch).digest()[:10])}"
        data = bytearray()
        for number in range(per_batch):
            index = batch * per_batch + number
            stream = index % streams
            parts = []
            for role in ("part.0", "skeleton"):
                seal = sha256(f"{index} {role}".encode()).digest()
                ciphertext = (seal * (part_bytes // 32 + 1))[:part_bytes]
                parts.append(
                    Part(
                        role=role,
                        algorithm="c2sp-chunked.v1",
                        length=part_bytes,
                        sha256=sha256(ciphertext).digest(),
                        object=name,
                        offset=len(data),
                    )
                )
                data += ciphertext
            at = START + timedelta(seconds=index)
            headers.append(
                Header(
                    id=uuid7(at, sha256(b"id %d" % index).digest()[:10]),
                    kind=Kind.TURN_USER if index else Kind.SYSTEM_GENESIS,
                    data_class="transcript",
                    at=at,
                    received=at,
                    recorder="ab" * 8,
                    seq=index,
                    stream=f"{stream:032x}",
                    position=positions.get(stream, 0),
                    previous=bytes(32),
                    sources_count=0,
                    sources_root=None,
                    parts=tuple(parts),
                )
            )
            positions[stream] = positions.get(stream, 0) + 1
        objects[f"{LOG_ID}/{name}"] = bytes(data)
    starts = tuple(range(0, batches * per_batch, per_batch))
    history = History(
        log_id=LOG_ID,
        headers=chained(headers),
        starts=starts,
        fences=(1,) * batches,
        names=starts,
        sizes=tuple(start + per_batch for start in starts),
    )
    key = StandInKey(ORIGIN)
    return Copy(
        history=history,
        bucket=MemoryBucket(objects | written(history, key)),
        hot=MemoryBucket(hot_objects(history, key)),
        key=key,
        forger=StandInKey(ORIGIN),
    )


@pytest.fixture(name="make_log", scope="session")
def _make_log() -> MakeLog:
    """Returns the maker of logs."""
    return make_log


@pytest.fixture(scope="session")
def small_log() -> Copy:
    """Returns a log of 20 entries in 4 batches; copy it before changing it."""
    return make_log()


@pytest.fixture(scope="session")
def log_with_tiles() -> Copy:
    """Returns a log of 600 entries, so that two tiles are full."""
    return make_log(batches=6, per_batch=100)

"""The payload of a flush on its way into the store, of a large one while the batch that will name it is made.

Guarantees: what `storing` yields returns only once every object is stored, and raises what the store raised; whoever
names the objects calls it first. Nothing is under way any more when the block ends, however it ends, and `stored` then
says of every part that lies in the bucket where: a flush that goes on elsewhere stores none of them again.

A crash leaves orphan ciphertext under its lock, as ever: no batch names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime

from ledger.placing import Fresh, Stored, pack_objects

ASIDE = 200
"""From so many entries on: for fewer, a thread takes longer than what it spares."""

Put = Callable[[str, bytes, datetime | None], None]
"""Stores one object: name below the log's prefix, bytes, end of the lock."""


@contextmanager
def storing(put: Put, fresh: Fresh, stored: Stored, now: datetime) -> Iterator[tuple[Stored, Callable[[], None]]]:
    """Store one object per lock end; yields where every part will lie, and what returns when all of them do."""
    objects, places = pack_objects(fresh, stored, now)

    def put_all() -> None:
        for one in objects:
            put(*one)
        stored.update(places)

    if len(fresh) < ASIDE:
        put_all()
        yield stored, lambda: None
        return
    everywhere = {**stored, **places}
    # Closing the pool waits for what is under way.
    with ThreadPoolExecutor(1, "muniment-payload") as pool:
        yield everywhere, pool.submit(put_all).result

"""Which people each thread (or shared file, or session) names, in bounded memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from connectors.scanning.look import Look, time_of_uuid
from connectors.scanning.report import LIMIT, DryRun, Place

if TYPE_CHECKING:
    from datetime import datetime

Owner = tuple[str, str]


class Threads:
    """Threads with their owners. Past `LIMIT` threads only rows are counted, and `complete` says so."""

    __slots__ = ("_all", "_at", "_look", "_mentions", "complete")

    def __init__(self, look: Look) -> None:
        self._look = look
        self._all: dict[str, tuple[Owner, ...]] = {}
        self._at: dict[str, datetime] = {}
        self._mentions: set[str] = set()
        self.complete = True

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, thread: str) -> bool:
        return thread in self._all

    def add(self, thread: str, owner: Owner | None, *, at: datetime | None = None, mentions: bool = False) -> None:
        """Note one row of a thread."""
        if thread not in self._all:
            if len(self._all) >= LIMIT:
                self.complete = False
                return
            self._all[thread] = () if owner is None else (owner,)
        elif owner is not None and owner not in self._all[thread]:
            self._all[thread] = (*self._all[thread], owner)
        if mentions:
            self._mentions.add(thread)
        if at is not None and self._look.sink is not None:
            self._at[thread] = max(at, self._at.get(thread, at))

    def items(self) -> Iterator[tuple[str, tuple[Owner, ...], datetime | None]]:
        """Yield every thread with the people it names and its newest time."""
        for thread, owners in self._all.items():
            yield thread, owners, self._at.get(thread)

    def sum_up(self, place: Place, *, nobody: bool = True) -> None:
        """Write the sums into a place."""
        place.threads = len(self._all)
        own = shared = mentions = 0
        for thread, owners, _ in self.items():
            values = {value for _, value in owners}
            place.several += len(values) > 1
            place.nobody += nobody and not owners
            theirs = any(self._look.is_subject(value) for value in values)
            own += theirs
            shared += theirs and any(not self._look.is_subject(value) for value in values)
            mentions += not theirs and thread in self._mentions
        if self._look.subject is not None:
            place.dry_run = DryRun(items=own, shared=shared, mentions=mentions)
        if not self.complete:
            place.notes.append(f"more than {LIMIT} threads: what is said of threads holds for the first {LIMIT}")


def day_of_checkpoint(checkpoint: object) -> datetime | None:
    """Return when a checkpoint was written, which its id says."""
    return time_of_uuid(checkpoint)

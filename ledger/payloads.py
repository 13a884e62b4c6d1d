"""Reads many sealed parts with few requests: neighbours in one payload object come in one range.

Guarantees: the bytes of each part are exactly those a request of its own would give; at most `HELD` ranges of
`RUN_BYTES` are in memory at a time; an object that is gone or hidden is said so for each of its parts. Nothing is kept
beyond one use of the reader, so that what changes in the bucket is seen by the next one. Not here: any check of bytes.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ledger.entry import Part

RUN_BYTES = 4 * 1024 * 1024
GAP_BYTES = 64 * 1024
HELD = 4

Fetch = Callable[[str, int, int], bytes]
"""Returns the bytes of an object (key below the log's prefix) from an offset, at most so many."""


@dataclass(frozen=True, slots=True)
class _Run:
    key: str
    start: int
    end: int


class Payloads:
    """The parts that will be asked for, grouped; ask for them in any order."""

    def __init__(self, parts: Iterable[Part], fetch: Fetch) -> None:
        self._fetch = fetch
        self._held: OrderedDict[_Run, bytes] = OrderedDict()
        self._runs: dict[tuple[str, int, int], _Run] = {}
        by_object: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for part in parts:
            by_object[part.object].append((part.offset, part.length))
        for key, ranges in by_object.items():
            self._group(key, sorted(set(ranges)))

    def read(self, part: Part) -> bytes:
        """Return a part's bytes, fewer where the object ends early. Raises: ObjectMissing, ObjectHidden, and others."""
        run = self._runs[part.object, part.offset, part.length]
        data = self._held.get(run)
        if data is None:
            data = self._held[run] = self._fetch(run.key, run.start, run.end - run.start)
            if len(self._held) > HELD:
                self._held.popitem(last=False)
        start = part.offset - run.start
        return data[start : start + part.length]

    def _group(self, key: str, ranges: list[tuple[int, int]]) -> None:
        members: list[tuple[int, int]] = []
        start = end = 0
        for offset, length in ranges:
            if members and (offset - end > GAP_BYTES or offset + length - start > RUN_BYTES):
                self._close(key, members, start, end)
                members = []
            if not members:
                start = end = offset
            members.append((offset, length))
            end = max(end, offset + length)
        if members:
            self._close(key, members, start, end)

    def _close(self, key: str, members: list[tuple[int, int]], start: int, end: int) -> None:
        run = _Run(key, start, end)
        self._runs.update(dict.fromkeys(((key, offset, length) for offset, length in members), run))

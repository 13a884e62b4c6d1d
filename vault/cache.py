"""A cache for plaintext keys: bounded in count and in age, emptied on demand, safe between threads.

Guarantees that nothing is returned ``seconds`` after it was put, and that nothing read before an eviction is put
after it (``generation``). Cannot wipe memory: Python gives no hold on where the bytes were copied.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def awake_or_asleep() -> float:
    """Return seconds by a clock that goes on while the machine sleeps, as a key's time does; Linux has one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class TimedCache(Generic[K, V]):
    """At most ``capacity`` values, each for at most ``seconds`` since it was put, the oldest going first."""

    def __init__(self, *, capacity: int, seconds: float, monotonic: Callable[[], float]) -> None:
        """Take the clock as an argument, so that tests can move it."""
        self._capacity = capacity
        self._seconds = seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._held: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self.generation = 0
        """Counts evictions; read it before reading what is going to be put."""

    def get(self, key: K) -> V | None:
        """Return the value, or None once it is too old."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return None
            if self._monotonic() - held[0] < self._seconds:
                return held[1]
            self._drop_old()
            return None

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return those of the values that are there and not too old."""
        found: dict[K, V] = {}
        with self._lock:
            oldest = self._monotonic() - self._seconds
            for key in keys:
                held = self._held.get(key)
                if held is not None and held[0] > oldest:
                    found[key] = held[1]
            self._drop_old()
        return found

    def put(self, key: K, value: V, generation: int) -> None:
        """Keep the value unless something was evicted since ``generation``; its age starts now."""
        with self._lock:
            if generation != self.generation or self._capacity <= 0:
                return
            self._held.pop(key, None)
            self._held[key] = (self._monotonic(), value)
            while len(self._held) > self._capacity:
                self._held.popitem(last=False)

    def evict(self, keys: Iterable[K]) -> None:
        """Forget these values."""
        with self._lock:
            self.generation += 1
            for key in keys:
                self._held.pop(key, None)

    def evict_all(self) -> None:
        """Forget everything."""
        with self._lock:
            self.generation += 1
            self._held.clear()

    def expire(self) -> None:
        """Forget what is too old, so that a key nobody asks for does not stay either."""
        with self._lock:
            self._drop_old()

    def _drop_old(self) -> None:
        # Values are put in the order of time, so the old ones stand first.
        end = self._monotonic() - self._seconds
        while self._held and next(iter(self._held.values()))[0] <= end:
            self._held.popitem(last=False)

    def __len__(self) -> int:
        """Return how many values are held, old ones included."""
        return len(self._held)

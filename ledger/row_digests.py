"""What tells a row that this service wrote from one that somebody wrote who has the database alone. No key is here.

Guarantees of whoever implements it: nobody without the tenant's look-up key, which is not in the database, makes a
digest that fits. Not here: a row that was taken away, or put back as it stood before; its digest was right then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class RowDigests(Protocol):
    """Makes and compares keyed digests over rows of one tenant."""

    def of(self, label: str, *parts: str | bytes) -> bytes:
        """Return the digest of parts, whose borders count, under a label that stands for one kind of row."""

    def fits(self, digest: bytes | None, label: str, *parts: str | bytes) -> bool:
        """Whether a digest is one that this service made over these; None never is."""


DigestsOf = Callable[[int], RowDigests]
"""Gives those of a tenant, with the newest key."""

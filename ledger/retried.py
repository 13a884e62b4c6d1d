"""Marks in the unlocked store: an action that had failed as this row says was claimed again.

Guarantees: the mark is durable before the claim can be committed, so that a row which an older copy of the database
brings back as failed is told from one that nobody claimed since. It is named after the digest of that very row: no
clock is compared, and the row of a later failure has another name. A mark whose claim was not committed makes one
action ask its provider without need. Not here: an unlocked store that was put back itself. Marks stay: nobody knows
how old the oldest backup is that may come back, and there is one for each time that somebody tried again.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from ledger.errors import ObjectExists
from ledger.objects import HotStore

RETRIED = "retried"
_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The marks of one log."""

    hot: HotStore
    log_id: str

    def mark(self, row_digest: bytes) -> bool:
        """Mark the row of this digest; returns False where it was marked before. Raises what the store raises."""
        try:
            # A store that lost an answer knows its own object by its bytes.
            self.hot.put(f"{self.log_id}/{RETRIED}/{row_digest.hex()}", secrets.token_bytes(_BYTES), lock_until=None)
        except ObjectExists:
            return False
        return True

    def marked(self) -> list[bytes]:
        """Return the digests of all rows that were marked. Raises what the store raises."""
        return [bytes.fromhex(key.rsplit("/", 1)[-1]) for key in self.hot.list(f"{self.log_id}/{RETRIED}/")]

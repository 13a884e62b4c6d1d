"""What a process does that does not lead: it hands calls over to the one that does, and waits.

Guarantees: what is staged has its payload in the bucket and is answered once, by whoever leads; while it waits, a
process takes the lease over when nobody holds it. Payload is locked, so nothing is stored for a call that nobody can
place: a process first sees to it that somebody leads, and as long as a call of its own waits in vain it stores no
other of that log. Not here: the rows (`ledger.staging`), what the leader does with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from ledger import index, staging
from ledger.draft import Appended
from ledger.errors import CheckpointPending, NotLeader, ObjectMissing
from ledger.head import LogParts
from ledger.heads import Heads
from ledger.lease import Lease
from ledger.placing import Stored
from ledger.row_digests import DigestsOf
from ledger.storing import storing
from ledger.turns import Call

Found = TypeVar("Found")

STAGED_SECONDS = 20.0
"""How long a staged call waits: longer than it takes another process to find out that the holder is gone."""

CHECKPOINT_SECONDS = 3.0
EARLIER_SECONDS = 3.0
"""How long a call waits for one before it that nobody placed in time, before it is refused too."""
_POLL_SECONDS = 0.02
_TAKEOVER_SECONDS = 1.0


class Handover:
    """Hands over and waits. `serve` does what a leader does, for a process that took the lease over while it waited."""

    def __init__(
        self, parts: LogParts, heads: Heads, lease: Lease, digests_of: DigestsOf, serve: Callable[[datetime], int]
    ) -> None:
        self._parts = parts
        self._digests_of = digests_of
        self._heads = heads
        self._lease = lease
        self._serve = serve
        self._late: dict[int, str] = {}

    def takes_over(self, now: datetime) -> bool:
        """Return whether this process leads from now on, because nobody did; False when another one does."""
        return not self._lease.is_led(now) and self._lease.take(now)

    def stage(self, tenant_id: int, calls: Sequence[Call], stored: Stored, now: datetime) -> list[Appended]:
        """Hand calls to the lease holder and return its answers; calls of one log take turns.

        Raises: NotLeader without one in time, and before anything is stored while an earlier call still waits;
        LogForked.
        """
        self._require_served(tenant_id, now)
        drafts = [draft for call in calls for draft in call.drafts]
        fresh = [(draft, frozenset[int]()) for draft in drafts]
        with storing(self._heads.putter(self._heads.head(tenant_id)), fresh, stored, now) as (_, is_stored):
            is_stored()
        digests = self._digests_of(tenant_id)
        with self._parts.transactions(tenant_id) as session:
            staged_id = staging.put(session, tenant_id, drafts, stored, now, digests=digests)

        def answered() -> Appended | None:
            with self._parts.transactions(tenant_id, write=False) as session:
                return staging.answer_of(session, tenant_id, staged_id, digests=digests)

        found = self._poll(answered, now, seconds=STAGED_SECONDS)
        if found is None:
            self._late[tenant_id] = staged_id
            raise NotLeader("nobody sequenced in time what was staged")
        with self._parts.transactions(tenant_id) as session:
            staging.forget(session, tenant_id, staged_id)
        placed = iter(found.placed)
        return [Appended(placed=[next(placed) for _ in call.drafts], receipt=found.receipt) for call in calls]

    def _require_served(self, tenant_id: int, now: datetime) -> None:
        """Raise NotLeader while a call that this process handed over earlier waits: the next one would wait too."""
        late = self._late.get(tenant_id)
        if late is None:
            return

        def served() -> bool | None:
            with self._parts.transactions(tenant_id, write=False) as session:
                return None if staging.is_waiting(session, tenant_id, late) else True

        if self._poll(served, now, seconds=EARLIER_SECONDS) is None:
            raise NotLeader("what was staged before still waits for somebody who sequences it")
        del self._late[tenant_id]

    def _poll(self, read: Callable[[], Found | None], now: datetime, *, seconds: float) -> Found | None:
        begun = time.monotonic()
        tried = begun
        while True:
            found = read()
            elapsed = time.monotonic() - begun
            if found is not None or elapsed > seconds:
                return found
            if begun + elapsed - tried > _TAKEOVER_SECONDS:
                # Whoever waits sees to it that somebody leads; usually somebody does.
                tried = begun + elapsed
                moment = now + timedelta(seconds=elapsed)
                if self._lease.held or self._lease.take(moment):
                    self._serve(moment)
            time.sleep(_POLL_SECONDS)

    def await_checkpoint(self, tenant_id: int, now: datetime, at_least: int) -> bytes:
        """Ask the holder for a checkpoint over what is stored, or over `at_least`. Raises: CheckpointPending."""
        with self._parts.transactions(tenant_id, write=False) as session:
            state = index.state_of(session, tenant_id)
        if state is None:
            raise ObjectMissing("log_state")
        wanted = at_least or state.size
        if state.checkpoint_size < wanted:
            with self._parts.transactions(tenant_id) as session:
                staging.knock(session, tenant_id, staging.CHECKPOINT, now)
        end = time.monotonic() + CHECKPOINT_SECONDS
        while True:
            with self._heads.reading(tenant_id) as head:
                if head.checkpoint_size >= wanted:
                    return head.checkpoint_note
            if time.monotonic() > end:
                raise CheckpointPending(size=wanted)
            time.sleep(_POLL_SECONDS)

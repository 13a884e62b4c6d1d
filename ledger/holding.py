"""Legal holds on payload objects: set, lifted and remembered, and their locks prolonged while they last.

Guarantees: the store is told first and the row written after it, both again after a crash, so that what is noted as
held is held. One object that the store refuses does not keep the others from being held: it is told. Of a batch that
cannot be read all objects count as concerned: a hold keeps too much then, never too little. Which parts concern whom is
not known here.

Whose a legal hold is stands in the unlocked store, in a mark for each object, written before its hold is set: `own`, or
`shared` where somebody had held the object before. Only an `own` one is lifted, also by a service whose database was
rebuilt. Somebody's hold that is set while ours is on cannot be told from it, because a store keeps one flag.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session, col

from ledger.batches import batch_key, decode_batch
from ledger.errors import LedgerError, ObjectMissing, StoreDenied, StoreUnavailable
from ledger.expiry import AWAY, parts_of
from ledger.head import Transactions
from ledger.index import chunks
from ledger.models import Instant, LogState, PayloadRow
from ledger.objects import HoldingStore, HotStore, ObjectStore

AHEAD = timedelta(days=31)
"""A lock that ends within this time is prolonged by as much, so that it never ends under a hold."""
MARKS = "held/"
OWN, SHARED = b"own", b"shared"


@dataclass(slots=True)
class Told:
    """What the store was told: the names it took, and why it refused the others."""

    names: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


class Holding:
    """Holds payload objects of every log of one deployment."""

    def __init__(self, locked: ObjectStore, transactions: Transactions, hot: HotStore) -> None:
        """`hot` keeps whose each hold is."""
        self._locked = locked
        self._transactions = transactions
        self._hot = hot

    @property
    def can_hold(self) -> bool:
        """Whether the store has legal holds."""
        return isinstance(self._locked, HoldingStore)

    def objects_with(self, tenant_id: int, wanted: Mapping[int, Collection[tuple[int, int]]]) -> set[str]:
        """The names of the objects in which any of these (index, part number) lie, by their batches.

        Raises: StoreUnavailable, StoreDenied, for a store that is away.
        """
        log_id = self._log_id(tenant_id)
        found: set[str] = set()
        away = 0
        for first, parts in sorted(wanted.items()):
            try:
                objects = parts_of(decode_batch(self._locked.get(f"{log_id}/{batch_key(first)}")))
            except LedgerError as error:
                away = away + 1 if isinstance(error, StoreUnavailable | StoreDenied) else 0
                if away == AWAY:
                    raise
                found |= self._known_of(tenant_id, first)
                continue
            away = 0
            for name, sealed in objects.items():
                if any((part.idx, part.number) in parts for part in sealed):
                    found.add(name)
        return found

    def _known_of(self, tenant_id: int, first: int) -> set[str]:
        """The objects of a batch as the index knows them."""
        with self._transactions(tenant_id, write=False) as session:
            query = sa.select(col(PayloadRow.name)).where(
                col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.batch_first) == first
            )
            return set(session.scalars(query))

    def held_between(self, session: Session, tenant_id: int, start: int, end: int) -> set[str]:
        """The names that are noted as held, of batches from one index to before another."""
        query = sa.select(col(PayloadRow.name)).where(
            col(PayloadRow.tenant_id) == tenant_id,
            col(PayloadRow.held).is_(True),
            col(PayloadRow.batch_first) >= start,
            col(PayloadRow.batch_first) < end,
        )
        return set(session.scalars(query))

    def is_holding(self, session: Session, tenant_id: int) -> bool:
        """Whether any object is noted as held."""
        query = sa.select(col(PayloadRow.name)).where(
            col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.held).is_(True)
        )
        return session.scalars(query.limit(1)).first() is not None

    def set(self, tenant_id: int, names: Collection[str], *, on: bool) -> Told:
        """Hold these objects or let them go. One that is gone counts as told: nothing is left to hold.

        One that somebody held before is let go of by us and stays held. Raises: StoreUnavailable for a store that is
        away, after what it took before is noted.
        """
        store, log_id, done = self._locked, self._log_id(tenant_id), Told()
        if not isinstance(store, HoldingStore):
            return done
        away: list[StoreUnavailable] = []
        for name in sorted(names):
            try:
                with contextlib.suppress(ObjectMissing):
                    (self._hold if on else self._lift)(store, log_id, name)
            except LedgerError as error:
                done.refused[name] = str(error)
                away = [*away, error] if isinstance(error, StoreUnavailable) else []
                if len(away) == AWAY:
                    break
                continue
            away = []
            done.names.append(name)
        with self._transactions(tenant_id) as session:
            for some in chunks(done.names):
                session.connection().execute(
                    sa.update(PayloadRow)
                    .where(col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.name).in_(some))
                    .values(held=on)
                )
        if len(away) == AWAY:
            raise away[-1]
        return done

    def _hold(self, store: HoldingStore, log_id: str, name: str) -> None:
        if self._mark(log_id, name) is None:
            shared = self._locked.head(f"{log_id}/{name}").held
            self._hot.replace(f"{log_id}/{MARKS}{name}", SHARED if shared else OWN)
        store.hold(f"{log_id}/{name}", on=True)

    def _lift(self, store: HoldingStore, log_id: str, name: str) -> None:
        if self._mark(log_id, name) == OWN:
            store.hold(f"{log_id}/{name}", on=False)
        self._hot.delete(f"{log_id}/{MARKS}{name}")

    def _mark(self, log_id: str, name: str) -> bytes | None:
        """Whose the hold on an object is; None where we set none."""
        try:
            return self._hot.get(f"{log_id}/{MARKS}{name}")
        except ObjectMissing:
            return None

    def prolong(self, tenant_id: int, now: datetime, *, limit: int = 1_000) -> int:
        """Prolong the locks of held objects that would end soon; how many. One that cannot be comes again."""
        store, log_id = self._locked, self._log_id(tenant_id)
        if not isinstance(store, HoldingStore):
            return 0
        with self._transactions(tenant_id, write=False) as session:
            query = sa.select(col(PayloadRow.name)).where(
                col(PayloadRow.tenant_id) == tenant_id,
                col(PayloadRow.held).is_(True),
                col(PayloadRow.deleted_at).is_(None),
                col(PayloadRow.until) <= sa.literal(now + AHEAD, Instant()),
                # A lock that is over cannot be taken up again; the legal hold keeps the object.
                col(PayloadRow.until) > sa.literal(now, Instant()),
            )
            names = sorted(set(session.scalars(query.limit(limit))))
        done = away = 0
        for name in names:
            until = now + 2 * AHEAD
            try:
                store.prolong(f"{log_id}/{name}", until)
            except LedgerError as error:
                away = away + 1 if isinstance(error, StoreUnavailable) else 0
                if away == AWAY:
                    break  # it would not answer for the others either
                continue
            away = 0
            with self._transactions(tenant_id) as session:
                session.connection().execute(
                    sa.update(PayloadRow)
                    .where(col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.name) == name)
                    .values(until=until)
                )
            done += 1
        return done

    def _log_id(self, tenant_id: int) -> str:
        with self._transactions(tenant_id, write=False) as session:
            state = session.get(LogState, tenant_id)
        if state is None:
            raise ObjectMissing("log_state")
        return state.log_id

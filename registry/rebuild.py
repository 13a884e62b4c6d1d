"""Brings one tenant back when its database is gone: from the bucket, the unlocked store and the key folder.

 1. Find out whose log it is, from the first object with rows; its key opens the others.
 2. Put rows back in the order of time: those before the newest whole snapshot, the snapshot, those after it. A later
    row takes the place of an earlier one; a row of the vault goes only forward and a tombstone is never undone.
 3. Make the log's head, index every batch, build the tree and hold it against the newest checkpoint (`ledger.head`).
 4. Replay what the record says was decided since: fences, destroyed keys, destroyed key-encryption keys, holds,
    consents, ended tokens. Log first means that what it says is going is gone, unless a hold in force keeps it.
 5. Turn the key groups in which something was destroyed, so that no backup of the rows opens it.
 6. Count what could not be brought back.

Guarantees: every step can be run again after a crash, and a whole second run changes nothing. Erased stays erased:
nothing is served between 2 and 4, because the caller serves nothing until `run` returned. Nothing is invented: what is
missing is named. Not here: whether this may be done at all, verification of the bytes, printing.

`catch_up` does the same for a database that is there and older than the record (a restored backup, a failover, a crash
between a batch and its commit): it adds rows that are missing, changes none that is there (but an action that failed,
and was claimed again since, is in doubt), and replays only what was decided since. What it cannot settle without the
stores (copies to erase again, identity keys that still open where they lie) it hands to its caller as the decisions
themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger import actions, outbox
from ledger.behind import settle
from ledger.entry import Kind
from ledger.head import Transactions, save
from ledger.log import Log
from ledger.models import EntryRow, LogState
from ledger.objects import HotStore
from ledger.retried import Retried
from registry.decided import Decided, Parts, Progress, Rebuilt, Replay, Stopped
from registry.errors import JournalUnreadable, NothingToRebuild
from registry.journal import (
    END,
    ROWS,
    VAULT_ROWS,
    Content,
    Journal,
    Tables,
    complete_snapshots,
    read_object,
    row_objects,
    tenant_of,
)
from registry.keyed import RowDigests
from registry.losses import lost_keys, unnamed_streams
from registry.models import Tenant
from registry.put_back import as_now, put_rows, recount_groups
from vault.models import DataKey, KeyState, PartKey
from vault.vault import Vault

_OBJECTS_A_TRANSACTION = 100
_NEWEST_HOLDS = 200
"""So many events are read for what a crash parted: it left them at the end."""


class Rebuild:
    """Rebuilds logs into one empty database."""

    def __init__(
        self,
        *,
        vault: Vault,
        log: Log,
        journal: Journal,
        transactions: Transactions,
        hot: HotStore,
        tables: Tables,
        stopped: Stopped,
    ) -> None:
        self._stopped = stopped
        self._vault = vault
        self._log = log
        self._journal = journal
        self._transactions = transactions
        self._hot = hot
        self._tables = {table.name: table for table in tables()}

    def run(self, log_id: str, now: datetime, *, grace: timedelta, progress: Progress = lambda *_: None) -> Rebuilt:
        """Bring a log's tenant back. `grace` is how long a turned key-encryption key is kept.

        Raises: NothingToRebuild, JournalUnreadable, KekUnknown and NotDecryptable (the key folder is not the one that
        belongs to this data), ObjectMissing, LogForked, LogRolledBack, and what database and stores raise.
        """
        snapshot, paths = self._sources(log_id)
        made = Rebuilt(log_id=log_id, tenant="", tenant_id=self._whose(log_id, paths))  # 1
        made.snapshot_at = snapshot.at if snapshot is not None else None
        self._put_back(made, paths, progress)  # 2
        self._doubt_actions(made, None)
        self._make_head(made, 0 if snapshot is None else snapshot.outbox_counter)
        with self._log.entered(made.tenant_id) as head:  # 3
            made.entries, made.checkpoint_size = head.size, head.checkpoint_size
            with self._transactions(made.tenant_id) as session:
                save(session, head)
                outbox.stand_at_record(session, made.tenant_id, log_id)
        Replay(self._parts(), made, now, progress).run()  # 4
        self._turn(made, now, grace)  # 5
        self._count_losses(made)  # 6
        settle(self._hot, log_id)
        if made.entries:
            # What was stored and not yet signed when the database went: as at any other start.
            self._log.publish(made.tenant_id, now)
        return made

    def catch_up(
        self, tenant_id: int, log_id: str, *, size: int, since: datetime, now: datetime, grace: timedelta
    ) -> Rebuilt:
        """Bring a database of `size` entries, written up to `since`, to where the record is. Raises: as `run`."""
        made = Rebuilt(log_id=log_id, tenant="", tenant_id=tenant_id)
        made.snapshot_at = None
        self._put_missing(made, since)  # 2
        self._doubt_actions(made, Retried(hot=self._hot, log_id=log_id).marked())
        self._log.forget_heads()
        with self._log.entered(tenant_id) as head:  # 3
            made.entries, made.checkpoint_size = head.size, head.checkpoint_size
        Replay(self._parts(), made, now, lambda *_: None, after=size - 1).run()  # 4
        self._turn(made, now, grace)  # 5
        return made

    def finish_holds(self, tenant_id: int, log_id: str, now: datetime, *, until: datetime | None = None) -> int:
        """Put in force, or end, the holds whose event was parted from its row; returns how much there was to look at.

        Nothing is read where rows and events are equally many, up to `until` if given: younger ones may be under way.
        Raises: what the log's store raises, RecordDamaged.
        """
        kinds = (Kind.HOLD_PLACED, Kind.HOLD_RELEASED)
        holds = self._tables["hold"]
        with self._transactions(tenant_id, write=False) as session:
            ours = sa.select(col(EntryRow.idx)).where(
                col(EntryRow.tenant_id) == tenant_id, col(EntryRow.stream_no) == 0, col(EntryRow.kind).in_(kinds)
            )
            rows = sa.select(holds.c.hold_id).where(holds.c.tenant_id == tenant_id)
            ended = rows.where(holds.c.released_at.is_not(None))
            counted = ours
            if until is not None:
                counted = ours.where(col(EntryRow.at) <= until)
                # A time that has not come was written by nobody here.
                rows = rows.where(_is_settled(holds.c.created_at, until, now))
                ended = ended.where(_is_settled(holds.c.released_at, until, now))
            if _count(session, counted) == _count(session, rows) + _count(session, ended):
                return 0
            newest = ours.order_by(col(EntryRow.idx).desc())
            before = session.scalar(newest.offset(_NEWEST_HOLDS).limit(1))
        made = Rebuilt(log_id=log_id, tenant="", tenant_id=tenant_id)
        Replay(self._parts(), made, now, lambda *_: None, after=-1 if before is None else before, kinds=kinds).run()
        return made.events + self._hold_again(tenant_id, log_id, now)

    def _hold_again(self, tenant_id: int, log_id: str, now: datetime) -> int:
        """Put in force what a row says has ended and no event does: an end stands in the record before it takes effect.

        Nothing where an event cannot be read any more, which may be the one.
        """
        holds = self._tables["hold"]
        mine = (holds.c.tenant_id == tenant_id) & holds.c.released_at.is_not(None)
        with self._transactions(tenant_id, write=False) as session:
            ended = set(session.scalars(sa.select(holds.c.hold_id).where(mine)))
        events, unread = self.hold_events(tenant_id, log_id, now)
        said = {event.body["hold"] for event in events if event.kind is Kind.HOLD_RELEASED}
        false = sorted(ended - said) if not unread else []
        for hold_id in false:
            with self._transactions(tenant_id) as session:
                again = sa.update(holds).where(mine, holds.c.hold_id == hold_id)
                session.execute(again.values(released_by=None, released_at=None))
        return len(false)

    def hold_events(self, tenant_id: int, log_id: str, now: datetime) -> tuple[list[Decided], int]:
        """Return what the record says of holds, in its order, and how many events could not be read."""
        made = Rebuilt(log_id=log_id, tenant="", tenant_id=tenant_id)
        kinds = (Kind.HOLD_PLACED, Kind.HOLD_RELEASED)
        return Replay(self._parts(), made, now, lambda *_: None, kinds=kinds).read()

    def _put_missing(self, made: Rebuilt, since: datetime) -> None:
        """Rows that the stores hold from `since` on: keys go only forward, of the others those that are missing."""
        bound = f"{ROWS}{_uuid_at(since)}"
        snapshot, paths = self._sources(made.log_id)
        if snapshot is not None and snapshot.at < since:
            paths = [path for path in paths if path.startswith(ROWS)]
        for path in paths:
            if path.startswith(ROWS) and path < bound:
                continue
            content = read_object(self._hot, self._vault.keks, made.log_id, path)
            if content is None:
                continue  # it was removed, because a newer snapshot holds it
            with self._transactions(made.tenant_id) as session:
                self._take(session, made, content, replace=False)
            made.objects += 1
        with self._transactions(made.tenant_id) as session:
            recount_groups(session, made.tenant_id)

    def _sources(self, log_id: str) -> tuple[Content | None, list[str]]:
        """Return the newest whole snapshot's end, and every object to read, in the order of time."""
        rows = row_objects(self._hot, log_id)
        for name in reversed(complete_snapshots(self._hot, log_id)):
            end = read_object(self._hot, self._vault.keks, log_id, f"{name}/{END}")
            if end is None:
                continue
            # A name ends with the UUIDv7 of the moment it was begun: dashes at 8-4-4-4-12.
            begun = f"rows/{name[-36:]}"
            pages = [f"{name}/{number:08d}" for number in range(end.parts)]
            return end, [path for path in rows if path < begun] + pages + [path for path in rows if path >= begun]
        return None, rows

    def _whose(self, log_id: str, paths: Sequence[str]) -> int:
        for path in paths:
            return tenant_of(path, self._hot.get(f"{log_id}/{path}"))
        raise NothingToRebuild(log_id)

    def _put_back(self, made: Rebuilt, paths: Sequence[str], progress: Progress) -> None:
        for start in range(0, len(paths), _OBJECTS_A_TRANSACTION):
            some = paths[start : start + _OBJECTS_A_TRANSACTION]
            with self._transactions(made.tenant_id) as session:
                for path in some:
                    content = read_object(self._hot, self._vault.keks, made.log_id, path)
                    if content is None:
                        raise JournalUnreadable(path)
                    self._take(session, made, content)
            made.objects += len(some)
            progress("objects with rows", len(some))
        with self._transactions(made.tenant_id) as session:
            tenant = session.get(Tenant, made.tenant_id)
            if tenant is None or tenant.log_id != made.log_id:
                raise NothingToRebuild(made.log_id)
            made.tenant = tenant.name
            recount_groups(session, made.tenant_id)

    def _take(self, session: Session, made: Rebuilt, content: Content, *, replace: bool = True) -> None:
        for keys in content.keys:
            made.keys += self._vault.restore_rows(session, made.tenant_id, keys).restored
        for name, rows in as_now(content.tables):
            table = self._tables.get(name)
            if table is None or name in VAULT_ROWS:
                line = f"rows of a table {name} that this version does not know"
                if line not in made.lost:
                    made.lost.append(line)
                continue
            made.rows += put_rows(session, table, rows, replace=replace)

    def _doubt_actions(self, made: Rebuilt, among: Sequence[bytes] | None) -> None:
        """What failed when these rows were written may have been done since, and nothing in the record says so.

        After a crash nobody claimed such a row again: `among` are the digests of those of which somebody did.
        """
        if among is not None and not among:
            return
        with self._transactions(made.tenant_id) as session:
            digests = RowDigests(self._vault, made.tenant_id)
            count = actions.doubt_failed(session, made.tenant_id, digests=digests, among=among)
        if count:
            made.lost.append(f"whether {count} actions that had failed were done since: ask their providers")

    def _make_head(self, made: Rebuilt, counter: int) -> None:
        with self._transactions(made.tenant_id) as session:
            state = session.get(LogState, made.tenant_id)
            if state is None:
                Log.create(session, made.tenant_id, made.log_id)
                session.flush()
                state = session.get_one(LogState, made.tenant_id)
            state.outbox_counter = max(state.outbox_counter, counter)
            session.add(state)

    def _turn(self, made: Rebuilt, now: datetime, grace: timedelta) -> None:
        tenant_id = made.tenant_id
        with self._transactions(tenant_id) as session:
            groups: set[int] = set()
            for model in (DataKey, PartKey):
                query = select(model.group_no).where(
                    model.tenant_id == tenant_id, model.state == KeyState.DESTROYED.value
                )
                groups.update(session.exec(query.distinct()))
            report = self._vault.rotate_groups(session, tenant_id, groups, now, grace)
        self._journal.snapshot_groups(tenant_id, [group.group_no for group in report.rotated], now)

    def _count_losses(self, made: Rebuilt) -> None:
        with self._transactions(made.tenant_id, write=False) as session:
            made.faults += lost_keys(session, made.tenant_id)
            unnamed = unnamed_streams(session, made.tenant_id)
        if unnamed:
            made.lost.append(f"the names of {unnamed} streams: their entries are found by id only")
        if made.snapshot_at is None:
            made.lost.append(
                "everything that only the registry's daily snapshot holds, since there is none yet: artifacts, "
                "derivations, requests, certificates, actions"
            )
        else:
            made.lost.append(
                f"artifacts, derivations, requests, certificates and actions written after the registry's snapshot of "
                f"{made.snapshot_at.isoformat(timespec='seconds')}, where the record does not say it"
            )

    def _parts(self) -> Parts:
        return Parts(
            vault=self._vault, log=self._log, transactions=self._transactions, tables=self._tables,
            stopped=self._stopped,
        )  # fmt: skip


def _is_settled(at: sa.ColumnElement[Any], until: datetime, now: datetime) -> sa.ColumnElement[bool]:
    return sa.or_(at <= until, at > now)


def _count(session: Session, query: sa.Select[Any]) -> int:
    return session.scalar(sa.select(sa.func.count()).select_from(query.subquery())) or 0


def _uuid_at(at: datetime) -> str:
    """The smallest UUIDv7 of an instant, in text."""
    made = f"{int(at.timestamp() * 1000):012x}"
    return f"{made[:8]}-{made[8:]}"

"""The end of payload objects: found, looked into, deleted, when their lock is over and no key is left for any part.

Guarantees: an object goes only when its lock is over by the clock and by the store, and the caller says of each part
that every batch puts into it that no key opens it any more. Headers, batches, checkpoints and proofs are never touched.
An object that no batch names (a crash between two writes left it) goes when its lock is over, after the batches of its
time in the bucket were asked as well as the index. A log that is read-only because of a contradiction loses nothing.
An object that cannot be judged, because a batch that names it, or may name it, cannot be read, stays and is told; all
others go on. A name that this program does not write is passed over, and never deleted.
Whose keys are gone is another's word (`PartsGone`); why an object may go is not known here.

The steps, each of which can be run again:

 1. `mark`: objects in batches with a part whose key was destroyed since the last time are to be looked into; objects
    that no batch names are noted, each folder listed once and from where the last listing ended. Batches of a time
    before objects had rows get theirs first (`ledger.payload_rows`). A row that asks later than the name of its object
    says is compared with the store (`ledger.payload_later`).
 2. `plan`: what could go now, read-only. The caller claims it (`claim`) and says so in the record.
 3. `carry_out`: each claimed object is decided again, then deleted, then noted as gone. A crash between deleting and
    noting leaves a claimed row whose object is missing: the next run deletes nothing and notes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.batches import Batch, batch_key, decode_batch
from ledger.entry import decode_header, uuid7_time
from ledger.errors import (
    LedgerError,
    MalformedHeader,
    ObjectLocked,
    ObjectMissing,
    StoreDenied,
    StoreUnavailable,
)
from ledger.head import Transactions
from ledger.index import batches_of, chunks
from ledger.models import EntryRow, Instant, LogState, PartPlaces, PayloadRow, PayloadWalk
from ledger.naming import Naming
from ledger.objects import ObjectStore
from ledger.payload_later import AGAIN, hasten
from ledger.payload_names import NO_LOCK, PREFIX, is_ours, lock_end_of
from ledger.payload_rows import fill, indexed_size

ORPHAN = -1
"""Stands for a batch where no batch names the object."""
IN_FLIGHT = timedelta(days=1)
"""How old an object must be before a batch that is to name it can be excluded: a call waits seconds, not hours."""
HOLDS = "holds"
"""The walk over the record by which legal holds are set and lifted."""
LISTED = 20_000
"""How many names one call of `mark` lists at most."""
REASONS = 5
"""Of how many failures one run tells why."""
AWAY = 10
"""After so many objects in a row for which the store did not answer, it counts as away, and not the objects as bad."""
_BATCHES_HELD = 4


class StoredPart(NamedTuple):
    """One part in an object: its entry's index and id, its number in the entry."""

    idx: int
    number: int
    entry_id: str


PartsGone = Callable[[Session, int, Sequence[StoredPart]], Collection[tuple[int, int]]]
"""Says which (index, number) of these parts no key opens any more, in the caller's transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What could go now, by name below the log's prefix. `stay`: looked into, and a part still has its key.

    `unclear`: what could not be judged, because a batch that names it cannot be read; each is tried again.
    """

    names: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    stay: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    capped: bool = False

    @property
    def all(self) -> tuple[str, ...]:
        """Everything that could go."""
        return (*self.names, *self.orphans)

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 over the sorted names, one a line: what the record says before anything is deleted."""
        return sha256("".join(f"{name}\n" for name in sorted(self.all)).encode()).hexdigest()


@dataclass(slots=True, kw_only=True)
class Carried:
    """What one run did with claimed objects; of those that failed, the first few with the reason."""

    deleted: int = 0
    size: int = 0
    locked: int = 0
    kept: int = 0
    failed: int = 0
    reasons: dict[str, str] = field(default_factory=dict)


def mark_batches(session: Session, tenant_id: int, key_ids: Sequence[str]) -> None:
    """Have the objects of every batch with a part of these keys looked into."""
    starts: set[int] = set()
    for some in chunks(sorted(set(key_ids))):
        query = sa.select(col(PartPlaces.start)).where(
            col(PartPlaces.tenant_id) == tenant_id, col(PartPlaces.key_id).in_(some)
        )
        starts.update(session.scalars(query))
    mark(session, tenant_id, set(batches_of(session, tenant_id, sorted(starts)).values()))


def mark(session: Session, tenant_id: int, firsts: Collection[int]) -> None:
    """Have the objects of these batches looked into."""
    for places in chunks(sorted(firsts)):
        session.connection().execute(
            sa.update(PayloadRow)
            .where(
                col(PayloadRow.tenant_id) == tenant_id,
                col(PayloadRow.batch_first).in_(places),
                col(PayloadRow.deleted_at).is_(None),
            )
            .values(dirty=True)
        )


def seen(session: Session, tenant_id: int, what: str) -> PayloadWalk:
    """Where a walk stands; made where there is none."""
    row = session.get(PayloadWalk, (tenant_id, what))
    if row is None:
        row = PayloadWalk(tenant_id=tenant_id, what=what)
        session.add(row)
    return row


def claim(session: Session, tenant_id: int, found: Found, owner: str) -> None:
    """Give what was found to a run, and leave in peace what was looked into and stays."""
    for names, values in ((found.all, {"owner": owner}), (found.stay, {"dirty": False})):
        for some in chunks(names):
            session.connection().execute(
                sa.update(PayloadRow)
                .where(
                    col(PayloadRow.tenant_id) == tenant_id,
                    col(PayloadRow.name).in_(some),
                    col(PayloadRow.owner).is_(None),
                    col(PayloadRow.deleted_at).is_(None),
                )
                .values(**values)
            )


def release(session: Session, tenant_id: int, owner: str) -> None:
    """Let a later run have what this one claimed and did not delete."""
    session.connection().execute(
        sa.update(PayloadRow)
        .where(
            col(PayloadRow.tenant_id) == tenant_id,
            col(PayloadRow.owner) == owner,
            col(PayloadRow.deleted_at).is_(None),
        )
        .values(owner=None)
    )


def deleted_by(session: Session, tenant_id: int, owner: str) -> tuple[int, int]:
    """How many objects, and bytes, a run has deleted."""
    # An object that several batches name has several rows, each with its size.
    objects = (
        sa.select(sa.func.max(col(PayloadRow.size)).label("size"))
        .where(col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.owner) == owner)
        .where(col(PayloadRow.deleted_at).is_not(None))
        .group_by(col(PayloadRow.name))
        .subquery()
    )
    count, size = session.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(objects.c.size), 0)).select_from(objects)
    ).one()
    return int(count), int(size)


@dataclass(slots=True)
class _Log:
    """One tenant's log during one call, with the batches read in it."""

    log_id: str
    naming: Naming
    parts: dict[int, dict[str, list[StoredPart]]] = field(default_factory=dict)


class Expiry:
    """Ends payload objects of every log of one deployment."""

    def __init__(self, locked: ObjectStore, transactions: Transactions, gone: PartsGone) -> None:
        self._locked = locked
        self._transactions = transactions
        self._gone = gone

    # ── 1. what is to be looked into ──

    def mark(self, tenant_id: int, now: datetime) -> int:
        """Note objects that no batch names, folder by folder; how many were found. Bounded, goes on where it ended.

        Raises: what the store raises.
        """
        log = self._open(tenant_id)
        if log is None or not fill(self._locked, self._transactions, tenant_id, log.log_id):
            return 0
        found, room = 0, LISTED
        for folder in self._folders(tenant_id, now):
            taken, orphans = self._list(tenant_id, log, folder, now, room)
            found, room = found + orphans, room - taken
            if room <= 0:
                break
        hasten(self._locked, self._transactions, tenant_id, log.log_id, now)
        return found

    def _folders(self, tenant_id: int, now: datetime) -> list[str]:
        """Folders with objects whose lock is over: without one, and of the months from the log's first to the last."""
        with self._transactions(tenant_id, write=False) as session:
            ended = set(session.scalars(sa.select(col(PayloadWalk.what)).where(
                col(PayloadWalk.tenant_id) == tenant_id, col(PayloadWalk.ended).is_(True)
            )))  # fmt: skip
            first = session.scalar(
                sa.select(sa.func.min(col(EntryRow.received))).where(
                    col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx) < 1
                )
            )
        folders = [NO_LOCK]
        month = (first or now).replace(day=1)
        while f"{month:%Y-%m}" < f"{now:%Y-%m}":
            folders.append(f"{month:%Y-%m}")
            month = (month + timedelta(days=32)).replace(day=1)
        return [folder for folder in folders if folder not in ended]

    def _list(self, tenant_id: int, log: _Log, folder: str, now: datetime, room: int) -> tuple[int, int]:
        """List a folder on from where the last listing ended; how many names, and how many no batch names."""
        with self._transactions(tenant_id, write=False) as session:
            row = session.get(PayloadWalk, (tenant_id, folder))
            after = "" if row is None else row.place
        start = f"{log.log_id}/{after}" if after else None
        names: list[str] = []
        ended = True
        for key in self._locked.list(f"{log.log_id}/{PREFIX}{folder}/", after=start):
            name = key.removeprefix(f"{log.log_id}/")
            if not is_ours(name):
                continue  # not ours to judge; `muniment verify` and `doctor` name it
            if len(names) >= room or not _is_settled(name, now):
                ended = False
                break
            names.append(name)
        with self._transactions(tenant_id) as session:
            known: set[str] = set()
            for some in chunks(names):
                known.update(session.scalars(sa.select(col(PayloadRow.name)).where(
                    col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.name).in_(some)
                )))  # fmt: skip
            loose = [name for name in names if name not in known]
            for name in loose:
                until = lock_end_of(name)
                session.add(PayloadRow(tenant_id=tenant_id, name=name, batch_first=ORPHAN, until=until, dirty=True))
            walk = seen(session, tenant_id, folder)
            walk.place = names[-1] if names else after
            # A month that is over gets no new objects; the folder without locks does.
            walk.ended = ended and folder != NO_LOCK and _month_is_settled(folder, now)
        return len(names), len(loose)

    # ── 2. what could go ──

    def plan(self, tenant_id: int, now: datetime, *, cap: int) -> Found:
        """What could go now, at most `cap` objects. Writes rows that the index lacks, and nothing else.

        Raises: StoreUnavailable, StoreDenied.
        """
        log = self._open(tenant_id)
        if log is None:
            return Found()
        verdicts: dict[str, str] = {}
        away = 0
        after: tuple[int, str] | None = (ORPHAN - 1, "")
        while after is not None and _count(verdicts, "gone", "orphan") < cap and len(verdicts) < LISTED:
            page, after = self._dirty(tenant_id, now, after, cap)
            for name in page:
                if name in verdicts:
                    continue
                try:
                    verdicts[name] = self._verdict(tenant_id, log, name)
                    away = 0
                except (StoreUnavailable, StoreDenied):
                    away += 1
                    if away == AWAY:
                        raise  # nothing is known of any object then
                    verdicts[name] = "unclear"
                except LedgerError:
                    verdicts[name] = "unclear"
        gone = [name for name, verdict in verdicts.items() if verdict in ("gone", "orphan")]
        chosen = {name: verdicts[name] for name in gone[:cap]}
        return Found(
            names=tuple(name for name, verdict in chosen.items() if verdict == "gone"),
            orphans=tuple(name for name, verdict in chosen.items() if verdict == "orphan"),
            stay=tuple(name for name, verdict in verdicts.items() if verdict == "stay"),
            unclear=tuple(name for name, verdict in verdicts.items() if verdict == "unclear"),
            capped=after is not None or len(gone) > cap,
        )

    def _dirty(
        self, tenant_id: int, now: datetime, after: tuple[int, str], limit: int
    ) -> tuple[list[str], tuple[int, str] | None]:
        """The next objects to be looked into whose lock is over, and where to go on; None at the end."""
        first, name = after
        with self._transactions(tenant_id, write=False) as session:
            rows = session.execute(
                sa.select(col(PayloadRow.name), col(PayloadRow.batch_first))
                .where(
                    col(PayloadRow.tenant_id) == tenant_id,
                    col(PayloadRow.dirty).is_(True),
                    col(PayloadRow.held).is_(False),
                    col(PayloadRow.deleted_at).is_(None),
                    col(PayloadRow.owner).is_(None),
                    sa.or_(col(PayloadRow.until).is_(None), col(PayloadRow.until) <= sa.literal(now, Instant())),
                    col(PayloadRow.batch_first) >= first,
                    sa.or_(col(PayloadRow.batch_first) > first, col(PayloadRow.name) > name),
                )
                .order_by(col(PayloadRow.batch_first), col(PayloadRow.name))
                .limit(limit)
            ).all()
        last = (rows[-1].batch_first, rows[-1].name) if len(rows) == limit else None
        return [row.name for row in rows], last

    def _verdict(self, tenant_id: int, log: _Log, name: str) -> str:
        """Whether every part in the object is without a key (`gone`), none is in it (`orphan`), or it stays."""
        if not is_ours(name):
            return "stay"
        with self._transactions(tenant_id, write=False) as session:
            firsts = list(session.scalars(sa.select(col(PayloadRow.batch_first)).where(
                col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.name) == name
            )))  # fmt: skip
            named = [first for first in firsts if first != ORPHAN]
        if not named:
            named = log.naming.batches(name, lambda first: self._parts_in(log, first))
            if not named:
                return "orphan"
            if not self._adopt(tenant_id, name, named):
                return "stay"
        parts = [part for first in named for part in self._parts_in(log, first).get(name, ())]
        with self._transactions(tenant_id, write=False) as session:
            gone = self._gone(session, tenant_id, parts)
        return "gone" if parts and {(part.idx, part.number) for part in parts} <= set(gone) else "stay"

    def _adopt(self, tenant_id: int, name: str, firsts: Sequence[int]) -> bool:
        """Give an object the rows that the index lacks, so that it is looked into when a key of these batches goes.

        False where a batch is not indexed yet: its writer makes the rows then, and must not find them there.
        """
        with self._transactions(tenant_id) as session:
            if max(firsts) >= indexed_size(session, tenant_id):
                return False
            for first in firsts:
                if session.get(PayloadRow, (tenant_id, name, first)) is None:
                    row = PayloadRow(tenant_id=tenant_id, name=name, batch_first=first, until=lock_end_of(name))
                    session.add(row)
        return True

    def _parts_in(self, log: _Log, first: int) -> Mapping[str, Sequence[StoredPart]]:
        if first not in log.parts:
            if len(log.parts) >= _BATCHES_HELD:
                log.parts.clear()
            log.parts[first] = parts_of(decode_batch(self._locked.get(f"{log.log_id}/{batch_key(first)}")))
        return log.parts[first]

    # ── 3. the end ──

    def carry_out(self, tenant_id: int, owner: str, now: datetime) -> Carried:
        """Delete what a run claimed, each object after another look. What fails is left for a later run."""
        done = Carried()
        log = self._open(tenant_id)
        with self._transactions(tenant_id, write=False) as session:
            query = select(PayloadRow).where(
                PayloadRow.tenant_id == tenant_id, PayloadRow.owner == owner, col(PayloadRow.deleted_at).is_(None)
            )
            names = [row.name for row in session.exec(query.order_by(col(PayloadRow.name)))]
        for name in dict.fromkeys(names):
            try:
                if log is None or self._verdict(tenant_id, log, name) == "stay":
                    done.kept += 1
                    self._note(tenant_id, name, owner=None, dirty=False)
                    continue
                self._delete(tenant_id, log, name, done, now)
            except LedgerError as error:
                done.failed += 1
                if len(done.reasons) < REASONS:
                    done.reasons[name] = str(error)
                self._note(tenant_id, name, owner=None)
        return done

    def _delete(self, tenant_id: int, log: _Log, name: str, done: Carried, now: datetime) -> None:
        key, size = f"{log.log_id}/{name}", 0
        try:
            info = self._locked.head(key)
            if info.held:
                self._look_at_holds(tenant_id, name)
                if len(done.reasons) < REASONS:
                    done.reasons[name] = "a legal hold in the store keeps it"
            if info.locked_until is not None and info.locked_until > now:
                self._wait(tenant_id, name, done, info.locked_until)
                return
            size = info.size
            self._locked.delete(key)
        except ObjectLocked as error:
            self._wait(tenant_id, name, done, error.until if error.until and error.until > now else now + AGAIN)
            return
        except ObjectMissing:
            pass  # A run before this one deleted it and could not say so any more.
        done.deleted += 1
        done.size += size
        self._note(tenant_id, name, dirty=False, deleted_at=now, size=size)

    def _look_at_holds(self, tenant_id: int, name: str) -> None:
        """A legal hold that no row knows, after a rebuild: note it, and have the holds gone through once more.

        Whether it is one that is in force is found there; one that is not is lifted, and then the object can go.
        """
        with self._transactions(tenant_id) as session:
            seen(session, tenant_id, HOLDS).place = ""
        self._note(tenant_id, name, held=True)

    def _wait(self, tenant_id: int, name: str, done: Carried, until: datetime) -> None:
        """Longer locked than its name says, or kept by a legal hold: it comes again when that date is over."""
        done.locked += 1
        self._note(tenant_id, name, owner=None, until=until)

    def _note(self, tenant_id: int, name: str, **values: object) -> None:
        with self._transactions(tenant_id) as session:
            session.connection().execute(
                sa.update(PayloadRow)
                .where(col(PayloadRow.tenant_id) == tenant_id, col(PayloadRow.name) == name)
                .values(**values)
            )

    def _open(self, tenant_id: int) -> _Log | None:
        """The tenant's log; None where there is none, or where a contradiction must stay as it is for an auditor."""
        with self._transactions(tenant_id, write=False) as session:
            state = session.get(LogState, tenant_id)
            if state is None or state.read_only is not None:
                return None
        return _Log(state.log_id, Naming(self._locked, self._transactions, tenant_id, state.log_id))


def _count(verdicts: Mapping[str, str], *wanted: str) -> int:
    return sum(verdict in wanted for verdict in verdicts.values())


def parts_of(batch: Batch) -> dict[str, list[StoredPart]]:
    """The parts that a batch's headers put into each object."""
    found: defaultdict[str, list[StoredPart]] = defaultdict(list)
    for idx, raw in enumerate(batch.headers, start=batch.first):
        header = decode_header(raw)
        for number, part in enumerate(header.parts):
            found[part.object].append(StoredPart(idx, number, header.id))
    return dict(found)


def _is_settled(name: str, now: datetime) -> bool:
    """Whether the object is old enough that a batch would name it by now; a time out of the calendar counts as new."""
    try:
        return now - uuid7_time(name.rpartition("/")[2]) > IN_FLIGHT
    except MalformedHeader:
        return False


def _month_is_settled(month: str, now: datetime) -> bool:
    end = lock_end_of(f"{PREFIX}{month}/")
    return end is not None and now - end > IN_FLIGHT

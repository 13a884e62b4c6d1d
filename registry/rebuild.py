"""Brings one tenant back when its database is gone: from the bucket, the unlocked store and the key folder.

 1. Find out whose log it is, from the first object with rows; its key opens the others.
 2. Put rows back in the order of time: those before the newest whole snapshot, the snapshot, those after it. A later
    row takes the place of an earlier one; a row of the vault goes only forward and a tombstone is never undone.
 3. Make the log's head, index every batch, build the tree and hold it against the newest checkpoint (`ledger.head`).
 4. Replay what the record says was decided since: fences, destroyed keys, destroyed key-encryption keys, holds,
    consents, ended tokens. Log first means that what it says is going is gone.
 5. Turn the key groups in which something was destroyed, so that no backup of the rows opens it.
 6. Count what could not be brought back.

Guarantees: every step can be run again after a crash, and a whole second run changes nothing. Erased stays erased:
nothing is served between 2 and 4, because the caller serves nothing until `run` returned. Nothing is invented: what is
missing is named. Not here: whether this may be done at all, verification of the bytes, printing.

`catch_up` does the same for a database that is there and older than the record (a restored backup, a failover, a crash
between a batch and its commit): it adds rows that are missing, changes none that is there, and replays only what was
decided since. What it cannot settle without the stores (copies to erase again, identity keys that still open where they
lie) it hands to its caller as the decisions themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger import index
from ledger.behind import settle
from ledger.entry import Kind, decode_header
from ledger.errors import LedgerError
from ledger.head import Transactions, save
from ledger.log import Log
from ledger.models import EntryRow, LogState, PartRef
from ledger.objects import HotStore
from registry import artifacts, consent_replay, limited, merging, restricted, streams, subjects
from registry.errors import JournalUnreadable, NothingToRebuild
from registry.graph import mark_erasing
from registry.journal import (
    END,
    ROWS,
    VAULT_ROWS,
    Content,
    Journal,
    Row,
    Tables,
    complete_snapshots,
    read_object,
    row_objects,
    tenant_of,
)
from registry.keyed import IDENTITY_CLASS, NOBODY, chunks
from registry.models import StreamRow, Subject, Tenant, Token
from registry.playback import SWEEP_PREFIX
from registry.sealing import Keyring
from vault import rows as vault_rows
from vault.errors import KeyUnknown, VaultError
from vault.models import DataKey, KeyState, PartKey
from vault.vault import Vault

_OBJECTS_A_TRANSACTION = 100
_EVENTS = 500
_REPLAYED = (
    Kind.FENCE_SET, Kind.FENCE_LIFTED, Kind.KEY_DESTROYING, Kind.KEY_DESTROYED, Kind.KEK_DESTROYED, Kind.HOLD_PLACED,
    Kind.HOLD_RELEASED, Kind.TOKEN_MINTED, Kind.TOKEN_REVOKED, Kind.REQUEST_RECEIVED, Kind.COPY_ERASED,
    Kind.RESTRICTION_SET, Kind.RESTRICTION_LIFTED, Kind.SUBJECT_MERGED, Kind.SUBJECT_SPLIT,
    Kind.REQUEST_PLANNED, Kind.REQUEST_APPROVED, Kind.REQUEST_STATE, Kind.CERTIFICATE_ISSUED,
    Kind.CONSENT_GIVEN, Kind.CONSENT_WITHDRAWN,
)  # fmt: skip
_RESTRICTIONS = {
    Kind.RESTRICTION_SET: restricted.set_again, Kind.RESTRICTION_LIFTED: restricted.lifted_again,
}  # fmt: skip
_GONE = frozenset({"erased_logical", "erased_physical", "already_absent", "regenerated"})

Progress = Callable[[str, int], None]
"""Is told what is being done and how many of it were done since the last call."""


@dataclass(slots=True, kw_only=True)
class Rebuilt:
    """What came back of one log, and what did not; `lost` holds one sentence for each kind of loss."""

    log_id: str
    tenant: str
    tenant_id: int
    entries: int = 0
    checkpoint_size: int = 0
    objects: int = 0
    snapshot_at: datetime | None = None
    rows: int = 0
    keys: int = 0
    events: int = 0
    fenced: int = 0
    destroyed: int = 0
    holds: int = 0
    certificates: int = 0
    lost: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    decided: list[Decided] = field(default_factory=list, repr=False)
    """What a database that was behind has not applied yet; only `catch_up` fills it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision of the record: what kind, when, and what it says."""

    entry_id: str
    kind: Kind
    at: datetime
    body: Mapping[str, Any]


class Rebuild:
    """Rebuilds logs into one empty database."""

    def __init__(
        self, *, vault: Vault, log: Log, journal: Journal, transactions: Transactions, hot: HotStore, tables: Tables
    ) -> None:
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
        self._make_head(made, 0 if snapshot is None else snapshot.outbox_counter)
        with self._log.entered(made.tenant_id) as head:  # 3
            made.entries, made.checkpoint_size = head.size, head.checkpoint_size
            with self._transactions(made.tenant_id) as session:
                save(session, head)
        _Replay(self, made, now, progress).run()  # 4
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
        self._log.forget_heads()
        with self._log.entered(tenant_id) as head:  # 3
            made.entries, made.checkpoint_size = head.size, head.checkpoint_size
        _Replay(self, made, now, lambda *_: None, after=size - 1).run()  # 4
        self._turn(made, now, grace)  # 5
        return made

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
            _recount_groups(session, made.tenant_id)

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
            _recount_groups(session, made.tenant_id)

    def _take(self, session: Session, made: Rebuilt, content: Content, *, replace: bool = True) -> None:
        for keys in content.keys:
            made.keys += self._vault.restore_rows(session, made.tenant_id, keys).restored
        for name, rows in content.tables.items():
            table = self._tables.get(name)
            if table is None or name in VAULT_ROWS:
                line = f"rows of a table {name} that this version does not know"
                if line not in made.lost:
                    made.lost.append(line)
                continue
            made.rows += put_rows(session, table, rows, replace=replace)

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
            made.faults += _lost_keys(session, made.tenant_id)
            unnamed = _unnamed_streams(session, made.tenant_id)
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

    # What the replay needs of us.

    @property
    def vault(self) -> Vault:
        """The vault."""
        return self._vault

    @property
    def log(self) -> Log:
        """The log."""
        return self._log

    @property
    def transactions(self) -> Transactions:
        """Opens transactions."""
        return self._transactions

    def table(self, name: str) -> sa.Table | None:
        """Return a table of a package above this one."""
        return self._tables.get(name)


class _Replay:
    """Step 4: the record's own decisions, in its order."""

    def __init__(
        self, rebuild: Rebuild, made: Rebuilt, now: datetime, progress: Progress, *, after: int | None = None
    ) -> None:
        """`after`: the last entry whose effects are there; None for a database that has none at all."""
        self._after = -1 if after is None else after
        self._behind = after is not None
        self._rebuild = rebuild
        self._made = made
        self._now = now
        self._progress = progress
        self._fences: dict[str, list[int]] = {}
        self._going: list[tuple[str, frozenset[str], datetime]] = []
        self._epochs: dict[tuple[int, int], datetime] = {}
        self._unknown = 0
        self._unread = 0
        self._missing: dict[str, list[str]] = {}
        self._takes: dict[Kind, Callable[[Session, Decided], None]] = {
            Kind.FENCE_SET: self._fence, Kind.FENCE_LIFTED: self._fence, Kind.TOKEN_MINTED: self._token,
            Kind.TOKEN_REVOKED: self._token, Kind.HOLD_PLACED: self._hold, Kind.HOLD_RELEASED: self._hold,
            Kind.CONSENT_GIVEN: self._consent, Kind.CONSENT_WITHDRAWN: self._consent,
        }  # fmt: skip

    def run(self) -> None:
        """Replay all, then settle what the log's end left open."""
        made = self._made
        for events in self._events():
            with self._rebuild.transactions(made.tenant_id) as session:
                for event in events:
                    self._take(session, event)
            if self._behind:
                made.decided += events
            made.events += len(events)
            self._progress("decisions of the record", len(events))
        if self._behind:
            # Whoever began them goes on: the request is opened again, and a sweep looks again at its next pass.
            self._going.clear()
        if self._going:
            with self._rebuild.transactions(made.tenant_id) as session:
                for owner, keys, at in self._going:
                    self._destroy(session, owner, keys, at)
            made.lost.append(
                f"whether the last {len(self._going)} destructions were finished; their keys are destroyed now, as the "
                "record announced"
            )
        self._end_epochs()
        for what, ids in sorted(self._missing.items()):
            made.lost.append(f"{len(ids)} {what}: {', '.join(ids[:20])}{' …' if len(ids) > 20 else ''}")  # noqa: PLR2004
        if self._unknown:
            made.faults.append(f"{self._unknown} destroyed keys have no row, so nothing marks them as destroyed")
        if self._unread:
            made.faults.append(f"{self._unread} events of the record could not be read, so they were not applied again")

    def _events(self) -> Iterator[list[Decided]]:
        tenant_id, after = self._made.tenant_id, self._after
        while True:
            with self._rebuild.transactions(tenant_id, write=False) as session:
                rows = session.exec(
                    select(EntryRow.idx)
                    .where(
                        EntryRow.tenant_id == tenant_id,
                        EntryRow.stream_no == 0,
                        col(EntryRow.kind).in_([kind.value for kind in _REPLAYED]),
                        EntryRow.idx > after,
                    )
                    .order_by(col(EntryRow.idx))
                    .limit(_EVENTS)
                ).all()
                keys = index.keys_of(session, tenant_id, rows)
                ring = Keyring(self._rebuild.vault, session, tenant_id)
                for needed in keys.values():
                    with suppress(KeyUnknown):
                        ring.load([needed])
                read = self._read(ring, list(rows), keys)
            if rows:
                yield read
            if len(rows) < _EVENTS:
                return
            after = rows[-1]

    def _read(
        self, ring: Keyring, indexes: Sequence[int], keys: Mapping[tuple[int, int], Sequence[str]]
    ) -> list[Decided]:
        made, log = self._made, self._rebuild.log
        read = []
        for idx, raw in zip(indexes, log.headers(made.tenant_id, indexes), strict=True):
            header = decode_header(raw)
            try:
                ciphertext = log.ciphertext(made.tenant_id, header.parts[0])
                opened = ring.read(
                    header.parts[0], ciphertext, entry_id=header.id, number=0, log_id=made.log_id,
                    keys=keys.get((idx, 0), ()),
                )  # fmt: skip
                body = json.loads(opened.data or b"null")
            except (LedgerError, VaultError, ValueError, KeyError):
                body = None
            if not isinstance(body, dict):
                self._unread += 1
                continue
            read.append(Decided(entry_id=header.id, kind=Kind(header.kind), at=header.at, body=body))
        return read

    def _take(self, session: Session, event: Decided) -> None:
        body = event.body
        if take := self._takes.get(event.kind):
            take(session, event)
        match event.kind:
            case Kind.RESTRICTION_SET | Kind.RESTRICTION_LIFTED:
                _RESTRICTIONS[event.kind](session, self._made.tenant_id, body, event.at)
            case Kind.KEY_DESTROYING:
                self._going.append((body["owner"], _going_of(body), event.at))
            case Kind.KEY_DESTROYED:
                self._settle(session, body["owner"], _going_of(body), event.at)
            case Kind.KEK_DESTROYED:
                for epoch in body["epochs"]:
                    self._epochs[epoch["group"], epoch["epoch"]] = event.at
            case Kind.REQUEST_RECEIVED if not self._behind:
                self._known(session, "request", "request_id", body["request"], "requests that must be filed again")
            case Kind.SUBJECT_MERGED | Kind.SUBJECT_SPLIT:
                people = _numbers_of(session, self._made.tenant_id, body["people"])
                apart = _numbers_of(session, self._made.tenant_id, body.get("subjects", ()))
                merging.replay(session, self._made.tenant_id, people, apart)
            case Kind.COPY_ERASED:
                self._bury(session, body, event.at)

    def _fence(self, session: Session, event: Decided) -> None:
        """Close or open whole persons, and what an erasure limited to classes closed.

        What a conversation's erasure closed is told by keyed look-ups, which are in no event.
        """
        body, tenant_id = event.body, self._made.tenant_id
        if event.kind is Kind.FENCE_LIFTED:
            subjects.lift_fence(session, tenant_id, self._fences.get(body["request"], []), body["request"])
            limited.open_again(session, tenant_id, body["request"])
            return
        # What was to be forgotten is used by nobody, whether or not the request is known.
        going = artifacts.find_artifacts(session, tenant_id, body.get("artifacts", ()))
        mark_erasing(session, tenant_id, {row.id: body["request"] for row in going.values()})
        numbers = _numbers_of(session, tenant_id, body.get("subjects", ()))
        self._fences[body["request"]] = numbers
        self._made.fenced += subjects.fence(session, tenant_id, numbers, body["request"], event.at)
        if "data_classes" in body:
            persons = _numbers_of(session, tenant_id, body["persons"])
            limited.close(
                session, tenant_id, persons, body["request"], event.at, data_classes=body["data_classes"], scopes=None
            )

    def _settle(self, session: Session, owner: str, keys: frozenset[str], at: datetime) -> None:
        # One announcement follows each event of a chunk of keys; those it leaves out were kept.
        self._going = [one for one in self._going if one[0] != owner or not keys <= one[1]]
        self._destroy(session, owner, keys, at)

    def _destroy(self, session: Session, owner: str, keys: Iterable[str], at: datetime) -> None:
        vault, tenant_id = self._rebuild.vault, self._made.tenant_id
        # Keys of single parts are named by their part; one that never came to the unlocked store opens nothing.
        parts = {split_part(name) for name in keys if _is_part(name)}
        self._made.destroyed += vault.drop_parts(session, tenant_id, sorted(parts), now=at, request=owner)
        keys = {name for name in keys if not _is_part(name)}
        known = vault.info(session, tenant_id, keys)
        self._unknown += len(keys - known.keys())
        if self._behind:
            # Only the identity key opens where copies lie that came back: it goes when they have gone again.
            known = {
                key_id: info
                for key_id, info in known.items()
                if info.spec.data_class != IDENTITY_CLASS or not self._opens(session, key_id)
            }
        ids = sorted(key_id for key_id, info in known.items() if info.state != KeyState.DESTROYED)
        vault.mark_destroying(session, tenant_id, ids, request=owner)
        self._made.destroyed += vault.delete_wrapped(session, tenant_id, ids, now=at, request=owner)
        for info in known.values():
            number = info.spec.subject_id
            if number == NOBODY:
                continue
            if number in self._fences.get(owner, ()):
                vault.fence_subject(session, tenant_id, number, now=at, request=owner)
            if info.spec.data_class == IDENTITY_CLASS:
                streams.forget_names(session, tenant_id, [number])
                if owner.startswith(SWEEP_PREFIX):
                    subjects.end(session, tenant_id, [number], owner, at)
                else:
                    subjects.forget_identifiers(session, tenant_id, number, owner, at)

    def _opens(self, session: Session, key_id: str) -> bool:
        """Whether a key is more than bytes under a key-encryption key that went meanwhile."""
        try:
            self._rebuild.vault.open_keys(session, self._made.tenant_id, [key_id])
        except VaultError:
            return False
        return True

    def _end_epochs(self) -> None:
        """Destroy what the record says was destroyed: a key folder from an older backup must not bring it back."""
        made, vault = self._made, self._rebuild.vault
        carried = 0
        for (group_no, epoch), at in self._epochs.items():
            with self._rebuild.transactions(made.tenant_id) as session:
                db = vault_rows.connection(session)
                if vault_rows.carried(db, made.tenant_id, group_no, epoch):
                    carried += 1
                    continue
                destroyed_at = vault.keks.destroy(str(made.tenant_id), group_no, epoch, at)
                gone = {
                    "tenant_id": made.tenant_id,
                    "group_no": group_no,
                    "epoch": epoch,
                    "retired_at": at,
                    "destroy_after": at,
                    "destroyed_at": destroyed_at,
                }
                vault_rows.insert_missing(db, vault_rows.RETIRED, [gone])
                vault_rows.set_kek_destroyed(db, made.tenant_id, group_no, epoch, destroyed_at)
        if carried:
            made.faults.append(
                f"{carried} key-encryption keys that the record says are destroyed came back with the key folder, and "
                "rows in use are wrapped under them only: bring back the newest unlocked store"
            )

    def _token(self, session: Session, event: Decided) -> None:
        token = session.get(Token, (self._made.tenant_id, event.body["token"]))
        if event.kind is Kind.TOKEN_REVOKED:
            if token is not None and token.revoked_at is None:
                token.revoked_at = event.at
                session.add(token)
        elif token is None:
            self._missing.setdefault("tokens that must be made again", []).append(event.body["token"])

    def _hold(self, session: Session, event: Decided) -> None:
        """A hold is whole in its event but for its name and what was said; so it is in force again."""
        table = self._rebuild.table("hold")
        if table is None:
            return
        tenant_id, hold_id = self._made.tenant_id, event.body["hold"]
        if event.kind is Kind.HOLD_RELEASED:
            session.execute(
                sa.update(table)
                .where(table.c.tenant_id == tenant_id, table.c.hold_id == hold_id, table.c.released_at.is_(None))
                .values(released_by=event.body["by"], released_at=event.at)
            )
            return
        row = {
            "tenant_id": tenant_id,
            "hold_id": hold_id,
            "name": "(its name was lost with the database)",
            "sealed": None,
            "subjects": _numbers_of(session, tenant_id, event.body["subjects"]),
            "data_classes": event.body["data_classes"],
            "scopes": event.body["scopes"],
            "artifacts": [int(number, 16) for number in event.body["artifacts"]],
            "entries": list(event.body.get("entries", ())),
            "created_by": event.body["by"],
            "created_at": event.at,
            "released_by": None,
            "released_at": None,
        }
        self._made.holds += 1
        if vault_rows.insert_missing(session.connection(), table, [row]):
            self._missing.setdefault("names and reasons of holds, which are in force", []).append(hold_id)

    def _consent(self, session: Session, event: Decided) -> None:
        table, walks = (self._rebuild.table(name) for name in (consent_replay.CONSENTS, consent_replay.WALKS))
        if table is None or walks is None:
            return
        body, tenant_id = event.body, self._made.tenant_id
        if event.kind is Kind.CONSENT_GIVEN:
            of = next(iter(_numbers_of(session, tenant_id, [body["subject"]] if "subject" in body else [])), None)
            if lost := consent_replay.give_again(session, table, tenant_id, body, of):
                self._missing.setdefault(lost, []).append(body["consent"])
        else:
            consent_replay.withdraw_again(session, table, tenant_id, body, event.at)
        consent_replay.date_again(session, walks, tenant_id)

    def _known(self, session: Session, name: str, column: str, value: str, what: str) -> None:
        table = self._rebuild.table(name)
        if table is None:
            return
        query = sa.select(table.c[column]).where(table.c.tenant_id == self._made.tenant_id, table.c[column] == value)
        if session.execute(query).first() is None:
            self._missing.setdefault(what, []).append(value)

    def _bury(self, session: Session, body: Mapping[str, Any], at: datetime) -> None:
        """Copies that were erased after the snapshot: their rows must not look alive again."""
        table = self._rebuild.table("copy")
        if table is None:
            return
        numbers = [line["copy"] for line in body["copies"] if line["state"] in _GONE]
        for chunk in chunks(numbers):
            query = sa.select(table.c.artifact_id).where(
                table.c.tenant_id == self._made.tenant_id,
                table.c.owner == body["owner"],
                table.c.copy_no.in_(chunk),
                table.c.artifact_id.is_not(None),
            )
            found = list(session.execute(query).scalars())
            artifacts.bury(session, self._made.tenant_id, found, body["owner"], at)


def _going_of(body: Mapping[str, Any]) -> frozenset[str]:
    """The data keys and the parts whose keys an event says are going or gone."""
    return frozenset((*body["keys"], *body.get("parts", ())))


def _is_part(name: str) -> bool:
    return "/" in name


def split_part(name: str) -> tuple[str, int]:
    """Entry id and number of a part's id."""
    entry_id, _, number = name.partition("/")
    return entry_id, int(number)


def put_rows(session: Session, table: sa.Table, rows: Sequence[Row], *, replace: bool = True) -> int:
    """Put rows into a table, in place of older ones of the same key; returns how many there are now of these.

    With `replace` off, rows that are there stay as they are, and the missing ones are counted.

    Columns that the table no longer has are left out. A row whose place another one has taken is left out too.
    """
    names = {column.name for column in table.columns}
    key = [column.name for column in table.primary_key.columns]
    session.flush()
    db = session.connection()
    done = 0
    for some in _alike([{name: value for name, value in row.items() if name in names} for row in rows]):
        # Of two rows of one key in one object the later stands.
        unique = list({tuple(row[name] for name in key): row for row in some}.values())
        inserted = {tuple(found[name] for name in key) for found in vault_rows.insert_missing(db, table, unique)}
        if not replace:
            done += len(inserted)
            continue
        old = [row for row in unique if tuple(row[name] for name in key) not in inserted]
        values = [name for name in unique[0] if name not in key]
        if old and values:
            where = sa.and_(*(table.c[name] == sa.bindparam(f"at_{name}") for name in key))
            statement = sa.update(table).where(where).values({name: sa.bindparam(f"to_{name}") for name in values})
            db.execute(
                statement,
                [{**{f"at_{n}": row[n] for n in key}, **{f"to_{n}": row[n] for n in values}} for row in old],
            )
        done += len(unique)
    return done


def _uuid_at(at: datetime) -> str:
    """The smallest UUIDv7 of an instant, in text."""
    made = f"{int(at.timestamp() * 1000):012x}"
    return f"{made[:8]}-{made[8:]}"


def _alike(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the rows in groups that have the same columns, as one statement needs them."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row), []).append(row)
    yield from groups.values()


def _numbers_of(session: Session, tenant_id: int, opaque: Iterable[str]) -> list[int]:
    found: list[int] = []
    for chunk in chunks(sorted(set(opaque))):
        query = select(Subject.subject_no).where(Subject.tenant_id == tenant_id, col(Subject.subject_id).in_(chunk))
        found.extend(session.exec(query))
    return sorted(found)


def _recount_groups(session: Session, tenant_id: int) -> None:
    """A group's size was written when its rows were; the rows know better."""
    db = vault_rows.connection(session)
    sizes: dict[int, int] = {}
    for table in (vault_rows.KEYS, vault_rows.PARTS):
        query = (
            sa.select(table.c.group_no, sa.func.count())
            .where(table.c.tenant_id == tenant_id)
            .group_by(table.c.group_no)
        )
        for group_no, count in db.execute(query):
            sizes[group_no] = sizes.get(group_no, 0) + count
    groups = vault_rows.GROUPS
    where = sa.and_(groups.c.tenant_id == tenant_id, groups.c.group_no == sa.bindparam("at_group"))
    if sizes:
        db.execute(
            sa.update(groups).where(where).values(size=sa.bindparam("to_size")),
            [{"at_group": group_no, "to_size": size} for group_no, size in sizes.items()],
        )


def _lost_keys(session: Session, tenant_id: int) -> list[str]:
    """Say which content nobody can read any more although nobody asked for its destruction."""
    lost = sum(
        session.scalar(
            sa.select(sa.func.count())
            .select_from(model)
            .where(col(model.tenant_id) == tenant_id, col(model.state) == KeyState.LOST.value)
        )
        or 0
        for model in (DataKey, PartKey)
    )
    absent = session.scalar(
        sa.select(sa.func.count(sa.distinct(col(PartRef.key_id))))
        .select_from(PartRef)
        .outerjoin(
            DataKey, sa.and_(col(DataKey.tenant_id) == col(PartRef.tenant_id), col(DataKey.key_id) == PartRef.key_id)
        )
        .where(col(PartRef.tenant_id) == tenant_id, col(DataKey.key_id).is_(None))
    )
    found = []
    if lost:
        found.append(
            f"{lost} keys whose key-encryption key is destroyed, without a newer wrapping in the unlocked store"
        )
    if absent:
        found.append(f"{absent} keys that the unlocked store does not hold; what they seal cannot be read")
    return found


def _unnamed_streams(session: Session, tenant_id: int) -> int:
    query = (
        sa.select(sa.func.count(sa.distinct(col(EntryRow.stream_no))))
        .select_from(EntryRow)
        .outerjoin(
            StreamRow,
            sa.and_(
                col(StreamRow.tenant_id) == col(EntryRow.tenant_id), col(StreamRow.stream_no) == col(EntryRow.stream_no)
            ),
        )
        .where(col(EntryRow.tenant_id) == tenant_id, col(EntryRow.stream_no) != 0, col(StreamRow.stream_no).is_(None))
    )
    return int(session.scalar(query) or 0)

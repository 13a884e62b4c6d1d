"""Builds every part of the service once, from settings, and hands them around as one value.

Guarantees: nothing of ours is made at import; two services in one process share nothing. Building writes nothing but
missing folders and keys; `start` makes threads. Stores are opened here and nowhere else: their target is checked
against the operator's list again at that moment, and their secrets are those of the tenant that registered them.
Does not migrate the database (`api.migrate`) and does not lock the data folder (`api.folder`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, SQLModel

from api import telemetry as telemetry_module
from api.alarms import DEADLINES_EVERY, PATROL_EVERY, deadline_alarms, patrol
from api.anchoring import offer_anchors
from api.callbacks import Callbacks
from api.clock import Clock
from api.clock_check import AWS, apart, register_clock_check
from api.database import Database
from api.idempotency import expire
from api.jobs import LOOK_EVERY, Job, Jobs
from api.lineage_feed import Feed, open_sink
from api.registry_jobs import register_registry_jobs
from api.secrets import Secrets
from api.settings import SettingRefused, Settings, environment_secret
from api.sweeping import register_holds, register_sweeps
from api.telemetry import Telemetry
from api.verification import CERTIFICATE_NAME
from connectors.base import Connector, open_connector
from erasure.certificate_store import CertificateStore
from erasure.earlier_packages import name_everybody
from erasure.errors import LogMissing
from erasure.footprint import end_footprints
from erasure.leases import free_all
from erasure.packages import STORE as EXPORTS
from erasure.parts import Parts as ErasureParts
from erasure.parts import Tenant as ErasureTenant
from erasure.payload_expiry import parts_gone
from erasure.recover import Healed, Recovery, heal
from erasure.stopped_keys import stopped_keys
from erasure.timeline import Timeline
from erasure.unverified import refuse_unverified
from erasure.worker import run_due
from ledger.anchors import Anchoring, parse_anchors, told
from ledger.errors import (
    LedgerError,
    LockNotEnforced,
    LogForked,
    LogRolledBack,
    MalformedAnchor,
    NotLeader,
    StoreDenied,
    StoreUnavailable,
)
from ledger.expiry import Expiry
from ledger.files import FileStore
from ledger.head import LogParts
from ledger.holding import Holding
from ledger.keyring import CERTIFICATE, KeyWindow, read_windows, signers
from ledger.lease import Lease
from ledger.log import Log
from ledger.models import EntryRow
from ledger.objects import HotStore, ObjectStore, probe, require_kept
from ledger.s3 import open_s3
from ledger.signing import Ed25519Signer
from ledger.staging import Clerk
from registry import memory_log
from registry.acting import Acting
from registry.duration import Duration
from registry.ids import random_hex
from registry.journal import Journal
from registry.keeping import Derived, PartUnderKeys, part_keys
from registry.keyed import RowDigests
from registry.models import StoreRow
from registry.playback import ReadEntry, read_entries
from registry.preparing import Preparing
from registry.rebuild import Rebuild
from registry.record import Record
from registry.targets import Targets
from registry.tenants import list_tenants
from vault.keks import KekStore
from vault.providers import open_root
from vault.vault import Vault
from vault.watch import Watch

MAX_ENTRIES = 10_000
"""Of one call into the record."""
LEASE_EVERY = timedelta(seconds=1)
OUTBOX_EVERY = timedelta(seconds=1)
CHECKPOINT_EVERY = timedelta(seconds=5)
CHECKPOINT_EVERY_EMBEDDED = timedelta(seconds=1)
ANCHORS_EVERY = timedelta(seconds=10)
JOURNAL_EVERY = timedelta(minutes=1)
SNAPSHOT_EVERY = timedelta(minutes=10)
HOLD_UNDER_WAY = timedelta(minutes=1)
"""So long a hold may take from its event to its row before the row counts as lost."""
HOUR = timedelta(hours=1)
CERTIFICATES_EVERY = timedelta(minutes=1)
DAY = timedelta(days=1)
VAULT_EVERY = timedelta(seconds=20)
_Used = TypeVar("_Used")


@runtime_checkable
class _Closes(Protocol):
    def close(self) -> None: ...


_REFERENCE = re.compile(r"(env:|file:(?!/)).*", re.DOTALL)


class StoreRefused(Exception):
    """A store does not keep what the record relies on, or refuses us: nothing is served on it."""

    def __init__(self, name: str, detail: str, advice: str) -> None:
        super().__init__(f"{name}: {detail}; {advice}")
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of a running service."""

    settings: Settings
    clock: Clock
    telemetry: Telemetry
    database: Database
    keks: KekStore
    vault: Vault
    watch: Watch
    locked: ObjectStore
    hot: HotStore
    lease: Lease
    log: Log
    anchoring: Anchoring
    lock_end: Callable[[datetime], datetime]
    clerk: Clerk
    journal: Journal
    preparing: Preparing
    record: Record
    secrets: Secrets
    targets: Targets
    jobs: Jobs
    timeline: Timeline
    links: ExitStack
    """Closes what `build` opened: the connections to database, stores and keys."""

    @property
    def erasure(self) -> ErasureParts:
        """What the legal desk and its worker work with."""
        return ErasureParts(
            vault=self.vault,
            record=self.record,
            transactions=self.timeline.transaction,
            clock=self.clock.now,
            apart=self.clock_apart,
            call=Callbacks(
                secrets=self.secrets,
                targets=self.targets,
                tenant_of=lambda tenant_id: self.tenant(tenant_id).tenant,
                now=self.clock.now,
            ),
            connect=self.connect,
            signer=self.certificate_signer,
            approval=self.settings.approval,
            quiet_period=self.settings.quiet_period,
            kek_grace=self.settings.kek_grace,
            unverified_term=self.settings.unverified_term,
            truncate_log=self.database.truncate_wal,
            keep_groups=self.journal.snapshot_groups,
            keep_part_rows=self.journal.snapshot_parts,
            part_keys=self._part_keys,
            behind=self.watch.behind,
            anchored=lambda log_id: told(self.anchoring.states(log_id)),
            read=self._read_entries,
            append=self.record.append,
            payload=Expiry(self.locked, self.timeline.transaction, parts_gone),
            holding=Holding(self.locked, self.timeline.transaction, self.hot),
            certificates=self.certificates,
            exports=self.exports_folder,
        )

    def clock_apart(self) -> timedelta | None:
        """How far this machine's clock is ahead of one that is shared with others; None where there is none."""
        on_s3 = self.settings.objects.startswith("s3://")
        return apart(self.database, self.clock, (self.settings.s3_endpoint_url or AWS) if on_s3 else None)

    @property
    def certificates(self) -> CertificateStore:
        """The certificates in the locked store."""
        return CertificateStore(locked=self.locked, transactions=self.timeline.transaction, lock_end=self.lock_end)

    @property
    def leads(self) -> bool:
        """Whether this process leads the log now, on a database to which all of the record was applied."""
        try:
            self.lease.check()
        except NotLeader:
            return False
        return self.timeline.is_sound

    @property
    def may_work(self) -> bool:
        """Whether this process may carry out requests: it leads, or it can hand its events to the one that does."""
        return self.leads or (
            not self.database.on_sqlite and not self.lease.held and self.lease.is_led(self.clock.now())
        )

    @property
    def recovery(self) -> Recovery:
        """What is needed after a restore."""
        rebuild = Rebuild(
            vault=self.vault,
            log=self.log,
            journal=self.journal,
            transactions=self.database.transaction,
            hot=self.hot,
            tables=all_tables,
            stopped=stopped_keys,
        )
        return Recovery(parts=self.erasure, rebuild=rebuild, locked=self.locked, hot=self.hot)

    def heal(self) -> list[Healed]:
        """Apply to the database what the record decided and it does not know; what was done, by tenant.

        Only for the process that leads. Raises: LogMissing, and what log, stores and database raise.
        """
        self.timeline.trust()
        try:
            # The job that renews the lease waits for this, or has not begun.
            with self.lease.kept(self.clock.now):
                return [found for acting in self.tenants() if (found := self._heal_one(acting)) is not None]
        except BaseException:
            self.timeline.doubt()
            raise

    def _heal_one(self, acting: Acting) -> Healed | None:
        tenant = ErasureTenant(tenant_id=acting.tenant_id, name=acting.tenant, log_id=acting.log_id)
        if self.database.on_sqlite:
            free_all(self.erasure, tenant.tenant_id)
        found = heal(self.recovery, tenant, self.clock.now())
        if found is None:
            # Whoever led before may have ended between the event of a hold and its row.
            self._finish_holds(acting)
        else:
            self.telemetry.log.warning(
                "the database was older than the record", tenant=found.tenant, entries=found.behind,
                requests=len(found.requests), faults=len(found.faults),
            )  # fmt: skip
        return found

    def lead(self, now: datetime) -> bool:
        """Take or renew the lease; who has it newly, or met a database that went back, applies the record first."""
        held = self.lease.take(now)
        if held and not self.timeline.is_sound:
            self.heal()
        return held

    def tenants(self) -> list[Acting]:
        """Every tenant, as the service itself acting in it."""
        with self.database.unscoped() as session:
            rows = list_tenants(session)
            return [Acting.system(tenant_id=row.id, tenant=row.name, log_id=row.log_id) for row in rows]

    def tenant(self, tenant_id: int) -> Acting:
        """One tenant. Raises KeyError when there is none of this id."""
        return {acting.tenant_id: acting for acting in self.tenants()}[tenant_id]

    def connect(self, store: StoreRow, read_only: bool = False) -> Connector:  # noqa: FBT001, FBT002 - the seam erasure calls
        """Opens the connector of a registered store. Raises TargetNotAllowed, SecretRefused or ConnectorError."""
        tenant = self.tenant(store.tenant_id).tenant

        def secret(reference: str) -> str:
            return self.secrets.resolve(tenant, reference)

        # The list may have changed since the store was registered, and an address kept as a secret is known only now.
        if not self._is_own_exports(store):
            self.check_target(store.kind, {name: _plain(value, secret) for name, value in store.config.items()})
        return open_connector(store.kind, store.config, secrets=secret, read_only=read_only)

    @property
    def exports_folder(self) -> Path:
        """Where exports lie until they expire, one folder for each tenant."""
        return self.settings.data / "exports"

    def _read_entries(self, session: Session, tenant_id: int, rows: Sequence[EntryRow]) -> list[ReadEntry]:
        return read_entries(session, self.vault, self.log, tenant_id, rows, damaged_too=True)

    def _part_keys(self, tenant_id: int, parts: Sequence[PartUnderKeys]) -> Derived:
        with self.timeline.transaction(tenant_id, write=False) as session:
            return part_keys(session, self.vault, self.log, tenant_id, parts)

    def _is_own_exports(self, store: StoreRow) -> bool:
        """Whether a store is the service's own folder of exports; nobody else can register one that points there."""
        return store.name == EXPORTS and store.config == {"root": str(self.exports_folder / str(store.tenant_id))}

    def check_target(self, kind: str, config: Mapping[str, Any]) -> None:
        """Returns when the operator allows the target. Raises TargetNotAllowed."""
        self.targets.check(kind, config)

    def certificate_signer(self, log_id: str) -> Ed25519Signer:
        """The key that signs a tenant's certificates now. Raises SigningKeyMissing."""
        newest = self.certificate_keys(log_id)[-1]
        signers([newest], lambda generation: self.certificate_signer_of(log_id, generation))
        return self.certificate_signer_of(log_id, newest.generation)

    def certificate_signer_of(self, log_id: str, generation: int) -> Ed25519Signer:
        """The certificate key of a generation; 0 is the first."""
        return signer_of(self.keks, CERTIFICATE_NAME.format(log_id=log_id), generation)

    def certificate_keys(self, log_id: str) -> tuple[KeyWindow, ...]:
        """Every certificate key a tenant had, oldest first."""
        return read_windows(self.locked, log_id, CERTIFICATE, self.certificate_signer_of(log_id, 0).vkey)

    def check_stores(self) -> None:
        """Tries in a few calls what the record relies on; `doctor` tries to break it. Raises StoreRefused."""
        now = self.clock.now()
        _checked("OBJECT_STORE", lambda: require_kept(probe(self.locked, now, attack=False)))
        _checked("HOT_STORE", lambda: require_kept(probe(self.hot, now, locked=False, attack=False)))

    def start(self, *, sole: bool, roles: frozenset[str] = frozenset({"api", "worker", "scheduler"})) -> None:
        """Takes the lease if nobody has it and starts the threads of `roles`.

        `sole` says that the data folder's lock is held: with SQLite in it, that lock is the lease, and no other
        process lives that could hold a key.
        """
        self.check_stores()
        sole = sole and self.database.on_sqlite
        self.watch.start(sole=sole)
        if self.lease.take(self.clock.now(), force=sole):
            # Who lost it meanwhile is not the one who leads, and applies what is missing when it is again.
            with suppress(NotLeader):
                self.heal_first()
        self.finish_holds()
        if "scheduler" in roles and not self.database.on_sqlite:
            self.clerk.start()
        self.jobs.start(scheduler="scheduler" in roles, worker="worker" in roles)

    def finish_holds(self) -> None:
        """Apply the holds that the record has and a crash kept from the database."""
        for acting in self.tenants():
            self._finish_holds(acting)

    def _finish_holds(self, acting: Acting) -> None:
        try:
            self.recovery.rebuild.finish_holds(acting.tenant_id, acting.log_id, self.clock.now())
        except LedgerError as error:
            # Whoever cannot read the record now does not serve less for it: the next start looks again.
            self.telemetry.log.warning("holds were not compared", tenant=acting.tenant, error=type(error).__name__)

    def finish_hold_rows(self, tenant_id: int, now: datetime) -> int:
        """As `finish_holds` for one tenant that serves: what is under way is left alone. Raises: as the record does."""
        log_id = self.tenant(tenant_id).log_id
        return self.recovery.rebuild.finish_holds(tenant_id, log_id, now, until=now - HOLD_UNDER_WAY)

    def heal_first(self) -> list[Healed]:
        """As `heal`, before anything is served. Raises: StoreRefused without the log."""
        try:
            return self.heal()
        except (LogMissing, LogForked, LogRolledBack) as error:
            advice = "nothing is served until the object store of this database is back (muniment verify, rebuild)"
            raise StoreRefused("OBJECT_STORE", str(error), advice) from error
        except (StoreUnavailable, StoreDenied) as error:
            raise StoreRefused(
                "OBJECT_STORE", str(error), "what was erased since cannot be known without it"
            ) from error

    def close(self) -> None:
        """Ends threads, exporters and connections; another process may lead at once."""
        self.jobs.stop()
        self.clerk.stop()
        self.preparing.close()
        # What is left unsigned is signed at the next start: a store that is away must not keep us from ending.
        with suppress(LedgerError, SQLAlchemyError):
            self.log.finish(self.clock.now())
        # Without the database there is nobody to tell, and the lease ends by itself.
        with suppress(SQLAlchemyError):
            self.lease.give_up(self.clock.now())
            self.watch.stop()
        self.telemetry.close()
        self.links.close()


def _plain(value: object, secret: Callable[[str], str]) -> object:
    return secret(value) if isinstance(value, str) and _REFERENCE.fullmatch(value) else value


def signer_of(keks: KekStore, name: str, generation: int = 0) -> Ed25519Signer:
    """The signer of that name, from a seed in the key folder that is made once; each rotation is a generation."""
    return Ed25519Signer.from_seed(name, keks.signing_seed(f"{name}@{generation}" if generation else name))


def build(settings: Settings, *, telemetry: Telemetry | None = None) -> Services:
    """Returns the parts for `settings`; see the module for what this writes.

    Raises:
        SettingRefused, and what opening keys and object stores raises.
    """
    clock = Clock(settings.clock_offset)
    telemetry = telemetry or telemetry_module.build(otlp_endpoint=settings.otlp_endpoint, level=settings.log_level)
    links = ExitStack()
    try:
        services = _built(settings, clock, telemetry, links)
    except BaseException:
        links.close()
        raise
    _register_jobs(services)
    return services


def _built(settings: Settings, clock: Clock, telemetry: Telemetry, links: ExitStack) -> Services:
    """Returns the parts; those that hold connections are given to `links` as they are opened."""

    def closed_by_us(part: _Used) -> _Used:
        if isinstance(part, _Closes):
            links.callback(part.close)
        return part

    database = closed_by_us(Database(settings.database))
    folder = settings.key_folder
    keks = KekStore(folder, closed_by_us(open_root(settings.key_root, clock=clock.now, folder=folder)))
    vault = Vault(keks, clock=clock.now)
    locked, hot = closed_by_us(_object_store(settings, clock)), closed_by_us(_hot_store(settings, clock))
    lease = Lease(owner=random_hex(), sessions=database.shared)
    timeline = Timeline(database.transaction)
    stages = None if database.on_sqlite else partial(RowDigests, vault)
    log = Log(_log_parts(settings, timeline, keks, locked, hot), lease, stages=stages)
    journal = Journal(vault=vault, transactions=database.transaction, hot=hot, tables=all_tables)
    preparing = Preparing(
        count=settings.preparing_processes, most=MAX_ENTRIES, told=partial(_preparing_lost, telemetry)
    )
    return Services(
        settings=settings,
        clock=clock,
        telemetry=telemetry,
        database=database,
        keks=keks,
        vault=vault,
        watch=_watch(database, vault, clock),
        locked=locked,
        hot=hot,
        lease=lease,
        log=log,
        anchoring=closed_by_us(_anchoring(settings, log, locked, hot)),
        lock_end=_lock_end(settings),
        clerk=Clerk(log.serve, clock.now, failed=partial(_clerk_failed, telemetry)),
        journal=journal,
        preparing=preparing,
        record=Record(vault=vault, log=log, transactions=database.transaction, journal=journal, preparing=preparing),
        secrets=Secrets(settings.secrets_folder, environment_secret),
        targets=_targets(settings),
        jobs=Jobs(database, clock, telemetry),
        timeline=timeline,
        links=links,
    )


def _watch(database: Database, vault: Vault, clock: Clock) -> Watch:
    bound = timedelta(seconds=vault.cache_seconds)
    return Watch(process_id=random_hex(), sessions=database.shared, evict=vault.evict_all, bound=bound, clock=clock.now)


def _clerk_failed(telemetry: Telemetry, error: Exception) -> None:
    telemetry.log.error("clerk failed", error=type(error).__qualname__, places=telemetry_module.places(error))


def _preparing_lost(telemetry: Telemetry, why: str) -> None:
    telemetry.log.warning("a preparing process was given up; the call is prepared here", error=why)


def _anchoring(settings: Settings, log: Log, locked: ObjectStore, hot: HotStore) -> Anchoring:
    try:
        anchors = parse_anchors(settings.anchor_list)
    except MalformedAnchor as error:
        raise SettingRefused("ANCHORS", error.reason) from None
    return Anchoring(anchors=anchors, log=log, locked=locked, hot=hot, lock_end=_lock_end(settings))


def _lock_end(settings: Settings) -> Callable[[datetime], datetime]:
    """The end of LOG_TERM from an instant."""
    term = Duration.parse(settings.log_term)

    def lock_end(at: datetime) -> datetime:
        if settings.lock_unit == "second":
            # Tests wait for the end of locks: a day of the term becomes a second.
            return at + timedelta(seconds=(term.add_to(at) - at) / DAY)
        return term.add_to(at)

    return lock_end


def _log_parts(
    settings: Settings, timeline: Timeline, keks: KekStore, locked: ObjectStore, hot: HotStore
) -> LogParts:  # fmt: skip
    return LogParts(
        transactions=timeline.noticing,
        locked=locked,
        hot=hot,
        signer=lambda origin: signer_of(keks, origin),
        lock_end=_lock_end(settings),
        later_signer=lambda origin, generation: signer_of(keks, origin, generation),
        behind=timeline.doubt,
    )


def _folder(name: str, url: str) -> Path:
    parts = urlsplit(url)
    if parts.scheme != "file":
        raise SettingRefused(name, f"scheme {parts.scheme!r} is not built here; use file://FOLDER")
    return Path(unquote(parts.netloc + parts.path)).absolute()


def _checked(name: str, use: Callable[[], _Used]) -> _Used:
    """What `use` returns. Raises StoreRefused in one line that says what to do."""
    try:
        return use()
    except LockNotEnforced as error:
        advice = "create the bucket with Object Lock and versioning, or use another store (muniment doctor attacks it)"
        raise StoreRefused(name, str(error), advice) from error
    except StoreDenied as error:
        raise StoreRefused(name, str(error), "check bucket, region, rights and credentials, also their end") from error
    except StoreUnavailable as error:
        raise StoreRefused(name, str(error), "check S3_ENDPOINT_URL, the network and the disk") from error


def _object_store(settings: Settings, clock: Clock) -> ObjectStore:
    if settings.objects.startswith("s3://"):
        return _checked(
            "OBJECT_STORE", lambda: open_s3(settings.objects, endpoint_url=settings.s3_endpoint_url, locked=True)
        )
    return FileStore(_folder("OBJECT_STORE", settings.objects), clock=clock.now, locked=True)


def _hot_store(settings: Settings, clock: Clock) -> HotStore:
    if settings.hot.startswith("s3://"):
        return _checked("HOT_STORE", lambda: open_s3(settings.hot, endpoint_url=settings.s3_endpoint_url, locked=False))
    return FileStore(_folder("HOT_STORE", settings.hot), clock=clock.now, locked=False)


def all_tables() -> list[sa.Table]:
    """Every table there is; all packages with tables are imported by now."""
    return SQLModel.metadata.sorted_tables


def _own_places(settings: Settings) -> tuple[str, ...]:
    """What no store may point at: our folders, buckets and database."""
    places = [str(settings.data), str(settings.secrets_folder), settings.database, settings.objects, settings.hot]
    return (*places, str(settings.key_folder))


def _targets(settings: Settings) -> Targets:
    return Targets(allowed=settings.targets, own=_own_places(settings))


def _register_jobs(services: Services) -> None:
    """Every job of the service, and the worker's work."""
    jobs = services.jobs
    for_each = _for_each_tenant(services)
    jobs.add(Job(name="lease", every=LEASE_EVERY, run=services.lead, shared=False))
    register_clock_check(jobs, services.clock_apart, services.telemetry)
    jobs.add(Job(name="outbox", every=OUTBOX_EVERY, run=for_each(services.record.ship_outbox), shared=False))
    embedded = services.database.on_sqlite and not services.settings.objects.startswith("s3://")
    checkpoints = CHECKPOINT_EVERY_EMBEDDED if embedded else CHECKPOINT_EVERY
    jobs.add(Job(name="checkpoints", every=checkpoints, run=for_each(services.log.publish), shared=False))
    offer = offer_anchors(services.anchoring, services.telemetry)
    jobs.add(Job(name="anchors", every=ANCHORS_EVERY, run=for_each(offer), shared=False))
    journal = services.journal
    jobs.add(Job(name="journal", every=JOURNAL_EVERY, run=for_each(journal.changed), shared=False))
    jobs.add(Job(name="memories", every=JOURNAL_EVERY, run=partial(_ship_changes, services), shared=False))
    # Ticks of these are unique rows: whoever leads then does it, and what nobody could do is made up for.
    leads = partial(_leads, services)
    jobs.add(Job(name="snapshots", every=SNAPSHOT_EVERY, run=for_each(journal.snapshot_if_due), may=leads))
    jobs.add(Job(name="answers", every=HOUR, run=for_each(partial(expire, services.database)), may=leads))
    look = deadline_alarms(services.database, services.telemetry, services.settings.unverified_term)
    jobs.add(Job(name="deadlines", every=DEADLINES_EVERY, run=for_each(look), may=leads))
    walk = patrol(
        services.database,
        services.telemetry,
        services.log,
        locked=services.locked,
        hot=services.hot,
        certificate_keys=services.certificate_keys,
    )
    seen = for_each(lambda tenant_id, _now: walk(services.tenant(tenant_id)))
    jobs.add(Job(name="patrol", every=PATROL_EVERY, run=seen, may=leads))
    refuses = for_each(lambda tenant_id, now: refuse_unverified(services.erasure, services.tenant(tenant_id), now))
    jobs.add(Job(name="unverified", every=HOUR, run=refuses, may=leads))
    ends = for_each(lambda tenant_id, now: end_footprints(services.erasure, tenant_id, now))
    jobs.add(Job(name="footprints", every=HOUR, run=ends, may=leads))
    names = for_each(lambda tenant_id, now: name_everybody(services.erasure, services.tenant(tenant_id), now))
    jobs.add(Job(name="packages", every=HOUR, run=names, may=leads))
    store = for_each(lambda tenant_id, now: _store_certificates(services, tenant_id, now))
    jobs.add(Job(name="certificates", every=CERTIFICATES_EVERY, run=store, shared=False))
    jobs.add(Job(name="roots", every=DAY, run=services.keks.turn))
    jobs.add(Job(name="vault", every=VAULT_EVERY, run=lambda _now: services.vault.expire(), shared=False))
    # Before the requests: what a released hold gives free is free in its store when they come to it.
    jobs.add(Job(name="holds", every=LOOK_EVERY, run=for_each(services.finish_hold_rows), shared=False))
    register_holds(jobs, lambda: services.erasure, services.tenants, leads=lambda: services.leads)
    jobs.add_work(lambda now: _work_on_requests(services, now))
    sink = open_sink(services.settings.openlineage)
    feed = (
        None
        if sink is None
        else Feed(sink=sink, transactions=services.database.transaction, vault=services.vault, log=services.log)
    )
    register_registry_jobs(jobs, services.database, services.telemetry, for_each, feed=feed)
    register_sweeps(
        jobs, lambda: services.erasure, services.tenants, leads=lambda: services.leads, log=services.telemetry.log
    )


def _leads(services: Services) -> bool:
    return services.leads


def _ship_changes(services: Services, now: datetime) -> None:
    """Records changes of memories that could not be recorded when they happened."""
    if services.leads:
        for acting in services.tenants():
            memory_log.ship(services.record, services.database.transaction, services.vault, acting, now)


def _store_certificates(services: Services, tenant_id: int, now: datetime) -> int:
    return services.certificates.store_due(tenant_id, services.tenant(tenant_id).log_id, now)


def _work_on_requests(services: Services, now: datetime) -> int:
    """Carries every tenant's requests as far as they go now; one tenant's failure does not stop the others."""
    if not services.may_work:
        return 0
    done, failures = 0, []
    for acting in services.tenants():
        tenant = ErasureTenant(tenant_id=acting.tenant_id, name=acting.tenant, log_id=acting.log_id)
        try:
            done += run_due(services.erasure, tenant, now, worker=services.jobs.owner)
        except Exception as error:  # noqa: BLE001 - raised below, after the others had their turn
            failures.append(error)
    if failures:
        raise failures[0]
    return done


def _for_each_tenant(services: Services) -> Callable[[Callable[[int, datetime], Any]], Callable[[datetime], None]]:
    """Makes a job of something that is done for one tenant; one tenant's failure does not stop the others."""

    def wrap(run: Callable[[int, datetime], Any]) -> Callable[[datetime], None]:
        def job(now: datetime) -> None:
            if not services.leads:
                return
            failures = []
            for acting in services.tenants():
                try:
                    run(acting.tenant_id, now)
                except Exception as error:  # noqa: BLE001 - raised below, after the others had their turn
                    failures.append(error)
            if failures:
                raise failures[0]

        return job

    return wrap

"""What `audit.verify` needs from this deployment: the logs there are, their readers, their keys, and whose are gone.

Guarantees: reads only, so it runs beside a serving process: no lock is taken, no folder, key or row is made. The
database's word about a key (`erased`, `expired`) only explains why bytes are gone; it never makes altered bytes fine.
Does not judge: `audit` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import sqlalchemy as sa
from sqlmodel import Session, col, select

from api.database import Database
from api.index_check import check_index, read_places
from api.kept_check import check_kept, known_certificates
from api.settings import SettingRefused, Settings
from audit.findings import Report
from audit.payload import ERASED, EXPIRED, PartStates
from audit.reader import FolderReader, Reader
from audit.verify import Helping, Options, verify
from ledger.anchors import Anchor, parse_anchors
from ledger.errors import BadSignature, LogForked, MalformedAnchor, MalformedNote, ObjectHidden, ObjectMissing
from ledger.keyring import CERTIFICATE, LOG, KeyWindow, follow, keys_prefix, parse_change
from ledger.keyring import windows as windows_of
from ledger.models import STRETCH, LogState, PartPlaces
from ledger.s3 import open_s3
from ledger.signing import Ed25519Signer
from ledger.timestamps import TimestampAddress
from ledger.witness import WitnessAddress
from registry.keyed import Lookups
from registry.models import StreamRow, Tenant
from retention.models import SweepRow
from vault.errors import VaultError
from vault.keks import KekStore
from vault.models import DataKey, KeyState, PartKey
from vault.providers import open_root
from vault.vault import Vault

ORIGIN = "muniment/{log_id}"
CERTIFICATE_NAME = f"{ORIGIN}/certificate"
"""The name of a tenant's certificate key, another one than its log's."""
_MOST = 3  # this process follows the chain, and two helpers compare parts faster than it does
_WORTH_A_HELPER = 300_000
_OPEN = ExitStack()
_NOT_FOLLOWED = (BadSignature, MalformedNote, LogForked, ObjectHidden, ObjectMissing)
_GONE = (KeyState.DESTROYED.value, KeyState.LOST.value)

Sessions = Callable[[int], AbstractContextManager[Session]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLog:
    """One tenant's log as the database knows it; `tenant` is None for a log that only the bucket has."""

    tenant_id: int | None
    tenant: str | None
    log_id: str
    size: int = 0

    @property
    def origin(self) -> str:
        """The name of the key that signs this log."""
        return ORIGIN.format(log_id=self.log_id)

    @property
    def certificate_name(self) -> str:
        """The name of the key that signs its certificates."""
        return CERTIFICATE_NAME.format(log_id=self.log_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A log and what it came to."""

    log: KnownLog
    report: Report


@contextmanager
def read_only(settings: Settings) -> Iterator[Sessions | None]:
    """Yields read-only sessions of the deployment's database by tenant, None when there is no database to read.

    Raises: OlderSchema for what cannot be read for that reason.
    """
    if settings.on_postgres:
        database = Database(settings.database)
        try:
            with _older_named(database.engine):
                yield lambda tenant_id: database.transaction(tenant_id, write=False)
        finally:
            database.close()
        return
    path = Path(sa.make_url(settings.database).database or "")
    if not path.is_file():
        yield None
        return
    engine = sa.create_engine(f"sqlite:///file:{quote(str(path))}?mode=ro&uri=true")
    try:
        with _older_named(engine):
            yield lambda _tenant_id: Session(engine)
    finally:
        engine.dispose()


@contextmanager
def _older_named(engine: sa.Engine) -> Iterator[None]:
    """Says of a query that failed on an older schema that this is why. Raises: OlderSchema."""
    try:
        yield
    except (sa.exc.OperationalError, sa.exc.ProgrammingError):
        # Where the database does not even answer, that question fails as the first one did.
        from api.migrate import refuse_older  # noqa: PLC0415 - heavy, and needed for this message only

        refuse_older(engine)
        raise


@contextmanager
def stores_of(settings: Settings) -> Iterator[tuple[Reader, Reader]]:
    """Yields readers of the locked and of the unlocked store. Raises what opening an S3 bucket raises."""
    with ExitStack() as links:

        def reader(url: str, *, locked: bool) -> Reader:
            if not url.startswith("s3://"):
                return FolderReader(_folder_of(url))
            store = open_s3(url, endpoint_url=settings.s3_endpoint_url, locked=locked)
            links.callback(store.close)
            return store

        yield reader(settings.objects, locked=True), reader(settings.hot, locked=False)


def _folder_of(url: str) -> Path:
    parts = urlsplit(url)
    return Path(unquote(parts.netloc + parts.path)).absolute()


def logs_of(settings: Settings, sessions: Sessions | None, bucket: Reader) -> list[KnownLog]:
    """Returns every log: those of the database, and those that only the bucket has."""
    known: list[KnownLog] = []
    if sessions is not None:
        tenants = _tenants(settings, sessions)
        for tenant_id, name, log_id in tenants:
            with sessions(tenant_id) as session:
                state = session.get(LogState, tenant_id)
            known.append(
                KnownLog(tenant_id=tenant_id, tenant=name, log_id=log_id, size=state.size if state is not None else 0)
            )
    seen = {log.log_id for log in known}
    return known + [
        KnownLog(tenant_id=None, tenant=None, log_id=log_id) for log_id in _top_level(bucket) if log_id not in seen
    ]


def _tenants(settings: Settings, sessions: Sessions) -> list[tuple[int, str, str]]:
    query = select(Tenant).order_by(col(Tenant.name))
    if settings.on_postgres:
        database = Database(settings.database)
        try:
            with database.unscoped() as session:
                return [(row.id, row.name, row.log_id) for row in session.exec(query)]
        finally:
            database.close()
    with sessions(0) as session:
        return [(row.id, row.name, row.log_id) for row in session.exec(query)]


def _top_level(bucket: Reader) -> Iterator[str]:
    """Yields the first segments of all keys, one look each."""
    after: str | None = None
    while True:
        key = next(iter(bucket.list("", after=after)), None)
        if key is None:
            return
        top = key.partition("/")[0]
        if top != "probe":
            yield top
        # "~" sorts after every character of a key.
        after = f"{top}/~"


def own_vkey(settings: Settings, name: str) -> str | None:
    """Returns the public key of this name in the key folder, None where there is none; makes none."""
    folder = settings.key_folder
    # The store makes a seed that it does not find; here a missing one means that we do not know the key.
    if not any(folder.glob(f"kek/*/seed-{quote(name, safe='')}.key")):
        return None
    try:
        with closing(open_root(settings.key_root, clock=_now, folder=folder)) as root:
            return Ed25519Signer.from_seed(name, KekStore(folder, root).signing_seed(name)).vkey
    except VaultError:
        return None


def stream_id_of(settings: Settings, sessions: Sessions, tenant_id: int, name: str) -> str | None:
    """Returns the random id of the stream that callers name so; None where it, or the look-up key, is not at hand."""
    folder = settings.key_folder
    # As with the log's key: a look-up key that is missing must not be made here.
    if not any(folder.glob(f"kek/{tenant_id}/*")):
        return None
    try:
        with closing(open_root(settings.key_root, clock=_now, folder=folder)) as root:
            lookup = Lookups(Vault(KekStore(folder, root), clock=_now), tenant_id).of("stream", name)
    except VaultError:
        return None
    with sessions(tenant_id) as session:
        query = select(StreamRow.stream_id).where(StreamRow.tenant_id == tenant_id, StreamRow.lookup == lookup)
        return session.exec(query).first()


def _now() -> datetime:
    return datetime.now(UTC)


def part_states(sessions: Sessions, tenant_id: int) -> PartStates:
    """Returns what says whose keys are gone, batch by batch: by a sweep `expired`, otherwise `erased`."""

    def states(first: int, end: int) -> Mapping[tuple[int, int], str]:
        with sessions(tenant_id) as session:
            query = (
                select(PartPlaces.start, PartPlaces.places, PartPlaces.part, DataKey.request)
                .join(
                    DataKey,
                    sa.and_(col(DataKey.tenant_id) == PartPlaces.tenant_id, col(DataKey.key_id) == PartPlaces.key_id),
                )
                .where(
                    PartPlaces.tenant_id == tenant_id,
                    PartPlaces.start > first - STRETCH,
                    PartPlaces.start < end,
                    col(DataKey.state).in_(_GONE),
                )
            )
            gone = [
                (start + place, part, request)
                for start, places, part, request in session.exec(query)
                for place in read_places(places)
                if first <= start + place < end
            ]
            if not gone:
                return {}
            sweeps = set(session.exec(select(SweepRow.sweep_id).where(SweepRow.tenant_id == tenant_id)))
            own = _own_keys(session, tenant_id, first, end)
        found: dict[tuple[int, int], str] = {}
        for idx, part, request in gone:
            # A part that outlived its data key ends with a key of its own, and by whoever ended that.
            live, by = own.get((idx, part), (False, request))
            if live:
                continue
            state = EXPIRED if by in sweeps else ERASED
            # A joint part ends with the first of its keys; a person's request outweighs a sweep.
            if found.get((idx, part)) != ERASED:
                found[idx, part] = state
        return found

    return states


def _own_keys(session: Session, tenant_id: int, first: int, end: int) -> dict[tuple[int, int], tuple[bool, str | None]]:
    """Of the parts that have or had keys of their own: whether it is live, and who ended it."""
    rows = session.exec(
        select(PartKey.idx, PartKey.part, PartKey.state, PartKey.request).where(
            PartKey.tenant_id == tenant_id, PartKey.idx >= first, PartKey.idx < end
        )
    )
    return {(idx, part): (state == KeyState.LIVE.value, request) for idx, part, state, request in rows}


def _followed(bucket: Reader, log: KnownLog, use: str, pinned: str) -> tuple[list[str], bool]:
    """The keys of a use with their windows as far as change notes tie them to the pinned one, and whether all hold.

    What was signed by keys that the pinned one does not vouch for will be named, object by object.
    """
    pinned = pinned.strip()
    notes: list[bytes] = []
    windows: tuple[KeyWindow, ...] = ()
    try:
        return [window.pin for window in follow(bucket, log.log_id, use, pinned)], True
    except _NOT_FOLLOWED:
        pass  # as far as it goes
    try:
        for key in bucket.list(keys_prefix(log.log_id, use)):
            notes.append(bucket.get(key))
            windows = windows_of(use, parse_change(notes[0]).old[0], notes)
    except _NOT_FOLLOWED:
        whole = False
    else:
        whole = True
    pins = [window.pin for window in windows]
    return (pins, whole) if pinned in {window.vkey for window in windows} else ([pinned], whole)


def log_keys_of(bucket: Reader, log: KnownLog, keys: Sequence[str]) -> list[str]:
    """Returns the keys of a log with their windows, as far as change notes tie them to the given ones."""
    return list(dict.fromkeys(pin for key in keys for pin in _followed(bucket, log, LOG, key)[0]))


def witnesses_of(settings: Settings) -> tuple[str, ...]:
    """Returns the public keys of the witnesses that the operator configured. Raises SettingRefused."""
    return tuple(one.verifier.vkey for one in _anchors(settings) if isinstance(one, WitnessAddress))


def authorities_of(settings: Settings) -> tuple[str, ...]:
    """Returns the fingerprints of the time stamp authorities that the operator configured. Raises SettingRefused."""
    return tuple(one.fingerprint.hex() for one in _anchors(settings) if isinstance(one, TimestampAddress))


def _anchors(settings: Settings) -> tuple[Anchor, ...]:
    try:
        return parse_anchors(settings.anchor_list)
    except MalformedAnchor as error:
        raise SettingRefused("ANCHORS", error.reason) from None


def verify_log(
    log: KnownLog,
    *,
    bucket: Reader,
    hot: Reader,
    keys: Sequence[str],
    certificate_keys: Sequence[str],
    options: Options,
    sessions: Sessions | None,
    progress: Callable[[int], None] | None = None,
    helping: Helping | None = None,
    index: bool = False,
) -> Report:
    """Returns what one log comes to with its certificates, and with `index` what the database's index of it does.

    `keys` may be any keys the log had, `certificate_keys` those of its certificates: their rotations are followed.
    Raises BadPin.
    """
    certificate_keys = [pin for key in certificate_keys for pin in _followed(bucket, log, CERTIFICATE, key)[0]]
    followed = [_followed(bucket, log, LOG, key) for key in keys]
    keys = [pin for pins, _ in followed for pin in pins]
    # A key that could not be followed has no window, and there may be more.
    is_all = all(whole and all(" " in pin for pin in pins) for pins, whole in followed)
    options = replace(options, keys_are_known=all(whole for _, whole in followed), keys_are_all=is_all)
    states = None if sessions is None or log.tenant_id is None else part_states(sessions, log.tenant_id)
    report = verify(
        bucket,
        log_id=log.log_id,
        keys=keys,
        options=options,
        hot=hot,
        part_states=states,
        progress=progress,
        helping=helping,
    )
    known = () if sessions is None or log.tenant_id is None else known_certificates(sessions, log.tenant_id)
    report = check_kept(report, bucket=bucket, hot=hot, keys=keys, certificate_keys=certificate_keys, known=known)
    if not index or sessions is None or log.tenant_id is None:
        return report
    return check_index(report, sessions=sessions, tenant_id=log.tenant_id, size=log.size, bucket=bucket, hot=hot)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpensAgain:
    """Opens, in a helper process, the bucket and the database anew; both stay open as long as it lives."""

    settings: Settings
    tenant_id: int | None

    def __call__(self) -> tuple[Reader, PartStates | None]:
        """Returns a reader of the locked store, and what says whose keys are gone."""
        bucket, _ = _OPEN.enter_context(stores_of(self.settings))
        sessions = _OPEN.enter_context(read_only(self.settings))
        states = None if sessions is None or self.tenant_id is None else part_states(sessions, self.tenant_id)
        return bucket, states


def helping_with(settings: Settings, log: KnownLog, processes: int | None) -> Helping | None:
    """Returns who helps with a log: `processes` in all, or as many as are worth their start; None for nobody."""
    if processes is None:
        processes = min(_MOST, len(os.sched_getaffinity(0))) if log.size >= _WORTH_A_HELPER else 1
    if processes == 1:
        return None
    return Helping(opener=OpensAgain(settings=settings, tenant_id=log.tenant_id), processes=processes - 1)

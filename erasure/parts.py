"""What the verbs of this folder work with: vault, record, transactions, connectors and the desk's few settings.

Guarantees: a value, built once by the wiring; nothing here reads a clock, the environment or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from sqlmodel import Session

from connectors.base import Connector
from erasure.certificate_store import CertificateStore
from erasure.errors import CallbackFailed
from ledger.anchors import UNANCHORED
from ledger.checkpoint import Signer
from ledger.entry import Kind
from ledger.expiry import Expiry
from ledger.head import Transactions
from ledger.holding import Holding
from ledger.models import EntryRow
from registry.acting import Acting
from registry.keeping import Derived, PartUnderKeys
from registry.models import StoreRow
from registry.playback import ReadEntry
from registry.record import AppendResult, Evidence
from vault.rows import PartId
from vault.vault import Vault
from vault.watch import Fence, raise_fence


class RecordPort(Protocol):
    """The record, as far as a desk needs it; `registry.record.Record` is the one there is."""

    def event(self, tenant_id: int, kind: Kind, body: Mapping[str, Any], now: datetime) -> str:
        """Store a binding event and return its entry id; never inside a transaction."""
        ...

    def announce(
        self, session: Session, tenant_id: int, kind: Kind, body: Mapping[str, Any] | bytes, now: datetime
    ) -> str:
        """Write an announcing event in the caller's transaction and return its entry id; bytes are canonical JSON."""
        ...

    def ship_outbox(self, tenant_id: int, now: datetime) -> int:
        """Append what waits in the outbox."""
        ...

    def evidence(self, tenant_id: int, entry_ids: Sequence[str], now: datetime) -> Evidence:
        """Prove and disclose events against one checkpoint."""
        ...

    def log_vkey(self, tenant_id: int) -> str:
        """The log's public key."""
        ...


class CertificateSigner(Signer, Protocol):
    """A signer that knows its own public text form."""

    @property
    def vkey(self) -> str:
        """The key in C2SP text form."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Whose requests these are."""

    tenant_id: int
    name: str
    log_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call to the owner of a derived copy: where to, by which secret it is signed, and the bytes it says."""

    url: str
    secret: str = field(repr=False)
    body: bytes


def _no_calls(_tenant_id: int, _call: Call) -> str | None:
    raise CallbackFailed("this process makes no calls")


def _no_part_keys(_tenant_id: int, parts: Sequence[PartUnderKeys]) -> Derived:
    return Derived(faults={part.place: "this process does not read the record" for part in parts})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything outside this folder. `connect(store, read_only)` opens a registered store's connector."""

    vault: Vault
    record: RecordPort
    transactions: Transactions
    connect: Callable[[StoreRow, bool], Connector]
    signer: Callable[[str], CertificateSigner]
    """The certificate key of a log id; another key than the log's."""
    approval: str = "dual"
    quiet_period: timedelta = timedelta(days=1)
    kek_grace: timedelta = timedelta(days=7)
    unverified_term: timedelta = timedelta(days=90)
    """How long after its date a request that nobody verified is refused (`erasure.unverified`)."""
    store_seconds: float = 120.0
    """The time limit of one call to a store."""
    max_attempts: int = 3
    agent_term: timedelta = timedelta(days=3)
    """How long a task waits for an agent's process before its copies count as unreachable."""
    truncate_log: Callable[[], bool] = lambda: True
    """Empties the database's own write-ahead log of old pages."""
    read: Callable[[Session, int, Sequence[EntryRow]], list[ReadEntry]] | None = None
    """Reads entries of the record (`registry.playback`), for exports; where it is missing, exports are not built."""
    append: Callable[[Acting, Sequence[bytes], datetime], AppendResult] | None = None
    """Appends entries about a person (`registry.record`), for corrections."""
    payload: Expiry | None = None
    """Deletes the record's payload objects (`ledger.expiry`); where it is missing, passes leave them alone."""
    holding: Holding | None = None
    """Sets legal holds on payload objects (`ledger.holding`); where it is missing, they are left to their locks."""
    certificates: CertificateStore | None = None
    """Keeps certificates in the locked store; where it is missing, they lie in the table alone until a pass has one."""
    exports: Path | None = None
    """The folder of exports, one below it for each tenant; where it is missing, exports are not built."""
    call: Callable[[int, Call], str | None] = _no_calls
    """Asks for a new derived copy; its public id, None while there is none. Raises: CallbackFailed."""
    clock: Callable[[], datetime] | None = None
    """Reads the time of each step of a longer work; None: what a verb was given holds for all of it."""
    apart: Callable[[], timedelta | None] | None = None
    """How far this machine's clock is ahead of one that is shared with other machines; None where there is none."""
    keep_groups: Callable[[int, Sequence[int], datetime], int] = lambda _tenant_id, groups, _now: len(groups)
    """Writes key groups that were wrapped anew to the unlocked store and reads them back (`registry.journal`)."""

    part_keys: Callable[[int, Sequence[PartUnderKeys]], Derived] = _no_part_keys
    """Derives the keys that open single parts of the record (`registry.keeping`), for parts that must stay."""
    keep_part_rows: Callable[[int, Sequence[PartId], datetime], int] = lambda _tenant_id, names, _now: len(names)
    """Writes the rows of part keys to the unlocked store and reads them back (`registry.journal`)."""

    anchored: Callable[[str], str] = lambda _log_id: UNANCHORED
    """Which parties outside the operator's reach have seen the log of that id, in words (`ledger.anchors`)."""
    behind: Callable[[Fence], int] = lambda _fence: 0
    """How many processes may hold a key from before that destruction (`vault.watch`); asked again until none does."""
    raise_fence: Callable[[Session, datetime], Fence] = raise_fence
    """Counts a destruction in its own transaction, so that every process empties its caches."""

    def instant(self, *known: datetime | None) -> datetime:
        """The time of this step, never before an instant that is known to lie behind it."""
        behind = [at for at in known if at is not None]
        return max(behind if self.clock is None else [*behind, self.clock()])

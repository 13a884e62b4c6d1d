"""The contract every connector keeps; `tests/connectors/contract.py` holds each one to it, against the real store.

**Words.** An item is one copy at one place: a caller's opaque `copy_id` and the store's `locator`. A level says what
was shown about its bytes (`Level`). A canary is a byte string that the item held and that should be found nowhere
afterwards.

**Promises of every connector**
1. *Ids, never filters.* `erase` removes what its locators name and nothing else; what a filter finds goes through
   `discover` first. A locator that may name more or less than one item is refused (`BadLocator`), never "0 erased".
2. *Absence is read, not assumed.* `already_absent` is reported only after a read that could have seen the item: same
   credentials, same scope. "Not found" from a scope that may hide rows is `failed`.
3. *Ownership.* Where `config.owner_field` is set, the item's own value is compared with the identifiers, both as
   `type:value` and as bare `value`, inside the transaction that deletes. Anything else is `owner_mismatch`: untouched.
4. *Idempotent.* The same call again ends in the same state; what is gone is `already_absent`.
5. *One receipt per item, in the order given.* A failure inside a batch fails its own items only; items that were not
   reached before the deadline are `failed` and say so. An error that is raised means that nothing is known; call again.
6. *Bounded.* Every call takes a `deadline` in seconds from now and returns or raises `Timeout` by then, give or take
   one statement. No call waits for a lock without limit.
7. *Levels are never rounded up.* A receipt of `erase` says at most L1. `reclaim` says what it did, `verify` what it
   found; "could not check" is said in words (`could_not_check`) and is never an absence.
8. *Quiet.* Details, labels, `repr` and errors hold no locator, value, path or connection string.
9. *No code from the store.* Nothing is unpickled, evaluated or imported because a store says so.

**Not promised**: what backups, replicas, snapshots and file systems below the store keep (L3 is reported as `unknown`
unless the configuration dates it), and that nobody writes the item again afterwards (see `fence`).

Order of use: `capture` (while planning) → `fence` → `erase` in batches → `await_done` → `reclaim` → `verify`, the last
by another connector opened `read_only`. After a crash the whole sequence runs again; `erase` remembers also from items
that are already absent what `reclaim` has to treat.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

import msgspec

from connectors.errors import DriverMissing, KindNotBuilt, KindUnknown, ModeNotBuilt, NotWalkable, Timeout

if TYPE_CHECKING:
    from datetime import datetime
    from types import ModuleType, TracebackType

Locator = Mapping[str, Any]
Secrets = Callable[[str], str]
"""Resolves a reference (`env:…` or `file:…`) to its secret."""

SECRET_SCHEMES = ("env:", "file:")


class Level(StrEnum):
    """What was shown about an item's bytes; ordered, `Level.L1 < Level.L2`. Source: DESIGN §1."""

    L0 = "L0"
    """The store accepted the request."""
    L1 = "L1"
    """Absent by the store's own API."""
    L2 = "L2"
    """Absent from the store's own files."""
    L3 = "L3"
    """Absent from its logs, snapshots and backups."""


class Outcome(StrEnum):
    """How `erase` ended for one item."""

    ERASED = "erased"
    ALREADY_ABSENT = "already_absent"
    FAILED = "failed"
    OWNER_MISMATCH = "owner_mismatch"
    LOCKED = "locked"
    """The store protects the bytes until a date; reported, never hidden."""
    ACCEPTED = "accepted"
    """The store took the request (L0) and does it later; the item can still be read. Looked at again, not erased."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One copy to treat: the caller's opaque id, where it lies, and what it held (from `capture`)."""

    copy_id: str
    locator: Locator = field(repr=False)
    canaries: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Whose items `discover` looks for: identifiers, each `type:value`; matched whole and as bare value."""

    identifiers: tuple[str, ...] = field(repr=False)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What `erase` did to one item; `level` is what the same call re-read, at most L1, None where nothing was.

    A struct and not a dataclass, as `Finding`: ten thousand frozen dataclasses cost more than a store needs to delete
    ten thousand rows.
    """

    copy_id: str
    outcome: Outcome
    level: Level | None
    method: str
    detail: str
    at: datetime


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify` saw of one item.

    `level` is the highest level at which absence was shown, None when not even L1. `present` is True when the item or
    its bytes were seen at or below the asked level, False when absence was shown there, None when that is not known,
    and then `could_not_check` says why.
    """

    copy_id: str
    level: Level | None
    present: bool | None
    how: str
    could_not_check: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimReport:
    """What `reclaim` reached for everything this connector erased.

    `residual_until` is when logs, snapshots or backups outside the store's files will have dropped the bytes: None when
    nothing remains, a date, or "unknown". `evidence` are opaque facts that `verify` can check again. `freed_bytes` is
    by how much the store's files shrank, None where that was not measured; others may have written meanwhile.
    """

    level: Level
    residual_until: datetime | Literal["unknown"] | None
    detail: str
    method: str
    evidence: Mapping[str, str] = field(default_factory=dict)
    freed_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a connector can do here: the highest level of each verb, and its limits."""

    kind: str
    erase_level: Level
    reclaim_level: Level
    verify_level: Level
    batch_size: int
    locks: str
    """What other users of the store wait for, and during which verb."""
    fence: bool
    search: bool
    """True when the store has a search of its own that `verify` also asks."""
    owner_check: bool
    discover: bool
    read_only: bool
    seeks_from: Level = Level.L1
    """The lowest level at which `verify` looks for what an item held: below it nothing need be read beforehand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residue:
    """Where a canary still lies: a label that tells places apart without naming a person's path, and the encoding."""

    where: str
    count: int
    encoding: str
    canary: int
    """Position of the canary in the list that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceReport:
    """Whether the store itself now refuses writes of that scope; where not, callers must watch for late copies."""

    held: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Whether named fields of an item now read as asked."""

    corrected: bool
    detail: str


@runtime_checkable
class Corrector(Protocol):
    """A connector that can set named fields of an item; only some stores can."""

    def correct(
        self, item: Item, values: Mapping[str, Any], *, owner_identifiers: Sequence[str], deadline: float
    ) -> Correction:
        """Set the fields of one item after the same ownership check as `erase`, and read them again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What became of a legal hold on one item. `versions`: those on which it was set or lifted now, and no other.

    `left`: it lies there and was not lifted, because it may be somebody else's as well.
    """

    copy_id: str
    state: Literal["set", "lifted", "left", "absent", "refused"]
    versions: tuple[str, ...]
    detail: str


@runtime_checkable
class Holder(Protocol):
    """A connector whose store can itself refuse that an item is deleted; only some stores can."""

    def hold(self, items: Sequence[Item], *, deadline: float) -> list[Held]:
        """Set a legal hold on every version that has none; one answer each, in order."""
        ...

    def lift(
        self, items: Sequence[tuple[Item, Sequence[str]]], *, deadline: float, doubted: bool = False
    ) -> list[Held]:
        """Lift it from the named versions, those that `hold` set; a version that is gone is lifted.

        Where somebody else's hold lies on another version, or with `doubted`, it is left and only looked at.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a canary showed that `check` wrote, erased, reclaimed and looked for."""

    reachable: bool
    can_erase: bool
    level_reached: Level | None
    owner_check: Literal["enforced", "not_configured", "failed"]
    took_ms: int
    findings: tuple[str, ...]
    checked_at: datetime


class Connector(ABC):
    """One store of one tenant. Not thread-safe; use one per worker, and close it."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return what this connector can do, without contacting the store."""

    @abstractmethod
    def check_locator(self, locator: Locator) -> None:
        """Accept a locator that names at most one item here. Raises: BadLocator, OutsideRoot, StoreUnreachable."""

    @abstractmethod
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        """Yield the locators whose owner is one of the selector's identifiers, in bounded memory.

        Raises: BadConfig without `owner_field`; BadLocator where owned rows cannot be named one by one; Timeout.
        """

    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        """Yield a locator of every item there is, whoever owns it, in each form it may be registered under.

        In bounded memory; for finding copies that a backup of the store brought back. Raises: NotWalkable where this
        kind cannot list its places; BadLocator where some of them are hidden; Timeout, never a partial answer.
        """
        raise NotWalkable(self.capabilities().kind)

    @abstractmethod
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        """Return distinctive byte strings that each item holds now, by copy id; empty where there is none to use."""

    @abstractmethod
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        """Yield each item's content, None where it is absent; every item exactly once."""

    @abstractmethod
    def fence(self, scope: Locator) -> FenceReport:
        """Make the store refuse new writes of this scope, where it can; says so where it cannot."""

    @abstractmethod
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        """Delete the items and re-read them; one receipt each, in order. See the promises above.

        Raises: StoreUnreachable, WrongCredentials, Timeout, BadConfig, ReadOnlyConnector. Bad locators are receipts.
        """

    @abstractmethod
    def await_done(self, *, deadline: float) -> bool:
        """Return True once the store has no accepted deletion of ours outstanding, False at the deadline."""

    @abstractmethod
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        """Remove the freed bytes of everything erased so far, as far as `level` asks and the store allows."""

    @abstractmethod
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        """Look for the items at every level up to `level`, on a connection that cannot write where there is one."""

    @abstractmethod
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        """Return where the store's own bytes still hold the canaries. Raises: Timeout, never a partial answer."""

    @abstractmethod
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        """Write, erase, reclaim and look for a canary of our own, in a scratch place that is removed afterwards."""

    @abstractmethod
    def close(self) -> None:
        """Give up every connection and file; may be called twice."""

    def __enter__(self) -> Self:
        """Return the connector itself, to be closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connector."""
        self.close()


class Deadline:
    """Seconds counted down from now on the monotonic clock, so that a changed wall clock moves no limit."""

    __slots__ = ("_end", "operation", "seconds")

    def __init__(self, operation: str, seconds: float) -> None:
        self.operation = operation
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def spent(self) -> float:
        """Return the seconds since the start."""
        return self.seconds - (self._end - time.monotonic())

    def left(self) -> float:
        """Return the seconds that remain, never below zero."""
        return max(0.0, self._end - time.monotonic())

    def is_over(self) -> bool:
        """Tell whether no time remains."""
        return self.left() <= 0.0

    def check(self) -> None:
        """Pass while time remains. Raises: Timeout."""
        if self.is_over():
            raise self.error()

    def error(self) -> Timeout:
        """Return the error that says which limit was reached."""
        return Timeout(self.operation, self.seconds)


def owner_forms(identifiers: Sequence[str]) -> frozenset[str]:
    """Return the forms in which a store may hold an owner: `type:value` and the bare value. Source: API §3."""
    bare = (name.split(":", 1)[1] for name in identifiers if ":" in name)
    return frozenset(form for form in (*identifiers, *bare) if form)


def is_one_of(owner: object, forms: AbstractSet[str]) -> bool:
    """Tell whether an owner's value, as a store gives it, is one of the forms; no value is nobody's name."""
    return owner is not None and str(owner) in forms


def resolve_secrets(config: Mapping[str, Any], secrets: Secrets) -> dict[str, Any]:
    """Return the configuration with every `env:` and `file:` reference replaced by its secret."""
    return {
        name: secrets(value) if isinstance(value, str) and value.startswith(SECRET_SCHEMES) else value
        for name, value in config.items()
    }


KINDS = (
    "sql", "pgvector", "redis", "s3", "files", "qdrant", "chroma", "lancedb", "langgraph", "langgraph_store", "mem0",
    "http", "agent",
)  # fmt: skip
"""Every kind of the HTTP contract. Source: API §3."""

_BUILT = {
    "sql": ("connectors.sql", "psycopg[binary]"),
    "files": ("connectors.files", ""),
    "pgvector": ("connectors.pgvector", "psycopg[binary]"),
    "langgraph": ("connectors.langgraph", "psycopg[binary]"),
    "langgraph_store": ("connectors.langgraph_store", "psycopg[binary]"),
    "s3": ("connectors.s3", ""),
    "redis": ("connectors.redis", "muniment-server[redis]"),
    "http": ("connectors.http", ""),
    "agent": ("connectors.agent", ""),
    "mem0": ("connectors.mem0", ""),
    "qdrant": ("connectors.qdrant", ""),
    "chroma": ("connectors.chroma", "muniment-server[chroma]"),
    "lancedb": ("connectors.lancedb", "muniment-server[lancedb]"),
}
"""Kind → module with `open_store(config, read_only=…)`, and what to install where its import fails."""
_NOT_BUILT = {
    "lancedb": ("url", "'path'"),
    "mem0": ("url", "'path'"),
    "qdrant": ("url", "'path', or kind http with recipe qdrant, which erases on a server to L1"),
}
"""Kind → setting with which it cannot be driven, a server that could not be tested against, and what to use instead."""
MEM0_VECTORS = ("qdrant", "pgvector", "chroma")
"""The vector stores behind mem0 that are driven."""
MEM0_ELSEWHERE = (
    "mem0 is driven over Qdrant's local mode, over pgvector and over a folder of Chroma: register the vectors of"
    " another store by themselves (lancedb, redis); mem0's history, entities and raw turns are not covered then"
)


def built_kinds() -> tuple[str, ...]:
    """Return the kinds this version can drive."""
    return tuple(sorted(_BUILT))


def why_not_built(kind: str, config: Mapping[str, Any]) -> str | None:
    """Return why this version cannot drive a store of this configuration, None where it can."""
    if kind not in _BUILT:
        return f"stores of kind {kind} are not built in this version"
    setting = _setting_not_built(kind, config)
    return f"stores of kind {kind} with {setting} are not built in this version" if setting else None


def _setting_not_built(kind: str, config: Mapping[str, Any]) -> str | None:
    setting, _ = _NOT_BUILT.get(kind, ("", ""))
    # The address of mem0's own database, beside the folder of its history.
    is_database = kind == "mem0" and config.get("vector_store") == "pgvector"
    return setting if setting in config and not is_database else None


def require_driver(kind: str) -> None:
    """Pass when the driver of a kind is installed, or the kind needs none. Raises: DriverMissing."""
    if kind in _BUILT:
        _module(kind)


def _module(kind: str) -> ModuleType:
    module_name, extra = _BUILT[kind]
    try:
        # Imported here, so that a missing driver is this store's error and not one of the server's start.
        return import_module(module_name)
    except ModuleNotFoundError as missing:
        raise DriverMissing(kind, extra or str(missing.name)) from missing


def open_connector(kind: str, config: Mapping[str, Any], *, secrets: Secrets, read_only: bool = False) -> Connector:
    """Return the connector of a registered store; nothing is contacted yet.

    Raises: KindUnknown, KindNotBuilt, ModeNotBuilt, DriverMissing, BadConfig, and what `secrets` raises.
    """
    if kind not in KINDS:
        raise KindUnknown(kind, KINDS)
    if kind not in _BUILT:
        raise KindNotBuilt(kind, _BUILT)
    if _setting_not_built(kind, config):
        raise ModeNotBuilt(kind, *_NOT_BUILT[kind])
    opened: Connector = _module(kind).open_store(resolve_secrets(config, secrets), read_only=read_only)
    return opened

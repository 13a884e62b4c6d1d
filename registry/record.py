"""The record: turns what callers send into sealed drafts, and what is stored back into what was said.

Writing an entry, in order (DESIGN §3):

 1. Parse the envelope; every refusal is of one item, with its field.
 2. In one transaction: classes, kinds, subjects, streams, runs, recorders, and the data keys of every part. A part
    about somebody who is fenced is dropped here already (a hint; the sequencer decides again).
 3. Seal: the bytes that arrived, under the key of subject × class × month; a joint part under all its keys at once.
    The skeleton (agent, model, versions, actor, run, sources, names of parts) under the tenant's own key.
 4. Hand over to the log, which stores, sequences and answers.

Guarantees: nothing readable leaves step 3; a repeat is a `duplicate`, another content under the same id an
`id-conflict`. Events of the service go through `event` (binding: stored before it takes effect) and `announce`
(announcing: in the caller's transaction, shipped later). Not here: who may write, HTTP, retention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlmodel import Session

from ledger import canonical, index, outbox
from ledger.draft import Draft, Placed, PlacedState, SealedPart
from ledger.entry import Kind, decode_header, uuid7
from ledger.errors import LedgerError, RecordDamaged
from ledger.head import Transactions
from ledger.log import Log, Proof
from ledger.models import EntryRow
from ledger.turns import Admit
from registry import bulk, limited, subjects
from registry.acting import Acting
from registry.drafting import Drafting, Item, lock_end, parsed_item
from registry.entries import split_batch, split_lines, unique
from registry.errors import UnknownTenant
from registry.journal import Journal
from registry.keyed import NOBODY, Lookups
from registry.machine_rows import Follower
from registry.machines import KINDS
from registry.models import Tenant
from registry.preparing import Preparing, Taken
from registry.sealing import ALGORITHM, Keyring, skeleton_class
from registry.sheet_drafting import SheetDrafting, is_timely
from registry.sheets import problem_of
from vault.envelope import context, joint_prk, part_key_of, seal
from vault.models import KeyState
from vault.packing import pack
from vault.vault import Vault

SYSTEM_STREAM = 0
_OUTBOX_BATCH = 1_000
_DISCLOSED_AT_ONCE = 100
_UNTOLD = "whether the record has this entry cannot be told, what says so is damaged: muniment verify --all"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """One answer per item sent, in order, and the signed note over the flush (None when nothing was stored).

    Where some items had to be sealed again, a second flush took them: `later` lists the notes over such flushes.
    """

    results: list[dict[str, Any]]
    receipt: dict[str, Any] | None
    redacted: Mapping[str, int] = field(default_factory=dict)
    """Class → parts of this call that held content which the class does not expect."""


class _Event(NamedTuple):
    """An event of the service; `number` of an announcement."""

    entry_id: str
    kind: Kind
    body: bytes
    at: datetime
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceEntry:
    """One event of the service, proven and disclosed: `part_key` opens this one ciphertext and no other."""

    entry_id: str
    index: int
    header: bytes
    inclusion: tuple[bytes, ...]
    part: bytes
    part_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Events proven against one signed checkpoint. `entries` are read, once, while somebody goes over them."""

    checkpoint: str
    tree_size: int
    entries: Iterator[EvidenceEntry]


class Record:
    """The record of every tenant of one deployment."""

    def __init__(
        self,
        *,
        vault: Vault,
        log: Log,
        transactions: Transactions,
        journal: Journal | None = None,
        preparing: Preparing | None = None,
    ) -> None:
        """`journal` writes rows for a rebuild before each append; without it a lost database stays lost.

        `preparing` reads and seals large calls in other processes.
        """
        self._vault = vault
        self._preparing = preparing
        self._log = log
        self._transactions = transactions
        self._journal = journal
        self._machines = Follower(vault=vault, log=log, transactions=transactions, announce=self.announce)
        log.guard_with(self._admit)

    @property
    def log(self) -> Log:
        """The log underneath."""
        return self._log

    def log_vkey(self, tenant_id: int) -> str:
        """Return the public key of the tenant's log, to pin."""
        return self._log.vkey(tenant_id)

    def append(self, acting: Acting, entries: Sequence[bytes], now: datetime) -> AppendResult:
        """Store entries and answer each; `stored` means sealed, in the bucket under its lock, and sequenced.

        Raises: what log, store and database raise; then nothing is promised and the same items may be sent again.
        """
        with bulk.without_collector():
            return self._append(acting, entries, now)

    def append_call(self, acting: Acting, data: bytes, now: datetime, *, lines: bool) -> AppendResult | None:
        """Do what `append` does with the entries of a call as it arrived, prepared by another process.

        None, and nothing stored, where it is to be taken apart and given to `append`: what is small, what cannot be
        taken apart or has too many items, what depends on the time or content of single entries, what was lost on its
        way. Raises: what `append` raises.
        """
        with bulk.without_collector():
            taken = None if self._preparing is None else self._preparing.take(data, lines=lines)
            if taken is None or not taken.sheet.numbers:
                return None
            with taken:
                return self._append_sheet(acting, taken, data, now, lines=lines)

    def _append_sheet(
        self, acting: Acting, taken: Taken, data: bytes, now: datetime, *, lines: bool
    ) -> AppendResult | None:
        sheet = taken.sheet
        if not is_timely(sheet, now):
            return None
        with self._transactions(acting.tenant_id) as session:
            drafting = SheetDrafting(self._vault, session, acting, now, sheet)  # 2
        sealed = taken.seal(drafting.order()) if drafting.is_plain else None  # 3
        if sealed is None:
            return None
        items = drafting.items()
        drafts = drafting.drafts(items, sealed)
        notes = []
        if drafts:
            notes = [self._put(acting, items, drafts, now)]
            turned_back = [item for item in items if item.was_turned_back]
            if turned_back:
                raws = split_lines(data) if lines else split_batch(data)
                for item in turned_back:
                    item.parsed = parsed_item(item.number, raws[item.number]).parsed
            notes.append(self._seal_again(acting, turned_back, now))
            if moving := drafting.moving(items):
                self._machines.follow(acting.tenant_id, moving, now)
        receipt = _receipt([note for note in notes if note is not None])
        return AppendResult(results=_results(items), receipt=receipt)

    def _append(self, acting: Acting, entries: Sequence[bytes], now: datetime) -> AppendResult:
        items = [parsed_item(number, raw) for number, raw in enumerate(entries)]
        open_items = [item for item in items if item.problem is None]
        drafts = self._drafts(acting, open_items, now) if open_items else []
        notes = []
        if drafts:
            notes = [self._put(acting, open_items, drafts, now)]
            notes.append(self._seal_again(acting, [item for item in open_items if item.was_turned_back], now))
            if moving := _moving(open_items):
                self._machines.follow(acting.tenant_id, moving, now)
        redacted = Counter(data_class for item in items for _, data_class in item.redacted)
        receipt = _receipt([note for note in notes if note is not None])
        return AppendResult(results=_results(items), receipt=receipt, redacted=redacted)

    def _drafts(self, acting: Acting, items: Sequence[Item], now: datetime) -> list[Draft]:
        with self._transactions(acting.tenant_id) as session:
            drafting = Drafting(self._vault, session, acting, now, items)  # 2
        return drafting.drafts()  # 3

    def _put(self, acting: Acting, items: Sequence[Item], drafts: Sequence[Draft], now: datetime) -> str | None:
        """Let the log take the drafts of these items and note where each stands; the note over the flush."""
        self._require_log(acting.tenant_id, acting.log_id)
        if self._journal is not None:
            self._journal.before(acting.tenant_id, acting.log_id, drafts, now)
        appended = self._log.append(acting.tenant_id, drafts, now=now, admit=self._admit(acting.tenant_id))  # 4
        placed = iter(appended.placed)
        for item in items:
            if item.draft is not None:
                item.placed = next(placed)
        return appended.receipt

    def _require_log(self, tenant_id: int, log_id: str) -> None:
        """Check that the log that takes entries is the one that their seals are bound to: under another none opens.

        Raises: RecordDamaged.
        """
        try:
            known = self._log.head(tenant_id).log_id
        except LedgerError:
            return  # whatever keeps the log closed says so when it is given the drafts
        if known != log_id:
            raise RecordDamaged("altered", f"the database gives this tenant the log {log_id}, and it has {known}")

    def _seal_again(self, acting: Acting, items: Sequence[Item], now: datetime) -> str | None:
        """Try once more what the sequencer turned back; returns the note over that flush.

        Its person was fenced meanwhile, and then it ends here; or a limited erasure closed its key, and then it is
        sealed under the next one.
        """
        if not items:
            return None
        self._vault.evict(key for item in items if item.draft for part in item.draft.parts for key in part.key_ids)
        for item in items:
            item.draft = item.placed = None
        drafts = self._drafts(acting, items, now)
        return self._put(acting, items, drafts, now) if drafts else None

    def event(self, tenant_id: int, kind: Kind, body: Mapping[str, Any], now: datetime) -> str:
        """Append a binding event to the tenant's system stream; returns its entry id once it is stored.

        The caller lets it take effect only then (DESIGN §3). The body names nobody: ids, counts, digests.
        """
        entry_id = uuid7(now)
        self._append_events(tenant_id, [_Event(entry_id, kind, canonical.dumps(dict(body)), now)], now)
        return entry_id

    def announce(
        self, session: Session, tenant_id: int, kind: Kind, body: Mapping[str, Any] | bytes, now: datetime
    ) -> str:
        """Write an announcing event to the outbox, in the caller's transaction; returns the entry id it will have.

        `body`: canonical JSON, where the caller has written it already. Raises: UnknownTenant.
        """
        session.flush()
        entry_id, data = uuid7(now), body if isinstance(body, bytes) else canonical.dumps(dict(body))
        if outbox.put(session, tenant_id, entry_id=entry_id, kind=kind.value, body=data, at=now) is None:
            raise UnknownTenant
        return entry_id

    def ship_outbox(self, tenant_id: int, now: datetime) -> int:
        """Append what waits in the outbox, in its order; returns how many. Run again after a crash: same ids.

        Raises: RecordDamaged, the others shipped, where nobody can tell whether the record has one.
        """
        shipped = 0
        while True:
            with self._transactions(tenant_id, write=False) as session:
                rows = outbox.waiting(session, tenant_id, _OUTBOX_BATCH)
                events = [_Event(row.entry_id, Kind(row.kind), row.body, row.at, row.n) for row in rows]
                numbers = {row.entry_id: row.n for row in rows}
                log_id = _tenant(session, tenant_id).log_id if rows else ""
                astray = outbox.astray(session, tenant_id, log_id, rows)
            if not events:
                return shipped
            if astray:
                with self._transactions(tenant_id) as session:
                    outbox.renumber(session, tenant_id, astray)
                continue
            placed = self._append_events(tenant_id, events, now)
            told = [one for one in placed if one.state is not PlacedState.DAMAGED]
            if not told:
                raise RecordDamaged("altered", f"announcement {events[0].number}: {_UNTOLD}")
            with self._transactions(tenant_id) as session:
                # One of which the record holds another text was shipped, and its row was changed before that was noted.
                there = index.known(session, tenant_id, [one.entry_id for one in told if one.index is None])
                places = {one.entry_id: one.index for one in told} | {key: row.idx for key, row in there.items()}
                outbox.shipped(session, tenant_id, {numbers[key]: idx for key, idx in places.items()})
            shipped += len(told)

    def evidence(self, tenant_id: int, entry_ids: Sequence[str], now: datetime) -> Evidence:
        """Return events of the service proven against one checkpoint, each with the key of its one part.

        Raises: UnknownEntry when an id is not in the log (ship the outbox first).
        """
        wanted = unique(entry_ids)
        with self._transactions(tenant_id, write=False) as session:
            rows = index.known(session, tenant_id, wanted)
            ordered = [rows[entry_id].idx for entry_id in wanted]
        proofs = self._log.proofs(tenant_id, ordered, now)

        def made() -> Iterator[EvidenceEntry]:
            for page in index.chunks(list(zip(wanted, proofs, strict=True)), _DISCLOSED_AT_ONCE):
                yield from self._disclosed(tenant_id, page)

        if not proofs:
            return Evidence(checkpoint=self._log.publish(tenant_id, now).decode(), tree_size=0, entries=iter(()))
        return Evidence(checkpoint=proofs[0].checkpoint, tree_size=proofs[0].tree_size, entries=made())

    def _disclosed(self, tenant_id: int, proven: Sequence[tuple[str, Proof]]) -> list[EvidenceEntry]:
        """These events with the keys of their parts; the data keys are let go before anybody has the first."""
        with self._transactions(tenant_id, write=False) as session:
            keys = index.keys_of(session, tenant_id, [proof.index for _, proof in proven])
            opened = Keyring(self._vault, session, tenant_id).open_all(keys.values())
        log_id, made = self._log.head(tenant_id).log_id, []
        for entry_id, proof in proven:
            part = decode_header(proof.header).parts[0]
            ciphertext = self._log.ciphertext(tenant_id, part)
            prk = joint_prk({key_id: opened[key_id] for key_id in keys[proof.index, 0]})
            made.append(
                EvidenceEntry(
                    entry_id=entry_id,
                    index=proof.index,
                    header=proof.header,
                    inclusion=proof.inclusion,
                    part=ciphertext,
                    part_key=part_key_of(prk, ciphertext, context(str(tenant_id), log_id, entry_id, part.role)),
                )
            )
        return made

    def _admit(self, tenant_id: int) -> Admit:
        """The sequencer's own look at the fences: parts of somebody who was fenced meanwhile are dropped.

        An entry under a key that a limited erasure closed meanwhile is turned back whole: its key is about to go.
        """

        def admit(session: Session, drafts: Sequence[Draft]) -> list[frozenset[int]]:
            groups = {part for draft in drafts for part in draft.subjects}
            people = {number for group in groups for number in group}
            closed = subjects.fenced(session, tenant_id, people)
            going = self._closing(session, tenant_id, people, drafts)
            # Whom a pass of retention ended between drafting and here has a new number now: all of it comes again.
            ended = subjects.ended(session, tenant_id, people)
            if not (closed or going or ended):
                return [frozenset()] * len(drafts)
            return [
                frozenset(
                    number
                    for number, part in enumerate(draft.subjects)
                    if any(person in closed for person in part)
                    or (part and (_is_under(draft, going) or _is_about(draft, ended)))
                )
                for draft in drafts
            ]

        return admit

    def _closing(
        self, session: Session, tenant_id: int, people: Collection[int], drafts: Sequence[Draft]
    ) -> frozenset[str]:
        """The keys of these drafts that seal nothing new any more; only limited erasures leave a person others."""
        if not limited.of_people(session, tenant_id, people):
            return frozenset()
        ids = {key_id for draft in drafts for part in draft.parts for key_id in part.key_ids}
        known = self._vault.info(session, tenant_id, ids)
        return frozenset(key_id for key_id, info in known.items() if info.state != KeyState.LIVE)

    def _append_events(self, tenant_id: int, events: Sequence[_Event], now: datetime) -> Sequence[Placed]:
        with self._transactions(tenant_id) as session:
            log_id = _tenant(session, tenant_id).log_id
            spec = skeleton_class(session, tenant_id)
            ring = Keyring(self._vault, session, tenant_id)
            # By the month of receipt, like everything: the key of its own month may be gone when an event waited long.
            handle = ring.key(NOBODY, spec.name, f"{now:%Y-%m}")
            digest_key = Lookups(self._vault, tenant_id)
        self._require_log(tenant_id, log_id)
        drafts = []
        for entry_id, kind, body, at, number in events:
            bound = context(str(tenant_id), log_id, entry_id, "part.0")
            part = SealedPart(
                role="part.0",
                algorithm=ALGORITHM,
                ciphertext=seal(handle.key32, pack(body), bound),
                lock_until=lock_end(spec, at, now),
                key_ids=(handle.key_id,),
            )
            drafts.append(
                Draft(
                    entry_id=entry_id,
                    kind=kind.value,
                    data_class=spec.name,
                    class_version=spec.version,
                    at=at,
                    received=now,
                    recorder=None if number is None else log_id,
                    seq=number,
                    stream_id=log_id,
                    stream_no=SYSTEM_STREAM,
                    run_no=None,
                    set_id=0,
                    sources_count=0,
                    sources_root=None,
                    parts=(part,),
                    subjects=((),),
                    digest=digest_key.of("entry", kind.value, body)[:16],
                )
            )
        if self._journal is not None:
            self._journal.before(tenant_id, log_id, drafts, now)
        return self._log.append(tenant_id, drafts, now=now).placed


def _tenant(session: Session, tenant_id: int) -> Tenant:
    tenant = session.get(Tenant, tenant_id)
    if tenant is None:
        raise UnknownTenant
    return tenant


def entry_row(session: Session, tenant_id: int, entry_id: str) -> EntryRow | None:
    """Return where an entry lies, None when this tenant has none of that id."""
    return index.known(session, tenant_id, [entry_id]).get(entry_id)


def _moving(items: Sequence[Item]) -> dict[int, dict[str, bytes]]:
    """The bodies that machines listen to, by stream and entry id; duplicates too, whose first call may have died."""
    found: dict[int, dict[str, bytes]] = {}
    for item in items:
        if item.draft is None or item.parsed is None or item.entry_id is None or item.draft.kind not in KINDS:
            continue
        body = next((part.data for part in item.parsed.parts if part.form == "json"), None)
        if body is not None:
            found.setdefault(item.draft.stream_no, {})[item.entry_id] = body
    return found


def _receipt(notes: Sequence[str]) -> dict[str, Any] | None:
    """The notes over the flushes of one call, as it is answered."""
    if not notes:
        return None
    return {"note": notes[0], **({"later": list(notes[1:])} if len(notes) > 1 else {})}


def _results(items: Sequence[Item]) -> list[dict[str, Any]]:
    """One answer for each item; of equal ones in one call the first was stored, the others are duplicates of it."""
    made: list[dict[str, Any]] = []
    stored: set[str] = set()
    for item in items:
        result = _result(item)
        if result["status"] == PlacedState.STORED:
            if result["id"] in stored:
                result["status"] = PlacedState.DUPLICATE.value
            stored.add(result["id"])
        made.append(result)
    return made


def _result(item: Item) -> dict[str, Any]:
    if item.problem is not None:
        return {"id": item.entry_id, "status": "rejected", "problem": item.problem}
    if item.gone:
        return {"id": item.entry_id, "status": "suppressed", "suppressed_parts": list(item.suppressed)}
    placed = item.placed
    if placed is None or placed.state is PlacedState.CONFLICT:
        detail = "an entry with this id and another content is in the record"
        return {"id": item.entry_id, "status": "rejected", "problem": problem_of("id-conflict", detail, "/id")}
    if placed.state is PlacedState.DAMAGED:
        return {"id": item.entry_id, "status": "rejected", "problem": problem_of("record-damaged", _UNTOLD, "/id")}
    made: dict[str, Any] = {"id": item.entry_id, "status": placed.state.value}
    if placed.index is not None:
        made["index"] = placed.index
    dropped = [*item.suppressed]
    if dropped or placed.dropped:
        made["suppressed_parts"] = dropped or [f"part.{number}" for number in placed.dropped]
    if item.redacted:
        made["redacted_parts"] = [name for name, _ in item.redacted]
    return made


def _is_about(draft: Draft, people: frozenset[int]) -> bool:
    return bool(people) and any(person in people for part in draft.subjects for person in part)


def _is_under(draft: Draft, keys: frozenset[str]) -> bool:
    return bool(keys) and any(key_id in keys for part in draft.parts for key_id in part.key_ids)

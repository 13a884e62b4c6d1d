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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import rfc8785
import sqlalchemy as sa
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from ledger import index, recorders
from ledger.draft import Draft, Placed, PlacedState, SealedPart
from ledger.entry import USER_KINDS, Kind, decode_header, sources_root, uuid7
from ledger.head import Transactions
from ledger.log import Admit, Log
from ledger.models import EntryRow, LogState, OutboxRow
from registry import bulk, classes, limited, streams, subjects
from registry.acting import Acting
from registry.declaration import DataClass
from registry.entries import MalformedEntry, Parsed, ParsedPart, parse_entry, unique
from registry.errors import MalformedSubject, UnknownTenant
from registry.identifiers import parse_subjects
from registry.journal import Journal
from registry.keyed import NOBODY, Lookups
from registry.machine_rows import Follower
from registry.machines import KINDS
from registry.models import KindRow, Subject, SubjectIdentifier, Tenant
from registry.sealing import ALGORITHM, Keyring, skeleton_class
from vault.envelope import context, joint_prk, part_key_of, seal
from vault.models import KeyState
from vault.packing import pack
from vault.vault import Vault

SYSTEM_STREAM = 0
MAX_AHEAD = timedelta(days=731)
"""A claimed time further ahead is refused: locks count from it, and a locked object stays for good until its date."""

_OUTBOX_BATCH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """One answer per item sent, in order, and the signed note over the flush (None when nothing was stored).

    Where some items had to be sealed again, a second flush took them: `later` lists the notes over such flushes.
    """

    results: list[dict[str, Any]]
    receipt: dict[str, Any] | None
    redacted: Mapping[str, int] = field(default_factory=dict)
    """Class → parts of this call that held content which the class does not expect."""


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
    """Events proven against one signed checkpoint."""

    checkpoint: str
    tree_size: int
    entries: tuple[EvidenceEntry, ...]


@dataclass(slots=True, kw_only=True)
class _Item:
    """One item on its way: parsed, then resolved, then sealed; or refused on the way."""

    number: int
    parsed: Parsed | None = None
    problem: dict[str, Any] | None = None
    entry_id: str | None = None
    suppressed: tuple[str, ...] = ()
    redacted: tuple[tuple[str, str], ...] = ()
    """Parts whose content was not expected, and so not kept: name and class."""
    gone: bool = False
    draft: Draft | None = None
    placed: Placed | None = None

    @property
    def was_turned_back(self) -> bool:
        """Whether the sequencer refused all of it."""
        return self.placed is not None and self.placed.state is PlacedState.SUPPRESSED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """One part that goes into the record: its role in the header, what was sent, whose it is."""

    role: str
    part: ParsedPart
    owners: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class _Known:
    """What one call looked up: everything its items need, so that no item asks the database alone."""

    classes: dict[str, DataClass]
    kinds: frozenset[str]
    subject_no: dict[str, int] = field(default_factory=dict)
    closed: frozenset[int] = frozenset()
    since: dict[int, datetime] = field(default_factory=dict)
    former: dict[int, frozenset[int]] = field(default_factory=dict)
    limits: dict[int, list[limited.Limit]] = field(default_factory=dict)
    stream_scopes: dict[int, frozenset[str]] = field(default_factory=dict)
    stream_refs: dict[str, streams.StreamRef] = field(default_factory=dict)
    run_refs: dict[str, streams.RunRef] = field(default_factory=dict)
    recorders: dict[str, str] = field(default_factory=dict)


class Record:
    """The record of every tenant of one deployment."""

    def __init__(self, *, vault: Vault, log: Log, transactions: Transactions, journal: Journal | None = None) -> None:
        """`journal` writes rows for a rebuild before each append; without it a lost database stays lost."""
        self._vault = vault
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

    def _append(self, acting: Acting, entries: Sequence[bytes], now: datetime) -> AppendResult:
        items = [_parsed(number, raw) for number, raw in enumerate(entries)]
        open_items = [item for item in items if item.problem is None]
        if open_items:
            with self._transactions(acting.tenant_id) as session:  # 2
                drafts = _Drafting(self._vault, session, acting, now).drafts(open_items)
        else:
            drafts = []
        notes = []
        if drafts:
            notes = [self._put(acting, open_items, drafts, now)]
            notes.append(self._seal_again(acting, [item for item in open_items if item.was_turned_back], now))
            if moving := _moving(open_items):
                self._machines.follow(acting.tenant_id, moving, now)
        redacted = Counter(data_class for item in items for _, data_class in item.redacted)
        receipt = _receipt([note for note in notes if note is not None])
        return AppendResult(results=_results(items), receipt=receipt, redacted=redacted)

    def _put(self, acting: Acting, items: Sequence[_Item], drafts: Sequence[Draft], now: datetime) -> str | None:
        """Let the log take the drafts of these items and note where each stands; the note over the flush."""
        if self._journal is not None:
            self._journal.before(acting.tenant_id, acting.log_id, drafts, now)
        appended = self._log.append(acting.tenant_id, drafts, now=now, admit=self._admit(acting.tenant_id))  # 4
        placed = iter(appended.placed)
        for item in items:
            if item.draft is not None:
                item.placed = next(placed)
        return appended.receipt

    def _seal_again(self, acting: Acting, items: Sequence[_Item], now: datetime) -> str | None:
        """Try once more what the sequencer turned back; returns the note over that flush.

        Its person was fenced meanwhile, and then it ends here; or a limited erasure closed its key, and then it is
        sealed under the next one.
        """
        if not items:
            return None
        self._vault.evict(key for item in items if item.draft for part in item.draft.parts for key in part.key_ids)
        for item in items:
            item.draft = item.placed = None
        with self._transactions(acting.tenant_id) as session:
            drafts = _Drafting(self._vault, session, acting, now).drafts(items)
        return self._put(acting, items, drafts, now) if drafts else None

    def event(self, tenant_id: int, kind: Kind, body: Mapping[str, Any], now: datetime) -> str:
        """Append a binding event to the tenant's system stream; returns its entry id once it is stored.

        The caller lets it take effect only then (DESIGN §3). The body names nobody: ids, counts, digests.
        """
        entry_id = uuid7(now)
        self._append_events(tenant_id, [(entry_id, kind, rfc8785.dumps(dict(body)), now)], now)
        return entry_id

    def announce(self, session: Session, tenant_id: int, kind: Kind, body: Mapping[str, Any], now: datetime) -> str:
        """Write an announcing event to the outbox, in the caller's transaction; returns the entry id it will have."""
        state = session.get(LogState, tenant_id, with_for_update=True)
        if state is None:
            raise UnknownTenant
        state.outbox_counter += 1
        session.add(state)
        entry_id = uuid7(now)
        row = OutboxRow(
            tenant_id=tenant_id,
            n=state.outbox_counter,
            entry_id=entry_id,
            kind=kind.value,
            body=rfc8785.dumps(dict(body)),
            at=now,
        )
        session.add(row)
        return entry_id

    def ship_outbox(self, tenant_id: int, now: datetime) -> int:
        """Append what waits in the outbox, in its order; returns how many. Run again after a crash: same ids."""
        shipped = 0
        while True:
            with self._transactions(tenant_id, write=False) as session:
                query = select(OutboxRow).where(OutboxRow.tenant_id == tenant_id, col(OutboxRow.idx).is_(None))
                rows = list(session.exec(query.order_by(col(OutboxRow.n)).limit(_OUTBOX_BATCH)))
                events = [(row.entry_id, Kind(row.kind), row.body, row.at) for row in rows]
                numbers = [row.n for row in rows]
            if not events:
                return shipped
            placed = self._append_events(tenant_id, events, now)
            with self._transactions(tenant_id) as session:
                for number, one in zip(numbers, placed, strict=True):
                    session.execute(
                        sa.update(OutboxRow)
                        .where(col(OutboxRow.tenant_id) == tenant_id, col(OutboxRow.n) == number)
                        .values(idx=one.index)
                    )
            shipped += len(events)

    def evidence(self, tenant_id: int, entry_ids: Sequence[str], now: datetime) -> Evidence:
        """Return events of the service proven against one checkpoint, each with the key of its one part.

        Raises: UnknownEntry when an id is not in the log (ship the outbox first).
        """
        wanted = unique(entry_ids)
        with self._transactions(tenant_id, write=False) as session:
            rows = index.known(session, tenant_id, wanted)
            ordered = [rows[entry_id].idx for entry_id in wanted]
            keys = index.keys_of(session, tenant_id, ordered)
            opened = Keyring(self._vault, session, tenant_id).open_all(keys.values())
        proofs = self._log.proofs(tenant_id, ordered, now)
        made = []
        for entry_id, proof in zip(wanted, proofs, strict=True):
            header = decode_header(proof.header)
            ciphertext = self._log.ciphertext(tenant_id, header.parts[0])
            prk = joint_prk({key_id: opened[key_id] for key_id in keys[proof.index, 0]})
            bound = context(str(tenant_id), self._log.head(tenant_id).log_id, entry_id, header.parts[0].role)
            made.append(
                EvidenceEntry(
                    entry_id=entry_id,
                    index=proof.index,
                    header=proof.header,
                    inclusion=proof.inclusion,
                    part=ciphertext,
                    part_key=part_key_of(prk, ciphertext, bound),
                )
            )
        if not proofs:
            return Evidence(checkpoint=self._log.publish(tenant_id, now).decode(), tree_size=0, entries=())
        return Evidence(checkpoint=proofs[0].checkpoint, tree_size=proofs[0].tree_size, entries=tuple(made))

    def _admit(self, tenant_id: int) -> Admit:
        """The sequencer's own look at the fences: parts of somebody who was fenced meanwhile are dropped.

        An entry under a key that a limited erasure closed meanwhile is turned back whole: its key is about to go.
        """

        def admit(session: Session, drafts: Sequence[Draft]) -> list[frozenset[int]]:
            people = {number for draft in drafts for part in draft.subjects for number in part}
            closed = subjects.fenced(session, tenant_id, people)
            going = self._closing(session, tenant_id, people, drafts)
            # Whom a pass of retention ended between drafting and here has a new number now: all of it comes again.
            ended = subjects.ended(session, tenant_id, people)
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

    def _append_events(
        self, tenant_id: int, events: Sequence[tuple[str, Kind, bytes, datetime]], now: datetime
    ) -> Sequence[Placed]:
        with self._transactions(tenant_id) as session:
            tenant = session.get(Tenant, tenant_id)
            if tenant is None:
                raise UnknownTenant
            log_id = tenant.log_id
            spec = skeleton_class(session, tenant_id)
            ring = Keyring(self._vault, session, tenant_id)
            # By the month of receipt, like everything: the key of its own month may be gone when an event waited long.
            handle = ring.key(NOBODY, spec.name, f"{now:%Y-%m}")
            digest_key = Lookups(self._vault, tenant_id)
        drafts = []
        for entry_id, kind, body, at in events:
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
                    recorder=None,
                    seq=None,
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


class _Drafting:
    """Steps 2 and 3 of one call, inside one transaction."""

    def __init__(self, vault: Vault, session: Session, acting: Acting, now: datetime) -> None:
        self._vault = vault
        self._session = session
        self._acting = acting
        self._now = now
        self._month = f"{now:%Y-%m}"
        self._ring = Keyring(vault, session, acting.tenant_id)
        self._lookups = Lookups(vault, acting.tenant_id)
        self._skeleton = skeleton_class(session, acting.tenant_id)
        self._sets: dict[frozenset[int], int] = {}
        self._tenant = str(acting.tenant_id)
        self._prks: dict[tuple[tuple[int, ...], str], tuple[bytes, tuple[str, ...]]] = {}
        self._ends: dict[str, datetime | None] = {}

    def drafts(self, items: Sequence[_Item]) -> list[Draft]:
        """Return the drafts of the items that are not refused; refusals are written into the items."""
        known = self._look_up(items)
        kept: list[tuple[_Item, Parsed, list[_Kept]]] = []
        dropped: dict[str, set[int]] = {}
        for item in items:
            if item.parsed is None:
                continue
            try:
                parts = self._keep(item, item.parsed, known)
            except MalformedEntry as error:
                item.problem = _problem(error.problem, error.detail, error.pointer)
                continue
            sent = item.parsed.sent
            if parts:
                kept.append((item, item.parsed, parts))
            elif sent.recorder is not None and sent.seq is not None:
                dropped.setdefault(known.recorders[sent.recorder], set()).add(sent.seq)
        recorders.dropped(self._session, self._acting.tenant_id, dropped)
        wanted = {everyone_in(parts) for _, _, parts in kept}
        self._sets = subjects.intern_sets(self._session, self._acting.tenant_id, wanted, self._now)
        made = []
        for item, parsed, parts in kept:
            item.draft = self._draft(parsed, parts, known)
            made.append(item.draft)
        return made

    def _keep(self, item: _Item, parsed: Parsed, known: _Known) -> list[_Kept]:
        """Return the parts that no fence closes, each with its owners; notes the others in the item."""
        stream = known.stream_refs[parsed.sent.stream]
        scopes = known.stream_scopes.get(stream.stream_no, frozenset())
        kept: list[_Kept] = []
        suppressed: list[str] = []
        redacted: list[tuple[str, str]] = []
        for number, part in enumerate(parsed.parts):
            owners = self._owners(parsed, part, stream, known)
            spoken = part.data_class or parsed.sent.data_class
            if any(
                self._is_closed(owner, parsed, stream, known)
                or limited.closes(known.limits.get(owner, ()), parsed.at, spoken, scopes)
                for owner in owners
            ):
                suppressed.append(part.name)
            else:
                allowed = _allowed(part, known.classes[spoken])
                redacted += [(part.name, spoken)] if allowed is not part else []
                kept.append(_Kept(role=f"part.{number}", part=allowed, owners=owners))
        item.suppressed = tuple(suppressed)
        item.redacted = tuple(redacted)
        item.gone = not kept
        return kept

    def _look_up(self, items: Sequence[_Item]) -> _Known:
        tenant_id = self._acting.tenant_id
        kinds = self._session.exec(select(KindRow.name).where(KindRow.tenant_id == tenant_id)).all()
        known = _Known(
            classes=classes.in_force(self._session, tenant_id), kinds=frozenset(kinds) | {str(k) for k in USER_KINDS}
        )
        texts: dict[str, subjects.Identifier] = {}
        sound: list[Parsed] = []
        for item in items:
            if item.parsed is None:
                continue
            try:
                self._check(item.parsed, known)
                texts.update(_named(item.parsed))
                sound.append(item.parsed)
            except MalformedEntry as error:
                item.problem = _problem(error.problem, error.detail, error.pointer)
                item.parsed = None
            except MalformedSubject as error:
                item.problem = _problem("malformed-subject", str(error), error.pointer)
                item.parsed = None
        numbers = subjects.resolve(self._session, self._vault, self._acting, list(texts.values()), self._now)
        known.subject_no = dict(zip(texts, numbers, strict=True))
        known.closed = frozenset(subjects.fenced(self._session, tenant_id, numbers))
        known.since = _opened_at(self._session, tenant_id, numbers)
        known.former = _former(self._session, tenant_id, known.since)
        known.limits = limited.of_people(self._session, tenant_id, numbers)
        self._streams(sound, known)
        if known.limits:
            numbers = [stream.stream_no for stream in known.stream_refs.values()]
            known.stream_scopes = limited.scopes_of(self._session, tenant_id, numbers)
        return known

    def _streams(self, sound: Sequence[Parsed], known: _Known) -> None:
        people: dict[str, set[int]] = {}
        stream_class: dict[str, str] = {}
        for parsed in sound:
            named = {known.subject_no[text] for text in _subjects_of(parsed)} - known.closed
            people.setdefault(parsed.sent.stream, set()).update(named)
            stream_class.setdefault(parsed.sent.stream, parsed.sent.data_class)
        known.stream_refs = streams.streams_for(
            self._session, self._vault, self._acting, people, self._now, data_class=stream_class
        )
        run_people: dict[str, set[int]] = {}
        for parsed in sound:
            if parsed.sent.run is not None:
                run_people.setdefault(parsed.sent.run, set()).update(people[parsed.sent.stream])
        known.run_refs = streams.runs_for(self._session, self._vault, self._acting, run_people, self._now)
        names = {parsed.sent.recorder for parsed in sound if parsed.sent.recorder is not None}
        known.recorders = streams.recorders_for(self._session, self._vault, self._acting, names)

    def _check(self, parsed: Parsed, known: _Known) -> None:
        if parsed.at > self._now + MAX_AHEAD:
            raise MalformedEntry("at lies more than two years ahead: the recorder's clock is wrong", pointer="/at")
        if parsed.sent.kind not in known.kinds:
            raise MalformedEntry("this kind is not registered", pointer="/kind", problem="unknown-kind")
        names = {parsed.sent.data_class} | {part.data_class for part in parsed.parts if part.data_class is not None}
        for name in names:
            if name not in known.classes:
                raise MalformedEntry(
                    "this data class is not registered", pointer="/data_class", problem="unknown-class"
                )
            if not self._acting.may_use_class(name):
                raise MalformedEntry(
                    "the token may not use this data class", pointer="/data_class", problem="forbidden"
                )

    def _draft(self, parsed: Parsed, kept: Sequence[_Kept], known: _Known) -> Draft:
        stream = known.stream_refs[parsed.sent.stream]
        sealed: list[SealedPart] = []
        people: list[tuple[int, ...]] = []
        names: list[dict[str, Any]] = []
        for one in kept:
            part = one.part
            spec = known.classes[part.data_class or parsed.sent.data_class]
            sealed.append(self._seal(parsed, one.role, part.data, one.owners, spec))
            people.append(one.owners)
            names.append(
                {"role": one.role, "name": part.name, "form": part.form, "pinned": part.pinned, "class": spec.name}
            )
        everyone = everyone_in(kept)
        actor, actor_part = self._actor(parsed, known, everyone)
        if actor_part is not None:
            owners = tuple(sorted(everyone))
            sealed.append(self._seal(parsed, "actor", actor_part, owners, known.classes[parsed.sent.data_class]))
            people.append(owners)
        sealed.append(self._seal_skeleton(parsed, names, actor, known))
        people.append(())
        run = None if parsed.sent.run is None else known.run_refs[parsed.sent.run]
        return Draft(
            entry_id=parsed.sent.id,
            kind=parsed.sent.kind,
            data_class=parsed.sent.data_class,
            class_version=known.classes[parsed.sent.data_class].version,
            at=parsed.at,
            received=self._now,
            recorder=None if parsed.sent.recorder is None else known.recorders[parsed.sent.recorder],
            seq=parsed.sent.seq,
            stream_id=stream.stream_id,
            stream_no=stream.stream_no,
            run_no=None if run is None else run.run_no,
            set_id=self._sets[everyone] if everyone else 0,
            sources_count=len(parsed.sent.sources),
            sources_root=sources_root(parsed.sent.sources) if parsed.sent.sources else None,
            parts=tuple(sealed),
            subjects=tuple(people),
            digest=self._lookups.of("entry", parsed.sent.id, parsed.raw)[:16],
            noncanonical=parsed.noncanonical,
        )

    def _owners(self, parsed: Parsed, part: ParsedPart, stream: streams.StreamRef, known: _Known) -> tuple[int, ...]:
        named = part.subjects if part.subjects is not None else tuple(parsed.sent.subjects)
        owners = tuple(sorted({known.subject_no[text] for text in named})) if named else stream.members
        spec = known.classes[part.data_class or parsed.sent.data_class]
        if not owners and spec.personal:
            raise MalformedEntry(
                "a personal class needs a subject, of the entry or of its stream",
                pointer="/subjects",
                problem="no-subject",
            )
        return owners

    def _is_closed(self, owner: int, parsed: Parsed, stream: streams.StreamRef, known: _Known) -> bool:
        """A fence closes an incarnation: by lineage, by a stream seen before it, then by time (DESIGN §7)."""
        if owner in known.closed or owner in stream.closed:
            return True
        since = known.since.get(owner)
        return since is not None and (parsed.at < since or not stream.closed.isdisjoint(known.former.get(owner, ())))

    def _seal(self, parsed: Parsed, role: str, data: bytes, owners: Sequence[int], spec: DataClass) -> SealedPart:
        prk, key_ids = self._prk(tuple(owners) or (NOBODY,), spec.name)
        return SealedPart(
            role=role,
            algorithm=ALGORITHM,
            ciphertext=seal(prk, pack(data), context(self._tenant, self._acting.log_id, parsed.sent.id, role)),
            lock_until=self._lock_end(spec, parsed.at),
            key_ids=key_ids,
        )

    def _prk(self, owners: tuple[int, ...], data_class: str) -> tuple[bytes, tuple[str, ...]]:
        found = self._prks.get((owners, data_class))
        if found is None:
            handles = [self._ring.key(owner, data_class, self._month) for owner in owners]
            prk = joint_prk({handle.key_id: handle.key32 for handle in handles})
            found = self._prks[owners, data_class] = prk, tuple(handle.key_id for handle in handles)
        return found

    def _lock_end(self, spec: DataClass, at: datetime) -> datetime | None:
        """Parts of one call lock for the same few months: most entries are older than the call itself."""
        if at > self._now:
            return lock_end(spec, at, self._now)
        if spec.name not in self._ends:
            self._ends[spec.name] = lock_end(spec, self._now, self._now)
        return self._ends[spec.name]

    def _seal_skeleton(
        self, parsed: Parsed, names: Sequence[Mapping[str, Any]], actor: str | None, known: _Known
    ) -> SealedPart:
        sent = parsed.sent
        facts: dict[str, Any] = {
            "agent": sent.agent,
            "model": sent.model,
            "prompt_version": sent.prompt_version,
            "policy": sent.policy,
            "actor": actor,
            "run": None if sent.run is None else known.run_refs[sent.run].run_id,
            "sources": sent.sources,
        }
        kept: dict[str, Any] = {name: value for name, value in facts.items() if value}
        kept["parts"] = list(names)
        return self._seal(parsed, "skeleton", msgspec.json.encode(kept), (), self._skeleton)

    def _actor(self, parsed: Parsed, known: _Known, everyone: Collection[int]) -> tuple[str | None, bytes | None]:
        """An actor who is a subject stands in the skeleton as subject id; any other name goes with the content."""
        actor = parsed.sent.actor
        if actor is None:
            return None, None
        for text in _subjects_of(parsed):
            if actor in (text, text.partition(":")[2]):
                owner = known.subject_no[text]
                if owner in everyone:
                    return subjects.opaque_ids(self._session, self._acting.tenant_id, [owner])[owner], None
        return None, actor.encode()


def lock_end(spec: DataClass, at: datetime, now: datetime) -> datetime | None:
    """Return the instant a part's lock ends: the end of the month of max(now, at) + the class's lock; None unlocked.

    One end per month lets all parts of a month share an object. Source: DESIGN §3 step 4.
    """
    if spec.lock is None:
        return None
    end = spec.lock.add_to(max(now, at))
    first = end.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (first + timedelta(days=32)).replace(day=1)


def entry_row(session: Session, tenant_id: int, entry_id: str) -> EntryRow | None:
    """Return where an entry lies, None when this tenant has none of that id."""
    return index.known(session, tenant_id, [entry_id]).get(entry_id)


def _moving(items: Sequence[_Item]) -> dict[int, dict[str, bytes]]:
    """The bodies that machines listen to, by stream and entry id; duplicates too, whose first call may have died."""
    found: dict[int, dict[str, bytes]] = {}
    for item in items:
        if item.draft is None or item.parsed is None or item.entry_id is None or item.draft.kind not in KINDS:
            continue
        body = next((part.data for part in item.parsed.parts if part.form == "json"), None)
        if body is not None:
            found.setdefault(item.draft.stream_no, {})[item.entry_id] = body
    return found


def _parsed(number: int, raw: bytes) -> _Item:
    try:
        parsed = parse_entry(raw)
    except MalformedEntry as error:
        return _Item(
            number=number, entry_id=error.entry_id, problem=_problem(error.problem, error.detail, error.pointer)
        )
    return _Item(number=number, parsed=parsed, entry_id=parsed.sent.id)


def _subjects_of(parsed: Parsed) -> tuple[str, ...]:
    named = list(parsed.sent.subjects)
    for part in parsed.parts:
        named.extend(part.subjects or ())
    return unique(named)


def _named(parsed: Parsed) -> dict[str, subjects.Identifier]:
    """Everybody an entry names, by the text that names them. Raises: MalformedSubject with its place."""
    sent = parsed.sent
    lists: list[tuple[str, Sequence[str]]] = [("/subjects", sent.subjects)]
    lists += [(f"/parts/{number}/subjects", part.subjects or ()) for number, part in enumerate(parsed.parts)]
    return {
        text: identifier
        for place, texts in lists
        for text, identifier in zip(texts, parse_subjects(texts, place), strict=True)
    }


def _problem(kind: str, detail: str, pointer: str) -> dict[str, Any]:
    made: dict[str, Any] = {"type": f"/problems/{kind}", "title": kind.replace("-", " "), "detail": detail}
    made["errors"] = [{"pointer": pointer, "detail": detail}]
    return made


def _receipt(notes: Sequence[str]) -> dict[str, Any] | None:
    """The notes over the flushes of one call, as it is answered."""
    if not notes:
        return None
    return {"note": notes[0], **({"later": list(notes[1:])} if len(notes) > 1 else {})}


def _results(items: Sequence[_Item]) -> list[dict[str, Any]]:
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


def _result(item: _Item) -> dict[str, Any]:
    if item.problem is not None:
        return {"id": item.entry_id, "status": "rejected", "problem": item.problem}
    if item.gone:
        return {"id": item.entry_id, "status": "suppressed", "suppressed_parts": list(item.suppressed)}
    placed = item.placed
    if placed is None or placed.state is PlacedState.CONFLICT:
        detail = "an entry with this id and another content is in the record"
        return {"id": item.entry_id, "status": "rejected", "problem": _problem("id-conflict", detail, "/id")}
    made: dict[str, Any] = {"id": item.entry_id, "status": placed.state.value}
    if placed.index is not None:
        made["index"] = placed.index
    dropped = [*item.suppressed]
    if dropped or placed.dropped:
        made["suppressed_parts"] = dropped or [f"part.{number}" for number in placed.dropped]
    if item.redacted:
        made["redacted_parts"] = [name for name, _ in item.redacted]
    return made


def _allowed(part: ParsedPart, spec: DataClass) -> ParsedPart:
    """Return the part, or where its class expects no content what stands for it: how much was sent, and none of it."""
    if spec.content == "expected" or part.data in (b"", b"{}"):
        return part
    said = rfc8785.dumps({"bytes": len(part.data), "redacted": "content not expected"})
    return replace(part, form="json", data=said, noncanonical=False)


def _is_about(draft: Draft, people: frozenset[int]) -> bool:
    return bool(people) and any(person in people for part in draft.subjects for person in part)


def _is_under(draft: Draft, keys: frozenset[str]) -> bool:
    return bool(keys) and any(key_id in keys for part in draft.parts for key_id in part.key_ids)


def everyone_in(kept: Sequence[_Kept]) -> frozenset[int]:
    """Return everybody whose data is in these parts."""
    return frozenset(owner for one in kept for owner in one.owners)


def _former(session: Session, tenant_id: int, reopened: Mapping[int, datetime]) -> dict[int, frozenset[int]]:
    """Return the earlier incarnations behind the names of those who were opened again."""
    if not reopened:
        return {}
    mine, other = aliased(SubjectIdentifier), aliased(SubjectIdentifier)
    found: dict[int, set[int]] = {}
    for part in index.chunks(sorted(reopened)):
        query = (
            sa.select(col(mine.subject_no), col(other.subject_no))
            .join(other, sa.and_(col(other.tenant_id) == col(mine.tenant_id), col(other.lookup) == col(mine.lookup)))
            .where(col(mine.tenant_id) == tenant_id, col(mine.subject_no).in_(part))
        )
        for now_no, former_no in session.execute(query):
            if now_no != former_no:
                found.setdefault(now_no, set()).add(former_no)
    return {number: frozenset(numbers) for number, numbers in found.items()}


def _opened_at(session: Session, tenant_id: int, subject_nos: Sequence[int]) -> dict[int, datetime]:
    """Return since when those incarnations exist that follow an erased one; older data is not theirs."""
    found: dict[int, datetime] = {}
    for part in index.chunks(sorted(set(subject_nos))):
        query = select(Subject.subject_no, Subject.created_at).where(
            Subject.tenant_id == tenant_id, col(Subject.subject_no).in_(part), Subject.incarnation > 1
        )
        found.update(dict(session.exec(query).all()))
    return found

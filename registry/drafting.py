"""From parsed entries to sealed drafts: whose each part is, what a fence closes, under which key it goes.

Guarantees: one transaction looks everything up once, not once an entry, and holds nobody up while parts are sealed;
every refusal is of one entry, with its field; a part that a fence closes is not sealed at all (a hint: the sequencer
decides again); nothing readable leaves `Drafting.drafts`. What a call says again and again (the same people, the same
facts of a skeleton) is judged and compressed once a call and never remembered beyond it. Not here: storing,
sequencing, answers (`registry.record`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec
import rfc8785
import sqlalchemy as sa
from msgspec import structs
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from ledger import index, recorders
from ledger.draft import Draft, Placed, PlacedState, SealedPart
from ledger.entry import USER_KINDS, sources_root
from registry import classes, limited, streams, subjects
from registry.acting import Acting
from registry.declaration import DataClass
from registry.entries import BODY, JSON, MalformedEntry, Parsed, ParsedPart, parse_entry, unique
from registry.errors import MalformedSubject
from registry.identifiers import parse_subject
from registry.keyed import NOBODY, Lookups
from registry.models import KindRow, Subject, SubjectIdentifier
from registry.sealing import ALGORITHM, Keyring, skeleton_class
from vault.envelope import entry_of, in_entry, joint_prk, salts, seal
from vault.packing import pack, pack_many
from vault.vault import Vault

_OWN_PARTS = 2
"""Parts that the service itself may add to an entry: its skeleton, and an actor who is nobody of its people."""
MAX_AHEAD = timedelta(days=731)
"""A claimed time further ahead is refused: locks count from it, and a locked object stays for good until its date."""


@dataclass(slots=True, kw_only=True)
class Item:
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


class _Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all parts of one class about the same people in one stream.

    `is_open`: no fence of any kind stands before one of them, so nothing has to be asked about the time of an entry.
    """

    owners: tuple[int, ...]
    spec: DataClass
    is_open: bool


class _Kept(msgspec.Struct, frozen=True):
    """One part that goes into the record: its role in the header, what was sent, whose it is."""

    role: str
    part: ParsedPart
    fate: _Fate


@dataclass(slots=True, kw_only=True)
class _Known:
    """What one call looked up: everything its items need, so that no item asks the database alone."""

    classes: dict[str, DataClass]
    kinds: frozenset[str]
    allowed: set[tuple[str | None, ...]] = field(default_factory=set)
    """Kinds with the classes beside them that were found in order."""
    subject_no: dict[str, int] = field(default_factory=dict)
    closed: frozenset[int] = frozenset()
    since: dict[int, datetime] = field(default_factory=dict)
    former: dict[int, frozenset[int]] = field(default_factory=dict)
    limits: dict[int, list[limited.Limit]] = field(default_factory=dict)
    stream_scopes: dict[int, frozenset[str]] = field(default_factory=dict)
    stream_refs: dict[str, streams.StreamRef] = field(default_factory=dict)
    run_refs: dict[str, streams.RunRef] = field(default_factory=dict)
    recorders: dict[str, str] = field(default_factory=dict)
    fates: dict[tuple[Any, ...], _Fate] = field(default_factory=dict)


def parsed_item(number: int, raw: bytes) -> Item:
    """Return the item of these bytes, refused or well formed."""
    try:
        parsed = parse_entry(raw)
    except MalformedEntry as error:
        return Item(
            number=number, entry_id=error.entry_id, problem=problem_of(error.problem, error.detail, error.pointer)
        )
    return Item(number=number, parsed=parsed, entry_id=parsed.sent.id)


def problem_of(kind: str, detail: str, pointer: str) -> dict[str, Any]:
    """Return a refusal as it is answered."""
    made: dict[str, Any] = {"type": f"/problems/{kind}", "title": kind.replace("-", " "), "detail": detail}
    made["errors"] = [{"pointer": pointer, "detail": detail}]
    return made


class _Ready(msgspec.Struct, frozen=True):
    """One entry that has all it needs to be sealed. `actor` stands in the skeleton, `spoken` with the content."""

    item: Item
    parsed: Parsed
    kept: list[_Kept]
    everyone: frozenset[int]
    actor: str | None
    spoken: bytes | None


class Drafting:
    """The drafts of one call: everything is looked up at once in the caller's transaction, sealed after it."""

    def __init__(self, vault: Vault, session: Session, acting: Acting, now: datetime, items: Sequence[Item]) -> None:
        """Look up what these items need, and make people, streams and keys that are new; refusals go into the items.

        A key that is destroyed between the caller's commit and the flush is seen by the sequencer.
        """
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
        self._ends = {self._skeleton.name: lock_end(self._skeleton, now, now)}
        self._skeletons: dict[tuple[Any, ...], bytes] = {}
        self._salts: Iterator[bytes] = iter(())
        self._known = self._look_up(items)
        self._ready = self._take(items, self._known)

    def drafts(self) -> list[Draft]:
        """Return the drafts of the items that are not refused, and note them in the items. Asks no database."""
        # At once, because each part alone would let other threads go first, and its data is not needed any more.
        bodies = iter(pack_many([one.part.data for ready in self._ready for one in ready.kept]))
        self._salts = salts(sum(len(ready.kept) + _OWN_PARTS for ready in self._ready))
        made = []
        for ready in self._ready:
            ready.item.draft = self._draft(ready, [next(bodies) for _ in ready.kept], self._known)
            made.append(ready.item.draft)
        return made

    def _take(self, items: Sequence[Item], known: _Known) -> list[_Ready]:
        """Decide what of each item is kept, and get the keys of it."""
        ready: list[_Ready] = []
        dropped: dict[str, set[int]] = {}
        for item in items:
            if item.parsed is None:
                continue
            try:
                kept = self._keep(item, item.parsed, known)
            except MalformedEntry as error:
                item.problem = problem_of(error.problem, error.detail, error.pointer)
                continue
            sent = item.parsed.sent
            if kept:
                everyone = _everyone_in(kept)
                actor = (None, None) if sent.actor is None else self._actor(sent.actor, item.parsed, known, everyone)
                ready.append(_Ready(item, item.parsed, kept, everyone, *actor))
            elif sent.recorder is not None and sent.seq is not None:
                dropped.setdefault(known.recorders[sent.recorder], set()).add(sent.seq)
        recorders.dropped(self._session, self._acting.tenant_id, dropped)
        wanted = {one.everyone for one in ready}
        self._sets = subjects.intern_sets(self._session, self._acting.tenant_id, wanted, self._now)
        asked = dict.fromkeys((one.fate.owners, one.fate.spec.name) for each in ready for one in each.kept)
        asked.update(
            dict.fromkeys(
                (tuple(sorted(each.everyone)), each.parsed.sent.data_class) for each in ready if each.spoken is not None
            )
        )
        for owners, data_class in [*asked, ((), self._skeleton.name)] if ready else []:
            self._prks[owners, data_class] = self._prk(owners or (NOBODY,), data_class)
            if data_class not in self._ends:
                self._ends[data_class] = lock_end(known.classes[data_class], self._now, self._now)
        return ready

    # ── what one call has to know ──

    def _look_up(self, items: Sequence[Item]) -> _Known:
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
                texts.update(_new_names(item.parsed, texts))
                sound.append(item.parsed)
            except MalformedEntry as error:
                item.problem = problem_of(error.problem, error.detail, error.pointer)
                item.parsed = None
            except MalformedSubject as error:
                item.problem = problem_of("malformed-subject", str(error), error.pointer)
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

    def _check(self, parsed: Parsed, known: _Known) -> None:
        sent = parsed.sent
        if parsed.at > self._now + MAX_AHEAD:
            raise MalformedEntry("at lies more than two years ahead: the recorder's clock is wrong", pointer="/at")
        asked = (sent.kind, sent.data_class, *[part.data_class for part in parsed.parts])
        if asked in known.allowed:
            return
        if sent.kind not in known.kinds:
            raise MalformedEntry("this kind is not registered", pointer="/kind", problem="unknown-kind")
        for name in dict.fromkeys(asked[1:]):
            if name is None:
                continue
            if name not in known.classes:
                raise MalformedEntry(
                    "this data class is not registered", pointer="/data_class", problem="unknown-class"
                )
            if not self._acting.may_use_class(name):
                raise MalformedEntry(
                    "the token may not use this data class", pointer="/data_class", problem="forbidden"
                )
        known.allowed.add(asked)

    def _streams(self, sound: Sequence[Parsed], known: _Known) -> None:
        people: dict[str, set[int]] = {}
        stream_class: dict[str, str] = {}
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for parsed in sound:
            stream, texts = parsed.sent.stream, _subjects_of(parsed)
            if (stream, texts) in seen:
                continue
            seen.add((stream, texts))
            people.setdefault(stream, set()).update({known.subject_no[text] for text in texts} - known.closed)
            stream_class.setdefault(stream, parsed.sent.data_class)
        known.stream_refs = streams.streams_for(
            self._session, self._vault, self._acting, people, self._now, data_class=stream_class
        )
        run_people: dict[str, set[int]] = {}
        for run, stream in dict.fromkeys((parsed.sent.run, parsed.sent.stream) for parsed in sound):
            if run is not None:
                run_people.setdefault(run, set()).update(people[stream])
        known.run_refs = streams.runs_for(self._session, self._vault, self._acting, run_people, self._now)
        names = {parsed.sent.recorder for parsed in sound if parsed.sent.recorder is not None}
        known.recorders = streams.recorders_for(self._session, self._vault, self._acting, names)

    # ── what is kept, and whose it is ──

    def _keep(self, item: Item, parsed: Parsed, known: _Known) -> list[_Kept]:
        """Return the parts that no fence closes, each with its owners; notes the others in the item."""
        kept: list[_Kept] = []
        suppressed: list[str] = []
        redacted: list[tuple[str, str]] = []
        for number, part in enumerate(parsed.parts):
            fate = self._fate(parsed, part, known)
            if not fate.is_open and self._is_closed(fate, parsed, known):
                suppressed.append(part.name)
                continue
            allowed = _allowed(part, fate.spec)
            if allowed is not part:
                redacted.append((part.name, fate.spec.name))
            kept.append(_Kept(f"part.{number}", allowed, fate))
        item.suppressed = tuple(suppressed)
        item.redacted = tuple(redacted)
        item.gone = not kept
        return kept

    def _fate(self, parsed: Parsed, part: ParsedPart, known: _Known) -> _Fate:
        sent = parsed.sent
        named = part.subjects if part.subjects is not None else tuple(sent.subjects)
        asked = (sent.stream, named, part.data_class or sent.data_class)
        fate = known.fates.get(asked)
        if fate is None:
            fate = known.fates[asked] = _fate_of(*asked, known)
        return fate

    @staticmethod
    def _is_closed(fate: _Fate, parsed: Parsed, known: _Known) -> bool:
        """A fence closes an incarnation: by lineage, by a stream seen before it, then by time (DESIGN §7)."""
        stream = known.stream_refs[parsed.sent.stream]
        scopes = known.stream_scopes.get(stream.stream_no, frozenset())
        for owner in fate.owners:
            if owner in known.closed or owner in stream.closed:
                return True
            since = known.since.get(owner)
            if since is not None and (
                parsed.at < since or not stream.closed.isdisjoint(known.former.get(owner, frozenset()))
            ):
                return True
            if limited.closes(known.limits.get(owner, ()), parsed.at, fate.spec.name, scopes):
                return True
        return False

    # ── sealing ──

    def _draft(self, ready: _Ready, packed: Sequence[bytes], known: _Known) -> Draft:
        parsed, kept, everyone = ready.parsed, ready.kept, ready.everyone
        sent = parsed.sent
        stream = known.stream_refs[sent.stream]
        entry = entry_of(self._tenant, self._acting.log_id, sent.id)
        sealed = [
            self._seal(entry, parsed.at, one.role, data, one.fate.owners, one.fate.spec)
            for one, data in zip(kept, packed, strict=True)
        ]
        people = [one.fate.owners for one in kept]
        if ready.spoken is not None:
            owners = tuple(sorted(everyone))
            spec = known.classes[sent.data_class]
            sealed.append(self._seal(entry, parsed.at, "actor", pack(ready.spoken), owners, spec))
            people.append(owners)
        run = None if sent.run is None else known.run_refs[sent.run]
        facts = self._skeleton_of(parsed, kept, ready.actor, None if run is None else run.run_id)
        sealed.append(self._seal(entry, parsed.at, "skeleton", facts, (), self._skeleton))
        people.append(())
        return Draft(
            entry_id=sent.id,
            kind=sent.kind,
            data_class=sent.data_class,
            class_version=known.classes[sent.data_class].version,
            at=parsed.at,
            received=self._now,
            recorder=None if sent.recorder is None else known.recorders[sent.recorder],
            seq=sent.seq,
            stream_id=stream.stream_id,
            stream_no=stream.stream_no,
            run_no=None if run is None else run.run_no,
            set_id=self._sets[everyone],
            sources_count=len(sent.sources),
            sources_root=sources_root(sent.sources) if sent.sources else None,
            parts=tuple(sealed),
            subjects=tuple(people),
            digest=self._lookups.of("entry", sent.id, parsed.raw)[:16],
            noncanonical=parsed.noncanonical,
        )

    def _seal(  # noqa: PLR0917 - what one part is sealed with
        self, entry: bytes, at: datetime, role: str, packed: bytes, owners: tuple[int, ...], spec: DataClass
    ) -> SealedPart:
        prk, key_ids = self._prks[owners, spec.name]
        # Parts of one call lock for the same few months: most entries are older than the call itself.
        until = self._ends[spec.name] if at <= self._now else lock_end(spec, at, self._now)
        return SealedPart(
            role=role,
            algorithm=ALGORITHM,
            ciphertext=seal(prk, packed, in_entry(entry, role), salt=next(self._salts)),
            lock_until=until,
            key_ids=key_ids,
        )

    def _prk(self, owners: tuple[int, ...], data_class: str) -> tuple[bytes, tuple[str, ...]]:
        handles = [self._ring.key(owner, data_class, self._month) for owner in owners]
        prk = joint_prk({handle.key_id: handle.key32 for handle in handles})
        return prk, tuple(handle.key_id for handle in handles)

    def _skeleton_of(self, parsed: Parsed, kept: Sequence[_Kept], actor: str | None, run_id: str | None) -> bytes:
        """Return the packed facts of an entry; most entries of a call share theirs with others.

        A part of which nothing is said is `body`, JSON, not pinned, of the entry's own class: nearly every part.
        """
        sent = parsed.sent
        parts = tuple(
            (one.role, one.part.name, one.part.form, one.part.pinned, one.fate.spec.name)
            for one in kept
            if one.part.name != BODY
            or one.part.form != JSON
            or one.part.pinned
            or one.fate.spec.name != sent.data_class
        )
        facts = (sent.agent, sent.model, sent.prompt_version, sent.policy, actor, run_id, tuple(sent.sources), parts)
        packed = self._skeletons.get(facts)
        if packed is None:
            packed = self._skeletons[facts] = pack(_skeleton_json(*facts))
        return packed

    def _actor(
        self, actor: str, parsed: Parsed, known: _Known, everyone: Collection[int]
    ) -> tuple[str | None, bytes | None]:
        """An actor who is a subject stands in the skeleton as subject id; any other name goes with the content."""
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


def _fate_of(stream_name: str, named: Sequence[str], data_class: str, known: _Known) -> _Fate:
    stream, spec = known.stream_refs[stream_name], known.classes[data_class]
    owners = tuple(sorted({known.subject_no[text] for text in named})) if named else stream.members
    if not owners and spec.personal:
        raise MalformedEntry(
            "a personal class needs a subject, of the entry or of its stream",
            pointer="/subjects",
            problem="no-subject",
        )
    guarded = known.closed | stream.closed | known.since.keys() | known.limits.keys()
    return _Fate(owners=owners, spec=spec, is_open=guarded.isdisjoint(owners))


def _skeleton_json(  # noqa: PLR0917 - what is remembered of a skeleton, in its order
    agent: str | None,
    model: str | None,
    prompt_version: str | None,
    policy: str | None,
    actor: str | None,
    run_id: str | None,
    sources: Sequence[str],
    parts: Iterable[tuple[str, str, str, bool, str]],
) -> bytes:
    facts: dict[str, Any] = {
        "agent": agent,
        "model": model,
        "prompt_version": prompt_version,
        "policy": policy,
        "actor": actor,
        "run": run_id,
        "sources": sources,
    }
    kept: dict[str, Any] = {name: value for name, value in facts.items() if value}
    if parts:
        kept["parts"] = [
            {"role": role, "name": name, "form": form, "pinned": pinned, "class": data_class}
            for role, name, form, pinned, data_class in parts
        ]
    return msgspec.json.encode(kept)


def _subjects_of(parsed: Parsed) -> tuple[str, ...]:
    named = list(parsed.sent.subjects)
    for part in parsed.parts:
        if part.subjects:
            named += part.subjects
    return unique(named)


def _new_names(parsed: Parsed, known: Mapping[str, subjects.Identifier]) -> dict[str, subjects.Identifier]:
    """Everybody an entry names who was not named before, by the text. Raises: MalformedSubject with its place."""
    found: dict[str, subjects.Identifier] = {}
    lists: list[tuple[str, Sequence[str]]] = [("/subjects", parsed.sent.subjects)]
    lists += [(f"/parts/{number}/subjects", part.subjects) for number, part in enumerate(parsed.parts) if part.subjects]
    for place, texts in lists:
        for number, text in enumerate(texts):
            if text not in known:
                try:
                    found[text] = parse_subject(text)
                except MalformedSubject as error:
                    raise MalformedSubject(error.detail, f"{place}/{number}") from error
    return found


def _allowed(part: ParsedPart, spec: DataClass) -> ParsedPart:
    """Return the part, or where its class expects no content what stands for it: how much was sent, and none of it."""
    if spec.content == "expected" or part.data in (b"", b"{}"):
        return part
    said = rfc8785.dumps({"bytes": len(part.data), "redacted": "content not expected"})
    return structs.replace(part, form="json", data=said, noncanonical=False)


def _everyone_in(kept: Sequence[_Kept]) -> frozenset[int]:
    """Everybody whose data is in these parts."""
    if len(kept) == 1:
        return frozenset(kept[0].fate.owners)
    return frozenset(owner for one in kept for owner in one.fate.owners)


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

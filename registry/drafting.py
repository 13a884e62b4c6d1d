"""From parsed entries to sealed drafts: whose each part is, what a fence closes, under which key it goes.

Guarantees: one transaction looks everything up once, not once an entry, and holds nobody up while parts are sealed;
every refusal is of one entry, with its field; a part that a fence closes is not sealed at all (a hint: the sequencer
decides again); nothing readable leaves `Drafting.drafts`. What a call says again and again (the same people, the same
facts of a skeleton) is judged and compressed once a call and never remembered beyond it. Not here: storing,
sequencing, answers (`registry.record`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import rfc8785
from msgspec import structs
from sqlmodel import Session, select

from ledger import recorders
from ledger.draft import Draft, Placed, PlacedState, SealedPart
from ledger.entry import USER_KINDS, sources_root
from registry import classes, limited, streams, subjects
from registry.acting import Acting
from registry.declaration import DataClass
from registry.entries import BODY, JSON, MalformedEntry, Parsed, ParsedPart, parse_entry, unique
from registry.errors import MalformedSubject, UnknownClass
from registry.identifiers import parse_subject
from registry.keyed import NOBODY, Lookups
from registry.models import KindRow
from registry.reopened import former, opened_at
from registry.sealing import ALGORITHM, SKELETON, Keyring
from registry.sheets import Digests, problem_of
from registry.skeletons import packed_skeleton
from vault.envelope import entry_of, in_entry, joint_prk
from vault.sealing import Job, Sealed, seal_parts
from vault.vault import Vault

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


class Fate(msgspec.Struct, frozen=True, kw_only=True):
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
    fate: Fate


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
    fates: dict[tuple[Any, ...], Fate] = field(default_factory=dict)


def parsed_item(number: int, raw: bytes) -> Item:
    """Return the item of these bytes, refused or well formed."""
    try:
        parsed = parse_entry(raw)
    except MalformedEntry as error:
        return Item(
            number=number, entry_id=error.entry_id, problem=problem_of(error.problem, error.detail, error.pointer)
        )
    return Item(number=number, parsed=parsed, entry_id=parsed.sent.id)


class Ready(msgspec.Struct, frozen=True):
    """One entry that has all it needs to be sealed. `actor` stands in the skeleton, `spoken` with the content."""

    item: Item
    parsed: Parsed
    kept: list[_Kept]
    everyone: frozenset[int]
    actor: str | None
    spoken: bytes | None


class _Prk(NamedTuple):
    """What parts of one class about the same people are sealed under, and when their lock ends."""

    number: int
    key: bytes
    key_ids: tuple[str, ...]
    until: datetime | None


class _Place(NamedTuple):
    """One part of an entry: its role, how its context ends, what it is sealed under and whose class it is."""

    role: str
    bound: bytes
    prk: _Prk
    spec: DataClass


class EntryShape(NamedTuple):
    """What entries share that say the same of themselves: nearly all of a call. `facts` is the packed skeleton."""

    places: tuple[_Place, ...]
    facts: bytes
    people: tuple[tuple[int, ...], ...]
    class_version: int
    recorder: str | None
    stream: streams.StreamRef
    run_no: int | None
    set_id: int


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
        self._digests = Digests(self._lookups.key)
        self._sets: dict[frozenset[int], int] = {}
        self._tenant = str(acting.tenant_id)
        self._prks: dict[tuple[tuple[int, ...], str], _Prk] = {}
        self._shapes: dict[tuple[Any, ...], EntryShape] = {}
        self._known = self._look_up(items)
        if SKELETON not in self._known.classes:  # a starter class, which every tenant has
            raise UnknownClass(SKELETON)
        self._skeleton = self._known.classes[SKELETON]
        self.ready = self._take(items, self._known)
        """The entries that have all they need to be sealed."""

    @property
    def keys(self) -> list[bytes]:
        """What parts are sealed under, in the order of the numbers in places."""
        return [prk.key for prk in self._prks.values()]

    @property
    def digest_key(self) -> bytes:
        """The key of the digests that tell a repeat."""
        return self._lookups.key

    @property
    def fates(self) -> Collection[Fate]:
        """What holds for the parts of all entries."""
        return self._known.fates.values()

    def drafts(self) -> list[Draft]:
        """Return the drafts of the items that are not refused, and note them in the items. Asks no database."""
        shapes = [self.shape_of(ready) for ready in self.ready]
        jobs: list[Job] = []
        for ready, shape in zip(self.ready, shapes, strict=True):
            entry = entry_of(self._tenant, self._acting.log_id, ready.parsed.sent.id)
            contents = [one.part.data for one in ready.kept]
            if ready.spoken is not None:
                contents.append(ready.spoken)
            jobs += [
                (place.prk.number, entry + place.bound, data, False)
                for place, data in zip(shape.places, contents, strict=False)
            ]
            skeleton = shape.places[-1]
            jobs.append((skeleton.prk.number, entry + skeleton.bound, shape.facts, True))
        sealed = iter(seal_parts(self.keys, jobs))
        made = []
        for ready, shape in zip(self.ready, shapes, strict=True):
            ready.item.draft = self._draft(ready, shape, sealed)
            made.append(ready.item.draft)
        return made

    def _take(self, items: Sequence[Item], known: _Known) -> list[Ready]:
        """Decide what of each item is kept, and get the keys of it."""
        ready: list[Ready] = []
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
                ready.append(Ready(item, item.parsed, kept, everyone, *actor))
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
        for owners, data_class in asked:
            self._prks[owners, data_class] = self._prk(owners, known.classes[data_class])
        if ready:
            self._prks.setdefault(((), self._skeleton.name), self._prk((), self._skeleton))
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
        alike: set[tuple[Any, ...]] = set()
        latest = self._now + MAX_AHEAD
        for item in items:
            if item.parsed is None:
                continue
            sent = item.parsed.sent
            says = (sent.kind, sent.data_class, sent.stream, sent.run, sent.recorder, tuple(sent.subjects))
            # Most entries of a call name what another one did, which was looked at.
            if says in alike and sent.parts is None and item.parsed.at <= latest:
                continue
            try:
                self._check(item.parsed, known)
                texts.update(_new_names(item.parsed, texts))
                sound.append(item.parsed)
                alike.add(says)
            except MalformedEntry as error:
                item.problem = problem_of(error.problem, error.detail, error.pointer)
                item.parsed = None
            except MalformedSubject as error:
                item.problem = problem_of("malformed-subject", str(error), error.pointer)
                item.parsed = None
        numbers = subjects.resolve(self._session, self._vault, self._acting, list(texts.values()), self._now)
        known.subject_no = dict(zip(texts, numbers, strict=True))
        known.closed = frozenset(subjects.fenced(self._session, tenant_id, numbers))
        known.since = opened_at(self._session, tenant_id, numbers)
        known.former = former(self._session, tenant_id, known.since)
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

    def _fate(self, parsed: Parsed, part: ParsedPart, known: _Known) -> Fate:
        sent = parsed.sent
        named = part.subjects if part.subjects is not None else tuple(sent.subjects)
        asked = (sent.stream, named, part.data_class or sent.data_class)
        fate = known.fates.get(asked)
        if fate is None:
            fate = known.fates[asked] = _fate_of(*asked, known)
        return fate

    @staticmethod
    def _is_closed(fate: Fate, parsed: Parsed, known: _Known) -> bool:
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

    def shape_of(self, ready: Ready) -> EntryShape:
        """Return what the entry shares with those that say the same of themselves."""
        sent, kept = ready.parsed.sent, ready.kept
        said = (
            *[(one.role, one.part.name, one.part.form, one.part.pinned, id(one.fate)) for one in kept],
            sent.stream, sent.data_class, sent.run, sent.recorder, sent.agent, sent.model, sent.prompt_version,
            sent.policy, ready.actor, ready.spoken is None, *sent.sources,
        )  # fmt: skip
        shape = self._shapes.get(said)
        if shape is None:
            shape = self._shapes[said] = self._new_shape(ready)
        return shape

    def _new_shape(self, ready: Ready) -> EntryShape:
        """Parts in the order in which they stand in the header: what was sent, the actor, the skeleton."""
        sent, known = ready.parsed.sent, self._known
        owned = [(one.role, one.fate.owners, one.fate.spec) for one in ready.kept]
        if ready.spoken is not None:
            owned.append(("actor", tuple(sorted(ready.everyone)), known.classes[sent.data_class]))
        owned.append(("skeleton", (), self._skeleton))
        run = None if sent.run is None else known.run_refs[sent.run]
        return EntryShape(
            places=tuple(
                _Place(role, in_entry(b"", role), self._prks[owners, spec.name], spec) for role, owners, spec in owned
            ),
            facts=_packed_skeleton(ready, None if run is None else run.run_id),
            people=tuple(owners for _, owners, _ in owned),
            class_version=known.classes[sent.data_class].version,
            recorder=None if sent.recorder is None else known.recorders[sent.recorder],
            stream=known.stream_refs[sent.stream],
            run_no=None if run is None else run.run_no,
            set_id=self._sets[ready.everyone],
        )

    def _draft(self, ready: Ready, shape: EntryShape, sealed: Iterator[Sealed]) -> Draft:
        parsed, sent = ready.parsed, ready.parsed.sent
        at = parsed.at
        # Parts of one call lock for the same few months: most entries are older than the call itself.
        is_early = at > self._now
        parts = [
            SealedPart(
                role=role,
                algorithm=ALGORITHM,
                ciphertext=ciphertext,
                lock_until=lock_end(spec, at, self._now) if is_early else prk.until,
                key_ids=prk.key_ids,
                sha256=digest,
            )
            # The places come first: where they end, what was sealed of the next entry stays.
            for (role, _, prk, spec), (ciphertext, digest) in zip(shape.places, sealed, strict=False)
        ]
        return Draft(
            entry_id=sent.id,
            kind=sent.kind,
            data_class=sent.data_class,
            class_version=shape.class_version,
            at=at,
            received=self._now,
            recorder=shape.recorder,
            seq=sent.seq,
            stream_id=shape.stream.stream_id,
            stream_no=shape.stream.stream_no,
            run_no=shape.run_no,
            set_id=shape.set_id,
            sources_count=len(sent.sources),
            sources_root=sources_root(sent.sources) if sent.sources else None,
            parts=tuple(parts),
            subjects=shape.people,
            digest=self._digests.of(sent.id, parsed.raw),
            noncanonical=parsed.noncanonical,
        )

    def _prk(self, owners: tuple[int, ...], spec: DataClass) -> _Prk:
        handles = [self._ring.key(owner, spec.name, self._month) for owner in owners or (NOBODY,)]
        return _Prk(
            number=len(self._prks),
            key=joint_prk({handle.key_id: handle.key32 for handle in handles}),
            key_ids=tuple(handle.key_id for handle in handles),
            until=lock_end(spec, self._now, self._now),
        )

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


def _fate_of(stream_name: str, named: Sequence[str], data_class: str, known: _Known) -> Fate:
    stream, spec = known.stream_refs[stream_name], known.classes[data_class]
    owners = tuple(sorted({known.subject_no[text] for text in named})) if named else stream.members
    if not owners and spec.personal:
        raise MalformedEntry(
            "a personal class needs a subject, of the entry or of its stream",
            pointer="/subjects",
            problem="no-subject",
        )
    guarded = known.closed | stream.closed | known.since.keys() | known.limits.keys()
    return Fate(owners=owners, spec=spec, is_open=guarded.isdisjoint(owners))


def _packed_skeleton(ready: Ready, run_id: str | None) -> bytes:
    """Return the packed facts of an entry.

    A part of which nothing is said is `body`, JSON, not pinned, of the entry's own class: nearly every part.
    """
    sent = ready.parsed.sent
    parts = tuple(
        (one.role, one.part.name, one.part.form, one.part.pinned, one.fate.spec.name)
        for one in ready.kept
        if one.part.name != BODY or one.part.form != JSON or one.part.pinned or one.fate.spec.name != sent.data_class
    )
    facts = (sent.agent, sent.model, sent.prompt_version, sent.policy, ready.actor, run_id, tuple(sent.sources), parts)
    return packed_skeleton(*facts)


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

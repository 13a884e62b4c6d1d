"""Whether a log still is what was signed: the numbered procedure over one log's bucket.

 1. Take the pins: keys, origin, the auditor's last head. Nothing of the log is trusted to name its own key.
 2. List the checkpoints, then the batches, in this order: a log that grows meanwhile is never called short.
 3. For every batch, in order:
    a. decode it strictly; its key is its first index; it names the batch before it and the last checkpoint;
    b. follow the hash chain of the headers, and name the exact entry where it breaks;
    c. follow the positions of every stream;
    d. grow the tree; at every signed size its root is the signed one;
    e. compare the sealed parts with the digests in their header.
 4. At the end: nothing that was signed, pinned, or known lies beyond it, and nothing lies hidden behind it; what
    witnesses and time stamp authorities signed is about the checkpoints in the bucket.
 5. Judge the heads that did not fit, and say in one word what all of it comes to.

Guarantees: every entry between two signed heads is hashed, never only some (CVE-2022-36111 is what a partial check
costs). Memory does not grow with the number of entries, only with that of streams. Nothing is decrypted, nothing is
written. It does not know why a part's key is gone: `part_states` says so. Verdicts: `audit.findings`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from audit.anchored import AnchorCheck, anchor_name, authority_pin
from audit.chain import RESTORE, Taken, blame, heal, take
from audit.errors import BadPin
from audit.findings import Findings, Report, Sampled, Verdict
from audit.hashtiles import TileCheck
from audit.headers import ReadHeader
from audit.heads import PINNED, Heads
from audit.keys import LogKey, log_key, open_checkpoint, witness_key
from audit.payload import PartStates, PayloadCheck
from audit.processes import Helpers, Opener, Task, helpers
from audit.reader import Reader, whole
from audit.silence import Pulse, Silence
from ledger.batches import batch_key, parse_batch_key
from ledger.checkpoint import Checkpoint, parse_checkpoint, parse_note
from ledger.entry import NO_PREVIOUS, Kind
from ledger.errors import (
    BadSignature,
    MalformedBatch,
    MalformedNote,
    ObjectHidden,
    ObjectMissing,
    StoreDenied,
    StoreUnavailable,
)
from ledger.merkle import Frontier

UNANCHORED = "unanchored: trusts the operator"
MADE = (Kind.CERTIFICATE_ISSUED, Kind.KEY_ROTATED)
"""Kinds of entries that tell of an object beside the record: counted, for who knows where these lie."""
_TELLING = frozenset({*MADE, Kind.RECORDER_HEARTBEAT})
_STREAM_HEX = 32
_SILENCES_TOLD = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to check, and against what.

    `since` is the note of a head the auditor kept, `witnesses` the vkeys of witnesses that he trusts, `authorities` the
    SHA-256 fingerprints of the certificates of time stamp authorities that he trusts, `anchors` the names of anchors
    that he saw earlier. `sample`: look into the content of so many entries only. `stream`: of the entries of this
    random stream id only; the chain is checked whole either way. `known_size`: a size that the operator's own database
    has seen. `keys_are_all`: no key but the given ones ever signed for this log, so none else has a line in its
    checkpoints. `keys_are_known`: False when a change of the log's keys is damaged, so that what another key signed
    says nothing. `seed` makes a sample repeatable, for tests.
    """

    since: bytes | None = None
    witnesses: tuple[str, ...] = ()
    authorities: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    sample: int | None = None
    stream: str | None = None
    known_size: int = 0
    keys_are_known: bool = True
    keys_are_all: bool = False
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Helping:
    """Other processes that compare the sealed parts, each with readers of its own."""

    opener: Opener
    processes: int = 1


@dataclass(slots=True, kw_only=True)
class _State:
    """Where the procedure stands between two batches. `held` waits for the next one, which commits to it."""

    held: Taken | None = None
    before: bytes | None = NO_PREVIOUS
    expected: int | None = 0
    end: int = 0
    end_is_known: bool = True
    frontier: Frontier = field(default_factory=Frontier)
    tree_holds: bool = True
    positions: dict[bytes, int] = field(default_factory=dict)
    positions_hold: bool = True
    blamed: int = 0
    fence: int = 0
    named_size: int = 0
    of_stream: int = 0
    made: Counter[str] = field(default_factory=Counter)


def verify(
    reader: Reader,
    *,
    log_id: str,
    keys: Sequence[str],
    options: Options | None = None,
    hot: Reader | None = None,
    part_states: PartStates | None = None,
    progress: Callable[[int], None] | None = None,
    helping: Helping | None = None,
) -> Report:
    """Return what the log in this bucket comes to.

    `keys` are the vkeys that may have signed it, all of one name, which is the log's origin. `hot`, the unlocked store,
    adds tiles and the pointer to the newest checkpoint. `progress` is told how many entries were done. `helping` lets
    other processes compare the sealed parts.
    Raises: BadPin when a key or the pinned checkpoint cannot be used at all.
    """
    audit = _Audit(
        reader=reader,
        log_id=log_id,
        keys=keys,
        options=options or Options(),
        hot=hot,
        part_states=part_states,
        progress=progress,
    )
    if helping is None:
        return audit.run()
    with helpers(helping.opener, audit.payload, helping.processes) as audit.helpers:
        return audit.run()


class _Audit:
    def __init__(
        self,
        *,
        reader: Reader,
        log_id: str,
        keys: Sequence[str],
        options: Options,
        hot: Reader | None,
        part_states: PartStates | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.reader, self.log_id, self.options, self.hot = reader, log_id, options, hot
        self.progress = progress
        self.prefix = f"{log_id}/"
        self.findings = Findings()
        self.keys: list[LogKey] = [log_key(text) for text in dict.fromkeys(keys)]  # 1
        origins = {key.name for key in self.keys}
        if len(origins) > 1:
            raise BadPin("the keys belong to several logs")
        self.origin = next(iter(origins), "")
        self.heads = Heads(
            reader=reader,
            prefix=self.prefix,
            keys=self.keys,
            origin=self.origin,
            findings=self.findings,
            witnesses=[witness_key(text) for text in dict.fromkeys(options.witnesses)],
            keys_are_all=options.keys_are_all,
        )
        self.anchors = AnchorCheck(
            reader=reader,
            prefix=self.prefix,
            keys=self.keys,
            origin=self.origin,
            findings=self.findings,
            authorities=[authority_pin(text) for text in options.authorities],
            witnesses={witness.key_id for witness in self.heads.witnesses},
            keys_are_known=options.keys_are_known,
            kept=[anchor_name(text) for text in options.anchors],
        )
        self.payload = PayloadCheck(
            reader=reader,
            prefix=self.prefix,
            findings=self.findings,
            states=part_states,
            everything=options.sample is None and options.stream is None,
        )
        self.helpers: Helpers | None = None
        self.tiles = None if hot is None else TileCheck(reader=hot, prefix=self.prefix, findings=self.findings)
        self.state = _State()
        self.pulses: dict[str, Pulse] = {}
        self.silences: list[Silence] = []
        self.silent = 0
        self.since: Checkpoint | None = None
        self.pointer: Checkpoint | None = None
        self.chosen: frozenset[int] | None = None
        self.sampled: Sampled | None = None

    def run(self) -> Report:
        """Run the procedure. Raises: BadPin."""
        self._take_pins()  # 1
        try:
            self.pointer = self._hot_pointer()
            self.heads.take_anchors()
            self.heads.start()  # 2
            self._choose_sample()
            self._batches(after=None)  # 3
            # A log that grew while we read has batches behind our listing that its newer checkpoints already cover.
            while self.heads.beyond(self.state.end) and self._batches(after=self.state.end - 1):
                pass
            self._settle(None, link_holds=True)
            self._end()  # 4
            self.anchors.run(self.state.end, sample=self.options.sample, source=self._source())
        except (StoreUnavailable, StoreDenied) as error:
            self.findings.add(Verdict.UNREADABLE, f"the bucket could not be read: {error.detail}", object=self.prefix)
        if self.helpers is not None:
            self.helpers.collect()
        self._judge()  # 5
        return self._report()

    # ── 1. pins ──

    def _take_pins(self) -> None:
        if not self.keys:
            detail = "no key was given or found, so no signature could be checked; give the log's key with --key"
            self.findings.add(Verdict.UNREADABLE, detail)
        if self.options.since is None:
            return
        try:
            self.since = open_checkpoint(self.options.since, self.keys, self.origin)
        except MalformedNote as error:
            raise BadPin(f"the checkpoint file is not a signed note ({error.reason})") from error
        except BadSignature as error:
            self._foreign_since(error)
        else:
            self.heads.pin(self.since)

    def _foreign_since(self, error: BadSignature) -> None:
        """Judge a pinned head that our keys did not sign: of this very log, it says that its key was exchanged."""
        try:
            stated = parse_checkpoint(parse_note(self.options.since or b"").text)
        except MalformedNote as malformed:
            raise BadPin(f"the checkpoint file is not a checkpoint ({malformed.reason})") from malformed
        if error.name or stated.origin != self.origin:
            raise BadPin("the checkpoint file is not signed by the key, or is of another log") from error
        detail = (
            f"your checkpoint of size {stated.size} was signed by another key than the log uses now; if its key was "
            "not rotated, this is another log under the same name"
        )
        self.findings.add(Verdict.FORKED, detail, object=PINNED, index=stated.size)

    def _hot_pointer(self) -> Checkpoint | None:
        if self.hot is None or not self.keys:
            return None
        key = f"{self.prefix}checkpoint"
        try:
            return open_checkpoint(self.hot.get(key), self.keys, self.origin)
        except ObjectMissing:
            return None
        except (MalformedNote, BadSignature, ObjectHidden) as error:
            detail = f"the pointer to the newest checkpoint is wrong ({error}); muniment rebuild makes it again"
            self.findings.add(Verdict.ALTERED, detail, object=key)
            return None

    # ── 2. lists and samples ──

    def _choose_sample(self) -> None:
        if self.options.sample is None:
            return
        last = None
        for last in self.reader.list(f"{self.prefix}batch/"):  # noqa: B007 - only the last key matters
            pass
        taken = None
        if last is not None:
            first = self._first_of(last)
            taken = None if first is None else take(last, first, self.reader.get(last), Findings())
        size = 0 if taken is None else taken.end
        count = min(self.options.sample, size)
        self.chosen = frozenset(self._source().sample(range(size), count))
        self.sampled = Sampled(n=count, of=size)

    def _source(self) -> random.Random:
        """Return what samples are drawn by: what is looked into must not be foreseeable by who stores it."""
        return random.SystemRandom() if self.options.seed is None else random.Random(self.options.seed)  # noqa: S311

    def _first_of(self, key: str) -> int | None:
        try:
            return parse_batch_key(key.removeprefix(self.prefix))
        except MalformedBatch:
            return None

    # ── 3. batches ──

    def _batches(self, after: int | None) -> int:
        """Take every batch behind an index; returns how many there were."""
        count = 0
        start = None if after is None else f"{self.prefix}{batch_key(max(after, 0))}"
        for key in self.reader.list(f"{self.prefix}batch/", after=start):
            first = self._first_of(key)
            if first is None:
                self.findings.add(Verdict.ALTERED, "an object that is no batch lies among them", object=key)
                continue
            if after is not None and first <= after:
                continue
            count += 1
            self._batch(key, first)
        return count

    def _batch(self, key: str, first: int) -> None:
        state = self.state
        taken = self._read(key, first)  # a
        if state.expected is not None and first < state.expected:
            detail = f"a second batch covers index {first}, which the batch before it holds already"
            self.findings.add(Verdict.FORKED, detail, object=key, index=first)
            return
        follows = state.held is not None and state.held.end == first
        if state.expected is not None and first > state.expected:
            self._gap(state.expected, first)
        if taken is None:
            self._settle(None, link_holds=True)
            self._lose_the_thread(end=first + 1)
            state.end_is_known = False
            return
        link_holds = self._link(taken) if follows else True
        self._envelope(taken)
        self._settle(taken if follows else None, link_holds=link_holds)
        if not follows and first:
            self._lose_the_thread(end=first)
        state.held, state.expected, state.end, state.end_is_known = taken, taken.end, taken.end, True
        if self.progress is not None:
            self.progress(taken.end)

    def _read(self, key: str, first: int) -> Taken | None:
        try:
            data = whole(self.reader, key)
        except ObjectHidden:
            self._hidden(key, first)
        except ObjectMissing:
            self.findings.add(Verdict.MISSING, f"the batch went away while we read; {RESTORE}", object=key, index=first)
        except (StoreUnavailable, StoreDenied) as error:
            self.findings.add(Verdict.UNREADABLE, f"could not be read: {error.detail}", object=key, index=first)
        else:
            return take(key, first, data, self.findings)
        return None

    def _hidden(self, key: str, index: int) -> None:
        detail = "a delete marker or a second version lies over the batch; remove it, the first version is kept"
        self.findings.add(Verdict.HIDDEN, detail, object=key, index=index)

    def _gap(self, start: int, end: int) -> None:
        key = f"{self.prefix}{batch_key(start)}"
        try:
            if self.reader.head(key).hidden:
                self._hidden(key, start)
                return
        except ObjectMissing:
            detail = f"entries {start} to {end - 1} are missing; {RESTORE}"
            self.findings.add(Verdict.MISSING, detail, object=key, index=start)

    def _lose_the_thread(self, *, end: int) -> None:
        """Go on behind a hole: nothing is known of what stands there, so nothing is claimed of it."""
        state = self.state
        state.held, state.before, state.expected, state.end = None, None, None, end
        state.tree_holds = state.positions_hold = False
        state.positions.clear()

    def _link(self, taken: Taken) -> bool:
        """Check what the batch says of the one before it; returns whether it names that one's bytes."""
        held, envelope = self.state.held, taken.envelope
        if held is None or envelope is None:
            return True
        if (envelope.previous_key, envelope.previous_count) != (batch_key(held.first), len(held.raws)):
            detail = f"the batch names another one before it than {held.key}; {RESTORE}"
            self.findings.add(Verdict.ALTERED, detail, object=taken.key, index=taken.first)
        return envelope.previous_digest == held.digest

    def _envelope(self, taken: Taken) -> None:
        envelope, state = taken.envelope, self.state
        if envelope is None:
            return
        if envelope.log_id != self.log_id:
            detail = "the batch belongs to another log"
            self.findings.add(Verdict.ALTERED, detail, object=taken.key, index=taken.first)
        if envelope.fence < state.fence or envelope.checkpoint_size < state.named_size:
            detail = (
                "a writer that had lost the log wrote this: its fence or its checkpoint is older than the one before"
            )
            self.findings.add(Verdict.FORKED, detail, object=taken.key, index=taken.first)
        state.fence = max(state.fence, envelope.fence)
        state.named_size = max(state.named_size, envelope.checkpoint_size)
        self.heads.named(envelope.checkpoint_size, envelope.checkpoint_digest, taken.key, taken.first)

    def _settle(self, following: Taken | None, *, link_holds: bool) -> None:
        """Finish the batch that waited, now that its successor (or none) is known."""
        held, state = self.state.held, self.state
        if held is None:
            return
        after = None if following is None else following.first_previous
        blamed, next_is_blamed = blame(held, state.before, after, link_holds=link_holds)  # b
        if following is None:
            blamed = self._last_of_two(held, blamed)
        known = held.spoiled | blamed
        for offset in sorted(blamed):
            self._broken_entry(held, offset)
        if following is not None and next_is_blamed and 0 not in following.spoiled:
            self._broken_entry(following, 0)
            following.spoiled.add(0)
        if not link_holds and not known and held.envelope is not None and following is not None:
            # No entry of either is blamed: what is left is a field of one envelope that nothing else repeats.
            detail = (
                f"{following.key} does not name the digest of {held.key}: the envelope of one of them was changed; "
                f"{RESTORE}"
            )
            self.findings.add(Verdict.ALTERED, detail, object=held.key, index=held.first)
            self.findings.add(Verdict.ALTERED, detail, object=following.key, index=following.first)
        held.spoiled = known
        heal(held, after)
        state.before, state.held = held.leaves[-1], None
        self._grow(held)  # d
        state.blamed += len(held.spoiled)
        entries = list(held.entries())
        self._positions(held, entries)  # c
        told = {header.kind for _, header in entries}
        if not told.isdisjoint(_TELLING):
            for _, header in entries:
                self._listen(header)
        if self.options.stream is not None or self.chosen is not None:
            entries = [(index, header) for index, header in entries if self._is_chosen(index, header)]
        if entries:
            self._compare(held, entries)  # e

    def _compare(self, held: Taken, chosen: Sequence[tuple[int, ReadHeader]]) -> None:
        if self.helpers is None or held.envelope is None:
            self.payload.check(held.first, held.end, chosen)
            return
        everything = len(chosen) == len(held.raws)
        offsets = None if everything else tuple(index - held.first for index, _ in chosen)
        self.helpers.check(Task(key=held.key, first=held.first, digest=held.digest, offsets=offsets))

    def _broken_entry(self, taken: Taken, offset: int) -> None:
        header = taken.headers[offset]
        detail = f"the entry's header is not the one that its neighbours commit to; {RESTORE}"
        entry = None if header is None else header.id
        self.findings.add(Verdict.ALTERED, detail, object=taken.key, entry=entry, index=taken.first + offset)

    def _last_of_two(self, held: Taken, blamed: set[int]) -> set[int]:
        """Of the last two entries, which no successor tells apart, blame the one that the signed root does not know."""
        suspect = len(held.headers) - 2
        last = held.headers[-1]
        if suspect not in blamed or last is None or not self.state.tree_holds:
            return blamed
        self.heads.sizes(held.first, held.end)
        roots = self.heads.roots_of(held.end)
        leaves = [*held.leaves[:suspect], last.previous_hash, held.leaves[-1]]
        whole = [leaf for leaf in leaves if leaf is not None]
        tree = self.state.frontier.copy()
        if not roots or len(whole) != len(leaves) or tree.size != held.first:
            return blamed
        tree.append_many(whole)
        return blamed if tree.root() in roots else blamed - {suspect} | {suspect + 1}

    def _listen(self, header: ReadHeader) -> None:
        """Take a heartbeat, and remember the silence that it ends; count what tells of another object."""
        if header.kind in MADE:
            self.state.made[header.kind] += 1
        if header.kind != Kind.RECORDER_HEARTBEAT or header.recorder is None:
            return
        pulse = self.pulses.setdefault(header.recorder, Pulse(recorder=header.recorder))
        silence = pulse.beat(datetime.fromisoformat(header.at))
        if silence is not None:
            self.silent += 1
            if len(self.silences) < _SILENCES_TOLD:
                self.silences.append(silence)

    def _positions(self, taken: Taken, entries: Sequence[tuple[int, ReadHeader]]) -> None:
        """Follow the streams: nearly always each entry stands where its stream goes on."""
        state = self.state
        following: dict[str, int] = {}
        for index, header in entries:
            stream, position = header.stream, header.position
            expected = following.get(stream)
            if expected is None:
                unknown = 0 if state.positions_hold else position
                expected = state.positions.get(bytes.fromhex(stream), unknown)
            if position != expected:
                self._position(taken, index, header, expected)
            following[stream] = position + 1
        state.positions.update((bytes.fromhex(stream), position) for stream, position in following.items())

    def _position(self, taken: Taken, index: int, header: ReadHeader, expected: int) -> None:
        state = self.state
        if expected < header.position <= expected + state.blamed:
            # Each blamed entry stood at a position of some stream, which cannot be read from it any more.
            state.blamed -= header.position - expected
            return
        verdict = Verdict.MISSING if header.position > expected else Verdict.ALTERED
        detail = f"the stream goes on at position {header.position}, expected {expected}"
        self.findings.add(verdict, detail, object=taken.key, entry=header.id, index=index)

    def _is_chosen(self, index: int, header: ReadHeader) -> bool:
        if self.options.stream is not None:
            if header.stream != self.options.stream:
                return False
            self.state.of_stream += 1
        return self.chosen is None or index in self.chosen

    def _grow(self, held: Taken) -> None:
        state = self.state
        leaves = [leaf for leaf in held.leaves if leaf is not None]
        if not state.tree_holds or state.frontier.size != held.first or len(leaves) != len(held.leaves):
            state.tree_holds = False
            return
        at = held.first
        for size in [*self.heads.sizes(held.first, held.end), held.end]:
            part = leaves[at - held.first : size - held.first]
            rows = state.frontier.append_many(part)
            if self.tiles is not None:
                self.tiles.grow(rows)
            at = size
            self.heads.compare(size, state.frontier.root())
            if self.tiles is not None and self.heads.good_size == size:
                self.tiles.settle(size)

    # ── 4. the end ──

    def _end(self) -> None:
        state = self.state
        if state.end == 0 and not self.heads.beyond(0) and self.options.known_size == 0:
            detail = "nothing is there to check: the log is empty, or this is the wrong place"
            self.findings.add(Verdict.UNREADABLE, detail, object=f"{self.prefix}batch/")
        if state.end_is_known and not self._hidden_batch():
            for detail in self._longer():
                self.findings.add(Verdict.ROLLED_BACK, detail, index=state.end)
            if self.tiles is not None:
                self.tiles.beyond(state.end)
        self._hidden_checkpoint()
        if self.options.stream is not None and state.end and not state.of_stream:
            self.findings.add(Verdict.UNREADABLE, "the log holds no entry of this stream")

    def _hidden_batch(self) -> bool:
        """Look under the key of the next batch: a listing leaves out what lies under a delete marker."""
        key = f"{self.prefix}{batch_key(self.state.end)}"
        try:
            hidden = self.reader.head(key).hidden
        except ObjectMissing:
            return False
        if hidden:
            self._hidden(key, self.state.end)
        return hidden

    def _longer(self) -> Iterator[str]:
        """Yield why this log should be longer than it is."""
        end = self.state.end
        for head in self.heads.beyond(end):
            yield f"{head.source} was signed over {head.checkpoint.size} entries, the bucket has {end}; {RESTORE}"
        if self.pointer is not None and self.pointer.size > end:
            seen = self.pointer.size
            yield f"the unlocked store points at a checkpoint of {seen} entries, the bucket has {end}; {RESTORE}"
        if self.options.known_size > end:
            yield f"the database knows {self.options.known_size} entries, the bucket has {end}; {RESTORE}"

    def _hidden_checkpoint(self) -> None:
        """Look under the key of the newest checkpoint, which no batch names yet."""
        sizes = {self.state.end} | ({self.pointer.size} if self.pointer is not None else set())
        for size in sizes - {0, self.heads.stored_size}:
            key = f"{self.prefix}checkpoint/{size:020d}"
            try:
                hidden = self.reader.head(key).hidden
            except ObjectMissing:
                if self.pointer is not None and self.pointer.size == size:
                    detail = f"the newest checkpoint was signed and is missing; {RESTORE}"
                    self.findings.add(Verdict.MISSING, detail, object=key)
                continue
            if hidden and not any(one.object == key for one in self.findings.kept):
                detail = "a delete marker lies over the newest checkpoint; remove it, the object is kept"
                self.findings.add(Verdict.HIDDEN, detail, object=key)

    # ── 5. the judgement ──

    def _judge(self) -> None:
        state, heads = self.state, self.heads
        heads.foreign(keys_are_known=self.options.keys_are_known)
        evidence = [one.index for one in self.findings.kept if one.verdict is Verdict.ALTERED and one.index is not None]
        told = False
        for head in heads.mismatched:
            size = head.checkpoint.size
            explained = any(index < size for index in evidence)
            if size < heads.good_size or (head.is_pinned and not explained):
                detail = (
                    f"{head.source} of size {size} is signed over other entries than the bucket holds: two histories"
                )
                self.findings.add(Verdict.FORKED, detail, object=head.source, index=self._first_unproven(size))
            elif told:
                continue  # what follows the first one cannot fit either
            elif explained:
                detail = f"the root of size {size} does not fit, because of the altered entries named before it"
                self.findings.add(Verdict.ALTERED, detail, object=head.source)
            elif size == state.end:
                detail = (
                    f"the signed root of size {size} does not fit: the last entry was changed, or all of them from "
                    f"{self._first_unproven(size)} on; {RESTORE}"
                )
                self.findings.add(Verdict.ALTERED, detail, object=head.source, index=size - 1)
            else:
                detail = f"the entries from {self._first_unproven(size)} on are not those that were signed; {RESTORE}"
                self.findings.add(Verdict.FORKED, detail, object=head.source, index=self._first_unproven(size))
            told = told or not head.is_pinned
        if state.end and self.keys and not self.findings.counts and not heads.stored_size:
            detail = "no checkpoint was signed yet, so nothing says what the log should be; try again in a few seconds"
            self.findings.add(Verdict.UNREADABLE, detail, object=f"{self.prefix}checkpoint/")

    def _first_unproven(self, size: int) -> int:
        """The first index that no good head up to this size vouches for."""
        return self.heads.good_size if self.heads.good_size <= size else 0

    def _report(self) -> Report:
        state, heads = self.state, self.heads
        anchored = heads.anchored and self.findings.verdict not in (Verdict.FORKED, Verdict.ROLLED_BACK)
        notes = [] if anchored else [UNANCHORED]
        if anchored and self.since is not None:
            notes.append("anchored: it continues the checkpoint that you kept")
        for name, size in sorted(heads.cosigned.items()) if anchored else ():
            notes.append(f"anchored: the witness {name} cosigned the first {size} of {state.end} entries")
        notes += self.anchors.notes()
        notes += self.payload.notes()
        for one in self.silences:
            until = "" if one.until is None else f" to {one.until.isoformat()}"
            usual = f"{one.every.total_seconds():.0f} s"
            notes.append(f"recorder {one.recorder} was silent from {one.since.isoformat()}{until}, usual are {usual}")
        if self.silent > len(self.silences):
            notes.append(f"recorders were silent {self.silent - len(self.silences)} more times")
        if state.end > heads.good_size:
            notes.append(f"{state.end - heads.good_size} entries are not under a good checkpoint (yet)")
        left = heads.left_over(state.end)
        if left:
            notes.append(f"{left} checkpoints could not be compared, because entries before them could not be read")
        return Report(
            log_id=self.log_id,
            verdict=self.findings.verdict,
            anchored=anchored,
            size=state.end,
            signed_size=heads.good_size,
            checked=self.payload.counts.checked,
            erased=self.payload.counts.erased,
            expired=self.payload.counts.expired,
            findings=tuple(self.findings.sorted()),
            more_findings=self.findings.left_out,
            sampled=self.sampled,
            notes=tuple(notes),
            made=dict(state.made),
        )

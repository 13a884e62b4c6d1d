"""Anchors: parties outside the operator's reach that each new checkpoint is offered to.

`file:/abs/path` (with `{log_id}` in it one file a log): every checkpoint note is appended to a file the auditor owns.
`witness+http[s]://host:port/path#VKEY`: a C2SP witness cosigns the newest one; the cosigned note is stored once under
`<log id>/anchor/<size>-<key id>-<digest>`.
`s3://BUCKET/PREFIX?account=ID&…`: the newest one is created, locked, in a bucket of another account (`ledger.bucket`).
`tsa+http[s]://host:port/path#SHA256`: an RFC 3161 authority stamps the newest one; its answer is stored once under
`<log id>/anchor/<size>-<fingerprint>-<digest>.tsr`. It says when a head existed, not that there is no other one, so a
log that only has time stamps still reads `unanchored`.
Names hold the first 16 digits of a fingerprint or of the object's own SHA-256: some bytes of a token are under no
signature, and a witness's cosignature says nothing to who has not its key.

Guarantees: a failing anchor never blocks or changes the log; it is tried again, with growing pauses, and its state
says since when it is behind. What an anchor has seen and this log does not extend is `refused`, which is a finding
about the log, not about the anchor. The states in the unlocked store are a report and a hint where to go on; losing
them costs one more exchange. Source: DESIGN §3 "Trust without the operator".
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ledger.bucket import BucketAddress, keep_note, open_bucket, parse_bucket
from ledger.checkpoint import Checkpoint, parse_checkpoint, parse_note
from ledger.errors import (
    AnchorRefused,
    AnchorUnavailable,
    MalformedAnchor,
    MalformedNote,
    ObjectExists,
    ObjectMissing,
    StoreUnavailable,
)
from ledger.head import Head, checkpoint_key
from ledger.log import Log
from ledger.merkle import root_of
from ledger.notefile import append_notes
from ledger.objects import HotStore, ObjectStore
from ledger.timestamps import TimestampAddress, parse_timestamp, stamp
from ledger.witness import WitnessAddress, offer, parse_witness

if TYPE_CHECKING:
    from ledger.s3 import S3Store

UNANCHORED = "unanchored: trusts the operator"
ANCHORED, BEHIND, FAILING, REFUSED, NEVER = "anchored", "behind", "failing", "refused", "never"
TIMESTAMP = "timestamp"
FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(minutes=5)
_AT_ONCE = 1000
_DIGITS = 16
_SHOWN = ("anchor", "kind", "size", "at", "state", "detail")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAnchor:
    """A file that the auditor owns; `{log_id}` in the path stands for the log's id."""

    path: str

    @property
    def shown(self) -> str:
        """The setting's text."""
        return f"file:{self.path}"


Anchor = FileAnchor | BucketAddress | WitnessAddress | TimestampAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorState:
    """What an anchor has of one log: `size` entries, since `at`; and how the last try ended."""

    anchor: str
    kind: str
    size: int = 0
    at: str | None = None
    state: str = NEVER
    detail: str = ""
    failures: int = 0
    next_try: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what readers are shown."""
        return {name: getattr(self, name) for name in _SHOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    """One checkpoint on its way to the anchors."""

    head: Head
    note: bytes
    checkpoint: Checkpoint
    now: datetime


def parse_anchors(items: Sequence[str]) -> tuple[Anchor, ...]:
    """Return the anchors of a settings list. Raises: MalformedAnchor, also for an anchor that stands twice."""
    found = [_parse(item) for item in items]
    if len({anchor.shown for anchor in found}) != len(found):
        raise MalformedAnchor("the same anchor stands twice")
    return tuple(found)


def _parse(item: str) -> Anchor:
    if item.startswith("witness+"):
        return parse_witness(item)
    if item.startswith("tsa+"):
        return parse_timestamp(item)
    if item.startswith("s3:"):
        return parse_bucket(item)
    path = item.removeprefix("file:")
    if path == item or not path.startswith("/") or path.startswith("//") or "\0" in path:
        raise MalformedAnchor(
            "expected file:/ABSOLUTE/PATH, s3://BUCKET/PREFIX, witness+http://HOST:PORT/PATH#VKEY or tsa+http://…#SHA256"
        )
    return FileAnchor(path=path)


def statement(states: Sequence[AnchorState]) -> str:
    """Return the sentence that every report carries when nobody outside has seen the log; else nothing."""
    states = [state for state in states if state.kind != TIMESTAMP]
    if not states:
        return UNANCHORED
    if not any(state.size for state in states):
        return f"{UNANCHORED} (no anchor has taken a checkpoint yet)"
    return ""


def told(states: Sequence[AnchorState]) -> str:
    """Return who outside has seen the log, and how much of it, as a certificate prints it; else that nobody has."""
    seen = [
        f"{state.anchor} has the first {state.size} entries since {state.at}"
        for state in states
        if state.size and state.kind != TIMESTAMP
    ]
    stamped = [
        f"time stamped: {state.anchor} says that the first {state.size} entries were there at {state.at}"
        for state in states
        if state.size and state.kind == TIMESTAMP
    ]
    refused = [f"{state.anchor} refuses: {state.detail}" for state in states if state.state == REFUSED]
    return "; ".join([statement(states) or f"anchored: {', '.join(seen)}", *stamped, *refused])


class Anchoring:
    """Offers checkpoints to the anchors of one deployment, and knows what each has."""

    def __init__(
        self,
        *,
        anchors: Sequence[Anchor],
        log: Log,
        locked: ObjectStore,
        hot: HotStore,
        lock_end: Callable[[datetime], datetime],
    ) -> None:
        self.anchors = tuple(anchors)
        self._log = log
        self._locked = locked
        self._hot = hot
        self._lock_end = lock_end
        self._buckets: dict[BucketAddress, S3Store] = {}

    def close(self) -> None:
        """Close the connections to buckets; they are made again when one is offered something."""
        while self._buckets:
            self._buckets.popitem()[1].close()

    @property
    def leads(self) -> bool:
        """Whether this process leads the logs: one that does not leaves the job to the one that does."""
        return self._log.leads

    def states(self, log_id: str) -> tuple[AnchorState, ...]:
        """Return what each configured anchor has of a log, in the order of the setting."""
        newest = self._newest_size(log_id)
        kept = self._kept(log_id)
        found = []
        for anchor in self.anchors:
            state = kept.get(anchor.shown) or AnchorState(anchor=anchor.shown, kind=kind_of(anchor))
            if state.state == ANCHORED and state.size < newest:
                state = replace(state, state=BEHIND, detail=f"the log has {newest} entries under a checkpoint")
            found.append(state)
        return tuple(found)

    def offer(self, tenant_id: int, now: datetime, *, only_due: bool = False) -> tuple[AnchorState, ...]:
        """Offer the newest checkpoint to every anchor; returns how each stands then. `only_due` keeps the pauses.

        A failing anchor raises nothing. Raises: what publishing a checkpoint raises.
        """
        if not self.anchors:
            return ()
        note = self._log.publish(tenant_id, now)
        head = self._log.head(tenant_id)
        if not note:
            return self.states(head.log_id)
        kept = self._kept(head.log_id)
        checkpoint = parse_checkpoint(parse_note(note).text)
        offered = _Offered(head=head, note=note, checkpoint=checkpoint, now=now)
        found = []
        for anchor in self.anchors:
            before = kept.get(anchor.shown) or AnchorState(anchor=anchor.shown, kind=kind_of(anchor))
            is_done = before.state == ANCHORED and before.size == checkpoint.size
            waits = before.next_try is not None and datetime.fromisoformat(before.next_try) > now
            found.append(before if only_due and (is_done or waits) else self._one(anchor, before, offered))
        if found != [kept.get(state.anchor) for state in found]:
            text = json.dumps([asdict(state) for state in found])
            self._hot.replace(head.key("anchors"), text.encode())
        return tuple(found)

    def _one(self, anchor: Anchor, before: AnchorState, offered: _Offered) -> AnchorState:
        now = offered.now
        try:
            if isinstance(anchor, FileAnchor):
                size, at = self._write(anchor, before.size, offered), now
            elif isinstance(anchor, BucketAddress):
                size, at = self._deposit(anchor, before.size, offered), now
            elif isinstance(anchor, TimestampAddress):
                size, at = offered.checkpoint.size, self._stamp(anchor, offered)
            else:
                size, at = offered.checkpoint.size, self._cosign(anchor, before.size, offered)
        except AnchorRefused as error:
            return _failed(before, REFUSED, error.detail, now)
        except AnchorUnavailable as error:
            return _failed(before, FAILING, error.detail, now)
        except StoreUnavailable:
            return _failed(before, FAILING, "the object store is not available", now)
        return AnchorState(
            anchor=before.anchor,
            kind=before.kind,
            size=size,
            at=_instant(at),
            state=ANCHORED if size == offered.checkpoint.size else BEHIND,
        )

    def _write(self, anchor: FileAnchor, known: int, offered: _Offered) -> int:
        """Append every checkpoint the file does not have, oldest first; returns the size it then has."""
        head, newest = offered.head, offered.checkpoint.size

        def newer(size: int) -> list[tuple[int, bytes]]:
            # Nothing of this log in the file's tail: its owner took it away, or other logs filled it since.
            missing = self._between(offered, size or known)
            return missing or ([] if size else [(newest, offered.note)])

        return append_notes(
            anchor.path.replace("{log_id}", head.log_id),
            keys=head.keys,
            origin=head.origin,
            size=newest,
            root_at=lambda size: self._root(head, size),
            newer=newer,
        )

    def _between(self, offered: _Offered, size: int) -> list[tuple[int, bytes]]:
        """Return the checkpoints above a size, up to the newest, at most a thousand."""
        head, newest = offered.head, offered.checkpoint.size
        found: list[tuple[int, bytes]] = []
        for key in self._locked.list(head.key("checkpoint/"), after=head.key(checkpoint_key(size))):
            at = int(key.rpartition("/")[2])
            if at > newest or len(found) == _AT_ONCE:
                break
            found.append((at, offered.note if at == newest else self._locked.get(key)))
        return found

    def _deposit(self, anchor: BucketAddress, known: int, offered: _Offered) -> int:
        """Create the newest checkpoint in the bucket; returns its size."""
        store = self._buckets.get(anchor)
        if store is None:
            store = self._buckets[anchor] = open_bucket(anchor)
        keep_note(
            store,
            offered.note,
            log_id=offered.head.log_id,
            keys=offered.head.keys,
            checkpoint=offered.checkpoint,
            known=known,
            root_at=lambda size: self._root(offered.head, size),
            lock_until=self._lock_end(offered.now),
        )
        return offered.checkpoint.size

    def _cosign(self, witness: WitnessAddress, known: int, offered: _Offered) -> datetime:
        """Let the witness sign, and store the cosigned note once; returns when the witness says it signed."""
        head, checkpoint = offered.head, offered.checkpoint

        def proof(old: int) -> tuple[bytes, ...]:
            return self._log.consistency(head.tenant_id, old, checkpoint.size)

        made = offer(witness, offered.note, checkpoint, known=known, proof=proof)
        self._keep(offered, witness.verifier.key_id.hex(), made.note)
        return made.at

    def _stamp(self, authority: TimestampAddress, offered: _Offered) -> datetime:
        """Let the authority stamp the note, and store its answer once; returns the time in it."""
        made = stamp(authority, offered.note)
        self._keep(offered, authority.fingerprint.hex()[:_DIGITS], made.answer, ".tsr")
        return made.at

    def _keep(self, offered: _Offered, who: str, data: bytes, end: str = "") -> None:
        """Store what an anchor made, once: one of the same bytes may be there after a lost answer."""
        digest = sha256(data).hexdigest()[:_DIGITS]
        key = offered.head.key(f"anchor/{offered.checkpoint.size:020d}-{who}-{digest}{end}")
        with contextlib.suppress(ObjectExists):
            self._locked.put(key, data, lock_until=self._lock_end(offered.now))

    def _root(self, head: Head, size: int) -> bytes:
        with self._log.entered(head.tenant_id) as entered:
            return root_of(size, entered.tree.read)

    def _newest_size(self, log_id: str) -> int:
        try:
            return parse_checkpoint(parse_note(self._hot.get(f"{log_id}/checkpoint")).text).size
        except (ObjectMissing, MalformedNote):
            return 0

    def _kept(self, log_id: str) -> Mapping[str, AnchorState]:
        """Return the states of the last try by anchor; nothing where the report is missing or not ours."""
        try:
            rows = json.loads(self._hot.get(f"{log_id}/anchors"))
            states = [AnchorState(**row) for row in rows]
            return {state.anchor: state for state in states}
        except (ObjectMissing, ValueError, TypeError):
            return {}


def kind_of(anchor: Anchor) -> str:
    """Return `file`, `bucket`, `witness` or `timestamp`."""
    if isinstance(anchor, FileAnchor):
        return "file"
    if isinstance(anchor, BucketAddress):
        return "bucket"
    return TIMESTAMP if isinstance(anchor, TimestampAddress) else "witness"


def _failed(before: AnchorState, state: str, detail: str, now: datetime) -> AnchorState:
    """Return the state after a failure: what the anchor has stays, the next try comes later each time."""
    pause = min(FIRST_PAUSE * 2 ** min(before.failures, 10), LONGEST_PAUSE)
    return replace(
        before, state=state, detail=detail, failures=before.failures + 1, next_try=_instant(now + pause, exact=True)
    )


def _instant(at: datetime, *, exact: bool = False) -> str:
    return at.astimezone(UTC).isoformat() if exact else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

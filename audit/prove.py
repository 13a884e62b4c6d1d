"""Shows, on a copy, that tampering is noticed: `verify --prove`.

Guarantees: the log itself is only read. Each corruption of `audit.corruptions` meets the same `verify` that an auditor
runs, with what the auditor has: without a head of his own, what only such a head shows is reported as needing it,
never as noticed. The copy is signed by a stand-in for the log's key and must be sound before anything is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from audit.corruptions import CORRUPTIONS, SINCE, Copy, Corruption, NotApplicable
from audit.findings import Report, Verdict
from audit.forge import MemoryBucket, StandInKey, hot_objects, note_of, payload_of, read_history, written
from audit.payload import PartStates
from audit.reader import Reader
from audit.verify import Options, verify
from ledger.errors import LedgerError

NOT_TRIED = "nothing to change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What became of one corruption: `noticed`, `unnoticed`, `needs …`, or `nothing to change` (a log too short)."""

    name: str
    outcome: str
    verdict: str | None
    detail: str

    @property
    def is_fault(self) -> bool:
        """Whether the verifier missed what it should have noticed."""
        return self.outcome == "unnoticed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What all corruptions came to. `reason` says why nothing could be shown."""

    shown: tuple[Shown, ...]
    reason: str | None = None

    @property
    def exit_code(self) -> int:
        """0 when all that could be tried was noticed, 1 when something was not, 2 when nothing could be shown."""
        if self.reason is not None:
            return 2
        return 1 if any(one.is_fault for one in self.shown) else 0


def copy_of(reader: Reader, log_id: str, origin: str) -> Copy:
    """Return a copy of the log's beginning, signed by a stand-in. Raises: LedgerError when the log cannot be read."""
    sizes = [int(key.rpartition("/")[2]) for key in reader.list(f"{log_id}/checkpoint/")]
    history = read_history(reader, log_id, sizes)
    key = StandInKey(origin)
    objects = payload_of(reader, history) | written(history, key)
    return Copy(
        history=history,
        bucket=MemoryBucket(objects),
        hot=MemoryBucket(hot_objects(history, key)),
        key=key,
        forger=StandInKey(origin),
    )


def prove(
    reader: Reader,
    *,
    log_id: str,
    origin: str,
    with_since: bool,
    part_states: PartStates | None = None,
    progress: Callable[[int], None] | None = None,
    corruptions: Sequence[Corruption] = CORRUPTIONS,
) -> Proof:
    """Return which corruptions of a copy are noticed; `with_since`: the auditor keeps a head of his own."""
    try:
        if next(iter(reader.list(f"{log_id}/checkpoint/")), None) is None:
            return Proof(shown=(), reason="no checkpoint is there yet, so nothing is signed that could be altered")
        copy = copy_of(reader, log_id, origin)
    except (LedgerError, ValueError) as error:
        return Proof(shown=(), reason=f"the log cannot be copied: {type(error).__name__}; run verify first")
    baseline = _verified(copy, copy, with_since=with_since, part_states=part_states)
    if baseline.verdict is not Verdict.SOUND:
        return Proof(shown=(), reason=f"the log is {baseline.word} before anything is changed; run verify first")
    shown = []
    for number, corruption in enumerate(corruptions, start=1):
        shown.append(_show(copy, corruption, with_since=with_since, part_states=part_states))
        if progress is not None:
            progress(number)
    return Proof(shown=tuple(shown))


def proof_json(proof: Proof) -> dict[str, Any]:
    """Return the JSON of a proof."""
    return {
        "reason": proof.reason,
        "noticed": sum(one.outcome == "noticed" for one in proof.shown),
        "of": len(proof.shown),
        "not_tried": [one.name for one in proof.shown if one.outcome == NOT_TRIED],
        "corruptions": [
            {"name": one.name, "outcome": one.outcome, "verdict": one.verdict, "detail": one.detail}
            for one in proof.shown
        ],
    }


def _show(copy: Copy, corruption: Corruption, *, with_since: bool, part_states: PartStates | None) -> Shown:
    corrupted = copy.fresh()
    too_short = Shown(name=corruption.name, outcome=NOT_TRIED, verdict=None, detail="this log is too short")
    try:
        corruption.apply(corrupted)
    except NotApplicable:
        return too_short
    if (corrupted.bucket, corrupted.hot) == (copy.bucket, copy.hot):
        return too_short
    report = _verified(copy, corrupted, with_since=with_since, part_states=part_states)
    first = report.findings[0].detail if report.findings else ""
    if report.verdict is not Verdict.SOUND:
        return Shown(name=corruption.name, outcome="noticed", verdict=report.word, detail=first)
    if SINCE in corruption.needs and not with_since:
        detail = "the history is whole in itself: only a head that you keep yourself shows it (--since)"
        return Shown(name=corruption.name, outcome="needs --since", verdict=report.word, detail=detail)
    return Shown(name=corruption.name, outcome="unnoticed", verdict=report.word, detail=first)


def _verified(copy: Copy, corrupted: Copy, *, with_since: bool, part_states: PartStates | None) -> Report:
    """Run the auditor's own verification over a corrupted copy, with the head he kept of the sound one."""
    since = note_of(copy.history, copy.history.sizes[-1], copy.key) if with_since else None
    return verify(
        corrupted.bucket,
        log_id=copy.history.log_id,
        keys=[copy.key.vkey],
        options=Options(since=since),
        hot=corrupted.hot,
        part_states=part_states,
    )

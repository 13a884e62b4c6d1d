"""The refusals of the legal desk and of execution. Each names one fact; none holds a person's identifier or free text.

`problem` is the documented name at the HTTP edge; nothing here knows HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import ClassVar

from ledger.entry import format_instant


class ErasureError(Exception):
    """Base of every error of this package."""

    problem: ClassVar[str] = "erasure"
    hint: str = ""


class UnknownRequest(ErasureError):
    """No request, copy or report of that id in this tenant."""

    problem = "not-found"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"no {what} {name!r} in this tenant")
        self.what = what
        self.name = name


class InvalidRequest(ErasureError):
    """A request, or an action on it, is not what the contract asks for. `pointer` is a JSON pointer."""

    problem = "invalid"

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(f"{pointer}: {detail}")
        self.pointer = pointer
        self.detail = detail


class TaskNotClaimed(ErasureError):
    """A task of a connector was answered by somebody to whom it was never handed out."""

    problem = "conflict"
    hint = "claim the task first, and answer with its claim"

    def __init__(self, task_id: str) -> None:
        super().__init__(f"task {task_id} was not handed out under this claim")
        self.task_id = task_id


class NotBuilt(ErasureError):
    """Something the contract names and this version does not do yet; refused, so that nobody believes it was done."""

    problem = "not-built"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not built in this version")
        self.what = what


class IllegalMove(ErasureError):
    """The state of the request does not allow this move."""

    problem = "illegal-move"

    def __init__(self, state: str, move: str, detail: str = "") -> None:
        super().__init__(f"a request that is {state} cannot {move}" + (f": {detail}" if detail else ""))
        self.state = state
        self.move = move


class StalePlan(ErasureError):
    """The plan changed since the caller saw it; `changed` says what it does not cover, by class, store and rule."""

    problem = "stale-plan"

    def __init__(self, expected: str | None, got: str, changed: Sequence[str] = ()) -> None:
        told = f"the plan no longer covers what is there: {', '.join(changed)}"
        super().__init__(told if changed else f"expected plan {expected}, got {got}")
        self.hint = "plan it again" if expected is None else "read the plan again and approve the hash it has now"
        self.expected = expected
        self.got = got
        self.changed = tuple(changed)


class SeparateDuties(ErasureError):
    """The same person may not do both steps; principals count, not tokens."""

    problem = "separate-duties"
    hint = "a second person does this, or the operator sets approval to single"

    def __init__(self, step: str, other: str) -> None:
        super().__init__(f"the person of the step {other} may not also do the step {step}")
        self.step = step
        self.other = other


class TooLate(ErasureError):
    """A legal date or the first destructive step has passed."""

    problem = "too-late"

    def __init__(self, move: str, since: datetime | None, detail: str) -> None:
        when = "" if since is None else f" (since {format_instant(since.astimezone(UTC))})"
        super().__init__(f"too late to {move}: {detail}{when}")
        self.move = move
        self.since = since


class ClockCannotPause(ErasureError):
    """The regulation gives no ground to stop this clock, or none of that name."""

    problem = "clock-cannot-pause"

    def __init__(self, regulation: str, allowed: Sequence[str]) -> None:
        super().__init__(f"{regulation} allows a pause only for: {', '.join(allowed) or 'nothing'}")
        self.regulation = regulation
        self.allowed = tuple(allowed)


class UnknownGround(ErasureError):
    """Not a ground on which this regulation lets a request be refused."""

    problem = "unknown-ground"

    def __init__(self, regulation: str, allowed: Sequence[str]) -> None:
        super().__init__(f"{regulation} lets a request be refused for: {', '.join(allowed)}")
        self.regulation = regulation
        self.allowed = tuple(allowed)


class LiftingNotTold(ErasureError):
    """A restriction is lifted only after the person was told. Source: GDPR Art. 18(3)."""

    problem = "illegal-move"
    hint = "send the notice and record it as restriction_lifting first"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"the restriction of {request_id} is in force and the person was not told of its lifting")
        self.request = request_id


class ExportNotReady(ErasureError):
    """There is no export of this request to hand out. `state` is the request's."""

    problem = "report-not-ready"

    def __init__(self, request_id: str, state: str, detail: str) -> None:
        super().__init__(f"the export of {request_id} is not ready: {detail}")
        self.request = request_id
        self.state = state


class ReportNotReady(ErasureError):
    """The certificate cannot be issued yet; `due_at` is when, None when it depends on the work."""

    problem = "report-not-ready"

    def __init__(self, version: str, due_at: datetime | None, detail: str) -> None:
        when = "" if due_at is None else f", due {format_instant(due_at.astimezone(UTC))}"
        super().__init__(f"the {version} certificate is not ready{when}: {detail}")
        self.version = version
        self.due_at = due_at


class NotVerified(ErasureError):
    """A certificate was asked for while a copy has no verification record; never issued from anything else."""

    problem = "report-not-ready"

    def __init__(self, copies: Sequence[int]) -> None:
        super().__init__(f"{len(copies)} copies have no verification record")
        self.copies = tuple(copies)


class LeaseLost(ErasureError):
    """Another worker took over this request; this one stops without writing."""

    problem = "lease-lost"

    def __init__(self, owner: str) -> None:
        super().__init__(f"the lease of {owner} is held by another worker")
        self.owner = owner


class LogMissing(ErasureError):
    """The log that a database belongs to is not there, so nobody can know what was erased since: nothing is served."""

    problem = "unavailable"

    def __init__(self, tenant: str, detail: str) -> None:
        super().__init__(f"the log of tenant {tenant} is missing: {detail}")
        self.tenant = tenant
        self.detail = detail


class CallbackFailed(ErasureError):
    """The owner of a derived copy could not be asked, or gave no usable answer; the copy waits on."""

    problem = "unavailable"

    def __init__(self, detail: str) -> None:
        super().__init__(f"the callback failed: {detail}")
        self.detail = detail


class HoldNotCarried(ErasureError):
    """The record's store did not take a legal hold, or its end, for some objects; the hold holds all the same.

    `refused`: why, by the name of the object.
    """

    problem = "unavailable"
    hint = "look at the object with muniment verify; the hold is carried again every few minutes"

    def __init__(self, refused: Mapping[str, str]) -> None:
        first, why = next(iter(sorted(refused.items())))
        super().__init__(f"a legal hold did not reach {len(refused)} payload objects; {first}: {why}")
        self.refused = dict(refused)


class ReportError(ErasureError):
    """A certificate file does not hold what it claims. `place` is a JSON pointer into it."""

    problem = "bad-report"

    def __init__(self, place: str, detail: str) -> None:
        super().__init__(f"{place or '/'}: {detail}")
        self.place = place
        self.detail = detail


class BadPin(ErasureError):
    """A key that somebody pinned to check a certificate with is none, so nothing could be checked."""

    problem = "invalid"

    def __init__(self, what: str, detail: str) -> None:
        super().__init__(f"{what} is not a C2SP verifier key (name+id+key): {detail}")
        self.what = what
        self.detail = detail


class LetterWithoutOpening(ErasureError):
    """A file given as the person's letter holds no opening, so it could not be compared with the certificate."""

    problem = "bad-report"

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"the letter holds no opening ({detail}): give the answer to the erasure as muniment wrote it, "
            ".pdf, .html or .txt; other letters have none"
        )
        self.detail = detail


class PaperNotSet(ErasureError):
    """A paper could not be typeset, or not in its time. The data it would show is there as JSON."""

    problem = "paper-not-set"
    hint = "ask for application/json or text/html"

    def __init__(self, detail: str) -> None:
        super().__init__(f"the paper was not set: {detail}")
        self.detail = detail


class LetterNotReady(ErasureError):
    """The request is not where such a letter is written."""

    problem = "letter-not-ready"

    def __init__(self, kind: str, state: str, detail: str = "") -> None:
        super().__init__(f"no letter of kind {kind} for a request that is {state}" + (f": {detail}" if detail else ""))
        self.kind = kind
        self.state = state


class RequestDataGone(ErasureError):
    """What the person said was destroyed with the request's key; the skeleton and the certificate stay."""

    problem = "erased"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"the words of request {request_id} were destroyed when their time was over")
        self.request_id = request_id

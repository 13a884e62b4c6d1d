"""The ledger of side effects: claimed before they are tried, settled after.

Guarantees: one action id has at most one open claim; a claim whose lease ended without an outcome is `unknown` and says
`ask_provider`, never `safe`; a claim binds the digest of what was proposed, so that another amount under the same id is
refused. It does not know whether the effect happened: only who said so. The caller commits.

Nothing of it is in the record, so each row bears a keyed digest over all that it says, without which nothing is
answered from it: a row that was changed is refused, and one from before rows had a digest (or whose digest was taken
away) is unknown, whatever it says, until somebody reports its outcome. Then the outcome is all that is signed: what
else such a row says may be anybody's, so it is emptied, and the next claim of it, if it failed, binds it anew. Unknown
is also what failed in a row that was claimed again before (`ledger.retried`): an older copy of the database brought it
back, and it may have been done since. Not here: a row that was deleted, or put back as it stood before without having
failed; an id is then free, or as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col

from ledger.errors import LedgerError
from ledger.index import chunks
from ledger.models import ActionRow, microseconds
from ledger.retried import Retried
from ledger.row_digests import RowDigests

NOT_KNOWN = ""
"""What a row says of kind, owner and proposal once its outcome was reported over a row that nobody could vouch for."""
_LABEL = "action-row"


class ActionState(StrEnum):
    """What is known of an action."""

    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Retry(StrEnum):
    """Whether doing it again is harmless."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    ASK_PROVIDER = "ask_provider"


class ProposalChanged(LedgerError):
    """The action was claimed for another proposal; what changed needs an approval and an action id of its own."""

    problem = "proposal-changed"

    def __init__(self) -> None:
        super().__init__("this action id is bound to another proposal digest")


class ActionSettled(LedgerError):
    """The action has another outcome already."""

    problem = "action-settled"

    def __init__(self, state: str) -> None:
        super().__init__(f"the action is {state} already")
        self.state = state


class ActionAltered(LedgerError):
    """The row of the action is not as this service wrote it: nobody can tell from it what was done."""

    problem = "action-altered"

    def __init__(self) -> None:
        super().__init__("what is kept of this action was changed in the database: ask the provider what was done")


class UnknownAction(LedgerError):
    """Nobody claimed an action of this id."""

    problem = "not-found"

    def __init__(self) -> None:
        super().__init__("no action of this id was claimed in this tenant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What somebody wants to do; `lookup` is the keyed digest of the action's id, `digest` 64 hexadecimal digits."""

    lookup: bytes
    kind: str
    owner: str
    digest: str | None
    approval: str | None
    lease: timedelta
    stream_no: int | None = None


def claim(
    session: Session, tenant_id: int, wanted: Claim, now: datetime, *, digests: RowDigests, retried: Retried
) -> tuple[ActionRow, bool]:
    """Return the action and whether this call claimed it.

    A failed one may be claimed again, once; a running, succeeded or unknown one is returned as it is known.
    Raises: ProposalChanged, ActionAltered, and what the store of the marks raises.
    """
    row = _held(session, tenant_id, wanted.lookup, digests)
    if row is None:
        row = ActionRow(
            tenant_id=tenant_id,
            lookup=wanted.lookup,
            kind=wanted.kind,
            owner=wanted.owner,
            state=ActionState.CLAIMED,
            lease_until=now + wanted.lease,
            proposal_digest=wanted.digest,
            approval=wanted.approval,
            stream_no=wanted.stream_no,
            created_at=now,
            updated_at=now,
        )
        _write(session, row, digests)
        return row, True
    is_bound = row.row_digest is not None and row.proposal_digest != NOT_KNOWN
    if is_bound and row.proposal_digest != wanted.digest:
        raise ProposalChanged
    if row.row_digest is None or state_at(row, now) is not ActionState.FAILED:
        return row, False
    # Crash behind the mark: nobody was given this claim, and the next one is told to ask the provider.
    if not retried.mark(row.row_digest):
        row.state = ActionState.UNKNOWN
        _write(session, row, digests)
        return row, False
    if not is_bound:
        row.kind, row.proposal_digest, row.stream_no = wanted.kind, wanted.digest, wanted.stream_no
        row.created_at = now
    row.state, row.owner, row.approval = ActionState.CLAIMED, wanted.owner, wanted.approval
    row.lease_until, row.updated_at = now + wanted.lease, now
    _write(session, row, digests)
    return row, True


def settle(
    session: Session,
    tenant_id: int,
    lookup: bytes,
    state: ActionState,
    seal: Callable[[ActionRow], bytes | None],
    *,
    now: datetime,
    digests: RowDigests,
) -> ActionRow:
    """Record the outcome, with what `seal` keeps of the provider's own id; the same outcome again changes nothing.

    Where nobody can vouch for the row it is not called: whose the id is stands in the row.
    Raises: UnknownAction, ActionSettled, ActionAltered.
    """
    row = _held(session, tenant_id, lookup, digests)
    if row is None:
        raise UnknownAction
    if row.row_digest is not None and row.state in (ActionState.SUCCEEDED, ActionState.FAILED):
        if row.state != state:
            raise ActionSettled(row.state)
        return row
    if row.row_digest is None:
        row.kind = row.owner = row.proposal_digest = NOT_KNOWN
        row.approval = row.stream_no = row.provider_ref = None
        row.created_at = row.lease_until = now
    else:
        row.provider_ref = seal(row)
    row.state, row.updated_at = state, now
    _write(session, row, digests)
    return row


def find(session: Session, tenant_id: int, lookup: bytes, *, digests: RowDigests) -> ActionRow:
    """Return an action. Raises: UnknownAction, ActionAltered."""
    row = session.get(ActionRow, (tenant_id, lookup))
    if row is None:
        raise UnknownAction
    require_ours(row, digests)
    return row


def doubt_failed(session: Session, tenant_id: int, *, digests: RowDigests, among: Sequence[bytes] | None = None) -> int:
    """Leave open what became of actions that failed, after rows came from an older copy; returns how many there were.

    All of them, or those whose rows have one of these digests. What each is bound to stays.
    """
    failed = sa.select(ActionRow).where(
        col(ActionRow.tenant_id) == tenant_id, col(ActionRow.state) == ActionState.FAILED.value
    )
    some = [failed] if among is None else [failed.where(col(ActionRow.row_digest).in_(few)) for few in chunks(among)]
    count = 0
    for query in some:
        for row in session.scalars(query).all():
            if is_ours(row, digests):
                row.state = ActionState.UNKNOWN
                _write(session, row, digests)
                count += 1
    return count


def is_ours(row: ActionRow, digests: RowDigests) -> bool:
    """Whether this service wrote the row as it stands; not so where it has no digest."""
    return digests.fits(row.row_digest, _LABEL, _said_by(row))


def require_ours(row: ActionRow, digests: RowDigests) -> None:
    """Return for a row as this service wrote it, and for one without a digest. Raises: ActionAltered."""
    if row.row_digest is not None and not is_ours(row, digests):
        raise ActionAltered


def state_at(row: ActionRow, now: datetime) -> ActionState:
    """Return what is known now: a claim without outcome past its lease is unknown, and a row without a digest too."""
    if row.row_digest is None or (row.state == ActionState.CLAIMED and row.lease_until <= now):
        return ActionState.UNKNOWN
    return ActionState(row.state)


def retry_of(state: ActionState) -> Retry:
    """Return whether doing it again is harmless in this state."""
    return {
        ActionState.FAILED: Retry.SAFE,
        ActionState.SUCCEEDED: Retry.UNSAFE,
        ActionState.CLAIMED: Retry.UNSAFE,
        ActionState.UNKNOWN: Retry.ASK_PROVIDER,
    }[state]


def _held(session: Session, tenant_id: int, lookup: bytes, digests: RowDigests) -> ActionRow | None:
    """The row to be changed by this transaction alone."""
    row = session.get(ActionRow, (tenant_id, lookup), with_for_update=True)
    if row is not None:
        require_ours(row, digests)
    return row


def _write(session: Session, row: ActionRow, digests: RowDigests) -> None:
    row.row_digest = digests.of(_LABEL, _said_by(row))
    session.add(row)
    session.flush()


def _said_by(row: ActionRow) -> bytes:
    """All columns but the digest itself, each kind of value told apart; instants as the database keeps them."""
    said = (row.tenant_id, row.lookup, row.kind, row.owner, row.state, microseconds(row.lease_until),
            row.proposal_digest, row.approval, row.provider_ref, row.stream_no, microseconds(row.created_at),
            microseconds(row.updated_at))  # fmt: skip
    return msgspec.msgpack.encode(said)

"""What the vault did in a session's transaction that is not committed yet.

Guards two mistakes that would lose data without a trace: keeping a key in memory whose row is rolled back, and
destroying a key-encryption key while the rows that left it could still be rolled back to it.
"""

from dataclasses import dataclass, field

from sqlalchemy.orm import SessionTransaction
from sqlmodel import Session

_INFO = "muniment.vault.pending"


@dataclass(slots=True, kw_only=True)
class Pending:
    """Ids written by one transaction of one session."""

    transaction: SessionTransaction | None
    keys: set[str] = field(default_factory=set)
    groups: set[tuple[int, int]] = field(default_factory=set)


def pending(session: Session) -> Pending:
    """Return the notes on the session's current transaction; those of one that ended are dropped."""
    current = session.get_transaction()
    held: Pending | None = session.info.get(_INFO)
    if held is None or held.transaction is not current:
        held = Pending(transaction=current)
        session.info[_INFO] = held
    return held

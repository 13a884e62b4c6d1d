"""The errors of the record. Each names one fact and carries its fields.

Guarantees: nothing here ever holds a payload, a key or a caller's identifier. Object keys are safe to
print, since they are made of dates, counters and random ids. "Could not check" (`StoreUnavailable`) is
never the same class as "is wrong" (`BadProof`, `BadSignature`, `ObjectHidden`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime


class LedgerError(Exception):
    """Base of every error the ledger raises."""


class MalformedHeader(LedgerError):
    """These bytes, or these values, are not a canonical header."""

    def __init__(self, reason: str) -> None:
        """Keep the reason, which never repeats a value."""
        super().__init__(f"malformed header: {reason}")
        self.reason = reason


class MalformedNote(LedgerError):
    """These bytes are not a C2SP signed note, checkpoint or verifier key."""

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        super().__init__(f"malformed note: {reason}")
        self.reason = reason


class MalformedBatch(LedgerError):
    """These bytes, or these values, are not a canonical batch envelope."""

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        super().__init__(f"malformed batch: {reason}")
        self.reason = reason


class MalformedTilePath(LedgerError):
    """This is not a C2SP tile path, or these are not the bytes of such a tile."""

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        super().__init__(f"malformed tile: {reason}")
        self.reason = reason


class BadSignature(LedgerError):
    """A signature by a known key does not verify, or no known key signed at all."""

    def __init__(self, reason: str, *, name: str = "") -> None:
        """Keep the reason and the name of the key."""
        super().__init__(f"bad signature: {reason}")
        self.reason = reason
        self.name = name


class BadProof(LedgerError):
    """A Merkle proof does not prove what it claims."""

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        super().__init__(f"bad proof: {reason}")
        self.reason = reason


class ObjectExists(LedgerError):
    """The key is taken, and by other bytes than the ones offered (or nobody could tell)."""

    def __init__(self, key: str) -> None:
        """Keep the object key."""
        super().__init__(f"object {key} exists already")
        self.key = key


class ObjectMissing(LedgerError):
    """The store says clearly that it has no such object."""

    def __init__(self, key: str) -> None:
        """Keep the object key."""
        super().__init__(f"object {key} is missing")
        self.key = key


class ObjectLocked(LedgerError):
    """The object is under its lock and cannot be deleted yet."""

    def __init__(self, key: str, until: datetime | None) -> None:
        """Keep the object key and the end of the lock, `None` where the store would not say it."""
        shown = "an unknown date" if until is None else until.isoformat()
        super().__init__(f"object {key} is locked until {shown}")
        self.key = key
        self.until = until


class ObjectHidden(LedgerError):
    """A delete marker or a second version lies over the object: somebody tampered with the store."""

    def __init__(self, key: str) -> None:
        """Keep the object key."""
        super().__init__(f"object {key} is covered by a delete marker or has a second version")
        self.key = key


class LockNotEnforced(LedgerError):
    """The store does not keep the promise of write-once storage, so nothing is written to it."""

    def __init__(self, detail: str) -> None:
        """Keep what the store did."""
        super().__init__(f"the store does not enforce its lock: {detail}")
        self.detail = detail


class StoreUnavailable(LedgerError):
    """The store did not answer, or not in time; whether it wrote anything is unknown."""

    def __init__(self, detail: str) -> None:
        """Keep what failed."""
        super().__init__(f"the object store is not available: {detail}")
        self.detail = detail


class StoreDenied(LedgerError):
    """The store refuses us: wrong credentials, a missing right, or a request it finds invalid."""

    def __init__(self, detail: str) -> None:
        """Keep what was refused."""
        super().__init__(f"the object store refuses: {detail}")
        self.detail = detail


class LogForked(LedgerError):
    """Two histories of one log exist: a signed checkpoint is inconsistent with the batches."""

    def __init__(self, detail: str, *, size: int | None = None) -> None:
        """Keep what disagrees, and the tree size where it does."""
        super().__init__(f"the log is forked: {detail}")
        self.detail = detail
        self.size = size


class LogRolledBack(LedgerError):
    """The log is shorter than a checkpoint that was already signed for it."""

    def __init__(self, *, expected: int, got: int) -> None:
        """Keep both sizes."""
        super().__init__(f"the log is rolled back: expected size {expected} or more, got {got}")
        self.expected = expected
        self.got = got


class RecordDamaged(LedgerError):
    """An entry is not where the index says, or its batch is not what the log wrote; nothing of it is shown."""

    problem = "record-damaged"
    hint = "run muniment verify --all, then bring the object back from a copy, or run muniment rebuild"

    def __init__(self, state: Literal["altered", "missing", "hidden"], detail: str) -> None:
        """Keep the verdict and what was found."""
        super().__init__(f"the record is damaged here: {detail}")
        self.state = state
        self.detail = detail


class DatabaseWentBack(LedgerError):
    """The database knows less of a log than this process has seen it know: it was restored, or failed over."""

    problem = "unavailable"
    hint = "the leading process applies again what the record decided meanwhile; send it again then"

    def __init__(self, *, expected: int, got: int) -> None:
        """Keep both sizes."""
        super().__init__(
            f"the database went back in time: expected a log of {expected} entries or more, it knows {got}"
        )
        self.expected = expected
        self.got = got


class IdConflict(LedgerError):
    """The id is in the log already, with other content."""

    def __init__(self, entry_id: str) -> None:
        """Keep the entry id."""
        super().__init__(f"entry {entry_id} exists with other content")
        self.entry_id = entry_id


class MalformedAnchor(LedgerError):
    """An item of the anchors' list is none; `reason` says what was expected."""

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        super().__init__(f"not an anchor: {reason}")
        self.reason = reason


class AnchorRefused(LedgerError):
    """An anchor has seen another history of this log, or a longer one: a finding, not a failure."""

    def __init__(self, detail: str, *, size: int) -> None:
        """Keep what disagrees, and the size of it."""
        super().__init__(f"the anchor refuses: {detail}")
        self.detail = detail
        self.size = size


class AnchorUnavailable(LedgerError):
    """An anchor could not take a checkpoint now; it is offered again."""

    def __init__(self, detail: str) -> None:
        """Keep what failed."""
        super().__init__(f"the anchor is not available: {detail}")
        self.detail = detail


class SigningKeyMissing(LedgerError):
    """The key folder does not hold the private key that the log's key list says is signing."""

    def __init__(self, *, use: str, generation: int) -> None:
        """Keep the use of the key and its generation."""
        super().__init__(f"the {use} key of generation {generation} is not in the key folder; bring it back")
        self.use = use
        self.generation = generation


class NotLeader(LedgerError):
    """This process does not hold the lease of the log, or holds it no longer."""

    def __init__(self, detail: str = "another process holds the lease") -> None:
        """Keep what was noticed."""
        super().__init__(f"not the writer of this log: {detail}")
        self.detail = detail


class CheckpointPending(LedgerError):
    """The process that leads the log has not signed a checkpoint over this size yet: ask again in a second."""

    problem = "checkpoint-pending"

    def __init__(self, *, size: int) -> None:
        """Keep the size that is waited for."""
        super().__init__(f"no checkpoint of size {size} or more is signed yet")
        self.size = size

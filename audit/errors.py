"""What stops an audit before it can say anything. Faults of a log are never raised here: they are findings."""

from __future__ import annotations


class AuditError(Exception):
    """Base of what the auditor raises."""


class BadPin(AuditError):
    """The key or the checkpoint that the auditor brought cannot be used, so nothing was checked with it."""

    def __init__(self, detail: str) -> None:
        """Keep what is wrong with it."""
        super().__init__(f"what was pinned cannot be used: {detail}")
        self.detail = detail


class NothingToReplay(AuditError):
    """No entry was given, so there is neither a transcript nor a hole in one."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("there is no entry to replay")


class BadReceipts(AuditError):
    """The file that was given as receipts holds none, so there was nothing to check."""

    def __init__(self, detail: str) -> None:
        """Keep what is wrong with it."""
        super().__init__(f"no receipts to check: {detail}")
        self.detail = detail

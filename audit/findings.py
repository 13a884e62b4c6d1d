"""The words of an audit: what was found, how bad it is, and what a whole log comes to.

Guarantees: pure values. "Could not check" (`unreadable`) is a word of its own: it never reads as `altered` and never as
fine. A proven fault outweighs anything that could not be checked. A sample is never called `sound`.
Does not look at any log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Any

MAX_FINDINGS = 1_000
"""As many findings are kept of one log; the rest is counted."""


class Verdict(StrEnum):
    """What a log comes to. Source: API.md §1."""

    SOUND = "sound"
    ALTERED = "altered"
    MISSING = "missing"
    FORKED = "forked"
    ROLLED_BACK = "rolled_back"
    HIDDEN = "hidden"
    UNREADABLE = "unreadable"


class Integrity(StrEnum):
    """What one entry of a replay comes to. Source: API.md §5."""

    VERIFIED = "verified"
    ALTERED = "altered"
    MISSING = "missing"
    ERASED = "erased"
    EXPIRED = "expired"
    HIDDEN = "hidden"
    WITHHELD = "withheld"
    UNANCHORED = "unanchored"
    UNREADABLE = "unreadable"


# Worst first. Two histories are worse than one damaged one; what could not be checked comes last.
_WORST_FIRST = (
    Verdict.FORKED,
    Verdict.ROLLED_BACK,
    Verdict.ALTERED,
    Verdict.MISSING,
    Verdict.HIDDEN,
    Verdict.UNREADABLE,
    Verdict.SOUND,
)
_WORST_INTEGRITY_FIRST = (
    Integrity.ALTERED,
    Integrity.MISSING,
    Integrity.HIDDEN,
    Integrity.UNREADABLE,
    Integrity.ERASED,
    Integrity.EXPIRED,
    Integrity.WITHHELD,
    Integrity.UNANCHORED,
    Integrity.VERIFIED,
)
EXIT_SOUND, EXIT_FAULT, EXIT_UNCHECKED = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong or could not be checked: where, what was seen, and what to do about it."""

    verdict: Verdict
    object: str | None = None
    entry: str | None = None
    index: int | None = None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """How many entries were looked into, of how many."""

    n: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one log comes to.

    `size` counts the entries found, `signed_size` those under a good checkpoint, `checked` those whose content was
    compared. `erased` and `expired` count entries with at least one part whose key is gone, by whose decision. `made`
    counts, by kind, the entries that say that an object was made which lies beside the record (`audit.verify.MADE`).
    """

    log_id: str
    verdict: Verdict
    anchored: bool
    size: int
    signed_size: int
    checked: int
    erased: int
    expired: int
    findings: tuple[Finding, ...]
    more_findings: int = 0
    sampled: Sampled | None = None
    notes: tuple[str, ...] = ()
    made: Mapping[str, int] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """The verdict as it is said: a sample that met no fault is `sampled n of m`."""
        if self.verdict is Verdict.SOUND and self.sampled is not None:
            return f"sampled {self.sampled.n} of {self.sampled.of}"
        return self.verdict.value

    @property
    def exit_code(self) -> int:
        """0 without fault, 1 for a proven fault, 2 for what could not be checked."""
        return exit_code_of(self.verdict)


def with_findings(report: Report, found: Findings) -> Report:
    """Return the report with what else was found about the same log."""
    if not found.counts:
        return report
    findings = (*report.findings, *found.sorted())
    return replace(
        report,
        verdict=worst((report.verdict, found.verdict)),
        findings=findings[:MAX_FINDINGS],
        more_findings=report.more_findings + found.left_out + max(0, len(findings) - MAX_FINDINGS),
    )


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of several verdicts; `sound` for none."""
    found = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in found), Verdict.SOUND)


def worst_integrity(states: Iterable[Integrity]) -> Integrity:
    """Return the worst of the states of an entry's parts; `verified` for none."""
    found = set(states)
    return next((state for state in _WORST_INTEGRITY_FIRST if state in found), Integrity.VERIFIED)


def exit_code_of(verdict: Verdict) -> int:
    """Return the exit code of a verdict. Source: API.md §1."""
    if verdict is Verdict.SOUND:
        return EXIT_SOUND
    return EXIT_UNCHECKED if verdict is Verdict.UNREADABLE else EXIT_FAULT


def report_json(report: Report) -> dict[str, Any]:
    """Return the JSON of one report. Source: API.md §1, `verify --json`."""
    made: dict[str, Any] = {
        "verdict": report.word,
        "anchored": report.anchored,
        "size": report.size,
        "checked": report.checked,
        "erased": report.erased,
        "expired": report.expired,
        "findings": [finding_json(finding) for finding in report.findings],
        "log": report.log_id,
        "signed_size": report.signed_size,
        "more_findings": report.more_findings,
        "notes": list(report.notes),
    }
    if report.sampled is not None:
        made["sampled"] = {"n": report.sampled.n, "of": report.sampled.of}
    return made


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return the JSON of one finding."""
    return {
        "verdict": finding.verdict.value,
        "object": finding.object,
        "entry": finding.entry,
        "index": finding.index,
        "detail": finding.detail,
    }


@dataclass(slots=True)
class Findings:
    """What an audit collects on its way: bounded, with the worst verdict whatever was left out."""

    kept: list[Finding] = field(default_factory=list)
    counts: Counter[Verdict] = field(default_factory=Counter)

    def add(
        self,
        verdict: Verdict,
        detail: str,
        *,
        object: str | None = None,  # noqa: A002 - the contract's own word
        entry: str | None = None,
        index: int | None = None,
    ) -> None:
        """Keep one finding, or only count it when there are too many."""
        self.counts[verdict] += 1
        if len(self.kept) < MAX_FINDINGS:
            self.kept.append(Finding(verdict=verdict, object=object, entry=entry, index=index, detail=detail))

    def take(self, kept: Iterable[Finding], counts: Mapping[Verdict, int]) -> None:
        """Take over what another collection kept and counted."""
        self.counts.update(counts)
        self.kept.extend(islice(kept, MAX_FINDINGS - len(self.kept)))

    @property
    def verdict(self) -> Verdict:
        """The worst found so far."""
        return worst(self.counts)

    @property
    def left_out(self) -> int:
        """How many findings were counted but not kept."""
        return self.counts.total() - len(self.kept)

    def sorted(self) -> Sequence[Finding]:
        """Return what was kept, by index and object; what has no index comes last."""
        return sorted(
            self.kept, key=lambda one: (one.index is None, one.index or 0, one.object or "", one.verdict, one.detail)
        )

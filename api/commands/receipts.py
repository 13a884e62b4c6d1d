"""`muniment verify --receipt`: the answers that a caller kept, against the log that gave them.

Guarantees: as `muniment verify`, it reads only and needs no running server; it compares no content, and so says
`acknowledged` where the other says `sound`. Exit codes: 0 all that was acknowledged stands there, 1 the log contradicts
a receipt, 2 a receipt, or what it needs, could not be checked.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from api import settings as settings_module
from api.commands.options import CannotRun, progress, show
from api.commands.verifying import moves, own_keys, wanted_logs
from api.settings import Settings
from api.verification import KnownLog, log_keys_of, logs_of, read_only, stores_of
from audit.errors import BadPin, BadReceipts
from audit.findings import MAX_FINDINGS, Finding, Verdict, exit_code_of, finding_json, worst
from audit.reader import Reader
from audit.receipt_file import Answer, origin_of, read_answers
from audit.receipts import Checked, ReceiptReport, Standing, check_receipts, word_of
from ledger.errors import LedgerError

_SHOWN = 20
_WORDS = {
    Standing.COVERED: "in the log, under a checkpoint",
    Standing.STORED: "in the log, under no checkpoint yet",
    Standing.LOST: "lost by the log",
    Standing.REPLACED: "replaced by other entries",
    Standing.DAMAGED: "in a batch that was changed",
    Standing.HIDDEN: "hidden",
    Standing.DIFFERS: "of another entry than stands there",
    Standing.REFUSED: "no receipts of this log",
    Standing.UNREADABLE: "not readable now",
}
_OWN_KEY = "the key was taken from the service's own key folder; pin it yourself with --key"

_UNSIGNED = "without a receipt: its ids were found, and nothing that the log signed says that it acknowledged them"


def verify_receipts(file: Path, data: Path, tenant: str | None, *, key: str | None, as_json: bool) -> int:
    """Checks the receipts in a file against the logs of a folder; returns the exit code. Raises: CannotRun."""
    try:
        answers = read_answers(_read(file))
        chosen = settings_module.load(data)
        with stores_of(chosen) as (bucket, _), read_only(chosen) as sessions:
            logs = wanted_logs(logs_of(chosen, sessions, bucket), tenant, key=key)
            done = _check(chosen, bucket, logs, answers, key)
    except (BadPin, BadReceipts, LedgerError) as error:
        finding = Finding(verdict=Verdict.UNREADABLE, detail=str(error))
        show(_document(finding.verdict.value, [], [finding], []), as_json=as_json, lines=[f"could not check: {error}"])
        return exit_code_of(Verdict.UNREADABLE)
    reports = [report for _, report in done]
    notes = [] if key is not None else [_OWN_KEY]
    if unsigned := sum(report.unsigned for report in reports):
        notes.append(f"{unsigned} {_UNSIGNED}")
    findings = [finding for report in reports for finding in report.findings]
    show(_document(word_of(reports), done, findings, notes), as_json=as_json, lines=_lines(done, findings, notes))
    return exit_code_of(worst(finding.verdict for finding in findings))


def _read(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        message = f"the receipts {file} cannot be read: {(error.strerror or 'unknown').lower()}"
        raise CannotRun(message) from None


_Done = Sequence[tuple[KnownLog | None, ReceiptReport]]


def _check(
    settings: Settings, bucket: Reader, logs: Sequence[KnownLog], answers: Sequence[Answer], key: str | None
) -> _Done:
    """Checks each answer against the log that it names. Raises: BadReceipts, BadPin, LedgerError."""
    if not logs:
        raise BadReceipts("no log is there to check them against; give its folder with --data")
    by_origin: dict[str | None, list[Answer]] = {}
    for answer in answers:
        by_origin.setdefault(origin_of(answer), []).append(answer)
    unnamed = by_origin.pop(None, [])
    named = [log for log in logs if log.origin in by_origin]
    # What names no log belongs to the only one that there is, or that the others name.
    if unnamed and len(named or logs) == 1:
        (only,) = named or logs
        by_origin.setdefault(only.origin, []).extend(unnamed)
        unnamed = []
    done: list[tuple[KnownLog | None, ReceiptReport]] = []
    for log in logs:
        mine = by_origin.pop(log.origin, [])
        if not mine:
            continue
        pins = [key] if key is not None else own_keys(settings, log)
        if not pins:
            raise BadPin("no key of the log was given or found; give it with --key")
        with progress(max(1, log.size), f"receipts {log.tenant or log.log_id}") as bar:
            report = check_receipts(
                bucket,
                log_id=log.log_id,
                keys=log_keys_of(bucket, log, pins),
                answers=mine,
                progress=moves(bar),
            )
        done.append((log, report))
    foreign = [(answer, "it is of a log that is not here") for mine in by_origin.values() for answer in mine]
    foreign += [(answer, answer.fault or "nothing in it says of which log it is: give --tenant") for answer in unnamed]
    if foreign:
        refused = sorted(foreign, key=lambda one: one[0].line)
        done.append((None, ReceiptReport(log_id="", checked=tuple(_refused(*one) for one in refused))))
    return done


def _refused(answer: Answer, detail: str) -> Checked:
    return Checked(line=answer.line, standing=Standing.REFUSED, verdict=Verdict.UNREADABLE, detail=detail)


def _document(word: str, done: _Done, findings: Sequence[Finding], notes: Sequence[str]) -> dict[str, Any]:
    """One document with the members of API.md §1; `anchored` and `checked` say that no more than headers was seen."""
    return {
        "verdict": word,
        "anchored": False,
        "size": sum(report.size for _, report in done),
        "checked": 0,
        "erased": 0,
        "expired": 0,
        "findings": [finding_json(finding) for finding in findings[:MAX_FINDINGS]],
        "more_findings": max(0, len(findings) - MAX_FINDINGS),
        "receipts": [_receipt_json(log, one) for log, report in done for one in report.checked],
        "logs": [
            {
                "tenant": log.tenant,
                "log": log.log_id,
                "size": report.size,
                "covered_size": report.covered_size,
                "counts": {standing.value: count for standing, count in sorted(report.counts.items())},
            }
            for log, report in done
            if log is not None
        ],
        "notes": list(notes),
    }


def _receipt_json(log: KnownLog | None, one: Checked) -> dict[str, Any]:
    said = one.receipt
    return {
        "line": one.line,
        "log": None if log is None else log.log_id,
        "standing": one.standing.value,
        "first": None if said is None else said.first,
        "count": None if said is None else said.count,
        "at": None if said is None else said.at,
        "detail": one.detail or None,
    }


def _lines(done: _Done, findings: Sequence[Finding], notes: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for log, report in done:
        total = len(report.checked)
        name = "of no log here" if log is None else log.tenant or log.log_id
        lines.append(f"{name}: {total} receipt{'' if total == 1 else 's'}")
        lines += [f"  {count} {_WORDS[standing]}" for standing, count in sorted(report.counts.items())]
        if report.covered_size:
            lines.append(f"  compared with the checkpoint of {report.covered_size} entries")
    for finding in findings[:_SHOWN]:
        lines.append(f"  {finding.verdict.value.replace('_', ' ')}: {finding.detail}")
        if finding.object:
            lines.append(f"      {finding.object}")
    if len(findings) > _SHOWN:
        lines.append(f"  and {len(findings) - _SHOWN} more (--json shows the first thousand)")
    return lines + [f"  {note}" for note in notes]

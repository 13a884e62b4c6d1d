"""The work of `muniment verify`; what it guarantees is told there."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from api import settings as settings_module
from api.commands.options import CannotRun, progress, show
from api.settings import Settings
from api.verification import (
    KnownLog,
    Sessions,
    Verified,
    authorities_of,
    helping_with,
    logs_of,
    own_vkey,
    part_states,
    read_only,
    stores_of,
    stream_id_of,
    verify_log,
    witnesses_of,
)
from audit.anchored import FOLDER
from audit.errors import BadPin
from audit.findings import Verdict, exit_code_of, finding_json, report_json, worst
from audit.keys import log_key
from audit.prove import NOT_TRIED, Proof, proof_json, prove
from audit.reader import Reader
from audit.verify import UNANCHORED, Options
from ledger.entry import Kind
from ledger.errors import LedgerError

_OWN_KEY = "the key was taken from the service's own key folder; pin it yourself with --key"
_OWN_CERTIFICATE_KEY = (
    "the key of the certificates was taken from the service's own key folder; pin it yourself with --certificate-key"
)
_NO_INDEX = "the database's index was not compared with the record; --all does"
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    key: str | None
    since: bytes | None
    witnesses: tuple[str, ...]
    authorities: tuple[str, ...]
    anchors: tuple[str, ...]
    keep_anchors: Path | None
    certificate_keys: tuple[str, ...]
    everything: bool
    sample: int | None
    stream: str | None
    processes: int | None


def verify_folder(
    data: Path,
    tenant: str | None,
    *,
    everything: bool,
    sample: int | None,
    stream: str | None,
    key: str | None,
    since: Path | None,
    witnesses: tuple[str, ...],
    authorities: tuple[str, ...],
    anchors: Path | None,
    keep_anchors: Path | None,
    certificate_keys: tuple[str, ...],
    prove_it: bool,
    processes: int | None,
    as_json: bool,
) -> int:
    """Checks the logs of a folder, or proves what a check would notice; returns the exit code. Raises: CannotRun."""
    # What was made until here stays: the collector need not walk it again for every few headers.
    gc.freeze()
    chosen = settings_module.load(data)
    asked = _Asked(
        key=key,
        since=_kept(since, "the checkpoint file"),
        anchors=tuple(line for line in (_kept(anchors, "the list of anchors") or b"").decode().splitlines() if line),
        keep_anchors=keep_anchors,
        witnesses=(*witnesses, *witnesses_of(chosen)),
        authorities=(*authorities, *authorities_of(chosen)),
        certificate_keys=certificate_keys,
        everything=everything,
        sample=sample,
        stream=stream,
        processes=processes,
    )
    try:
        with stores_of(chosen) as (bucket, hot), read_only(chosen) as sessions:
            logs = _wanted(logs_of(chosen, sessions, bucket), tenant, asked)
            if not logs:
                return _nothing(chosen.data, as_json=as_json, tenant=tenant)
            work = _Work(chosen, sessions, bucket, hot, asked)
            return work.prove(logs, as_json=as_json) if prove_it else work.verify(logs, as_json=as_json)
    except (BadPin, LedgerError) as error:
        show(_unreadable(str(error)), as_json=as_json, lines=[f"could not check: {error}"])
        return exit_code_of(Verdict.UNREADABLE)


class _Work:
    def __init__(
        self, settings: Settings, sessions: Sessions | None, bucket: Reader, hot: Reader, asked: _Asked
    ) -> None:
        self._settings, self._sessions, self._asked = settings, sessions, asked
        self._bucket, self._hot = bucket, hot

    def verify(self, logs: Sequence[KnownLog], *, as_json: bool) -> int:
        done = []
        for log in logs:
            with progress(max(1, log.size), f"verify {log.tenant or log.log_id}") as bar:
                report = verify_log(
                    log,
                    bucket=self._bucket,
                    hot=self._hot,
                    keys=self._keys(log),
                    certificate_keys=self._certificate_keys(log),
                    options=self._options(log),
                    sessions=self._sessions,
                    progress=moves(bar),
                    helping=helping_with(self._settings, log, self._asked.processes),
                    index=self._asked.everything,
                )
            if not self._asked.everything and self._sessions is not None and report.verdict is Verdict.SOUND:
                report = replace(report, notes=(*report.notes, _NO_INDEX))
            if self._asked.key is None and report.verdict is Verdict.SOUND:
                report = replace(report, notes=(*report.notes, _OWN_KEY))
            issued = report.made.get(Kind.CERTIFICATE_ISSUED, 0)
            if issued and not self._asked.certificate_keys and self._certificate_keys(log):
                report = replace(report, notes=(*report.notes, _OWN_CERTIFICATE_KEY))
            done.append(Verified(log=log, report=report))
        show(_whole(done), as_json=as_json, lines=[line for one in done for line in _lines(one)])
        verdict = worst(one.report.verdict for one in done)
        if self._asked.keep_anchors is not None and verdict is Verdict.SOUND:
            self._keep_anchors(logs, self._asked.keep_anchors)
        return exit_code_of(verdict)

    def _keep_anchors(self, logs: Sequence[KnownLog], path: Path) -> None:
        """Writes the anchors that are there, beside those of other logs that the auditor kept already."""
        mine = tuple(f"{log.log_id}/" for log in logs)
        others = {name for name in self._asked.anchors if not name.startswith(mine)}
        names = others.union(*(self._bucket.list(f"{log.log_id}/{FOLDER}") for log in logs))
        try:
            path.write_text("".join(f"{name}\n" for name in sorted(names)))
        except OSError as error:
            message = f"the list of anchors {path} cannot be written: {(error.strerror or 'unknown').lower()}"
            raise CannotRun(message) from None
        click.echo(f"{path}: {len(names)} anchors kept; give it as --anchors next time", err=True)

    def prove(self, logs: Sequence[KnownLog], *, as_json: bool) -> int:
        done: list[tuple[KnownLog, Proof]] = []
        for log in logs:
            states = None
            if self._sessions is not None and log.tenant_id is not None:
                states = part_states(self._sessions, log.tenant_id)
            proof = prove(
                self._bucket,
                log_id=log.log_id,
                origin=log.origin,
                with_since=self._asked.since is not None,
                part_states=states,
            )
            done.append((log, proof))
        code = max(proof.exit_code for _, proof in done)
        word = {0: "sound", 1: "unnoticed", 2: "unreadable"}[code]
        found = {
            "verdict": word,
            "logs": [{"tenant": log.tenant, "log": log.log_id, **proof_json(proof)} for log, proof in done],
        }
        show(found, as_json=as_json, lines=[line for log, proof in done for line in _proof_lines(log, proof)])
        return code

    def _keys(self, log: KnownLog) -> list[str]:
        if self._asked.key is not None:
            return [self._asked.key]
        return own_keys(self._settings, log)

    def _certificate_keys(self, log: KnownLog) -> list[str]:
        """The pinned ones of this log, else the service's own."""
        pinned = [key for key in self._asked.certificate_keys if log_key(key).name == log.certificate_name]
        own = None if pinned else own_vkey(self._settings, log.certificate_name)
        return pinned if own is None else [own]

    def _options(self, log: KnownLog) -> Options:
        return Options(
            since=self._asked.since,
            witnesses=self._asked.witnesses,
            authorities=self._asked.authorities,
            anchors=self._asked.anchors,
            sample=self._asked.sample,
            stream=None if self._asked.stream is None else self._stream(log, self._asked.stream),
            known_size=log.size,
        )

    def _stream(self, log: KnownLog, name: str) -> str:
        """The random id of a stream that the caller names; a random id stands for itself."""
        if self._sessions is not None and log.tenant_id is not None:
            return stream_id_of(self._settings, self._sessions, log.tenant_id, name) or name
        return name


def _kept(path: Path | None, what: str) -> bytes | None:
    if path is None:
        return None
    try:
        data = path.read_bytes()
        data.decode()
    except OSError as error:
        message = f"{what} {path} cannot be read: {(error.strerror or 'unknown').lower()}"
        raise CannotRun(message) from None
    except UnicodeDecodeError:
        message = f"{what} {path} is no text"
        raise CannotRun(message) from None
    return data


def wanted_logs(logs: Sequence[KnownLog], tenant: str | None, *, key: str | None) -> list[KnownLog]:
    """Returns the logs of the tenant, and of the pinned key where there is one. Raises: BadPin for a key of none."""
    found = [log for log in logs if tenant is None or log.tenant == tenant]
    if key is not None:
        name = log_key(key).name
        found = [log for log in found if log.origin == name]
        if logs and not found:
            raise BadPin("no log here has the name of this key")
    return found


def own_keys(settings: Settings, log: KnownLog) -> list[str]:
    """Returns the log's key as the service's own key folder has it; none where it has none."""
    own = own_vkey(settings, log.origin)
    return [] if own is None else [own]


def _wanted(logs: Sequence[KnownLog], tenant: str | None, asked: _Asked) -> list[KnownLog]:
    """The logs that were asked for: of the tenant, and of the pinned key or checkpoint where there is one."""
    found = wanted_logs(logs, tenant, key=asked.key)
    if asked.key is None and asked.since is not None:
        origin = asked.since.partition(b"\n")[0].decode("utf-8", "replace")
        found = [log for log in found if log.origin == origin]
        if logs and not found:
            raise BadPin("no log here has the name in its first line: --since takes a checkpoint of this log")
    names = {log.certificate_name for log in found}
    if logs and any(log_key(key).name not in names for key in asked.certificate_keys):
        raise BadPin("no log here has certificates by a key of this name")
    return found


def _nothing(data: Path, *, as_json: bool, tenant: str | None) -> int:
    detail = "no log is there to check: a wrong folder, or an unknown tenant" if tenant else "no log is there to check"
    show(
        _unreadable(detail),
        as_json=as_json,
        lines=[f"could not check: {detail}; {data} was looked into; give the data folder with --data"],
    )
    return exit_code_of(Verdict.UNREADABLE)


def _unreadable(detail: str) -> dict[str, Any]:
    finding = {"verdict": "unreadable", "object": None, "entry": None, "index": None, "detail": detail}
    counts = {"size": 0, "checked": 0, "erased": 0, "expired": 0}
    return {"verdict": "unreadable", "anchored": False, **counts, "findings": [finding], "logs": []}


def _whole(done: Sequence[Verified]) -> dict[str, Any]:
    """One document over all logs, in the shape of API.md §1, with each log's own below `logs`."""
    verdict = worst(one.report.verdict for one in done)
    samples = [one.report.sampled for one in done if one.report.sampled is not None]
    word = verdict.value
    if verdict is Verdict.SOUND and samples:
        word = f"sampled {sum(one.n for one in samples)} of {sum(one.of for one in samples)}"
    return {
        "verdict": word,
        "anchored": all(one.report.anchored for one in done),
        "size": sum(one.report.size for one in done),
        "checked": sum(one.report.checked for one in done),
        "erased": sum(one.report.erased for one in done),
        "expired": sum(one.report.expired for one in done),
        "findings": [
            {**finding_json(finding), "tenant": one.log.tenant} for one in done for finding in one.report.findings
        ],
        "logs": [{"tenant": one.log.tenant, **report_json(one.report)} for one in done],
    }


def _lines(one: Verified) -> list[str]:
    report = one.report
    lines = [
        f"{one.log.tenant or one.log.log_id}: {report.word.replace('_', ' ')}",
        f"  {report.size} entries, {report.signed_size} of them under a good checkpoint",
        f"  content of {report.checked} compared, {report.erased} with erased and {report.expired} with expired parts",
        *(f"  {note}" for note in report.notes),
    ]
    for finding in report.findings[:_SHOWN]:
        where = "" if finding.index is None else f" entry {finding.index}"
        lines.append(f"  {finding.verdict.value.replace('_', ' ')}{where}: {finding.detail}")
        if finding.object:
            lines.append(f"      {finding.object}")
    hidden = len(report.findings) - _SHOWN + report.more_findings
    if hidden > 0:
        lines.append(f"  and {hidden} more (--json shows the first thousand)")
    return lines


def _proof_lines(log: KnownLog, proof: Proof) -> list[str]:
    if proof.reason is not None:
        return [f"{log.tenant or log.log_id}: nothing could be shown: {proof.reason}"]
    width = max(len(one.name) for one in proof.shown)
    lines = [f"{log.tenant or log.log_id}: a copy was corrupted in {len(proof.shown)} ways"]
    for one in proof.shown:
        word = (one.verdict or "").replace("_", " ") if one.outcome == "noticed" else ""
        lines.append(f"  {one.name:<{width}}  {one.outcome}{': ' + word if word else ''}")
    if short := sum(one.outcome == NOT_TRIED for one in proof.shown):
        lines.append(f"  {short} of them have nothing to change in a log this short, and were not tried")
    if any("--since" in one.outcome for one in proof.shown):
        lines.append(f"  {UNANCHORED}; give a checkpoint that you kept with --since")
    return lines


def moves(bar: Any) -> Callable[[int], None]:
    """Returns what moves a progress bar to a count of entries."""
    at = 0

    def move(done: int) -> None:
        nonlocal at
        bar.update(done - at)
        at = done

    return move

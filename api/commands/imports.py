"""`muniment import`: real chat logs into the record, the same entries again when run again.

Guarantees: ids are made from names, places and times in the file under a key of this data folder's key store, so
importing twice stores nothing twice and nobody outside can guess them; a file with a bad line is not half sent (unless
`--skip-bad`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from api.commands.options import CannotRun, client_of, progress, remote, show
from muniment.errors import ApiProblem, ImportFault
from muniment.importers import batches, read_entries
from muniment.registry import Client

_PATIENCE_S = 60.0
_ADVICE = {
    "unknown-class": "register it with muniment classes apply FILE, or name another with --class",
    "no-subject": "name the field that holds the person with --subject-field",
}
_RETRIED = frozenset({429, 503})
_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}


def import_key(data: Path) -> bytes:
    """The secret under which import ids are made, created once in the key store."""
    # Settings and keys are heavy, and --help needs none of them.
    from api import settings  # noqa: PLC0415
    from api.clock import Clock  # noqa: PLC0415
    from vault.keks import KekStore  # noqa: PLC0415
    from vault.providers import open_root  # noqa: PLC0415

    chosen = settings.load(data)
    folder = chosen.key_folder
    with closing(open_root(chosen.key_root, clock=Clock().now, folder=folder)) as root:
        return KekStore(folder, root).signing_seed("import")


def send(client: Client, body: bytes) -> list[dict[str, Any]]:
    """Posts one batch and returns its results; waits while the server asks for patience. Raises ApiProblem."""
    limit = time.monotonic() + _PATIENCE_S
    while True:
        try:
            answer = client.send("POST", "/v1/record/entries", body, _HEADERS)
        except ApiProblem as problem:
            if problem.status not in _RETRIED or time.monotonic() > limit:
                raise
            time.sleep(min(problem.retry_after or 1.0, 5.0))
            continue
        results: list[dict[str, Any]] = msgspec.json.decode(answer.body)["results"]
        return results


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--class", "data_class", required=True, help="Data class of the entries.")
@click.option("--subject-field", default=None, help="Dotted path of the person in a conversation.")
@click.option("--subject-type", default="user", show_default=True, help="Type of a subject without one.")
@click.option("--stream-field", default=None, help="Dotted path of the conversation's name.")
@click.option("--epoch", default=None, help="Time (RFC 3339) of what states none; default: when the file was written.")
@click.option("--skip-bad", is_flag=True, help="Leave bad lines out instead of stopping.")
@remote
def import_(
    *,
    files: tuple[Path, ...],
    data_class: str,
    subject_field: str | None,
    subject_type: str,
    stream_field: str | None,
    epoch: str | None,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    skip_bad: bool,
    as_json: bool,
) -> int:
    """Imports chat logs: JSONL of OpenAI-style `messages` and the other shapes of the documentation."""
    moment = _moment(epoch)
    bad: list[str] = []
    counts: Counter[str] = Counter()
    problems: Counter[str] = Counter()

    def entries(file: Path, *, note: bool) -> Iterator[dict[str, Any]]:
        return read_entries(
            file,
            data_class=data_class,
            subject_field=subject_field,
            subject_type=subject_type,
            stream_field=stream_field,
            id_key=import_key(data),
            epoch=moment,
            skip_bad=skip_bad,
            on_bad=lambda fault: bad.append(f"{file.name}: {fault}") if note else None,
        )

    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        for file in files:
            try:
                total = sum(1 for _ in entries(file, note=True))
                with progress(total, file.name) as bar:
                    for ids, body in batches(entries(file, note=False)):
                        for result in send(client, body):
                            counts[result["status"]] += 1
                            if result["status"] == "rejected":
                                problems[_reason(result)] += 1
                        bar.update(len(ids))
            except ImportFault as fault:
                if counts:
                    _report(counts, problems, bad, as_json=as_json)
                click.echo(f"muniment: {file.name}: {fault}; nothing of this file was sent", err=True)
                return 1
    _report(counts, problems, bad, as_json=as_json)
    return 1 if counts["rejected"] or bad else 0


def _moment(epoch: str | None) -> datetime | None:
    """The instant that `--epoch` names. Raises: CannotRun."""
    if epoch is None:
        return None
    with suppress(ValueError):
        at = datetime.fromisoformat(epoch)
        if at.tzinfo is not None:
            return at
    message = "--epoch is no time with a zone: write it like 2026-01-31T12:00:00Z"
    raise CannotRun(message)


def _reason(result: dict[str, Any]) -> str:
    problem = result.get("problem") or {}
    if not isinstance(problem, dict):
        return str(problem)
    advice = _ADVICE.get(str(problem.get("type")).rpartition("/")[2])
    said = str(problem.get("detail") or problem.get("type"))
    return f"{said}: {advice}" if advice else said


def _report(counts: Counter[str], problems: Counter[str], bad: list[str], *, as_json: bool) -> None:
    lines = [f"{status}: {n}" for status, n in sorted(counts.items())]
    lines += [f"  {n} rejected: {reason}" for reason, n in problems.most_common()]
    lines += [f"  left out: {line}" for line in bad]
    show({**counts, "problems": dict(problems), "left_out": bad}, as_json=as_json, lines=lines or ["nothing to import"])


COMMANDS = {"import": import_}

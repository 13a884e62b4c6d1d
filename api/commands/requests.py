"""`muniment request`, `approve`, `report` and `letter`: the legal desk from a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

from api.commands.options import CannotRun, client_of, progress, remote, show
from muniment.registry import Client

RIGHTS = {
    "erase": "erasure",
    "access": "access",
    "portability": "portability",
    "rectify": "rectification",
    "restrict": "restriction",
    "object": "objection",
}
DONE = frozenset(
    {
        "completed",
        "completed_with_retained",
        "completed_with_exceptions",
        "no_match",
        "refused",
        "cancelled",
        "duplicate",
        "partially_failed",
    }
)
_FAILED = frozenset({"partially_failed"})
_OPEN_COPIES = frozenset({"pending", "running", "awaiting_external", "awaiting_human", "unreachable", "failed"})
_POLL_S = 0.3
_REPORTS = {
    ".json": "application/json",
    ".html": "text/html",
    ".pdf": "application/pdf",
    ".zip": "application/zip",
}
_LETTERS = {".txt": "text/plain", ".html": "text/html", ".pdf": "application/pdf"}
KINDS = ("acknowledgement", "extension", "refusal", "no_match", "restriction_lifting", "answer")


def _subjects(given: tuple[str, ...]) -> list[str]:
    """The named subjects; `-` reads them from stdin, one a line, so that they are in no process list."""
    found: list[str] = []
    for one in given:
        found += [line.strip() for line in sys.stdin if line.strip()] if one == "-" else [one]
    return found


@click.command("request")
@click.argument("right", type=click.Choice([*RIGHTS, *(r for r in RIGHTS.values() if r not in RIGHTS)]))
@click.option("--subject", "subjects", multiple=True, required=True, help="`type:value`, or - to read from stdin.")
@click.option("--regulation", type=click.Choice(["gdpr", "ccpa"]), default="gdpr", show_default=True)
@click.option("--jurisdiction", default=None, help="Such as DE-BY.")
@click.option("--timezone", default="UTC", show_default=True)
@click.option("--conversation", default=None, help="Only this conversation.")
@click.option("--data-class", "data_classes", multiple=True, help="Only these classes.")
@click.option("--correct", "corrections", multiple=True, metavar="FIELD=VALUE", help="What a field is to read.")
@click.option("--identity", "method", default=None, help="How identity was checked; then the request is planned too.")
@click.option("--evidence", default="", help="What was seen; sealed under the request's key.")
@click.option("--watch", is_flag=True, help="Wait for the end, with a progress bar.")
@remote
def request(
    *,
    right: str,
    subjects: tuple[str, ...],
    regulation: str,
    jurisdiction: str | None,
    timezone: str,
    conversation: str | None,
    data_classes: tuple[str, ...],
    corrections: tuple[str, ...],
    method: str | None,
    evidence: str,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    watch: bool,
    as_json: bool,
) -> int:
    """Files a rights request; with --identity also notes the check and plans it."""
    people = _subjects(subjects)
    body: dict[str, Any] = {"right": RIGHTS.get(right, right), "subjects": people, "regulation": regulation}
    body |= {"jurisdiction": jurisdiction, "timezone": timezone, "channel": "cli"}
    body |= {"scope": _scope(conversation, data_classes), "corrections": _corrections(corrections)}
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        made = client.request("POST", "/v1/requests", {k: v for k, v in body.items() if v is not None})
        state = made
        if method is not None:
            state = _plan(client, made["id"], people, method, evidence)
        if watch:
            state = watch_request(client, made["id"])
    lines = [f"request {made['id']}: {state['state']}, due {made['due_at']}", *_next(state)]
    show({**made, **state}, as_json=as_json, lines=lines)
    return 1 if state["state"] in _FAILED else 0


def _scope(conversation: str | None, data_classes: tuple[str, ...]) -> dict[str, Any] | None:
    if conversation is not None and data_classes:
        message = "--conversation and --data-class exclude each other"
        raise CannotRun(message)
    if conversation is not None:
        return {"conversation": conversation}
    return {"data_classes": list(data_classes)} if data_classes else None


def _corrections(given: tuple[str, ...]) -> dict[str, str] | None:
    if any("=" not in one for one in given):
        message = "--correct needs FIELD=VALUE"
        raise CannotRun(message)
    return dict(one.split("=", 1) for one in given) or None


def _plan(client: Client, request_id: str, people: list[str], method: str, evidence: str) -> dict[str, Any]:
    path = f"/v1/requests/{quote(request_id, safe='')}"
    for person in people:
        check = {"identifier": person, "method": method, "evidence": evidence}
        client.request("POST", f"{path}/verify-identity", check)
    found: dict[str, Any] = client.request("GET", path)
    if found["state"] == "verified":
        client.request("POST", f"{path}/plan", {})
        found = client.request("GET", path)
    return found


def _next(state: Mapping[str, Any]) -> list[str]:
    if state["state"] == "planned":
        return [f"next: another person approves it: muniment approve {state['id']}"]
    if state["state"] in ("received", "identity_pending"):
        return ["next: check who is asking (request … --identity METHOD, or POST …/verify-identity)"]
    return []


def watch_request(client: Client, request_id: str) -> dict[str, Any]:
    """Returns the request when it has ended, showing on stderr how many of its copies are done."""
    path = f"/v1/requests/{quote(request_id, safe='')}"
    state: dict[str, Any] = client.request("GET", path)
    total = sum(state.get("counts", {}).values())
    with progress(max(total, 1), f"{request_id} {state['state']}") as bar:
        while state["state"] not in DONE:
            counts = state.get("counts", {})
            bar.length = max(sum(counts.values()), 1)
            done = sum(n for copy_state, n in counts.items() if copy_state not in _OPEN_COPIES)
            bar.label = f"{request_id} {state['state']}"
            bar.update(done - bar.pos)
            time.sleep(_POLL_S)
            state = client.request("GET", path)
        bar.update(bar.length - bar.pos)
    return state


@click.command("approve")
@click.argument("request_id")
@click.option("--plan-hash", default=None, help="Approve only this plan (default: the present one, shown first).")
@click.option("--watch", is_flag=True, help="Wait for the end, with a progress bar.")
@remote
def approve(
    *,
    request_id: str,
    plan_hash: str | None,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    watch: bool,
    as_json: bool,
) -> int:
    """Approves a planned request as another person than its creator."""
    path = f"/v1/requests/{quote(request_id, safe='')}"
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        plan = client.request("GET", f"{path}/plan")
        if not as_json:
            for line in _plan_lines(plan):
                click.echo(line)
        client.request("POST", f"{path}/approve", {"plan_hash": plan_hash or plan["hash"]})
        state = watch_request(client, request_id) if watch else client.request("GET", path)
    show(state, as_json=as_json, lines=[f"request {request_id}: {state['state']}"])
    return 1 if state["state"] in _FAILED else 0


def _plan_lines(plan: Mapping[str, Any]) -> list[str]:
    groups: dict[tuple[str, str, str], int] = {}
    for copy in plan["copies"]:
        group = (copy["action"], copy["store"], copy["data_class"])
        groups[group] = groups.get(group, 0) + 1
    lines = [f"plan {plan['hash']}"]
    lines += [
        f"  {action:<10} {n:>5}  {data_class} in {store}" for (action, store, data_class), n in sorted(groups.items())
    ]
    lines += [f"  not covered: {item}" for item in plan.get("not_covered", [])]
    return lines


@click.command("report")
@click.argument("request_id")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write, - for stdout.")
@click.option("--version", type=click.Choice(["interim", "final"]), default=None, help="Default: the newest.")
@remote
def report(
    *,
    request_id: str,
    output: Path,
    version: str | None,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Writes a request's certificate (.json, .html, .pdf) or its export (.zip) to a file, by the end of its name."""
    query = f"?version={version}" if version else ""
    path = f"/v1/requests/{quote(request_id, safe='')}/report{query}"
    accept = _form_of(output, _REPORTS)
    if accept == "application/zip":
        path = f"/v1/requests/{quote(request_id, safe='')}/export"
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        answer = client.send("GET", path, None, {"Accept": accept})
    if not _write(output, answer.body):
        return 0
    following = "hand it to the person, then note it: POST …/notices"
    if accept != "application/zip":
        following = f"muniment verify-report {output} --key VKEY"
    show(
        {"file": str(output), "bytes": len(answer.body)},
        as_json=as_json,
        lines=[f"{output} ({len(answer.body)} bytes); next: {following}"],
    )
    return 0


@click.command("letter")
@click.argument("request_id")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write, - for stdout.")
@click.option("--kind", type=click.Choice(KINDS), default=None, help="Default: what the request's state calls for.")
@click.option("--language", type=click.Choice(["en", "de"]), default=None, help="Default: by the jurisdiction.")
@remote
def letter(
    *,
    request_id: str,
    output: Path,
    kind: str | None,
    language: str | None,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Writes the letter to the person, whom it names; the file's end says which: .txt, .html or .pdf."""
    asked = {"kind": kind, "language": language}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    path = f"/v1/requests/{quote(request_id, safe='')}/letter{'?' + query if query else ''}"
    accept = _form_of(output, _LETTERS)
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        answer = client.send("GET", path, None, {"Accept": accept})
    if _write(output, answer.body):
        lines = [f"{output} ({len(answer.body)} bytes); next: send it, then note it: POST …/notices"]
        show({"file": str(output), "bytes": len(answer.body)}, as_json=as_json, lines=lines)
    return 0


def _form_of(output: Path, forms: Mapping[str, str]) -> str:
    """The media type by the name's end. Raises CannotRun, before anything is asked for that could not be written."""
    suffix = output.suffix.lower() if str(output) != "-" else next(iter(forms))
    if suffix not in forms:
        message = f"{output}: the name must end with {', '.join(forms)}"
        raise CannotRun(message)
    if str(output) != "-" and not output.parent.is_dir():
        message = f"{output.parent} is no folder: make it first, or name another file with -o"
        raise CannotRun(message)
    return forms[suffix]


def _write(output: Path, body: bytes) -> bool:
    """Whether a file was written; - is stdout."""
    if str(output) == "-":
        sys.stdout.buffer.write(body)
        return False
    try:
        output.write_bytes(body)
    except OSError as error:
        message = f"{output} cannot be written ({(error.strerror or 'unknown').lower()}): name another file with -o"
        raise CannotRun(message) from None
    return True


COMMANDS = {"request": request, "approve": approve, "report": report, "letter": letter}

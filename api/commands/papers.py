"""`muniment report` and `letter`: the papers of a request as files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import click

from api.commands.options import CannotRun, client_of, remote, show
from api.commands.requests import path_of
from muniment.registry import Client

_REPORTS = {
    ".json": "application/json",
    ".html": "text/html",
    ".pdf": "application/pdf",
    ".zip": "application/zip",
}
_LETTERS = {".txt": "text/plain", ".html": "text/html", ".pdf": "application/pdf"}
KINDS = ("acknowledgement", "extension", "refusal", "no_match", "restriction_lifting", "answer", "recipients")
NOBODY = (
    "warning: nobody has said who the controller is, so the paper names the tenant and no contact; set it once: "
    "muniment controller set --name NAME --contact ADDRESS"
)
_NOTED = "muniment request notices {} --kind answered --channel HOW --sent-at WHEN"


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
    path = f"{path_of(request_id)}/report{query}"
    accept = _form_of(output, _REPORTS)
    if accept == "application/zip":
        path = f"{path_of(request_id)}/export"
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        answer = client.send("GET", path, None, {"Accept": accept})
        _warn(client)
    if not _write(output, answer.body):
        return 0
    following = f"hand it to the person, then note it: {_NOTED.format(request_id)}"
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
    path = f"{path_of(request_id)}/letter{'?' + query if query else ''}"
    accept = _form_of(output, _LETTERS)
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        answer = client.send("GET", path, None, {"Accept": accept})
        _warn(client)
    if _write(output, answer.body):
        told = f"next: send it, then note it: {_NOTED.format(request_id)}"
        lines = [f"{output} ({len(answer.body)} bytes); {told}"]
        show({"file": str(output), "bytes": len(answer.body)}, as_json=as_json, lines=lines)
    return 0


def _warn(client: Client) -> None:
    """Say it when the papers have no controller to name; who answers for the data is the first thing on each."""
    if not client.request("GET", "/v1/settings/controller").get("name"):
        click.echo(NOBODY, err=True)


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


COMMANDS = {"report": report, "letter": letter}

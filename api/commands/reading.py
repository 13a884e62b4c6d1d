"""`muniment replay` and `muniment explain`: what happened in a stream, and where a fact came from."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from api.commands.options import CannotRun, client_of, remote, show
from audit.render import text_lines

_FAULTS = frozenset({"altered", "missing", "hidden"})
_NEED_PURPOSE = "content is read for a purpose: pass --purpose CODE, one that the class of the entries lists"


@click.command("replay")
@click.argument("stream")
@click.option("--purpose", default=None, help="Purpose code of the class, such as dispute[;case=7].")
@click.option("--at", default=None, help="As it was at this instant (RFC 3339).")
@remote
def replay(
    *,
    stream: str,
    purpose: str | None,
    at: str | None,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Shows a stream entry by entry with its proof state; exits 1 when one is altered, missing or hidden, 2 unread."""
    body = {"stream": stream} | ({"at": at} if at else {})
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        if purpose is None:
            raise CannotRun(_NEED_PURPOSE)
        found = client.request("POST", "/v1/replay", body, purpose=purpose)
    show(found, as_json=as_json, lines=list(text_lines(found)), exact=True)
    verdicts = {entry["integrity"] for entry in found["entries"]}
    return 1 if verdicts & _FAULTS else 2 if "unreadable" in verdicts else 0


@click.command("explain")
@click.argument("artifact")
@click.option("--purpose", help="Also what was said in the turns it comes from: <code>[;case=<id>].")
@remote
def explain(
    *,
    artifact: str,
    purpose: str | None,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Shows where a remembered fact came from, step by step, down to the turns of the record."""
    path = f"/v1/artifacts/{quote(artifact, safe='')}/provenance"
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = client.request("GET", path, purpose=purpose)
    known = ("source_type", "source_ref", "observed_at", "verification", "confidence_now")
    lines = [f"{name}: {found[name]}" for name in known if found.get(name) is not None]
    for step in found.get("chain", []):
        what = step.get("artifact") or step.get("entry")
        activity = step.get("activity") or {}
        if "entry" in step:
            lines.append(
                f"  from entry {what}, {step.get('kind')} at {step.get('at')}, position {step.get('position')}"
            )
            if "integrity" in step:
                lines.append(f"    {step['integrity']}: {step.get('body', step.get('because', ''))}")
            continue
        with_what = [f"{name} {value}" for name, value in activity.items() if name != "kind" and value]
        lines.append(
            f"  from {what}"
            + (f" by {activity['kind']}" if activity.get("kind") else "")
            + (f" ({', '.join(with_what)})" if with_what else "")
        )
    show(found, as_json=as_json, lines=lines or ["nothing is known about its origin"], exact=True)
    return 0


COMMANDS = {"replay": replay, "explain": explain}

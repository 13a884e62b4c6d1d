"""`muniment hold`: legal holds from a terminal. Releasing shows first what goes then, and asks another person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from api.commands.options import CannotRun, Listed, client_of, remote, show
from api.commands.requests import subjects_of

_KEPT = (("items", "copy", "copies"), ("entries", "entry", "entries"), ("keys", "key", "keys"))
_FREED = (
    ("items", "copy", "copies"),
    ("keys", "whole key of the record", "whole keys of the record"),
    ("entries", "part with a key of its own", "parts with keys of their own"),
)


@click.group("hold", cls=Listed)
def hold() -> None:
    """Legal holds: they beat everything and delete nothing."""


@hold.command("place")
@click.option("--name", required=True, help="By this name people speak of it.")
@click.option("--matter", required=True, help="The proceeding that it serves; sealed.")
@click.option("--reason", required=True, help="Why the data must be kept; sealed.")
@click.option("--subject", "subjects", multiple=True, help="Everything about this person; - reads from stdin.")
@click.option("--data-class", "data_classes", multiple=True, help="Everything of this class.")
@click.option("--conversation", default=None, help="Everything of this conversation.")
@click.option("--artifact", "artifacts", multiple=True, help="This copy.")
@click.option("--entry", "entries", multiple=True, help="This entry of the record.")
@remote
def place(
    *,
    name: str,
    matter: str,
    reason: str,
    subjects: tuple[str, ...],
    data_classes: tuple[str, ...],
    conversation: str | None,
    artifacts: tuple[str, ...],
    entries: tuple[str, ...],
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Places a hold on whatever any of the options names, also on what comes later."""
    wanted: dict[str, Any] = {
        "subjects": subjects_of(subjects),
        "data_classes": list(data_classes),
        "scope": None if conversation is None else {"conversation": conversation},
        "artifacts": list(artifacts),
        "entries": list(entries),
    }
    selector = {key: value for key, value in wanted.items() if value}
    if not selector:
        message = "a hold names what it keeps: --subject, --data-class, --conversation, --artifact, --entry"
        raise CannotRun(message)
    body = {"name": name, "matter": matter, "reason": reason, "selector": selector}
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = client.request("POST", "/v1/holds", body)
    lines = [f"{found['id']}: in force, keeps {kept_now(found)} now"]
    lines += [f"  too late: {one}" for one in found.get("too_late", [])]
    lines += [f"  warning: {found['warning']}"] if found.get("warning") else []
    show(found, as_json=as_json, lines=lines)
    return 0


@hold.command("list")
@click.option("--released", is_flag=True, help="Those that were released.")
@remote
def list_holds(
    *, released: bool, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool
) -> int:
    """Lists holds in force, or released ones."""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = list(client.pages(f"/v1/holds?released={'true' if released else 'false'}"))
    lines = [
        f"{one['id']}  {one['state']:<9} {one['name']}, keeps {kept_now(one)}, by {one['created_by']}" for one in found
    ]
    show({"items": found}, as_json=as_json, lines=lines or ["no hold"])
    return 0


@hold.command("release")
@click.argument("hold_id")
@click.option("--yes", is_flag=True, help="Release it; without this only shows what would go.")
@remote
def release(
    *, hold_id: str, yes: bool, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool
) -> int:
    """Shows what goes when the hold ends; with --yes ends it, as another person than who placed it."""
    path = f"/v1/holds/{quote(hold_id, safe='')}/release"
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = client.request("POST", f"{path}?preview={'false' if yes else 'true'}")
    lines = [f"{hold_id}: {'released' if found['released'] else 'not released, this is what would happen'}"]
    lines += release_lines(found)
    if not found["released"]:
        lines.append(f"next: another person than who placed it: muniment hold release {hold_id} --yes")
    show(found, as_json=as_json, lines=lines)
    return 0


def kept_now(found: Mapping[str, Any]) -> str:
    """How much a hold in force keeps: copies, entries of the record, keys; of a released one that it keeps nothing."""
    return _counted(found, _KEPT) or "nothing"


def _counted(found: Mapping[str, Any], names: Sequence[tuple[str, str, str]]) -> str:
    words = []
    for name, one, many in names:
        if found.get(f"{name}_at_least"):
            words.append(f"at least {found[name]} {many}")
        elif found.get(name):
            words.append(f"{found[name]} {one if found[name] == 1 else many}")
    return ", ".join(words)


def release_lines(found: Mapping[str, Any]) -> list[str]:
    """What a release sets free: by retention, and at once by the requests that waited for it."""
    told = _counted(found, _FREED) or "no copy, no whole key of the record and no part with a key of its own"
    lines = [f"  kept: {told}; due then, with what was made from them: {found['due']}"]
    for request in found["requests"]:
        lines.append(
            f"  request {request['request']}: {request['erased_at_once']} erased at once, "
            f"{request['awaiting_human']} wait for a human, {request['retained']} stay on another ground"
        )
        lines += [
            f"    {one['copy']}: {one['then']}, also about {one['collateral'].get('subjects', 0)} others"
            for one in request["details"]
            if one["collateral"]
        ]
    return lines


COMMANDS = {"hold": hold}

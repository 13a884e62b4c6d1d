"""`muniment retention`: what reaches its end, letting it, what a person decides, and why an item has its end."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from api.commands.options import client_of, remote, show


@click.group()
def retention() -> None:
    """What is due, and letting it end."""


@retention.command("due")
@click.option("--before", default=None, help="Due before this instant (default now).")
@remote
def due(
    *, before: str | None, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool
) -> int:
    """Lists what is due."""
    query = f"?before={quote(before, safe='')}" if before else ""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = client.request("GET", f"/v1/retention/due{query}")
    items = found.get("items", [])
    lines = [
        f"{item.get('ends_at') or '-':<28} {item.get('data_class', ''):<20} "
        f"{item.get('store', ''):<16} {item.get('rule', ''):<16} {item.get('id') or item.get('artifact', '')}"
        for item in items
    ]
    show(found, as_json=as_json, lines=lines or ["nothing is due"])
    return 0


@retention.command("run")
@click.option("--dry-run", is_flag=True, help="Count only.")
@click.option("--at", default=None, help="As if it were this instant; later than now only with --dry-run.")
@remote
def run(
    *,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    at: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Starts a run of retention."""
    body: dict[str, object] = {"dry_run": dry_run} | ({"at": at} if at else {})
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = client.request("POST", "/v1/retention/runs", body)
    lines = [f"run {found.get('id')}: {found.get('state')}"]
    lines += [f"  {name}: {n}" for name, n in (found.get("counts") or {}).items()]
    show(found, as_json=as_json, lines=lines)
    return 0


@retention.command("explain")
@click.argument("item")
@click.option("--at", default=None, help="As if it were this instant.")
@click.option("--trigger", type=click.Choice(["retention", "request"]), default="retention", show_default=True)
@remote
def explain(
    *,
    item: str,
    at: str | None,
    trigger: str,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Says what would happen to an artifact or `entry:ID` and which rule decides."""
    which = {"entry": item.removeprefix("entry:")} if item.startswith("entry:") else {"artifact": item}
    body = which | {"trigger": trigger} | ({"at": at} if at else {})
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = client.request("POST", "/v1/decide", body)
    lines = [f"{found['action']} by rule {found['rule']}" + (f" until {found['until']}" if found.get("until") else "")]
    lines += [f"  {step['rule']}: {step['result']} {step.get('detail') or ''}".rstrip() for step in found["because"]]
    show(found, as_json=as_json, lines=lines)
    return 0


@retention.command("runs")
@remote
def runs(*, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool) -> int:
    """Lists runs; one that a brake stopped waits for `retention approve`."""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = list(client.pages("/v1/retention/runs"))
    lines = [f"{one['id']}  {one['state']:<18} {one.get('brake') or ''}".rstrip() for one in found]
    show({"items": found}, as_json=as_json, lines=lines or ["no run"])
    return 0


def _verb(name: str, text: str) -> None:
    def call(*, run_id: str, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool) -> int:
        with client_of(data=data, url=url, token=token, tenant=tenant) as client:
            found = client.request("POST", f"/v1/retention/runs/{quote(run_id, safe='')}/{name}")
        show(found, as_json=as_json, lines=[f"run {run_id}: {found['state']}"])
        return 0

    retention.add_command(click.command(name, help=text)(click.argument("run_id")(remote(call))))


_verb("approve", "Lets a run go on that a brake stopped, as another person than who started it.")
_verb("stop", "Ends a run that waits for approval; the next one looks again.")


@retention.command("reviews")
@click.option("--quarantined", is_flag=True, help="What passes could not end and set aside.")
@remote
def reviews(
    *, quarantined: bool, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool
) -> int:
    """Lists items whose class ends in a human's decision."""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = list(client.pages("/v1/dispositions" + ("?state=quarantined" if quarantined else "")))
    lines = [
        f"{one['id']}  {one.get('data_class', '')}  {one.get('artifact') or one.get('key') or ''}" for one in found
    ]
    show({"items": found}, as_json=as_json, lines=lines or ["nothing waits for a decision"])
    return 0


@retention.command("decide")
@click.argument("disposition")
@click.argument("decision", type=click.Choice(["erase", "extend", "reclassify"]))
@click.option("--until", default=None, help="With extend: until when (RFC 3339).")
@click.option("--data-class", default=None, help="With reclassify: the other class.")
@click.option("--comment", required=True, help="Why; sealed.")
@remote
def decide(
    *,
    disposition: str,
    decision: str,
    until: str | None,
    data_class: str | None,
    comment: str,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Decides about an item under review, or in quarantine, where `erase` tries it again."""
    given = {"decision": decision, "until": until, "data_class": data_class, "comment": comment}
    body = {key: value for key, value in given.items() if value is not None}
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = client.request("POST", f"/v1/dispositions/{quote(disposition, safe='')}", body)
    show(found, as_json=as_json, lines=[f"{disposition}: {found.get('state', decision)}"])
    return 0


COMMANDS = {"retention": retention}

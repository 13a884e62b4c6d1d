"""`muniment retention`: what reaches its end, letting it, what a person decides, and why an item has its end."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from api.commands.options import Listed, client_of, remote, show
from api.commands.terminal import columns


@click.group(cls=Listed)
def retention() -> None:
    """What is due, and letting it end."""


@retention.command("due")
@click.option("--before", default=None, help="Due before this instant (default now).")
@click.option("--limit", type=click.IntRange(1), default=1_000, show_default=True, help="How many at most.")
@remote
def due(
    *, before: str | None, limit: int, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool
) -> int:
    """Lists what is due, and whether it ends or waits for a review."""
    query = f"?before={quote(before, safe='')}" if before else ""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = list(islice(client.pages(f"/v1/retention/due{query}"), limit + 1))
    items, more = found[:limit], len(found) > limit
    shown = ("data_class", "store", "action", "rule", "id")
    lines = columns([(item["ends_at"] or "-", *(str(item[name]) for name in shown)) for item in items])
    lines += [f"and more: --limit shows them, `muniment retention run --dry-run{_at(before)}` counts them"] * more
    show({"items": items, "more": more}, as_json=as_json, lines=lines or ["nothing is due"])
    return 0


def _at(before: str | None) -> str:
    return f" --at {before}" if before else ""


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
    show(found, as_json=as_json, lines=run_lines(found))
    return 0


def run_lines(found: Mapping[str, Any]) -> list[str]:
    """A run in lines: what it counts, what keeps things, why it waits and what to do, what went wrong."""
    lines = [f"run {found['id']}: {found['state']}"]
    lines += [f"  {name}: {n}" for name, n in found["counts"].items()]
    lines += [f"  kept by {rule}: {n}" for rule, n in found["kept"].items()]
    if found["capped"]:
        lines.append("  capped: what is due beyond it is the next run's")
    return [*lines, *(f"  {line}" for line in _brake_lines(found)), *_alarm_lines(found)]


def _brake_lines(found: Mapping[str, Any]) -> list[str]:
    """Why a run was stopped, and what to do."""
    brake = found.get("brake")
    return [f"{brake['reason']}: {brake['detail']}", f"to do: {brake['todo']}"] if brake else []


def _alarm_lines(found: Mapping[str, Any]) -> list[str]:
    return [f"  alarm: {found['alarm']}"] if found.get("alarm") else []


@retention.command("report")
@click.argument("run_id")
@remote
def report(*, run_id: str, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool) -> int:
    """Shows what a run did, what failed, what is in quarantine, and how old each class can become."""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = client.request("GET", f"/v1/retention/runs/{quote(run_id, safe='')}/report")
    failed = [copy for copy in found["copies"] if copy["state"] in ("failed", "unreachable", "not_covered")]
    lines = run_lines(found)
    lines += [f"  {copy['state']}: {copy.get('artifact') or copy.get('key')} in {copy['store']}: {copy['detail'] or ''}"
              for copy in failed]  # fmt: skip
    lines += [
        f"  in quarantine: {one.get('artifact') or one.get('key')} in {one['store']}, {one['disposition']}, decide by "
        f"{one['decide_by']}: {one['detail'] or ''}"
        for one in found["quarantine"]
    ]
    lines += [
        f"  {name}: {'no maximum age, a person decides' if days is None else f'at most {days} days old'}"
        for name, days in found["maximum_age_days"].items()
    ]
    show(found, as_json=as_json, lines=[line.rstrip() for line in lines])
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
    waits = "until" if found["action"] in ("keep", "restrict") else "since"
    lines = [f"{found['action']} by rule {found['rule']}" + (f" {waits} {found['until']}" if found["until"] else "")]
    lines += [f"  {step['rule']}: {step['result']} {step.get('detail') or ''}".rstrip() for step in found["because"]]
    show(found, as_json=as_json, lines=lines)
    return 0


@retention.command("runs")
@remote
def runs(*, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool) -> int:
    """Lists runs; one that a brake stopped waits for `retention approve`."""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = list(client.pages("/v1/retention/runs"))
    lines = [
        line.rstrip()
        for one in found
        for line in (
            f"{one['id']}  {one['at'] or '-':<28} {one['state']:<18} {one['counts'].get('removed', 0)} removed",
            *(f"  {text}" for text in _brake_lines(one) if one["state"] == "awaiting_approval"),
            *_alarm_lines(one),
        )
    ]
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
        f"{one['id']}  {one['data_class']}  {one.get('artifact') or one.get('key') or ''}  "
        f"{'OVERDUE since' if one['overdue'] else 'decide by'} {one['due_at']}"
        for one in found
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

"""`muniment inventory`: every class and store with what is missing, worst first, as a table or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from api.commands.options import client_of, remote, show
from api.commands.terminal import columns, width_of_stdout
from registry.gaps import REMEDIES

_HEADS = ("CLASS", "OWNER", "STATE", "LIVE", "KEEP", "SCOPE", "UPDATE", "REPLAY", "GAPS")
_NUMBERS = frozenset({3})


@click.command()
@click.option("--inspect", is_flag=True, help="Look into the content of a sample first (an entry of the record).")
@click.option("--sample", default=50, show_default=True, help="How many items of each class in each store.")
@remote
def inventory(
    *, inspect: bool, sample: int, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool
) -> int:
    """Shows classes and stores with their gaps; exit 1 while there is one."""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        looked = client.request("POST", "/v1/inventory:inspect", {"sample": sample}) if inspect else None
        found = client.request("GET", "/v1/inventory")
    lines = [*class_lines(found["classes"], width_of_stdout()), ""]
    stores = [(one["name"], one["kind"], one["level"] or "—", _gaps(one)) for one in found["stores"]]
    lines += columns([("STORE", "KIND", "LEVEL", "GAPS"), *stores])
    if looked is not None:
        lines += [f"not looked at: {one['store']} ({one['because']})" for one in looked["not_looked_at"]]
    lines.append(f"{found['gaps']} gaps; content inspected: {found.get('content_inspected_at') or 'never (--inspect)'}")
    seen = {gap for one in (*found["classes"], *found["stores"]) for gap in one["gaps"]}
    lines += [f"  {gap}: {remedy}" for gap, remedy in REMEDIES.items() if gap in seen]
    show(found if looked is None else {**found, "inspection": looked}, as_json=as_json, lines=lines)
    return 1 if found["gaps"] else 0


def class_lines(classes: list[dict[str, Any]], width: int | None) -> list[str]:
    """The classes as a table; where it does not fit, half of each stands in a line below."""
    rows = [
        (
            one["name"],
            one["owner"] or "—",
            one["state"],
            str(one["live"]),
            one["keep"],
            _whom(one["scope"]),
            one["update_authority"],
            one["replay"],
            _gaps(one),
        )
        for one in classes
    ]
    lines = columns([_HEADS, *rows], right=_NUMBERS)
    if width is None or max(map(len, lines)) <= width:
        return lines
    head, *lines = columns([(*row[:5], row[-1]) for row in (_HEADS, *rows)], right=_NUMBERS)
    below = [f"    about {whom}; update: {update}; replay: {replay}" for *_, whom, update, replay, _ in rows]
    return [head, *(line for pair in zip(lines, below, strict=True) for line in pair)]


def _whom(scope: dict[str, Any]) -> str:
    """Whom a class is about."""
    return ", ".join(scope["subject_types"]) or ("anybody" if scope["personal"] else "nobody")


def _gaps(one: dict[str, object]) -> str:
    counts = one.get("counts")
    named = counts if isinstance(counts, dict) else {}
    gaps = one["gaps"]
    listed = gaps if isinstance(gaps, list) else []
    return ", ".join(f"{gap} ({named[gap]})" if gap in named else str(gap) for gap in listed) or "none"


COMMANDS = {"inventory": inventory}

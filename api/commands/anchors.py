"""`muniment anchor` offers the checkpoint to the anchors now; `muniment witness` witnesses somebody else's log."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from api.commands.options import CannotRun, client_of, remote, show

WITNESS = Path(__file__).resolve().parents[2] / "infra" / "witness.py"
"""The one file that a second party runs; it imports nothing of ours."""


@click.command("anchor")
@remote
def anchor(data: Path, tenant: str | None, token: str | None, url: str | None, *, as_json: bool) -> int:
    """Offers the newest checkpoint to every anchor of ANCHORS; exit 1 when one has seen another history."""
    from api import folder  # noqa: PLC0415 - needs POSIX locks, which `muniment witness --help` does not

    if url or folder.is_locked(data.expanduser().absolute()):
        with client_of(data=data, url=url, token=token, tenant=tenant) as client:
            made: dict[str, Any] = client.request("POST", "/v1/log/anchors", {})
    else:
        made = _offer_here(data, tenant)
    show(made, as_json=as_json, lines=_lines(made))
    states = {item["state"] for item in made["items"]}
    if "refused" in states:
        return 1
    return 0 if states == {"anchored"} else 2


def _offer_here(data: Path, tenant: str | None) -> dict[str, Any]:
    from api.administration import DEFAULT_TENANT  # noqa: PLC0415 - the service is heavy, and only this branch needs it
    from api.anchoring import anchors_view  # noqa: PLC0415 - as above
    from api.commands.opening import opened  # noqa: PLC0415 - as above

    name = tenant or DEFAULT_TENANT
    with opened(data) as services:
        known = {acting.tenant: acting for acting in services.tenants()}
        if name not in known:
            message = f"no tenant {name}: muniment tenant list shows them"
            raise CannotRun(message)
        return anchors_view(services.anchoring.offer(known[name].tenant_id, services.clock.now()))


def _lines(made: dict[str, Any]) -> list[str]:
    lines = [f"{item['state']:9} size {item['size']}  {item['anchor']}  {item['detail']}" for item in made["items"]]
    return [*(line.rstrip() for line in lines), *([made["statement"]] if made["statement"] else [])]


@click.command("witness", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def witness(arguments: tuple[str, ...]) -> int:
    """Witnesses somebody else's log: --key FILE --state FOLDER --origin ORIGIN=VKEY --port PORT.

    The arguments go to infra/witness.py, the one file that a second party can run without the rest.
    """
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(WITNESS), *arguments])  # noqa: S606 - no shell, our own interpreter


COMMANDS = {"anchor": anchor, "witness": witness}

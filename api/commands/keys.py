"""`muniment key rotate`: through the running server as an admin, else on the folder itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from api import folder
from api.commands.options import CannotRun, Listed, client_of, remote, show

if TYPE_CHECKING:
    from api.anchoring import Use


@click.group(cls=Listed)
def key() -> None:
    """Keys of the log and of certificates."""


@key.command("rotate")
@click.argument("use", type=click.Choice(["log", "certificate"]))
@click.option("--revoke", is_flag=True, help="End every earlier key now: it was stolen, or may have been.")
@remote
def rotate(
    *, use: str, revoke: bool, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool
) -> int:
    """Gives the log or the certificates a new key; prints it, to be pinned."""
    if url or folder.is_locked(data.expanduser().absolute()):
        with client_of(data=data, url=url, token=token, tenant=tenant) as client:
            made: dict[str, Any] = client.request("POST", "/v1/log/keys", {"use": use, "revoke": revoke})
    else:
        made = _rotate_here(data, tenant, cast("Use", use), revoke=revoke)
    show(made, as_json=as_json, lines=_lines(made))
    return 0


def _rotate_here(data: Path, tenant: str | None, use: Use, *, revoke: bool) -> dict[str, Any]:
    # The service is heavy, and only this branch needs it.
    from api.administration import DEFAULT_TENANT  # noqa: PLC0415
    from api.anchoring import rotate_key  # noqa: PLC0415
    from api.commands.opening import opened  # noqa: PLC0415

    tenant = tenant or DEFAULT_TENANT
    with opened(data) as services:
        known = {acting.tenant: acting for acting in services.tenants()}
        if tenant not in known:
            message = f"no tenant {tenant}: muniment tenant list shows them"
            raise CannotRun(message)
        return rotate_key(services, known[tenant], use, revoke=revoke).as_json()


def _lines(made: dict[str, Any]) -> list[str]:
    word = "revoked after" if made["revoked"] else "signs along after" if made["use"] == "log" else "ended at"
    lines = [f"new {made['use']} key  {made['vkey']}"]
    lines += [f"old key {word} size {made['size']}  {vkey}" for vkey in made["old"]]
    if made["use"] == "log":
        lines.append("give the new key to everybody who pinned the old one, and to the operators of your witnesses")
    return lines


COMMANDS = {"key": key}

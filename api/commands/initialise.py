"""`muniment init`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from api.commands.options import local, show

if TYPE_CHECKING:
    from api.administration import NewTenant


@click.command("init")
@local("The tenant to make; without, one named default.")
def init(data: Path, tenant: str | None, *, as_json: bool) -> int:
    """Makes the data folder, database, keys, a tenant, its starter classes and tokens; prints the tokens once."""
    # The service is heavy, and --help needs none of it.
    from api import folder  # noqa: PLC0415
    from api.administration import DEFAULT_TENANT, create_tenant  # noqa: PLC0415
    from api.commands.opening import opened  # noqa: PLC0415

    place = data.expanduser().absolute()
    name = tenant or DEFAULT_TENANT
    if folder.is_initialised(place):
        show(
            {"tenant": name, "changed": False},
            as_json=as_json,
            lines=[f"{place} is initialised already; nothing was changed"],
        )
        return 0
    with opened(data, create=True) as services:
        known = {acting.tenant for acting in services.tenants()}
        made = None if name in known else create_tenant(services, name)
        folder.mark_initialised(services.settings.data)
    if made is None:
        show({"tenant": name, "changed": False}, as_json=as_json, lines=[f"tenant {name} exists already"])
        return 0
    show(made.as_json(), as_json=as_json, lines=lines_of(made, place))
    return 0


def lines_of(made: NewTenant, place: Path | None = None) -> list[str]:
    """What a person reads when a tenant was made."""
    lines = [] if place is None else [f"data     {place}", f"keys     {place}.keys (back them up elsewhere)"]
    lines += [f"tenant   {made.tenant}", f"log key  {made.log_key}", f"certificate key  {made.certificate_key}", ""]
    lines += ["tokens, shown this once:"]
    lines += [f"  {principal:<9} {token}" for principal, token in made.tokens.items()]
    if place is not None:
        lines += ["", f"next: muniment serve --data {place}"]
    return lines


COMMANDS = {"init": init}

"""`muniment tenant …`: through the running server as an admin of the first tenant, else on the folder itself."""

from __future__ import annotations

from pathlib import Path

import click

from api import folder
from api.commands.initialise import lines_of
from api.commands.later import not_built
from api.commands.options import Listed, client_of, remote, show


@click.group(cls=Listed)
def tenant() -> None:
    """Tenants of this deployment."""


@tenant.command("create")
@click.argument("name")
@remote
def create(
    *,
    name: str,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Makes a tenant with its log, keys, classes and tokens; prints the tokens once."""
    from api.administration import NewTenant, create_tenant  # noqa: PLC0415 - the service is heavy; --help needs none
    from api.commands.opening import opened  # noqa: PLC0415 - as above

    if url or folder.is_locked(data.expanduser().absolute()):
        with client_of(data=data, url=url, token=token, tenant=tenant) as client:
            made = NewTenant(**client.request("POST", "/v1/tenants", {"name": name}))
    else:
        with opened(data) as services:
            made = create_tenant(services, name)
    show(made.as_json(), as_json=as_json, lines=lines_of(made))
    return 0


@tenant.command("list")
@remote
def list_(data: Path, tenant: str | None, token: str | None, url: str | None, *, as_json: bool) -> int:
    """Lists the tenants."""
    from api.commands.opening import opened  # noqa: PLC0415 - the service is heavy, and --help needs none of it

    if url or folder.is_locked(data.expanduser().absolute()):
        with client_of(data=data, url=url, token=token, tenant=tenant) as client:
            names = [item["name"] for item in client.pages("/v1/tenants")]
    else:
        with opened(data) as services:
            names = [acting.tenant for acting in services.tenants()]
    show({"tenants": names}, as_json=as_json, lines=names)
    return 0


tenant.add_command(not_built("export", "tenant export"))
tenant.add_command(not_built("delete", "tenant delete"))
COMMANDS = {"tenant": tenant}

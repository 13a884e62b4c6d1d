"""`muniment token …`: through the running server as an admin, else on the folder itself."""

from __future__ import annotations

from pathlib import Path

import click

from api import folder
from api.commands.options import CannotRun, Listed, client_of, remote, show


@click.group(cls=Listed)
def token() -> None:
    """Bearer tokens."""


@token.command("create")
@click.option("--role", "roles", multiple=True, required=True, help="writer, platform, legal, auditor or admin.")
@click.option("--principal", required=True, help="The person or service that the token names.")
@click.option("--store", "stores", multiple=True, default=("*",), help="Store the token may use (default all).")
@click.option("--class", "classes", multiple=True, default=("*",), help="Class the token may use (default all).")
@remote
def create(
    *,
    roles: tuple[str, ...],
    principal: str,
    stores: tuple[str, ...],
    classes: tuple[str, ...],
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Mints a token and prints it once."""
    wanted = {"principal": principal, "roles": list(roles), "stores": list(stores), "classes": list(classes)}
    if url or folder.is_locked(data.expanduser().absolute()):
        with client_of(data=data, url=url, token=token, tenant=tenant) as client:
            answer = client.request("POST", "/v1/tokens", wanted)
            tenant = client.request("GET", "/v1/tokens/self")["tenant"]
        made = {"tenant": tenant, "id": answer["id"], "principal": principal, "token": answer["token"]}
    else:
        made = _create_here(data=data, tenant=tenant, principal=principal, roles=roles, stores=stores, classes=classes)
    show(made, as_json=as_json, lines=[f"token of {principal}, shown this once: {made['token']}"])
    return 0


def _create_here(
    *,
    data: Path,
    tenant: str | None,
    principal: str,
    roles: tuple[str, ...],
    stores: tuple[str, ...],
    classes: tuple[str, ...],
) -> dict[str, str | None]:
    # The whole service is imported only where there is no server to ask.
    from api.administration import DEFAULT_TENANT, mint_token  # noqa: PLC0415
    from api.commands.opening import opened  # noqa: PLC0415

    tenant = tenant or DEFAULT_TENANT
    with opened(data) as services:
        known = {acting.tenant: acting for acting in services.tenants()}
        if tenant not in known:
            message = f"no tenant {tenant}: muniment tenant list shows them"
            raise CannotRun(message)
        secret, row = mint_token(
            services, known[tenant].tenant_id, principal=principal, roles=roles, stores=stores, classes=classes
        )
    return {"tenant": tenant, "id": row.token_id, "principal": principal, "token": secret}


@token.command("list")
@remote
def list_(data: Path, tenant: str | None, token: str | None, url: str | None, *, as_json: bool) -> int:
    """Lists the tenant's tokens without their secrets."""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        items = list(client.pages("/v1/tokens"))
    lines = [
        f"{item['id']}  {item['principal']:<20} {','.join(item['roles'])}{'  revoked' if item['revoked_at'] else ''}"
        for item in items
    ]
    show({"tokens": items}, as_json=as_json, lines=lines)
    return 0


@token.command("revoke")
@click.argument("token_id")
@remote
def revoke(
    *,
    token_id: str,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Ends a token at once."""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        client.request("DELETE", f"/v1/tokens/{token_id}")
    show({"id": token_id, "revoked": True}, as_json=as_json, lines=[f"token {token_id} is revoked"])
    return 0


COMMANDS = {"token": token}

"""`muniment controller`: who answers for the data, as certificates and letters name it."""

from __future__ import annotations

from pathlib import Path

import click

from api.commands.options import Listed, client_of, remote, show

_WORDS = {
    "name": "name",
    "contact": "contact",
    "dpo": "data protection officer",
    "complaint_body": "complaint body",
    "timezone": "time zone",
    "jurisdiction": "jurisdiction",
}


@click.group("controller", cls=Listed)
def controller() -> None:
    """Who answers for the data."""


@controller.command("set")
@click.option("--name", required=True, help="The organisation, as papers name it.")
@click.option("--contact", required=True, help="Where people reach it.")
@click.option("--dpo", default=None, help="The data protection officer's address.")
@click.option("--complaint-body", default=None, help="The supervisory authority that letters name.")
@click.option("--timezone", default="UTC", show_default=True, help="Where its legal days begin, such as Europe/Berlin.")
@click.option("--jurisdiction", default=None, help="Whose holidays and languages count, such as DE-BY.")
@remote
def set_controller(
    *,
    name: str,
    contact: str,
    dpo: str | None,
    complaint_body: str | None,
    timezone: str,
    jurisdiction: str | None,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Says who the controller is; needs the token of the platform team or of an administrator."""
    given = {"name": name, "contact": contact, "dpo": dpo, "complaint_body": complaint_body, "timezone": timezone}
    body = {key: value for key, value in {**given, "jurisdiction": jurisdiction}.items() if value is not None}
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = client.request("PUT", "/v1/settings/controller", body)
    show(found, as_json=as_json, lines=[f"papers name {found['name']} from now on"])
    return 0


@controller.command("show")
@remote
def show_controller(*, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool) -> int:
    """Shows who the controller is."""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = client.request("GET", "/v1/settings/controller")
    lines = [f"{_WORDS[key]}: {found[key]}" for key in _WORDS if found.get(key)]
    show(found, as_json=as_json, lines=lines or ["nobody said so yet: muniment controller set --name … --contact …"])
    return 0


COMMANDS = {"controller": controller}

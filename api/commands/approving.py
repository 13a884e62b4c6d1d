"""`muniment approve`: another person says yes to exactly the plan that is shown.

What an erasure takes from others is named, and has to be accepted by name: by `--accept-collateral` or in the terminal.
A plan that no longer covers what is there is refused with the step that comes next.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from api.commands.failures import explain
from api.commands.options import CannotRun, client_of, remote, show
from api.commands.requests import path_of
from api.commands.terminal import say
from api.commands.watching import collateral_lines, exit_code, next_of, plan_lines, watch_request
from muniment.errors import ApiProblem
from muniment.registry import Client


@click.command("approve")
@click.argument("request_id")
@click.option("--plan-hash", default=None, help="Approve only this plan (default: the present one, shown first).")
@click.option("--accept-collateral", is_flag=True, help="Yes, although others lose something by it.")
@click.option("--watch", is_flag=True, help="Wait for the end, or until somebody has to act.")
@remote
def approve(
    *,
    request_id: str,
    plan_hash: str | None,
    accept_collateral: bool,
    data: Path,
    tenant: str | None,
    token: str | None,
    url: str | None,
    watch: bool,
    as_json: bool,
) -> int:
    """Approves a planned request as another person than its creator."""
    path = path_of(request_id)
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        try:
            _approve(client, path, plan_hash, accept_collateral=accept_collateral, as_json=as_json)
        except ApiProblem as problem:
            if problem.type != "/problems/stale-plan":
                raise
            say(f"muniment: {explain(problem)[0]}\nnext: muniment request plan {request_id}", err=True)
            return 1
        state = watch_request(client, request_id) if watch else client.request("GET", path)
    lines = [f"request {request_id}: {state['state']}", *(next_of(state) if watch else [])]
    show(state, as_json=as_json, lines=lines)
    return exit_code(state, watched=watch)


def _approve(client: Client, path: str, plan_hash: str | None, *, accept_collateral: bool, as_json: bool) -> None:
    """Show the plan and say yes to it. Raises: CannotRun, ApiProblem."""
    right = client.request("GET", path)["right"]
    plan = client.request("GET", f"{path}/plan")
    for line in plan_lines(plan, right=right):
        say(line, err=as_json)
    told = collateral_lines(plan, right=right)
    if told and not accept_collateral:
        _ask(told)
    client.request("POST", f"{path}/approve", {"plan_hash": plan_hash or plan["hash"]})


def _ask(told: list[str]) -> None:
    """Let a person at a terminal accept it; anybody else has to say so by the option. Raises: CannotRun."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        if click.confirm(f"{told[0].strip()}; approve it all the same?", default=False, err=True):
            return
        message = "not approved"
        raise CannotRun(message)
    message = f"not approved: {told[0].strip()}; look at the plan, then pass --accept-collateral"
    raise CannotRun(message)


COMMANDS = {"approve": approve}

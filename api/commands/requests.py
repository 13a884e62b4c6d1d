"""`muniment request`: a rights request from its receipt on, by the words of the law and of the desk.

Filing a request is one command for each right; the others are thin calls of the verbs in `/v1/requests`. Approving is
`muniment approve` (`api.commands.approving`); papers are `report` and `letter` (`api.commands.papers`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

from api.commands.options import CannotRun, Listed, client_of, remote, show
from api.commands.terminal import columns, say
from api.commands.watching import exit_code, next_of, plan_lines, request_lines, watch_request
from muniment.registry import Client

RIGHTS = {
    "erase": "erasure",
    "access": "access",
    "portability": "portability",
    "rectify": "rectification",
    "restrict": "restriction",
    "object": "objection",
}
_ABOUT = {
    "erasure": "Files a request to erase a person's data.",
    "access": "Files a request for access to a person's data.",
    "portability": "Files a request for a portable copy of a person's data.",
    "rectification": "Files a request to correct a person's data.",
    "restriction": "Files a request to restrict the processing of a person's data.",
    "objection": "Files an objection to the processing of a person's data.",
}
_SETTLED = (
    "erase", "erased", "retained", "failed", "release", "withhold", "corrected", "unchanged", "retry"
)  # fmt: skip
_NOTICES = (
    "acknowledged", "extended", "refused", "answered", "restriction_lifting",
    "recipient_told", "recipient_answered", "recipient_not_told",
)  # fmt: skip


def subjects_of(given: tuple[str, ...]) -> list[str]:
    """The named subjects; `-` reads them from stdin, one a line, so that they are in no process list."""
    found: list[str] = []
    for one in given:
        found += [line.strip() for line in sys.stdin if line.strip()] if one == "-" else [one]
    return found


class _Requests(Listed):
    """A group that also knows the rights by the law's own words."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, also by the right's name: `erasure` is `erase`."""
        short = {right: name for name, right in RIGHTS.items()}
        return super().get_command(ctx, short.get(cmd_name, cmd_name))


@click.group("request", cls=_Requests)
def request() -> None:
    """Files a rights request, and does the desk's work on it."""


def _filing(name: str, right: str) -> click.Command:
    @click.option("--subject", "subjects", multiple=True, required=True, help="`type:value`, or - to read from stdin.")
    @click.option("--regulation", type=click.Choice(["gdpr", "ccpa"]), default="gdpr", show_default=True)
    @click.option("--jurisdiction", default=None, help="Such as DE-BY.")
    @click.option("--timezone", default=None, help="Of the person, such as Europe/Berlin (default: the controller's).")
    @click.option("--conversation", default=None, help="Only this conversation.")
    @click.option("--data-class", "data_classes", multiple=True, help="Only these classes.")
    @click.option(
        "--correct",
        "corrections",
        multiple=True,
        metavar="FIELD=VALUE",
        hidden=right != "rectification",
        help="What a field is to read.",
    )
    @click.option("--identity", "method", default=None, help="How identity was checked; then it is planned too.")
    @click.option("--evidence", default="", help="What was seen; sealed under the request's key.")
    @click.option("--watch", is_flag=True, help="Wait for the end, or until somebody has to act.")
    @remote
    def file(
        *,
        subjects: tuple[str, ...],
        regulation: str,
        jurisdiction: str | None,
        timezone: str | None,
        conversation: str | None,
        data_classes: tuple[str, ...],
        corrections: tuple[str, ...],
        method: str | None,
        evidence: str,
        data: Path,
        tenant: str | None,
        token: str | None,
        url: str | None,
        watch: bool,
        as_json: bool,
    ) -> int:
        people = subjects_of(subjects)
        if right == "rectification" and not corrections:
            message = "nothing to correct: pass --correct FIELD=VALUE, the field and what it is to read"
            raise CannotRun(message)
        body: dict[str, Any] = {"right": right, "subjects": people, "regulation": regulation}
        body |= {"jurisdiction": jurisdiction, "timezone": timezone, "channel": "cli"}
        body |= {"scope": _scope(conversation, data_classes), "corrections": _corrections(corrections)}
        with client_of(data=data, url=url, token=token, tenant=tenant) as client:
            made = client.request("POST", "/v1/requests", {k: v for k, v in body.items() if v is not None})
            state = made if method is None else _plan(client, made["id"], people, method, evidence)
            shown = _shown_plan(client, state)
            if not as_json:
                for line in (f"request {made['id']}: {state['state']}, due {made['due_at']}", *shown):
                    say(line)
            if watch:
                state = watch_request(client, made["id"])
        lines = [f"request {made['id']}: {state['state']}"] if watch else []
        show({**made, **state}, as_json=as_json, lines=[*lines, *next_of(state)])
        return exit_code(state, watched=watch)

    return click.command(name, help=f"{_ABOUT[right]} With --identity also notes the check and plans it.")(file)


for _name, _right in RIGHTS.items():
    request.add_command(_filing(_name, _right))


def _scope(conversation: str | None, data_classes: tuple[str, ...]) -> dict[str, Any] | None:
    if conversation is not None and data_classes:
        message = "--conversation and --data-class exclude each other"
        raise CannotRun(message)
    if conversation is not None:
        return {"conversation": conversation}
    return {"data_classes": list(data_classes)} if data_classes else None


def _corrections(given: tuple[str, ...]) -> dict[str, str] | None:
    if any("=" not in one for one in given):
        message = "--correct needs FIELD=VALUE"
        raise CannotRun(message)
    return dict(one.split("=", 1) for one in given) or None


def _plan(client: Client, request_id: str, people: list[str], method: str, evidence: str) -> dict[str, Any]:
    path = path_of(request_id)
    for person in people:
        check = {"identifier": person, "method": method, "evidence": evidence}
        client.request("POST", f"{path}/verify-identity", check)
    found: dict[str, Any] = client.request("GET", path)
    if found["state"] == "verified":
        client.request("POST", f"{path}/plan", {})
        found = client.request("GET", path)
    return found


def path_of(request_id: str) -> str:
    """The address of a request."""
    return f"/v1/requests/{quote(request_id, safe='')}"


def _shown_plan(client: Client, state: Mapping[str, Any]) -> list[str]:
    if state["state"] != "planned":
        return []
    return plan_lines(client.request("GET", f"{path_of(state['id'])}/plan"), right=state["right"])


def _done(found: Mapping[str, Any], *, as_json: bool) -> int:
    show(found, as_json=as_json, lines=[*request_lines(found), *next_of(found)])
    return 0


@request.command("list")
@click.option("--state", default=None, help="Such as planned or executing.")
@click.option("--right", type=click.Choice(list(RIGHTS.values())), default=None)
@click.option("--due-before", default=None, help="Due before this instant (RFC 3339).")
@remote
def list_requests(
    *, state: str | None, right: str | None, due_before: str | None,
    data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Lists requests, the soonest due first."""
    asked = {"state": state, "right": right, "due_before": due_before}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = sorted(client.pages(f"/v1/requests{'?' + query if query else ''}"), key=lambda one: str(one["due_at"]))
    lines = columns([[str(one[name]) for name in ("due_at", "state", "right", "id")] for one in found])
    show({"items": found}, as_json=as_json, lines=lines or ["no request"])
    return 0


@request.command("show")
@click.argument("request_id")
@remote
def show_request(
    *, request_id: str, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool
) -> int:
    """Shows where a request stands, what it waits for, what it keeps and why, and what to do next."""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        found = client.request("GET", path_of(request_id))
        waiting = [
            copy
            for name in ("awaiting_human", "awaiting_external", "retained", "failed", "unreachable", "not_covered")
            if found["counts"].get(name)
            for copy in client.pages(f"{path_of(request_id)}/copies?state={name}")
        ]
    show({**found, "open_copies": waiting}, as_json=as_json, lines=[*request_lines(found, waiting), *next_of(found)])
    return 0


@request.command("plan")
@click.argument("request_id")
@remote
def plan(*, request_id: str, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool) -> int:
    """Plans a verified request and shows what would happen; nothing is touched."""
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        state = client.request("GET", path_of(request_id))
        if state["state"] in ("verified", "planned"):
            state = client.request("POST", f"{path_of(request_id)}/plan", {})
        found = client.request("GET", f"{path_of(request_id)}/plan") if state["plan_hash"] else state
        lines = plan_lines(found, right=state["right"]) if state["plan_hash"] else request_lines(state)
    show(found, as_json=as_json, lines=[*lines, *next_of(state)])
    return 0


@request.command("verify-identity")
@click.argument("request_id")
@click.option("--subject", "subjects", multiple=True, required=True, help="Whom was checked; - reads from stdin.")
@click.option("--method", required=True, help="How it was checked.")
@click.option("--evidence", default=None, help="What was seen; sealed.")
@remote
def verify_identity(
    *, request_id: str, subjects: tuple[str, ...], method: str, evidence: str | None,
    data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Notes how a person was identified; whom nobody checked stays out of every plan."""
    found: dict[str, Any] = {}
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        for person in subjects_of(subjects):
            check = {"identifier": person, "method": method} | ({"evidence": evidence} if evidence else {})
            found = client.request("POST", f"{path_of(request_id)}/verify-identity", check)
    return _done(found, as_json=as_json)


def _verb(name: str, text: str, *options: Callable[[Any], Any], **renamed: str) -> None:
    """A command that posts its options to the verb of the same name."""

    def call(
        *, request_id: str, data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool,
        **given: Any,
    ) -> int:  # fmt: skip
        body = {renamed.get(key, key): value for key, value in given.items() if value is not None}
        with client_of(data=data, url=url, token=token, tenant=tenant) as client:
            found = client.request("POST", f"{path_of(request_id)}/{name}", body)
        return _done(found, as_json=as_json)

    made = remote(call)
    for option in reversed(options):
        made = option(made)
    request.add_command(click.command(name, help=text)(click.argument("request_id")(made)))


_reason = click.option("--reason", required=True, help="Why; sealed under the request's key.")
_verb("refuse", "Refuses on a ground of the regulation.", click.option("--ground", required=True, help="Its code."))
_verb("extend", "Extends the answer's date once, before it has passed.", _reason)
_verb("pause", "Stops the legal clock for a reason of the regulation.", _reason)
_verb("resume", "Lets the legal clock run again.")
_verb("cancel", "Cancels before the first destructive step.")
_verb("retry", "Tries again what failed.")
_verb("accept-exceptions", "Ends with what failed, as a second person.", _reason)
_verb(
    "notices",
    "Notes what the person, or a recipient, was told; `answered`, or `refused` of one that was, stops the clock.",
    click.option("--kind", type=click.Choice(_NOTICES), required=True),
    click.option("--channel", required=True, help="Such as e-mail."),
    click.option("--sent-at", required=True, help="When (RFC 3339)."),
    click.option("--recipient", help="Which recipient, as `request show` names it."),
    click.option("--answer", help="done, nothing_held, refused; or why it is not told: impossible, disproportionate."),
)


@request.command("settle")
@click.argument("request_id")
@click.argument("copy")
@click.argument("outcome", type=click.Choice(_SETTLED), metavar="OUTCOME")
@click.option("--comment", required=True, help="Why; sealed.")
@remote
def settle(
    *, request_id: str, copy: str, outcome: str, comment: str,
    data: Path, tenant: str | None, token: str | None, url: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Says what becomes of a copy that waits for a human, by its number in `request show`, or of `all` that wait.

    OUTCOME is erase, erased, retained, failed, release, withhold, corrected, unchanged or retry.
    """
    if copy != "all" and not copy.isdecimal():
        message = "COPY is a number of `muniment request show`, or `all` for every copy that waits for a human"
        raise CannotRun(message)
    settled = []
    with client_of(data=data, url=url, token=token, tenant=tenant) as client:
        path = f"{path_of(request_id)}/copies"
        waiting = list(client.pages(f"{path}?state=awaiting_human")) if copy == "all" else [{"copy": int(copy)}]
        for one in waiting:
            body = {"outcome": outcome, "comment": comment}
            settled.append(client.request("POST", f"{path}/{one['copy']}", body))
    lines = [f"copy {one['copy']}: {one['state']}" for one in settled] or ["no copy waits for a human"]
    show(settled[0] if copy != "all" else {"items": settled}, as_json=as_json, lines=lines)
    return 0


COMMANDS = {"request": request}

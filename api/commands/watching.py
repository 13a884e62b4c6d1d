"""How requests and plans are shown in a terminal, and waited for: never in silence, and never for somebody to act.

Guarantees: what others would lose, what is kept and why, and open requests of the same person are lines of their own.
Waiting ends when the request ends, or when only a human can bring it on; then the exit code says so (2).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from api.commands.options import progress
from api.commands.terminal import say
from muniment.registry import Client

DONE = frozenset(
    {
        "completed",
        "completed_with_retained",
        "completed_with_exceptions",
        "no_match",
        "refused",
        "cancelled",
        "duplicate",
        "partially_failed",
    }
)
FAILED = frozenset({"partially_failed"})
_OPEN_COPIES = frozenset({"pending", "running", "awaiting_external", "awaiting_human", "unreachable", "failed"})
_POLL_S = 0.3
_SAY_S = 15.0
"""How often a wait that goes on for one thing is named again."""
_WAITS = {"processes": "of the service's processes to let go of destroyed keys"}
"""What a request can wait for beside copies, in words."""
_FILES = {"erasure": "certificate.pdf", "access": "copy.zip", "portability": "copy.zip"}
"""What `muniment report` writes of a completed request, by its right; of the other rights it writes nothing."""
_RULES = {
    "hold": "a legal hold",
    "restriction": "a restriction of processing",
    "floor": "a legal duty to keep",
    "exemption": "an exemption of its class",
}


def exit_code(state: Mapping[str, Any], *, watched: bool) -> int:
    """1 for what failed, 2 for a wait that ended since somebody has to act, else 0."""
    if state["state"] in FAILED:
        return 1
    return 2 if watched and state["state"] not in DONE else 0


def watch_request(client: Client, request_id: str) -> dict[str, Any]:
    """Returns the request when it has ended or needs somebody; says on stderr what it waits for, when that changes."""
    path = f"/v1/requests/{quote(request_id, safe='')}"
    state: dict[str, Any] = client.request("GET", path)
    said, at = "", time.monotonic()
    total = sum(state.get("counts", {}).values())
    with progress(max(total, 1), f"{request_id} {state['state']}") as bar:
        while state["state"] not in DONE and not needs_somebody(state):
            counts = state.get("counts", {})
            bar.length = max(sum(counts.values()), 1)
            done = sum(n for copy_state, n in counts.items() if copy_state not in _OPEN_COPIES)
            bar.label = f"{request_id} {state['state']}"
            bar.update(done - bar.pos)
            waits = waiting_for(state)
            if waits != said or time.monotonic() - at > _SAY_S:
                said, at = waits, time.monotonic()
                say(f"{request_id} {waits}", err=True)
            time.sleep(_POLL_S)
            state = client.request("GET", path)
        bar.update(bar.length - bar.pos)
    if state["state"] not in DONE:
        say(f"{request_id} {waiting_for(state)}; somebody has to act", err=True)
    return state


def needs_somebody(state: Mapping[str, Any]) -> bool:
    """Whether no machine brings the request on: identity, approval, a human's word on a copy, or a pause."""
    if state["state"] in ("received", "identity_pending", "verified", "planned") or state.get("paused"):
        return True
    waits = set(state.get("waiting_for") or {})
    # While a human is waited for the identity key is pending, and nothing else is once the request is verifying.
    others = {"pending"} if state["state"] == "verifying" else set()
    return "awaiting_human" in waits and waits - others == {"awaiting_human"}


def waiting_for(state: Mapping[str, Any]) -> str:
    """What a request waits for, in words."""
    if state.get("paused"):
        return f"{state['state']}: paused"
    words = {
        "received": "waits for the check of who asks",
        "identity_pending": "waits for the check of who asks",
        "verified": "waits to be planned",
        "planned": "waits for another person's approval",
    }
    if state["state"] in words:
        return f"{state['state']}: {words[state['state']]}"
    waits = ", ".join(f"{n} {_WAITS.get(name, name)}" for name, n in (state.get("waiting_for") or {}).items())
    return f"{state['state']}: waits for {waits or 'the worker'}"


def next_of(state: Mapping[str, Any]) -> list[str]:
    """What to do now, as a command that can be typed."""
    request_id = state.get("id", "")
    if state["state"] in ("received", "identity_pending"):
        command = f"muniment request verify-identity {request_id} --subject TYPE:VALUE --method HOW"
        return [f"next: check who asks, then note it: {command}"]
    if state["state"] == "verified":
        return [f"next: muniment request plan {request_id}"]
    if state["state"] == "planned":
        return [f"next: another person approves it: muniment approve {request_id}"]
    if state.get("paused"):
        return [f"next: muniment request resume {request_id}"]
    if (state.get("waiting_for") or {}).get("awaiting_human"):
        command = f"muniment request settle {request_id} COPY OUTCOME --comment WHY"
        return [f"next: look at the copies that wait (muniment request show {request_id}), then: {command}"]
    if state["state"] == "partially_failed":
        return [f"next: muniment request retry {request_id}, or accept-exceptions as a second person"]
    if state["state"] in DONE - {"cancelled", "duplicate"} and not state.get("answered_at"):
        file = _FILES.get(state.get("right", "")) if state["state"].startswith("completed") else None
        report = [f"muniment report {request_id} -o {file}"] if file else []
        return [f"next: {', '.join([*report, f'muniment letter {request_id} -o letter.pdf'])}"]
    return []


def request_lines(state: Mapping[str, Any], copies: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """A request for a reader: state, dates, counts, warnings, and the copies that are named."""
    lines = [f"request {state['id']}: {state['right']}, {state['state']}, due {state['due_at']}"]
    if state["state"] not in DONE:
        lines.append(f"  {waiting_for(state)}")
    lines += [f"  {n:>5}  {name}" for name, n in (state.get("counts") or {}).items()]
    lines += [f"  warning: {one['detail']}" for one in state.get("warnings") or []]
    lines += [
        f"  copy {copy['copy']}: {copy['state']}, {copy['data_class']} in {copy['store']}{_why(copy)}"
        for copy in copies
    ]
    return lines


def _why(copy: Mapping[str, Any]) -> str:
    told = [why_kept(copy)] if copy["state"] == "retained" else [copy.get("detail") or ""]
    others = (copy.get("collateral") or {}).get("subjects", 0)
    told += [f"about {others} other{'' if others == 1 else 's'} too"] if others else []
    return "".join(f"; {one}" for one in told if one)


def why_kept(copy: Mapping[str, Any]) -> str:
    """By what a copy is kept, with its name and its end."""
    names = [one["detail"] for one in copy["because"] if one["rule"] == copy["rule"] and one["detail"]]
    until = f" until {copy['until']}" if copy.get("until") else ", no end date"
    return f"kept by {_RULES.get(copy['rule'], copy['rule'])} {' '.join(names)}".rstrip() + until


def plan_lines(plan: Mapping[str, Any], *, right: str = "erasure") -> list[str]:
    """A plan for a reader: what happens to how much, what stays and why, and what others lose by it."""
    groups = Counter(
        (
            copy["action"],
            copy["store"],
            copy["data_class"],
            why_kept(copy) if copy["action"] in ("keep", "restrict") else "",
        )
        for copy in plan["copies"]
    )
    lines = [f"plan {plan['hash']}"]
    lines += [
        f"  {action:<10} {n:>5}  {data_class} in {store}{'; ' + why if why else ''}"
        for (action, store, data_class, why), n in sorted(groups.items())
    ]
    lines += [f"  not covered: {item['store']} ({item['why']})" for item in plan.get("not_covered", [])]
    lines += collateral_lines(plan, right=right)
    lines += [f"  warning: {one['detail']}" for one in plan.get("warnings", [])]
    return lines


def collateral_lines(plan: Mapping[str, Any], *, right: str = "erasure") -> list[str]:
    """What an erasure would take from other people; empty where it takes nothing."""
    found = plan.get("collateral") or {}
    if right != "erasure" or not found.get("copies"):
        return []
    copies, people, parts = found["copies"], found.get("subjects", 0), found.get("parts", 0)
    shared = f", with {parts} shared parts of the record" if parts else ""
    are = "is" if copies == 1 else "are"
    return [f"  collateral: {copies} of these {are} also about {people} other {_people(people)}{shared}"]


def _people(count: int) -> str:
    return "person" if count == 1 else "people"

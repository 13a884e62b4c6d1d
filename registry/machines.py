"""Machines: what a stream may do in each phase, declared by a platform team, folded over what really happened.

Guarantees: pure. A machine that passes names its phases, starts in the first, moves along its transitions only, and
gives tools to phases that exist. A tool that is not in a phase's list does not exist there. An entry that breaks the
machine is never refused, because the record keeps what happened: it is named, and a forbidden move moves nothing.
Not here: where the entries come from (`registry.machine_rows`). Source: API §2, practice of state machines.

    >>> step(machine, "identify", Phase("confirm")).violation  # no such transition
    'transition_not_allowed'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from registry.reading import NAME, Faults, Reader, is_list

MAX_PHASES = 100
MAX_TOOLS = 500
TOOL_NOT_ALLOWED = "tool_not_allowed"
TRANSITION_NOT_ALLOWED = "transition_not_allowed"
UNKNOWN_PHASE = "unknown_phase"
NOT_ASKED = "approval_not_asked"
KINDS = ("phase", "tool.call", "approval")
"""Kinds of entries that a machine listens to."""
_TOOL_LIMIT = 128
_YES = frozenset({"approve", "approved", "accept", "accepted", "allow", "allowed", "yes", "true"})
_PAIR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One version of a machine; the first phase is where a stream starts."""

    name: str
    version: int
    phases: tuple[str, ...]
    transitions: frozenset[tuple[str, str]]
    tools: Mapping[str, tuple[str, ...]]
    asks: frozenset[str]
    """Tools that need a human's approval for each call; one given in another phase, or used once, is none."""
    spec: Mapping[str, Any] = field(repr=False)

    @property
    def start(self) -> str:
        """The phase of a stream in which nothing moved yet."""
        return self.phases[0]

    def next_phases(self, phase: str) -> tuple[str, ...]:
        """The phases that can follow, in declared order."""
        return tuple(one for one in self.phases if (phase, one) in self.transitions)

    def allows(self, phase: str, tool: str) -> bool:
        """Whether the tool exists in that phase."""
        return tool in self.tools.get(phase, ())


@dataclass(frozen=True, slots=True)
class Phase:
    """An entry that moves a stream."""

    value: str | None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """An entry that uses tools; empty where nobody can tell which."""

    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Approval:
    """An entry in which a human said yes, or no."""

    given: bool


Event = Phase | ToolCall | Approval


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The phase after an event, the approvals that are left in it, and what the event broke."""

    phase: str
    approvals: int = 0
    violation: str | None = None


def parse_machine(name: str, spec: object, *, version: int = 1) -> Machine:
    """The machine that a declaration names. Raises: InvalidDeclaration with every fault."""
    faults = Faults(f"machine {name if NAME.fullmatch(name) else '?'}")
    if not NAME.fullmatch(name):
        faults.add("/name", f"expected {NAME.pattern}")
    reader = Reader(spec, faults)
    phases = _phases(reader)
    transitions = _transitions(reader, phases)
    tools = _tools(reader, phases)
    asks = _asks(reader, tools)
    reader.done()
    faults.raise_any()
    return Machine(
        name=name,
        version=version,
        phases=phases,
        transitions=transitions,
        tools=tools,
        asks=asks,
        spec=dict(reader.fields),
    )


def step(machine: Machine, phase: str | None, event: Event, *, approvals: int = 0) -> Step:
    """What an event does to a stream. None, and a phase the machine lost since, is the start."""
    now = phase if phase in machine.phases else machine.start
    if isinstance(event, Approval):
        return Step(phase=now, approvals=approvals + 1 if event.given else 0)
    if isinstance(event, ToolCall):
        return _call(machine, now, event, approvals)
    if event.value not in machine.phases:
        return Step(phase=now, approvals=approvals, violation=UNKNOWN_PHASE)
    # The start may be said aloud, and a phase may be said again after a resume or a change of channel.
    if event.value == now:
        return Step(phase=now, approvals=approvals)
    if (now, event.value) in machine.transitions:
        return Step(phase=event.value)
    return Step(phase=now, approvals=approvals, violation=TRANSITION_NOT_ALLOWED)


def _call(machine: Machine, phase: str, event: ToolCall, approvals: int) -> Step:
    """A call uses up one approval for each tool that asks; one whose tool nobody can read is no proof of a breach."""
    if any(not machine.allows(phase, tool) for tool in event.tools):
        return Step(phase=phase, approvals=approvals, violation=TOOL_NOT_ALLOWED)
    needed = sum(tool in machine.asks for tool in event.tools)
    if needed > approvals:
        return Step(phase=phase, approvals=0, violation=NOT_ASKED)
    return Step(phase=phase, approvals=approvals - needed)


def read_event(kind: str, body: bytes) -> Event | None:
    """What an entry says to a machine; None for kinds that say nothing.

    `phase` bodies name it as `value` or `phase`; an `approval` is given unless its body says `approved: false` or a
    `decision` that is no yes; `tool.call` bodies as `tool`, `name`, `function.name`, or as a message
    with `tool_calls`.
    """
    if kind not in KINDS:
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    members = found if isinstance(found, dict) else {}
    if kind == "phase":
        return Phase(_text(members.get("value")) or _text(members.get("phase")))
    if kind == "approval":
        said = members.get("decision", members.get("approved", True))
        return Approval(said is True or (isinstance(said, str) and said.lower() in _YES))
    calls = members.get("tool_calls")
    named = [_tool_of(one) for one in calls] if isinstance(calls, list) else [_tool_of(members)]
    return ToolCall(tuple(tool for tool in named if tool is not None))


def _tool_of(call: object) -> str | None:
    if not isinstance(call, dict):
        return None
    inner = call.get("function") or call.get("function_call")
    # Beside `role`, a `name` is a speaker's.
    name = None if "role" in call else _text(call.get("name"))
    return _text(call.get("tool")) or name or _text(inner.get("name") if isinstance(inner, dict) else inner)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _phases(reader: Reader) -> tuple[str, ...]:
    raw = reader.raw("phases")
    if not is_list(raw) or not 1 <= len(raw) <= MAX_PHASES:
        reader.add("phases", f"expected a list of 1 to {MAX_PHASES} names; the first is where a stream starts")
        return ()
    names = [one for one in raw if isinstance(one, str) and NAME.fullmatch(one)]
    if len(names) != len(raw):
        reader.add("phases", f"expected names matching {NAME.pattern}")
    if len(set(names)) != len(names):
        reader.add("phases", "a phase stands twice")
    return tuple(dict.fromkeys(names))


def _transitions(reader: Reader, phases: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    raw = reader.raw("transitions")
    if not is_list(raw):
        reader.add("transitions", "expected a list of [from, to]; a single phase needs an empty one")
        return frozenset()
    found: set[tuple[str, str]] = set()
    for number, pair in enumerate(raw):
        if not is_list(pair) or len(pair) != _PAIR or not all(one in phases for one in pair):
            reader.faults.add(f"{reader.at('transitions')}/{number}", "expected [from, to] of two declared phases")
            continue
        found.add((pair[0], pair[1]))
    reached, waiting = {phases[0]} if phases else set[str](), list(phases[:1])
    while waiting:
        here = waiting.pop()
        for one, other in found:
            if one == here and other not in reached:
                reached.add(other)
                waiting.append(other)
    if lost := [one for one in phases if one not in reached]:
        reader.add("transitions", f"no way leads from {phases[0]} to {', '.join(lost)}: what happens there never can")
    return frozenset(found)


def _tools(reader: Reader, phases: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    raw = reader.raw("tools")
    if not isinstance(raw, Mapping):
        reader.add("tools", "expected an object: the tools of each phase; a phase that is not named has none")
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for phase, names in raw.items():
        if phase not in phases:
            reader.add("tools", "names a phase that is not declared")
            continue
        if (
            not is_list(names)
            or len(names) > MAX_TOOLS
            or not all(isinstance(one, str) and 0 < len(one) <= _TOOL_LIMIT for one in names)
        ):
            reader.add("tools", f"the tools of a phase are a list of at most {MAX_TOOLS} names")
            continue
        found[phase] = tuple(dict.fromkeys(names))
    return found


def _asks(reader: Reader, tools: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    raw = reader.raw("asks")
    if raw is None:
        return frozenset()
    known = {tool for names in tools.values() for tool in names}
    if not is_list(raw) or not all(isinstance(one, str) and one in known for one in raw):
        reader.add("asks", "expected a list of tools out of those of the phases: each call of them needs an approval")
        return frozenset()
    return frozenset(raw)

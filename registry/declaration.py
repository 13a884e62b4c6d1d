"""Parses the declaration of a data class into a frozen value, and teaches where it refuses.

Guarantees: a class that passes has an owner, a legal basis, a clock that ends, an answer to a request, and no field
that is silently ignored. Pure. Does not decide what a class makes due; that is `retention.decide`.
Source: API §2, DESIGN §5 and §6.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from registry.duration import Duration
from registry.errors import MalformedDuration
from registry.reading import CODE, NAME, Faults, Reader, is_list, parse_instant
from registry.value_schema import UnusableSchema, compile_schema

STATES = ("product", "checkpoint", "conversation", "working", "memory", "record", "file")
CLOCKS = ("created", "observed", "last_activity", "consent")
OPEN_ENDED_CLOCKS = ("last_activity", "consent")
LEVELS = ("L1", "L2", "L3", "key")
ROLES = ("writer", "platform", "legal", "auditor", "admin")
EVENT = re.compile(r"event:[a-z][a-z0-9_.-]{0,58}")
SUBJECT_TYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")

_UNBUILT_FIELDS = {
    "masking": "masking of fields is not built; register the field's own class and erase it",
    "anonymise": "anonymisation of fields is not built; erase, or keep the data as personal",
    "anonymize": "anonymisation of fields is not built; erase, or keep the data as personal",
    "redact": "redaction of single fields is not built; split the content into parts of their own classes",
    "joint": "joint rules are not built; a part of several persons ends with the first of them",
    "key_scope": "keys per scope are not built; keys are per subject, class and month",
}
_UNBUILT_ACTIONS = ("redact", "mask", "anonymise", "anonymize", "pseudonymise", "restrict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """A legal duty to keep: how long, on which basis, and whether the content or only the skeleton."""

    keep: Duration
    basis: str
    covers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What was promised at most: how old an item may become from its registration, and who promised it where."""

    keep: Duration
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """Where a derived copy is made anew: address, reference of the signing secret, and how long it may take."""

    url: str
    secret: str = field(repr=False)
    deadline: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """When a stream of the class becomes idle, may be resumed, and expires."""

    idle: Duration
    resume_within: Duration
    expire: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Decay:
    """How confidence in a memory ages: half-life, and below which value it is asked again or no longer used."""

    half_life: Duration
    reconfirm_below: float
    expire_below: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWrite:
    """What a memory must show when it is registered: a turn it cites, a product write that succeeded before it."""

    cites_turn: bool
    follows_action: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DataClass:
    """One version of a data class, every absent field filled in.

    `keep_from` is a clock of `CLOCKS` or `event:<name>`; `until` of a `retain` rule is an instant, or a duration from
    the same clock. `spec` is the declaration as it was sent.
    """

    name: str
    version: int
    state: str
    personal: bool
    owner: str
    description: str
    legal_basis: str
    categories: tuple[str, ...]
    subject_types: tuple[str, ...]
    purposes: tuple[str, ...]
    keep: Duration
    keep_from: str
    latest: Duration | None
    lock: Duration | None
    then: str
    floor: Floor | None
    ceiling: Ceiling | None
    on_request: str
    required: str
    basis: str | None
    until: datetime | Duration | None
    derived_default: str
    may_outlive_source: bool
    callback: Callback | None
    access_roles: tuple[str, ...]
    access_purposes: tuple[str, ...]
    requires_sources: bool
    aggregate: bool
    session: Session | None
    decay: Decay | None
    schema: Mapping[str, Any] | str | None = field(repr=False)
    write: MemoryWrite | None
    content: str
    """`expected`, or `none`: then what is sent with an entry is not kept, and somebody is told."""
    update_authority: str
    replay: str
    immutability: str
    spec: Mapping[str, Any] = field(repr=False)

    @property
    def event(self) -> str | None:
        """The name of the event that starts the clock, None where the clock is another."""
        return self.keep_from.removeprefix("event:") if self.keep_from.startswith("event:") else None


def parse_class(name: str, spec: object, *, version: int = 1) -> DataClass:
    """The class that a declaration names. Raises: InvalidDeclaration with every fault, NotBuilt. Source: API §2."""
    faults = Faults(f"data class {name if NAME.fullmatch(name) else '?'}")
    if not NAME.fullmatch(name):
        faults.add("/name", f"expected {NAME.pattern}: the name stands in every header and report")
    top = Reader(spec, faults)
    for unbuilt, why in _UNBUILT_FIELDS.items():
        top.not_built(unbuilt, why)
    values = {
        **_identity(top),
        **_retention(top),
        **_erasure(top),
        **_derived(top),
        **_access(top),
        **_behaviour(top),
    }
    top.done()
    _check_together(values, faults)
    faults.raise_any()
    return DataClass(name=name, version=version, spec=dict(top.fields), **values)


def _identity(top: Reader) -> dict[str, Any]:
    return {
        "state": top.choice("state", STATES, required="what kind of agent data this is decides its rules"),
        "personal": top.flag("personal", required="whether it is about people decides whether a subject is demanded"),
        "owner": top.text("owner", required="one clear owner answers for the class; without one nobody fixes it"),
        "description": top.text("description", required="whoever reads a certificate must understand what this is"),
        "legal_basis": top.text("legal_basis", required="processing without a basis is unlawful (GDPR Art. 6)"),
        "categories": top.codes("categories"),
        "subject_types": top.codes("subject_types", pattern=SUBJECT_TYPE),
        "purposes": top.codes("purposes"),
        "requires_sources": top.flag("requires_sources", default=False),
        "aggregate": top.flag("aggregate", default=False),
    }


def _retention(top: Reader) -> dict[str, Any]:
    names = ("keep", "latest", "lock", "floor", "ceiling")
    empty = {"keep_from": "", "then": "", **dict.fromkeys(names)}
    reader = top.inner("retention")
    if reader is None:
        top.add(
            "retention", "missing: a class without an end is kept for ever, which no notice to a person can promise"
        )
        return empty
    for unbuilt, why in _UNBUILT_FIELDS.items():
        reader.not_built(unbuilt, why)
    start = reader.raw("from")
    if not isinstance(start, str) or not (start in CLOCKS or EVENT.fullmatch(start)):
        missing = "missing: " if start is None else ""
        reader.add("from", f"{missing}what starts the clock, one of {', '.join(CLOCKS)}, event:<name>")
        start = ""
    values = {
        "keep": reader.duration("keep", required="how long the content is kept, as ISO 8601 (P90D, P6M)"),
        "keep_from": start,
        "latest": reader.duration("latest"),
        "lock": reader.duration("lock"),
        "then": reader.choice("then", ("erase", "review"), required="what happens at the end"),
        "floor": _floor(reader.inner("floor")),
        "ceiling": _ceiling(reader.inner("ceiling")),
    }
    if (start in OPEN_ENDED_CLOCKS or start.startswith("event:")) and reader.fields.get("latest") is None:
        reader.add("latest", f"missing: a clock from {start} may never start; without a cap the data is kept for ever")
    reader.done()
    return values


def _floor(reader: Reader | None) -> Floor | None:
    if reader is None:
        return None
    keep = reader.duration("for", required="how long the law demands it")
    basis = reader.text("basis", required="which law demands it; a duty without a basis is none")
    covers = reader.choice("covers", ("content", "skeleton"), required="what must stay")
    reader.done()
    return Floor(keep=keep, basis=basis, covers=covers) if keep is not None else None


def _ceiling(reader: Reader | None) -> Ceiling | None:
    if reader is None:
        return None
    keep = reader.duration("for", required="how old an item may become, counted from its registration")
    basis = reader.text("basis", required="who promised it where; whoever is refused an extension must be told")
    reader.done()
    return Ceiling(keep=keep, basis=basis) if keep is not None else None


def _erasure(top: Reader) -> dict[str, Any]:
    empty = {"on_request": "", "required": "L2", "basis": None, "until": None}
    reader = top.inner("erasure")
    if reader is None:
        top.add("erasure", "missing: what a person's request does to this class must be known before data is written")
        return empty
    for unbuilt, why in _UNBUILT_FIELDS.items():
        reader.not_built(unbuilt, why)
    wanted = reader.raw("on_request")
    if wanted in _UNBUILT_ACTIONS:
        faults = reader.faults
        faults.add_not_built(reader.at("on_request"), f"{wanted} is not built; use erase, regenerate or retain")
        action = ""
    else:
        action = reader.choice(
            "on_request", ("erase", "regenerate", "retain"), required="what an erasure request does to an item"
        )
    values = {
        "on_request": action,
        "required": reader.choice("required", LEVELS, default="L2"),
        "basis": reader.text("basis") or None,
        "until": _until(reader),
    }
    if action == "retain":
        if values["basis"] is None:
            reader.add("basis", "missing: keeping against a request needs its ground (GDPR Art. 17(3))")
        if values["until"] is None and reader.fields.get("until") is None:
            reader.add("until", "missing: retained data needs the date of its end, which the certificate prints")
    reader.done()
    return values


def _until(reader: Reader) -> datetime | Duration | None:
    value = reader.raw("until")
    if value is None:
        return None
    text = f"{value}T00:00:00Z" if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) else value
    instant = parse_instant(text)
    if instant is not None:
        return instant
    try:
        return Duration.parse(value if isinstance(value, str) else "")
    except MalformedDuration:
        reader.add("until", "expected a date, an RFC 3339 time, or a duration from the class's clock")
        return None


def _derived(top: Reader) -> dict[str, Any]:
    reader = top.inner("derived")
    if reader is None:
        return {"derived_default": "cascade", "may_outlive_source": False, "callback": None}
    for unbuilt, why in _UNBUILT_FIELDS.items():
        reader.not_built(unbuilt, why)
    default = reader.choice("default", ("cascade", "regenerate", "keep_if_other_sources", "review"), default="cascade")
    callback = _callback(reader.inner("callback"))
    if default == "regenerate" and reader.fields.get("callback") is None:
        reader.add("callback", "missing: regenerate asks the owner of the copy to make it anew; say where and by when")
    values = {
        "derived_default": default,
        "may_outlive_source": reader.flag("may_outlive_source", default=False),
        "callback": callback,
    }
    reader.done()
    return values


def _callback(reader: Reader | None) -> Callback | None:
    if reader is None:
        return None
    url = reader.text("url", required="where the request goes", limit=2048)
    if url and not url.startswith("https://") and not re.match(r"http://(localhost|127\.0\.0\.1)[:/]", url):
        reader.add("url", "expected an https address (plain http only to this machine)")
    secret = reader.text("secret", required="the reference (env:… or file:…) of the key that signs the call", limit=256)
    if secret and not secret.startswith(("env:", "file:")):
        reader.add("secret", "expected a reference env:… or file:…; secrets never stand in a declaration")
    deadline = reader.duration("deadline", required="by when an answer must be there")
    reader.done()
    return Callback(url=url, secret=secret, deadline=deadline) if deadline is not None else None


def _access(top: Reader) -> dict[str, Any]:
    reader = top.inner("access")
    if reader is None:
        return {"access_roles": (), "access_purposes": ()}
    roles = reader.raw("roles")
    if roles is not None and (not is_list(roles) or not all(isinstance(role, str) and role in ROLES for role in roles)):
        reader.add("roles", f"expected a list of roles out of {', '.join(ROLES)}")
        roles = None
    values = {"access_roles": tuple(roles or ()), "access_purposes": reader.codes("purposes", pattern=CODE)}
    reader.done()
    return values


def _behaviour(top: Reader) -> dict[str, Any]:
    session = decay = None
    if (timers := top.inner("session")) is not None:
        idle, resume, expire = (
            timers.duration(name, required="a session needs all three timers")
            for name in ("idle", "resume_within", "expire")
        )
        timers.done()
        if idle is not None and resume is not None and expire is not None:
            session = Session(idle=idle, resume_within=resume, expire=expire)
    if (ageing := top.inner("decay")) is not None:
        half_life = ageing.duration("half_life", required="after which time confidence has halved")
        reconfirm = ageing.share("reconfirm_below", required="below which confidence the memory is asked again")
        expire_below = ageing.share("expire_below", required="below which confidence the memory is no longer used")
        ageing.done()
        if half_life is not None and half_life.is_zero():
            ageing.add("half_life", "expected more than zero")
        if reconfirm is not None and expire_below is not None and expire_below > reconfirm:
            ageing.add("expire_below", "expected at most reconfirm_below: a memory is asked again before it expires")
        if half_life is not None and reconfirm is not None and expire_below is not None:
            decay = Decay(half_life=half_life, reconfirm_below=reconfirm, expire_below=expire_below)
    return {
        "session": session,
        "decay": decay,
        "schema": _schema(top),
        "write": _write(top.inner("write")),
        "content": top.choice("content", ("expected", "none"), default="expected"),
        "update_authority": top.choice("update_authority", ("append-only", "owner", "subject"), default="owner"),
        "replay": top.choice("replay", ("exact", "state", "none"), default="none"),
        "immutability": top.choice("immutability", ("governance", "compliance", "none"), default="none"),
    }


def _schema(top: Reader) -> Mapping[str, Any] | str | None:
    """The JSON Schema that values of the class must fit, or the name of a shipped one."""
    schema: Mapping[str, Any] | str | None = top.raw("schema")
    if schema is None:
        return None
    try:
        compile_schema(schema)
    except UnusableSchema as error:
        # A key of the schema is the platform's own word, not a person's.
        if error.built:
            top.add("schema", f"at {error.place or '/'}: {error.detail}")
        else:
            top.faults.add_not_built(top.at("schema"), f"at {error.place}: {error.detail}")
        return None
    return schema


def _write(reader: Reader | None) -> MemoryWrite | None:
    if reader is None:
        return None
    found = MemoryWrite(
        cites_turn=reader.flag("cites_turn", default=False), follows_action=reader.flag("follows_action", default=False)
    )
    reader.done()
    return found


def _check_together(values: Mapping[str, Any], faults: Faults) -> None:
    """Rules over several fields. Locks are compared by the longest they can last."""
    keep, lock, floor = values["keep"], values["lock"], values["floor"]
    if keep is not None and lock is not None and lock.exceeds(keep):
        faults.add("/retention/lock", "longer than keep: locked bytes would outlive what the notice promises")
    if keep is not None and floor is not None and floor.covers == "content" and floor.keep.exceeds(keep):
        faults.add("/retention/floor/for", "longer than keep: the content would be erased before the law allows it")
    latest = values["latest"]
    if keep is not None and latest is not None and keep.exceeds(latest):
        faults.add("/retention/latest", "shorter than keep: the cap would end every item before its own rule")
    if values["ceiling"] is not None:
        _check_ceiling(values, values["ceiling"].keep, faults)
    if values["aggregate"] and values["derived_default"] != "review":
        faults.add(
            "/derived/default",
            "expected review: what many people went into cannot end by one person's request; a human decides it",
        )
    if values["decay"] is not None and values["state"] != "memory":
        faults.add("/decay", "only classes of state memory age")
    if values["write"] is not None and values["state"] != "memory":
        faults.add("/write", "only classes of state memory say how memories are written")
    if values["schema"] is not None and values["state"] not in ("memory", "conversation"):
        faults.add("/schema", "only values of state memory or conversation (summaries) are checked when registered")


def _check_ceiling(values: Mapping[str, Any], most: Duration, faults: Faults) -> None:
    """What the class promises to keep must fit under what it promises to remove."""
    at = "/retention/ceiling/for"
    keep, latest, floor, until = values["keep"], values["latest"], values["floor"], values["until"]
    ends = keep if latest is None else latest
    if floor is not None and floor.covers == "content" and floor.keep.exceeds(most):
        faults.add(at, f"shorter than the floor ({floor.basis}): the law demands what the ceiling promises to remove")
    elif keep is not None and keep.exceeds(most):
        faults.add(at, "shorter than keep: no item would reach its own rule; shorten keep instead")
    elif latest is not None and latest.exceeds(most):
        faults.add(at, "shorter than latest: the cap would never be reached; shorten latest instead")
    elif values["then"] == "review" and ends is not None and not most.exceeds(ends):
        faults.add(at, "no longer than keep or latest: nobody would have time for the review that `then` asks for")
    if values["on_request"] == "retain" and isinstance(until, Duration) and until.exceeds(most):
        faults.add("/erasure/until", "longer than the ceiling: what is retained against a request ends there as well")

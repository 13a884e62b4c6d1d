"""What callers declare of streams and runs: owner, channel, class, machine, provider ids, checkpoints, outcomes.

Guarantees: the values lie sealed with the name, only the names of fields stand readable; a field not named again
stays. A provider's conversation that is replaced stays in the list of former ones, because its copies are still to be
found. How streams age and runs recover is `registry.sessions`; how a stream moves along a machine is
`registry.machine_rows`. The caller commits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.models import EntryRow
from registry.acting import Acting
from registry.classes import in_force
from registry.errors import MalformedSubject, OutsideTokenScope, UnknownClass, UnknownMachine
from registry.identifiers import Identifier, parse_subject
from registry.keyed import Lookups, Seals, hold_writer
from registry.machines import parse_machine
from registry.models import MachineRow, RunRow, ScopeKey, StreamRow
from registry.reading import NAME, Faults, Reader
from registry.sessions import RUN_ENDED, RUN_STATES, Lifecycle, lifecycle, move_run
from registry.sets import Members, intern_sets, members
from registry.streams import (
    DECLARED,
    NAME_KEY,
    NAME_LIMIT,
    RUN,
    STREAM,
    find_streams,
    open_content,
    open_names,
    run_by_id,
    runs_at,
    runs_for,
    seal_content,
    stream_by_id,
    streams_for,
)
from registry.subjects import fenced, resolve
from registry.working import end_with_run
from vault.vault import Vault

SCOPE_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
SCOPE_KIND = "s"
_SCOPES = 16
_REFS, _FORMER_REFS = "provider_refs", "former_provider_refs"


def put_stream(session: Session, vault: Vault, acting: Acting, spec: object, now: datetime) -> tuple[StreamRow, bool]:
    """A stream as declared, and whether it is new. Source: API §4.

    Raises: InvalidDeclaration, NotBuilt, UnknownClass, OutsideTokenScope.
    """
    faults = Faults("stream")
    reader = Reader(spec, faults)
    name = reader.text("stream", required="the name under which its entries are recorded", limit=NAME_LIMIT)
    owner, data_class, machine, scope, declared = _read_stream(reader)
    faults.raise_any()
    _require_class(session, acting, data_class)
    known = _is_known(session, acting.tenant_id, lambda: find_streams(session, vault, acting.tenant_id, (name,)))
    people = resolve(session, vault, acting, [owner], now) if owner is not None else []
    former = find_streams(session, vault, acting.tenant_id, (name,)).get(name)
    before = frozenset(people) if former is None else _people_of(session, former)
    ref = streams_for(session, vault, acting, {name: people}, now)[name]
    row = stream_by_id(session, acting.tenant_id, ref.stream_id)
    _require_token(acting, row, data_class, joins=not before.issuperset(people))
    row.data_class = data_class or row.data_class
    _take_machine(session, row, machine)
    _put_scope(session, vault, row, scope)
    _declare(session, vault, acting.tenant_id, row, {NAME_KEY: name, DECLARED: declared})
    return row, not known


def patch_stream(
    session: Session, vault: Vault, acting: Acting, stream_id: str, spec: object, *, now: datetime
) -> StreamRow:
    """A stream after a change of some declared fields. Raises: as `put_stream`, UnknownStream."""
    faults = Faults("stream")
    reader = Reader(spec, faults)
    owner, data_class, machine, scope, declared = _read_stream(reader)
    faults.raise_any()
    row = stream_by_id(session, acting.tenant_id, stream_id)
    _require_class(session, acting, data_class)
    former = _people_of(session, row)
    people = former | frozenset(resolve(session, vault, acting, [owner], now) if owner is not None else ())
    _require_token(acting, row, data_class, joins=people != former)
    if people != former:
        row.set_id = intern_sets(session, acting.tenant_id, (people,), now)[people]
    row.data_class = data_class or row.data_class
    row.last_activity_at = max(now, row.last_activity_at)
    _take_machine(session, row, machine)
    _put_scope(session, vault, row, scope)
    _declare(session, vault, acting.tenant_id, row, {DECLARED: declared})
    return row


def lifecycles(session: Session, tenant_id: int, rows: Sequence[StreamRow], now: datetime) -> dict[int, Lifecycle]:
    """Where each stream stands by the timers of its class: active, resumable, idle or expired."""
    known = in_force(session, tenant_id)
    found: dict[int, Lifecycle] = {}
    for row in rows:
        data_class = None if row.data_class is None else known.get(row.data_class)
        timers = None if data_class is None else data_class.session
        found[row.stream_no] = lifecycle(timers, row.last_activity_at, now)
    return found


def put_run(session: Session, vault: Vault, acting: Acting, spec: object, now: datetime) -> tuple[RunRow, bool]:
    """A run as declared, and whether it is new. Raises: InvalidDeclaration, OutsideTokenScope. Source: API §4."""
    faults = Faults("run")
    reader = Reader(spec, faults)
    name = reader.text("run", required="the name under which its entries are recorded", limit=NAME_LIMIT)
    declared = _read_run(reader)
    faults.raise_any()
    tenant_id = acting.tenant_id
    lookup = Lookups(vault, tenant_id).of(RUN, name)
    known = _is_known(session, tenant_id, lambda: runs_at(session, tenant_id, {lookup: name}))
    people: tuple[int, ...] = ()
    if stream := declared.get("stream"):
        people = streams_for(session, vault, acting, {str(stream): ()}, now)[str(stream)].members
    ref = runs_for(session, vault, acting, {name: people}, now)[name]
    row = run_by_id(session, tenant_id, ref.run_id)
    _declare_run(session, vault, acting, row, {NAME_KEY: name, DECLARED: declared}, now=now)
    return row, not known


def patch_run(session: Session, vault: Vault, acting: Acting, run_id: str, spec: object, *, now: datetime) -> RunRow:
    """A run after a change of some declared fields. Raises: InvalidDeclaration, UnknownRun, OutsideTokenScope."""
    faults = Faults("run")
    declared = _read_run(Reader(spec, faults))
    faults.raise_any()
    row = run_by_id(session, acting.tenant_id, run_id)
    _declare_run(session, vault, acting, row, {DECLARED: declared}, now=now)
    return row


def _is_known(session: Session, tenant_id: int, look: Callable[[], Mapping[Any, Any]]) -> bool:
    """Whether it is there; where it is not, nobody else makes it before this transaction ends."""
    if look():
        return True
    hold_writer(session, tenant_id)
    return bool(look())


def _read_stream(
    reader: Reader,
) -> tuple[Identifier | None, str | None, str | None, dict[str, str], dict[str, Any]]:
    owner = None
    if (text := reader.raw("owner")) is not None:
        try:
            owner = parse_subject(text)
        except MalformedSubject as error:
            reader.add("owner", error.detail)
    machine = reader.code("machine", pattern=NAME)
    data_class = reader.text("data_class", limit=64) or None
    declared = {
        "channel": reader.text("channel", limit=128) or None,
        "summary_version": _short(reader, "summary_version"),
        "provider_refs": _plain(reader, "provider_refs"),
    }
    scope = _read_scope(reader)
    reader.done()
    return owner, data_class, machine, scope, {name: value for name, value in declared.items() if value is not None}


def _read_scope(reader: Reader) -> dict[str, str]:
    """What the stream belongs to (`{"role": "role-14"}`), as artifacts say it: events and holds find it by that."""
    scope = reader.raw("scope")
    if scope is None:
        return {}
    if (
        not isinstance(scope, Mapping)
        or not 0 < len(scope) <= _SCOPES
        or not all(
            isinstance(name, str)
            and SCOPE_NAME.fullmatch(name)
            and isinstance(value, str)
            and 0 < len(value) <= NAME_LIMIT
            for name, value in scope.items()
        )
    ):
        reader.add("scope", f"expected an object of 1 to {_SCOPES} names (lower case) and texts")
        return {}
    return dict(scope)


def _put_scope(session: Session, vault: Vault, row: StreamRow, scope: Mapping[str, str]) -> None:
    """Let the stream be found by these scopes too; what was said before stays."""
    lookups = Lookups(vault, row.tenant_id)
    wanted = {lookups.scope(name, value) for name, value in scope.items()}
    known = set(
        session.scalars(
            sa.select(col(ScopeKey.lookup)).where(
                col(ScopeKey.tenant_id) == row.tenant_id,
                col(ScopeKey.kind) == SCOPE_KIND,
                col(ScopeKey.item) == row.stream_no,
            )
        )
    )
    for lookup in sorted(wanted - known):
        session.add(ScopeKey(tenant_id=row.tenant_id, lookup=lookup, kind=SCOPE_KIND, item=row.stream_no))


def _take_machine(session: Session, row: StreamRow, name: str | None) -> None:
    """Let a stream follow a machine from here on: what it did before is not judged. Raises: UnknownMachine."""
    if name is None or name == row.machine:
        return
    newest = session.exec(
        select(MachineRow)
        .where(MachineRow.tenant_id == row.tenant_id, MachineRow.name == name)
        .order_by(sa.desc("version"))
        .limit(1)
    ).first()
    if newest is None:
        raise UnknownMachine(name)
    last = session.scalar(
        sa.select(sa.func.max(col(EntryRow.position))).where(
            col(EntryRow.tenant_id) == row.tenant_id, col(EntryRow.stream_no) == row.stream_no
        )
    )
    row.machine, row.phase, row.approvals = name, parse_machine(name, newest.spec).start, 0
    row.phase_position = -1 if last is None else int(last)


def _read_run(reader: Reader) -> dict[str, Any]:
    declared: dict[str, Any] = {name: _short(reader, name) for name in ("stream", "actor", "workflow", "step",
                                                                        "checkpoint_ref")}  # fmt: skip
    declared["status"] = reader.choice("status", RUN_STATES) or None
    for name in ("product_refs", "budgets", "versions", "last_outcome"):
        declared[name] = _plain(reader, name)
    reader.done()
    return {name: value for name, value in declared.items() if value is not None}


def _short(reader: Reader, name: str) -> str | int | None:
    value = reader.fields.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        reader.raw(name)
        return value
    return reader.text(name, limit=NAME_LIMIT) or None


def _plain(reader: Reader, name: str) -> Any:
    """A JSON value of bounded size; it is sealed, never read."""
    value = reader.raw(name)
    if value is None:
        return None
    try:
        size = len(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        reader.add(name, "expected plain JSON")
        return None
    if size > 16_384:  # noqa: PLR2004 - generous for references, far below what bloats a row
        reader.add(name, f"{size} bytes of JSON, expected at most 16384")
        return None
    return value


def _require_class(session: Session, acting: Acting, data_class: str | None) -> None:
    if data_class is None:
        return
    if data_class not in in_force(session, acting.tenant_id):
        raise UnknownClass(data_class)
    if not acting.may_use_class(data_class):
        raise OutsideTokenScope("class", data_class)


def _people_of(session: Session, row: StreamRow) -> Members:
    return members(session, row.tenant_id, (row.set_id,))[row.set_id]


def _require_token(acting: Acting, row: StreamRow, wanted: str | None, *, joins: bool) -> None:
    """Only who carries a stream's class gives it another one, or makes what is said there somebody else's too."""
    if row.data_class is None or acting.may_use_class(row.data_class):
        return
    if joins or wanted not in {None, row.data_class}:
        raise OutsideTokenScope("class", row.data_class)


def _declare(session: Session, vault: Vault, tenant_id: int, row: StreamRow | RunRow, content: dict[str, Any]) -> None:
    """Merge what is declared into the sealed content of a row; what was forgotten is not written again."""
    label, opaque = (STREAM, row.stream_id) if isinstance(row, StreamRow) else (RUN, row.run_id)
    seals = Seals(session, vault, tenant_id)
    former = open_content(seals, row.holder_no, label, opaque, row.sealed)
    merged = former | content
    merged[DECLARED] = _keep_former_refs(former.get(DECLARED, {}), content.get(DECLARED, {}))
    closed = fenced(session, tenant_id, (row.holder_no,))
    holder = seals.holder(number for number in (row.holder_no,) if number not in closed)
    row.sealed = seal_content(seals, holder, label, opaque, merged)
    row.holder_no = holder
    # Only which fields were declared stands readable; their values may name people.
    row.declared = {"fields": sorted(merged[DECLARED]), **_readable(merged[DECLARED], row)}
    session.add(row)
    session.flush()


def _keep_former_refs(before: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """What is declared after a change; a provider's conversation that was lost is replaced, never forgotten."""
    merged = {**before, **said}
    known = before.get(_REFS)
    if known and _REFS in said and said[_REFS] != known:
        merged[_FORMER_REFS] = [*before.get(_FORMER_REFS, []), known]
    return merged


def _readable(declared: Mapping[str, Any], row: StreamRow | RunRow) -> dict[str, Any]:
    """What of a declaration may stand readable: counts and reasons of ours."""
    if isinstance(row, StreamRow):
        generation = len(declared.get(_FORMER_REFS, [])) + (1 if declared.get(_REFS) else 0)
        return {"provider_generation": generation}
    because = row.declared.get("because")
    return {} if because is None else {"because": because}


def _declare_run(
    session: Session, vault: Vault, acting: Acting, row: RunRow, content: dict[str, Any], *, now: datetime
) -> None:
    tenant_id = acting.tenant_id
    said = content.get(DECLARED, {})
    known = open_names(session, vault, tenant_id, [row])[row.run_id].declared
    moved = move_run(row.status, said.get("status"), has_checkpoint="checkpoint_ref" in {**known, **said})
    row.declared = {**row.declared, "because": moved.because}
    if moved.status is not None:
        row.status = moved.status
        content = {**content, DECLARED: {**said, "status": moved.status}}
        if said.get("status") is not None:
            row.ended_at = now if moved.status in RUN_ENDED else None
    _declare(session, vault, tenant_id, row, content)
    if row.ended_at == now and moved.status in RUN_ENDED:
        name = content.get(NAME_KEY) or open_names(session, vault, tenant_id, [row])[row.run_id].name
        if name is not None:
            end_with_run(session, vault, acting, name, now)

"""Streams, runs and recorders: a caller's names mapped to the random ids that stand in headers.

Guarantees: a name is found by its keyed look-up; its readable form and all a caller declares in free form lie sealed
under the identity key of the stream's first person (the tenant's own where there is none), so both go with that key.
Get-or-create is one look-up per batch and safe against other writers. The caller commits.
A provider's conversation that is replaced stays in the list of former ones: its copies are still to be found. How
streams age and runs recover is `registry.sessions`; how a stream moves along a machine is `registry.machine_rows`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.models import EntryRow
from registry.acting import Acting
from registry.classes import in_force
from registry.errors import MalformedSubject, UnknownClass, UnknownMachine, UnknownRun, UnknownStream
from registry.identifiers import Identifier, parse_subject
from registry.ids import new_id, random_hex
from registry.keyed import NOBODY, Lookups, Seals, canonical_json, chunks, hold_writer
from registry.machines import parse_machine
from registry.models import MachineRow, RecorderRow, RunRow, StreamRow
from registry.reading import NAME, Faults, Reader
from registry.sessions import RUN_ENDED, RUN_STATES, Lifecycle, lifecycle, move_run
from registry.sets import intern_sets, members
from registry.subjects import fenced, resolve
from vault.vault import Vault

NAME_LIMIT = 512
_STREAM, _RUN = "stream", "run"
_NAME, _DECLARED = "name", "declared"
_REFS, _FORMER_REFS = "provider_refs", "former_provider_refs"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRef:
    """A stream as a batch uses it. `closed` are those of its members that are fenced or erased."""

    stream_no: int
    stream_id: str
    set_id: int
    members: tuple[int, ...]
    closed: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRef:
    """A run as a batch uses it."""

    run_no: int
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a caller called a stream or run and declared of it, opened; None once it was forgotten."""

    name: str | None = field(repr=False)
    declared: Mapping[str, Any] = field(repr=False)


def streams_for(
    session: Session,
    vault: Vault,
    acting: Acting,
    people: Mapping[str, Collection[int]],
    now: datetime,
    *,
    data_class: Mapping[str, str] | None = None,
) -> dict[str, StreamRef]:
    """Each named stream, made where it is new; its people grow by those given, its activity is now.

    `data_class` names the class of a stream that has none yet.
    """
    tenant_id = acting.tenant_id
    lookups = Lookups(vault, tenant_id)
    hashes = {lookups.of(_STREAM, name): name for name in people}
    rows = _streams(session, tenant_id, hashes)
    if len(rows) < len(hashes):
        hold_writer(session, tenant_id)
        rows = _streams(session, tenant_id, hashes)
    former = members(session, tenant_id, {row.set_id for row in rows.values()})
    everyone = {
        lookup: frozenset(people[name]) | (former[rows[lookup].set_id] if lookup in rows else frozenset())
        for lookup, name in hashes.items()
    }
    sets = intern_sets(session, tenant_id, everyone.values(), now)
    named = frozenset[int]().union(*everyone.values())
    closed = frozenset(fenced(session, tenant_id, named))
    seals = Seals(session, vault, tenant_id)
    found: dict[str, StreamRef] = {}
    new = {lookup for lookup in hashes if lookup not in rows}
    seals.prepare({min(everyone[lookup] - closed, default=NOBODY) for lookup in new})
    for lookup, name in hashes.items():
        row = rows.get(lookup)
        if row is None:
            holder = seals.holder(sorted(everyone[lookup] - closed))
            stream_id = random_hex()
            row = StreamRow(
                tenant_id=tenant_id,
                stream_no=new_id(now),
                lookup=lookup,
                stream_id=stream_id,
                sealed=_seal(seals, holder, _STREAM, stream_id, {_NAME: name}),
                holder_no=holder,
                created_at=now,
                last_activity_at=now,
            )
        row.set_id = sets[everyone[lookup]]
        row.data_class = row.data_class or (data_class or {}).get(name)
        row.last_activity_at = max(now, row.last_activity_at)
        session.add(row)
        found[name] = _ref(row, everyone[lookup], closed)
    session.flush()
    return found


def _ref(row: StreamRow, everyone: frozenset[int], closed: frozenset[int]) -> StreamRef:
    return StreamRef(
        stream_no=row.stream_no,
        stream_id=row.stream_id,
        set_id=row.set_id,
        members=tuple(sorted(everyone)),
        closed=everyone & closed,
    )


def runs_for(
    session: Session, vault: Vault, acting: Acting, people: Mapping[str, Collection[int]], now: datetime
) -> dict[str, RunRef]:
    """Each named run, made where it is new; its name is sealed for the first of the people given."""
    tenant_id = acting.tenant_id
    lookups = Lookups(vault, tenant_id)
    hashes = {lookups.of(_RUN, name): name for name in people}
    rows = _runs(session, tenant_id, hashes)
    if len(rows) < len(hashes):
        hold_writer(session, tenant_id)
        rows = _runs(session, tenant_id, hashes)
        new = {lookup: frozenset(people[name]) for lookup, name in hashes.items() if lookup not in rows}
        named = frozenset[int]().union(*new.values())
        closed = frozenset(fenced(session, tenant_id, named))
        seals = Seals(session, vault, tenant_id)
        seals.prepare({min(owners - closed, default=NOBODY) for owners in new.values()})
        for lookup, owners in new.items():
            holder = seals.holder(sorted(owners - closed))
            run_id = random_hex()
            rows[lookup] = RunRow(
                tenant_id=tenant_id,
                run_no=new_id(now),
                lookup=lookup,
                run_id=run_id,
                sealed=_seal(seals, holder, _RUN, run_id, {_NAME: hashes[lookup]}),
                holder_no=holder,
                created_at=now,
            )
            session.add(rows[lookup])
        session.flush()
    return {name: RunRef(run_no=rows[lookup].run_no, run_id=rows[lookup].run_id) for lookup, name in hashes.items()}


def recorders_for(session: Session, vault: Vault, acting: Acting, names: Collection[str]) -> dict[str, str]:
    """The random id of each recorder, made where it is new. A recorder is a program: its name is kept nowhere."""
    tenant_id = acting.tenant_id
    lookups = Lookups(vault, tenant_id)
    hashes = {lookups.of("recorder", name): name for name in names}
    rows = _recorders(session, tenant_id, hashes)
    if len(rows) < len(hashes):
        hold_writer(session, tenant_id)
        rows = _recorders(session, tenant_id, hashes)
        for lookup in hashes:
            if lookup not in rows:
                rows[lookup] = RecorderRow(tenant_id=tenant_id, lookup=lookup, recorder_id=random_hex())
                session.add(rows[lookup])
        session.flush()
    return {name: rows[lookup].recorder_id for lookup, name in hashes.items()}


def find_streams(session: Session, vault: Vault, tenant_id: int, names: Sequence[str]) -> dict[str, StreamRow]:
    """The rows of those named streams that exist; makes none."""
    lookups = Lookups(vault, tenant_id)
    hashes = {lookups.of(_STREAM, name): name for name in names}
    return {hashes[lookup]: row for lookup, row in _streams(session, tenant_id, hashes).items()}


def stream_by_id(session: Session, tenant_id: int, stream_id: str) -> StreamRow:
    """The stream of an opaque id. Raises: UnknownStream."""
    row = session.exec(
        select(StreamRow).where(StreamRow.tenant_id == tenant_id, StreamRow.stream_id == stream_id)
    ).first()
    if row is None:
        raise UnknownStream
    return row


def run_by_id(session: Session, tenant_id: int, run_id: str) -> RunRow:
    """The run of an opaque id. Raises: UnknownRun."""
    row = session.exec(select(RunRow).where(RunRow.tenant_id == tenant_id, RunRow.run_id == run_id)).first()
    if row is None:
        raise UnknownRun
    return row


def open_names(session: Session, vault: Vault, tenant_id: int, rows: Sequence[StreamRow | RunRow]) -> dict[str, Names]:
    """What callers called these streams or runs and declared of them, by opaque id."""
    seals = Seals(session, vault, tenant_id)
    seals.load(row.holder_no for row in rows)
    found = {}
    for row in rows:
        label, opaque = (_STREAM, row.stream_id) if isinstance(row, StreamRow) else (_RUN, row.run_id)
        content = _open(seals, row.holder_no, label, opaque, row.sealed)
        found[opaque] = Names(name=content.get(_NAME), declared=content.get(_DECLARED, {}))
    return found


def forget_names(session: Session, tenant_id: int, subject_no: int) -> int:
    """Remove the sealed names and declarations that were held for a person; the number removed. Idempotent."""
    removed = 0
    for model in (StreamRow, RunRow):
        done = session.connection().execute(
            sa.update(model)
            .where(
                col(model.tenant_id) == tenant_id, col(model.holder_no) == subject_no, col(model.sealed).is_not(None)
            )
            .values(sealed=None)
        )
        removed += done.rowcount
    session.expire_all()
    return removed


def put_stream(session: Session, vault: Vault, acting: Acting, spec: object, now: datetime) -> tuple[StreamRow, bool]:
    """A stream as declared, and whether it is new. Source: API §4.

    Raises: InvalidDeclaration, NotBuilt, UnknownClass.
    """
    faults = Faults("stream")
    reader = Reader(spec, faults)
    name = reader.text("stream", required="the name under which its entries are recorded", limit=NAME_LIMIT)
    owner, data_class, machine, declared = _read_stream(reader)
    faults.raise_any()
    _require_class(session, acting, data_class)
    known = bool(find_streams(session, vault, acting.tenant_id, (name,)))
    people = resolve(session, vault, acting, [owner], now) if owner is not None else []
    ref = streams_for(session, vault, acting, {name: people}, now)[name]
    row = stream_by_id(session, acting.tenant_id, ref.stream_id)
    row.data_class = data_class or row.data_class
    _take_machine(session, row, machine)
    _declare(session, vault, acting.tenant_id, row, {_NAME: name, _DECLARED: declared})
    return row, not known


def patch_stream(
    session: Session, vault: Vault, acting: Acting, stream_id: str, spec: object, *, now: datetime
) -> StreamRow:
    """A stream after a change of some declared fields. Raises: as `put_stream`, UnknownStream."""
    faults = Faults("stream")
    reader = Reader(spec, faults)
    owner, data_class, machine, declared = _read_stream(reader)
    faults.raise_any()
    row = stream_by_id(session, acting.tenant_id, stream_id)
    _require_class(session, acting, data_class)
    if owner is not None:
        former = members(session, acting.tenant_id, (row.set_id,))[row.set_id]
        people = former | frozenset(resolve(session, vault, acting, [owner], now))
        row.set_id = intern_sets(session, acting.tenant_id, (people,), now)[people]
    row.data_class = data_class or row.data_class
    row.last_activity_at = max(now, row.last_activity_at)
    _take_machine(session, row, machine)
    _declare(session, vault, acting.tenant_id, row, {_DECLARED: declared})
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
    """A run as declared, and whether it is new. Raises: InvalidDeclaration. Source: API §4."""
    faults = Faults("run")
    reader = Reader(spec, faults)
    name = reader.text("run", required="the name under which its entries are recorded", limit=NAME_LIMIT)
    declared = _read_run(reader)
    faults.raise_any()
    tenant_id = acting.tenant_id
    known = bool(_runs(session, tenant_id, {Lookups(vault, tenant_id).of(_RUN, name): name}))
    people: tuple[int, ...] = ()
    if stream := declared.get("stream"):
        people = streams_for(session, vault, acting, {str(stream): ()}, now)[str(stream)].members
    ref = runs_for(session, vault, acting, {name: people}, now)[name]
    row = run_by_id(session, tenant_id, ref.run_id)
    _declare_run(session, vault, tenant_id, row, {_NAME: name, _DECLARED: declared}, now=now)
    return row, not known


def patch_run(session: Session, vault: Vault, acting: Acting, run_id: str, spec: object, *, now: datetime) -> RunRow:
    """A run after a change of some declared fields. Raises: InvalidDeclaration, UnknownRun."""
    faults = Faults("run")
    declared = _read_run(Reader(spec, faults))
    faults.raise_any()
    row = run_by_id(session, acting.tenant_id, run_id)
    _declare_run(session, vault, acting.tenant_id, row, {_DECLARED: declared}, now=now)
    return row


def _read_stream(reader: Reader) -> tuple[Identifier | None, str | None, str | None, dict[str, Any]]:
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
    reader.done()
    return owner, data_class, machine, {name: value for name, value in declared.items() if value is not None}


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
    if data_class is not None and data_class not in in_force(session, acting.tenant_id):
        raise UnknownClass(data_class)


def _declare(session: Session, vault: Vault, tenant_id: int, row: StreamRow | RunRow, content: dict[str, Any]) -> None:
    """Merge what is declared into the sealed content of a row; what was forgotten is not written again."""
    label, opaque = (_STREAM, row.stream_id) if isinstance(row, StreamRow) else (_RUN, row.run_id)
    seals = Seals(session, vault, tenant_id)
    former = _open(seals, row.holder_no, label, opaque, row.sealed)
    merged = former | content
    merged[_DECLARED] = _keep_former_refs(former.get(_DECLARED, {}), content.get(_DECLARED, {}))
    closed = fenced(session, tenant_id, (row.holder_no,))
    holder = seals.holder(number for number in (row.holder_no,) if number not in closed)
    row.sealed = _seal(seals, holder, label, opaque, merged)
    row.holder_no = holder
    # Only which fields were declared stands readable; their values may name people.
    row.declared = {"fields": sorted(merged[_DECLARED]), **_readable(merged[_DECLARED], row)}
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
    session: Session, vault: Vault, tenant_id: int, row: RunRow, content: dict[str, Any], *, now: datetime
) -> None:
    said = content.get(_DECLARED, {})
    known = open_names(session, vault, tenant_id, [row])[row.run_id].declared
    moved = move_run(row.status, said.get("status"), has_checkpoint="checkpoint_ref" in {**known, **said})
    row.declared = {**row.declared, "because": moved.because}
    if moved.status is not None:
        row.status = moved.status
        content = {**content, _DECLARED: {**said, "status": moved.status}}
        if said.get("status") is not None:
            row.ended_at = now if moved.status in RUN_ENDED else None
    _declare(session, vault, tenant_id, row, content)


def _seal(seals: Seals, holder: int, label: str, opaque: str, content: Mapping[str, Any]) -> bytes:
    return seals.seal(holder, label, opaque, canonical_json(content))


def _open(seals: Seals, holder: int, label: str, opaque: str, sealed: bytes | None) -> dict[str, Any]:
    opened = seals.open(holder, label, opaque, sealed)
    return {} if opened is None else dict(json.loads(opened))


def _streams(session: Session, tenant_id: int, hashes: Mapping[bytes, str]) -> dict[bytes, StreamRow]:
    found: dict[bytes, StreamRow] = {}
    for chunk in chunks(sorted(hashes)):
        query = select(StreamRow).where(col(StreamRow.tenant_id) == tenant_id, col(StreamRow.lookup).in_(chunk))
        found.update((row.lookup, row) for row in session.exec(query))
    return found


def _runs(session: Session, tenant_id: int, hashes: Mapping[bytes, str]) -> dict[bytes, RunRow]:
    found: dict[bytes, RunRow] = {}
    for chunk in chunks(sorted(hashes)):
        query = select(RunRow).where(col(RunRow.tenant_id) == tenant_id, col(RunRow.lookup).in_(chunk))
        found.update((row.lookup, row) for row in session.exec(query))
    return found


def _recorders(session: Session, tenant_id: int, hashes: Mapping[bytes, str]) -> dict[bytes, RecorderRow]:
    found: dict[bytes, RecorderRow] = {}
    for chunk in chunks(sorted(hashes)):
        query = select(RecorderRow).where(col(RecorderRow.tenant_id) == tenant_id, col(RecorderRow.lookup).in_(chunk))
        found.update((row.lookup, row) for row in session.exec(query))
    return found

"""Machines as versioned rows, and streams that follow them.

Guarantees: the highest version of a machine is in force for every stream that names it. The phase of a stream is a fold
over its entries from the one after it took the machine: each entry counts once, in the order of the stream, whoever
stored it, and what a crash left behind is caught up by the next entry. A breach is a row and an announcing event in the
same transaction; neither holds a text of a caller. The rules are `registry.machines`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger.entry import Kind
from ledger.head import Transactions
from ledger.log import Log
from ledger.models import EntryRow
from registry.acting import Acting
from registry.errors import UnknownMachine, UnknownStream
from registry.machines import KINDS, Event, Machine, parse_machine, read_event, step
from registry.models import MachineRow, MachineViolation, StreamRow
from registry.playback import ReadEntry, read_entries
from registry.streams import find_streams
from vault.vault import Vault

PAGE = 1_000
_ATTEMPTS = 3
Announce = Callable[[Session, int, Kind, Mapping[str, Any], datetime], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """An entry that says something to its stream's machine."""

    idx: int
    entry_id: str
    position: int
    event: Event | None
    """None where nobody can read it any more: it moves nothing and breaks nothing."""


def put_machine(session: Session, acting: Acting, name: str, spec: object, now: datetime) -> tuple[Machine, bool]:
    """The machine in force after the declaration, and whether a version was made. Raises: InvalidDeclaration."""
    wanted = parse_machine(name, spec)
    row = _newest(session, acting.tenant_id, name)
    if row is not None and row.spec == dict(wanted.spec):
        return parse_machine(name, row.spec, version=row.version), False
    version = 1 if row is None else row.version + 1
    session.add(
        MachineRow(
            tenant_id=acting.tenant_id,
            name=name,
            version=version,
            spec=dict(wanted.spec),
            created_at=now,
            created_by=acting.principal,
        )
    )
    session.flush()
    return parse_machine(name, wanted.spec, version=version), True


def get_machine(session: Session, tenant_id: int, name: str) -> Machine:
    """The machine in force. Raises: UnknownMachine."""
    row = _newest(session, tenant_id, name)
    if row is None:
        raise UnknownMachine(name)
    return parse_machine(name, row.spec, version=row.version)


def stalls(session: Session, tenant_id: int, name: str) -> dict[str, int]:
    """How many streams stand in each phase of a machine now."""
    rows = session.execute(
        sa.select(col(StreamRow.phase), sa.func.count().label("n"))
        .where(col(StreamRow.tenant_id) == tenant_id, col(StreamRow.machine) == name)
        .group_by(col(StreamRow.phase))
    )
    return {str(phase): int(count) for phase, count in rows}


def violations(
    session: Session, tenant_id: int, name: str, *, after: int = -1, limit: int = 50
) -> tuple[list[dict[str, Any]], int | None]:
    """Entries that broke a machine, in the order of the record, and where the next page starts."""
    rows = session.execute(
        sa.select(MachineViolation, col(StreamRow.stream_id))
        .join(
            StreamRow,
            sa.and_(
                col(StreamRow.tenant_id) == col(MachineViolation.tenant_id),
                col(StreamRow.stream_no) == col(MachineViolation.stream_no),
            ),
        )
        .where(
            col(MachineViolation.tenant_id) == tenant_id,
            col(MachineViolation.machine) == name,
            col(MachineViolation.idx) > after,
        )
        .order_by(col(MachineViolation.idx))
        .limit(limit + 1)
    ).all()
    lines = [
        {
            "entry": row.entry_id,
            "index": row.idx,
            "stream": stream_id,
            "violation": row.violation,
            "phase": row.phase,
            "version": row.machine_version,
            "at": row.at,
        }
        for row, stream_id in rows[:limit]
    ]
    return lines, rows[limit - 1][0].idx if len(rows) > limit else None


def allowed_tools(session: Session, vault: Vault, acting: Acting, stream: str) -> dict[str, Any]:
    """What a stream may do now: its phase, the tools of that phase, the phases that can follow.

    A stream without a machine has none of these: null, which is not the same as an empty list.
    Raises: UnknownStream, UnknownMachine.
    """
    row = find_streams(session, vault, acting.tenant_id, (stream,)).get(stream)
    if row is None:
        raise UnknownStream
    if row.machine is None:
        return {"id": row.stream_id, "machine": None, "version": None, "phase": None, "tools": None, "next": None,
                "asks": None, "approvals": None}  # fmt: skip
    machine = get_machine(session, acting.tenant_id, row.machine)
    phase = row.phase if row.phase in machine.phases else machine.start
    return {
        "id": row.stream_id,
        "machine": machine.name,
        "version": machine.version,
        "phase": phase,
        "tools": list(machine.tools.get(phase, ())),
        "next": list(machine.next_phases(phase)),
        "asks": sorted(machine.asks.intersection(machine.tools.get(phase, ()))),
        "approvals": row.approvals,
    }


class Follower:
    """Moves streams along their machines as entries are stored."""

    def __init__(self, *, vault: Vault, log: Log, transactions: Transactions, announce: Announce) -> None:
        self._vault = vault
        self._log = log
        self._transactions = transactions
        self._announce = announce

    def follow(self, tenant_id: int, streams: Mapping[int, Mapping[str, bytes]], now: datetime) -> None:
        """Bring these streams up to their newest entry; `streams` has the bodies that are at hand, by entry id.

        Safe to call again, and by several processes: the one that finds the stream where it read it goes on.
        """
        for _ in range(_ATTEMPTS):
            with self._transactions(tenant_id, write=False) as session:
                rows = list(
                    session.exec(
                        select(StreamRow).where(
                            StreamRow.tenant_id == tenant_id,
                            col(StreamRow.stream_no).in_(sorted(streams)),
                            col(StreamRow.machine).is_not(None),
                        )
                    )
                )
                seen = {row.stream_no: row.phase_position for row in rows}
                told = {row.stream_no: self._told(session, row, streams[row.stream_no]) for row in rows}
            told = {stream_no: found for stream_no, found in told.items() if found}
            if not told:
                return
            with self._transactions(tenant_id) as session:
                for stream_no, found in sorted(told.items()):
                    self._apply(session, tenant_id, stream_no, seen[stream_no], found, now=now)

    def _told(self, session: Session, row: StreamRow, bodies: Mapping[str, bytes]) -> list[_Told]:
        """What stands after the last entry that counted, a page at most."""
        rows = list(
            session.exec(
                select(EntryRow)
                .where(
                    EntryRow.tenant_id == row.tenant_id,
                    EntryRow.stream_no == row.stream_no,
                    EntryRow.position > row.phase_position,
                    col(EntryRow.kind).in_(KINDS),
                )
                .order_by(col(EntryRow.position))
                .limit(PAGE)
            )
        )
        missing = [one for one in rows if str(UUID(bytes=one.entry_id)) not in bodies]
        read = {
            entry.row.idx: _body_of(entry)
            for entry in read_entries(session, self._vault, self._log, row.tenant_id, missing)
        }
        found = []
        for one in rows:
            entry_id = str(UUID(bytes=one.entry_id))
            body = bodies[entry_id] if entry_id in bodies else read.get(one.idx)
            event = None if body is None else read_event(one.kind, body)
            found.append(_Told(idx=one.idx, entry_id=entry_id, position=one.position, event=event))
        return found

    def _apply(
        self, session: Session, tenant_id: int, stream_no: int, seen: int, told: Sequence[_Told], *, now: datetime
    ) -> None:
        row = session.get_one(StreamRow, (tenant_id, stream_no), with_for_update=True, populate_existing=True)
        if row.machine is None or row.phase_position != seen or _newest(session, tenant_id, row.machine) is None:
            return
        machine = get_machine(session, tenant_id, row.machine)
        for one in told:
            if one.event is not None:
                after = step(machine, row.phase, one.event, approvals=row.approvals)
                if after.violation is not None:
                    self._breach(session, row, machine, one, phase=after.phase, violation=after.violation, now=now)
                row.phase, row.approvals = after.phase, after.approvals
            row.phase_position = one.position
        session.add(row)
        session.flush()

    def _breach(
        self,
        session: Session,
        row: StreamRow,
        machine: Machine,
        told: _Told,
        *,
        phase: str,
        violation: str,
        now: datetime,
    ) -> None:
        if session.get(MachineViolation, (row.tenant_id, told.idx)) is not None:
            return  # after a rebuild a stream may be folded over once more
        session.add(
            MachineViolation(
                tenant_id=row.tenant_id,
                idx=told.idx,
                stream_no=row.stream_no,
                entry_id=told.entry_id,
                machine=machine.name,
                machine_version=machine.version,
                phase=phase,
                violation=violation,
                at=now,
            )
        )
        body = {
            "stream": row.stream_id,
            "entry": told.entry_id,
            "machine": machine.name,
            "version": machine.version,
            "phase": phase,
            "violation": violation,
        }
        self._announce(session, row.tenant_id, Kind.MACHINE_VIOLATED, body, now)


def _body_of(entry: ReadEntry) -> bytes | None:
    return next((part.data for part in entry.parts if part.form == "json"), None)


def _newest(session: Session, tenant_id: int, name: str) -> MachineRow | None:
    return session.exec(
        select(MachineRow)
        .where(MachineRow.tenant_id == tenant_id, MachineRow.name == name)
        .order_by(sa.desc("version"))
        .limit(1)
    ).first()

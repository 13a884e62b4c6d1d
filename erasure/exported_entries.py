"""The record's part of an export: the entries under a person's keys, class by class, each once, one JSON object a line.

Guarantees: of each entry only the parts that are the person's own, or that a human released, and that lie within the
request's scope; every other part is named with the reason why it is left out. A few hundred entries are in memory at a
time. Not here: the file they are written into (`erasure.package_file`).
"""

from __future__ import annotations

import json
from array import array
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import copies, history
from erasure.export import Tally
from erasure.package_file import Package
from erasure.parts import Parts
from erasure.plan import IDENTITY, instant_text
from erasure.request import CopyState
from erasure.selector import streams_within
from erasure.standing import claim_of
from ledger import index
from ledger.entry import Kind
from ledger.models import EntryRow, PartRef
from registry.keyed import chunks
from registry.playback import ReadEntry
from retention.parts import part_ref
from vault.models import DataKey, KeyState

_READ_CHUNK = 200
_GOING = (CopyState.PENDING, CopyState.EXPORTED)
Read = Callable[[Session, int, Sequence[EntryRow]], list[ReadEntry]]
"""Reads entries of the record (`registry.playback`)."""


class _Line(NamedTuple):
    copy_no: int
    ref: str
    key_id: str | None
    state: str


def write_entries(  # noqa: PLR0917 - called once
    parts: Parts, read: Read, tenant_id: int, request_id: str, package: Package, now: datetime
) -> None:
    """Write what the record holds of the request's persons; the fates of its lines go into the package."""
    _Entries(parts, read, tenant_id, request_id, now).write(package)


class _Entries:
    def __init__(self, parts: Parts, read: Read, tenant_id: int, request_id: str, now: datetime) -> None:
        self._parts = parts
        self._read = read
        self._tenant_id = tenant_id
        self._id = request_id
        self._now = now

    def write(self, package: Package) -> None:
        """Write a file of lines for each class."""
        with self._parts.transactions(self._tenant_id, write=False) as session:
            row = history.load(session, self._tenant_id, self._id)
            people, claim = frozenset(row.subjects), claim_of(row)
            mine = self._keys_of(session, people, claim.data_classes)
            keys = copies.read(session, _Line, copies.of(self._tenant_id, self._id, kind="key"))
            wanted = {copy.key_id for copy in keys if copy.state != CopyState.WITHHELD}
            streams = streams_within(session, self._tenant_id, claim)
            by_class = self._entries(session, mine, wanted, streams)
            shared = copies.read(session, _Line, copies.of(self._tenant_id, self._id, *_GOING, kind="entry"))
            released = {copy.ref for copy in shared}
            for copy in (*keys, *shared):
                if copy.state in _GOING:
                    package.fates.settle(copy.copy_no, CopyState.EXPORTED)
        for name, indexes in sorted(by_class.items()):
            tally = package.entries.setdefault(name, Tally())
            with package.open(f"record/{name}.jsonl", self._now, data_class=name) as out:
                for start in range(0, len(indexes), _READ_CHUNK):
                    some = indexes[start : start + _READ_CHUNK].tolist()
                    for entry, line, readable in self._lines(some, frozenset(mine), released, claim.data_classes):
                        tally.registered += 1
                        tally.exported += readable
                        tally.withheld += not readable
                        package.decisions += entry.header.kind == Kind.DECISION
                        out.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def _keys_of(self, session: Session, people: frozenset[int], names: frozenset[str] | None) -> dict[str, str]:
        """The persons' keys of these classes (None: all) with their state, identity keys left out."""
        found: dict[str, str] = {}
        within = sa.true() if names is None else col(DataKey.data_class).in_(sorted(names))
        for chunk in chunks(sorted(people)):
            rows = session.execute(
                sa.select(col(DataKey.key_id), col(DataKey.state)).where(
                    col(DataKey.tenant_id) == self._tenant_id,
                    col(DataKey.subject_id).in_(chunk),
                    col(DataKey.data_class) != IDENTITY,
                    within,
                )
            )
            found.update((row.key_id, row.state) for row in rows)
        return found

    def _entries(
        self,
        session: Session,
        mine: Mapping[str, str],
        wanted: set[str | None],
        streams: frozenset[int] | None,
    ) -> dict[str, array[int]]:
        """The indexes of entries to read, by class; those under destroyed keys are counted by their class too."""
        found: dict[str, set[int]] = defaultdict(set)
        ids = [key_id for key_id, state in mine.items() if key_id in wanted or state == KeyState.DESTROYED.value]
        for chunk in chunks(sorted(ids)):
            query = (
                sa.select(col(EntryRow.data_class), col(EntryRow.idx), col(EntryRow.stream_no))
                .join(
                    PartRef,
                    sa.and_(col(PartRef.tenant_id) == col(EntryRow.tenant_id), col(PartRef.idx) == col(EntryRow.idx)),
                )
                .where(col(PartRef.tenant_id) == self._tenant_id, col(PartRef.key_id).in_(chunk))
            )
            for name, idx, stream_no in session.execute(query):
                if streams is None or stream_no in streams:
                    found[name].add(idx)
        return {name: array("q", sorted(found.pop(name))) for name in list(found)}

    def _lines(
        self, indexes: Sequence[int], mine: frozenset[str], released: set[str], data_classes: frozenset[str] | None
    ) -> list[tuple[ReadEntry, dict[str, Any], bool]]:
        with self._parts.transactions(self._tenant_id, write=False) as session:
            rows = session.exec(
                select(EntryRow)
                .where(EntryRow.tenant_id == self._tenant_id, col(EntryRow.idx).in_(indexes))
                .order_by(col(EntryRow.idx))
            ).all()
            keys = index.keys_of(session, self._tenant_id, list(indexes))
            read = self._read(session, self._tenant_id, rows)
        return [(entry, *_entry_line(entry, keys, mine, released, data_classes)) for entry in read]


def _entry_line(
    entry: ReadEntry,
    keys: Mapping[tuple[int, int], Sequence[str]],
    mine: frozenset[str],
    released: set[str],
    data_classes: frozenset[str] | None,
) -> tuple[dict[str, Any], bool]:
    """An entry as the person gets it, and whether any of its content is in it."""
    numbers = {part.role: number for number, part in enumerate(entry.header.parts)}
    parts: list[dict[str, Any]] = []
    readable = False
    name = str(entry.header.id)
    if entry.damage is not None:
        parts.append({"withheld": f"{entry.damage.state}: {entry.damage.detail}"})
    for part in entry.parts:
        number = numbers[part.role]
        owners = keys.get((entry.row.idx, number), ())
        shown: dict[str, Any] = {"part": part.role, "data_class": part.data_class}
        own = [key_id for key_id in owners if key_id in mine]
        if not own:
            shown["withheld"] = "about another person"
        elif len(own) < len(owners) and part_ref(name, number) not in released:
            shown["withheld"] = "said by or about another person too"
        elif data_classes is not None and part.data_class not in data_classes:
            shown["withheld"] = "outside the request's scope"
        elif part.data is None:
            shown["withheld"] = f"{part.state}: {part.because or 'not readable'}"
        else:
            shown |= {"name": part.name, "content": _content(part.data, part.form)}
            readable = True
        parts.append(shown)
    line = {
        "entry": name,
        "index": entry.row.idx,
        "stream": entry.header.stream,
        "kind": entry.header.kind,
        "at": instant_text(entry.row.at),
        "data_class": entry.row.data_class,
        "agent": entry.skeleton.get("agent"),
        "model": entry.skeleton.get("model"),
        "parts": parts,
    }
    return line, readable


def _content(data: bytes, form: str) -> Any:
    if form == "json":
        try:
            return json.loads(data)
        except ValueError:
            return data.decode(errors="replace")
    return {"base64": b64encode(data).decode("ascii")}

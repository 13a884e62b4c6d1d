"""What `muniment doctor` says of rows that decide what may go: holds as the record has them, keys that open.

Guarantees: reads only. A hold stands in the record before its row, and so does its end: a row that keeps less than its
event says, or that ended without one, is named. A wrapped key is bound to its row, so one that opens has the tenant,
subject, class, month, scope, group and epoch that it was made for; a tombstone has no bytes. An action bears a keyed
digest over its row. Not here: that a destroyed key is beyond reach (`vault.proof`), what a hold keeps (`retention`).
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlmodel import Session, SQLModel, col, select

from api.examination import Finding, fine, unknown, weak, wrong
from api.wiring import HOLD_UNDER_WAY, Services
from ledger.actions import ActionState, is_ours
from ledger.entry import Kind
from ledger.errors import LedgerError
from ledger.models import ActionRow
from registry.acting import Acting
from registry.decided import Decided
from registry.keyed import RowDigests
from registry.subjects import opaque_ids
from retention.models import HoldRow
from vault.errors import KekDestroyed, KekUnknown, NotDecryptable, VaultError
from vault.keks import KekStore
from vault.models import OPENING, DataKey, PartKey
from vault.rows import binding_of
from vault.wrapping import unwrap

_NAMED = 5
_PAGE = 5_000
_SHORT = 16
"""Digits of an action's look-up that name its row."""
_BACK = "bring the rows back from a backup, or muniment rebuild"
_UNKNOWN = "each is answered as unknown until its outcome is reported"
_TABLES = tuple(SQLModel.metadata.tables[str(model.__tablename__)] for model in (DataKey, PartKey))


def look_at_holds(services: Services, acting: Acting) -> Iterator[Finding]:
    """Whether each hold of the record is in force as it was placed, until the record says that it ended."""
    what, now = f"{acting.tenant}: holds", services.clock.now()
    # Rows first: an event that comes meanwhile may lack its row, no row its event.
    with services.database.transaction(acting.tenant_id, write=False) as session:
        rows = {row.hold_id: row for row in session.exec(select(HoldRow).where(HoldRow.tenant_id == acting.tenant_id))}
        kept = {hold_id: _kept_by(session, acting.tenant_id, row) for hold_id, row in rows.items()}
    try:
        events, unread = services.recovery.rebuild.hold_events(acting.tenant_id, acting.log_id, now)
    except LedgerError as error:
        yield unknown(what, f"the record does not say ({type(error).__name__}): muniment verify")
        return
    placed = {event.body["hold"]: event for event in events if event.kind is Kind.HOLD_PLACED}
    ended = {event.body["hold"] for event in events if event.kind is Kind.HOLD_RELEASED}
    advice = "the database was changed; the record decides at the next start of muniment serve"
    faults = 0
    for hold_id, event in placed.items():
        row, is_young = rows.get(hold_id), now - event.at < HOLD_UNDER_WAY
        if row is None and not is_young:
            fault = f"{hold_id} is in the record and has no row: {advice}"
        elif row is not None and row.released_at is not None and hold_id not in ended and not unread:
            fault = f"{hold_id} has ended by its row, and the record does not say so: {advice}"
        elif row is not None and hold_id not in ended and not _said_by(event) <= kept[hold_id]:
            fault = (
                f"{hold_id} keeps less than when it was placed: place it again as the record has it, entry "
                f"{event.entry_id}, and release this one"
            )
        else:
            continue
        faults += 1
        yield wrong(what, fault)
    if strange := sorted(rows.keys() - placed.keys()) if not unread else []:
        yield weak(what, f"{len(strange)} that the record does not know, {strange[0]} first: somebody wrote the row")
    if unread:
        yield unknown(what, f"{unread} events of holds cannot be read any more, so an end was not compared with them")
    elif not faults and not strange:
        yield fine(what, f"{len(placed)} as the record has them, {len(ended)} of them ended")


def _kept_by(session: Session, tenant_id: int, row: HoldRow) -> frozenset[tuple[str, str]]:
    opaque = opaque_ids(session, tenant_id, row.subjects)
    return frozenset(
        [
            *(("subjects", one) for one in opaque.values()),
            *(("data_classes", one) for one in row.data_classes),
            *(("scopes", one) for one in row.scopes),
            *(("artifacts", f"{one:016x}") for one in row.artifacts),
            *(("entries", str(one)) for one in row.entries),
        ]
    )


def _said_by(event: Decided) -> frozenset[tuple[str, str]]:
    names = ("subjects", "data_classes", "scopes", "artifacts", "entries")
    return frozenset((name, str(one)) for name in names for one in event.body.get(name, ()))


def look_at_keys(services: Services, acting: Acting) -> Iterator[Finding]:
    """Whether every key that is not destroyed opens, and no destroyed one has bytes."""
    what = f"{acting.tenant}: keys in the database"
    trial = _Trial(services.keks)
    for table in _TABLES:
        names = [column for column in table.primary_key.columns if column.name != "tenant_id"]
        after: tuple[str | int, ...] | None = None
        while True:
            query = sa.select(table).where(table.c.tenant_id == acting.tenant_id).order_by(*names)
            if after is not None:
                query = query.where(sa.tuple_(*names) > sa.tuple_(*map(sa.literal, after)))
            with services.database.transaction(acting.tenant_id, write=False) as session:
                page = session.execute(query.limit(_PAGE)).mappings().all()
            for row in page:
                after = tuple(row[column.name] for column in names)
                trial.take(table, row, "/".join(map(str, after)))
            if len(page) < _PAGE:
                break
    for fault, ids in trial.faults.items():
        yield wrong(what, f"{len(ids)} {fault}: {', '.join(ids[:_NAMED])}{' …' if len(ids) > _NAMED else ''}")
    if trial.untried:
        yield unknown(what, f"{len(trial.untried)} group keys cannot be asked for ({trial.untried[0]})")
    elif not trial.faults:
        yield fine(what, f"{trial.count}, each opens or is a tombstone")


def look_at_actions(services: Services, acting: Acting) -> Iterator[Finding]:
    """Whether each action stands as this service wrote it: nothing in the record says the same."""
    what = f"{acting.tenant}: actions"
    digests = RowDigests(services.vault, acting.tenant_id)
    count, bare, doubted, altered = 0, 0, 0, list[str]()
    after = b""
    while True:
        query = select(ActionRow).where(ActionRow.tenant_id == acting.tenant_id, ActionRow.lookup > after)
        with services.database.transaction(acting.tenant_id, write=False) as session:
            page = session.exec(query.order_by(col(ActionRow.lookup)).limit(_PAGE)).all()
        for row in page:
            after = row.lookup
            if row.row_digest is None:
                bare += 1
            elif not is_ours(row, digests):
                altered.append(f"{row.kind} {row.lookup.hex()[:_SHORT]}")
            elif row.state == ActionState.UNKNOWN:
                doubted += 1
        count += len(page)
        if len(page) < _PAGE:
            break
    if altered:
        named = f"{', '.join(altered[:_NAMED])}{' …' if len(altered) > _NAMED else ''}"
        yield wrong(what, f"{len(altered)} rows were changed in the database and are refused; {_BACK}: {named}")
    if bare:
        yield weak(what, f"{bare} rows bear no digest, being from an older version, or changed: {_UNKNOWN}")
    if doubted:
        yield weak(what, f"{doubted} had failed, and may have been done in what a restore lost: {_UNKNOWN}")
    if not altered and not bare and not doubted:
        yield fine(what, f"{count}, each as this service wrote it")


class _Trial:
    """Opens rows of keys; asks for each key-encryption key once."""

    def __init__(self, keks: KekStore) -> None:
        self.count = 0
        self.faults: dict[str, list[str]] = {}
        self.untried: list[str] = []
        self._keks = keks
        self._held: dict[tuple[int, int], bytes | None] = {}

    def take(self, table: sa.Table, row: sa.RowMapping, name: str) -> None:
        """Try one row."""
        self.count += 1
        if row["state"] not in OPENING:
            fault = None if row["wrapped"] is None else "are said to be destroyed and have bytes"
        elif row["wrapped"] is None:
            fault = f"are said to open and have no bytes; {_BACK}"
        else:
            fault = self._opened(table, row)
        if fault is not None:
            self.faults.setdefault(fault, []).append(name)

    def _opened(self, table: sa.Table, row: sa.RowMapping) -> str | None:
        place = (row["group_no"], row["epoch"])
        try:
            if place not in self._held:
                self._held[place] = None
                self._held[place] = self._keks.get(str(row["tenant_id"]), *place)
        except (KekDestroyed, KekUnknown):
            pass  # told of each row under it
        except VaultError as error:
            self.untried.append(type(error).__name__)
            self._held.pop(place)
            return None
        kek = self._held[place]
        if kek is None:
            return "are wrapped under a key that the key folder does not have; bring back its newest copy"
        try:
            unwrap(kek, binding_of(table, row), row["wrapped"])
        except (NotDecryptable, ValueError):
            return f"do not open: their rows were changed; {_BACK}"
        return None

"""What the record holds, read back: one entry, a stream, a search; each part checked, then opened.

Guarantees: the header comes from the log's batch, never from the index; an entry whose header the index misplaces, or
whose batch is damaged, is RecordDamaged. A part's bytes are compared with the digest in that header before a key is
used; what cannot be read is named (`erased`, `missing`, `altered`, `withheld`), never dropped. Not here: proofs of the
tree (`ledger.log`), who may read (`api`), the fold to a transcript (`audit.replay`).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
from sqlmodel import Session, col, select

from ledger import index
from ledger.entry import Header, Part, decode_header
from ledger.errors import MalformedHeader, ObjectHidden, ObjectMissing, RecordDamaged
from ledger.log import Log
from ledger.lookup import Found
from ledger.models import EntryRow
from ledger.payloads import Payloads
from registry.entries import BODY, JSON
from registry.models import SubjectSetMember
from registry.sealing import Keyring, Opened
from vault.errors import KeyDestroyed
from vault.vault import Vault

SKELETON_ROLE = "skeleton"
ACTOR_ROLE = "actor"
SWEEP_PREFIX = "swp_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPart:
    """One part as read. `name`, `form` and `data_class` come from the skeleton; `state` is an integrity verdict."""

    role: str
    name: str
    form: str
    data_class: str
    state: str
    data: bytes | None
    because: str | None
    destroyed: KeyDestroyed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEntry:
    """One entry as read: its header bytes from the log, the skeleton's facts, its parts.

    `damage` says why there is no header; the one that stands here then is only what the index knows, without parts.
    """

    row: EntryRow
    raw_header: bytes
    header: Header
    skeleton: dict[str, Any]
    actor: str | None
    parts: tuple[ReadPart, ...]
    damage: RecordDamaged | None = None

    @property
    def erased(self) -> bool:
        """Whether no part that held content can be read because its key was destroyed."""
        return bool(self.parts) and all(part.state in ("erased", "expired") for part in self.parts)


def read_entries(
    session: Session,
    vault: Vault,
    log: Log,
    tenant_id: int,
    rows: Sequence[EntryRow],
    *,
    may_see: frozenset[str] | None = None,
    closed: Mapping[int, str] | None = None,
    damaged_too: bool = False,
) -> list[ReadEntry]:
    """Return entries in the order of the rows.

    `may_see` names the classes whose content may be opened (None: all); `closed` the entries that are not opened and
    the request that restricts each (`registry.restricted`).
    Raises: RecordDamaged for the first entry that is not where the index says; not with `damaged_too`.
    """
    if not rows:
        return []
    log_id = log.head(tenant_id).log_id
    indexes = [row.idx for row in rows]
    found = [_borne_out(row, one) for row, one in zip(rows, log.try_headers(tenant_id, indexes), strict=True)]
    keys = index.keys_of(session, tenant_id, indexes)
    ring = Keyring(vault, session, tenant_id)
    ring.load(keys.values())
    headers = [
        _as_indexed(row) if isinstance(one, RecordDamaged) else one[1] for row, one in zip(rows, found, strict=True)
    ]
    ring.load_kept(
        (header.id, number, keys.get((row.idx, number), ()))
        for row, header in zip(rows, headers, strict=True)
        for number in range(len(header.parts))
    )
    stored = log.payloads(tenant_id, (part for header in headers for part in header.parts))
    made = []
    for row, one, header in zip(rows, found, headers, strict=True):
        if isinstance(one, RecordDamaged):
            if not damaged_too:
                raise one
            made.append(
                ReadEntry(row=row, raw_header=b"", header=header, skeleton={}, actor=None, parts=(), damage=one)
            )
            continue
        opened = {
            part.role: _open(
                stored, ring, part, entry=(entry_name(row), number, log_id, keys.get((row.idx, number), []))
            )
            for number, part in enumerate(header.parts)
        }
        made.append(_entry(row, one[0], header, opened, may_see=may_see, closed=(closed or {}).get(row.idx)))
    return made


def _borne_out(row: EntryRow, found: Found) -> tuple[bytes, Header] | RecordDamaged:
    """The header at a row's place, when it is that of the entry the row is about."""
    if isinstance(found, RecordDamaged):
        return found
    try:
        header = decode_header(found)
    except MalformedHeader as error:
        return RecordDamaged("altered", f"the header at {row.idx} is not what the log writes ({error.reason})")
    if header.id != entry_name(row):
        return RecordDamaged("altered", f"the index looks for entry {entry_name(row)} at {row.idx}, which is another's")
    return found, header


def _as_indexed(row: EntryRow) -> Header:
    return Header(
        id=entry_name(row),
        kind=row.kind,
        data_class=row.data_class,
        at=row.at,
        received=row.received,
        recorder=None,
        seq=None,
        stream="",
        position=row.position,
        previous=b"",
        sources_count=0,
        sources_root=None,
        parts=(),
    )


def stream_rows(
    session: Session, tenant_id: int, stream_no: int, *, size: int | None, after: int, limit: int | None
) -> list[EntryRow]:
    """Return a stream's rows after a position, below a tree size."""
    return index.stream_entries(session, tenant_id, stream_no, after=after, limit=limit, before=size)


def search(
    session: Session,
    tenant_id: int,
    *,
    kind: str | None = None,
    data_class: str | None = None,
    subject_nos: frozenset[int] | None = None,
    run_no: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after: int = -1,
    limit: int = 50,
) -> list[EntryRow]:
    """Return rows of callers' entries by index, ascending; all given conditions hold."""
    query = select(EntryRow).where(EntryRow.tenant_id == tenant_id, EntryRow.idx > after)
    if kind is not None:
        query = query.where(EntryRow.kind == kind)
    if data_class is not None:
        query = query.where(EntryRow.data_class == data_class)
    if run_no is not None:
        query = query.where(EntryRow.run_no == run_no)
    if since is not None:
        query = query.where(EntryRow.at >= since)
    if until is not None:
        query = query.where(EntryRow.at < until)
    if subject_nos is not None:
        sets = select(SubjectSetMember.set_id).where(
            SubjectSetMember.tenant_id == tenant_id, col(SubjectSetMember.subject_no).in_(sorted(subject_nos))
        )
        query = query.where(col(EntryRow.set_id).in_(sets))
    return list(session.exec(query.where(EntryRow.stream_no != 0).order_by(col(EntryRow.idx)).limit(limit)))


def entry_name(row: EntryRow) -> str:
    """Return the entry's id in text form."""
    return str(UUID(bytes=row.entry_id))


def _open(
    stored: Payloads, ring: Keyring, part: Part, *, entry: tuple[str, int, str, Sequence[str]]
) -> tuple[str, Opened]:
    name, number, log_id, keys = entry
    try:
        ciphertext = stored.read(part)
    except ObjectMissing:
        # Retention deletes an object when no key opens any part in it: what was erased may be gone as well.
        destroyed = ring.ended(entry_id=name, number=number, keys=keys)
        if destroyed is None:
            return "missing", Opened(fault="the payload object is gone")
        return _ended(destroyed), Opened(destroyed=destroyed)
    except ObjectHidden:
        return "hidden", Opened(fault="a delete marker lies over the payload object")
    if not hmac.compare_digest(sha256(ciphertext).digest(), part.sha256):
        return "altered", Opened(fault="the stored bytes have not the digest in the header")
    opened = ring.read(part, ciphertext, entry_id=name, number=number, log_id=log_id, keys=keys)
    if opened.data is not None:
        return "verified", opened
    if opened.destroyed is None:
        return "unreadable", opened
    return _ended(opened.destroyed), opened


def _ended(fact: KeyDestroyed) -> str:
    """A sweep ends content whose time was over; a request ends it because a person asked."""
    return "expired" if (fact.request or "").startswith(SWEEP_PREFIX) else "erased"


def _entry(
    row: EntryRow,
    raw: bytes,
    header: Header,
    opened: dict[str, tuple[str, Opened]],
    *,
    may_see: frozenset[str] | None,
    closed: str | None,
) -> ReadEntry:
    facts: dict[str, Any] = {}
    _, skeleton = opened.get(SKELETON_ROLE, ("missing", Opened()))
    if skeleton.data is not None:
        facts = msgspec.json.decode(skeleton.data)
    named = {part["role"]: part for part in facts.get("parts", [])}
    # Where the skeleton opens and says nothing of a part, it is the only one; where it does not, nothing is known.
    usual: dict[str, Any] = {} if skeleton.data is None else {"name": BODY}
    parts = []
    for part in header.parts:
        if part.role in (SKELETON_ROLE, ACTOR_ROLE):
            continue
        about = named.get(part.role, usual)
        state, result = opened[part.role]
        data_class = about.get("class", header.data_class)
        data = result.data
        because = result.fault
        if state == "verified" and may_see is not None and data_class not in may_see:
            state, data, because = "withheld", None, "its class is not for this reader, or not for this purpose"
        if state == "verified" and closed is not None:
            state, data, because = "withheld", None, f"stored only, by {closed} (GDPR Art. 18)"
        if result.destroyed is not None:
            because = f"its key was destroyed by {result.destroyed.request}"
        parts.append(
            ReadPart(
                role=part.role,
                name=about.get("name", part.role),
                form=about.get("form", JSON),
                data_class=data_class,
                state=state,
                data=data,
                because=because,
                destroyed=result.destroyed,
            )
        )
    _, actor = opened.get(ACTOR_ROLE, ("missing", Opened())) if closed is None else ("withheld", Opened())
    return ReadEntry(
        row=row,
        raw_header=raw,
        header=header,
        skeleton=facts,
        actor=actor.data.decode() if actor.data is not None else facts.get("actor"),
        parts=tuple(parts),
    )

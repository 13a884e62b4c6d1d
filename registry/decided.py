"""Replays what the record says was decided, in its order: step 4 of `registry.rebuild`.

Guarantees: log first means that what it says is going is gone, unless something in force now keeps it and the record
does not say that it went; a decision that is applied already changes nothing; what cannot be read or has no row is
counted, never passed over. Not here: rows of snapshots, bytes, the stores.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from ledger import index
from ledger.entry import Kind, decode_header
from ledger.errors import LedgerError
from ledger.head import Transactions
from ledger.log import Log
from ledger.models import EntryRow
from registry import artifacts, consent_replay, limited, merging, restricted, streams, subjects
from registry.graph import mark_erasing
from registry.keyed import IDENTITY_CLASS, NOBODY, chunks
from registry.models import Artifact, Subject, Token
from registry.playback import SWEEP_PREFIX
from registry.sealing import Keyring
from vault import rows as vault_rows
from vault.errors import KeyUnknown, VaultError
from vault.models import KeyState
from vault.vault import Vault

_EVENTS = 500
_REPLAYED = (
    Kind.FENCE_SET, Kind.FENCE_LIFTED, Kind.KEY_DESTROYING, Kind.KEY_DESTROYED, Kind.KEK_DESTROYED, Kind.HOLD_PLACED,
    Kind.HOLD_RELEASED, Kind.TOKEN_MINTED, Kind.TOKEN_REVOKED, Kind.REQUEST_RECEIVED, Kind.COPY_ERASED,
    Kind.RESTRICTION_SET, Kind.RESTRICTION_LIFTED, Kind.SUBJECT_MERGED, Kind.SUBJECT_SPLIT,
    Kind.REQUEST_PLANNED, Kind.REQUEST_APPROVED, Kind.REQUEST_STATE, Kind.CERTIFICATE_ISSUED,
    Kind.CONSENT_GIVEN, Kind.CONSENT_WITHDRAWN, Kind.COPY_STATE,
)  # fmt: skip
_RESTRICTIONS = {
    Kind.RESTRICTION_SET: restricted.set_again, Kind.RESTRICTION_LIFTED: restricted.lifted_again,
}  # fmt: skip
CALLED_OFF = frozenset({"cancelled", "refused", "duplicate", "no_match"})
"""How a request ends that is not carried out."""
UNDER_WAY = ("approved", "executing", "verifying")
"""States of an erasure that was approved and is not over."""
LIMITS = frozenset({"data_classes", "scopes", "artifacts"})
"""Under these names a request keeps to what it is limited; without one it closes whole persons."""
_GONE = frozenset({"erased_logical", "erased_physical", "already_absent", "regenerated"})
_ENDED = frozenset({*_GONE, "key_destroyed"})
BY_HAND = "by hand"
"""How a copy came to its state of which a human said so."""


Progress = Callable[[str, int], None]
"""Is told what is being done and how many of it were done since the last call."""
Stopped = Callable[[Session, int, Mapping[str, datetime]], set[str]]
"""Says of a tenant's keys, by when they were announced as going, which a hold or a restriction keeps now."""


@dataclass(slots=True, kw_only=True)
class Rebuilt:
    """What came back of one log, and what did not; `lost` holds one sentence for each kind of loss."""

    log_id: str
    tenant: str
    tenant_id: int
    entries: int = 0
    checkpoint_size: int = 0
    objects: int = 0
    snapshot_at: datetime | None = None
    rows: int = 0
    keys: int = 0
    events: int = 0
    fenced: int = 0
    destroyed: int = 0
    holds: int = 0
    certificates: int = 0
    lost: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    decided: list[Decided] = field(default_factory=list, repr=False)
    """What a database that was behind has not applied yet; only `catch_up` fills it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision of the record: what kind, when, and what it says."""

    entry_id: str
    kind: Kind
    at: datetime
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a replay works with; `tables` are those of packages above this one, by name."""

    vault: Vault
    log: Log
    transactions: Transactions
    tables: Mapping[str, sa.Table]
    stopped: Stopped


class Replay:
    """Step 4: the record's own decisions, in its order."""

    def __init__(
        self,
        parts: Parts,
        made: Rebuilt,
        now: datetime,
        progress: Progress,
        *,
        after: int | None = None,
        kinds: Sequence[Kind] = _REPLAYED,
    ) -> None:
        """`after`: the last entry whose effects are there; None for a database that has none at all."""
        self._kinds = kinds
        self._after = -1 if after is None else after
        self._behind = after is not None
        self._parts = parts
        self._made = made
        self._now = now
        self._progress = progress
        self._fences: dict[str, list[int]] = {}
        self._since: dict[str, datetime] = {}
        self._going: list[tuple[str, frozenset[str], datetime]] = []
        self._epochs: dict[tuple[int, int], datetime] = {}
        self._unknown = 0
        self._unread = 0
        self._missing: dict[str, list[str]] = {}
        self._takes: dict[Kind, Callable[[Session, Decided], None]] = {
            Kind.FENCE_SET: self._fence, Kind.FENCE_LIFTED: self._fence, Kind.TOKEN_MINTED: self._token,
            Kind.TOKEN_REVOKED: self._token, Kind.HOLD_PLACED: self._hold, Kind.HOLD_RELEASED: self._hold,
            Kind.CONSENT_GIVEN: self._consent, Kind.CONSENT_WITHDRAWN: self._consent,
            Kind.COPY_STATE: self._keep,
        }  # fmt: skip

    def read(self) -> tuple[list[Decided], int]:
        """Return the decisions without taking any, and how many events could not be read."""
        return [event for events in self._events() for event in events], self._unread

    def run(self) -> None:
        """Replay all, then settle what the log's end left open."""
        made = self._made
        for events in self._events():
            with self._parts.transactions(made.tenant_id) as session:
                for event in events:
                    self._take(session, event)
            if self._behind:
                made.decided += events
            made.events += len(events)
            self._progress("decisions of the record", len(events))
        if self._behind:
            # Whoever began them goes on: the request is opened again, and a sweep looks again at its next pass.
            self._going.clear()
        if self._going:
            self._end_going()
        self._end_epochs()
        for what, ids in sorted(self._missing.items()):
            made.lost.append(f"{len(ids)} {what}: {', '.join(ids[:20])}{' …' if len(ids) > 20 else ''}")  # noqa: PLR2004
        if self._unknown:
            made.faults.append(f"{self._unknown} destroyed keys have no row, so nothing marks them as destroyed")
        if self._unread:
            made.faults.append(f"{self._unread} events of the record could not be read, so they were not applied again")

    def _end_going(self) -> None:
        """Keys that were announced, and of which nothing says whether they went: they go now, or something stops it."""
        made = self._made
        announced = {name: at for _, keys, at in self._going for name in keys}
        with self._parts.transactions(made.tenant_id) as session:
            stopped = self._parts.stopped(session, made.tenant_id, announced)
            for owner, keys, at in self._going:
                self._destroy(session, owner, keys - stopped, at)
        made.lost.append(
            f"whether the last {len(self._going)} destructions were finished; their keys are destroyed now, as the "
            "record announced" + (", but for those that are kept" if stopped else "")
        )
        if stopped:
            made.lost.append(
                f"whether {len(stopped)} keys that the record announced as going went: a hold or a restriction in "
                "force keeps what they open, so they are not destroyed; the request that asked for it goes on when "
                "that ends, and is filed again if it is named here"
            )

    def _events(self) -> Iterator[list[Decided]]:
        tenant_id, after = self._made.tenant_id, self._after
        while True:
            with self._parts.transactions(tenant_id, write=False) as session:
                rows = session.exec(
                    select(EntryRow.idx)
                    .where(
                        EntryRow.tenant_id == tenant_id,
                        EntryRow.stream_no == 0,
                        col(EntryRow.kind).in_([kind.value for kind in self._kinds]),
                        EntryRow.idx > after,
                    )
                    .order_by(col(EntryRow.idx))
                    .limit(_EVENTS)
                ).all()
                keys = index.keys_of(session, tenant_id, rows)
                ring = Keyring(self._parts.vault, session, tenant_id)
                for needed in keys.values():
                    with suppress(KeyUnknown):
                        ring.load([needed])
                read = self._read(ring, list(rows), keys)
            if rows:
                yield read
            if len(rows) < _EVENTS:
                return
            after = rows[-1]

    def _read(
        self, ring: Keyring, indexes: Sequence[int], keys: Mapping[tuple[int, int], Sequence[str]]
    ) -> list[Decided]:
        made, log = self._made, self._parts.log
        read = []
        for idx, raw in zip(indexes, log.headers(made.tenant_id, indexes), strict=True):
            header = decode_header(raw)
            try:
                ciphertext = log.ciphertext(made.tenant_id, header.parts[0])
                opened = ring.read(
                    header.parts[0], ciphertext, entry_id=header.id, number=0, log_id=made.log_id,
                    keys=keys.get((idx, 0), ()),
                )  # fmt: skip
                body = json.loads(opened.data or b"null")
            except (LedgerError, VaultError, ValueError, KeyError):
                body = None
            if not isinstance(body, dict):
                self._unread += 1
                continue
            read.append(Decided(entry_id=header.id, kind=Kind(header.kind), at=header.at, body=body))
        return read

    def _take(self, session: Session, event: Decided) -> None:
        body = event.body
        if take := self._takes.get(event.kind):
            take(session, event)
        match event.kind:
            case Kind.RESTRICTION_SET | Kind.RESTRICTION_LIFTED:
                _RESTRICTIONS[event.kind](session, self._made.tenant_id, body, event.at)
            case Kind.KEY_DESTROYING:
                self._going.append((body["owner"], _going_of(body), event.at))
            case Kind.KEY_DESTROYED:
                self._settle(session, body["owner"], _going_of(body), event.at)
            case Kind.KEK_DESTROYED:
                for epoch in body["epochs"]:
                    self._epochs[epoch["group"], epoch["epoch"]] = event.at
            case Kind.REQUEST_RECEIVED if not self._behind:
                self._known(session, "request", "request_id", body["request"], "requests that must be filed again")
            case Kind.SUBJECT_MERGED | Kind.SUBJECT_SPLIT:
                people = _numbers_of(session, self._made.tenant_id, body["people"])
                apart = _numbers_of(session, self._made.tenant_id, body.get("subjects", ()))
                merging.replay(session, self._made.tenant_id, people, apart)
            case Kind.COPY_ERASED:
                self._bury(session, body, event.at)
            case Kind.REQUEST_STATE:
                self._request(session, event)

    def _fence(self, session: Session, event: Decided) -> None:
        """Close or open whole persons, and what an erasure limited to classes or to a conversation closed.

        To which conversation is sealed under the persons' own keys; where these are gone nothing of theirs comes late.
        """
        body, tenant_id = event.body, self._made.tenant_id
        if event.kind is Kind.FENCE_LIFTED:
            self._lift(session, body["request"], self._fences.pop(body["request"], []))
            limited.open_again(session, tenant_id, body["request"])
            return
        # What was to be forgotten is used by nobody, whether or not the request is known.
        going = artifacts.find_artifacts(session, tenant_id, body.get("artifacts", ()))
        mark_erasing(session, tenant_id, {row.id: body["request"] for row in going.values()})
        numbers = _numbers_of(session, tenant_id, body.get("subjects", ()))
        self._fences[body["request"]], self._since[body["request"]] = numbers, event.at
        self._made.fenced += subjects.fence(session, tenant_id, numbers, body["request"], event.at)
        persons, classes, scopes = _numbers_of(session, tenant_id, body.get("persons", ())), None, None
        if "data_classes" in body:
            classes = body["data_classes"]
        elif "limit" in body:
            vault = self._parts.vault
            scopes = limited.scopes_in(session, vault, tenant_id, persons, body["request"], body["limit"])
        if classes is not None or scopes is not None:
            limited.close(session, tenant_id, persons, body["request"], event.at, data_classes=classes, scopes=scopes)

    def _lift(self, session: Session, request: str, people: Collection[int]) -> None:
        """Open whom a request closed whole, but for those whom another erasure closed too and nobody called off."""
        tenant_id = self._made.tenant_id
        subjects.lift_fence(session, tenant_id, people, request)
        others = [(other, self._since[other], theirs) for other, theirs in self._fences.items() if other != request]
        if (table := self._parts.tables.get("request")) is not None:
            mine = (table.c.tenant_id == tenant_id) & (table.c.right == "erasure") & (table.c.request_id != request)
            rows = session.execute(sa.select(table).where(mine, table.c.state.in_(UNDER_WAY)))
            others += [(row.request_id, row.fence_at, row.subjects) for row in rows if LIMITS.isdisjoint(row.details)]
        for other, since, theirs in others:
            if since is not None:
                subjects.fence(session, tenant_id, set(people).intersection(theirs), other, since)

    def _request(self, session: Session, event: Decided) -> None:
        """What became of a request that is there: one that was called off is over, one that was paused waits."""
        table, body = self._parts.tables.get("request"), event.body
        if table is None:
            return
        where = (table.c.tenant_id == self._made.tenant_id) & (table.c.request_id == body.get("request"))
        row = session.execute(sa.select(table.c.state, table.c.subjects, table.c.details).where(where)).first()
        if row is None or row.state in CALLED_OFF:
            return
        details, values = dict(row.details), dict[str, Any]()
        if body.get("state") in CALLED_OFF:
            values = {"state": body["state"], "fence_at": None, "duplicate_of": body.get("of")}
            details |= {"ground": body["ground"]} if "ground" in body else {}
            self._free(session, str(body["request"]), list(row.subjects))
        elif self._behind and body.get("event") == "paused":
            details |= {"paused_at": event.at.isoformat(), "pause_reason": body.get("reason")}
        elif self._behind and body.get("event") == "resumed":
            details = {name: value for name, value in details.items() if name not in ("paused_at", "pause_reason")}
        else:
            return
        session.execute(sa.update(table).where(where).values(**values, details=details))
        session.expire_all()

    def _free(self, session: Session, request: str, people: Sequence[int]) -> None:
        """What a request that was called off had closed or was to end is open and in use again."""
        self._lift(session, request, people)
        limited.open_again(session, self._made.tenant_id, request)
        mine = (col(Artifact.tenant_id) == self._made.tenant_id) & (col(Artifact.request_id) == request)
        session.connection().execute(
            sa.update(Artifact).where(mine, col(Artifact.status) == "erasing").values(status="live", request_id=None)
        )

    def _settle(self, session: Session, owner: str, keys: frozenset[str], at: datetime) -> None:
        # One announcement follows each event of a chunk of keys; those it leaves out were kept.
        self._going = [one for one in self._going if one[0] != owner or not keys <= one[1]]
        self._destroy(session, owner, keys, at)

    def _destroy(self, session: Session, owner: str, keys: Iterable[str], at: datetime) -> None:
        vault, tenant_id = self._parts.vault, self._made.tenant_id
        # Keys of single parts are named by their part; one that never came to the unlocked store opens nothing.
        parts = {_split_part(name) for name in keys if _is_part(name)}
        self._made.destroyed += vault.drop_parts(session, tenant_id, sorted(parts), now=at, request=owner)
        keys = {name for name in keys if not _is_part(name)}
        known = vault.info(session, tenant_id, keys)
        self._unknown += len(keys - known.keys())
        if self._behind:
            # Only the identity key opens where copies lie that came back: it goes when they have gone again.
            known = {
                key_id: info
                for key_id, info in known.items()
                if info.spec.data_class != IDENTITY_CLASS or not self._opens(session, key_id)
            }
        ids = sorted(key_id for key_id, info in known.items() if info.state != KeyState.DESTROYED)
        vault.mark_destroying(session, tenant_id, ids, request=owner)
        self._made.destroyed += vault.delete_wrapped(session, tenant_id, ids, now=at, request=owner)
        for info in known.values():
            number = info.spec.subject_id
            if number == NOBODY:
                continue
            if number in self._fences.get(owner, ()):
                vault.fence_subject(session, tenant_id, number, now=at, request=owner)
            if info.spec.data_class == IDENTITY_CLASS:
                streams.forget_names(session, tenant_id, [number])
                if owner.startswith(SWEEP_PREFIX):
                    subjects.end(session, tenant_id, [number], owner, at)
                else:
                    subjects.forget_identifiers(session, tenant_id, number, owner, at)

    def _opens(self, session: Session, key_id: str) -> bool:
        """Whether a key is more than bytes under a key-encryption key that went meanwhile."""
        try:
            self._parts.vault.open_keys(session, self._made.tenant_id, [key_id])
        except VaultError:
            return False
        return True

    def _end_epochs(self) -> None:
        """Destroy what the record says was destroyed: a key folder from an older backup must not bring it back."""
        made, vault = self._made, self._parts.vault
        carried = 0
        for (group_no, epoch), at in self._epochs.items():
            with self._parts.transactions(made.tenant_id) as session:
                db = vault_rows.connection(session)
                if vault_rows.carried(db, made.tenant_id, group_no, epoch):
                    carried += 1
                    continue
                destroyed_at = vault.keks.destroy(str(made.tenant_id), group_no, epoch, at)
                gone = {
                    "tenant_id": made.tenant_id,
                    "group_no": group_no,
                    "epoch": epoch,
                    "retired_at": at,
                    "destroy_after": at,
                    "destroyed_at": destroyed_at,
                }
                vault_rows.insert_missing(db, vault_rows.RETIRED, [gone])
                vault_rows.set_kek_destroyed(db, made.tenant_id, group_no, epoch, destroyed_at)
        if carried:
            made.faults.append(
                f"{carried} key-encryption keys that the record says are destroyed came back with the key folder, and "
                "rows in use are wrapped under them only: bring back the newest unlocked store"
            )

    def _token(self, session: Session, event: Decided) -> None:
        token = session.get(Token, (self._made.tenant_id, event.body["token"]))
        if event.kind is Kind.TOKEN_REVOKED:
            if token is not None and token.revoked_at is None:
                token.revoked_at = event.at
                session.add(token)
        elif token is None:
            self._missing.setdefault("tokens that must be made again", []).append(event.body["token"])

    def _hold(self, session: Session, event: Decided) -> None:
        """A hold is whole in its event but for its name and what was said; so it is in force again."""
        table = self._parts.tables.get("hold")
        if table is None:
            return
        tenant_id, hold_id = self._made.tenant_id, event.body["hold"]
        if event.kind is Kind.HOLD_RELEASED:
            session.execute(
                sa.update(table)
                .where(table.c.tenant_id == tenant_id, table.c.hold_id == hold_id, table.c.released_at.is_(None))
                .values(released_by=event.body["by"], released_at=event.at)
            )
            return
        row = {
            "tenant_id": tenant_id,
            "hold_id": hold_id,
            "name": "(its name was lost with the database)",
            "sealed": None,
            "subjects": _numbers_of(session, tenant_id, event.body["subjects"]),
            "data_classes": event.body["data_classes"],
            "scopes": event.body["scopes"],
            "artifacts": [int(number, 16) for number in event.body["artifacts"]],
            "entries": list(event.body.get("entries", ())),
            "created_by": event.body["by"],
            "created_at": event.at,
            "released_by": None,
            "released_at": None,
        }
        self._made.holds += 1
        if vault_rows.insert_missing(session.connection(), table, [row]):
            self._missing.setdefault("names and reasons of holds, which are in force", []).append(hold_id)

    def _consent(self, session: Session, event: Decided) -> None:
        table, walks = (self._parts.tables.get(name) for name in (consent_replay.CONSENTS, consent_replay.WALKS))
        if table is None or walks is None:
            return
        body, tenant_id = event.body, self._made.tenant_id
        if event.kind is Kind.CONSENT_GIVEN:
            of = next(iter(_numbers_of(session, tenant_id, [body["subject"]] if "subject" in body else [])), None)
            if lost := consent_replay.give_again(session, table, tenant_id, body, of):
                self._missing.setdefault(lost, []).append(body["consent"])
        else:
            consent_replay.withdraw_again(session, table, tenant_id, body, event.at)
        consent_replay.date_again(session, walks, tenant_id)

    def _known(self, session: Session, name: str, column: str, value: str, what: str) -> None:
        table = self._parts.tables.get(name)
        if table is None:
            return
        query = sa.select(table.c[column]).where(table.c.tenant_id == self._made.tenant_id, table.c[column] == value)
        if session.execute(query).first() is None:
            self._missing.setdefault(what, []).append(value)

    def _keep(self, session: Session, event: Decided) -> None:
        """What a human decided to keep stays, by the same word, in a plan that knows the copy."""
        table, ref = self._parts.tables.get("copy"), kept_by_hand(event)
        if table is None or ref is None:
            return
        mine = (table.c.tenant_id == self._made.tenant_id) & (table.c.owner == event.body.get("request"))
        still = (table.c.ref == ref) & table.c.state.not_in(sorted(_ENDED))
        session.execute(
            sa.update(table).where(mine & still).values(state="retained", method=BY_HAND, level=None, verified_at=None)
        )
        session.expire_all()

    def _bury(self, session: Session, body: Mapping[str, Any], at: datetime) -> None:
        """Copies that were erased after the snapshot: their rows must not look alive again."""
        table = self._parts.tables.get("copy")
        if table is None:
            return
        numbers = [line["copy"] for line in body["copies"] if line["state"] in _GONE]
        for chunk in chunks(numbers):
            query = sa.select(table.c.artifact_id).where(
                table.c.tenant_id == self._made.tenant_id,
                table.c.owner == body["owner"],
                table.c.copy_no.in_(chunk),
                table.c.artifact_id.is_not(None),
            )
            found = list(session.execute(query).scalars())
            artifacts.bury(session, self._made.tenant_id, found, body["owner"], at)


def kept_by_hand(event: Decided) -> str | None:
    """The id of the copy that a human decided to keep by this event; None for any other event."""
    is_kept = event.kind is Kind.COPY_STATE and event.body.get("state") == "retained"
    return str(event.body["ref"]) if is_kept and "ref" in event.body else None


def _going_of(body: Mapping[str, Any]) -> frozenset[str]:
    """The data keys and the parts whose keys an event says are going or gone."""
    return frozenset((*body["keys"], *body.get("parts", ())))


def _is_part(name: str) -> bool:
    return "/" in name


def _split_part(name: str) -> tuple[str, int]:
    """Entry id and number of a part's id."""
    entry_id, _, number = name.partition("/")
    return entry_id, int(number)


def _numbers_of(session: Session, tenant_id: int, opaque: Iterable[str]) -> list[int]:
    found: list[int] = []
    for chunk in chunks(sorted(set(opaque))):
        query = select(Subject.subject_no).where(Subject.tenant_id == tenant_id, col(Subject.subject_id).in_(chunk))
        found.extend(session.exec(query))
    return sorted(found)

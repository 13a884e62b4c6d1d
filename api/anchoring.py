"""Anchors and key changes as the service does them: the job's metrics, and each rotation with its entry of the record.

Guarantees: a rotation is an entry of the record (`key.rotated`), signed over by the new key. The change itself is a
write-once object of the bucket and takes effect first, because only then can the new key vouch for the entry; after a
crash between the two, running the rotation again finishes it. Does not decide which key may sign (`ledger.keyring`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from sqlmodel import select

from api.telemetry import Telemetry
from ledger.anchors import ANCHORED, Anchoring, AnchorState, statement
from ledger.entry import Kind
from ledger.errors import NotLeader, ObjectMissing
from ledger.keyring import CERTIFICATE, LOG, KeyWindow, change_key, event_body, parse_change
from ledger.models import EntryRow
from registry.acting import Acting
from registry.playback import read_entries

if TYPE_CHECKING:
    from api.wiring import Services

Use = Literal["log", "certificate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotated:
    """What a rotation did: the new key, those it followed, and the entry that says so."""

    use: Use
    vkey: str
    old: tuple[str, ...]
    revoked: bool
    size: int
    entry: str

    def as_json(self) -> dict[str, Any]:
        """Return what the caller is shown."""
        return {
            "use": self.use,
            "vkey": self.vkey,
            "old": list(self.old),
            "revoked": self.revoked,
            "size": self.size,
            "entry": self.entry,
        }


def offer_anchors(anchoring: Anchoring, telemetry: Telemetry) -> Callable[[int, datetime], None]:
    """Returns the job of one tenant: offers what is due and counts how it went; not the leader's process: nothing."""
    offers = telemetry.meter.create_counter("muniment.anchor.offers", description="States of anchors after each look")
    behind = telemetry.meter.create_gauge("muniment.anchor.open", description="Anchors without the newest checkpoint")
    open_by_tenant: dict[int, int] = {}

    def job(tenant_id: int, now: datetime) -> None:
        if not anchoring.leads:
            return
        states = anchoring.offer(tenant_id, now, only_due=True)
        for state in states:
            offers.add(1, {"kind": state.kind, "state": state.state})
        open_by_tenant[tenant_id] = sum(state.state != ANCHORED for state in states)
        behind.set(sum(open_by_tenant.values()))

    return job


def anchors_view(states: Sequence[AnchorState]) -> dict[str, Any]:
    """Returns what readers are shown of the anchors, with the sentence for reports."""
    return {"items": [state.as_json() for state in states], "statement": statement(states)}


def keys_view(services: Services, acting: Acting) -> dict[str, Any]:
    """Returns every key of a tenant's log and certificates with the sizes it may sign, the signing ones first."""
    windows = (*services.log.keys(acting.tenant_id), *services.certificate_keys(acting.log_id))
    ordered = sorted(windows, key=lambda one: (one.use != LOG, one.until_size is not None, -one.generation))
    return {"items": [window.as_json() for window in ordered]}


def rotate_key(services: Services, acting: Acting, use: Use, *, revoke: bool) -> Rotated:
    """Gives the log or the certificates the next key.

    1. Finish a rotation that a crash left without its entry. 2. To revoke the log's key, say so in an entry: behind it
    no batch of a former leader can follow. 3. Change the key in the bucket. 4. Store the entry. 5. Sign a checkpoint
    over it, with the new key. 6. Write the key list beside the log: the entry is there.

    Raises NotLeader, SigningKeyMissing, and what log and stores raise.
    """
    done = _finish(services, acting, use)  # 1
    if done is not None and done.revoked == revoke:
        return done
    now = services.clock.now()
    if use == LOG:
        if revoke:
            if not services.log.leads:
                raise NotLeader
            following = services.log.keys(acting.tenant_id)[-1].generation + 1
            services.record.event(acting.tenant_id, Kind.KEY_ROTATING, {"use": use, "generation": following}, now)  # 2
        services.log.rotate_key(acting.tenant_id, now, revoke=revoke)  # 3
    else:
        services.log.publish(acting.tenant_id, now)
        with services.log.entered(acting.tenant_id) as head:
            change_key(
                services.locked,
                log_id=acting.log_id,
                keys=services.certificate_keys(acting.log_id),
                signer_of=lambda generation: services.certificate_signer_of(acting.log_id, generation),
                size=head.checkpoint_size,
                revoke=revoke,
                now=now,
                lock_until=services.lock_end(now),
            )
    made = _finish(services, acting, use)  # 4, 5, 6
    if made is None:
        message = f"the {use} key was changed by another process at the same time"
        raise NotLeader(message)
    return made


def _finish(services: Services, acting: Acting, use: Use) -> Rotated | None:
    """Announces the newest change of a key if nobody did; None when there is nothing to announce."""
    newest = _keys(services, acting, use)[-1]
    if newest.generation <= _announced(services, acting, use):
        return None
    now = services.clock.now()
    note = newest.statement.encode()
    entry = services.record.event(acting.tenant_id, Kind.KEY_ROTATED, event_body(note), now)
    services.log.publish(acting.tenant_id, now)
    listed = {name: [window.as_json() for window in _keys(services, acting, name)] for name in (LOG, CERTIFICATE)}
    # Only what is announced stands in the list of the other use: a crash must not hide its change.
    other: Use = "certificate" if use == LOG else "log"
    listed[other] = listed[other][: _announced(services, acting, other) + 1]
    services.hot.replace(f"{acting.log_id}/keys", json.dumps(listed).encode())
    change = parse_change(note)
    return Rotated(use=use, vkey=change.new, old=change.old, revoked=change.revoke, size=change.size, entry=entry)


def _keys(services: Services, acting: Acting, use: str) -> tuple[KeyWindow, ...]:
    return services.log.keys(acting.tenant_id) if use == LOG else services.certificate_keys(acting.log_id)


def _announced(services: Services, acting: Acting, use: Use) -> int:
    """The newest generation whose entry is in the record.

    The list in the unlocked store is asked only where an entry of the record does not open any more: lost or damaged,
    it would have the same change announced twice, or never.
    """
    said: list[int] = []
    with services.database.transaction(acting.tenant_id, write=False) as session:
        query = select(EntryRow).where(EntryRow.tenant_id == acting.tenant_id, EntryRow.kind == Kind.KEY_ROTATED)
        rows = list(session.exec(query))
        for entry in read_entries(session, services.vault, services.log, acting.tenant_id, rows):
            data = entry.parts[0].data if entry.parts else None
            if data is None:
                return max([*said, _listed(services, acting, use)])
            body = json.loads(data)
            said += [int(body["generation"])] if body["use"] == use else []
    return max(said, default=0)


def _listed(services: Services, acting: Acting, use: Use) -> int:
    try:
        listed = json.loads(services.hot.get(f"{acting.log_id}/keys"))
        return max((int(item["generation"]) for item in listed.get(use, ())), default=0)
    except (ObjectMissing, ValueError, KeyError, TypeError, AttributeError):
        return 0

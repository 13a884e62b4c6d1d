"""Side effects over HTTP: claim before acting, report after; never answers `safe` where nobody knows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from fastapi import Response
from pydantic import ConfigDict, Field
from sqlmodel import Session

from api.answers import Row
from api.auth import Parts, Writer
from api.requests import Body, make_router
from api.wiring import Services
from ledger import actions
from ledger.actions import ActionState, Claim
from ledger.models import ActionRow
from ledger.retried import Retried
from registry import streams
from registry.acting import Acting
from registry.duration import Duration
from registry.keyed import Lookups, RowDigests
from registry.outcomes import open_reference, seal_reference

router = make_router("actions")
_DIGEST = r"^[0-9a-f]{64}$"


class Wanted(Body):
    """What is about to be done. `proposal_digest` is the SHA-256 of the exact proposal that was approved."""

    action_id: str = Field(min_length=1, max_length=512)
    kind: str = Field(pattern=r"^[a-z][a-z0-9_.:-]{0,127}$")
    stream: str | None = Field(default=None, min_length=1, max_length=512)
    run: str | None = Field(default=None, min_length=1, max_length=512)
    lease: str = "PT5M"
    proposal_digest: str | None = Field(default=None, pattern=_DIGEST)
    approval: str | None = Field(default=None, max_length=64)
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"action_id": "role-14/app-0093/invite", "kind": "mail.send", "lease": "PT5M"}]}
    )


class Outcome(Body):
    """How it ended, and the provider's own id of it, which goes with the first person of the stream who is erased."""

    state: Literal["succeeded", "failed"]
    provider_ref: str | None = Field(default=None, max_length=512)
    model_config = ConfigDict(json_schema_extra={"examples": [{"state": "succeeded", "provider_ref": "msg_8812"}]})


@router.post("/v1/actions", responses={201: {"description": "Claimed by this call."}})
def claim(body: Wanted, acting: Writer, parts: Parts, response: Response) -> Row:
    """Claims an action for the time of the lease; 200 with what is known when somebody did before."""
    now = parts.clock.now()
    lease: timedelta = Duration.parse(body.lease).add_to(now) - now
    with parts.database.transaction(acting.tenant_id) as session:
        stream_no = None
        if body.stream is not None:
            found = streams.find_streams(session, parts.vault, acting.tenant_id, [body.stream]).get(body.stream)
            stream_no = None if found is None else found.stream_no
        wanted = Claim(
            lookup=_lookup(parts, acting, body.action_id),
            kind=body.kind,
            owner=acting.principal,
            digest=body.proposal_digest,
            approval=body.approval,
            lease=lease,
            stream_no=stream_no,
        )
        retried = Retried(hot=parts.hot, log_id=acting.log_id)
        row, claimed = actions.claim(
            session, acting.tenant_id, wanted, now, digests=_digests(parts, acting), retried=retried
        )
        response.status_code = 201 if claimed else 200
        return _view(session, parts, row, body.action_id)


@router.post("/v1/actions/{action_id:path}/outcome")
def outcome(action_id: str, body: Outcome, acting: Writer, parts: Parts) -> Row:
    """Records how a claimed action ended."""
    lookup, digests = _lookup(parts, acting, action_id), _digests(parts, acting)
    reference = body.provider_ref
    with parts.database.transaction(acting.tenant_id) as session:

        def seal(claimed: ActionRow) -> bytes | None:
            return None if reference is None else seal_reference(session, parts.vault, claimed, reference)

        row = actions.settle(
            session,
            acting.tenant_id,
            lookup,
            ActionState(body.state),
            seal,
            now=parts.clock.now(),
            digests=digests,
        )
        return _view(session, parts, row, action_id)


@router.get("/v1/actions/{action_id:path}")
def read(action_id: str, acting: Writer, parts: Parts) -> Row:
    """What is known of an action, and whether doing it again is safe."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        lookup = _lookup(parts, acting, action_id)
        row = actions.find(session, acting.tenant_id, lookup, digests=_digests(parts, acting))
        return _view(session, parts, row, action_id)


def _lookup(parts: Services, acting: Acting, action_id: str) -> bytes:
    return Lookups(parts.vault, acting.tenant_id).of("action", action_id)


def _digests(parts: Services, acting: Acting) -> RowDigests:
    return RowDigests(parts.vault, acting.tenant_id)


def _view(session: Session, parts: Services, row: ActionRow, action_id: str) -> dict[str, Any]:
    state = actions.state_at(row, parts.clock.now())
    return {
        "action_id": action_id,
        "kind": row.kind,
        "state": state.value,
        "retry": actions.retry_of(state).value,
        "owner": row.owner,
        "lease_until": f"{row.lease_until:%Y-%m-%dT%H:%M:%S.%fZ}",
        "provider_ref": open_reference(session, parts.vault, row),
    }

"""The tenant's log over HTTP: checkpoint, tiles, consistency, keys, anchors. Shows no content."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Response

from api.auth import Parts, require
from api.errors import Problem
from api.requests import make_router
from ledger.errors import BadProof, MalformedTilePath, ObjectMissing
from ledger.tiles import Tile, entry_bundle, parse_tile_path, read_tile
from registry.acting import Acting

router = make_router("log")
LogReader = Annotated[Acting, Depends(require("auditor", "legal", "platform", "writer"))]
_TEXT = "text/plain; charset=utf-8"


@router.get("/v1/log/checkpoint", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def checkpoint(acting: LogReader, parts: Parts) -> Response:
    """The newest signed checkpoint, a C2SP signed note, extended over everything stored."""
    note = parts.log.publish(acting.tenant_id, parts.clock.now())
    return Response(note, media_type=_TEXT, headers={"cache-control": "max-age=2"})


@router.get(
    "/v1/log/tile/{path:path}", response_class=Response, responses={200: {"content": {"application/octet-stream": {}}}}
)
def tile(path: str, acting: LogReader, parts: Parts) -> Response:
    """A hash tile or entry bundle as C2SP tlog-tiles; partial ones are made on request."""
    try:
        wanted = parse_tile_path(f"tile/{path}")
        data = _tile(parts, acting.tenant_id, wanted)
    except (MalformedTilePath, BadProof, ObjectMissing) as error:
        raise Problem("not-found", "the log has no such tile") from error
    cache = "max-age=31536000, immutable" if wanted.is_full else "max-age=60"
    return Response(data, media_type="application/octet-stream", headers={"cache-control": cache})


@router.get("/v1/log/consistency")
def consistency(
    acting: LogReader,
    parts: Parts,
    old: Annotated[int, Query(alias="from", ge=1)],
    new: Annotated[int, Query(alias="to", ge=1)],
) -> dict[str, Any]:
    """The proof that the log of one size is a prefix of that of another, both published (RFC 9162 §2.1.4)."""
    parts.log.publish(acting.tenant_id, parts.clock.now())
    try:
        proof = parts.log.consistency(acting.tenant_id, old, new)
    except BadProof as error:
        raise Problem("invalid", "from and to are published sizes, from not larger than to") from error
    return {"from": old, "to": new, "consistency": [node.hex() for node in proof]}


@router.get("/v1/log/keys")
def keys(acting: LogReader, parts: Parts) -> dict[str, Any]:
    """The log's public key and the certificate key, to pin."""
    return {
        "items": [
            {"use": "log", "vkey": parts.log.vkey(acting.tenant_id), "state": "active"},
            {"use": "certificate", "vkey": parts.certificate_signer(acting.log_id).vkey, "state": "active"},
        ]
    }


@router.get("/v1/log/anchors")
def anchors(acting: LogReader, parts: Parts) -> dict[str, Any]:
    """Where checkpoints are anchored outside the operator's reach; none configured: `unanchored`."""
    del acting
    configured = list(parts.settings.anchors or ())
    return {"items": configured, "statement": "" if configured else "unanchored: trusts the operator"}


def _tile(parts: Parts, tenant_id: int, wanted: Tile) -> bytes:
    if wanted.level is not None:
        with parts.log.entered(tenant_id) as head:
            return read_tile(wanted, head.tree.read)
    first = wanted.n * 256
    return entry_bundle(parts.log.headers(tenant_id, range(first, first + wanted.width)))

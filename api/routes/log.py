"""The tenant's log over HTTP: checkpoint, tiles, consistency, keys, anchors. Shows no content."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Response

from api.anchoring import Use, anchors_view, keys_view, rotate_key
from api.auth import Admin, Parts, require
from api.errors import Problem
from api.requests import Body, make_router
from ledger.errors import BadProof, MalformedTilePath, ObjectMissing
from ledger.tiles import Tile, entry_bundle, parse_tile_path, read_tile
from registry.acting import Acting

router = make_router("log")
LogReader = Annotated[Acting, Depends(require("auditor", "legal", "platform", "writer"))]
Operators = Annotated[Acting, Depends(require("admin", "platform"))]
_TEXT = "text/plain; charset=utf-8"


class Rotation(Body):
    """Which key is to change, and whether the old one ends at once."""

    use: Use
    revoke: bool = False


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
    """Every key of the log and of certificates, to pin, with the tree sizes it may sign.

    `statement` is the signed note by which a key followed the ones before it; it verifies with the old key.
    """
    return keys_view(parts, acting)


@router.post("/v1/log/keys", status_code=201)
def rotate(body: Rotation, acting: Admin, parts: Parts) -> dict[str, Any]:
    """The next key of the log or of certificates; an entry of the record. `revoke` ends the old ones at once."""
    return rotate_key(parts, acting, body.use, revoke=body.revoke).as_json()


@router.get("/v1/log/anchors")
def anchors(acting: LogReader, parts: Parts) -> dict[str, Any]:
    """What parties outside the operator's reach have seen of the log; none configured: `unanchored`."""
    return anchors_view(parts.anchoring.states(acting.log_id))


@router.post("/v1/log/anchors")
def offer(acting: Operators, parts: Parts) -> dict[str, Any]:
    """Offers the newest checkpoint to every anchor now, and says how each stands."""
    return anchors_view(parts.anchoring.offer(acting.tenant_id, parts.clock.now()))


def _tile(parts: Parts, tenant_id: int, wanted: Tile) -> bytes:
    if wanted.level is not None:
        with parts.log.entered(tenant_id) as head:
            return read_tile(wanted, head.tree.read)
    first = wanted.n * 256
    return entry_bundle(parts.log.headers(tenant_id, range(first, first + wanted.width)))

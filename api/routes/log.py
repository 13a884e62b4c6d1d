"""The tenant's log over HTTP: checkpoint, tiles, consistency, keys, anchors. Shows no content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any

from fastapi import Depends, Query, Response

from api.anchoring import Use, anchors_view, keys_view, rotate_key
from api.answers import Row
from api.auth import Admin, Parts, require
from api.errors import Problem
from api.pagination import DEFAULT_LIMIT, Cursor, Limit, paged, read_cursor, write_cursor
from api.requests import Body, Whole, make_router
from ledger.entry import format_instant
from ledger.errors import BadProof, MalformedTilePath, ObjectMissing
from ledger.tiles import Tile, entry_bundle, parse_tile_path, read_tile
from registry.acting import Acting
from vault.history import EpochFact, KeyCount, epoch_facts, key_counts
from vault.providers import RootVersion

router = make_router("log")
LogReader = Annotated[Acting, Depends(require("auditor", "legal", "platform", "writer"))]
KeyReader = Annotated[Acting, Depends(require("auditor", "legal"))]
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
    old: Annotated[Whole, Query(alias="from", ge=1)],
    new: Annotated[Whole, Query(alias="to", ge=1)],
) -> Row:
    """The proof that the log of one size is a prefix of that of another, both published (RFC 9162 §2.1.4)."""
    parts.log.publish(acting.tenant_id, parts.clock.now())
    try:
        proof = parts.log.consistency(acting.tenant_id, old, new)
    except BadProof as error:
        raise Problem("invalid", "from and to are published sizes, from not larger than to") from error
    return {"from": old, "to": new, "consistency": [node.hex() for node in proof]}


@router.get("/v1/log/keys")
def keys(acting: LogReader, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Row:
    """Every key of the log and of certificates, to pin, with the tree sizes it may sign.

    `statement` is the signed note by which a key followed the ones before it; it verifies with the old key.
    """
    return _page(keys_view(parts, acting), limit, cursor, lambda one: (one["use"], one["generation"]))


@router.get("/v1/keys")
def key_history(acting: KeyReader, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Row:
    """What became of the tenant's keys: counts by class, month and state, the epochs of their groups, and the root.

    Names no person and no key. `items` are the epochs, page by page; the rest stands on the first page.
    """
    after = read_cursor(cursor, int, int)
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        counts = key_counts(session, acting.tenant_id) if after is None else []
        epochs = epoch_facts(session, acting.tenant_id, after=after or (-1, -1), limit=limit + 1)
    page = epochs[:limit]
    last = page[-1] if len(epochs) > limit else None
    made: dict[str, Any] = {
        "items": [_json_of(one) for one in page],
        "next_cursor": None if last is None else write_cursor(last.group_no, last.epoch),
    }
    if after is None:
        root = parts.keks.root
        made["counts"] = [_json_of(one) for one in counts]
        made["root"] = {"kind": root.kind, "versions": [_json_of(one) for _, one in sorted(root.versions().items())]}
    return made


def _json_of(value: KeyCount | EpochFact | RootVersion) -> dict[str, Any]:
    return {
        name: format_instant(member) if isinstance(member, datetime) else member
        for name, member in asdict(value).items()
    }


@router.post("/v1/log/keys", status_code=201)
def rotate(body: Rotation, acting: Admin, parts: Parts) -> Row:
    """The next key of the log or of certificates; an entry of the record. `revoke` ends the old ones at once."""
    return rotate_key(parts, acting, body.use, revoke=body.revoke).as_json()


@router.get("/v1/log/anchors")
def anchors(acting: LogReader, parts: Parts, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None) -> Row:
    """What parties outside the operator's reach have seen of the log; none configured: `unanchored`."""
    return _page(anchors_view(parts.anchoring.states(acting.log_id)), limit, cursor, _anchor_key)


@router.post("/v1/log/anchors")
def offer(acting: Operators, parts: Parts) -> Row:
    """Offers the newest checkpoint to every anchor now, and says how each stands."""
    return anchors_view(parts.anchoring.offer(acting.tenant_id, parts.clock.now()))


def _page(view: Row, limit: int, cursor: str | None, key: Callable[[Any], tuple[Any, ...]]) -> Row:
    """A page of a short list that is read whole: what stands after the item that the cursor names."""
    items: list[Any] = view["items"]
    if cursor is not None:
        kinds = [type(part) for part in key(items[0])] if items else [str]
        after = read_cursor(cursor, *kinds)
        place = next((n for n, one in enumerate(items) if key(one) == after), None)
        if place is None:
            raise Problem("bad-cursor")
        items = items[place + 1 :]
    page, following = paged(items, limit, key)
    return {**view, "items": page, "next_cursor": following}


def _anchor_key(one: Row) -> tuple[str]:
    """An anchor's address by its digest: a cursor is short, and names nobody."""
    return (sha256(str(one["anchor"]).encode()).hexdigest(),)


def _tile(parts: Parts, tenant_id: int, wanted: Tile) -> bytes:
    if wanted.level is not None:
        with parts.log.entered(tenant_id) as head:
            return read_tile(wanted, head.tree.read)
    first = wanted.n * 256
    with parts.log.entered(tenant_id) as head:
        if first + wanted.width > head.checkpoint_size:
            raise MalformedTilePath("beyond the log's end")
    return entry_bundle(parts.log.headers(tenant_id, range(first, first + wanted.width)))

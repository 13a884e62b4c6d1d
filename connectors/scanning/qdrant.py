"""Qdrant's local folders: `meta.json`, and one `storage.sqlite` of pickled points a collection. Source: §1d, §2.5.

Guarantees: points are read as kind `qdrant` reads them, which runs nothing. Whose a point is comes from its payload.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from connectors.qdrant import state_of
from connectors.scanning.database import SqliteReader, Unreadable
from connectors.scanning.look import TIMES, Found, Look, time_of
from connectors.scanning.report import DryRun, Place

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN_FILES = frozenset({"meta.json", ".lock"})
HISTORY = "history.db"
"""mem0's own database, beside its folder of vectors or above it."""
MEM0 = "mem0"
ENTITIES = "_entities"
_MEM0 = frozenset({"data", "hash", "user_id"})


def is_qdrant(folder: Path) -> bool:
    """Tell whether a folder is a local Qdrant's."""
    return (folder / "meta.json").is_file() and (folder / "collection").is_dir()


def collections_of(folder: Path) -> set[str] | None:
    """Return the collections that the folder's `meta.json` knows, None where it cannot be read."""
    try:
        known = msgspec.json.decode((folder / "meta.json").read_bytes())["collections"]
        return set(known) if isinstance(known, dict) else None
    except (OSError, msgspec.MsgspecError, KeyError, TypeError, UnicodeError):
        return None


def is_points(db: SqliteReader) -> bool:
    """Tell whether the tables are a collection's points."""
    return "points" in db.tables and set(db.tables["points"].columns) == {"id", "point"}


def scan_points(db: SqliteReader, look: Look, place: Place, collection: str) -> None:
    """Add one collection's points to its folder's place."""
    place.parts[collection] = 0
    bad = mem0 = 0
    try:
        for (blob,) in db.rows("SELECT point FROM points"):
            place.parts[collection] += 1
            place.rows += 1
            data = blob if isinstance(blob, bytes) else b""
            place.bytes += len(data)
            if (point := _point(data)) is None:
                bad += 1
                place.ages.add(None)
                continue
            _note(look, place, collection, point, data)
            mem0 += point["payload"].keys() >= _MEM0
    except Unreadable as error:
        place.unread.append(f"collection {collection} after {place.parts[collection]} points: {error}")
    if bad:
        place.unread.append(f"collection {collection}: {bad} points are no plain pickles")
    if mem0:
        place.notes.append(f"collection {collection}: {mem0} memories of mem0; its history database keeps their texts")


def _note(look: Look, place: Place, collection: str, point: Mapping[str, Any], data: bytes) -> None:
    payload = point["payload"]
    owner = look.owner_in(payload)
    at = next((found for name in TIMES if (found := time_of(payload.get(name))) is not None), None)
    place.ages.add(at)
    if owner is None:
        place.nobody += 1
    else:
        place.people.add([owner[1]])
        place.owner_fields[owner[0]] += 1
    if look.subject is not None:
        theirs = owner is not None and look.is_subject(owner[1])
        text = look.text()
        held = text is not None and not theirs and text.encode() in data
        before = place.dry_run or DryRun()
        place.dry_run = DryRun(items=before.items + theirs, mentions=before.mentions + held)
    if look.sink is not None and isinstance(point["id"], str | int):
        locator = {"collection": collection, "id": point["id"]}
        if place.kind == MEM0:
            if collection.endswith(ENTITIES):
                return
            locator = {"memory_id": str(point["id"])}
        look.sink(place, Found(locator=locator, owners=(owner,) if owner else (), at=at))


def _point(blob: bytes) -> dict[str, Any] | None:
    """Return id and payload of a row's point, None where kind `qdrant` could not read it either."""
    try:
        _, state = state_of(blob)
        identity, payload = state["id"], state.get("payload")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    held = {str(name): each for name, each in payload.items()} if isinstance(payload, dict) else {}
    return {"id": identity, "payload": held}

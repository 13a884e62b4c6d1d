"""What a scan looked for where it found nothing, and what to do then, in words for whoever typed the target.

Guarantees: names a path only as it was typed, its nearest folder that exists, and entries there that are spelt almost
alike; signs that a terminal would obey are written out. Never a secret of an address.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from connectors.scanning.look import OWNERS

if TYPE_CHECKING:
    from pathlib import Path

    from connectors.scanning.report import Scan

LOOKED_FOR = (
    "SQLite files with tables of LangGraph, mem0, Chroma, Phoenix or any others; folders of Chroma, Qdrant, LanceDB,"
    " git and `govern`; files of text, JSON and JSON lines"
)
TARGETS = "give a file or a folder in which an agent keeps its data, or the address of its database: postgresql://… or redis://…"
_INSTEAD = {
    "s3": "register the bucket as a store of kind s3",
    "http": "register the vendor as a store of kind http, or Chroma's server as one of kind chroma",
}
_MOST_ALIKE = 3
_SHOWN_OWNERS = 4


def plain(text: str) -> str:
    """Return a text without signs that a terminal would obey, on one line."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def nothing_at(path: Path) -> str:
    """Say what was looked for at a path where nothing lies, and what is spelt almost alike beside it."""
    missing = path.absolute()
    while not missing.parent.exists():
        missing = missing.parent
    said = f"there is no file or folder {missing.name} in {missing.parent}"
    try:
        alike = get_close_matches(missing.name, sorted(each.name for each in missing.parent.iterdir()), _MOST_ALIKE)
    except OSError:
        return plain(f"{said}, which may not be listed; {TARGETS}")
    return plain(f"{said}; did you mean {' or '.join(alike)}?" if alike else f"{said}; {TARGETS}")


def not_built(scheme: str) -> str:
    """Say what can be scanned in place of an address of this scheme."""
    instead = _INSTEAD.get(scheme.removesuffix("s"), TARGETS) if scheme != "s3" else _INSTEAD["s3"]
    return f"{scheme}:// is not built; a path, sqlite:, postgresql:// and redis:// are; {instead}"


def advise(scan: Scan) -> None:
    """Add to the notes what was looked for in vain, and how to be told more."""
    if not scan.places:
        scan.notes.append(f"looked for {LOOKED_FOR}")
        scan.notes.append(TARGETS)
    elif not any(place.owner_field() for place in scan.places):
        shown = ", ".join(OWNERS[:_SHOWN_OWNERS])
        scan.notes.append(
            f"no field of a usual name says whose something is ({shown} and {len(OWNERS) - _SHOWN_OWNERS} more were"
            " looked for); name yours with --owner-field"
        )

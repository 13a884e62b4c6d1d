"""The names of packages on the disk: a package has one while the artifact that it is has not ended.

Guarantees: a file gets its name whole, on the disk and after its artifact was registered. Where the artifact ended
before or meanwhile it has none afterwards; of a process that died in between, `take_from_ended` takes what it left.
A file that the registry never knew, as behind an older database, is left alone: nobody decided about it. Not here: the
file itself (`erasure.package_file`), and what ends a package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure.models import RequestRow
from erasure.package_file import give_name
from erasure.packages import STORE
from erasure.parts import Parts
from registry.artifact_rows import find_artifacts, open_details
from registry.keyed import chunks
from registry.models import Artifact
from vault.durable import sync_folder

_NAME = re.compile(r"(req_[0-9a-f]+)-([0-9]+)\.zip")


def name_of(request_id: str, attempt: int) -> str:
    """Under which name the package of a request's attempt lies in its tenant's folder."""
    return f"{request_id}-{attempt}.zip"


def give_to(parts: Parts, tenant_id: int, artifact: str, file: IO[bytes], path: Path) -> None:
    """Give a registered package its name, unless its artifact ended."""
    if not _is_there(parts, tenant_id, artifact):
        return
    give_name(file, path)
    # Whoever ended it meanwhile found no file and looks there no more.
    if not _is_there(parts, tenant_id, artifact):
        _take(path)


def take_from_ended(parts: Parts, tenant_id: int) -> int:
    """Remove the packages of a tenant that were registered and whose artifact ended; returns how many."""
    if parts.exports is None:
        return 0
    # Listed before the registry is asked: whatever has a name by then is registered by then.
    files = {file.name: file for file in (parts.exports / str(tenant_id)).glob("req_*.zip")}
    if not files:
        return 0
    with parts.transactions(tenant_id, write=False) as session:
        ended = files.keys() & _registered(session, tenant_id, files) - _there(session, parts, tenant_id, files)
    for name in ended:
        _take(files[name])
    return len(ended)


def _is_there(parts: Parts, tenant_id: int, artifact: str) -> bool:
    with parts.transactions(tenant_id, write=False) as session:
        found = find_artifacts(session, tenant_id, [artifact]).get(artifact)
        return found is not None and found.status != "erased"


def _take(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def _registered(session: Session, tenant_id: int, names: Iterable[str]) -> set[str]:
    """Those of these names whose attempt its request knows: it was registered, or ended before it was."""
    attempts = {name: (match[1], int(match[2])) for name in names if (match := _NAME.fullmatch(name))}
    known: dict[str, int] = {}
    for chunk in chunks(sorted({request for request, _ in attempts.values()})):
        rows = session.execute(
            sa.select(col(RequestRow.request_id), col(RequestRow.details)).where(
                col(RequestRow.tenant_id) == tenant_id, col(RequestRow.request_id).in_(chunk)
            )
        )
        known.update((request, (details.get("export") or {}).get("attempt", 0)) for request, details in rows)
    return {name for name, (request, attempt) in attempts.items() if attempt <= known.get(request, 0)}


def _there(session: Session, parts: Parts, tenant_id: int, names: Iterable[str]) -> set[str]:
    """The names to which an artifact leads that has not ended; all of them where one cannot be read."""
    rows = session.exec(
        select(Artifact).where(
            Artifact.tenant_id == tenant_id, Artifact.store == STORE, col(Artifact.status) != "erased"
        )
    ).all()
    found = open_details(session, parts.vault, tenant_id, rows)
    if len(found) < len(rows):
        return set(names)
    return {str(details.locator["path"]) for details in found.values()}

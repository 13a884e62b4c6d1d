"""Hands out an export, and says what every package says of classes, recipients, past requests and certificates.

Guarantees: an export is read in pieces and each hand-out is told the record. One that was erased or has expired is
answered by a package without content that names the certificates, and every copy that the request found with what
became of it; it calls itself empty only where nothing is left. Nothing is made up and nothing fails.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col, select

from erasure import copies, history
from erasure.answer_plans import past_requests, seal_of, terms_of
from erasure.certificate_rows import CertificateCut, CertificateKey, digest_of
from erasure.errors import ExportNotReady, NotBuilt
from erasure.export import REQUESTS, Contents, Totals, manifest
from erasure.manifest_file import Listing, json_bytes, pieces
from erasure.models import CertificateRow, RequestRow
from erasure.package_file import Package
from erasure.parts import Parts
from erasure.persons import people_of
from erasure.plan import instant_text
from erasure.request import CopyState, Right, State
from erasure.signed_file import unnamed
from ledger.entry import Kind
from registry import stores, subjects
from registry.acting import Acting
from registry.artifact_rows import by_numbers
from registry.artifacts import find_artifacts
from registry.keyed import chunks
from registry.models import Tenant as TenantRow
from retention.parts import destroyed_keys, split_ref
from vault.errors import VaultError
from vault.models import DataKey, KeyState
from vault.vault import Vault

STREAM_BYTES = 256 * 1024
EXPIRED = "the export has expired; ask again"
ERASING = "its erasure is approved"
APART = "it holds data of somebody who is told apart from the person by now; ask again"
CUT = "its bytes are not whole in the database; the controller's locked store keeps them"
JOINT = "not given out: somebody else asked in it too"
_READY = (State.COMPLETED, State.COMPLETED_WITH_EXCEPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handout:
    """A package as it goes out."""

    name: str
    size: int
    pieces: Iterator[bytes] = field(repr=False)


class _Held(NamedTuple):
    """A copy of a request, as far as a package without content tells of it."""

    copy_no: int
    kind: str
    ref: str
    artifact_id: int | None
    key_id: str | None
    data_class: str
    store: str
    state: str
    detail: str | None
    collateral: dict[str, Any] | None


def open_export(parts: Parts, acting: Acting, request_id: str, now: datetime) -> Handout:
    """The request's package. Raises: UnknownRequest, ExportNotReady, NotBuilt."""
    if parts.exports is None:
        raise NotBuilt("an export without a folder of exports")
    with parts.transactions(acting.tenant_id) as session:
        row = history.load(session, acting.tenant_id, request_id)
        if row.right not in (Right.ACCESS, Right.PORTABILITY):
            raise ExportNotReady(request_id, row.state, "only access and portability are answered by an export")
        kept = row.details.get("export")
        if row.state not in _READY or kept is None:
            raise ExportNotReady(request_id, row.state, f"the request is {row.state}")
        file = _file_of(session, parts.exports, row, kept)
        stream: IO[bytes] = _empty(session, parts, row, now) if file is None else file.open("rb")
        body = {"request": request_id, "by": acting.principal, "export": kept.get("artifact"), "empty": file is None}
        parts.record.announce(session, acting.tenant_id, Kind.CONTENT_READ, body, now)
    name = f"{request_id}.zip"
    return Handout(name=name, size=stream.seek(0, os.SEEK_END), pieces=_pieces(stream))


def _file_of(session: Session, folder: Path, row: RequestRow, kept: Mapping[str, Any]) -> Path | None:
    """The package's file while its artifact is there, and nobody in it was told apart from the person since."""
    if "file" not in kept or not people_of(session, row).issuperset(row.subjects):
        return None
    found = find_artifacts(session, row.tenant_id, [kept["artifact"]]).get(kept["artifact"])
    file = folder / str(row.tenant_id) / kept["file"]
    return file if found is not None and found.status == "live" and file.is_file() else None


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file as stream:
        stream.seek(0)
        while piece := stream.read(STREAM_BYTES):
            yield piece


def _empty(session: Session, parts: Parts, row: RequestRow, now: datetime) -> IO[bytes]:
    gone = subjects.fenced(session, row.tenant_id, row.subjects)
    why = EXPIRED
    if len(gone) == len(row.subjects):
        why = "everything about the person was erased, or its erasure is approved; see the certificates"
    elif not people_of(session, row).issuperset(row.subjects):
        why = APART
    out, asked, totals = unnamed(), [], Totals()
    with Listing() as listed, Listing() as files, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        package = Package(archive, files)
        for copy, line in _without_content(session, parts, row):
            listed.append(line)
            totals.count(line)
            if copy.kind == "request":
                asked.append(request_view(session, parts, row.tenant_id, copy.ref, frozenset()))
        package.add("requests.json", json_bytes(asked), now, store=REQUESTS)
        contents = contents_of(session, parts, row, totals, now=now)
        made = manifest(Contents(**{**contents, "copies": listed, "files": files, "note": why}))
        package.put("manifest.json", pieces(made), now)
    return out


def package_lines(session: Session, parts: Parts, row: RequestRow) -> Iterator[dict[str, Any]]:
    """Every copy of a request for an export with its state in the package as it would be handed out now."""
    kept = row.details.get("export")
    if kept is not None and parts.exports is not None and _file_of(session, parts.exports, row, kept) is not None:
        for page in _held(session, row):
            for copy in page:
                yield {"kind": copy.kind, "state": copy.state, "detail": copy.detail, "collateral": copy.collateral}
        return
    for copy, line in _without_content(session, parts, row):
        yield {**line, "collateral": copy.collateral}


def _held(session: Session, row: RequestRow) -> Iterator[list[_Held]]:
    return copies.pages(session, _Held, copies.of(row.tenant_id, row.request_id))


def _without_content(session: Session, parts: Parts, row: RequestRow) -> Iterator[tuple[_Held, dict[str, Any]]]:
    gone = subjects.fenced(session, row.tenant_id, row.subjects)
    why = ERASING if len(gone) == len(row.subjects) else EXPIRED
    for page in _held(session, row):
        left = _left(session, parts.vault, row.tenant_id, page)
        yield from ((copy, _line(copy, is_left=copy.copy_no in left, why=why)) for copy in page)


def _left(session: Session, vault: Vault, tenant_id: int, rows: Sequence[_Held]) -> set[int]:
    """The numbers of those copies of which something is still held: artifacts not erased, keys not destroyed."""
    ids = {copy.artifact_id for copy in rows if copy.artifact_id is not None}
    alive = {number for number, one in by_numbers(session, tenant_id, ids).items() if one.status != "erased"}
    keys = {copy.key_id for copy in rows if copy.key_id is not None}
    open_keys: set[str] = set()
    for chunk in chunks(sorted(keys)):
        query = sa.select(col(DataKey.key_id)).where(
            col(DataKey.tenant_id) == tenant_id, col(DataKey.key_id).in_(chunk)
        )
        open_keys.update(session.scalars(query.where(col(DataKey.state) != KeyState.DESTROYED.value)))
    refs = [copy.ref for copy in rows if copy.kind == "entry"]
    own = vault.part_infos(session, tenant_id, [split_ref(ref) for ref in refs])
    kept = {name for name, info in own.items() if info.state == KeyState.LIVE}
    ended = {ref for ref in refs if split_ref(ref) not in kept and destroyed_keys(session, tenant_id, ref)}
    return {
        copy.copy_no
        for copy in rows
        if copy.artifact_id in alive or copy.key_id in open_keys or (copy.kind == "entry" and copy.ref not in ended)
    }


def _line(copy: _Held, *, is_left: bool, why: str) -> dict[str, Any]:
    """What is not in a package without content, and why."""
    state = CopyState.ALREADY_ABSENT
    detail: str | None = "erased since it was asked for"
    if copy.kind == "request":
        state, detail = CopyState.EXPORTED, None
    elif is_left and copy.state == CopyState.EXPORTED:
        state, detail = CopyState.WITHHELD, why
    elif is_left:
        state, detail = CopyState(copy.state), copy.detail
    return {
        "copy": copy.copy_no,
        "kind": copy.kind,
        "id": copy.ref,
        "data_class": copy.data_class,
        "store": copy.store,
        "state": state.value,
        "detail": detail,
        "file": "requests.json" if copy.kind == "request" else None,
    }


def contents_of(session: Session, parts: Parts, row: RequestRow, totals: Totals, *, now: datetime) -> dict[str, Any]:
    """What a manifest says whatever was exported: terms, recipients, certificates; the rest is empty, or to be given.

    To be given: the listings of copies and files.
    """
    terms = terms_of(session, row.tenant_id)
    tenant = session.get(TenantRow, row.tenant_id)
    known = stores.in_force(session, row.tenant_id)
    named = sorted(totals.places.keys() & terms.keys())
    recipients: dict[str, list[dict[str, Any]]] = {}
    for name in named:
        places = sorted(totals.places[name] & known.keys())
        recipients[name] = [
            {"recipient": known[place].about["recipient"], "country": known[place].about.get("country")}
            for place in places
            if known[place].about.get("recipient")
        ]
    return {
        "request": row.request_id,
        "right": row.right,
        "regulation": row.regulation,
        "received_at": row.received_at,
        "made_at": now,
        "controller": {} if tenant is None else tenant.controller,
        "terms": [terms[name] for name in named],
        "recipients": recipients,
        "sources": {},
        "totals": totals,
        "entries": {},
        "decisions": 0,
        "certificates": certificates_of(session, row.tenant_id, past_requests(session, parts, row)),
    }


def certificates_of(session: Session, tenant_id: int, request_ids: Sequence[str]) -> list[dict[str, Any]]:
    """The certificates of erasure among these requests; one that the tables have not whole says so in its `note`."""
    mine = (col(CertificateRow.tenant_id) == tenant_id, col(CertificateRow.request_id).in_(request_ids))
    query = select(CertificateRow).where(*mine)
    return [
        {
            "request": row.request_id,
            "version": row.version,
            "issued_at": instant_text(row.issued_at),
            **_digest(session, CertificateKey(tenant_id, row.request_id, row.version, row.number)),
        }
        for row in session.exec(query.order_by(col(CertificateRow.request_id), col(CertificateRow.number))).all()
    ]


def _digest(session: Session, key: CertificateKey) -> dict[str, str | None]:
    try:
        return {"sha256": digest_of(session, key)}
    except CertificateCut:
        return {"sha256": None, "note": CUT}


def request_view(
    session: Session, parts: Parts, tenant_id: int, request_id: str, people: frozenset[int]
) -> dict[str, Any]:
    """A past request as its person gets it; what was said in it only where nobody but `people` was verified in it."""
    row = history.load(session, tenant_id, request_id)
    view: dict[str, Any] = {
        "id": row.request_id,
        "right": row.right,
        "regulation": row.regulation,
        "state": row.state,
        "received_at": instant_text(row.received_at),
        "due_at": instant_text(row.extended_until or row.due_at),
        "answered_at": None if row.answered_at is None else instant_text(row.answered_at),
        "completed_at": None if row.completed_at is None else instant_text(row.completed_at),
    }
    if not people.isdisjoint(row.subjects):
        view["said"] = _said(session, parts, row) if people.issuperset(row.subjects) else JOINT
    return view


def _said(session: Session, parts: Parts, row: RequestRow) -> dict[str, Any] | str:
    try:
        said = seal_of(session, parts, row).open("said", row.sealed)
    except VaultError:
        return "no longer kept"
    verified = {line["subject"] for line in said.get("identity", [])}
    names = [one["text"] for place, one in enumerate(said.get("subjects", [])) if place in verified]
    kept = {name: said.get(name) for name in ("channel", "note", "corrections", "conversation") if said.get(name)}
    return {"subjects": names, **kept}

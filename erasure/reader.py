"""What the desk and the auditor see: requests, plans, copies, certificates. Changes nothing.

Guarantees: opaque ids, counts, codes and dates; what a person said stays sealed.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from datetime import datetime
from typing import IO, Any

from sqlmodel import and_, col, or_, select

from erasure import history
from erasure.certificate_rows import newest_certificate, open_certificate
from erasure.copies import CHUNK
from erasure.errors import IllegalMove, ReportNotReady, StalePlan, UnknownRequest
from erasure.models import CopyRow, RequestRow, RequestSubject
from erasure.overlaps import warnings_of
from erasure.parts import Parts
from erasure.request import Right
from erasure.signed_file import SignedFile
from registry import subjects
from registry.acting import Acting
from registry.identifiers import parse_subject

_IN_MEMORY = 1 << 20


class Reader:
    """The reading verbs of API §6."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def get(self, acting: Acting, request_id: str) -> dict[str, Any]:
        """The request as it stands. Raises: UnknownRequest."""
        with self._parts.transactions(acting.tenant_id, write=False) as session:
            return history.view_of(session, history.load(session, acting.tenant_id, request_id))

    def requests(
        self,
        acting: Acting,
        *,
        state: str | None = None,
        right: str | None = None,
        due_before: datetime | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[dict[str, Any]]:
        """Requests in the order of their ids, those after a given one."""
        query = select(RequestRow).where(RequestRow.tenant_id == acting.tenant_id)
        if state is not None:
            query = query.where(RequestRow.state == state)
        if right is not None:
            query = query.where(RequestRow.right == right)
        if due_before is not None:
            first, second = col(RequestRow.due_at), col(RequestRow.extended_until)
            query = query.where(or_(second < due_before, and_(second.is_(None), first < due_before)))
        if after is not None:
            query = query.where(col(RequestRow.request_id) > after)
        with self._parts.transactions(acting.tenant_id, write=False) as session:
            rows = session.exec(query.order_by(col(RequestRow.request_id)).limit(limit))
            return [history.view_of(session, row) for row in rows]

    def search(
        self, acting: Acting, subject: str, *, after: str | None = None, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Requests that name a person, verified or not, in the order of their ids, those after a given one."""
        one = parse_subject(subject)
        with self._parts.transactions(acting.tenant_id, write=False) as session:
            lookup = subjects.lookup_of(self._parts.vault, acting.tenant_id, one)
            query = select(RequestSubject.request_id).where(
                RequestSubject.tenant_id == acting.tenant_id, RequestSubject.lookup == lookup
            )
            if after is not None:
                query = query.where(col(RequestSubject.request_id) > after)
            found = session.exec(query.distinct().order_by(col(RequestSubject.request_id)).limit(limit)).all()
            return [history.view_of(session, history.load(session, acting.tenant_id, name)) for name in found]

    def plan_view(self, acting: Acting, request_id: str) -> dict[str, Any]:
        """The plan as the contract shows it. Raises: as `plan_file`."""
        with self.plan_file(acting, request_id) as file:
            found: dict[str, Any] = json.loads(file.read())
            return found

    def plan_file(self, acting: Acting, request_id: str) -> IO[bytes]:
        """The same as JSON, in a file without a name that the caller closes: a copy takes half a kilobyte of it.

        Raises: IllegalMove while there is none, StalePlan once it was sent back.
        """
        with self._parts.transactions(acting.tenant_id, write=False) as session, ExitStack() as stack:
            row = history.load(session, acting.tenant_id, request_id)
            if changed := history.outdated(session, row):
                raise StalePlan(None, "", changed)
            if row.plan_hash is None:
                raise IllegalMove(row.state, "show a plan", "it was not planned yet")
            planned = row.details.get("plan", {})
            around = {
                "not_covered": planned.get("not_covered", []),
                "collateral": planned.get("collateral", {}),
                "warnings": warnings_of(session, row),
            }
            file = stack.enter_context(tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY))
            file.write(b'{"hash":' + _json(row.plan_hash) + b',"copies":[')
            mine = (CopyRow.tenant_id == acting.tenant_id, CopyRow.owner == request_id)
            query = select(CopyRow).where(*mine).order_by(col(CopyRow.copy_no)).execution_options(yield_per=CHUNK)
            for place, copy in enumerate(session.exec(query)):
                file.write((b"," if place else b"") + _json(history.copy_view(copy)))
            file.write(b"]," + _json(around)[1:])
            file.seek(0)
            stack.pop_all()
            return file

    def copies(
        self, acting: Acting, request_id: str, *, state: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Copies in their order, those after a number, all or those in a state."""
        query = select(CopyRow).where(
            CopyRow.tenant_id == acting.tenant_id, CopyRow.owner == request_id, col(CopyRow.copy_no) > after
        )
        if state is not None:
            query = query.where(CopyRow.state == state)
        with self._parts.transactions(acting.tenant_id, write=False) as session:
            history.load(session, acting.tenant_id, request_id)
            return [history.copy_view(row) for row in session.exec(query.order_by(col(CopyRow.copy_no)).limit(limit))]

    def certificate(self, acting: Acting, request_id: str, version: str | None = None) -> bytes:
        """The bytes of `certificate_file`. Raises: as it does."""
        with self.certificate_file(acting, request_id, version) as signed:
            return signed.read()

    def certificate_file(self, acting: Acting, request_id: str, version: str | None = None) -> SignedFile:
        """The newest certificate as it was signed, or the newest of a version, in a file that the caller closes.

        Raises: UnknownRequest; ReportNotReady, for `final` with the date from which it can be issued.
        """
        if version not in (None, "interim", "final"):
            raise UnknownRequest("certificate version", str(version))
        with self._parts.transactions(acting.tenant_id, write=False) as session:
            row = history.load(session, acting.tenant_id, request_id)
            if row.right != Right.ERASURE:
                raise IllegalMove(row.state, "show a certificate of erasure", f"it asks for {row.right}")
            found = newest_certificate(session, acting.tenant_id, request_id, version)
            if found is not None:
                return open_certificate(session, found)
            wanted = version or "interim"
            raise ReportNotReady(wanted, row.final_due_at if wanted == "final" else None, f"the request is {row.state}")


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

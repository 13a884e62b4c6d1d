"""Makes the export of an access or portability request, and hands it out.

Making, in order (one pass; a crash anywhere begins it again):
 1. select once more and add what is new, so that the counts are the registry's; stop while a human is waited for;
 2. write every copy into a zip that has no name yet: artifacts by store, then the record by class, then requests
    and, in the answer to a request for everything, the names by which the person is known;
 3. write the manifest with what became of each copy;
 4. in one transaction: register the file as an artifact of class `export`, with its expiry, and end the copies;
 5. give it its name in the folder of exports, unless its artifact ended (`erasure.package_names`). A crash before 5
    leaves a registered export without bytes, which the next pass replaces.

Guarantees: one item and some hundred lines are in memory at a time; what a store did not give is `failed` or
`unreachable`, never left out; parts about others are left out and counted, unless a human released them
(`erasure.exported_entries`); what became somebody else's since it was planned, by the registry or by its store's own
owner field, waits for a human too, and so does what is about more people by now than the human saw who released it
(`erasure.export_lines`). An export about a person whose erasure was approved meanwhile is not kept; of others it is
registered as about them too (`erasure.package_people`), and one of whom anybody cannot be named any more, or has their
erasure approved, is made anew without it. Where there is nothing left to hand out, an empty package says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import IO, Any, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col

from connectors.base import Item, owner_forms
from connectors.errors import ConnectorError
from erasure import answer_plans, copies, history
from erasure.errors import NotBuilt
from erasure.export import EXPORT_CLASS, REQUESTS, SOMEBODY_ELSES, Contents, Totals, is_somebody_elses, manifest
from erasure.export_lines import bring_up_to_date
from erasure.exported_entries import write_entries
from erasure.handout import contents_of, request_view
from erasure.manifest_file import Listing, json_bytes, pieces
from erasure.models import CopyRow, RequestRow
from erasure.package_file import Fate, Package, digest_of, make_folder, nameless_file, place_of, remove_unfinished
from erasure.package_names import give_to, name_of
from erasure.package_people import begin_again, everybody, known_names, others_of
from erasure.packages import STORE
from erasure.parts import Parts, Tenant
from erasure.plan import IDENTITY, VAULT, instant_text
from erasure.request import CopyState, State
from erasure.work import BY_HAND, end_of_try
from erasure.zip_directory import new_zip
from ledger.entry import Kind
from registry import artifacts, classes, stores, subjects
from registry.acting import Acting
from registry.classes import STARTER_CLASSES
from registry.errors import RegistryError

KEPT = timedelta(days=30)
_TO_READ = (CopyState.PENDING, CopyState.EXPORTED, CopyState.ALREADY_ABSENT)
_OPEN = (CopyState.PENDING, CopyState.AWAITING_HUMAN)
_REQUESTS_FILE = "requests.json"
_NAMES_FILE = "names.json"
READ_CHUNK = 200
_UNREACHED = (ConnectorError, RegistryError, OSError)
_README = "This package was made for you on {at}, as the answer to your request {request}.\n\n"
_TOLD = {
    "manifest.json": "what is in here, from where, why and for how long it is kept, and what was left out and why",
    "artifacts/": "copies of your data, by class",
    "record/": "what was said and done, one JSON object a line, by class",
    _REQUESTS_FILE: "your requests to us",
    _NAMES_FILE: "the names, addresses and numbers by which we know you",
}


class _Owned(NamedTuple):
    """How a store says whose an item is, and what it may say."""

    by: str | None
    mine: frozenset[str]


class _Wanted(NamedTuple):
    """A copy that is to be read from its store; what a human released is read whatever the store says of its owner."""

    copy_no: int
    ref: str
    artifact_id: int | None
    data_class: str
    method: str | None


class _Asked(NamedTuple):
    copy_no: int
    ref: str


class _Listed(NamedTuple):
    copy_no: int
    kind: str
    ref: str
    data_class: str
    store: str
    state: str
    detail: str | None


class _Tried(NamedTuple):
    copy_no: int
    state: str
    attempts: int
    started_at: datetime | None
    method: str | None


def make(parts: Parts, tenant: Tenant, request_id: str, now: datetime) -> None:
    """Make the export, or as much of it as is possible now. Raises: NotBuilt, and what database and log raise."""
    _Making(parts, tenant, request_id, now).run()


class _Making:
    def __init__(self, parts: Parts, tenant: Tenant, request_id: str, now: datetime) -> None:
        if parts.exports is None or parts.read is None:
            raise NotBuilt("an export without a folder of exports")
        self._parts = parts
        self._read = parts.read
        self._tenant = tenant
        self._id = request_id
        self._now = now
        self._folder = parts.exports / str(tenant.tenant_id)

    def run(self) -> None:
        """See the module."""
        if not bring_up_to_date(self._parts, self._tenant.tenant_id, self._id, self._now):  # 1
            return
        make_folder(self._folder)
        attempt = self._attempt()
        name = name_of(self._id, attempt)
        remove_unfinished(self._folder)
        with nameless_file(self._folder) as out, Listing(self._folder) as files:
            with new_zip(out) as archive:
                package = Package(archive, files)
                self._artifacts(package)
                write_entries(self._parts, self._read, self._tenant.tenant_id, self._id, package, self._now)
                self._requests(package)
                self._manifest(package)
            artifact = self._keep(package, out, attempt, name)
            if artifact is not None:
                give_to(self._parts, self._tenant.tenant_id, artifact, out, self._folder / name)

    def _attempt(self) -> int:
        with self._parts.transactions(self._tenant.tenant_id, write=False) as session:
            row = history.load(session, self._tenant.tenant_id, self._id)
            return int(row.details.get("export", {}).get("attempt", 0)) + 1

    # ── 2 ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _artifacts(self, package: Package) -> None:
        where = copies.of(self._tenant.tenant_id, self._id, *_TO_READ, kind="artifact")
        with self._parts.transactions(self._tenant.tenant_id, write=False) as session:
            known = stores.in_force(session, self._tenant.tenant_id)
            row = history.load(session, self._tenant.tenant_id, self._id)
            names = subjects.names_of(session, self._parts.vault, row.tenant_id, row.subjects)
            found = sorted(session.scalars(sa.select(col(CopyRow.store)).where(where).distinct()))
        mine = owner_forms(
            sorted({text for found in names.values() for one in found for text in (one.text, one.given)})
        )
        for name in found:
            try:
                if name not in known:
                    raise OSError(name)
                owned = _Owned(known[name].config.get("owner_field"), mine)
                with self._parts.connect(known[name], True) as connector:
                    for wanted in self._wanted(where, name):
                        self._export(package, connector, wanted, name, owned)
            except _UNREACHED:
                for wanted in self._wanted(where, name):
                    for copy in wanted:
                        if package.fates.get(copy.copy_no) is None:
                            package.fates.settle(copy.copy_no, CopyState.UNREACHABLE, "the store did not answer")

    def _wanted(self, where: sa.ColumnElement[bool], store: str) -> Iterator[list[_Wanted]]:
        """The copies of a store, each page read in a transaction of its own: none is open while the store works."""
        after, mine = 0, where & (col(CopyRow.store) == store)
        while True:
            with self._parts.transactions(self._tenant.tenant_id, write=False) as session:
                behind = mine & (col(CopyRow.copy_no) > after)
                page = next(copies.pages(session, _Wanted, behind, size=READ_CHUNK), None)
            if page is None:
                return
            yield page
            after = page[-1].copy_no

    def _export(self, package: Package, connector: Any, wanted: Sequence[_Wanted], store: str, owned: _Owned) -> None:
        numbers = [copy.artifact_id or 0 for copy in wanted]
        with self._parts.transactions(self._tenant.tenant_id, write=False) as session:
            rows = artifacts.by_numbers(session, self._tenant.tenant_id, numbers)
            details = artifacts.open_details(session, self._parts.vault, self._tenant.tenant_id, list(rows.values()))
        items = [
            Item(copy_id=str(copy.copy_no), locator=details[artifact].locator)
            for copy, artifact in zip(wanted, numbers, strict=True)
            if artifact in details
        ]
        for copy, artifact in zip(wanted, numbers, strict=True):
            if artifact in details:
                continue
            if artifact in rows and rows[artifact].status == "erased":
                package.fates.settle(copy.copy_no, CopyState.ALREADY_ABSENT, "erased meanwhile")
            else:
                package.fates.settle(copy.copy_no, CopyState.FAILED, "where it lies is not known any more")
        about = {copy.copy_no: copy for copy in wanted}
        for copy_id, content in connector.export(items, deadline=self._parts.store_seconds):
            copy = about[int(copy_id)]
            if content is None:
                package.fates.settle(copy.copy_no, CopyState.ALREADY_ABSENT, "not in its store any more")
                continue
            if copy.method != BY_HAND and is_somebody_elses(content, owned.by, owned.mine):
                package.fates.settle(copy.copy_no, CopyState.AWAITING_HUMAN, SOMEBODY_ELSES)
                continue
            suffix = _suffix(content)
            path = place_of(copy.data_class, copy.ref, suffix)
            told = {"copy": copy.copy_no, "artifact": copy.ref, "data_class": copy.data_class, "store": store}
            package.add(path, content, self._now, **told)
            package.fates.settle(copy.copy_no, CopyState.EXPORTED, None, suffix)
            row = rows.get(copy.artifact_id or 0)
            if row is not None and row.source_type:
                package.sources[copy.data_class].add(row.source_type)

    def _requests(self, package: Package) -> None:
        """The person's requests and names; none where the request is limited."""
        with self._parts.transactions(self._tenant.tenant_id, write=False) as session:
            row = history.load(session, self._tenant.tenant_id, self._id)
            wanted = copies.read(session, _Asked, copies.of(row.tenant_id, self._id, kind="request"))
            if not wanted:
                return
            found = [
                request_view(session, self._parts, row.tenant_id, copy.ref, frozenset(row.subjects)) for copy in wanted
            ]
            names = subjects.names_of(session, self._parts.vault, row.tenant_id, row.subjects)
            for copy in wanted:
                package.fates.settle(copy.copy_no, CopyState.EXPORTED)
        package.add(_REQUESTS_FILE, json_bytes(found), self._now, store=REQUESTS)
        known_as = sorted({one.given for person in names.values() for one in person})
        package.add(_NAMES_FILE, json_bytes(known_as), self._now, data_class=IDENTITY, store=VAULT)

    # ── 3 ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _manifest(self, package: Package) -> None:
        totals = Totals()
        with Listing(self._folder) as listed:
            with self._parts.transactions(self._tenant.tenant_id, write=False) as session:
                row = history.load(session, self._tenant.tenant_id, self._id)
                for page in copies.pages(session, _Listed, copies.of(row.tenant_id, self._id)):
                    for copy in page:
                        line = _line_of(copy, package.fates.get(copy.copy_no))
                        listed.append(line)
                        totals.count(line)
                contents = contents_of(session, self._parts, row, totals, now=self._now)
            self._readme(package)
            found = {
                "sources": {name: sorted(found) for name, found in package.sources.items()},
                "entries": package.entries,
                "decisions": package.decisions,
                "copies": listed,
                "files": package.files,
            }
            package.put("manifest.json", pieces(manifest(Contents(**{**contents, **found}))), self._now)

    def _readme(self, package: Package) -> None:
        """What lies in the package, and nothing that does not."""
        text = _README.format(at=instant_text(self._now), request=self._id)
        there = {"manifest.json", *package.places}
        text += "".join(f"{place:<16}{told}\n" for place, told in _TOLD.items() if place in there)
        package.add("README.txt", text.encode(), self._now)

    # ── 4 ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _keep(self, package: Package, out: IO[bytes], attempt: int, name: str) -> str | None:
        """Step 4; the artifact that the file is. None while it has to be made again, or where none is kept."""
        sha256, size = digest_of(out)
        with self._parts.transactions(self._tenant.tenant_id) as session:
            row = history.load(session, self._tenant.tenant_id, self._id, lock=True)
            if row.state != State.EXECUTING:
                return None
            again = self._end(session, package)
            closed = subjects.fenced(session, self._tenant.tenant_id, row.subjects)
            if again:
                return None
            artifact = None
            kept: dict[str, Any] = {"attempt": attempt, "made_at": instant_text(self._now)}
            kept |= {"sha256": sha256, "bytes": size}
            if len(closed) < len(row.subjects):
                others = others_of(session, row.tenant_id, self._id, row.subjects)
                names = known_names(session, self._parts.vault, row.tenant_id, everybody(others))
                gone = everybody(others) - names.keys()
                gone |= subjects.fenced(session, row.tenant_id, names.keys()).keys()
                if about := [number for number, people in others.items() if people & gone]:
                    begin_again(session, row.tenant_id, self._id, about)
                    return None
                artifact = self._register(session, row, name, names.values())
                kept |= {"artifact": artifact, "file": name, "expires_at": instant_text(self._now + KEPT)}
            row.details = {**row.details, "export": kept}
            session.add(row)
            counts = history.counts_of(session, row.tenant_id, self._id)
            body = {"request": self._id, "export": kept.get("artifact"), "sha256": sha256, "copies": counts}
            entry_id = self._parts.record.announce(session, row.tenant_id, Kind.EXPORT_MADE, body, self._now)
            exported = copies.of(row.tenant_id, self._id, CopyState.EXPORTED)
            copies.update(session, exported, evidence=entry_id)
            return artifact

    def _end(self, session: Session, package: Package) -> bool:
        """Write the fate of each copy; whether one of them is to be tried again."""
        again = False
        for page in copies.pages(session, _Tried, copies.of(self._tenant.tenant_id, self._id)):
            changes = {}
            for copy in page:
                fate = package.fates.get(copy.copy_no)
                if fate is not None:
                    changes[copy.copy_no] = change = self._ended(copy, fate)
                    again = again or change["state"] in _OPEN
            copies.write(session, self._tenant.tenant_id, self._id, changes)
        return again

    def _ended(self, copy: _Tried, fate: Fate) -> dict[str, Any]:
        """What a copy's row says by its fate."""
        attempts = copy.attempts + (copy.state != CopyState.EXPORTED)
        ended: dict[str, Any] = {"state": fate.state.value, "detail": fate.detail, "attempts": attempts}
        ended["started_at"] = copy.started_at or self._now
        if fate.state in (CopyState.UNREACHABLE, CopyState.FAILED):
            state = end_of_try(attempts, self._parts, fate.state).value
            return {**ended, "state": state, "detail": fate.detail or "", "started_at": self._now}
        if fate.state is CopyState.AWAITING_HUMAN:
            return ended
        method = BY_HAND if copy.method == BY_HAND else "read and written into the export"
        return {**ended, "finished_at": self._now, "method": method}

    def _register(self, session: Session, row: RequestRow, name: str, others: Iterable[str]) -> str:
        acting = Acting.system(tenant_id=self._tenant.tenant_id, tenant=self._tenant.name, log_id=self._tenant.log_id)
        if EXPORT_CLASS not in classes.in_force(session, row.tenant_id):
            classes.put_class(session, acting, EXPORT_CLASS, STARTER_CLASSES[EXPORT_CLASS], self._now)
        spec = {"kind": "files", "config": {"root": str(self._folder)}}
        stores.put_store(session, acting, STORE, spec, self._now, check_target=lambda *_: None)
        said = answer_plans.seal_of(session, self._parts, row).open("said", row.sealed)
        verified = sorted({line["subject"] for line in said["identity"]})
        item = {
            "data_class": EXPORT_CLASS,
            "store": STORE,
            "locator": {"path": name},
            "subjects": [*(said["subjects"][place]["text"] for place in verified), *others],
            "activity": {"kind": "export"},
            "expires_at": instant_text(self._now + KEPT),
        }
        result = artifacts.register(session, self._parts.vault, acting, [item], self._now)[0]
        return str(result["id"])


def _line_of(copy: _Listed, fate: Fate | None) -> dict[str, Any]:
    """A copy as the manifest lists it."""
    file = None
    if fate is not None and copy.kind == "request":
        file = _REQUESTS_FILE
    elif fate is not None and fate.suffix is not None:
        file = place_of(copy.data_class, copy.ref, fate.suffix)
    return {
        "copy": copy.copy_no,
        "kind": copy.kind,
        "id": copy.ref,
        "data_class": copy.data_class,
        "store": copy.store,
        "state": copy.state if fate is None else fate.state.value,
        "detail": copy.detail if fate is None else fate.detail,
        "file": file,
    }


def _suffix(content: bytes) -> str:
    try:
        json.loads(content)
    except ValueError:
        pass
    else:
        return "json"
    try:
        content.decode()
    except UnicodeDecodeError:
        return "bin"
    return "txt"

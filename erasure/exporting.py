"""Makes the export of an access or portability request, and hands it out.

Making, in order (one pass; a crash anywhere begins it again):
 1. select once more and add what is new, so that the counts are the registry's; stop while a human is waited for;
 2. write every copy into a zip that has no name yet: artifacts by store, then the record by class, then requests
    and, in the answer to a request for everything, the names by which the person is known;
 3. write the manifest with what became of each copy;
 4. in one transaction: register the file as an artifact of class `export`, with its expiry, and end the copies;
 5. give it its name in the folder of exports, unless its artifact ended meanwhile. A crash before 5 leaves a registered
    export without bytes, which the next pass replaces.

Guarantees: one item is in memory at a time; what a store did not give is `failed` or `unreachable`, never left out;
parts about others are left out and counted, unless a human released them (`erasure.exported_entries`); what became
somebody else's since it was planned, by the registry or by its store's own owner field, waits for a human too, and so
does what is about more people by now than the human saw who released it. An export about a person whose erasure was
approved meanwhile is not kept; of others it is registered as about them too (`erasure.package_people`). Where there is
nothing left to hand out, an empty package says why.
"""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple

from sqlmodel import Session

from connectors.base import Item, owner_forms
from connectors.errors import ConnectorError
from erasure import answer_plans, history
from erasure.additions import addendum, exceeds
from erasure.errors import NotBuilt
from erasure.export import EXPORT_CLASS, REQUESTS, SOMEBODY_ELSES, Contents, is_somebody_elses, manifest
from erasure.exported_entries import write_entries
from erasure.handout import contents_of, json_bytes, request_view
from erasure.models import CopyRow, RequestRow
from erasure.package_file import Package, digest_of, give_name, remove_unfinished, unnamed
from erasure.package_people import leave_out_who_goes, names_for, others_of
from erasure.packages import STORE
from erasure.parts import Parts, Tenant
from erasure.persons import leave_out_strangers
from erasure.plan import IDENTITY, VAULT, Plan, instant_text
from erasure.request import CopyState, State
from erasure.selector import select_subjects
from erasure.standing import claim_of
from erasure.work import BY_HAND, failed
from ledger.entry import Kind
from registry import artifacts, classes, stores, subjects
from registry.acting import Acting
from registry.classes import STARTER_CLASSES
from registry.errors import RegistryError

KEPT = timedelta(days=30)
_MAY_GO_OUT = (CopyState.PENDING, CopyState.EXPORTED, CopyState.AWAITING_HUMAN)
READ_CHUNK = 200
_UNREACHED = (ConnectorError, RegistryError, OSError)
_README = """This package was made for you on {at}, as the answer to your request {request}.

manifest.json   what is in here, from where, why and for how long it is kept, and what was left out and why
artifacts/      copies of your data, by class
record/         what was said and done, one JSON object a line, by class
requests.json   your requests to us
names.json      the names, addresses and numbers by which we know you
"""


class _Owned(NamedTuple):
    """How a store says whose an item is, what it may say, and the copies that a human released whatever it says."""

    by: str | None
    mine: frozenset[str]
    released: set[int]


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
        if not self._refresh():
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{self._id}-{self._attempt()}.zip"
        remove_unfinished(self._folder)
        with unnamed(self._folder) as out:
            with zipfile.ZipFile(out, "w", allowZip64=True) as archive:
                package = Package(archive)
                self._artifacts(package)
                write_entries(self._parts, self._read, self._tenant.tenant_id, self._id, package, self._now)
                self._requests(package)
                self._manifest(package)
            artifact = self._keep(package, out, name)
            if artifact is not None:
                give_name(out, self._folder / name)
                self._leave_none(artifact, self._folder / name)

    # ── 1 ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _refresh(self) -> bool:
        """Step 1; whether nothing waits for a human."""
        with self._parts.transactions(self._tenant.tenant_id) as session:
            row = history.load(session, self._tenant.tenant_id, self._id, lock=True)
            told_apart = leave_out_strangers(session, row)
            given = select_subjects(
                session,
                row.tenant_id,
                frozenset(row.subjects),
                owner=row.request_id,
                claim=claim_of(row),
                now=self._now,
            )
        fresh = answer_plans.plan_of(self._parts, row, given, self._now)
        with self._parts.transactions(self._tenant.tenant_id) as session:
            copies = history.copies_of(session, self._tenant.tenant_id, self._id)
            self._ask_about(session, copies, fresh)
            if told_apart:
                _withhold_of_others(session, copies, fresh)
            more = addendum([history.plan_copy_of(copy) for copy in copies], fresh).added
            if more:
                history.put_copies(session, self._tenant.tenant_id, self._id, more, {})
                body = {"request": self._id, "addendum": [copy.ref for copy in more]}
                self._parts.record.announce(session, self._tenant.tenant_id, Kind.REQUEST_STATE, body, self._now)
            copies = history.copies_of(session, self._tenant.tenant_id, self._id)
            leave_out_who_goes(session, copies, others_of(session, self._tenant.tenant_id, copies, row.subjects))
            return not any(copy.state == CopyState.AWAITING_HUMAN for copy in copies)

    @staticmethod
    def _ask_about(session: Session, copies: Sequence[CopyRow], fresh: Plan) -> None:
        """What is about others by now, and was not when it was planned, waits for a human."""
        asked = {(line.kind, line.ref): line for line in fresh.copies if line.state == CopyState.AWAITING_HUMAN}
        for copy in copies:
            line = asked.get((copy.kind, copy.ref))
            if line is None or copy.state not in (CopyState.PENDING, CopyState.EXPORTED):
                continue
            # Whoever released it saw so many others in it; of more they are asked again.
            if copy.method != BY_HAND or exceeds(line.collateral, copy.collateral):
                copy.state, copy.detail = CopyState.AWAITING_HUMAN, line.detail
                copy.collateral = None if line.collateral is None else dict(line.collateral)
                session.add(copy)
        session.flush()

    def _attempt(self) -> int:
        with self._parts.transactions(self._tenant.tenant_id, write=False) as session:
            row = history.load(session, self._tenant.tenant_id, self._id)
            return int(row.details.get("export", {}).get("attempt", 0)) + 1

    # ── 2 ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _copies(self, session: Session, kind: str) -> list[CopyRow]:
        rows = history.copies_of(session, self._tenant.tenant_id, self._id)
        return [copy for copy in rows if copy.kind == kind]

    def _artifacts(self, package: Package) -> None:
        with self._parts.transactions(self._tenant.tenant_id, write=False) as session:
            known = stores.in_force(session, self._tenant.tenant_id)
            row = history.load(session, self._tenant.tenant_id, self._id)
            names = subjects.names_of(session, self._parts.vault, row.tenant_id, row.subjects)
            by_store: dict[str, list[tuple[int, str, int, str]]] = defaultdict(list)
            released = set()
            for copy in self._copies(session, "artifact"):
                if copy.state in (CopyState.PENDING, CopyState.EXPORTED, CopyState.ALREADY_ABSENT):
                    by_store[copy.store].append((copy.copy_no, copy.ref, copy.artifact_id or 0, copy.data_class))
                if copy.method == BY_HAND:
                    released.add(copy.copy_no)
        mine = owner_forms(
            sorted({text for found in names.values() for one in found for text in (one.text, one.given)})
        )
        for name, wanted in sorted(by_store.items()):
            try:
                if name not in known:
                    raise OSError(name)
                owned = _Owned(known[name].config.get("owner_field"), mine, released)
                with self._parts.connect(known[name], True) as connector:
                    for start in range(0, len(wanted), READ_CHUNK):
                        self._export(package, connector, wanted[start : start + READ_CHUNK], name, owned)
            except _UNREACHED:
                for number, *_ in wanted:
                    package.fates.setdefault(number, (CopyState.UNREACHABLE, "the store did not answer"))

    def _export(
        self, package: Package, connector: Any, wanted: Sequence[tuple[int, str, int, str]], store: str, owned: _Owned
    ) -> None:
        with self._parts.transactions(self._tenant.tenant_id, write=False) as session:
            rows = artifacts.by_numbers(session, self._tenant.tenant_id, [number for _, _, number, _ in wanted])
            details = artifacts.open_details(session, self._parts.vault, self._tenant.tenant_id, list(rows.values()))
        items = [
            Item(copy_id=str(number), locator=details[artifact].locator)
            for number, _, artifact, _ in wanted
            if artifact in details
        ]
        about = {number: (ref, rows.get(artifact), data_class) for number, ref, artifact, data_class in wanted}
        for number, _, artifact, _ in wanted:
            if artifact in details:
                continue
            if artifact in rows and rows[artifact].status == "erased":
                package.fates[number] = (CopyState.ALREADY_ABSENT, "erased meanwhile")
            else:
                package.fates[number] = (CopyState.FAILED, "where it lies is not known any more")
        for copy_id, content in connector.export(items, deadline=self._parts.store_seconds):
            number = int(copy_id)
            ref, row, data_class = about[number]
            if content is None:
                package.fates[number] = (CopyState.ALREADY_ABSENT, "not in its store any more")
                continue
            if number not in owned.released and is_somebody_elses(content, owned.by, owned.mine):
                package.fates[number] = (CopyState.AWAITING_HUMAN, SOMEBODY_ELSES)
                continue
            path = f"artifacts/{data_class}/{ref}.{_suffix(content)}"
            package.add(path, content, self._now, copy=number, artifact=ref, data_class=data_class, store=store)
            package.fates[number], package.places[number] = (CopyState.EXPORTED, None), path
            if row is not None and row.source_type:
                package.sources[data_class].add(row.source_type)

    def _requests(self, package: Package) -> None:
        """The person's requests and names; none where the request is limited."""
        with self._parts.transactions(self._tenant.tenant_id, write=False) as session:
            row = history.load(session, self._tenant.tenant_id, self._id)
            wanted = self._copies(session, "request")
            if not wanted:
                return
            found = [
                request_view(session, self._parts, row.tenant_id, copy.ref, frozenset(row.subjects)) for copy in wanted
            ]
            names = subjects.names_of(session, self._parts.vault, row.tenant_id, row.subjects)
            for copy in wanted:
                package.fates[copy.copy_no] = (CopyState.EXPORTED, None)
                package.places[copy.copy_no] = "requests.json"
        package.add("requests.json", json_bytes(found), self._now, store=REQUESTS)
        known_as = sorted({one.given for person in names.values() for one in person})
        package.add("names.json", json_bytes(known_as), self._now, data_class=IDENTITY, store=VAULT)

    # ── 3 ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _manifest(self, package: Package) -> None:
        with self._parts.transactions(self._tenant.tenant_id, write=False) as session:
            row = history.load(session, self._tenant.tenant_id, self._id)
            copies = [
                {
                    "copy": copy.copy_no,
                    "kind": copy.kind,
                    "id": copy.ref,
                    "data_class": copy.data_class,
                    "store": copy.store,
                    "state": (fate := package.fates.get(copy.copy_no, (CopyState(copy.state), copy.detail)))[0].value,
                    "detail": fate[1],
                    "file": package.places.get(copy.copy_no),
                }
                for copy in history.copies_of(session, self._tenant.tenant_id, self._id)
            ]
            contents = contents_of(session, self._parts, row, copies, now=self._now)
        text = _README.format(at=instant_text(self._now), request=self._id)
        package.add("README.txt", text.encode(), self._now)
        made = manifest(
            Contents(
                **{
                    **contents,
                    "sources": {name: sorted(found) for name, found in package.sources.items()},
                    "entries": package.entries,
                    "decisions": package.decisions,
                    "files": list(package.files),
                }
            )
        )
        package.add("manifest.json", json_bytes(made), self._now)

    # ── 4 ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _keep(self, package: Package, out: IO[bytes], name: str) -> str | None:
        """Step 4; the artifact that the file is. None while a store may still be asked again, or where none is kept."""
        sha256, size = digest_of(out)
        with self._parts.transactions(self._tenant.tenant_id) as session:
            row = history.load(session, self._tenant.tenant_id, self._id, lock=True)
            if row.state != State.EXECUTING:
                return None
            copies = history.copies_of(session, self._tenant.tenant_id, self._id)
            again = self._end(session, copies, package)
            closed = subjects.fenced(session, self._tenant.tenant_id, row.subjects)
            if again:
                return None
            artifact = None
            kept: dict[str, Any] = {"attempt": self._attempt_of(name), "made_at": instant_text(self._now)}
            kept |= {"sha256": sha256, "bytes": size}
            if len(closed) < len(row.subjects):
                others = others_of(session, row.tenant_id, copies, row.subjects)
                people = frozenset[int]().union(*others.values())
                artifact = self._register(session, row, name, people)
                kept |= {"artifact": artifact, "file": name, "expires_at": instant_text(self._now + KEPT)}
            row.details = {**row.details, "export": kept}
            session.add(row)
            counts: dict[str, int] = defaultdict(int)
            for copy in copies:
                counts[copy.state] += 1
            body = {"request": self._id, "export": kept.get("artifact"), "sha256": sha256, "copies": dict(counts)}
            entry_id = self._parts.record.announce(session, row.tenant_id, Kind.EXPORT_MADE, body, self._now)
            for copy in copies:
                if copy.state == CopyState.EXPORTED:
                    copy.evidence = entry_id
                    session.add(copy)
            return artifact

    def _leave_none(self, artifact: str, file: Path) -> None:
        """Take the file away again where its artifact ended before the file had its name: nobody looks there again."""
        with self._parts.transactions(self._tenant.tenant_id, write=False) as session:
            found = artifacts.find_artifacts(session, self._tenant.tenant_id, [artifact]).get(artifact)
        if found is None or found.status == "erased":
            file.unlink(missing_ok=True)

    @staticmethod
    def _attempt_of(name: str) -> int:
        return int(name.removesuffix(".zip").rpartition("-")[2])

    def _end(self, session: Session, copies: Sequence[CopyRow], package: Package) -> bool:
        """Write the fate of each copy; whether one of them is to be tried again."""
        again = False
        for copy in copies:
            fate = package.fates.get(copy.copy_no)
            if fate is None:
                continue
            state, detail = fate
            copy.attempts += copy.state != CopyState.EXPORTED
            copy.started_at = copy.started_at or self._now
            if state in (CopyState.UNREACHABLE, CopyState.FAILED):
                failed(session, copy, self._parts, detail=detail or "", end=state)
                copy.started_at = self._now
                again = again or copy.state == CopyState.PENDING
            elif state is CopyState.AWAITING_HUMAN:
                copy.state, copy.detail, again = state, detail, True
            else:
                copy.state, copy.detail, copy.finished_at = state, detail, self._now
                copy.method = BY_HAND if copy.method == BY_HAND else "read and written into the export"
            session.add(copy)
        return again

    def _register(self, session: Session, row: RequestRow, name: str, others: frozenset[int]) -> str:
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
            "subjects": [
                *(said["subjects"][place]["text"] for place in verified),
                *names_for(session, self._parts.vault, row.tenant_id, others),
            ],
            "activity": {"kind": "export"},
            "expires_at": instant_text(self._now + KEPT),
        }
        result = artifacts.register(session, self._parts.vault, acting, [item], self._now)[0]
        return str(result["id"])


def _withhold_of_others(session: Session, copies: Sequence[CopyRow], fresh: Plan) -> None:
    """Leave out what was planned of somebody who is told apart from the person by now."""
    mine = {(line.kind, line.ref) for line in fresh.copies}
    for copy in copies:
        if (copy.kind, copy.ref) not in mine and copy.state in _MAY_GO_OUT:
            copy.state, copy.detail = CopyState.WITHHELD, "of somebody who is told apart from the person by now"
            session.add(copy)
    session.flush()


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

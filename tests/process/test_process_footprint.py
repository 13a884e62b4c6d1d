"""After an erasure nothing of the person is left with us: every file of ours is searched, byte by byte.

Searched are database, write-ahead log, objects, keys, spool, logs at their most talkative, traces and metrics as they
are sent, papers, HOME and the temporary folder of real processes. Looked for are the person's words in every plain
encoding, the keys that were destroyed, raw and wrapped, unsalted digests of the names, and the beginnings of vectors.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sqlite3
import struct
import threading
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlmodel import select

from api.settings import load
from api.wiring import Services, build
from connectors.base import Deadline
from connectors.residue import Needles
from erasure.models import CopyRow, RequestRow
from muniment import Recorder, subject
from muniment.errors import ApiProblem
from muniment.registry import Client
from registry import subjects
from registry.identifiers import parse_subject
from tests.process.conftest import wait_for
from tests.process.serving import Child, Nursery
from vault.models import DataKey

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
NAME = "Wilhelmina Featherstonehaugh"
STREET = "17 Quagmire Terrace, Puddleby"
EMAIL = "wilhelmina.f@puddleby.example"
PHONE = "+44 7700 900917"
CANARIES = [NAME, STREET, EMAIL, PHONE]
SUBJECT = f"email:{EMAIL}"
VECTOR = [((number * 7919) % 1013) / 1013 - 0.5 for number in range(48)]


class Searched:
    """A folder whose files are searched."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def files(self) -> dict[Path, bytes]:
        """Every file below the folder with its bytes, names included."""
        found = {}
        for path in sorted(self.base.rglob("*")):
            if path.is_file():
                with suppress(FileNotFoundError):
                    found[path] = str(path.relative_to(self.base)).encode() + b"\0" + path.read_bytes()
        return found

    def words(self, *texts: str) -> list[str]:
        """Where a text stands in any plain encoding."""
        needles, found = Needles([text.encode() for text in texts]), []
        for path in self.files():
            with path.open("rb") as file:
                hits = needles.count(file, Deadline("scan", 60))
            found += [f"{path.relative_to(self.base)}: {texts[number]} ({form})" for number, form in hits]
        return found

    def bytes(self, named: dict[str, bytes]) -> list[str]:
        """Where secret bytes stand, raw or as text."""
        forms = {
            f"{name} {form}": text
            for name, secret in named.items()
            for form, text in {
                "raw": secret, "hex": secret.hex().encode(), "HEX": secret.hex().upper().encode(),
                "base64": b64encode(secret).rstrip(b"=")[:-1], "base64url": urlsafe_b64encode(secret).rstrip(b"=")[:-1],
            }.items()
        }  # fmt: skip
        return [
            f"{path.relative_to(self.base)}: {name}"
            for path, body in self.files().items()
            for name, text in forms.items()
            if text in body
        ]


class Collector(ThreadingHTTPServer):
    """Takes traces and metrics as a collector of OpenTelemetry does, and keeps each as a file of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Kept)
        self.folder, self.numbers = folder, count()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class Kept(BaseHTTPRequestHandler):
    """Keeps what is sent: who sent it, where to, and the body."""

    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = self.server.folder / f"{self.path.rpartition('/')[2]}-{next(self.server.numbers)}"
        path.write_bytes(f"{self.path}\n{self.headers}".encode() + body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class House(Searched):
    """One installation of ours in that folder, run as real processes."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.data = base / "data"
        self.stores = base / "stores"
        self.papers = base / "papers"
        self.traces = base / "traces"
        for folder in (self.stores, self.papers, self.traces, base / "home", base / "temp", base / "logs"):
            folder.mkdir()
        self.collector = Collector(self.traces)
        self.targets = f"file:{self.stores}/**,sqlite:{self.stores}/**"
        environment = {
            "HOME": str(base / "home"), "TMPDIR": str(base / "temp"), "MUNIMENT_ALLOW_TARGETS": self.targets,
            "MUNIMENT_LOG_LEVEL": "debug", "MUNIMENT_KEK_GRACE": "PT0S",
            "MUNIMENT_OTLP_ENDPOINT": self.collector.url,
        }  # fmt: skip
        self.nursery = Nursery(base / "logs", environment)
        started = self.nursery.run(["init", "--data", str(self.data), "--json"])
        started.wait()
        self.tokens: dict[str, str] = json.loads(started.out.read_text())["tokens"]
        # Tokens are shown once, to whoever runs `init`; that output is not ours to keep.
        started.out.unlink()

    def close(self) -> None:
        """End what was started."""
        self.nursery.close()
        self.collector.close()

    @contextmanager
    def serving(self) -> Iterator[Callable[[str], Client]]:
        """The service as a process; yields a maker of clients."""
        child: Child = self.nursery.run(["serve", "--data", str(self.data), "--port", "0"])
        url = child.wait_ready()
        assert url is not None, child.out.read_text()
        self.url = url
        made: dict[str, Client] = {}
        try:
            yield lambda name: made.setdefault(name, Client(url, self.tokens[name], timeout=60))
        finally:
            for client in made.values():
                client.close()
            child.kill(signal.SIGTERM)
            child.wait()

    @contextmanager
    def opened(self, days: int = 0) -> Iterator[Services]:
        """The parts in this process, with the service's clock moved; nothing runs by itself."""
        settings = load(self.data, allow_targets=self.targets, clock_offset=timedelta(days=days),
                        kek_grace=timedelta(0))  # fmt: skip
        services = build(settings)
        services.start(sole=True, roles=frozenset())
        try:
            yield services
        finally:
            services.close()


def bring_in(house: House, client: Callable[[str], Client]) -> None:
    """An agent works with the person: said, derived, embedded, filed, asked for wrongly."""
    recorder = Recorder(house.url, house.tokens["writer"], spool=house.base / "spool")
    with subject(SUBJECT, conversation="conv_f"):
        for text in (f"My name is {NAME}.", f"I live at {STREET}, call me at {PHONE}."):
            recorder.record(kind="turn.user", body={"role": "user", "content": text})
        recorder.record(kind="turn.assistant", body={"role": "assistant", "content": f"Noted, {NAME}."})
    recorder.flush()
    recorder.close()
    spec = {
        "state": "file", "personal": True, "owner": "team", "description": "copies", "legal_basis": "consent",
        "subject_types": ["email"], "retention": {"keep": "P90D", "from": "created", "then": "erase"},
        "erasure": {"on_request": "erase", "required": "L2"},
    }  # fmt: skip
    platform = client("platform")
    platform.request("PUT", "/v1/data-classes/copy", spec)
    files, database = house.stores / "files", house.stores / "app.db"
    files.mkdir()
    (files / "letter.txt").write_text(f"Dear {NAME}, {STREET}, {EMAIL}")
    with sqlite3.connect(database) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE chunk (id TEXT PRIMARY KEY, text TEXT, vector BLOB, printed TEXT)")
        printed = json.dumps(VECTOR)
        db.execute("INSERT INTO chunk VALUES ('c1', ?, ?, ?)", (f"{NAME} {PHONE}", packed(48), printed))
    db.close()
    platform.request("PUT", "/v1/stores/files", {"kind": "files", "config": {"root": str(files)}})
    platform.request("PUT", "/v1/stores/app", {"kind": "sql", "config": {"url": f"sqlite:///{database}"}})
    place = {"store": "files", "locator": {"path": "letter.txt"}}
    about = {"data_class": "copy", "subjects": [SUBJECT]}
    chunk = {**about, "store": "app", "locator": {"table": "chunk", "key": {"id": "c1"}}, "sources": [place]}
    results = client("writer").artifacts([{**about, **place}, chunk])
    assert {result["status"] for result in results} == {"created"}
    for wrong in ({"data_class": NAME}, {"data_class": "copy", "store": STREET, "subjects": [EMAIL]}):
        assert client("writer").artifacts([wrong])[0]["status"] == "rejected"
    with pytest.raises(ApiProblem):
        client("legal").request("POST", "/v1/requests", {"right": PHONE, "subjects": [SUBJECT]})
    for wrong_path in (f"/v1/requests/{quote(EMAIL)}", f"/v1/{quote(NAME)}?street={quote(STREET)}"):
        with pytest.raises(ApiProblem):
            client("legal").request("GET", wrong_path)
    client("auditor").request("POST", "/v1/replay", {"stream": "conv_f"}, purpose="dispute")


def erase(house: House, client: Callable[[str], Client]) -> str:
    """The request from receipt to papers."""
    legal = client("legal")
    body = {"right": "erasure", "subjects": [SUBJECT], "regulation": "gdpr", "jurisdiction": "DE-BY",
            "timezone": "Europe/Berlin", "channel": "e-mail", "note": f"{NAME} is upset"}  # fmt: skip
    request = str(legal.request("POST", "/v1/requests", body)["id"])
    path = f"/v1/requests/{request}"
    check = {"identifier": SUBJECT, "method": "passport", "evidence": f"of {NAME}, {STREET}"}
    legal.request("POST", f"{path}/verify-identity", check)
    legal.request("POST", f"{path}/plan", {})
    client("legal2").request("POST", f"{path}/approve", {"plan_hash": legal.request("GET", f"{path}/plan")["hash"]})
    wait_for(lambda: legal.request("GET", path)["state"] == "completed", 60)
    for kind, suffix in (("application/json", "json"), ("text/html", "html"), ("application/pdf", "pdf")):
        report = legal.send("GET", f"{path}/report", None, {"Accept": kind}).body
        (house.papers / f"certificate.{suffix}").write_bytes(report)
        letter = "text/plain" if suffix == "json" else kind
        assert legal.send("GET", f"{path}/letter", None, {"Accept": letter}).body
    return request


def packed(length: int) -> bytes:
    return struct.pack(f"<{length}f", *VECTOR[:length])


def digests() -> dict[str, bytes]:
    """What a bare hash of the person's names would be."""
    texts = [SUBJECT, EMAIL, EMAIL.upper(), NAME, NAME.lower(), PHONE, f"email{EMAIL}", f"email\0{EMAIL}"]
    return {
        f"{name}({text})": hashlib.new(name, text.encode()).digest()
        for text in texts
        for name in ("sha256", "sha1", "md5")
    }


def keys_of(house: House) -> dict[str, bytes]:
    """Each key of the person: raw, wrapped, and the key-encryption keys of their groups, raw and as kept."""
    found: dict[str, bytes] = {}
    with house.opened() as services:
        [acting] = services.tenants()
        with services.database.transaction(acting.tenant_id, write=False) as session:
            numbers = set(subjects.find(session, services.vault, acting, [parse_subject(SUBJECT)]).values())
            rows = session.exec(select(DataKey).where(DataKey.subject_id.in_(numbers))).all()  # type: ignore[attr-defined]  # a column
            assert len(rows) >= 2
            opened = services.vault.open_keys(session, acting.tenant_id, [row.key_id for row in rows])
            for row in rows:
                found[f"{row.data_class} key"] = opened[row.key_id]
                found[f"{row.data_class} wrapped"] = row.wrapped or b""
                kek = services.keks.get(str(acting.tenant_id), row.group_no, row.epoch)
                found[f"kek {row.group_no}.{row.epoch}"] = kek
    assert all(len(secret) >= 32 for secret in found.values())
    return found


@pytest.mark.scenario("A2", "A24", "L38")
def test_nothing_of_an_erased_person_is_left_in_any_file_of_ours(tmp_path: Path) -> None:
    house = House(tmp_path)
    try:
        with house.serving() as client:
            bring_in(house, client)
        secrets = keys_of(house)
        wrapped = {name: secret for name, secret in secrets.items() if name.endswith("wrapped")}
        raw = {name: secret for name, secret in secrets.items() if not name.endswith("wrapped")}
        vector = {"vector": packed(32), "half": packed(8)}

        # The positive control: the search finds what is there, and keys never lie about raw.
        assert {text for text in CANARIES if house.words(text)} == set(CANARIES)
        assert len({line.split(": ")[1] for line in house.bytes(wrapped)}) == len(wrapped)
        assert house.bytes(vector)
        assert house.words(json.dumps(VECTOR)[:60])
        assert house.bytes(raw) == []
        ours = [path for path in house.files() if house.stores not in path.parents]
        assert not [line for line in house.words(*CANARIES) if not line.startswith("stores/")], "sealed from the start"
        assert len(ours) > 10

        with house.serving() as client:
            request = erase(house, client)
        spans = b"".join(path.read_bytes() for path in house.traces.glob("traces-*"))
        for told in (b"POST /v1/requests", b"/plan", b"/approve", b"http.response.status_code"):
            assert told in spans, "the erasure was traced"
        assert list(house.traces.glob("metrics-*"))
        assert house.words(*CANARIES) == []
        assert house.words(json.dumps(VECTOR)[:60]) == []
        assert house.bytes({**secrets, **vector, **digests()}) == []

        with house.opened(days=3) as services:
            services.keks.turn(services.clock.now(), force=True)
            services.jobs.work_once()
            [acting] = services.tenants()
            with services.database.transaction(acting.tenant_id, write=False) as session:
                row = session.get(RequestRow, (acting.tenant_id, request))
                assert row is not None
                assert row.details.get("final_issued")
                assert row.sealed is not None
                key = session.exec(select(DataKey).where(DataKey.subject_id == row.request_no)).one()
                opened = services.vault.open_keys(session, acting.tenant_id, [key.key_id])[key.key_id]
                copies = session.exec(select(CopyRow).where(CopyRow.owner == request)).all()
                said = {"said": row.sealed, "request key": opened, "request key wrapped": key.wrapped or b""}
                said |= {f"capture {copy.copy_no}": copy.sealed for copy in copies if copy.sealed}
        assert len(said) >= 5
        kept = {name: secret for name, secret in said.items() if name != "request key"}
        assert len({line.split(": ")[1].rsplit(" ", 1)[0] for line in house.bytes(kept)}) == len(kept)

        with house.opened(days=40) as services:
            assert services.jobs.tick("footprints")
        assert house.bytes(said) == []
        assert house.words(*CANARIES) == []
    finally:
        house.close()


def test_the_search_sees_a_key_that_somebody_wrote_down(tmp_path: Path) -> None:
    house = Searched(tmp_path)
    key = hashlib.sha256(str(time.time_ns()).encode()).digest()
    for number, text in enumerate((key, key.hex().encode(), b"x" + b64encode(key), urlsafe_b64encode(key) + b"y")):
        (house.base / f"note-{number}").write_bytes(b"about " + text)
    assert len({line.split(":")[0] for line in house.bytes({"key": key})}) == 4
    (house.base / NAME).write_bytes(b"")
    assert house.bytes({"name": NAME.encode()})

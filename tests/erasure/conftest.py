"""A tenant over real parts (SQLite, files, log, vault), a clock that tests move, and stores that can misbehave."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from api import models as api_models
from api.administration import create_tenant
from api.settings import load
from api.wiring import Services, build
from connectors.base import Connector
from connectors.memory import Faults, MemoryConnector, MemoryStore
from erasure.desk import Desk
from erasure.models import CopyRow
from erasure.parts import Parts, Tenant
from erasure.planning import Planner
from erasure.reader import Reader
from erasure.worker import run_due
from ledger.entry import uuid7
from registry import artifacts
from registry.acting import Acting
from registry.artifact_rows import find_artifact
from registry.classes import put_class
from registry.identifiers import parse_subject
from registry.models import StoreRow
from registry.playback import ReadEntry, read_entries
from registry.record import entry_row
from registry.sets import intern_set
from registry.stores import put_store
from registry.subjects import find_people
from registry.tenants import get_tenant
from tests import schema

START = datetime(2026, 6, 1, 9, tzinfo=UTC)
ADA = "email:ada@example.org"
BOB = "user:bob_7"
TABLES = api_models


class OddStore(MemoryConnector):
    """The store in memory behind the locators of kind `sql`, which is what it is registered as."""

    @staticmethod
    def _key(locator: Mapping[str, Any]) -> str:
        key = locator["key"]
        return MemoryConnector._key({"key": key["id"] if isinstance(key, Mapping) else key})


class World:
    """One tenant. `now` is what every verb is given."""

    def __init__(self, base: Path, database_url: str | None = None) -> None:
        self.base = base
        self.now = START
        self.files = base / "stores" / "cvs"
        self.files.mkdir(parents=True)
        self.database_file = base / "stores" / "app.db"
        with sqlite3.connect(self.database_file) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, owner TEXT, text TEXT)")
        allowed = f"file:{base}/stores/**,sqlite:{base}/stores/**"
        self._settings = load(base / "data", database_url=database_url, allow_targets=allowed)
        self.services: Services = build(self._settings)
        schema.bring(self.services.database)
        self.services.lease.take(self.services.clock.now(), force=True)
        made = create_tenant(self.services, "acme")
        self.log_key, self.certificate_key = made.log_key, made.certificate_key
        with self.services.database.unscoped() as session:
            row = get_tenant(session, "acme")
            self.tenant = Tenant(tenant_id=row.id, name=row.name, log_id=row.log_id)
        self.memory: dict[str, MemoryStore] = {}
        self.faults: dict[str, Faults] = {}
        self.parts = self._made()
        self.classes({"note": {}, "summary": {}})
        self.store("db", "sql", {"url": f"sqlite:///{self.database_file}", "owner_field": "owner"})
        self.store("cvs", "files", {"root": str(self.files)})

    def _made(self) -> Parts:
        return Parts(
            vault=self.services.vault,
            record=self.services.record,
            transactions=self.services.database.transaction,
            connect=self.connect,
            signer=self.services.certificate_signer,
            kek_grace=timedelta(0),
            store_seconds=5.0,
            truncate_log=self.services.database.truncate_wal,
            read=self.services.erasure.read,
            append=self.services.record.append,
            part_keys=self.services.erasure.part_keys,
            keep_part_rows=self.services.erasure.keep_part_rows,
            exports=self.services.exports_folder,
        )

    def start_again(self) -> None:
        """Another process over the same folder; the one before was closed, or killed."""
        self.services = build(self._settings)
        self.services.lease.take(self.services.clock.now(), force=True)
        self.parts = self._made()

    def acting(self, principal: str = "ann") -> Acting:
        return Acting(
            tenant_id=self.tenant.tenant_id,
            tenant=self.tenant.name,
            log_id=self.tenant.log_id,
            principal=principal,
            token_id=f"token-{principal}",
            roles=frozenset({"legal", "writer", "platform"}),
            stores=("*",),
            classes=("*",),
        )

    def connect(self, store: StoreRow, read_only: bool) -> Connector:
        if store.name in self.memory:
            faults = self.faults.get(store.name)
            return OddStore(self.memory[store.name], store.config, faults=faults, read_only=read_only)
        return self.services.connect(store, read_only)

    def classes(self, specs: Mapping[str, Mapping[str, Any]]) -> None:
        base = {
            "state": "record", "personal": True, "owner": "team", "description": "made up", "legal_basis": "contract",
            "retention": {"keep": "P90D", "from": "created", "then": "erase"},
            "erasure": {"on_request": "erase", "required": "L2"},
        }  # fmt: skip
        with self.parts.transactions(self.tenant.tenant_id) as session:
            for name, spec in specs.items():
                put_class(session, self.acting(), name, {**base, **spec}, self.now)

    def store(self, name: str, kind: str, config: Mapping[str, Any], **about: Any) -> None:
        with self.parts.transactions(self.tenant.tenant_id) as session:
            spec = {"kind": kind, "config": dict(config), **about}
            put_store(session, self.acting(), name, spec, self.now, check_target=lambda *_: None)

    def memory_store(self, name: str, faults: Faults | None = None) -> MemoryStore:
        """A registered store whose connector is in memory and keeps or breaks the contract."""
        self.store(name, "sql", {"url": f"sqlite:///{self.base}/stores/{name}.db"})
        self.memory[name] = MemoryStore()
        if faults is not None:
            self.faults[name] = faults
        return self.memory[name]

    def register(self, *items: Mapping[str, Any]) -> list[str]:
        with self.parts.transactions(self.tenant.tenant_id) as session:
            results = artifacts.register(
                session, self.services.vault, self.acting("writer"), [dict(item) for item in items], self.now
            )
        assert not [result for result in results if result["status"] == "rejected"], results
        return [result["id"] for result in results]

    def note(self, key: str, text: str, owner: str = ADA) -> str:
        """A row of the SQLite store, registered."""
        with sqlite3.connect(self.database_file) as db:
            db.execute("INSERT INTO note VALUES (?, ?, ?)", (key, owner, text))
        locator = {"table": "note", "key": {"id": key}}
        return self.register({"data_class": "note", "store": "db", "locator": locator, "subjects": [owner]})[0]

    def now_about(self, artifact: str, *subjects: str) -> None:
        """The same item about these people, as when one source of it went and another came: people that exist."""
        with self.parts.transactions(self.tenant.tenant_id) as session:
            named = [parse_subject(subject) for subject in subjects]
            found = find_people(session, self.services.vault, self.acting(), named)
            people = frozenset[int]().union(*found.values())
            row = find_artifact(session, self.tenant.tenant_id, artifact)
            row.set_id = row.own_set_id = intern_set(session, self.tenant.tenant_id, people, self.now)
            session.add(row)

    def file(self, name: str, text: str, subjects: Sequence[str] = (ADA,), sources: Sequence[str] = ()) -> str:
        """A file of the file store, registered."""
        (self.files / name).write_text(text)
        item: dict[str, Any] = {"data_class": "summary", "store": "cvs", "locator": {"path": name}}
        item |= {"subjects": list(subjects)} if subjects else {}
        item |= {"sources": list(sources)} if sources else {}
        return self.register(item)[0]

    def keep_in_memory(self, store: str, key: str, text: str, owner: str = ADA) -> str:
        self.memory[store].put(key, text.encode(), owner=owner)
        return self.register(
            {"data_class": "note", "store": store, "locator": {"table": "t", "key": {"id": key}}, "subjects": [owner]}
        )[0]

    def say(self, text: str, subjects: Sequence[str] = (ADA,), stream: str = "conv_1") -> str:
        """An entry of the record; how it was answered."""
        return self._say(text, subjects, stream, "transcript")[1]

    def say_as(
        self, text: str, subjects: Sequence[str] = (ADA,), stream: str = "conv_1", data_class: str = "transcript"
    ) -> str:
        """An entry of the record that is taken in; its id."""
        entry_id, status = self._say(text, subjects, stream, data_class)
        assert status == "stored", status
        return entry_id

    def _say(self, text: str, subjects: Sequence[str], stream: str, data_class: str) -> tuple[str, str]:
        entry = {
            "id": uuid7(self.now), "stream": stream, "kind": "turn.user", "at": self.now.isoformat(),
            "data_class": data_class, "subjects": list(subjects), "body": {"content": text},
        }  # fmt: skip
        result = self.services.record.append(self.acting("writer"), [json.dumps(entry).encode()], self.now)
        return str(entry["id"]), str(result.results[0]["status"])

    def read(self, entry_id: str) -> ReadEntry:
        """An entry as a reader finds it."""
        with self.parts.transactions(self.tenant.tenant_id, write=False) as session:
            row = entry_row(session, self.tenant.tenant_id, entry_id)
            assert row is not None
            return read_entries(session, self.services.vault, self.services.log, self.tenant.tenant_id, [row])[0]

    def text_of(self, entry_id: str) -> str | None:
        """What was said in an entry, None where nobody can read it."""
        data = self.read(entry_id).parts[0].data
        return None if data is None else str(json.loads(data)["content"])

    # ── the legal desk ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def desk(self) -> Desk:
        return Desk(self.parts)

    @property
    def planner(self) -> Planner:
        return Planner(self.parts)

    @property
    def reader(self) -> Reader:
        return Reader(self.parts)

    def ask(self, *subjects: str, **more: Any) -> str:
        """A verified request."""
        spec = {
            "right": "erasure", "subjects": list(subjects or (ADA,)), "regulation": "gdpr", "jurisdiction": "DE-BY",
            "timezone": "Europe/Berlin", **more,
        }  # fmt: skip
        request = str(self.desk.create(self.acting("ann"), spec, self.now)["id"])
        for subject in subjects or (ADA,):
            self.verify(request, subject)
        return request

    def verify(self, request: str, subject: str = ADA, principal: str = "ann") -> dict[str, Any]:
        return self.desk.verify_identity(
            self.acting(principal), request, identifier=subject, method="passport", evidence=None, now=self.now
        )

    def plan(self, request: str) -> dict[str, Any]:
        return self.planner.plan(self.acting("ann"), request, self.now)

    def approve(self, request: str, principal: str = "carol") -> dict[str, Any]:
        hash_ = self.reader.plan_view(self.acting(), request)["hash"]
        return self.planner.approve(self.acting(principal), request, hash_, self.now)

    def work(self, rounds: int = 8) -> None:
        """Let the worker come back until its waits are over."""
        for _ in range(rounds):
            run_due(self.parts, self.tenant, self.now)
            self.now += timedelta(minutes=1)

    def erase(self, *subjects: str) -> str:
        """A request from receipt through the worker."""
        request = self.ask(*subjects)
        self.plan(request)
        self.approve(request)
        self.work()
        return request

    def state(self, request: str) -> str:
        return str(self.reader.get(self.acting(), request)["state"])

    def copy_states(self, request: str) -> dict[str, str]:
        found = self.reader.copies(self.acting(), request)
        return {str(copy.get("artifact") or copy.get("key") or copy.get("entry")): copy["state"] for copy in found}

    def rows(self, request: str) -> list[CopyRow]:
        with self.parts.transactions(self.tenant.tenant_id, write=False) as session:
            return list(session.exec(select(CopyRow).where(CopyRow.owner == request)))

    def change(self, **parts: Any) -> None:
        self.parts = replace(self.parts, **parts)

    def bytes_left(self, *needles: str) -> list[str]:
        """Where a text still lies, in any file of data, keys and stores."""
        hits = []
        for path in sorted(self.base.rglob("*")):
            if path.is_file():
                data = path.read_bytes()
                hits += [f"{path.relative_to(self.base)}: {needle}" for needle in needles if needle.encode() in data]
        return hits

    def close(self) -> None:
        self.services.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[[str], World]]:
    """Makes worlds that are equal but for their random ids."""
    made: list[World] = []

    def make(name: str) -> World:
        made.append(World(tmp_path / name))
        return made[-1]

    yield make
    for one in made:
        one.close()

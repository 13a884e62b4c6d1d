"""A tenant over real parts, a table store with real rows, and a clock that tests move."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.administration import create_tenant
from api.settings import load
from api.wiring import Services, build
from erasure.parts import Parts
from erasure.payload_expiry import parts_gone
from erasure.request_desk import RequestDesk
from erasure.sweep_copies import Sweeps
from ledger.entry import uuid7
from ledger.expiry import Expiry
from ledger.holding import Holding
from registry import artifacts
from registry.acting import Acting
from registry.classes import put_class
from registry.models import Artifact
from registry.stores import put_store
from registry.tenants import get_tenant
from retention.events import Recorded, record_event
from retention.holds import Holds
from retention.sweep import Brakes
from tests import schema

START = datetime(2040, 6, 1, 9, tzinfo=UTC)
ADA = "email:ada@example.org"
BOB = "email:bob@example.org"
RECRUITING = Path(__file__).resolve().parents[2] / "examples" / "recruiting" / "classes.yaml"


@cache
def _recruiting() -> Any:
    return yaml.safe_load(RECRUITING.read_text(encoding="utf-8"))


class House:
    """One tenant with the recruiting classes and one table; `now` is what every verb is given."""

    def __init__(self, base: Path, database_url: str | None = None, **more: Any) -> None:
        self.now = START
        self.file = base / "stores" / "app.db"
        self.file.parent.mkdir(parents=True)
        with sqlite3.connect(self.file) as db:
            db.execute("CREATE TABLE note (id TEXT PRIMARY KEY, owner TEXT, text TEXT)")
        settings = load(base / "data", database_url=database_url, allow_targets=f"sqlite:{base}/stores/**", **more)
        self.services: Services = build(settings)
        # Beyond any machine's own date, so that locks of what is written lie in the future.
        self.services.clock.move(START - self.services.clock.now())
        schema.bring(self.services.database)
        self.services.lease.take(self.services.clock.now(), force=True)
        create_tenant(self.services, "acme")
        with self.services.database.unscoped() as session:
            row = get_tenant(session, "acme")
            self.tenant_id, self.log_id = row.id, row.log_id
        self.desk = RequestDesk()
        self.parts = Parts(
            vault=self.services.vault,
            record=self.services.record,
            transactions=self.services.database.transaction,
            connect=self.services.connect,
            signer=self.services.certificate_signer,
            kek_grace=timedelta(0),
            truncate_log=self.services.database.truncate_wal,
            payload=Expiry(self.services.locked, self.services.database.transaction, parts_gone),
            holding=Holding(self.services.locked, self.services.database.transaction, self.services.hot),
        )
        self.sweeps = Sweeps(self.parts, brakes=Brakes(jump=timedelta(days=10_000)))
        self.holds = Holds(
            vault=self.services.vault,
            record=self.services.record,
            transactions=self.services.database.transaction,
            desk=self.desk,
        )
        self.classes(_recruiting())
        with self.transaction() as session:
            spec = {"kind": "sql", "config": {"url": f"sqlite:///{self.file}", "owner_field": "owner"}}
            put_store(session, self.acting(), "app", spec, self.now, check_target=lambda *_: None)

    def transaction(self, *, write: bool = True) -> Any:
        return self.services.database.transaction(self.tenant_id, write=write)

    def acting(self, principal: str = "ann", *roles: str) -> Acting:
        return Acting(
            tenant_id=self.tenant_id,
            tenant="acme",
            log_id=self.log_id,
            principal=principal,
            token_id=f"token-{principal}",
            roles=frozenset(roles or ("legal", "writer", "platform")),
            stores=("*",),
            classes=("*",),
        )

    def classes(self, specs: Mapping[str, Mapping[str, Any]]) -> None:
        with self.transaction() as session:
            for name, spec in specs.items():
                put_class(session, self.acting(), name, spec, self.now)

    def plain(self, name: str, **more: Any) -> None:
        """A class with a plain clock, changed as asked."""
        base = {
            "state": "conversation", "personal": True, "owner": "team", "description": "made up",
            "legal_basis": "contract", "retention": {"keep": "P90D", "from": "created", "then": "erase"},
            "erasure": {"on_request": "erase", "required": "L2"},
        }  # fmt: skip
        self.classes({name: {**base, **more}})

    def note(self, key: str, data_class: str = "cv_file", owner: str = ADA, **more: Any) -> str:
        """A row of the store with its registration; returns the public id."""
        with sqlite3.connect(self.file) as db:
            db.execute("INSERT INTO note VALUES (?, ?, ?)", (key, owner, f"said by {owner} in {key}"))
        item = {
            "data_class": data_class,
            "store": "app",
            "locator": {"table": "note", "key": {"id": key}},
            "subjects": [owner],
            **more,
        }
        with self.transaction() as session:
            [result] = artifacts.register(session, self.services.vault, self.acting(), [item], self.now)
        assert result["status"] == "created", result
        return str(result["id"])

    def rows(self) -> set[str]:
        """The keys that are still in the store."""
        with sqlite3.connect(self.file) as db:
            return {key for (key,) in db.execute("SELECT id FROM note")}

    def artifact(self, public_id: str) -> Artifact:
        with self.transaction(write=False) as session:
            return artifacts.find_artifact(session, self.tenant_id, public_id)

    def event(self, name: str, at: datetime | None = None, subject: str | None = None, **key: str) -> Recorded:
        with self.transaction() as session:
            return record_event(
                session, self.services.vault, self.acting(), name, key, at=at or self.now, subject=subject, now=self.now
            )

    def say(self, stream: str, text: str, data_class: str = "screening_record", owner: str = ADA) -> str:
        """An entry of the record; returns its id."""
        entry = {
            "id": str(uuid7(self.now)),
            "stream": stream,
            "kind": "note",
            "at": self.now.isoformat(),
            "data_class": data_class,
            "subjects": [owner],
            "body": {"text": text},
        }
        [result] = self.services.record.append(self.acting(), [json.dumps(entry).encode()], self.now).results
        assert result["status"] == "stored", result
        return str(entry["id"])

    def sweep(self, principal: str = "ann", **more: Any) -> dict[str, Any]:
        """A run, carried as far as it goes."""
        run = self.sweeps.start(self.acting(principal), self.now, **more)
        self.sweeps.run_due(self.tenant_id, self.now)
        return self.sweeps.get(self.acting(), run["id"])


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """One tenant, once on each database."""
    url = None
    if request.param == "postgres":
        make: Callable[..., str] = request.getfixturevalue("make_postgres_database")
        url = make(schema.prepare)
    built = House(tmp_path, url)
    yield built
    built.services.close()

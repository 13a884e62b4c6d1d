"""Erasers of other products, each in a Python of its own: none of them is a dependency of ours.

`--eraser bench.forget.peers:VectorForget` and `:Lethe`. Make an environment with the product and `psycopg[binary]`, and
name its interpreter: `FORGET_VECTOR_FORGET_PYTHON=…/bin/python`, `FORGET_LETHE_PYTHON=…/bin/python`. A product is
given what its documents ask for (greenfield: the ids or the column that names the person; brownfield: the column alone,
where it can do with that) and its report is taken at its word, a limit that the report states counted in its favour.

Tried with vector-forget 0.1.0 and lethe-delete 0.7.3. Three others have no adapter, because nothing of the bed is
theirs to erase: tombstone-erase knows what its own LangChain wrapper wrote, inspeximus its own store, and forgetlayer
drives the mem0 library, which the bed does not run.
"""

from __future__ import annotations

import json
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from bench.forget.bed import Person
from bench.forget.erasers import Claim, Kept, Track
from bench.forget.places import OWNER, Place

_SECONDS = 300


class PeerMissing(Exception):
    """No interpreter with the product was named."""


class Peer(ABC):
    """A product that is called through a few lines in its own interpreter."""

    name: str
    python: str
    """The variable that names the interpreter."""
    drives: tuple[str, ...]
    """Places that the product can erase in."""
    program: str
    """Reads what to do as JSON, prints what the product reports as JSON in its last line."""

    def erase(self, places: Sequence[Place], person: Person, track: Track, work: Path) -> Mapping[str, Claim]:
        """Erases in the places that the product drives; the others are not covered."""
        found = {place.name: Claim(outcome="not_covered") for place in places}
        for place in places:
            if place.name in self.drives:
                asked = self.asked(place, person, track)
                found[place.name] = found[place.name] if asked is None else self.claim(self._run(asked, work))
        return found

    def record(self) -> Kept | None:
        """What these products keep is in the database that they work on, where the oracle looks."""
        return None

    @abstractmethod
    def asked(self, place: Place, person: Person, track: Track) -> dict[str, Any] | None:
        """What the product is told; None where it cannot do with what the track gives."""

    @abstractmethod
    def claim(self, said: Mapping[str, Any]) -> Claim:
        """What the product's report claims in our words."""

    def _run(self, asked: Mapping[str, Any], work: Path) -> dict[str, Any]:
        interpreter = os.environ.get(self.python, "")
        if not interpreter:
            message = f"{self.python} names no interpreter with {self.name}"
            raise PeerMissing(message)
        done = subprocess.run(
            [interpreter, "-c", self.program],
            input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=work,
        )  # fmt: skip
        if done.returncode:
            return {"failed": done.stderr.strip().rpartition("\n")[2]}
        said: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
        return said


class VectorForget(Peer):
    """Deletes by the person's column, rebuilds vector indexes and vacuums."""

    name, python, drives = "vector-forget", "FORGET_VECTOR_FORGET_PYTHON", ("pgvector",)
    program = """
import json, sys, psycopg
from vector_forget import forget
from vector_forget.pgvector import PgVectorStore
told = json.load(sys.stdin)
with psycopg.connect(told["address"], autocommit=True) as db:
    db.execute("CREATE EXTENSION IF NOT EXISTS pgstattuple")
with psycopg.connect(told["address"]) as db:
    store = PgVectorStore(db, table=told["table"], subject_col=told["column"])
    report = forget(told["person"], store)
    print(json.dumps({"ok": report.ok, "visibility": report.visibility, "residue": report.residue}))
"""

    @override
    def asked(self, place: Place, person: Person, track: Track) -> dict[str, Any]:
        return {"address": place.scanned[0], "table": "notes", "column": OWNER, "person": person.id}

    @override
    def claim(self, said: Mapping[str, Any]) -> Claim:
        if said.get("visibility") != "PASS":
            return Claim(outcome="failed", note=str(said))
        # Its report says of "VERIFIED" that earlier bytes may not be overwritten, which is no claim about files.
        return Claim(outcome="erased", level="L1", note=f"ok {said['ok']}, residue {said['residue']}")


class Lethe(Peer):
    """Deletes by ids that were tagged when they were written, and asks again."""

    name, python, drives = "lethe-delete", "FORGET_LETHE_PYTHON", ("pgvector", "postgres")
    program = """
import json, sys, psycopg
from lethe import Lethe
from lethe.audit import AuditLog
from lethe.connectors.pgvector import PgVectorConnector
from lethe.ledger import Ledger
from lethe.signing import Signer
told = json.load(sys.stdin)
with psycopg.connect(told["address"]) as db:
    ledger, audit = Ledger(db), AuditLog(db)
    ledger.init_schema()
    audit.init_schema()
    lethe = Lethe(ledger=ledger, audit=audit, signer=Signer.generate(), connectors={"pgvector": PgVectorConnector(db)},
                  salt="a salt of the benchmark, as long as one has to be")
    said = []
    for table, identities in told["items"].items():
        for identity in identities:
            lethe.tag(told["person"], "pgvector", table, identity)
        said.append(lethe.forget(told["person"]).payload)
    print(json.dumps({"all_verified": all(each["all_verified"] for each in said),
                      "records_deleted": sum(each["records_deleted"] for each in said)}))
"""

    @override
    def asked(self, place: Place, person: Person, track: Track) -> dict[str, Any] | None:
        if track == "brownfield":
            return None
        # Table after table, children first, as the foreign keys ask.
        items: dict[str, list[str]] = {}
        for record in reversed(place.records):
            if record.people == (person.id,):
                table = record.where.get("table", record.where.get("collection"))
                items.setdefault(str(table), []).append(record.name)
        return {"address": place.scanned[0], "person": person.id, "items": items}

    @override
    def claim(self, said: Mapping[str, Any]) -> Claim:
        if not said.get("all_verified"):
            return Claim(outcome="failed", note=str(said))
        return Claim(outcome="erased", level="L1", note=f"{said['records_deleted']} records, all verified")

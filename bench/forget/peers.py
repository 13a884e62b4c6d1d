"""Erasers of other products, each in a Python of its own: none of them is a dependency of ours.

`--eraser bench.forget.peers:VectorForget`, `:Lethe`, `:ForgetLayer` and `:Tombstone`. Make an environment with the
product and what it drives (`psycopg[binary]`; `mem0ai==2.2.1`; `chromadb==1.5.9`), and name its interpreter:
`FORGET_VECTOR_FORGET_PYTHON=…/bin/python`, and so on. A product is given what its documents ask for (greenfield: the
ids or the column that names the person; brownfield: the column alone, where it can do with that) and its report is
taken at its word, a limit that the report states counted in its favour.

Tried with vector-forget 0.1.0, lethe-delete 0.7.3, forgetlayer 0.1.0 and tombstone-erase 0.1.1. inspeximus 3.23.1 has
no adapter: what it erases is in its own store, which is none of the ten.
"""

from __future__ import annotations

import json
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from bench.forget.bed import DIMENSIONS, Person
from bench.forget.erasers import Claim, Kept, Track
from bench.forget.places import OWNER, Place, parts_of

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


class ForgetLayer(Peer):
    """Deletes a person's memories through the mem0 library, then their rows of its history."""

    name, python, drives = "forgetlayer", "FORGET_FORGETLAYER_PYTHON", ("mem0",)
    program = """
import json, os, sys
told = json.load(sys.stdin)
os.environ["MEM0_TELEMETRY"], os.environ["MEM0_DIR"] = "False", os.getcwd()
from forgetlayer import Mem0Adapter
from mem0 import Memory
keyed = {"provider": "openai", "config": {"api_key": "none"}}
memory = Memory.from_config({
    "vector_store": {"provider": "qdrant", "config": {
        "path": told["folder"] + "/qdrant", "on_disk": True, "collection_name": "mem0",
        "embedding_model_dims": told["dimensions"]}},
    "history_db_path": told["folder"] + "/history.db", "llm": keyed, "embedder": keyed})
class Embedder:
    def embed(self, text, memory_action=None):
        return [0.5] * told["dimensions"]
    def embed_batch(self, texts, memory_action=None):
        return [self.embed(text) for text in texts]
memory.embedding_model = Embedder()
adapter = Mem0Adapter(memory, told["folder"] + "/history.db")
done = adapter.cascade_delete_owner(told["person"])
residue = adapter.attack(told["person"], told["secret"], told["secret"])
memory.vector_store.client.close()
print(json.dumps({"counts": done.counts, "residue": residue.residue_score}))
"""

    @override
    def asked(self, place: Place, person: Person, track: Track) -> dict[str, Any]:
        secret = person.said[0].text if track == "greenfield" else person.id
        return {"folder": place.scanned[0], "person": person.id, "secret": secret, "dimensions": DIMENSIONS}

    @override
    def claim(self, said: Mapping[str, Any]) -> Claim:
        if said.get("residue") != 0.0:
            return Claim(outcome="failed", note=str(said))
        # It attacks the library's answers and the rows of the history, and says of no file that it was looked into.
        return Claim(outcome="erased", level="L1", note=f"{said['counts']}, residue {said['residue']}")


class Tombstone(Peer):
    """Traces what was stamped when it was written, rewrites the collection and looks into its files."""

    name, python, drives = "tombstone-erase", "FORGET_TOMBSTONE_PYTHON", ("chroma",)
    program = """
import json, os, sys
from pathlib import Path
told = json.load(sys.stdin)
import yaml
from tombstone import forget
from tombstone.commands.init import run_init
from tombstone.lineage.stamp import stamp
from tombstone.registry import Runtime
run_init(Path.cwd())
Path("tombstone.yaml").write_text(yaml.safe_dump({
    "version": 1, "out_of_scope": ["backups and snapshots"],
    "stores": [{"name": "notes", "kind": "chroma", "path": told["folder"], "collection": "notes",
                "embedding": "digests"}]}))
runtime = Runtime.shared()
store = runtime.store("notes", dims=told["dimensions"])
capture = runtime.capture()
for item in told["items"]:
    marked = stamp({}, item["person"], item["origin"], runtime.scope, pepper=runtime.pepper())
    capture.prepare_embeds("notes", "digests", [item["id"]], [item["vector"]], [marked], [item["text"]])
done = forget(told["person"], reason="bench", accept_gaps=True)
print(json.dumps({"ok": done.ok, "exit_code": done.exit_code, "counts": dict(done.counts), "report": done.report}))
"""

    @override
    def asked(self, place: Place, person: Person, track: Track) -> dict[str, Any] | None:
        if track == "brownfield":
            return None
        texts = {name: text for _, name, text, _ in parts_of(person)}
        items = [
            {"id": record.where["id"], "person": record.people[0], "origin": record.made_of or record.name,
             "vector": list(record.vectors[0]), "text": texts.get(record.name, "")}
            for record in place.records if len(record.people) == 1
        ]  # fmt: skip
        return {"folder": place.scanned[0], "person": person.id, "items": items, "dimensions": DIMENSIONS}

    @override
    def claim(self, said: Mapping[str, Any]) -> Claim:
        counts = said.get("counts")
        if not isinstance(counts, dict) or not counts.get("verified"):
            return Claim(outcome="failed", note=str(said))
        # It looks into the store's files, so "ok" is a claim about them; else what it could not confirm is said.
        level: Literal["L1", "L2"] = "L2" if said["ok"] else "L1"
        return Claim(outcome="erased", level=level, note=f"ok {said['ok']}, {counts}")

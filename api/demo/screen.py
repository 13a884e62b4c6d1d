"""The screen itself, as a product team would write it: stores of its own, the SDK beside every step.

Guarantees: CV text lives only inside a scoring step; checkpoints hold decisions and a reference to the CV, no copy; an
invitation is claimed under its idempotency key before it is sent. The model is a fixed rule here: the demonstration
is about what is kept of its work, not about its judgement.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from api.demo.applicants import Applicant
from muniment import Recorder
from muniment.registry import Client

ROLE = "role-14"
RUBRIC = "rubric-7"
INVITE_FROM = 7
_LOOKUP_KEY = b"the product's own key for looking people up"
_WEIGHT_YEARS = 0.4


class Screen:
    """One role's screen: CV files in a folder, checkpoints and memory in two SQLite databases."""

    def __init__(self, folder: Path, recorder: Recorder, client: Client) -> None:
        self.cv_folder = folder / "cv-files"
        self.checkpoints = folder / "checkpoints.db"
        self.memory = folder / "memory.db"
        self.sent = 0
        self._recorder = recorder
        self._client = client
        self._artifacts: list[dict[str, Any]] = []

    def make_stores(self) -> None:
        """Create the product's own stores."""
        self.cv_folder.mkdir(parents=True)
        with _database(self.checkpoints) as db:
            db.execute(
                "CREATE TABLE checkpoints (thread TEXT, step TEXT, applicant TEXT, at TEXT, state TEXT,"
                " PRIMARY KEY (thread, step))"
            )
        with _database(self.memory) as db:
            db.execute(
                "CREATE TABLE earlier_applications (person_key TEXT, role TEXT, applicant TEXT, outcome TEXT,"
                " PRIMARY KEY (person_key, role))"
            )
            db.execute("CREATE TABLE overrides (rubric TEXT, rule TEXT, correction REAL, PRIMARY KEY (rubric, rule))")

    def remember_overrides(self) -> None:
        """Keep how the founder corrected totals under this rubric: a rule, about nobody."""
        with _database(self.memory) as db:
            db.execute("INSERT INTO overrides VALUES (?, 'years-over-ten', -0.5)", (RUBRIC,))
        self._keep("overrides", "memory", {"table": "overrides", "key": {"rubric": RUBRIC, "rule": "years-over-ten"}},
                   (), scope={"rubric": RUBRIC})  # fmt: skip

    def run(self, people: list[Applicant]) -> dict[str, int]:
        """Screen everybody over three days; returns how many took which route."""
        routes: dict[str, int] = {}
        with _database(self.checkpoints) as db, _database(self.memory) as memory:
            for person in people:
                route = self._screen(person, db, memory)
                routes[route] = routes.get(route, 0) + 1
        self.register()
        return routes

    def register(self) -> None:
        """Tell Muniment of every copy that was made since the last time."""
        results = self._client.artifacts(self._artifacts)
        refused = [result for result in results if result["status"] == "rejected"]
        if refused:
            raise RuntimeError(f"{len(refused)} copies were refused: {refused[0]}")
        self._artifacts.clear()

    def _screen(self, person: Applicant, db: sqlite3.Connection, memory: sqlite3.Connection) -> str:
        name = f"app-{person.number:04d}.txt"
        (self.cv_folder / name).write_text(person.cv)
        self._keep("cv_file", "cv-files", {"path": name}, (person.subject,))
        rules = self._rules(person, db)
        score = self._score(person, db)
        route = "interview" if rules and score["total"] >= INVITE_FROM else "decline"
        self._checkpoint(person, db, "routing", "screening", {"route": route, "total": score["total"]})
        verdict = self._verdict(person, db, route)
        if verdict == "invite":
            self._invite(person, db)
        self._history(person, memory, verdict)
        self._note(person, "stream.closed", {"count": 6 if verdict == "invite" else 4})
        return verdict

    def _rules(self, person: Applicant, db: sqlite3.Connection) -> bool:
        result = {"years": person.years, "must_have": "Python", "met": person.meets_rules}
        self._note(person, "decision", {"step": "rules", **result}, policy="rules-3")
        self._checkpoint(person, db, "rules", "screening", result)
        return person.meets_rules

    def _score(self, person: Applicant, db: sqlite3.Connection) -> dict[str, Any]:
        prompt = {
            "model": "scorer-2",
            "temperature": 0,
            "system": f"Score one application under {RUBRIC}. Quote the sentence that supports each score.",
            "input": {"rubric": RUBRIC, "cv": person.cv},
        }
        self._note(person, "model.request", prompt, model="scorer-2", prompt_version="score-5")
        total = round(min(10.0, 3 + _WEIGHT_YEARS * person.years + 1.5 * ("Python" in person.skills)), 1)
        score = {"rubric": RUBRIC, "total": total, "evidence": person.evidence, "cv": f"app-{person.number:04d}.txt"}
        self._note(person, "turn.assistant", score, model="scorer-2", prompt_version="score-5")
        self._checkpoint(person, db, "scoring", "screening", score)
        return score

    def _verdict(self, person: Applicant, db: sqlite3.Connection, route: str) -> str:
        verdict = "invite" if route == "interview" else "decline"
        self._note(person, "approval", {"verdict": verdict, "by": "founder", "of": "routing"}, policy="founder-decides")
        self._checkpoint(person, db, "verdict", "verdict", {"verdict": verdict, "day": 2})
        return verdict

    def _invite(self, person: Applicant, db: sqlite3.Connection) -> None:
        key = f"{person.thread}/invite"
        proposal = hashlib.sha256(json.dumps({"to": person.number, "template": "interview-2"}).encode()).hexdigest()
        claimed = self._client.claim(key, kind="mail.send", stream=person.thread, run=f"{person.thread}/run",
                                     proposal_digest=proposal)  # fmt: skip
        if claimed["state"] != "claimed":
            return
        self._note(person, "tool.call", {"tool": "send_invite", "key": key, "to": person.email})
        self.sent += 1
        self._client.outcome(key, "succeeded", provider_ref=f"mail-{person.number:04d}")
        now = datetime.now(UTC)
        state = {"key": key, "sent_at": now.isoformat(), "deadline": (now + timedelta(hours=48)).isoformat()}
        self._checkpoint(person, db, "invite", "invite", {**state, "reminder": "day 3"})
        self._note(person, "tool.result", {"tool": "send_invite", "key": key, "accepted": True})

    def _history(self, person: Applicant, memory: sqlite3.Connection, verdict: str) -> None:
        key = hmac.digest(_LOOKUP_KEY, person.email.encode(), "sha256").hex()
        for role, outcome in (*person.applied_before, (ROLE, verdict)):
            memory.execute("INSERT INTO earlier_applications VALUES (?, ?, ?, ?)", (key, role, person.email, outcome))
            locator = {"table": "earlier_applications", "key": {"person_key": key, "role": role}}
            self._keep("earlier_applications", "memory", locator, (person.subject,), scope={"role": ROLE},
                       source=self._locator(person, "verdict"), source_type="product_record")  # fmt: skip

    def _checkpoint(
        self, person: Applicant, db: sqlite3.Connection, step: str, data_class: str, state: dict[str, Any]
    ) -> None:
        row = (person.thread, step, person.email, datetime.now(UTC).isoformat(), json.dumps(state))
        db.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?)", row)
        source = {"store": "cv-files", "locator": {"path": f"app-{person.number:04d}.txt"}}
        self._keep(data_class, "checkpoints", self._locator(person, step)["locator"], (person.subject,), source=source)

    def _locator(self, person: Applicant, step: str) -> dict[str, Any]:
        locator = {"table": "checkpoints", "key": {"thread": person.thread, "step": step}}
        return {"store": "checkpoints", "locator": locator}

    def _keep(
        self, data_class: str, store: str, locator: dict[str, Any], subjects: tuple[str, ...], *,
        scope: dict[str, str] | None = None, source: dict[str, Any] | None = None, source_type: str | None = None,
    ) -> None:  # fmt: skip
        made: dict[str, Any] = {
            "data_class": data_class,
            "store": store,
            "locator": locator,
            "subjects": list(subjects),
            "scope": scope or {"role": ROLE},
            "observed_at": datetime.now(UTC).isoformat(),
        }
        if source is not None:
            made["sources"] = [source]
            made["activity"] = {"kind": "screen", "model": "scorer-2", "prompt_version": "score-5"}
        if source_type is not None:
            made["source_type"] = source_type
        self._artifacts.append(made)

    def _note(self, person: Applicant, kind: str, body: dict[str, Any], **facts: Any) -> None:
        self._recorder.record(
            kind=kind, stream=person.thread, body=body, data_class="screening_record", subjects=(person.subject,),
            run=f"{person.thread}/run", agent="screening-agent", **facts,
        )  # fmt: skip


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    try:
        with db:
            yield db
    finally:
        db.close()

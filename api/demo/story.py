"""The demonstration: one role's screen from the first application to the last deletion, told step by step.

Guarantees: everything happens in one temporary folder (or the one that is kept), through the service's own HTTP
interface, on real stores; every claim that is printed was checked just before, and one that does not hold ends the
demonstration with exit code 1. Nothing leaves the machine. The moved clock is the service's, never the machine's.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from api.demo.applicants import Applicant, applicants
from api.demo.leftovers import PREFIX, removed_from, unfinished
from api.demo.screen import ROLE, Screen
from api.demo.serving import Served, served
from connectors.base import Deadline
from connectors.residue import Needles, encodings
from erasure.rendering.carrier import certificate_in
from erasure.rendering.compare import Pages, compare

CONTROLLER = {"name": "Example Hiring GmbH", "contact": "privacy@hiring.example", "timezone": "Europe/Berlin",
              "jurisdiction": "DE-BE"}  # fmt: skip
PEOPLE = 150
ASKS = 92
"""The place of the applicant whose questions are answered and who asks to be forgotten (app-0093)."""
_DAYS_AFTER_CLOSING = timedelta(days=190)
_WIDE = 100
_ENDS = {
    "erased_physical": "copies gone from the files themselves",
    "key_destroyed": "keys destroyed",
    "already_absent": "copies that were gone already",
}
_SCAN_SECONDS = 60.0


class CheckFailed(Exception):
    """A claim of the demonstration does not hold."""


class Story:
    """The steps, in order; each prints what it did and what was checked."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.stores = folder / "stores"
        self._say = say
        self._started = time.monotonic()
        self._checks = 0
        self.people = applicants(PEOPLE)
        self.person = self.people[ASKS]

    def tell(self) -> None:
        """Run the whole demonstration. Raises: CheckFailed."""
        self._title("Muniment: a recruiting screen, from the first application to the last deletion")
        with self._service(timedelta(0), new=True) as desk:
            self.set_up(desk)
            self.screen(desk)
            before = desk.counts()
        with self._service(timedelta(0)) as desk:
            self.questions(desk, before)
            self.plain_delete()
            self.erase_one(desk)
            self.close_role(desk)
        with self._service(_DAYS_AFTER_CLOSING) as desk:
            self.retention(desk)
            self.nothing_left(desk)
        self._end()

    # ── the steps ──

    def set_up(self, desk: Served) -> None:
        """Register the classes and the stores."""
        classes = desk.apply_classes(recruiting() / "classes.yaml")
        desk.call("platform", "PUT", "/v1/settings/controller", CONTROLLER)
        self._say(f"   {len(classes)} data classes registered: {', '.join(classes)}")
        self.stores.mkdir()
        self.shop = Screen(self.stores, desk.recorder(self.folder / "spool"), desk.client("writer"))
        self.shop.make_stores()
        desk.call(
            "platform", "PUT", "/v1/stores/cv-files", {"kind": "files", "config": {"root": str(self.shop.cv_folder)}}
        )
        for name, path in (("checkpoints", self.shop.checkpoints), ("memory", self.shop.memory)):
            desk.call("platform", "PUT", f"/v1/stores/{name}", {"kind": "sql", "config": {"url": f"sqlite:///{path}"}})
        self._say("   3 stores registered: a folder of CV files, a database of checkpoints, a database of memory")

    def screen(self, desk: Served) -> None:
        """Run every applicant through the screen."""
        self._title(f"1. {PEOPLE} people apply for {ROLE}; the agent screens them, the founder decides")
        self.shop.remember_overrides()
        routes = self.shop.run(self.people)
        flushed = desk.flush()
        self._say(f"   {routes.get('invite', 0)} invited, {routes.get('decline', 0)} declined; "
                  f"{self.shop.sent} invitations sent, each once, under its own key")  # fmt: skip
        self._say(f"   {flushed.acknowledged} steps in the record, sealed per person; "
                  f"{desk.count_artifacts()} copies of personal data registered")  # fmt: skip
        self._check(flushed.pending == 0 and flushed.refused == 0, "every step the agent recorded was stored")
        again = desk.client("writer").request("GET", f"/v1/actions/{self._invited().thread}/invite")
        claim = "asked after a crash whether to send an invitation again, the record says it was sent: do not"
        self._check(again["retry"] == "unsafe", claim)

    def questions(self, desk: Served, before: dict[str, int]) -> None:
        """Answer the four questions of a builder for one applicant, after a restart."""
        who = self.person
        self._title(f"2. Four questions about {who.thread} ({who.name}), asked after a restart of the service")
        copies = desk.copies(who.subject)
        places = Counter(copy["store"] for copy in copies)
        self._say("   Where does the state live while nobody works on it?")
        self._say("      " + ", ".join(f"{count} in {store}" for store, count in sorted(places.items())))
        self._say("   What survived the restart?")
        self._check(desk.counts() == before, f"all of it: {before['entries']} entries, {before['artifacts']} copies")
        self._say("   Which copies exist, and what deletes each, when?")
        alike = Counter((copy["store"], copy["data_class"], copy["rule"], copy.get("ends_at")) for copy in copies)
        for (store, data_class, rule, ends_at), count in sorted(alike.items(), key=str):
            ends = f"{ends_at[:10]} at the latest" if ends_at else "when the role is reported closed"
            self._say(f"      {count} × {data_class:<21} in {store:<12} by {rule.replace('_', ' ')}, {ends}")
        self._say("   What was the model sent, field by field?")
        found = desk.call("auditor", "POST", "/v1/replay", {"stream": who.thread}, purpose="dispute;case=demo")
        call = next(entry for entry in found["entries"] if entry["kind"] == "model.request")
        for name, value in sorted(call["body"].items()):
            text = json.dumps(value, ensure_ascii=False)
            self._say(f"      {name:<12} {text if len(text) < _WIDE - 20 else text[: _WIDE - 21] + '…'}")
        good = found["complete"] and all(entry["integrity"] == "verified" for entry in found["entries"])
        self._check(good, f"the whole thread, {len(found['entries'])} entries, is proven against a signed checkpoint")

    def plain_delete(self) -> None:
        """Show on a copy what the usual delete leaves behind."""
        self._title("3. What a plain delete would leave (tried on a copy of the product's own database)")
        copy = self.folder / "copy" / "checkpoints.db"
        copy.parent.mkdir()
        for suffix in ("", "-wal"):
            source = self.shop.checkpoints.with_name(self.shop.checkpoints.name + suffix)
            if source.exists():
                shutil.copy(source, copy.with_name(copy.name + suffix))
        db = sqlite3.connect(copy)
        db.execute("PRAGMA secure_delete = OFF")  # as SQLite's authors ship it
        with db:
            db.execute("DELETE FROM checkpoints WHERE thread = ?", (self.person.thread,))
        left = db.execute("SELECT count(*) FROM checkpoints WHERE thread = ?", (self.person.thread,)).fetchone()[0]
        hits = hits_in([copy.parent], canaries(self.person))
        db.close()
        self._check(left == 0 and sum(hits.values()) > 0,
                    f"rows left: {left}; but the files still hold the person {sum(hits.values())} times")  # fmt: skip
        shutil.rmtree(copy.parent)

    def erase_one(self, desk: Served) -> None:
        """Take one person's request from receipt to certificate."""
        who = self.person
        self._title(f"4. {who.name} asks to be forgotten")
        before = hits_in(self._places(), canaries(who))
        self._check(len(before) > 1, f"before: {sum(before.values())} traces of the person in the product's own files")
        made = desk.call("legal", "POST", "/v1/requests", {
            "right": "erasure", "subjects": [who.subject], "regulation": "gdpr", "jurisdiction": "DE-BE",
            "timezone": "Europe/Berlin", "channel": "e-mail",
        })  # fmt: skip
        path = f"/v1/requests/{made['id']}"
        self._say(f"   request received; by law the answer is due {made['due_at'][:10]}")
        proof = {"identifier": who.subject, "method": "reply to the address on file", "evidence": "mail of today"}
        desk.call("legal", "POST", f"{path}/verify-identity", proof)
        desk.call("legal", "POST", f"{path}/plan")
        plan = desk.call("legal", "GET", f"{path}/plan")
        kinds = Counter((copy["store"], copy["action"]) for copy in plan["copies"])
        for (store, action), count in sorted(kinds.items()):
            what = f"{count} keys of the record, which nobody can read without them" if store == "vault" else (
                f"{count} {'copy' if count == 1 else 'copies'} in {store}"
            )  # fmt: skip
            self._say(f"      {action} {what}")
        refused = desk.refused("legal", "POST", f"{path}/approve", {"plan_hash": plan["hash"]})
        self._check(refused == 403, "who filed the request may not approve it")  # noqa: PLR2004 - the status
        desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["hash"]})
        state = desk.wait_for_end(path)
        self._check(state["state"] == "completed", f"completed: {_told(state['counts'])}")
        after = hits_in(self._places(), canaries(who))
        forms = len(encodings(who.name.encode()))
        self._check(not after, f"raw bytes of every file scanned in {forms} encodings: nothing of the person is left")
        neighbour = self.people[ASKS + 1]
        found = desk.call("auditor", "POST", "/v1/replay", {"stream": neighbour.thread}, purpose="dispute")
        self._check(found["complete"], f"the neighbour's thread {neighbour.thread} still replays and proves")
        self.certificate = self.folder / "certificate.json"
        self.certificate.write_bytes(desk.client("legal").send("GET", f"{path}/report").body)
        self.pins = desk.pins
        for line in desk.check_certificate(self.certificate):
            self._say(f"      {line}")
        self.paper = self.folder / "certificate.pdf"
        pdf = desk.client("legal").send("GET", f"{path}/report", None, {"Accept": "application/pdf"}).body
        self.paper.write_bytes(pdf)
        same = certificate_in(pdf) == self.certificate.read_bytes() and compare(pdf, certificate_in(pdf)) is Pages.SAME
        self._check(same, "the same certificate as PDF: the signed file is inside, and the pages say what it says")
        named = hits_in([self.certificate, self.paper], canaries(who))
        self._check(not named, "the certificate verifies offline and names nobody")

    def close_role(self, desk: Served) -> None:
        """Report the event that starts the clocks."""
        self._title("5. The role closes; the notice to applicants promised deletion six months later")
        now = datetime.now(UTC).isoformat()
        desk.call("legal", "POST", "/v1/events", {"name": "role.closed", "key": {"role": ROLE}, "at": now})
        desk.call(
            "platform", "POST", "/v1/events", {"name": "rubric.changed", "key": {"rubric": "rubric-7"}, "at": now}
        )
        self._say("   reported: role closed, rubric changed")
        self._say(f"   the service's clock is moved by {_DAYS_AFTER_CLOSING.days} days")

    def retention(self, desk: Served) -> None:
        """Let retention take its course; approve the brake that so large a deletion trips."""
        self._title("6. Retention, half a year later")
        found = len(hits_in([self.stores], [person.name for person in self.people]))
        claim = f"before: {found} people are named in the raw bytes of the product's own files"
        self._check(found == PEOPLE - 1, claim)
        run = desk.call("legal", "POST", "/v1/retention/runs", {})
        run = desk.wait_for_run(run["id"])
        if run["state"] == "awaiting_approval":
            self._say(f"   the brake stopped the run: {run['brake']['detail']}")
            self._say("   of these classes a larger share would go than anybody would expect of one night:")
            for name, count in sorted(run["brake"]["classes"].items()):
                self._say(f"      {name:<21} {count['ends']} of {count['live']}")
            refused = desk.refused("legal", "POST", f"/v1/retention/runs/{run['id']}/approve", {})
            self._check(refused == 403, "who started the run may not release the brake")  # noqa: PLR2004 - the status
            desk.call("legal2", "POST", f"/v1/retention/runs/{run['id']}/approve", {})
            self._say("   a second person looked at the numbers and approved")
            run = desk.wait_for_run(run["id"])
        else:
            self._check(False, "a run that removes nearly everything trips the brake")
        report = desk.call("legal", "GET", f"/v1/retention/runs/{run['id']}/report")
        self.report = self.folder / "retention-report.json"
        self.report.write_text(json.dumps(report, indent=1))
        self._check(run["state"] == "completed", f"completed: {_told(run['copies_by_state'])}")

    def nothing_left(self, desk: Served) -> None:
        """Scan for everybody, and verify the record that stayed."""
        self._title("7. What is left")
        everyone = [canary for person in self.people for canary in canaries(person)]
        hits = hits_in(self._places(), everyone)
        self._check(not hits, f"raw bytes of every file scanned for {PEOPLE} people: nothing")
        left = desk.count_artifacts()
        self._check(left == 0, "no registered copy is live")
        verdict = desk.verify()
        gone = verdict["erased"] + verdict["expired"]
        claim = (
            f"the record is sound: all {verdict['size']} entries still prove what happened when; "
            f"of {gone} the content is gone, as promised"
        )
        self._check(verdict["verdict"] == "sound", claim)

    # ── telling ──

    def _end(self) -> None:
        self._say("")
        self._say(f"All {self._checks} checks held in {time.monotonic() - self._started:.0f} s.")
        self._say(f"   certificate  {self.paper} (open it), {self.certificate.name}")
        self._say(f"   retention    {self.report}")
        self._say(f"   data         {self.data}")
        self._say("Check the certificate yourself, without us:")
        self._say(f"   muniment verify-report {self.paper} --key '{self.pins[0]}' --log-key '{self.pins[1]}'")
        self._say(f"The folder stays, with data, keys and tokens of this demo; when you are done: rm -r {self.folder}")

    def _title(self, text: str) -> None:
        self._say("")
        self._say(text)

    def _check(self, held: bool, claim: str) -> None:  # noqa: FBT001 - the claim is the argument
        self._say(f"   {'✓' if held else '✗'} {claim}")
        if not held:
            raise CheckFailed(claim)
        self._checks += 1

    def _invited(self) -> Applicant:
        return next(person for person in self.people if self._route(person) == "invite")

    def _route(self, person: Applicant) -> str:
        db = sqlite3.connect(self.shop.checkpoints)
        query = "SELECT 1 FROM checkpoints WHERE thread = ? AND step = 'invite'"
        found = db.execute(query, (person.thread,)).fetchone()
        db.close()
        return "invite" if found else "decline"

    def _places(self) -> list[Path]:
        """Every place a byte of somebody could lie: stores, spool, our data, our keys."""
        return [self.stores, self.folder / "spool", self.data, self.data.with_name("data.keys")]

    @contextmanager
    def _service(self, offset: timedelta, *, new: bool = False) -> Iterator[Served]:
        with served(self.data, stores=self.stores, offset=offset, new=new) as desk:
            yield desk


def canaries(person: Applicant) -> list[str]:
    """What would give a person away."""
    return [person.name, person.email, person.phone, person.street]


def hits_in(places: list[Path], texts: list[str]) -> dict[str, int]:
    """Return how often each text stands in the raw bytes below the places, by text; only those that do."""
    needles, limit = Needles([text.encode() for text in texts]), Deadline("scan", _SCAN_SECONDS)
    found: Counter[str] = Counter()
    for place in places:
        found += _hits_below(place, texts, needles, limit)
    return dict(found)


def _hits_below(place: Path, texts: list[str], needles: Needles, limit: Deadline) -> Counter[str]:
    """Count in one place, anew when a file went while it was read: the service goes on while we look."""
    while True:
        limit.check()
        found: Counter[str] = Counter()
        try:
            for path in [place] if place.is_file() else sorted(place.rglob("*")):
                if path.is_file():
                    with path.open("rb") as file:
                        for (number, _), count in needles.count(file, limit).items():
                            found[texts[number]] += count
        except FileNotFoundError:
            continue
        return found


def _told(counts: Mapping[str, int]) -> str:
    """Say in words how many copies came to which end."""
    return ", ".join(f"{count} {_ENDS.get(name, name.replace('_', ' '))}" for name, count in sorted(counts.items()))


def recruiting() -> Path:
    """Return the folder of the example's declarations."""
    return Path(__file__).resolve().parents[2] / "examples" / "recruiting"


def run(keep: Path | None, say: Callable[[str], None]) -> int:
    """Tell the story in a temporary folder, or in `keep`; returns the exit code."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        return _tell_in(keep, say)
    temporary = Path(tempfile.gettempdir())
    if count := removed_from(temporary):
        say(f"Removed what {count} demonstration{'s' * (count > 1)} left here that ended in the middle.")
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=temporary))
    with unfinished(folder):
        return _tell_in(folder, say)


def _tell_in(folder: Path, say: Callable[[str], None]) -> int:
    say(f"Everything happens in {folder}; nothing leaves this machine.")
    try:
        Story(folder.resolve(), say).tell()
    except CheckFailed:
        say("")
        say(f"A check did not hold. The data is kept for a look: {folder}")
        return 1
    return 0

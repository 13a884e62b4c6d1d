"""Muniment as an eraser: an embedded service of this run, driven over HTTP like anybody's.

Greenfield: stores are put, everything is registered as it was written, derived things with what they were made of.
Brownfield: nothing is registered; `muniment scan --register` looks at each place's addresses. Then one request is
filed, identified, planned, approved by a second person and carried out. What is claimed of a place is the least that
the request's copies say of it; a place of which the request holds no copy is claimed as not covered.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn

from api import administration, cli, folder, migrate
from api.app import create_app
from api.commands.serving import bind
from api.settings import Settings, load
from api.wiring import Services, build
from bench.forget.bed import Person, Record
from bench.forget.erasers import Claim, Kept, Level, Track
from bench.forget.places import OWNER, Place, Store
from ledger.entry import uuid7
from muniment.registry import Client

TENANT = "bench"
CLASS: Mapping[str, Any] = {
    "state": "memory", "personal": True, "owner": "team", "description": "what an agent keeps of people",
    "legal_basis": "contract", "subject_types": ["user"],
    "retention": {"keep": "P90D", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase", "required": "L2"},
}  # fmt: skip
WAL_KEPT = "P7D"
"""What the operator of the bed's PostgreSQL states; it dates what its log still holds."""
PATIENCE = 300.0
STUCK = 45.0
"""Seconds without any change after which a request waits for somebody."""
_LEVELS: tuple[Level, ...] = ("L1", "L2", "L3")


class _Service:
    """An embedded service of this run and a client for each role."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        folder.make(settings.data)
        self._lock = folder.lock(settings.data)
        self._lock.__enter__()
        self.services: Services = build(settings)
        migrate.upgrade(self.services.database)
        made = administration.create_tenant(self.services, TENANT)
        self.tokens, self.log_key = made.tokens, made.log_key
        self.services.start(sole=True)
        self._socket = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(create_app(self.services), log_config=None, access_log=False, lifespan="on")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        self.clients = {name: Client(self.url, token, timeout=120) for name, token in self.tokens.items()}

    def call(self, principal: str, method: str, path: str, body: object = None) -> Any:
        """A request in one role."""
        return self.clients[principal].request(method, path, body)

    def close(self) -> None:
        """Ends the service; its folder stays."""
        for client in self.clients.values():
            client.close()
        self._server.should_exit = True
        self._thread.join(timeout=20)
        self._socket.close()
        self.services.close()
        self._lock.__exit__(None, None, None)


class Muniment:
    """This product."""

    name = "muniment"

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._key = ""

    def erase(self, places: Sequence[Place], person: Person, track: Track, work: Path) -> Mapping[str, Claim]:
        """Registers or looks, then takes one request through the desk."""
        stores = places[0].folder.parent.parent
        allowed = f"file:{stores}/**,sqlite:{stores}/**,127.0.0.1:*,localhost:*"
        self._settings = load(work / "data", allow_targets=allowed, log_level="error")
        service = _Service(self._settings)
        try:
            self._key = service.log_key
            service.call("platform", "PUT", "/v1/data-classes/bench", dict(CLASS))
            _say(service, person)
            notes: dict[str, list[str]] = {place.name: [] for place in places}
            owners: dict[str, str] = {}
            for place in places:
                if track == "greenfield":
                    owners |= _register(service, place)
                else:
                    owners |= _look(service, place, notes[place.name])
            copies = _request(service, person)
        finally:
            service.close()
        return {place.name: _claim(place, copies, owners, notes[place.name]) for place in places}

    def record(self) -> Kept | None:
        """The whole data folder and the keys beside it, checked by `muniment verify`, also with one byte changed."""
        if self._settings is None:
            return None
        data = self._settings.data
        sound = _verify(data, self._key) == 0
        changed = data.with_name("changed")
        shutil.copytree(data, changed)
        codes = {name: _verify(changed, self._key) for name in _with_a_byte_changed(changed)}
        shutil.rmtree(changed)
        missed = tuple(sorted(name for name, code in codes.items() if code != 1))
        note = f"a changed byte noticed in {sorted(codes.keys() - set(missed))}, not in {list(missed)}"
        return Kept(folders=(data.parent,), sound=sound, notices=bool(codes) and not missed, missed=missed, note=note)


def _say(service: _Service, person: Person) -> None:
    """A turn of the person in the record, as its recorder writes it, so that the record holds something to forget."""
    entry = {
        "id": uuid7(datetime.now(UTC)), "stream": "conv_forget", "kind": "turn.user", "data_class": "bench",
        "at": datetime.now(UTC).isoformat(), "subjects": [person.subject],
        "body": {"role": "user", "content": person.said[0].text},
    }  # fmt: skip
    service.call("writer", "POST", "/v1/record/entries", {"entries": [entry]})


def _addressed(service: _Service, store: Store) -> dict[str, Any]:
    """A store's config as the service takes it: an address with a password stands in a file of the tenant's secrets."""
    config = dict(store.config)
    url = config.get("url", "")
    if url.startswith("postgresql://"):
        config["url"] = _secret(service, store.name, url.replace("postgresql://", "postgresql+psycopg://"))
        config["wal_retention"] = WAL_KEPT
    elif url.startswith("redis://"):
        config["url"] = _secret(service, store.name, url)
    return config


def _secret(service: _Service, name: str, url: str) -> str:
    place = service.settings.secrets_folder / TENANT
    place.mkdir(parents=True, mode=0o700, exist_ok=True)
    (place / name).write_text(url, encoding="utf-8")
    (place / name).chmod(0o600)
    return f"file:{name}"


def _register(service: _Service, place: Place) -> dict[str, str]:
    """Puts a place's stores and registers every record; returns the place of each store."""
    for store in place.stores:
        spec = {"kind": store.kind, "config": _addressed(service, store)}
        service.call("platform", "PUT", f"/v1/stores/{store.name}", spec)
    by_name = {record.name: record for record in place.records}
    made = service.clients["writer"].artifacts([_artifact(record, by_name) for record in place.records])
    refused = [each for each in made if each["status"] not in {"created", "exists"}]
    if refused:
        message = f"{place.name}: {len(refused)} records were not registered: {refused[0]}"
        raise RuntimeError(message)
    return {store.name: place.name for store in place.stores}


def _artifact(record: Record, by_name: Mapping[str, Record]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "store": record.store, "data_class": "bench", "locator": dict(record.where),
        "subjects": [f"user:{person}" for person in record.people],
    }  # fmt: skip
    origin = by_name.get(record.made_of or "")
    if origin is not None:
        made["sources"] = [{"store": origin.store, "locator": dict(origin.where)}]
        made["activity"] = {"kind": "derive"}
    return made


def _look(service: _Service, place: Place, notes: list[str]) -> dict[str, str]:
    """`muniment scan --register` on a place's addresses; returns the place of each store that it made."""
    owners: dict[str, str] = {}
    for number, address in enumerate(place.scanned):
        name = f"{place.name}-found-{number}"
        command = ["scan", address, "--register", "--name", name, "--class", "bench", "--owner-field", OWNER, "--json",
                   "--url", service.url, "--token", service.tokens["platform"],
                   "--writer-token", service.tokens["writer"]]  # fmt: skip
        if address.startswith(("postgresql://", "redis://")):
            url = address.replace("postgresql://", "postgresql+psycopg://")
            command += ["--address-ref", _secret(service, name, url), "--wal-retention", WAL_KEPT]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.run(command)
        try:
            told = json.loads(out.getvalue())["registered"]
        except (json.JSONDecodeError, KeyError):
            notes.append(f"scan ended with {code}: {out.getvalue()[-300:]} {err.getvalue()[-300:]}")
            continue
        owners |= {store["name"]: place.name for store in told["stores"]}
        notes += [*told["skipped"], *told["noted"]]
        notes += [f"{count} rejected: {reason}" for reason, count in told["problems"].items()]
        if told["stores"] and not told["artifacts"]:
            notes.append("the scan registered the store and no item of it")
        if told["not_registered_names_nobody"]:
            notes.append(f"{told['not_registered_names_nobody']} things name nobody to the scan")
    return owners


def _request(service: _Service, person: Person) -> list[dict[str, Any]]:
    """Takes an erasure through the desk and returns its copies, once nothing moves any more."""
    made = service.call("legal", "POST", "/v1/requests",
                        {"right": "erasure", "subjects": [person.subject], "regulation": "gdpr"})  # fmt: skip
    path = f"/v1/requests/{made['id']}"
    service.call("legal", "POST", f"{path}/verify-identity", {"identifier": person.subject, "method": "login"})
    plan = service.call("legal", "POST", f"{path}/plan")
    service.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["plan_hash"]})
    end = time.monotonic() + PATIENCE
    seen: list[str] = []
    changed = time.monotonic()
    while True:
        state = service.call("legal", "GET", path)["state"]
        copies: list[dict[str, Any]] = list(_copies(service, path))
        states = [str(copy["state"]) for copy in copies if copy.get("store")]
        if states != seen:
            seen, changed = states, time.monotonic()
        idle = time.monotonic() - changed
        moving = {"pending", "running", "erased_logical"} & set(states)
        if state.startswith(("completed", "partially")) or not moving or idle > STUCK or time.monotonic() > end:
            return copies
        time.sleep(0.5)


def _copies(service: _Service, path: str) -> Iterator[dict[str, Any]]:
    cursor = ""
    while True:
        page = service.call("legal", "GET", f"{path}/copies{cursor}")
        yield from page["items"]
        if not page.get("next_cursor"):
            return
        cursor = f"?cursor={page['next_cursor']}"


def _claim(place: Place, copies: Sequence[Mapping[str, Any]], owners: Mapping[str, str], notes: Sequence[str]) -> Claim:
    ours = [copy for copy in copies if owners.get(copy.get("store") or "") == place.name]
    waiting = [copy for copy in ours if copy["state"] == "awaiting_human"]
    unsaid = next((note for note in notes if "name nobody" in note), "nothing said")
    joint = "waits for a human" if waiting else "erased" if _joint_erased(place, ours) else unsaid
    alone = [copy for copy in ours if copy["state"] != "awaiting_human"]
    if not alone:
        return Claim(outcome="not_covered", joint=joint, note="; ".join(notes) or "no copy in the plan")
    states = {copy["state"] for copy in alone}
    done = {"erased_physical", "erased_logical", "already_absent"}
    if states - done:
        outcome: Any = "failed" if states & {"failed", "unreachable"} else "waiting"
        told = next((copy["detail"] for copy in alone if copy["state"] not in done), None)
        return Claim(outcome=outcome, joint=joint, note=f"{sorted(states - done)}: {told}")
    reached = {copy["level"] for copy in alone}
    dates = {copy["residual_until"] for copy in alone}
    until = None if dates & {None, "unknown"} else max(str(each) for each in dates)
    level: Level = next((each for each in _LEVELS if each in reached), "L1")
    return Claim(outcome="erased", level=level, residual_until=until, joint=joint, note="; ".join(notes))


def _joint_erased(place: Place, copies: Sequence[Mapping[str, Any]]) -> bool:
    joint = [record for record in place.records if record.role == "joint"]
    own = [record for record in place.records if record.people == (place.records[0].people[0],)]
    return bool(joint) and len(copies) > len(own)


def _verify(data: Path, key: str) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "api.cli", "verify", "--all", "--data", str(data), "--key", key, "--json"],
        capture_output=True, check=False, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    return done.returncode


def _with_a_byte_changed(data: Path) -> Iterator[str]:
    """Yields each kind of object that the record has, while one byte in the middle of its largest one is changed."""
    kinds: dict[str, Path] = {}
    for path in sorted((data / "objects").glob("*/*/**/*"), key=lambda each: each.stat().st_size):
        parts = path.relative_to(data / "objects").parts
        if path.is_file() and not parts[0].startswith("."):
            kinds[parts[1]] = path
    for kind, path in sorted(kinds.items()):
        content = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(
            content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :]
        )
        yield kind
        path.write_bytes(content)

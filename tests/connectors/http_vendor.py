"""A vendor's API on a loopback socket that behaves as badly as real ones are reported to; shares no code with ours.

Things live in collections. What goes wrong is set by name and id in `faults`, or for every request in `mode`.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

KEY = "sk-test-0123456789"

OWN = """
recipe: own
about: a vendor of the tests
auth: {header: Authorization, value: "Bearer {secret}"}
keeps: nothing is known
patience_seconds: 0.2
scope: {path: /whoami, field: project.id}
kinds:
  note:
    fields: [id]
    owner: meta.person
    read: {path: "/notes/{id}"}
    delete: {method: DELETE, path: "/notes/{id}"}
    listing: {path: /notes, query: {limit: "3"}, cursor: next, param: cursor, locator: {id: id}}
    create:
      request: {method: POST, path: /notes, body: {text: "{canary}", meta: {person: "{owner}"}}}
      locator: {id: id}
"""


class Vendor:
    """The state behind the API, and what it does wrong."""

    def __init__(self) -> None:
        self.things: dict[str, dict[str, dict[str, Any]]] = {}
        self.queue: list[tuple[str, str]] = []
        self.tasks: dict[str, str] = {}
        self.faults: dict[tuple[str, str], str] = {}
        self.mode = ""
        self.budget = 0
        self.project = "p-1"
        self.requests: list[tuple[str, str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.lock = threading.RLock()
        self.restart: Callable[[], None] = lambda: None

    def put(self, collection: str, name: str, **content: Any) -> None:
        self.things.setdefault(collection, {})[name] = {"id": name, **content}

    def work(self) -> None:
        """Do the deletions that were taken."""
        with self.lock:
            for collection, name in self.queue:
                self.things[collection].pop(name, None)
            self.queue.clear()
            self.tasks = dict.fromkeys(self.tasks, "succeeded")

    def count(self, method: str, start: str) -> int:
        return sum(1 for each, path in self.requests if each == method and path.startswith(start))


class Handler(BaseHTTPRequestHandler):
    vendor: Vendor
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name in the standard library
        pass

    def answer(self, status: int, body: Any = None, headers: dict[str, str] | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def handle_one(self) -> None:
        vendor = self.vendor
        parts = urlsplit(self.path)
        path, query = parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        with vendor.lock:
            vendor.requests.append((self.command, path))
        vendor.gate.wait(20)
        if self.misbehaves(path):
            return
        if not any(KEY in self.headers.get(name, "") for name in ("Authorization", "x-api-key", "api-key")):
            basic = self.headers.get("Authorization", "").startswith("Basic ")
            if not basic:
                self.answer(401, {"error": "no key"})
                return
        with vendor.lock:
            if not any(self.tried(api, path, query, body) for api in _APIS):
                self.answer(404, {"error": "no such path"})

    do_GET = do_DELETE = do_POST = handle_one  # noqa: N815 -- names that http.server calls

    def tried(self, api: Any, path: str, query: dict[str, str], body: Any) -> bool:
        return bool(api(self, self.vendor, self.command, path, query, body))

    def misbehaves(self, path: str) -> bool:
        vendor = self.vendor
        mode = vendor.mode
        if mode in {"rate", "flaky"} and vendor.budget > 0:
            vendor.budget -= 1
            if mode == "rate":
                self.answer(429, {"error": "slow down"}, {"Retry-After": "0"})
            else:
                self.close_connection = True
            return True
        if mode == "down":
            self.answer(503, {"error": "down"})
        elif mode == "redirect":
            self.answer(302, None, {"Location": "http://169.254.169.254/latest/meta-data"})
        elif mode == "foreign":
            self.answer(404, {"error": "not found"})
        elif mode == "html":
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"<html>")
        elif mode == "huge":
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            for _ in range(200):
                self.wfile.write(b"x" * 65_536)
        elif mode == "drip":
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
        else:
            return False
        return True

    def remove(self, collection: str, name: str, done: Any = None) -> None:
        """Delete a thing, or do what its fault says."""
        vendor = self.vendor
        fault = vendor.faults.get((collection, name), "")
        if name not in vendor.things.get(collection, {}):
            self.answer(200 if fault == "lies" or vendor.mode == "says yes" else 404, done or {})
        elif fault == "conflict":
            self.answer(409, {"error": "version conflict"})
        elif fault == "error":
            self.answer(400, {"error": "deletes by that are not allowed"})
        elif fault == "lies":
            self.answer(200, done or {"deleted": True})
        elif fault == "queue":
            vendor.queue.append((collection, name))
            self.answer(202, done or {"queued": True})
        else:
            del vendor.things[collection][name]
            self.answer(200, done or {"deleted": True})


def own(self: Handler, vendor: Vendor, method: str, path: str, query: dict[str, str], body: Any) -> bool:
    notes = vendor.things.setdefault("note", {})
    if path == "/whoami":
        self.answer(200, {"project": {"id": vendor.project}})
    elif path == "/notes" and method == "GET":
        names = sorted(notes)
        start = int(query.get("cursor", 0))
        size = int(query["limit"])
        following: Any = start + size if start + size < len(names) else None
        if vendor.mode == "circle":
            following = 0 if start else size
        self.answer(200, {"data": [notes[name] for name in names[start : start + size]], "next": following})
    elif path == "/notes" and method == "POST":
        name = uuid.uuid4().hex
        vendor.put("note", name, **({"text": body["text"]} if vendor.mode == "drops owners" else body))
        self.answer(201, notes[name])
    elif found := re.fullmatch(r"/notes/([^/]+)", path):
        one(self, vendor, method, "note", unquote(found.group(1)))
    else:
        return False
    return True


def one(self: Handler, vendor: Vendor, method: str, collection: str, name: str) -> None:
    if method == "DELETE":
        self.remove(collection, name)
    elif name in vendor.things.get(collection, {}):
        self.answer(200, vendor.things[collection][name])
    else:
        self.answer(404, {"error": "not found"})


def openai(self: Handler, vendor: Vendor, method: str, path: str, query: dict[str, str], body: Any) -> bool:
    if found := re.fullmatch(r"/v1/(responses|files)/([^/]+)", path):
        one(self, vendor, method, found.group(1), found.group(2))
    elif path in {"/v1/chat/completions", "/v1/vector_stores"}:
        entries = vendor.things.get("chat" if "chat" in path else "vector_stores", {})
        self.answer(200, {"data": list(entries.values()), "has_more": False})
    elif path == "/v1/conversations" and method == "POST":
        name = f"conv_{uuid.uuid4().hex}"
        vendor.put("conversations", name, **body)
        self.answer(200, vendor.things["conversations"][name])
    elif found := re.fullmatch(r"/v1/conversations/([^/]+)", path):
        one(self, vendor, method, "conversations", found.group(1))
    elif found := re.fullmatch(r"/v1/conversations/([^/]+)/items", path):
        # The items of a deleted conversation can still be read, as the documentation warns.
        names = sorted(each for each in vendor.things.get("items", {}) if each.startswith(f"{found.group(1)}-"))
        start = names.index(query["after"]) + 1 if "after" in query and query["after"] in names else 0
        page = names[start : start + 2]
        self.answer(200, {"data": [{"id": each} for each in page], "has_more": names[-1:] != page[-1:]})
    elif found := re.fullmatch(r"/v1/conversations/([^/]+)/items/([^/]+)", path):
        one(self, vendor, method, "items", found.group(2))
    else:
        return False
    return True


def anthropic(self: Handler, vendor: Vendor, method: str, path: str, query: dict[str, str], body: Any) -> bool:
    versions = vendor.things.setdefault("versions", {})
    if found := re.fullmatch(r"/v1/memory_stores/([^/]+)/memories/([^/]+)", path):
        name = found.group(2)
        if method == "DELETE" and name in vendor.things.get("memories", {}):
            vendor.put("versions", f"{name}-v9", memory_id=name, operation="deleted", redacted_at=None)
        one(self, vendor, method, "memories", name)
    elif re.fullmatch(r"/v1/memory_stores/([^/]+)/memory_versions", path):
        mine = sorted(each for each, facts in versions.items() if facts["memory_id"] == query["memory_id"])
        start = int(query.get("page", 0))
        following = str(start + 2) if start + 2 < len(mine) else None
        self.answer(200, {"data": [versions[each] for each in mine[start : start + 2]], "next_page": following})
    elif found := re.fullmatch(r"/v1/memory_stores/([^/]+)/memory_versions/([^/]+)/redact", path):
        facts = versions[found.group(2)]
        if vendor.faults.get(("versions", found.group(2))) != "lies":
            facts |= {"content": None, "redacted_at": "2026-01-01T00:00:00Z"}
        self.answer(200, facts)
    else:
        return False
    return True


def langfuse(self: Handler, vendor: Vendor, method: str, path: str, query: dict[str, str], body: Any) -> bool:
    traces = vendor.things.setdefault("traces", {})
    if path == "/api/public/projects":
        self.answer(200, {"data": [{"id": vendor.project}]})
    elif path == "/api/public/traces":
        names, page = sorted(traces), int(query["page"])
        pages = -(-len(names) // 2)
        data = [traces[each] for each in names[2 * page - 2 : 2 * page]]
        self.answer(200, {"data": data, "meta": {"page": page, "totalPages": pages}})
    elif found := re.fullmatch(r"/api/public/traces/([^/]+)", path):
        name = found.group(1)
        if method == "DELETE":
            # Success at once, for an unknown id too; done by a queue.
            if name in traces:
                vendor.queue.append(("traces", name))
            self.answer(200, {"message": "Trace deleted successfully"})
        else:
            one(self, vendor, method, "traces", name)
    elif path == "/api/public/dataset-items":
        items = vendor.things.get("dataset_items", {})
        self.answer(200, {"data": list(items.values()), "meta": {"totalPages": 1}})
    elif found := re.fullmatch(r"/api/public/dataset-items/([^/]+)", path):
        one(self, vendor, method, "dataset_items", found.group(1))
    else:
        return False
    return True


def zep(self: Handler, vendor: Vendor, method: str, path: str, query: dict[str, str], body: Any) -> bool:
    if found := re.fullmatch(r"/users/([^/]+)", path):
        name = found.group(1)
        if method == "DELETE" and name in vendor.things.get("users", {}):
            task = f"task-{len(vendor.tasks)}"
            fault = vendor.faults.get(("users", name), "")
            vendor.tasks[task] = "failed" if fault == "fails" else "pending"
            if fault != "fails":
                vendor.queue.append(("users", name))
            self.answer(202, {"task": {"uuid": task, "status": "pending"}})
        else:
            one(self, vendor, method, "users", name)
    elif found := re.fullmatch(r"/tasks/([^/]+)", path):
        self.answer(200, {"uuid": found.group(1), "status": vendor.tasks[found.group(1)]})
    else:
        return False
    return True


def weaviate(self: Handler, vendor: Vendor, method: str, path: str, query: dict[str, str], body: Any) -> bool:
    if found := re.fullmatch(r"/v1/objects/([^/]+)/([^/]+)", path):
        one(self, vendor, method, f"{found.group(1)}/{query.get('tenant', '')}", found.group(2))
    elif found := re.fullmatch(r"/v1/schema/([^/]+)/tenants/([^/]+)", path):
        name = f"{found.group(1)}/{found.group(2)}"
        self.answer(200 if name in vendor.things else 404, {"name": found.group(2)})
    elif (found := re.fullmatch(r"/v1/schema/([^/]+)/tenants", path)) and method == "DELETE":
        for tenant in body:
            del vendor.things[f"{found.group(1)}/{tenant}"]
        self.answer(200, {})
    else:
        return False
    return True


def qdrant(self: Handler, vendor: Vendor, method: str, path: str, query: dict[str, str], body: Any) -> bool:
    points = vendor.things.setdefault("points", {})
    if found := re.fullmatch(r"/collections/([^/]+)/points/delete", path):
        for point in body["points"]:
            if isinstance(point, str) and "-" not in point:
                self.answer(400, {"status": {"error": "a text that is no UUID names no point"}})
                return True
            points.pop(str(point), None)
        self.answer(200, {"result": {"status": "completed"}})
    elif found := re.fullmatch(r"/collections/([^/]+)/points/([^/]+)", path):
        known = points.get(found.group(2))
        self.answer(404 if known is None else 200, {"result": known})
    else:
        return False
    return True


_APIS = (own, openai, anthropic, langfuse, zep, weaviate, qdrant)


class Quiet(ThreadingHTTPServer):
    """Says nothing of clients that hang up, as some tests do."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._callers: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._callers.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._callers.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End every connection, as a server does that is killed."""
        for caller in list(self._callers):
            with suppress(OSError):
                caller.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextmanager
def running(context: ssl.SSLContext | None = None) -> Iterator[tuple[str, Vendor]]:
    """Yield the address of a vendor and its state; with a context it speaks TLS."""
    vendor = Vendor()
    handler = type("Bound", (Handler,), {"vendor": vendor})
    held: list[tuple[Quiet, threading.Thread]] = []

    def start(port: int = 0) -> None:
        server = Quiet(("127.0.0.1", port), handler)
        server.daemon_threads = True
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        held.append((server, thread))

    def stop() -> int:
        server, thread = held.pop()
        server.shutdown()
        server.server_close()
        server.hang_up()
        thread.join(5)
        return int(server.server_address[1])

    start()
    vendor.restart = lambda: start(stop())
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{held[0][0].server_address[1]}", vendor
    finally:
        vendor.gate.set()
        stop()

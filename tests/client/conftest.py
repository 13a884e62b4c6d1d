"""A server that keeps the contract of `POST /v1/record/entries` and misbehaves on order.

It exists to inject faults that the real service shows only by accident: lost answers, resets, half answers.
"""

import json
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class FaultServer:
    """Stores entries by id; each request first takes the next fault, if any is queued."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.order: list[str] = []
        self.posts: list[int] = []
        self.paths: list[str] = []
        self.tokens: set[str] = set()
        self.bodies: list[bytes] = []
        self.faults: deque[str] = deque()
        self.classes = {"transcript", "skeleton"}
        self.suppressed_subjects: set[str] = set()
        self.suppressed_parts: list[int] = []
        self.bad_kinds: set[str] = set()
        self.poison: str | None = None
        self.lock = threading.Lock()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"book": self}))
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def take(self, entry: dict[str, Any]) -> dict[str, Any]:
        entry_id = entry["id"]
        with self.lock:
            if entry_id in self.stored:
                if self.stored[entry_id] == entry:
                    return {"id": entry_id, "status": "duplicate"}
                return {"id": entry_id, "status": "rejected", "problem": {"type": "/problems/id-conflict"}}
            if entry["data_class"] not in self.classes:
                return {"id": entry_id, "status": "rejected", "problem": {"type": "/problems/unknown-class"}}
            if entry["kind"] in self.bad_kinds:
                return {"id": entry_id, "status": "rejected", "problem": {"type": "/problems/invalid"}}
            if self.suppressed_subjects & set(entry.get("subjects", [])):
                return {"id": entry_id, "status": "suppressed"}
            self.stored[entry_id] = entry
            self.order.append(entry_id)
            stored = {"id": entry_id, "status": "stored", "index": len(self.order) - 1}
            return stored | ({"suppressed_parts": self.suppressed_parts} if self.suppressed_parts else {})


class Handler(BaseHTTPRequestHandler):
    book: FaultServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name of the port)
        """Say nothing."""

    def do_GET(self) -> None:
        fault = self.book.faults.popleft() if self.book.faults else ""
        if fault == "reset":
            self.close_connection = True
            return
        if self.path.startswith("/v1/list"):
            self.answer(200, {"items": [1, 2], "next_cursor": None if "cursor=" in self.path else "next"})
        else:
            self.answer(404, {"type": "/problems/not-found", "title": "Unknown in this tenant", "status": 404})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        fault = self.book.faults.popleft() if self.book.faults else ""
        if fault == "reset":
            self.close_connection = True
            return
        if fault.isdigit():
            headers = {"Retry-After": "1"} if fault in {"429", "503"} else {}
            self.answer(int(fault), {"type": "/problems/unavailable", "title": "not now"}, headers)
            return
        if fault == "page400":
            self.answer(400, "<html>the plain HTTP request was sent to an HTTPS port</html>")
            return
        if fault == "html":
            self.answer(200, "<html>a proxy's page</html>")
            return
        self.take(body, fault)

    def take(self, body: bytes, fault: str) -> None:
        self.book.paths.append(self.path)
        if self.path.startswith("/v1/memory/"):
            self.answer(404, {"type": "/problems/not-found", "title": "Unknown in this tenant", "status": 404})
            return
        self.book.tokens.add(self.headers["Authorization"])
        self.book.bodies.append(body)
        if self.book.poison is not None and self.book.poison in body.decode():
            self.answer(422, {"type": "/problems/invalid", "title": "one of them is bad", "status": 422})
            return
        if not self.path.endswith("/entries"):
            self.answer(200, {"results": [{"status": "created"} for _ in json.loads(body).get("artifacts", [])]})
            return
        entries = json.loads(body)["entries"]
        if fault == "half":
            entries = entries[: (len(entries) + 1) // 2]
        results = [self.book.take(entry) for entry in entries]
        self.book.posts.append(len(entries))
        if fault == "lost":
            self.close_connection = True
            return
        self.answer(200, {"results": results[::-1], "receipt": {"count": len(results)}})

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def fault_server() -> Iterator[FaultServer]:
    """Yields a server whose faults the test queues."""
    server = FaultServer()
    yield server
    server.close()

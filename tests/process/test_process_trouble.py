"""Stores in trouble while the service runs or starts: one clear line or problem, nothing half written, then it goes on.

The S3 troubles are answers that Amazon documents, given by a front before the real test server; the disk is a real
small file system, the failing fsync is the kernel's.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from api import folder
from api.commands.failures import explain
from api.settings import Settings, load
from api.wiring import StoreRefused, build
from audit.findings import Verdict
from audit.reader import FolderReader
from audit.verify import verify
from muniment.errors import ApiProblem
from muniment.registry import Client
from tests.process.conftest import Desk, Running, _on_servers, new_desk
from tests.process.serving import Nursery
from tests.process.test_process_record import entry, post

pytestmark = pytest.mark.process

TROUBLES = [
    (400, "ExpiredToken", "expired"),
    (403, "RequestTimeTooSkewed", "clock"),
    (403, "InvalidAccessKeyId", "not known"),
    (403, "AccessDenied", "do not allow"),
    (400, "AuthorizationHeaderMalformed", "another region"),
    (301, "PermanentRedirect", "another region"),
]


class Front:
    """A server before the real S3 that passes everything on, or gives one answer to all of it."""

    def __init__(self, endpoint: str) -> None:
        self.trouble: tuple[int, str] | None = None
        self.gave = 0
        front, (host, _, port) = self, endpoint.removeprefix("http://").partition(":")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if front.trouble is not None:
                    self._refuse(*front.trouble)
                    return
                upstream = HTTPConnection(host, int(port), timeout=30)
                upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("expect", "connection"):
                        upstream.putheader(name, value)
                upstream.endheaders(body or None)
                found = upstream.getresponse()
                data = found.read()
                self.send_response_only(found.status)
                for name, value in found.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                length = found.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                self.wfile.write(data)
                upstream.close()

            def _refuse(self, status: int, code: str) -> None:
                front.gave += 1
                data = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
                self.send_response_only(status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("x-amz-bucket-region", "eu-central-1")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 (names of the standard library)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def front(s3_service: Any) -> Iterator[Front]:
    made = Front(s3_service.endpoint)
    yield made
    made.close()


@pytest.fixture
def fronted(
    front: Front, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Settings:  # fmt: skip
    return _on_servers(tmp_path, request, monkeypatch).model_copy(update={"s3_endpoint_url": front.url})


@pytest.mark.s3
@pytest.mark.postgres
def test_a_store_that_refuses_while_it_serves_is_a_503_with_its_reason_and_the_same_post_is_stored_later(
    front: Front, fronted: Settings
) -> None:
    running = Running(fronted)
    desk = new_desk(running)
    sent = 0
    for status, code, words in TROUBLES:
        entries = [entry(), entry()]
        front.trouble = (status, code)
        with pytest.raises(ApiProblem) as refused:
            post(desk, *entries)
        front.trouble = None
        assert (refused.value.status, refused.value.type) == (503, "/problems/unavailable")
        assert words in str(refused.value), str(refused.value)
        assert [one["status"] for one in post(desk, *entries)] == ["stored", "stored"]
        sent += 2
    found = desk.call("auditor", "POST", "/v1/record:search", {"data_class": "transcript"})["items"]
    assert len(found) == sent
    desk.client("auditor").send("GET", "/v1/log/checkpoint")
    log_id = desk.log_key.split("+")[0].rpartition("/")[2]
    assert verify(running.services.locked, log_id=log_id, keys=[desk.log_key]).verdict is Verdict.SOUND
    desk.close()
    running.stop()


@pytest.mark.s3
@pytest.mark.postgres
def test_a_start_on_a_store_that_refuses_ends_in_one_line_that_says_why(front: Front, fronted: Settings) -> None:
    folder.make(fronted.data)
    for status, code, words in TROUBLES:
        front.trouble = (status, code)
        with pytest.raises(StoreRefused) as refused:
            build(fronted).check_stores()
        line, exit_code = explain(refused.value)
        assert exit_code == 2
        assert "\n" not in line
        assert words in line
        assert "OBJECT_STORE" in line
    assert front.gave >= len(TROUBLES)


# ── disks ──


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this machine mounts no tmpfs: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_a_503_and_nothing_acknowledged_is_lost(small_disk: Path) -> None:
    running = Running(load(small_disk / "data"))
    desk = new_desk(running)
    stored: list[str] = []
    refused: list[dict[str, Any]] = []
    answer: ApiProblem | None = None
    for _ in range(40):
        entries = [entry(body=os.urandom(250_000).hex()) for _ in range(4)]
        try:
            results = post(desk, *entries)
        except ApiProblem as problem:
            answer, refused = problem, entries
            break
        stored += [one["id"] for one in results if one["status"] == "stored"]
    assert stored
    assert answer is not None, "the disk was not filled"
    assert (answer.status, answer.type) == (503, "/problems/unavailable")
    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    running.stop()
    running.start()
    again = [one["status"] for one in post(desk, *refused)]
    assert set(again) <= {"stored", "duplicate"}
    for entry_id in stored:
        desk.call("auditor", "GET", f"/v1/record/entries/{entry_id}/proof")
    _require_sound(desk, small_disk / "data")
    desk.close()
    running.stop()


def _require_sound(desk: Desk, data: Path) -> None:
    log_id = desk.log_key.split("+")[0].rpartition("/")[2]
    report = verify(FolderReader(data / "objects"), log_id=log_id, keys=[desk.log_key])
    assert report.verdict is Verdict.SOUND, report.findings[:3]


@pytest.mark.scenario("L9")
@pytest.mark.parametrize("folder_name", ["batch", pytest.param("payload/none", marks=pytest.mark.slow)])
def test_an_fsync_that_fails_is_a_503_until_a_restart_and_never_an_acknowledgement(
    tmp_path: Path, folder_name: str
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed, which lets an fsync fail")
    nursery = Nursery(tmp_path)
    made = nursery.run(["init", "--data", str(tmp_path / "data"), "--json"])
    made.wait(60)
    told = json.loads(made.out.read_text().splitlines()[0])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = ["serve", "--data", str(tmp_path / "data"), "--port", str(port)]
    server = nursery.run(serve)
    assert server.wait_ready()
    client = Client(f"http://127.0.0.1:{port}", told["tokens"]["writer"], timeout=30)

    def send(*entries: dict[str, Any]) -> list[str]:
        results = client.request("POST", "/v1/record/entries", {"entries": list(entries)})["results"]
        return [one["status"] for one in results]

    first, second, third = entry(), entry(), entry()
    assert send(first) == ["stored"]
    log_id = told["log_key"].split("+")[0].rpartition("/")[2]
    place = tmp_path / "data" / "objects" / log_id / folder_name
    assert place.is_dir()
    tracer = subprocess.Popen(
        ["strace", "-f", "-q", "-o", str(tmp_path / "trace"), "-P", str(place), "-e", "trace=fsync",
         "-e", "inject=fsync:error=EIO:when=1", "-p", str(server.pid)],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(0.5)
    assert tracer.poll() is None, "strace may not attach here"
    with pytest.raises(ApiProblem) as refused:
        send(second)
    assert "EIO" in (tmp_path / "trace").read_text()
    assert (refused.value.status, refused.value.type) == (503, "/problems/unavailable")
    tracer.terminate()
    tracer.wait()
    # The kernel may have dropped what was written: until a restart this process calls nothing stored.
    for _ in range(3):
        with pytest.raises(ApiProblem) as refused:
            send(third)
        assert refused.value.status == 503
    server.kill()
    server.wait()
    server = nursery.run(serve)
    assert server.wait_ready()
    client.close()
    assert send(first) == ["duplicate"]
    assert set(send(second, third)) <= {"stored", "duplicate"}
    client.close()
    nursery.close()

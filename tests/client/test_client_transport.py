"""A connection is used again while it is warm, and not after a silence in which the server may have ended it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any

import pytest

from muniment import transport
from muniment.errors import TransportError
from muniment.transport import Transport


class Impatient(BaseHTTPRequestHandler):
    """Keeps a connection open, and ends it as soon as it is silent for a moment, as servers do."""

    protocol_version = "HTTP/1.1"
    timeout = 0.3

    def do_GET(self) -> None:
        body = str(self.client_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Impatient)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_socket_file_is_an_address_too_and_one_that_is_gone_is_a_transport_error(tmp_path: Path) -> None:
    class Local(UnixStreamServer):
        def get_request(self) -> tuple[Any, Any]:
            request, _ = super().get_request()
            return request, ("", "socket file")

    path = tmp_path / "s"
    server = Local(str(path), Impatient)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    client = Transport(f"unix:{path}", None)
    assert client.request("GET", "/").body == b"socket file"
    client.close()
    server.shutdown()
    server.server_close()
    path.unlink()
    with pytest.raises(TransportError):
        client.request("GET", "/")
    for address in ("unix:", "unix://host/path", "ftp://host"):
        with pytest.raises(ValueError, match="unix:/path"):
            Transport(address, None)


def test_a_silent_connection_is_opened_anew_before_the_server_is_asked(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Transport(address, None)
    first, second = (client.request("GET", "/").body for _ in range(2))
    assert first == second
    monkeypatch.setattr(transport, "_IDLE_SECONDS", 0.1)
    for _ in range(3):
        time.sleep(0.5)  # longer than the server waits: a request into the old connection would be lost
        third = client.request("GET", "/").body
        assert third != second
        second = third
    client.close()

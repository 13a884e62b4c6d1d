"""Heads of requests: what is too long or too slow is ended, whoever sends it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from api.heads import MAX_HEAD_BYTES, BoundedHeads
from api.limits import BodyLimits


class Hasty(BoundedHeads):
    seconds = 0.3


async def answer(_scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(answer, http=Hasty, log_config=None, access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield bound.getsockname()[1]
    server.should_exit = True
    thread.join(10)
    bound.close()


def said(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """What comes back before the connection ends or falls silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as line:
        found = b""
        try:
            for piece in pieces:
                line.sendall(piece)
                time.sleep(pause)
            while got := line.recv(65536):
                found += got
                if found.endswith(b"ok"):
                    break
        except TimeoutError:
            return found + SILENT
        except (BrokenPipeError, ConnectionResetError):
            pass
        return found


SILENT = b"<silent>"
HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD + b"X: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n"],
        [HEAD + b"".join(b"X%d: 1\r\n" % number for number in range(10_000)) + b"\r\n"],
        [HEAD, b"X: ", *[b"a" * 65_536] * 20],
        [b"GET /", *[b"a" * 65_536] * 20],
    ],
    ids=["one long field", "many fields", "a field without an end", "an address without an end"],
)
def test_a_head_of_more_than_64_kib_is_refused_before_its_end(port: int, pieces: list[bytes]) -> None:
    # Any length was taken, of anybody: the memory of the process was the only bound.
    found = said(port, *pieces)
    assert SILENT not in found
    assert b" 200 " not in found


def test_a_head_of_less_and_any_body_pass_on_one_connection(port: int) -> None:
    request = (
        b"POST / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (MAX_HEAD_BYTES - 100) + b"\r\nContent-Length: 300000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
        for _ in range(3):
            line.sendall(request + b"b" * 300_000)
            assert line.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_head_that_does_not_end_or_begin_holds_no_connection(port: int) -> None:
    begun = time.monotonic()
    assert said(port) == b""
    assert said(port, *[b"GET / HTTP/1.1\r\nHost: x\r\nX: "] + [b"a"] * 6, pause=0.1) == b""
    assert time.monotonic() - begun < 1.9


def test_a_sender_who_falls_silent_in_a_body_is_told_so() -> None:
    told: list[Any] = []

    async def silent() -> Any:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        told.append(message)

    scope = {"type": "http", "method": "POST", "headers": []}
    asyncio.run(BodyLimits(answer, silent_seconds=0.05)(scope, silent, send))
    assert told[0]["status"] == 400
    assert b"nothing of the body came" in told[1]["body"]


def test_a_body_may_take_longer_than_a_head(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
    assert said(port, head, *[b"a"] * 5, pause=0.1).startswith(b"HTTP/1.1 200 ")

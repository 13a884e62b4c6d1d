"""What the S3 store makes of answers that no S3 gives: a proxy's page, a success without a body, a list without an end.

Nothing of it may read as an empty bucket, an altered byte or a stored object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typing_extensions import override

from ledger.errors import LockNotEnforced, StoreDenied, StoreUnavailable
from ledger.s3 import S3Store, s3_client

KEY = "batch/00000000000000000000"
LIST = '<?xml version="1.0"?><{kind}><IsTruncated>{more}</IsTruncated>{rest}</{kind}>'
VERSIONS = LIST.format(kind="ListVersionsResult", more="false", rest="")
FAILED = '<?xml version="1.0"?><Error><Code>InternalError</Code><Message>later</Message></Error>'


class Server(ThreadingHTTPServer):
    """Gives every request of a method, or of all, one answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked = 0


class Answering(BaseHTTPRequestHandler):
    """Reads a request and gives the answer that the server has for it."""

    server: Server
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        self.server.asked += 1
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        answers = self.server.answers
        kind = "LIST" if "?" in self.path and self.command == "GET" else self.command
        status, headers, body = answers.get(kind) or answers[""]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = _answer  # noqa: N815 - the names that the library calls

    @override
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def listening() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def client(listening: Server) -> Iterator[Any]:
    endpoint = f"http://127.0.0.1:{listening.server_port}"
    with closing(s3_client(endpoint_url=endpoint, region="us-east-1", access_key="a", secret_key="b")) as made:
        yield made


@pytest.fixture
def server(listening: Server) -> Server:
    listening.answers, listening.asked = {}, 0
    return listening


@pytest.fixture
def store(client: Any) -> S3Store:
    return S3Store(client, "bucket", pause=lambda _: None)


def until() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


ASKED: dict[str, Callable[[S3Store], Any]] = {
    "list": lambda store: list(store.list("batch/")),
    "head": lambda store: store.head(KEY),
    "delete": lambda store: store.delete(KEY),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param((200, {}, b""), id="nothing"),
        pytest.param((204, {}, b""), id="no content"),
        pytest.param((200, {}, FAILED.encode()), id="an error as a success"),
        pytest.param((200, {}, b"<html><br><body>log in"), id="a page"),
        pytest.param((200, {}, b"<html><body>log in</body></html>"), id="a page that is XML"),
        pytest.param((206, {}, b"abc"), id="a piece"),
        pytest.param((200, {}, LIST.format(kind="L", more="false", rest="").encode()[:-9]), id="a list cut off"),
        pytest.param((200, {}, LIST.format(kind="L", more="true", rest="").encode()), id="more, nowhere"),
    ],
)
def test_an_answer_that_is_no_list_is_never_taken_for_an_empty_one(
    server: Server, store: S3Store, answer: tuple[int, dict[str, str], bytes], asked: str
) -> None:
    """Each of them once said that there was no batch, no version, nothing to delete, or ended in a KeyError."""
    server.answers[""] = answer
    with pytest.raises(StoreUnavailable):
        ASKED[asked](store)


@pytest.mark.parametrize("asked", ASKED)
def test_a_list_that_goes_in_circles_ends(server: Server, store: S3Store, asked: str) -> None:
    again = "".join(f"<Next{name}>again</Next{name}>" for name in ("ContinuationToken", "KeyMarker", "VersionIdMarker"))
    one = f"<Key>{KEY}</Key><VersionId>1</VersionId>"
    rest = f"{again}<Contents>{one}</Contents><Version>{one}</Version>"
    server.answers[""] = (200, {}, LIST.format(kind="L", more="true", rest=rest).encode())
    with pytest.raises(StoreUnavailable):
        ASKED[asked](store)
    assert server.asked < 10


def test_a_store_that_redirects_everything_is_refused_and_says_where_to_look(server: Server, store: S3Store) -> None:
    server.answers[""] = (302, {"Location": "http://127.0.0.1:1/"}, b"")
    with pytest.raises(StoreDenied, match="redirects in circles: check the endpoint"):
        store.get(KEY)


def test_an_object_that_is_not_there_after_the_store_took_it_was_not_stored(server: Server, store: S3Store) -> None:
    """It once was "missing", as if somebody had asked for it."""
    server.answers |= {"PUT": (200, {}, b""), "LIST": (200, {}, VERSIONS.encode())}
    with pytest.raises(LockNotEnforced, match="not there after the store said so"):
        store.put(KEY, b"data", lock_until=until())


@pytest.mark.parametrize(
    ("mode", "kept_for", "shown"),
    [
        pytest.param(None, None, "got None until no date", id="no lock"),
        pytest.param("COMPLIANCE", None, "got COMPLIANCE until no date", id="no date"),
        pytest.param("GOVERNANCE", timedelta(hours=1), "got GOVERNANCE until", id="another mode"),
        pytest.param("COMPLIANCE", timedelta(minutes=59), "got COMPLIANCE until", id="a shorter one"),
    ],
)
def test_a_lock_that_is_read_back_as_another_was_not_kept(
    server: Server, store: S3Store, mode: str | None, kept_for: timedelta | None, shown: str
) -> None:
    version = f"<Version><Key>{KEY}</Key><VersionId>1</VersionId></Version>"
    server.answers["LIST"] = (200, {}, LIST.format(kind="L", more="false", rest=version).encode())
    lock = {} if mode is None else {"x-amz-object-lock-mode": mode}
    if kept_for is not None:
        lock["x-amz-object-lock-retain-until-date"] = (datetime.now(UTC) + kept_for).isoformat()
    server.answers |= {"PUT": (200, {}, b""), "HEAD": (200, lock, b"data")}
    with pytest.raises(LockNotEnforced, match=shown):
        store.put(KEY, b"data", lock_until=until())


def test_a_date_that_is_none_is_no_answer(server: Server, store: S3Store) -> None:
    server.answers[""] = (200, {"x-amz-object-lock-retain-until-date": "never"}, b"data")
    with pytest.raises(StoreUnavailable):
        store.get(KEY)


@pytest.mark.parametrize(("offset", "length"), [(2, 3), (0, 4), (3, None), (20, 1)])
def test_a_server_that_gives_the_whole_for_a_piece_changes_no_byte(
    server: Server, store: S3Store, offset: int, length: int | None
) -> None:
    """Such a server's parts once read as altered."""
    data = b"0123456789"
    server.answers[""] = (200, {}, data)
    assert store.get(KEY, offset=offset, length=length) == data[offset:][:length]

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from connectors.base import Connector, Item, Level, Outcome, Selector, open_connector
from connectors.errors import BadConfig, StoreUnreachable, WrongCredentials
from tests.connectors.contract import BEN, MIA, NOW, OF_PROCESSES, Bed, Contract, captured, erase, fill, oracle, text_of
from tests.connectors.vector_beds import vector_of
from tests.lazily import Lazily

chromadb, config = Lazily("chromadb"), Lazily("chromadb.config")


class Server:
    """`chroma run` on a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        program = str(Path(sys.executable).with_name("chroma"))
        self.process = subprocess.Popen(
            [program, "run", "--path", str(self.folder), "--port", str(self.port), "--host", "127.0.0.1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(600):
            try:
                if httpx.get(f"{self.url}/api/v2/heartbeat", timeout=1, trust_env=False).is_success:
                    break
            except httpx.HTTPError:
                pass
            assert self.process.poll() is None
            time.sleep(0.1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("chroma"))
    yield made
    made.stop()


class ServerBed(Bed):
    serves = True
    no_credentials = "Chroma's server asks nobody who he is; a token is for what stands before it"

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = self._connect()
        for each in self.client.list_collections():
            self.client.delete_collection(each.name)
        self.notes: Any = self.client.create_collection("notes", embedding_function=None)

    def _connect(self) -> Any:
        return chromadb.HttpClient("127.0.0.1", self.server.port, settings=config.Settings(anonymized_telemetry=False))

    def close(self) -> None:
        self.client.close()
        for api in (self.client._server, self.client._admin_client._server):
            api._session.close()  # its own close leaves them open

    def restart(self) -> None:
        self.server.kill()
        self.server.start()
        self.close()
        self.client = self._connect()
        self.notes = self.client.get_collection("notes", embedding_function=None)

    def refuse(self, name: str) -> Callable[[], None]:
        """Let the queue, which every write goes through, take no deletion of this record."""
        file = self.server.folder / "chroma.sqlite3"

        def run(statement: str) -> None:
            with closing(sqlite3.connect(file, isolation_level=None, timeout=5)) as connection:
                connection.execute(statement)

        run(
            f"CREATE TRIGGER refused BEFORE INSERT ON embeddings_queue WHEN new.id = '{name}' AND new.operation = 3"
            " BEGIN SELECT RAISE(ABORT, 'kept by its owner'); END"
        )
        return lambda: run("DROP TRIGGER refused")

    @contextmanager
    def stranger(self) -> Iterator[str]:
        yield self.source(api_key="hunter2")

    def whole(self, name: str) -> object:
        found = self.notes.get(ids=[name], include=["documents", "metadatas", "embeddings"])
        vectors = [list(map(float, vector)) for vector in found["embeddings"]]
        return (found["documents"], found["metadatas"], vectors) if found["ids"] else None

    def near(self, text: str) -> list[str]:
        found: list[str] = self.notes.query(query_embeddings=[vector_of(text)], n_results=100)["ids"][0]
        return found

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        self.notes.add(ids=[name], embeddings=[vector_of(text)], documents=[text], metadatas=[{"user_id": owner}])
        return {"collection": "notes", "id": name}

    def get(self, name: str) -> str | None:
        found = self.notes.get(ids=[name])["documents"]
        return found[0] if found else None

    def open(self, *, read_only: bool = False, owner: bool = True) -> Connector:
        config = {"url": self.server.url} | ({"owner_field": "user_id"} if owner else {})
        return open_connector("chroma", config, secrets=str, read_only=read_only)

    def hits(self, canary: str) -> int:
        return oracle([self.server.folder], canary)

    def block(self) -> Callable[[], None]:
        # A server that is stopped answers nothing, and its port stays open.
        import os
        import signal

        os.kill(self.server.process.pid, signal.SIGSTOP)
        return lambda: os.kill(self.server.process.pid, signal.SIGCONT)

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"collection": "notes", "id": 7},
            {"collection": "notes"},
            {"collection": "../collections/notes", "id": "mia-0"},
            {"collection": "notes?limit=1", "id": "mia-0"},
            {"collection": "notes", "id": ["mia-0"]},
            {"collection": "notes", "id": None},
            {"collection": "notes", "id": "mia-0", "where": {}},
        ]

    def wrong(self) -> Connector:
        return open_connector("chroma", {"url": f"{self.server.url}/other", "owner_field": "user_id"}, secrets=str)

    def source(self, **more: object) -> str:
        config = {"url": self.server.url, "owner_field": "user_id", **more}
        return (
            f"from connectors.base import open_connector\nconnector = open_connector('chroma', {config!r}, secrets=str)"
        )

    def own_delete(self, name: str) -> None:
        self.notes.delete(ids=[name])


@pytest.fixture
def bed(running: Server) -> Iterator[ServerBed]:
    with closing(ServerBed(running)) as made:
        yield made


class TestChromaServer(Contract):
    """The contract, where a level is asked for that a server's interface cannot show, with what is said instead."""

    holds = "chroma, server"
    slow: ClassVar = OF_PROCESSES
    instead: ClassVar = {
        "test_residue_names_each_canary_that_is_there_and_none_that_is_not": "nothing answers for the server's files",
        "test_check_erases_its_own_canary_and_says_the_level": "it says besides why the level is not more",
    }

    def test_residue_names_each_canary_that_is_there_and_none_that_is_not(self, bed: Bed) -> None:
        fill(bed, 1)
        with bed.open(read_only=True) as connector, pytest.raises(StoreUnreachable, match="cannot be scanned"):
            connector.residue([text_of("mia-0").encode()], deadline=30)

    def test_check_erases_its_own_canary_and_says_the_level(self, bed: Bed) -> None:
        fill(bed, 1)
        with bed.open() as connector:
            report = connector.check(now=NOW, deadline=30)
        assert (report.reachable, report.can_erase, report.owner_check) == (True, True, "enforced")
        assert report.level_reached is Level.L1
        assert len(report.findings) == 1
        assert "stop it and register its folder with path" in report.findings[0]


def test_what_a_server_keeps_in_its_files_is_not_said_to_be_gone(bed: ServerBed) -> None:
    mine, _ = fill(bed, 1)
    with bed.open() as connector:
        items = captured(connector, mine)
        erase(connector, items)
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        finding = connector.verify(items, Level.L2, deadline=30, reclaimed=report)[0]
    assert bed.hits(text_of("mia-0")) > 0
    assert "its files are not reached from here" in report.detail
    assert finding.could_not_check == report.detail.split(";;")[0]


@pytest.mark.slow
def test_the_folder_of_a_stopped_server_is_brought_to_l2(tmp_path: Path) -> None:
    server = Server(tmp_path / "chroma")
    try:
        with closing(ServerBed(server)) as bed, bed.open() as connector:
            mine, others = fill(bed, 2)
            items = captured(connector, mine)
            erase(connector, items)
    finally:
        server.stop()
    with open_connector("chroma", {"path": str(server.folder), "owner_field": "user_id"}, secrets=str) as connector:
        assert {receipt.outcome for receipt in erase(connector, items)} == {Outcome.ALREADY_ABSENT}
        report = connector.reclaim(Level.L2, now=NOW, deadline=30)
        findings = connector.verify(items, Level.L2, deadline=30, reclaimed=report)
        kept = dict(connector.export(others, deadline=10))
    assert {(f.level, f.present) for f in findings} == {(Level.L2, False)}
    assert oracle([server.folder], text_of("mia-0")) == 0
    assert text_of("ben-1").encode() in (kept["ben-1"] or b"")


def test_pages_and_batches_are_followed_to_their_end(bed: ServerBed) -> None:
    names = [f"mia-{n}" for n in range(650)]
    bed.notes.add(
        ids=names, embeddings=[vector_of(name) for name in names], metadatas=[{"user_id": "mia"} for _ in names]
    )
    bed.put("ben-0", "stays", BEN)
    items = [Item(copy_id=name, locator={"collection": "notes", "id": name}) for name in names]
    with bed.open() as connector:
        assert len(list(connector.discover(Selector(identifiers=(MIA,)), deadline=30))) == 650
        assert {receipt.outcome for receipt in erase(connector, items)} == {Outcome.ERASED}
    assert bed.notes.get()["ids"] == ["ben-0"]


class Refusing:
    """A proxy in front of a server, as deployments have one that asks for a token."""

    def __init__(self, status: int) -> None:
        import threading
        from http.server import BaseHTTPRequestHandler, HTTPServer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.mark.parametrize(
    ("status", "error"), [(401, WrongCredentials), (403, WrongCredentials), (404, StoreUnreachable)]
)
def test_a_refusal_is_never_an_absence(status: int, error: type[Exception]) -> None:
    proxy = Refusing(status)
    try:
        config = {"url": f"http://127.0.0.1:{proxy.server.server_port}", "owner_field": "user_id", "api_key": "wrong"}
        item = Item(copy_id="c", locator={"collection": "notes", "id": "mia-0"})
        with open_connector("chroma", config, secrets=str) as connector:
            with pytest.raises(error) as refused:
                erase(connector, [item])
            assert "wrong" not in str(refused.value)
            with pytest.raises(error):
                connector.verify([item], Level.L1, deadline=5)
            assert connector.check(now=NOW, deadline=5).reachable is False
    finally:
        proxy.close()


def test_addresses_that_are_none_are_refused() -> None:
    for url in ("localhost:8000", "file:///x", 7):
        with pytest.raises(BadConfig):
            open_connector("chroma", {"url": url}, secrets=str)


def test_a_server_that_is_killed_and_started_between_batches_ends_the_same(bed: ServerBed) -> None:
    mine, others = fill(bed, 4)
    with bed.open() as connector:
        assert {receipt.outcome for receipt in erase(connector, mine[:2])} == {Outcome.ERASED}
        bed.server.kill()
        with pytest.raises(StoreUnreachable):
            erase(connector, mine[2:])
        bed.server.start()
        given = [receipt.outcome for receipt in erase(connector, [*mine, others[0]])]
        seen = connector.verify([*mine, others[0]], Level.L1, deadline=30)
    assert given == [*[Outcome.ALREADY_ABSENT] * 2, *[Outcome.ERASED] * 2, Outcome.OWNER_MISMATCH]
    assert [each.present for each in seen] == [False] * 4 + [True]

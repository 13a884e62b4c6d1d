"""Anchors and keys: real witness processes, a file of notes, rotations, revocations, and whoever tries around them."""

from __future__ import annotations

import http.client
import importlib.util
import itertools
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlmodel import Session, SQLModel, create_engine

from ledger.anchors import ANCHORED, BEHIND, FAILING, REFUSED, UNANCHORED, Anchoring, parse_anchors, statement
from ledger.checkpoint import format_checkpoint, open_note, parse_checkpoint, parse_note, sign_note
from ledger.draft import Draft, SealedPart
from ledger.entry import uuid7
from ledger.errors import (
    AnchorUnavailable,
    BadProof,
    BadSignature,
    LogForked,
    MalformedAnchor,
    MalformedNote,
    NotLeader,
    SigningKeyMissing,
    StoreUnavailable,
)
from ledger.head import LogParts
from ledger.keyring import LOG, change_key, follow, keys_prefix, open_checkpoint, parse_change, read_windows, windows
from ledger.lease import Lease
from ledger.log import Log
from ledger.memory_objects import MemoryStore
from ledger.merkle import consistency_proof, leaf_hash, reader_of, root, verify_consistency
from ledger.models import (
    EntryRow,
    LogKnock,
    LogLease,
    LogState,
    LogStream,
    OutboxRow,
    PartPlaces,
    PayloadRow,
    StagedRow,
)
from ledger.notefile import read_notes
from ledger.signing import Ed25519Cosigner, Ed25519Signer, verifier_from_vkey
from ledger.witness import cosigned, parse_witness

REPOSITORY = Path(__file__).resolve().parents[2]
WITNESS = REPOSITORY / "infra" / "witness.py"
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
TENANT = 7
LOG_ID = "cd" * 16
ORIGIN = f"muniment/{LOG_ID}"
_MODELS = (LogState, LogKnock, LogLease, LogStream, EntryRow, PartPlaces, PayloadRow, OutboxRow, StagedRow)


def seed(generation: int, name: str = ORIGIN) -> bytes:
    return sha256(f"{name}@{generation}".encode()).digest()


def log_signer(generation: int = 0, origin: str = ORIGIN) -> Ed25519Signer:
    return Ed25519Signer.from_seed(origin, seed(generation, origin))


class Bench:
    """A log over strict in-memory stores and a SQLite file, with anchors."""

    def __init__(self, folder: Path, anchors: Sequence[str] = ()) -> None:
        self.locked = MemoryStore(lambda: NOW)
        self.hot = MemoryStore(lambda: NOW, locked=False)
        self.engine = create_engine(f"sqlite:///{folder / secrets.token_hex(4)}.db", connect_args={"timeout": 20})
        for model in _MODELS:
            SQLModel.metadata.tables[str(model.__tablename__)].create(self.engine)
        with Session(self.engine) as session:
            Log.create(session, TENANT, LOG_ID)
            session.commit()
        lease = Lease(owner=secrets.token_hex(8), sessions=lambda: self.transactions(0))
        assert lease.take(NOW, force=True)
        self.offset = 0
        parts = LogParts(
            transactions=self.transactions,
            locked=self.locked,
            hot=self.hot,
            signer=lambda origin: log_signer(0, origin),
            lock_end=lambda at: at + timedelta(days=2555),
            later_signer=lambda origin, number: log_signer(number + self.offset, origin),
        )
        self.log = Log(parts, lease)
        self.numbers = itertools.count()
        self.anchoring = self._anchoring(anchors)

    def close(self) -> None:
        self.anchoring.close()
        self.engine.dispose()

    def anchor_at(self, anchors: Sequence[str]) -> None:
        self.anchoring.close()
        self.anchoring = self._anchoring(anchors)

    def _anchoring(self, anchors: Sequence[str]) -> Anchoring:
        return Anchoring(
            anchors=parse_anchors(anchors),
            log=self.log,
            locked=self.locked,
            hot=self.hot,
            lock_end=lambda at: at + timedelta(days=2555),
        )

    @contextmanager
    def transactions(self, tenant_id: int, *, write: bool = True) -> Iterator[Session]:
        with Session(self.engine, expire_on_commit=False) as session:
            yield session
            session.commit()

    def grow(self, count: int = 1, content: bytes = b"") -> bytes:
        """Append entries; returns the checkpoint over them."""
        self.log.append(TENANT, [draft(next(self.numbers), content) for _ in range(count)], now=NOW)
        return self.log.publish(TENANT, NOW)


def draft(number: int, content: bytes = b"") -> Draft:
    text = content + f"ciphertext {number}".encode()
    part = SealedPart(
        role="part.0", algorithm="c2sp", ciphertext=text, lock_until=NOW + timedelta(days=30), key_ids=("ef" * 16,)
    )
    return Draft(
        entry_id=uuid7(NOW, number.to_bytes(10, "big")),
        kind="note",
        data_class="transcript",
        class_version=1,
        at=NOW,
        received=NOW,
        recorder=None,
        seq=None,
        stream_id=f"{1:032x}",
        stream_no=1,
        run_no=None,
        set_id=0,
        sources_count=0,
        sources_root=None,
        parts=(part,),
        subjects=((),),
        digest=text[:16].ljust(16, b"\0"),
    )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


# ── a witness process ──


@dataclass(slots=True, kw_only=True)
class Running:
    """A witness in a process of its own; `kill` is kill -9."""

    folder: Path
    origins: list[str]
    vkey: str = ""
    port: int = 0
    process: subprocess.Popen[str] | None = None
    wrapper: list[str] = field(default_factory=list)

    def start(self) -> None:
        key = self.folder / "witness.key"
        program = [sys.executable, *(self.wrapper or [str(WITNESS)])]
        if not key.exists():
            made = subprocess.run(
                [sys.executable, str(WITNESS), "--key", str(key), "--new-key", "witness.example/one"],
                check=True,
                capture_output=True,
                text=True,
            )
            self.vkey = made.stdout.strip()
        command = [*program, "--key", str(key), "--state", str(self.folder / "state"), "--port", "0"]
        for origin in self.origins:
            command += ["--origin", origin]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == f"witness {self.vkey}"
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def stop(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(20)
        self.close()
        return code

    def close(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait(20)
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()
            self.process = None

    @property
    def setting(self) -> str:
        return f"witness+http://127.0.0.1:{self.port}#{self.vkey}"

    def post(self, body: bytes, path: str = "/add-checkpoint") -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            return answer.status, answer.getheader("content-type", ""), answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Running]:
    folder = tmp_path / "witness"
    folder.mkdir()
    made = Running(folder=folder, origins=[f"{ORIGIN}={log_signer().vkey}"])
    made.start()
    yield made
    made.close()


class History:
    """A log as a stranger would make it: leaves, signed checkpoints, requests to a witness."""

    def __init__(self, name: str = "a", shared: int = 0) -> None:
        self.leaves = [leaf_hash(f"{'a' if number < shared else name} {number}".encode()) for number in range(64)]

    def root(self, size: int) -> bytes:
        return root(self.leaves[:size])

    def note(self, size: int, signer: Ed25519Signer | None = None) -> bytes:
        return sign_note(format_checkpoint(ORIGIN, size, self.root(size)), [signer or log_signer()])

    def request(self, old: int, size: int, *, proof: Sequence[bytes] | None = None) -> bytes:
        if proof is None:
            proof = consistency_proof(old, size, reader_of(self.leaves[:size])) if 0 < old < size else ()
        lines = [f"old {old}\n", *(f"{b64encode(node).decode()}\n" for node in proof), "\n"]
        return "".join(lines).encode() + self.note(size)


def test_a_witness_signs_what_extends_what_it_signed_and_serves_it(witness: Running) -> None:
    history = History()
    for old, size in ((0, 3), (3, 3), (3, 7), (7, 64)):
        status, kind, line = witness.post(history.request(old, size))
        assert (status, kind) == (200, "text/plain; charset=utf-8")
        made = cosigned(history.note(size), line, parse_witness(witness.setting).verifier)
        assert len(parse_note(made.note).signatures) == 2
    status, note = witness.get(f"/{sha256(ORIGIN.encode()).hexdigest()}/checkpoint")
    assert status == 200
    keys = [verifier_from_vkey(log_signer().vkey), verifier_from_vkey(witness.vkey)]
    opened = open_note(note, keys)
    assert parse_checkpoint(opened.text).size == 64
    assert len(opened.signatures) == 2
    assert witness.get("/00/checkpoint")[0] == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (History().request(3, 9), 409),  # it has signed 7
        (History().request(0, 9), 409),
        (History("b").request(7, 9), 422),  # another history
        (History("b").request(7, 7), 422),  # the same size, another root
        (History("b", shared=6).request(7, 40), 422),
        (History().request(7, 9, proof=()), 422),
        (History().request(7, 9, proof=(bytes(32),) * 3), 422),
        (History().request(7, 7, proof=(bytes(32),)), 422),
        (History().request(9, 7), 400),  # the old size is larger
        (b"old 7\n\n" + History().note(9, log_signer(5)), 403),  # a key of the same name that nobody told it
        (b"old 0\n\n" + sign_note(format_checkpoint("else", 1, bytes(32)), [log_signer(0, "else")]), 404),
        (History().request(7, 9).replace(b"old 7", b"old 07"), 400),
        (History().request(7, 9).replace(b"old 7", b"old -7"), 400),
        (b"old 7\n" + (b64encode(bytes(32)) + b"\n") * 64 + b"\n" + History().note(9), 400),
        (b"old 7\nAAAA\n\n" + History().note(9), 400),
        (b"", 400),
        (b"\xff\xfe", 400),
        (b"old 7\n\nnot a checkpoint\n", 400),
        (b"old 7\n\n" + b"x" * 70_000, 400),
    ],
)
def test_a_witness_refuses_what_it_cannot_vouch_for(witness: Running, body: bytes, status: int) -> None:
    history = History()
    assert witness.post(history.request(0, 7))[0] == 200
    answered, kind, text = witness.post(body)
    assert answered == status
    if status == 409:
        assert (kind, text) == ("text/x.tlog.size", b"7\n")
    assert witness.post(history.request(7, 7))[0] == 200  # and its state is what it was


def test_a_known_key_with_a_wrong_signature_is_refused(witness: Running) -> None:
    body = History().request(0, 7)
    forged = body[:-8] + (b"AAAA" if body[-8:-4] != b"AAAA" else b"BBBB") + body[-4:]
    assert witness.post(forged)[0] in (400, 403)
    assert witness.get(f"/{sha256(ORIGIN.encode()).hexdigest()}/checkpoint")[0] == 404


def test_of_two_clients_with_different_histories_one_is_signed(witness: Running) -> None:
    for old, size in ((0, 5), (5, 20), (20, 64)):
        histories = [History("a"), History("b", shared=old)] * 4
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda one, old=old, size=size: witness.post(one.request(old, size)), histories))
        won = {histories[number].root(size) for number, answer in enumerate(answers) if answer[0] == 200}
        assert len(won) == 1
        assert {answer[0] for answer in answers} <= {200, 409, 422}
        if won == {History("b", shared=old).root(size)}:
            return  # its history goes on as b from here: what follows of a is refused, which the others showed
        status, _, text = witness.post(History("b", shared=old).request(old, size))
        assert (status, text) == (409, f"{size}\n".encode())


def test_two_processes_cannot_have_one_state(witness: Running) -> None:
    second = Running(folder=witness.folder, origins=witness.origins, vkey=witness.vkey)
    command = [sys.executable, str(WITNESS), "--key", str(witness.folder / "witness.key"), "--port", "0"]
    command += ["--state", str(witness.folder / "state"), "--origin", witness.origins[0]]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    second.close()
    assert done.returncode == 2
    assert "another process" in done.stderr


def test_a_damaged_state_stops_the_witness_instead_of_beginning_again(witness: Running) -> None:
    assert witness.post(History().request(0, 7))[0] == 200
    assert witness.stop(signal.SIGTERM) == 0
    (state,) = (witness.folder / "state").glob("*.checkpoint")
    state.write_bytes(state.read_bytes()[:40])
    command = [sys.executable, str(WITNESS), "--key", str(witness.folder / "witness.key"), "--port", "0"]
    command += ["--state", str(witness.folder / "state"), "--origin", witness.origins[0]]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


_DIE_AT = """
import os, runpy, signal, sys
point, count = sys.argv[1], int(sys.argv[2])
calls = 0
def dying(real, before):
    def call(*given, **named):
        global calls
        calls += 1
        if before and calls == count: os.kill(os.getpid(), signal.SIGKILL)
        made = real(*given, **named)
        if not before and calls == count: os.kill(os.getpid(), signal.SIGKILL)
        return made
    return call
name, when = point.split("-")
import pathlib
if name == "fsync": os.fsync = dying(os.fsync, when == "before")
if name == "replace": pathlib.Path.replace = dying(pathlib.Path.replace, when == "before")
if name == "sign":
    from http.server import BaseHTTPRequestHandler as H
    H.send_response = dying(H.send_response, when == "before")
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
POINTS = [
    ("fsync-before", 1, False),
    ("fsync-after", 1, False),
    ("replace-before", 1, False),
    ("replace-after", 1, True),
    ("fsync-before", 2, True),
    ("fsync-after", 2, True),
    ("sign-before", 1, True),
]


@pytest.mark.process
@pytest.mark.scenario("L3")
@pytest.mark.parametrize(("point", "count", "stored"), POINTS)
def test_a_witness_killed_between_check_and_store_never_signs_two_histories(
    tmp_path: Path, point: str, count: int, stored: bool
) -> None:
    program = tmp_path / "dying.py"
    program.write_text(_DIE_AT)
    running = Running(folder=tmp_path, origins=[f"{ORIGIN}={log_signer().vkey}"])
    running.start()
    assert running.post(History().request(0, 3))[0] == 200
    running.stop()
    running.wrapper = [str(program), point, str(count), str(WITNESS)]
    running.start()
    with pytest.raises((http.client.HTTPException, OSError)):
        running.post(History("a").request(3, 9))
    assert running.process is not None
    assert running.process.wait(20) == -signal.SIGKILL
    running.close()
    running.wrapper = []
    running.start()
    other = running.post(History("b", shared=3).request(3, 9))
    mine = running.post(History("a").request(9, 9) if stored else History("a").request(3, 9))
    running.close()
    # Nothing left the process before it died; of the two histories exactly one is signed ever after.
    assert (other[0] == 200) is not stored
    assert (mine[0] == 200) is stored


@pytest.mark.process
@pytest.mark.slow
def test_a_witness_killed_at_any_moment_signs_one_history_only(tmp_path: Path, full_length: bool) -> None:
    running = Running(folder=tmp_path, origins=[f"{ORIGIN}={log_signer().vkey}"])
    rounds = 30 if full_length else 4
    signed: dict[int, set[bytes]] = {}
    for number in range(rounds):
        running.start()
        killer = threading.Timer(0.02 + 0.013 * (number % 7), running.process.kill if running.process else print)
        killer.start()
        for size, name in itertools.product(range(1, 65), "ab"):
            history = History(name)
            for old in (size - 1, size):
                try:
                    status = running.post(history.request(old, size))[0]
                except (OSError, http.client.HTTPException):
                    break
                if status == 200:
                    signed.setdefault(size, set()).add(history.root(size))
            if running.process is not None and running.process.poll() is not None:
                break
        killer.join()
        running.close()
    assert signed
    assert all(len(roots) == 1 for roots in signed.values())
    running.start()
    assert running.stop(signal.SIGTERM) == 0


def test_the_witness_file_imports_nothing_of_ours() -> None:
    code = "import sys, runpy; sys.path[:] = [p for p in sys.path if p not in ('', sys.argv[2])]\n"
    code += "runpy.run_path(sys.argv[1]); "
    code += "print(sorted(m for m in sys.modules if m.split('.')[0] in "
    code += "('api', 'audit', 'erasure', 'infra', 'ledger', 'registry', 'muniment', 'vault')))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(WITNESS), str(REPOSITORY)], check=True, capture_output=True, text=True, cwd="/"
    )
    assert done.stdout.strip() == "[]"


def witness_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_file_witness", WITNESS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_witness_s_own_proof_check_agrees_with_ours(data: st.DataObject) -> None:
    module = witness_module()
    new_size = data.draw(st.integers(1, 64))
    old_size = data.draw(st.integers(1, new_size))
    history = History()
    proof: list[bytes] = list(consistency_proof(old_size, new_size, reader_of(history.leaves[:new_size])))
    damaged = data.draw(st.booleans())
    if proof and damaged:
        at = data.draw(st.integers(0, len(proof) - 1))
        damages: list[list[bytes]] = [[bytes(32)], [], [proof[at]] * 2]
        which = data.draw(st.integers(0, 2))
        proof[at : at + 1] = damages[which]
    old, new = (
        module.Checkpoint(origin=ORIGIN, size=size, root=history.root(size), text="", lines="")
        for size in (old_size, new_size)
    )
    try:
        verify_consistency(old_size, new_size, proof, old.root, new.root)
        ours = True
    except BadProof:
        ours = False
    assert module.extends(old, new, proof) is ours


# ── the log and its witness ──


def test_each_checkpoint_is_cosigned_and_stored_once(bench: Bench, witness: Running) -> None:
    bench.anchor_at([witness.setting])
    for size in (3, 4, 10):
        bench.grow(size - (bench.log.head(TENANT).size))
        (state,) = bench.anchoring.offer(TENANT, NOW)
        assert (state.state, state.size) == (ANCHORED, size)
    keys = list(bench.locked.list(f"{LOG_ID}/anchor/"))
    number = parse_witness(witness.setting).verifier.key_id.hex()
    digests = [sha256(bench.locked.get(key)).hexdigest()[:16] for key in keys]
    assert keys == [
        f"{LOG_ID}/anchor/{size:020d}-{number}-{digest}" for size, digest in zip((3, 4, 10), digests, strict=True)
    ]
    verifiers = [verifier_from_vkey(log_signer().vkey), verifier_from_vkey(witness.vkey)]
    for key in keys:
        assert len(open_note(bench.locked.get(key), verifiers).signatures) == 2
    assert statement(bench.anchoring.states(LOG_ID)) == ""


def test_the_witness_s_size_is_used_where_ours_was_lost(bench: Bench, witness: Running) -> None:
    bench.anchor_at([witness.setting])
    bench.grow(5)
    bench.anchoring.offer(TENANT, NOW)
    bench.hot.replace(f"{LOG_ID}/anchors", b"not json")
    bench.grow(4)
    (state,) = bench.anchoring.offer(TENANT, NOW)
    assert (state.state, state.size) == (ANCHORED, 9)


@pytest.mark.scenario("L3")
def test_a_rewritten_log_is_refused_by_the_witness(tmp_path: Path, bench: Bench, witness: Running) -> None:
    bench.anchor_at([witness.setting])
    bench.grow(6)
    bench.anchoring.offer(TENANT, NOW)
    for size in (6, 9):
        forged = Bench(tmp_path, [witness.setting])
        forged.grow(size, b"rewritten ")
        (state,) = forged.anchoring.offer(TENANT, NOW)
        assert (state.state, state.size) == (REFUSED, 0)
        assert "forked" in state.detail
        assert list(forged.locked.list(f"{LOG_ID}/anchor/")) == []
        forged.close()


def test_a_rolled_back_log_is_refused_by_the_witness(tmp_path: Path, bench: Bench, witness: Running) -> None:
    bench.anchor_at([witness.setting])
    bench.grow(6)
    bench.anchoring.offer(TENANT, NOW)
    shorter = Bench(tmp_path, [witness.setting])
    shorter.grow(4)
    (state,) = shorter.anchoring.offer(TENANT, NOW)
    assert state.state == REFUSED
    assert "rolled back" in state.detail
    shorter.close()


def test_a_witness_that_is_away_never_stops_the_log_and_is_asked_again_later(bench: Bench, witness: Running) -> None:
    bench.anchor_at([witness.setting])
    port = witness.port
    witness.stop()
    bench.grow(2)
    (state,) = bench.anchoring.offer(TENANT, NOW)
    assert (state.state, state.size, state.failures) == (FAILING, 0, 1)
    assert statement(bench.anchoring.states(LOG_ID)).startswith(UNANCHORED)
    bench.grow(2)
    (again,) = bench.anchoring.offer(TENANT, NOW + timedelta(seconds=1), only_due=True)
    assert again.failures == 1  # the pause is kept
    (again,) = bench.anchoring.offer(TENANT, NOW + timedelta(seconds=11), only_due=True)
    assert again.failures == 2
    assert port
    witness.start()
    bench.anchor_at([witness.setting])
    (state,) = bench.anchoring.offer(TENANT, NOW)
    assert (state.state, state.size, state.failures) == (ANCHORED, 4, 0)


def test_an_answer_by_another_key_does_not_count(bench: Bench, witness: Running) -> None:
    stranger = Ed25519Cosigner.from_seed("witness.example/one", bytes(32))
    bench.anchor_at([f"witness+http://127.0.0.1:{witness.port}#{stranger.vkey}"])
    bench.grow(2)
    (state,) = bench.anchoring.offer(TENANT, NOW)
    assert state.state == FAILING
    assert "pinned key" in state.detail
    assert list(bench.locked.list(f"{LOG_ID}/anchor/")) == []


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 409 Conflict\r\ncontent-length: 5\r\n\r\n<svg>",
        b"HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\n1\n",
        b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"",
    ],
)
def test_a_witness_that_answers_nonsense_is_failing_and_quoted_nowhere(bench: Bench, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)

        def serve() -> None:
            try:
                for _ in range(2):
                    peer, _ = server.accept()
                    with peer:
                        peer.recv(65536)
                        peer.sendall(answer)
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        cosigner = Ed25519Cosigner.from_seed("w.example", bytes(32))
        bench.anchor_at([f"witness+http://127.0.0.1:{server.getsockname()[1]}#{cosigner.vkey}"])
        bench.grow(2)
        (state,) = bench.anchoring.offer(TENANT, NOW)
        server.close()
    assert state.state == FAILING
    assert "svg" not in state.detail
    assert "hello" not in state.detail


@pytest.mark.parametrize(
    "item",
    [
        "file:relative",
        "file://host/path",
        "/path",
        "witness+http://127.0.0.1:1",
        "witness+http://127.0.0.1:1#nonsense",
        f"witness+http://127.0.0.1:1#{log_signer().vkey}",
        "witness+ftp://127.0.0.1#x",
        f"witness+http://u:p@127.0.0.1:1#{Ed25519Cosigner.from_seed('w', bytes(32)).vkey}",
        f"witness+http://127.0.0.1:99999#{Ed25519Cosigner.from_seed('w', bytes(32)).vkey}",
        "s3:bucket/key",
    ],
)
def test_what_is_no_anchor_is_refused_at_the_start(item: str) -> None:
    with pytest.raises(MalformedAnchor):
        parse_anchors([item])


def test_an_anchor_that_stands_twice_is_refused() -> None:
    with pytest.raises(MalformedAnchor):
        parse_anchors(["file:/a", "file:/a"])


def test_without_anchors_every_report_says_whom_it_trusts(bench: Bench) -> None:
    bench.grow()
    assert bench.anchoring.offer(TENANT, NOW) == ()
    assert statement(()) == "unanchored: trusts the operator"


# ── the auditor's file ──


def test_a_file_gets_every_checkpoint_once_and_in_order(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "auditor.notes"
    bench.anchor_at([f"file:{path}"])
    notes = [bench.grow(count) for count in (1, 2, 3)]
    (state,) = bench.anchoring.offer(TENANT, NOW)
    assert (state.state, state.size) == (ANCHORED, 6)
    bench.anchoring.offer(TENANT, NOW)
    notes.append(bench.grow(1))
    assert bench.anchoring.states(LOG_ID)[0].state == BEHIND
    bench.anchoring.offer(TENANT, NOW)
    assert list(read_notes(path.read_bytes())) == notes


def test_a_torn_tail_is_left_and_skipped(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "auditor.notes"
    bench.anchor_at([f"file:{path}"])
    first, second = bench.grow(1), bench.grow(1)
    bench.anchoring.offer(TENANT, NOW)
    whole = path.read_bytes()
    for cut in range(len(first) + 1, len(whole)):
        path.write_bytes(whole[:cut])
        (state,) = bench.anchoring.offer(TENANT, NOW)
        assert (state.state, state.size) == (ANCHORED, 2)
        data = path.read_bytes()
        assert data.startswith(whole[:cut])
        assert [note for note in read_notes(data) if note in (first, second)] == [first, second]


def test_a_file_that_has_seen_more_or_other_is_a_finding(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "auditor.notes"
    setting = [f"file:{path}"]
    bench.anchor_at(setting)
    bench.grow(6)
    bench.anchoring.offer(TENANT, NOW)
    before = path.read_bytes()
    for size, word in ((4, "rolled back"), (6, "forked"), (8, "forked")):
        other = Bench(tmp_path, setting)
        other.grow(size, b"rewritten ")
        (state,) = other.anchoring.offer(TENANT, NOW)
        assert state.state == REFUSED
        assert word in state.detail
        other.close()
    assert path.read_bytes() == before


def test_strangers_lines_in_the_file_change_nothing(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "auditor.notes"
    foreign = sign_note(format_checkpoint(ORIGIN, 99, bytes(32)), [log_signer(9)])
    path.write_bytes(b"the auditor's own words\n\n" + foreign + b"\n")
    bench.anchor_at([f"file:{path}"])
    note = bench.grow(2)
    (state,) = bench.anchoring.offer(TENANT, NOW)
    assert (state.state, state.size) == (ANCHORED, 2)
    assert path.read_bytes().endswith(b"\n\n" + note + b"\n")


def test_what_is_no_file_fails_and_blocks_nothing(bench: Bench, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    places = [tmp_path / "fifo", tmp_path / "link", tmp_path, tmp_path / "missing" / "file"]
    bench.anchor_at([*(f"file:{place}" for place in places), f"file:{tmp_path}/{{log_id}}.notes"])
    bench.grow(2)
    states = bench.anchoring.offer(TENANT, NOW)
    assert [state.state for state in states] == [FAILING] * 4 + [ANCHORED]
    assert (tmp_path / f"{LOG_ID}.notes").is_file()
    assert not (tmp_path / "elsewhere").exists()


# ── keys ──


def keys_of(bench: Bench) -> list[tuple[int, int, int | None, str]]:
    return [(key.generation, key.from_size, key.until_size, key.state) for key in bench.log.keys(TENANT)]


def signed_by(note: bytes) -> list[int]:
    numbers = {log_signer(number).key_id: number for number in range(6)}
    return [numbers[item.key_id] for item in parse_note(note).signatures]


@pytest.mark.scenario("L3")
def test_after_a_rotation_both_keys_sign_until_the_next_one(bench: Bench) -> None:
    assert signed_by(bench.grow(3)) == [0]
    bench.log.rotate_key(TENANT, NOW)
    assert signed_by(bench.grow(2)) == [0, 1]
    bench.log.rotate_key(TENANT, NOW)
    assert signed_by(bench.grow(2)) == [1, 2]
    assert keys_of(bench) == [(0, 0, 5, "ended"), (1, 4, None, "active"), (2, 6, None, "active")]
    assert bench.log.vkey(TENANT) == log_signer(2).vkey


@pytest.mark.scenario("L3")
def test_a_revoked_key_counts_for_no_later_size_and_for_every_earlier_one(bench: Bench) -> None:
    earlier = bench.grow(3)
    bench.log.rotate_key(TENANT, NOW, revoke=True)
    later = bench.grow(2)
    assert signed_by(later) == [1]
    keys = bench.log.keys(TENANT)
    assert keys_of(bench) == [(0, 0, 3, "revoked"), (1, 4, None, "active")]
    assert open_checkpoint(earlier, keys).size == 3
    assert open_checkpoint(later, keys).size == 5
    text = parse_note(later).text
    with pytest.raises(BadSignature):
        open_checkpoint(sign_note(text, [log_signer(0)]), keys)
    assert open_checkpoint(sign_note(text, [log_signer(0), log_signer(1)]), keys).size == 5


@pytest.mark.scenario("L3")
def test_the_log_stops_at_a_checkpoint_that_only_the_stolen_key_signed(bench: Bench, tmp_path: Path) -> None:
    bench.grow(3)
    bench.log.rotate_key(TENANT, NOW, revoke=True)
    bench.log.append(TENANT, [draft(next(bench.numbers))], now=NOW)
    forged = sign_note(format_checkpoint(ORIGIN, 4, bytes(32)), [log_signer(0)])
    bench.locked.put(f"{LOG_ID}/checkpoint/{4:020d}", forged, lock_until=NOW + timedelta(days=1))
    with pytest.raises((BadSignature, LogForked)):
        bench.log.publish(TENANT, NOW)


@pytest.mark.scenario("L40")
@settings(max_examples=60, deadline=None)
@given(st.permutations(range(3)), st.permutations(range(3)), st.sets(st.integers(0, 2), min_size=1))
def test_the_order_of_keys_and_signatures_decides_nothing(
    key_order: list[int], line_order: list[int], present: set[int]
) -> None:
    notes = _changes((3, False), (6, True))
    keys = windows(LOG, log_signer(0).vkey, notes)
    text = format_checkpoint(ORIGIN, 7, bytes(32))
    note = sign_note(text, [log_signer(number) for number in line_order if number in present])
    shuffled = [keys[number] for number in key_order]
    if 2 in present:
        assert open_checkpoint(note, shuffled).size == 7
    else:
        with pytest.raises(BadSignature, match="ended at size 6"):
            open_checkpoint(note, shuffled)


def _changes(*steps: tuple[int, bool]) -> list[bytes]:
    """The notes of rotations at these sizes, as the log would store them."""
    store = MemoryStore(lambda: NOW)
    for size, revoke in steps:
        keys = read_windows(store, LOG_ID, LOG, log_signer(0).vkey)
        change_key(
            store,
            log_id=LOG_ID,
            keys=keys,
            signer_of=log_signer,
            size=size,
            revoke=revoke,
            now=NOW,
            lock_until=NOW + timedelta(days=1),
        )
    return [store.get(key) for key in store.list(keys_prefix(LOG_ID, LOG))]


def test_a_change_that_the_old_key_did_not_sign_is_none() -> None:
    (note,) = _changes((3, False))
    text = parse_note(note).text
    for by in ([1], [0], [2], [1, 2]):
        with pytest.raises(BadSignature):
            windows(LOG, log_signer(0).vkey, [sign_note(text, [log_signer(number) for number in by])])


def test_changes_out_of_order_missing_or_of_another_log_are_refused() -> None:
    first, second = _changes((3, False), (6, True))
    for notes in ([second], [second, first], [first, first]):
        with pytest.raises(LogForked):
            windows(LOG, log_signer(0).vkey, notes)
    with pytest.raises(LogForked):
        windows(LOG, log_signer(5).vkey, [first])
    other = parse_note(first).text.replace(f"log {LOG_ID}", f"log {'ee' * 16}")
    with pytest.raises(LogForked):
        windows(LOG, log_signer(0).vkey, [sign_note(other, [log_signer(0), log_signer(1)]), second])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_changed_byte_of_a_key_change_passes(data: st.DataObject) -> None:
    (note,) = _changes((3, True))
    at = data.draw(st.integers(0, len(note) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda value: value != note[at]))
    with pytest.raises((MalformedNote, BadSignature)):
        parse_change(note[:at] + bytes([other]) + note[at + 1 :])


def test_whoever_pinned_any_key_finds_the_others_and_a_stranger_none(bench: Bench) -> None:
    bench.grow(3)
    assert follow(bench.locked, LOG_ID, LOG, log_signer(0).vkey) == bench.log.keys(TENANT)
    bench.log.rotate_key(TENANT, NOW)
    bench.grow(1)
    bench.log.rotate_key(TENANT, NOW, revoke=True)
    for number in range(3):
        assert follow(bench.locked, LOG_ID, LOG, log_signer(number).vkey) == bench.log.keys(TENANT)
    with pytest.raises(BadSignature):
        follow(bench.locked, LOG_ID, LOG, log_signer(4).vkey)


def test_a_key_folder_without_the_newest_key_signs_nothing(bench: Bench) -> None:
    bench.grow(3)
    bench.log.rotate_key(TENANT, NOW)
    bench.offset = 10
    bench.log.forget_heads()
    with pytest.raises(SigningKeyMissing):
        bench.grow(1)


def test_an_empty_log_can_be_rotated_too(bench: Bench) -> None:
    # To revoke, the leader writes an entry first: a former one may be about to put the first batch.
    with pytest.raises(NotLeader, match="append an entry"):
        bench.log.rotate_key(TENANT, NOW, revoke=True)
    bench.log.rotate_key(TENANT, NOW)
    assert signed_by(bench.grow(1)) == [0, 1]
    bench.log.rotate_key(TENANT, NOW, revoke=True)
    assert signed_by(bench.grow(1)) == [2]


def test_a_crash_around_the_change_leaves_the_old_or_the_new_key_and_the_log_goes_on(bench: Bench) -> None:
    bench.grow(2)
    for fail in (bench.locked.fail_before, bench.locked.fail_after):
        before = len(bench.log.keys(TENANT))
        fail(0)
        with pytest.raises(StoreUnavailable):
            bench.log.rotate_key(TENANT, NOW)
        bench.log.forget_heads()
        assert len(bench.log.keys(TENANT)) in (before, before + 1)
        note = bench.grow(1)
        assert open_checkpoint(note, bench.log.keys(TENANT)).origin == ORIGIN


def test_a_witness_that_knows_one_of_two_signing_keys_goes_on(bench: Bench, witness: Running) -> None:
    bench.anchor_at([witness.setting])
    bench.grow(2)
    bench.log.rotate_key(TENANT, NOW)
    bench.grow(1)
    assert bench.anchoring.offer(TENANT, NOW)[0].state == ANCHORED
    bench.log.rotate_key(TENANT, NOW, revoke=True)
    bench.grow(1)
    (state,) = bench.anchoring.offer(TENANT, NOW)
    assert state.state == FAILING
    assert "give its operator" in state.detail
    witness.stop()
    witness.origins.append(f"{ORIGIN}={log_signer(2).vkey}")
    witness.start()
    bench.anchor_at([witness.setting])
    assert bench.anchoring.offer(TENANT, NOW)[0].state == ANCHORED


def test_an_answer_that_is_no_note_is_not_believed() -> None:
    cosigner = Ed25519Cosigner.from_seed("w.example", bytes(32))
    note = History().note(3)
    verifier = parse_witness(f"witness+http://127.0.0.1:1#{cosigner.vkey}").verifier
    other = cosigner.cosign(parse_note(History().note(4)).text, NOW)
    line = f"— {other.name} {b64encode(other.key_id + other.signature).decode()}\n".encode()
    for answer in (b"", b"\n", b"x\n", line, line[:-9] + b"\n"):
        with pytest.raises(AnchorUnavailable):
            cosigned(note, answer, verifier)

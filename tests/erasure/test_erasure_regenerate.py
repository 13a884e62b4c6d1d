"""Derived copies: made anew by their owner, kept while others live, shown to a human, ended with their sources."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from api.callbacks import Callbacks, address_of
from api.secrets import Secrets
from erasure.errors import CallbackFailed
from erasure.parts import Call
from registry.targets import Targets

ADA, BOB = "email:ada@example.org", "user:bob_7"
SAID = "Ada is allergic to Kontrastmittel 4711"
CALLBACK: dict[str, str] = {
    "url": "http://127.0.0.1:9/anew",
    "secret": "env:MUNIMENT_SECRET_ACME_OWNER",
    "deadline": "P7D",
}


def give(world: Any, derived: dict[str, Any], **more: Any) -> None:
    world.classes({"summary": {"derived": derived, **more}})


def merged(world: Any, text: str = f"Both: {SAID}; Bob sails") -> tuple[str, str, str]:
    """A note of each person, and a summary made from both."""
    one, two = world.note("n1", SAID), world.note("n2", "Bob sails in the harbour", owner=BOB)
    return one, two, world.file("both.txt", text, subjects=(), sources=[one, two])


class Owner:
    """The owner of the summaries: answers calls by what `anew` does."""

    def __init__(self, anew: Callable[[dict[str, Any]], str | None]) -> None:
        self.anew = anew
        self.calls: list[dict[str, Any]] = []

    def __call__(self, tenant_id: int, call: Call) -> str | None:
        del tenant_id
        self.calls.append(json.loads(call.body))
        return self.anew(self.calls[-1])


def begin(world: Any) -> str:
    request = world.ask()
    world.plan(request)
    world.approve(request)
    return str(request)


def state_of(world: Any, request: str, artifact: str) -> str:
    return str(world.copy_states(request)[artifact])


@pytest.mark.scenario("A7")
def test_a_merged_summary_is_made_anew_from_what_stays_and_the_old_one_goes(world: Any) -> None:
    give(world, {"default": "regenerate", "callback": CALLBACK})
    one, two, both = merged(world)

    owner = Owner(lambda _: world.file("bob.txt", "Bob sails", subjects=(), sources=[two]))
    world.change(call=owner)
    request = begin(world)
    world.work()
    assert world.state(request) == "completed"
    states = world.copy_states(request)
    assert states[both] == "regenerated"
    assert states[one] == "erased_physical"
    assert two not in states
    assert not (world.files / "both.txt").exists()
    assert (world.files / "bob.txt").read_text() == "Bob sails"
    assert world.bytes_left("Kontrastmittel 4711") == []
    [call] = owner.calls
    assert call["without"] == [one]
    assert call["artifact"] == both
    assert "ada@" not in json.dumps(call).lower()
    copy = next(row for row in world.rows(request) if row.ref == both)
    assert copy.method.startswith("made anew as art_")
    assert copy.started_at <= copy.finished_at <= copy.verified_at


def refused(world: Any, request: str, both: str) -> str:
    assert world.state(request) in ("executing", "verifying")
    assert state_of(world, request, both) == "awaiting_external"
    assert (world.files / "both.txt").exists()
    found: str = next(row.detail for row in world.rows(request) if row.ref == both)
    return found


@pytest.mark.parametrize(
    ("answer", "because"),
    [
        ("from the erased", "is about a person"),
        ("from a copy of the erased", "made from something that is erased"),
        ("with the canary", "still holds"),
        ("itself", "no new artifact"),
        ("an older one", "there before the request was approved"),
        ("nothing known", "names no registered artifact"),
        ("without source", "names no source"),
        ("not there", "not in its store"),
        ("with too much above", "too much lies above it"),
        ("not yet", "not answered yet"),
        ("broken", "the owner is away"),
    ],
)
def test_an_answer_that_does_not_show_what_it_says_changes_nothing(
    world: Any, answer: str, because: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(world, {"default": "regenerate", "callback": CALLBACK})
    one, two, both = merged(world)
    # Without a fault in it, and no successor: what others had in the merged one would have been lost unseen.
    older = world.file("older.txt", "Bob sails", subjects=(), sources=[two])
    world.now += timedelta(days=1)

    def anew(_: Any) -> str | None:
        match answer:
            case "an older one":
                return str(older)
            case "from the erased":
                return str(world.file("x.txt", "Bob sails", subjects=(ADA,), sources=[two]))
            case "from a copy of the erased":
                return str(world.file("x.txt", "Bob sails", subjects=(BOB,), sources=[both]))
            case "with the canary":
                return str(world.file("x.txt", f"Bob sails. {SAID}", subjects=(), sources=[two]))
            case "with too much above":
                # It was accepted, although nobody had looked at what lies above the most that is looked at.
                monkeypatch.setattr("erasure.regenerate._MOST_ANCESTORS", 1)
                between = world.file("y.txt", "Bob sails", subjects=(), sources=[two])
                return str(world.file("x.txt", "Bob sails", subjects=(), sources=[between]))
            case "itself":
                return str(both)
            case "without source":
                return str(world.file("x.txt", "Bob sails", subjects=(BOB,)))
            case "not there":
                made = str(world.file("x.txt", "Bob sails", subjects=(), sources=[two]))
                (world.files / "x.txt").unlink()
                return made
            case "not yet":
                return None
            case "broken":
                raise CallbackFailed("the owner is away")
            case _:
                return "art_00000000-0000"

    world.change(call=Owner(anew))
    request = begin(world)
    world.work(2)
    # What was derived from an erased item is refused at the gate already, and so names nobody else either.
    found = refused(world, request, both)
    assert because in found or (answer.startswith("from") and ("is erased" in found or "erasing" in found))
    assert one


def test_past_the_deadline_it_has_failed_and_the_desk_decides(world: Any) -> None:
    give(world, {"default": "regenerate", "callback": CALLBACK})
    _, _, both = merged(world)
    owner = Owner(lambda _: None)
    world.change(call=owner)
    request = begin(world)
    world.work(3)
    assert refused(world, request, both)
    assert len(owner.calls) == 1, "asked again only after a while"
    world.now += timedelta(days=6)
    world.work(1)
    assert state_of(world, request, both) == "awaiting_external"
    assert len(owner.calls) == 2
    world.now += timedelta(days=2)
    world.work(2)
    assert state_of(world, request, both) == "failed"
    assert world.state(request) == "partially_failed"


def test_the_same_answer_twice_and_a_crash_between_end_the_same(world: Any) -> None:
    """The owner made the new one and we died before writing it down: asked again, the answer is taken as it is."""
    give(world, {"default": "regenerate", "callback": CALLBACK})
    _, two, both = merged(world)
    made: list[str] = []

    def anew(_: Any) -> str:
        if not made:
            made.append(world.file("bob.txt", "Bob sails", subjects=(), sources=[two]))
            raise ConnectionResetError
        return made[0]

    world.change(call=Owner(anew))
    request = begin(world)
    with pytest.raises(ConnectionResetError):
        world.work(1)
    world.now += timedelta(minutes=6)
    world.work()
    assert world.state(request) == "completed"
    assert state_of(world, request, both) == "regenerated"


def test_a_copy_of_two_sources_is_kept_while_the_other_lives_and_goes_with_the_last(world: Any) -> None:
    give(world, {"default": "keep_if_other_sources"})
    _, _, both = merged(world, "numbers only: 2 people sail")
    request = begin(world)
    world.work()
    assert state_of(world, request, both) == "retained"
    assert (world.files / "both.txt").exists()
    second = world.ask(BOB)
    world.plan(second)
    world.approve(second)
    world.work()
    assert not (world.files / "both.txt").exists()


@pytest.mark.parametrize(
    ("word", "end", "stays"), [("erase", "erased_physical", False), ("retained", "retained", True)]
)
def test_model_weights_and_aggregates_wait_for_a_recorded_decision(
    world: Any, word: str, end: str, *, stays: bool
) -> None:
    world.classes({"summary": {"aggregate": True, "derived": {"default": "review"}}})
    _, _, weights = merged(world, "weights: 0.1 0.7 0.2")
    request = begin(world)
    world.work()
    assert world.state(request) == "verifying"
    assert state_of(world, request, weights) == "awaiting_human"
    number = next(row.copy_no for row in world.rows(request) if row.ref == weights)
    world.desk.settle_copy(world.acting("carol"), request, number, outcome=word, comment="of 2 people", now=world.now)
    world.work()
    assert world.state(request) == ("completed_with_retained" if stays else "completed")
    assert state_of(world, request, weights) == end
    assert (world.files / "both.txt").exists() is stays
    view = world.reader.get(world.acting(), request)
    settled = [line for line in view["history"] if line["event"] == "copy_settled"]
    assert settled[0]["actor"] == "carol"
    assert settled[0]["entry"]


# ── the call itself ───────────────────────────────────────────────────────────────────────────────────────────


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.seen.append((self.headers["Muniment-Signature"], self.headers["Host"], body))
        status, answer, headers = server.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def owner() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), _Handler)
    server.seen, server.answer = [], (200, b'{"artifact": "art_new"}', {})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def callbacks(tmp_path: Path, *, allowed: str = "127.0.0.1:*", seconds: float = 2.0) -> Callbacks:
    return Callbacks(
        secrets=Secrets(tmp_path, lambda _: "a secret of the owner"),
        targets=Targets(allowed=[allowed]),
        tenant_of=lambda _: "acme",
        now=lambda: datetime(2026, 6, 1, tzinfo=UTC),
        seconds=seconds,
    )


def call_to(owner: Any, host: str = "127.0.0.1") -> Call:
    return Call(url=f"http://{host}:{owner.server_port}/anew", secret=CALLBACK["secret"], body=b'{"copy":1}')


def test_a_call_is_signed_over_its_time_and_bytes(owner: Any, tmp_path: Path) -> None:
    assert callbacks(tmp_path)(1, call_to(owner)) == "art_new"
    [(signed, host, body)] = owner.seen
    at, mac = (part.partition("=")[2] for part in signed.split(","))
    assert mac == hmac.new(b"a secret of the owner", f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    assert int(at) == int(datetime(2026, 6, 1, tzinfo=UTC).timestamp())
    assert host == f"127.0.0.1:{owner.server_port}"
    assert "a secret" not in repr(call_to(owner))


@pytest.mark.parametrize(
    "answer",
    [
        (302, b"", {"Location": "http://127.0.0.1:1/elsewhere"}),
        (500, b"", {}),
        (200, b"{}", {}),
        (200, b"[", {}),
        (200, b'{"artifact": 7}', {}),
        (200, b'{"artifact": "' + b"a" * 100_000 + b'"}', {}),
    ],
    ids=["redirect", "error", "empty", "broken", "number", "long"],
)
def test_any_other_answer_is_a_failure_and_no_redirect_is_followed(owner: Any, tmp_path: Path, answer: Any) -> None:
    owner.answer = answer
    with pytest.raises(CallbackFailed):
        callbacks(tmp_path)(1, call_to(owner))
    assert len(owner.seen) == 1


def test_not_yet_is_no_failure(owner: Any, tmp_path: Path) -> None:
    owner.answer = (202, b"", {})
    assert callbacks(tmp_path)(1, call_to(owner)) is None


def test_a_host_that_is_not_on_the_list_is_never_called(owner: Any, tmp_path: Path) -> None:
    with pytest.raises(CallbackFailed, match="TargetNotAllowed"):
        callbacks(tmp_path, allowed="owner.example")(1, call_to(owner))
    assert owner.seen == []


def test_a_name_that_leads_elsewhere_than_it_says_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1"):  # noqa: S104 - what a resolver may say
        monkeypatch.setattr("socket.getaddrinfo", lambda *_, at=address, **__: [(2, 1, 6, "", (at, 443))])
        with pytest.raises(CallbackFailed):
            address_of("owner.example", 443)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("93.184.216.34", 443))])
    assert address_of("owner.example", 443) == "93.184.216.34"


def test_an_owner_that_answers_byte_by_byte_costs_no_more_time_than_a_silent_one(tmp_path: Path) -> None:
    # Each byte came within the time of one read, and the worker, of whom there is one, waited for days.
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            line, _ = listening.accept()
            with line, suppress(OSError):
                line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
                for _ in range(60_000):
                    line.sendall(b" ")
                    time.sleep(0.02)

        threading.Thread(target=drip, daemon=True).start()
        call = Call(url=f"http://127.0.0.1:{listening.getsockname()[1]}/", secret=CALLBACK["secret"], body=b"{}")
        begun = time.monotonic()
        with pytest.raises(CallbackFailed):
            callbacks(tmp_path, seconds=0.2)(1, call)
        assert time.monotonic() - begun < 1


def test_a_slow_owner_costs_a_bounded_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        call = Call(url=f"http://127.0.0.1:{silent.getsockname()[1]}/", secret=CALLBACK["secret"], body=b"{}")
        with pytest.raises(CallbackFailed, match="Timeout"):
            callbacks(tmp_path, seconds=0.2)(1, call)

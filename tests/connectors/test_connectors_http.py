"""Kind `http` against a vendor that lies, queues, hangs, pages in circles and hides what another key owns."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from connectors.base import Connector, Deadline, Item, Level, Outcome, Selector, open_connector
from connectors.errors import (
    BadConfig,
    BadLocator,
    ConnectorError,
    NotWalkable,
    StoreUnreachable,
    Timeout,
    WrongCredentials,
)
from connectors.http_client import HttpClient
from connectors.http_recipe import load, shipped
from tests.connectors.contract import BEN, MIA, NOW, ROOT, Bed, Contract, captured, erase, fill
from tests.connectors.http_vendor import KEY, OWN, Vendor, running


class VendorBed(Bed):
    """Notes of two people behind the test's own recipe."""

    serves = True
    no_search = "things are found by their ids"

    def restart(self) -> None:
        self.vendor.restart()

    def refuse(self, name: str) -> Callable[[], None]:
        self.vendor.faults["note", name] = "error"
        return self.vendor.faults.clear

    @contextmanager
    def stranger(self) -> Iterator[str]:
        yield self.source(secret="sk-hunter2")

    def whole(self, name: str) -> object:
        return self.vendor.things.get("note", {}).get(name)

    def __init__(self, url: str, vendor: Vendor) -> None:
        self.url, self.vendor = url, vendor

    def put(self, name: str, text: str, owner: str) -> Mapping[str, Any]:
        self.vendor.put("note", name, text=text, meta={"person": owner})
        return {"kind": "note", "id": name}

    def get(self, name: str) -> str | None:
        found = self.vendor.things.get("note", {}).get(name)
        return None if found is None else str(found["text"])

    def config(self, **more: object) -> dict[str, Any]:
        return {"url": self.url, "recipe": OWN, "secret": KEY, **more}

    def open(self, *, read_only: bool = False, owner: bool = True, **more: object) -> Connector:
        config = self.config(**({"owner_field": "meta.person"} if owner else {}), **more)
        return open_connector("http", config, secrets=str, read_only=read_only)

    def hits(self, canary: str) -> int:
        return str(self.vendor.things).count(canary)

    def block(self) -> Callable[[], None]:
        self.vendor.gate.clear()
        return self.vendor.gate.set

    def hostile(self) -> list[Mapping[str, Any]]:
        return [
            {"kind": "note", "id": ".."},
            {"kind": "note", "id": "a\nb"},
            {"kind": "note", "id": ""},
            {"kind": "note", "id": True},
            {"kind": "note", "id": ["mia-0"]},
            {"kind": "note"},
            {"kind": "note", "id": "mia-0", "path": "/x"},
            {"kind": "other", "id": "mia-0"},
            {"id": "mia-0"},
            {},
        ]

    def wrong(self) -> Connector:
        self.vendor.mode = "foreign"
        return self.open()

    def source(self, **more: object) -> str:
        config = self.config(owner_field="meta.person", **more)
        return (
            f"from connectors.base import open_connector\nconnector = open_connector('http', {config!r}, secrets=str)"
        )

    def own_delete(self, name: str) -> None:
        del self.vendor.things["note"][name]

    def hit_bytes_remain_after_own_delete(self) -> bool:
        return False  # nobody sees what a vendor's files hold


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Iterator[VendorBed]:
    monkeypatch.setattr("connectors.http_client._WAIT_SECONDS", 0.02)  # the tests' vendor needs no rest
    with running() as (url, vendor):
        yield VendorBed(url, vendor)


class TestContract(Contract):
    """The shared contract; a vendor shows nothing below its API, so nothing above L1 is claimed."""

    holds = "http"


def item(kind: str, copy_id: str = "1", canaries: tuple[bytes, ...] = (), **locator: str) -> Item:
    return Item(copy_id=copy_id, locator={"kind": kind, **locator}, canaries=canaries)


def note(name: str) -> Item:
    return item("note", name, id=name)


@pytest.mark.scenario("A11", "S29")
def test_a_success_of_the_vendor_is_no_erasure_while_the_item_can_be_read(bed: VendorBed) -> None:
    fill(bed, 1)
    bed.vendor.faults["note", "mia-0"] = "lies"
    with bed.open() as connector:
        receipt = erase(connector, [note("mia-0")])[0]
    assert (receipt.outcome, receipt.level) == (Outcome.FAILED, None)
    assert "can still be read" in receipt.detail


@pytest.mark.scenario("A11", "S29", "S25")
def test_a_queued_deletion_is_accepted_until_a_read_shows_its_end(bed: VendorBed) -> None:
    fill(bed, 1)
    bed.vendor.faults["note", "mia-0"] = "queue"
    with bed.open() as connector:
        items = captured(connector, [note("mia-0")])
        receipt = erase(connector, items)[0]
        assert (receipt.outcome, receipt.level) == (Outcome.ACCEPTED, Level.L0)
        assert not connector.await_done(deadline=0.5)
        assert erase(connector, items)[0].outcome is Outcome.ACCEPTED
        assert bed.vendor.count("DELETE", "/notes/mia-0") == 1, "what was taken is not asked for again"
        bed.vendor.work()
        assert connector.await_done(deadline=5)
    with bed.open(read_only=True) as verifier:
        assert verifier.verify(items, Level.L1, deadline=5)[0].level is Level.L1


@pytest.mark.scenario("A11", "S37")
def test_an_unknown_id_is_absent_only_where_the_scope_was_shown(bed: VendorBed) -> None:
    bed.vendor.mode = "says yes"
    with bed.open() as connector:
        receipt = erase(connector, [note("never-was")])[0]
        assert (receipt.outcome, receipt.level) == (Outcome.FAILED, None)
        finding = connector.verify([note("never-was")], Level.L1, deadline=5)[0]
        assert (finding.level, finding.present) == (None, None)
        with pytest.raises(StoreUnreachable):
            list(connector.export([note("never-was")], deadline=5))
    with bed.open(scope="p-1") as connector:
        assert erase(connector, [note("never-was")])[0].outcome is Outcome.ALREADY_ABSENT
    assert bed.vendor.count("DELETE", "/") == 0
    with bed.open(scope="another") as connector, pytest.raises(WrongCredentials):
        erase(connector, [note("never-was")])


@pytest.mark.scenario("C5")
def test_of_ten_with_three_conflicts_seven_are_erased_and_three_were_tried_again_and_named(bed: VendorBed) -> None:
    mine, _ = fill(bed, 10)
    for name in ("mia-2", "mia-5", "mia-7"):
        bed.vendor.faults["note", name] = "conflict"
    with bed.open() as connector:
        receipts = erase(connector, mine)
    outcomes = [receipt.outcome for receipt in receipts]
    assert (outcomes.count(Outcome.ERASED), outcomes.count(Outcome.FAILED)) == (7, 3)
    assert bed.vendor.count("DELETE", "/notes/mia-5") > 1
    assert "409" in receipts[2].detail


def test_a_refused_delete_fails_its_own_item_only(bed: VendorBed) -> None:
    mine, _ = fill(bed, 3)
    bed.vendor.faults["note", "mia-1"] = "error"
    with bed.open() as connector:
        outcomes = [receipt.outcome for receipt in erase(connector, mine)]
    assert outcomes == [Outcome.ERASED, Outcome.FAILED, Outcome.ERASED]


def test_patience_is_given_where_the_vendor_asks_for_it(bed: VendorBed) -> None:
    fill(bed, 1)
    for mode in ("rate", "flaky"):
        bed.vendor.mode, bed.vendor.budget = mode, 2
        with bed.open(read_only=True) as connector:
            assert connector.verify([note("mia-0")], Level.L1, deadline=10)[0].present is True


@pytest.mark.parametrize("mode", ["down", "redirect", "huge", "drip", "html"])
def test_what_a_broken_vendor_answers_is_never_an_absence(bed: VendorBed, mode: str) -> None:
    fill(bed, 2)
    bed.vendor.mode = mode
    started = time.monotonic()
    with bed.open() as connector:
        try:
            outcomes = {receipt.outcome for receipt in erase(connector, [note("mia-0"), note("mia-1")], deadline=1.5)}
        except ConnectorError as error:
            assert isinstance(error, StoreUnreachable | Timeout)  # noqa: PT017 -- both ways end the same
            outcomes = {Outcome.FAILED}
    assert outcomes == {Outcome.FAILED}
    assert time.monotonic() - started < 4
    assert bed.get("mia-0") is not None


def test_a_vendor_that_goes_down_in_the_middle_keeps_what_was_done(bed: VendorBed) -> None:
    mine, _ = fill(bed, 4)

    class Half(dict[tuple[str, str], str]):
        def get(self, key: Any, default: Any = None) -> Any:
            if key == ("note", "mia-1"):
                bed.vendor.mode = "redirect"
            return super().get(key, default)

    bed.vendor.faults = Half()
    with bed.open() as connector:
        receipts = erase(connector, mine)
    assert [receipt.outcome for receipt in receipts] == [Outcome.ERASED, *[Outcome.FAILED] * 3]
    assert "redirect" in receipts[2].detail
    bed.vendor.mode = ""
    with bed.open() as connector:
        items = [Item(copy_id=each.copy_id, locator=each.locator, canaries=(b"seen",)) for each in mine]
        again = [receipt.outcome for receipt in erase(connector, items)]
    assert again == [Outcome.ALREADY_ABSENT] * 2 + [Outcome.ERASED] * 2


def test_pages_that_go_round_in_circles_end_the_list(bed: VendorBed) -> None:
    fill(bed, 5)
    bed.vendor.mode = "circle"
    with bed.open() as connector, pytest.raises(StoreUnreachable, match="circles"):
        list(connector.walk(deadline=10))
    bed.vendor.mode = ""
    with bed.open() as connector:
        assert len(list(connector.walk(deadline=10))) == 10


def test_a_wrong_key_is_told_and_shown_nowhere(bed: VendorBed) -> None:
    with bed.open(secret="sk-wrong-hunter2") as connector:
        with pytest.raises(WrongCredentials) as told:
            erase(connector, [note("mia-0")])
        report = connector.check(now=NOW, deadline=5)
        shown = repr(connector) + repr(told.value) + str(report)
    assert (report.reachable, report.can_erase, report.level_reached) == (False, False, None)
    assert "hunter2" not in shown
    assert bed.url not in shown


def test_names_that_lead_to_this_machine_and_secrets_in_the_open_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def leads_to(address: str) -> None:
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (address, 443))])

    for address in ("127.0.0.1", "169.254.169.254", "::1", "0.0.0.0"):  # noqa: S104 -- refused, not bound
        leads_to(address)
        with pytest.raises(BadConfig, match="this machine"):
            HttpClient("https://vendor.example", {}).send("GET", "/", Deadline("test", 5))
    leads_to("93.184.216.34")
    with pytest.raises(BadConfig, match="over https only"):
        HttpClient("http://vendor.example", {}).send("GET", "/", Deadline("test", 5))


def test_the_address_is_pinned_to_what_the_name_led_to_first(bed: VendorBed, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bed, 1)
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: Any, *more: Any, **words: Any) -> Any:
        if host != "localhost":
            return real(host, *more, **words)
        asked.append(host)
        return real("127.0.0.1" if len(asked) == 1 else "192.0.2.1", *more, **words)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with bed.open(url=bed.url.replace("127.0.0.1", "localhost")) as connector:
        for _ in range(3):
            connector.verify([note("mia-0")], Level.L1, deadline=5)
            connector.close()
    assert asked == ["localhost"]


def self_signed(folder: Path) -> ssl.SSLContext:
    """Return a server's context with a certificate that nobody vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(7).not_valid_before(NOW.replace(year=2020)).not_valid_after(NOW.replace(year=2090))
    made = made.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
    certificate = made.sign(key, hashes.SHA256())
    pem = certificate.public_bytes(Encoding.PEM) + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.pem").write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


def test_a_certificate_that_nobody_vouches_for_gets_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.http_client._WAIT_SECONDS", 0.01)
    context = self_signed(tmp_path)
    with running(context) as (url, vendor):
        vendor.put("note", "n1", text="x", meta={"person": "mia"})
        config = {"url": url, "recipe": OWN, "secret": KEY}
        with open_connector("http", config, secrets=str) as connector, pytest.raises(StoreUnreachable):
            connector.verify([note("n1")], Level.L1, deadline=10)
        assert vendor.requests == []
        trusting = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
        monkeypatch.setattr(ssl, "create_default_context", lambda: trusting)
        with open_connector("http", config, secrets=str) as connector:
            assert connector.verify([note("n1")], Level.L1, deadline=10)[0].present is True


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"recipe": None}, "recipe is one of"),
        ({"recipe": "nobody"}, "no recipe of that name"),
        ({"recipe": "kinds: {"}, "no YAML"),
        ({"recipe": "recipe: x\nabout: y\nkinds: {}"}, "has no kinds"),
        ({"recipe": OWN + "  more: 1\n"}, "recipe"),
        ({"recipe": OWN.replace('"/notes/{id}"', '"/notes/{other}"')}, "which the locator has not"),
        ({"recipe": OWN.replace('DELETE, path: "/notes/{id}"', 'DELETE, path: "/notes"')}, "does not use id"),
        ({"recipe": OWN.replace("param: cursor, ", "")}, "pages in no way"),
        ({"secret": None}, "secret is missing"),
        ({"secret": "a\r\nX-Evil: 1"}, "no header can carry"),
        ({"url": "ftp://x"}, "url is an http"),
        ({"url": "https://user:pw@x"}, "url is an http"),
        ({"url": None}, "url is missing"),
        ({"more": 1}, "unknown setting"),
        ({"recipe": "openai", "scope": "p"}, "knows no way to see it"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_by_name(bed: VendorBed, change: dict[str, Any], told: str) -> None:
    with pytest.raises(BadConfig, match=told):
        open_connector("http", {**bed.config(), **change}, secrets=str)


def test_every_shipped_recipe_is_sound_and_says_what_it_does_not_cover() -> None:
    assert shipped() == ("anthropic", "langfuse", "openai", "qdrant", "weaviate", "zep")
    for name in shipped():
        recipe = load(name)
        assert recipe.recipe == name
        assert recipe.not_covered


def test_the_recipe_in_the_documentation_is_whole_and_works(bed: VendorBed) -> None:
    text = (ROOT / "docs" / "connectors.md").read_text()
    recipe = text.partition("A recipe of your own, whole:\n\n```yaml\n")[2].partition("```")[0]
    assert len(recipe.splitlines()) < 80
    with bed.open(recipe=recipe, owner=False) as connector:
        fill(bed, 1)
        assert erase(connector, [note("mia-0")])[0].outcome is Outcome.ERASED
        assert connector.check(now=NOW, deadline=10).level_reached is Level.L1


def vendor_store(bed: VendorBed, recipe: str, **more: object) -> Connector:
    config = {"url": bed.url, "recipe": recipe, "secret": KEY, **more}
    return open_connector("http", config, secrets=str)


def test_openai_conversations_go_with_every_item_page_by_page(bed: VendorBed) -> None:
    for name in ("conv_a", "conv_b"):
        bed.vendor.put("conversations", name, metadata={"user_id": "mia" if name == "conv_a" else "ben"})
        for n in range(5):
            bed.vendor.put("items", f"{name}-{n}", content="17 Blackthorn Row")
    with vendor_store(bed, "openai", owner_field="metadata.user_id") as connector:
        receipts = erase(connector, [item("conversation", "1", id="conv_a"), item("conversation", "2", id="conv_b")])
        assert [receipt.outcome for receipt in receipts] == [Outcome.ERASED, Outcome.OWNER_MISMATCH]
        assert sorted(bed.vendor.things["items"]) == [f"conv_b-{n}" for n in range(5)]
        report = connector.check(now=NOW, deadline=20)
        assert (report.level_reached, report.owner_check, report.findings) == (Level.L1, "enforced", ())
        with pytest.raises(NotWalkable):
            list(connector.walk(deadline=5))


def test_openai_items_that_stay_keep_the_conversation_from_being_called_erased(bed: VendorBed) -> None:
    bed.vendor.put("conversations", "conv_a", metadata={"user_id": "mia"})
    bed.vendor.put("items", "conv_a-0", content="x")
    bed.vendor.faults["items", "conv_a-0"] = "lies"
    with vendor_store(bed, "openai", owner_field="metadata.user_id") as connector:
        assert erase(connector, [item("conversation", id="conv_a")])[0].outcome is Outcome.FAILED
        del bed.vendor.things["conversations"]["conv_a"]  # somebody deletes it by the documentation
        finding = connector.verify([item("conversation", id="conv_a")], Level.L1, deadline=5)[0]
    assert (finding.level, finding.present) == (None, True)


def test_anthropic_memories_go_and_each_version_is_redacted(bed: VendorBed) -> None:
    bed.vendor.put("memories", "mem_1", content="x")
    for n in range(5):
        bed.vendor.put("versions", f"mem_1-v{n}", memory_id="mem_1", content="17 Blackthorn Row", redacted_at=None)
    bed.vendor.put("versions", "mem_2-v0", memory_id="mem_2", content="of ben", redacted_at=None)
    wanted = item("memory", memory_store="memstore_1", id="mem_1")
    with vendor_store(bed, "anthropic") as connector:
        assert erase(connector, [wanted])[0].outcome is Outcome.ERASED
        assert connector.verify([wanted], Level.L1, deadline=5)[0].level is Level.L1
    assert "Blackthorn" not in str(bed.vendor.things)
    assert bed.vendor.things["versions"]["mem_2-v0"]["content"] == "of ben"


def test_anthropic_versions_that_stay_are_found_also_when_somebody_else_deleted_the_memory(bed: VendorBed) -> None:
    bed.vendor.put("versions", "mem_1-v0", memory_id="mem_1", content="x", redacted_at=None)
    wanted = item("memory", canaries=(b"seen before",), memory_store="memstore_1", id="mem_1")
    with vendor_store(bed, "anthropic") as connector:
        assert connector.verify([wanted], Level.L1, deadline=5)[0].present is True
        bed.vendor.faults["versions", "mem_1-v0"] = "lies"
        assert erase(connector, [wanted])[0].outcome is Outcome.FAILED
        bed.vendor.faults.clear()
        assert erase(connector, [wanted])[0].outcome is Outcome.ALREADY_ABSENT
        assert connector.verify([wanted], Level.L1, deadline=5)[0].level is Level.L1


@pytest.mark.scenario("S25", "S26")
def test_langfuse_traces_are_accepted_for_days_and_dataset_items_are_things_of_their_own(bed: VendorBed) -> None:
    for n in range(5):
        bed.vendor.put("traces", f"t{n}", userId="mia" if n < 3 else "ben", input="17 Blackthorn Row")
    bed.vendor.put("dataset_items", "d1", metadata={"userId": "mia"}, input="17 Blackthorn Row")
    with vendor_store(bed, "langfuse", owner_field="userId", scope="p-1") as connector:
        mine = list(connector.discover(Selector(identifiers=(MIA,)), deadline=10))
        assert mine == [{"kind": "trace", "id": f"t{n}"} for n in range(3)]
        items = [Item(copy_id=str(n), locator=locator) for n, locator in enumerate(mine)]
        assert {receipt.outcome for receipt in erase(connector, items)} == {Outcome.ACCEPTED}
        assert connector.verify(items, Level.L1, deadline=5)[0].present is True
        bed.vendor.work()
        assert connector.await_done(deadline=5)
        assert {finding.level for finding in connector.verify(items, Level.L1, deadline=5)} == {Level.L1}
        assert sorted(bed.vendor.things["traces"]) == ["t3", "t4"]
        assert "d1" in bed.vendor.things["dataset_items"], "the copy in a dataset is no part of the trace"
    with vendor_store(bed, "langfuse", owner_field="metadata.userId", scope="p-1") as connector:
        assert erase(connector, [item("dataset_item", id="d1")])[0].outcome is Outcome.ERASED


def test_zep_users_go_by_a_task_and_a_failed_task_is_a_failure(bed: VendorBed) -> None:
    for name in ("u1", "u2"):
        bed.vendor.put("users", name, user_id="mia")
    bed.vendor.faults["users", "u2"] = "fails"
    wanted = [item("user", "1", uuid="u1"), item("user", "2", uuid="u2")]
    with vendor_store(bed, "zep", owner_field="user_id") as connector:
        receipts = erase(connector, wanted)
        assert [receipt.outcome for receipt in receipts] == [Outcome.ACCEPTED, Outcome.FAILED]
        assert "task of the deletion failed" in receipts[1].detail
        bed.vendor.work()
        assert connector.await_done(deadline=5)
        assert erase(connector, wanted[:1], BEN)[0].outcome is Outcome.ALREADY_ABSENT


@pytest.mark.scenario("S33")
def test_a_qdrant_server_is_erased_to_l1_and_the_vacuum_that_may_never_run_is_named(bed: VendorBed) -> None:
    for name in ("5", "0a52e6b3-0a3c-4d8b-9c8e-0f1e2d3c4b5a"):
        bed.vendor.put("points", name, payload={"user_id": "mia"})
    locators: list[dict[str, Any]] = [{"id": 5}, {"id": "0a52e6b3-0a3c-4d8b-9c8e-0f1e2d3c4b5a"}]
    items = [
        Item(copy_id=str(n), locator={"kind": "point", "collection": "mem", **at}) for n, at in enumerate(locators)
    ]
    with vendor_store(bed, "qdrant", owner_field="result.payload.user_id") as connector:
        assert {receipt.outcome for receipt in erase(connector, items)} == {Outcome.ERASED}
        report = connector.reclaim(Level.L2, now=NOW, deadline=5)
        findings = connector.verify(items, Level.L2, deadline=5, reclaimed=report)
    assert bed.vendor.things["points"] == {}
    assert (report.level, report.residual_until) == (Level.L1, "unknown")
    assert "vacuum_min_vector_number" in report.detail
    assert {(finding.level, finding.present) for finding in findings} == {(Level.L1, None)}


@pytest.mark.scenario("S34")
def test_weaviate_objects_are_erased_to_l1_with_a_warning_and_a_persons_tenant_goes_whole(bed: VendorBed) -> None:
    bed.vendor.put("Note/", "o1", properties={"user_id": "mia"})
    bed.vendor.put("Note/t-mia", "o2", properties={"user_id": "mia"})
    bed.vendor.put("Note/t-ben", "o2", properties={"user_id": "ben"})
    with vendor_store(bed, "weaviate", owner_field="properties.user_id") as connector:
        one = {"class": "Note", "id": "o1"}
        receipts = erase(
            connector,
            [
                Item(copy_id="1", locator={"kind": "object", **one}),
                Item(copy_id="2", locator={"kind": "tenant_object", "class": "Note", "tenant": "t-ben", "id": "o2"}),
            ],
        )
        assert [receipt.outcome for receipt in receipts] == [Outcome.ERASED, Outcome.OWNER_MISMATCH]
        assert "tombstones" in connector.reclaim(Level.L2, now=NOW, deadline=5).detail
    assert "one tenant a person" in load("weaviate").about
    with vendor_store(bed, "weaviate") as connector:
        tenant = Item(copy_id="3", locator={"kind": "tenant", "class": "Note", "tenant": "t-mia"})
        assert erase(connector, [tenant])[0].outcome is Outcome.ERASED
    assert sorted(name for name in bed.vendor.things if name.startswith("Note/")) == ["Note/", "Note/t-ben"]


@pytest.mark.scenario("S43")
def test_a_vendor_that_drops_the_owner_is_found_by_a_canary_which_does_not_stay(bed: VendorBed) -> None:
    with bed.open() as connector:
        kept = connector.check(now=NOW, deadline=10)
    bed.vendor.mode = "drops owners"
    with bed.open() as connector:
        dropped = connector.check(now=NOW, deadline=10)
    assert (kept.can_erase, kept.findings) == (True, ())
    assert (dropped.can_erase, dropped.level_reached) == (False, None)
    assert "names another owner, or none" in dropped.findings[0]
    assert bed.hits("muniment canary") == 0
    fill(bed, 2)
    with bed.open() as connector:
        theirs = list(connector.discover(Selector(identifiers=("user:somebody_else",)), deadline=5))
    assert theirs == [], "written as one person, asked for as another"


def test_a_store_that_cannot_be_listed_says_which_ids_must_be_registered(bed: VendorBed) -> None:
    bed.vendor.put("chat", "c1", metadata={"user_id": "mia"})
    with vendor_store(bed, "openai", owner_field="metadata.user_id") as connector:
        found = connector.discover(Selector(identifiers=(MIA,)), deadline=5)
        assert next(found) == {"kind": "chat_completion", "id": "c1"}
        with pytest.raises(BadLocator, match="response, conversation, vector_store_file cannot be listed"):
            list(found)

"""A vendor takes a deletion and does it days later: the copy waits, is looked at again, and never counts too early."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from connectors.base import Connector, open_connector
from registry.models import StoreRow
from registry.stores import get_store
from tests.connectors.http_vendor import KEY, OWN, Vendor, running

SECRETS = {"file:key": KEY, "file:recipe": OWN}


@pytest.fixture
def vendor(world: Any) -> Iterator[Vendor]:
    """A registered vendor with one note of the person and one of somebody else."""
    with running() as (url, made):
        config = {"url": url, "recipe": "file:recipe", "secret": "file:key", "owner_field": "meta.person"}
        world.store("vendor", "http", config)
        world.classes({"note": {"erasure": {"on_request": "erase", "required": "L1"}}})

        def connect(store: StoreRow, read_only: bool) -> Connector:
            if store.kind != "http":
                return world.connect(store, read_only)  # type: ignore[no-any-return] # a fixture of the tests
            return open_connector(store.kind, store.config, secrets=SECRETS.__getitem__, read_only=read_only)

        world.change(connect=connect)
        for name, who in (("n1", "ada@example.org"), ("n2", "bob_7")):
            made.put("note", name, text=f"{name} of {who}", meta={"person": who})
        note = {"data_class": "note", "store": "vendor", "subjects": ["email:ada@example.org"]}
        world.register({**note, "locator": {"kind": "note", "id": "n1"}})
        yield made


def copies(world: Any, request: str) -> list[dict[str, Any]]:
    return [copy for copy in world.reader.copies(world.acting(), request) if copy.get("store") == "vendor"]


@pytest.mark.scenario("A11", "S25", "S26", "S29")
def test_what_a_vendor_took_waits_with_its_age_and_completes_once_a_read_shows_the_end(
    world: Any, vendor: Vendor
) -> None:
    vendor.faults["note", "n1"] = "queue"
    request = world.erase()
    [copy] = copies(world, request)
    assert (copy["state"], copy["level"]) == ("awaiting_external", "L0")
    assert copy["waiting_since"]
    assert world.state(request) == "verifying"
    world.now += timedelta(hours=30)
    world.work()
    assert [each["state"] for each in copies(world, request)] == ["awaiting_external"]
    assert world.state(request) == "verifying", "not complete, however long it takes"
    assert vendor.count("DELETE", "/notes/n1") == 1
    vendor.work()
    world.now += timedelta(hours=2)
    world.work()
    [copy] = copies(world, request)
    assert (copy["state"], copy["level"]) == ("erased_logical", "L1")
    assert world.state(request) == "completed"
    assert sorted(vendor.things["note"]) == ["n2"]


@pytest.mark.scenario("S25", "S26")
def test_a_vendor_that_never_does_it_is_told_once_and_the_request_does_not_end_well(world: Any, vendor: Vendor) -> None:
    vendor.faults["note", "n1"] = "queue"
    request = world.erase()
    world.now += world.parts.agent_term + timedelta(hours=1)
    world.work()
    assert world.state(request) == "partially_failed"
    assert [each["state"] for each in copies(world, request)] == ["unreachable"]
    told = [line for line in world.reader.get(world.acting(), request)["history"] if line["event"] == "store_overdue"]
    assert len(told) == 1
    assert told[0]["entry"]


def test_a_vendor_is_looked_at_now_and_then_and_not_all_the_time(world: Any, vendor: Vendor) -> None:
    vendor.faults["note", "n1"] = "queue"
    world.erase()
    world.now += timedelta(hours=24)
    before = vendor.count("GET", "/notes/n1")
    for _ in range(10):
        world.work(1)  # minute by minute; after a day it is looked once an hour
    assert vendor.count("GET", "/notes/n1") - before <= 1


@pytest.mark.scenario("S37", "A11")
def test_a_note_that_the_key_cannot_see_is_no_absence(world: Any, vendor: Vendor) -> None:
    vendor.mode = "foreign"
    request = world.erase()
    assert world.state(request) == "partially_failed"
    [copy] = copies(world, request)
    assert copy["state"] == "failed"
    assert "n1" in vendor.things["note"]


@pytest.mark.scenario("S27")
def test_a_dataset_item_that_was_made_from_a_trace_goes_with_it_and_before_it(world: Any, vendor: Vendor) -> None:
    with world.parts.transactions(world.tenant.tenant_id, write=False) as session:
        url = get_store(session, world.tenant.tenant_id, "vendor").config["url"]
    world.store("lf", "http", {"url": url, "recipe": "langfuse", "secret": "file:key", "scope": "p-1"})
    vendor.put("traces", "t1", userId="ada@example.org", input="the wombat-93417")
    vendor.put("dataset_items", "d1", input="the wombat-93417", sourceTraceId="t1")
    vendor.put("dataset_items", "d2", input="of somebody else")
    trace: dict[str, Any] = {"store": "lf", "locator": {"kind": "trace", "id": "t1"}}
    world.register({"data_class": "note", "subjects": ["email:ada@example.org"], **trace})
    item: dict[str, Any] = {"store": "lf", "locator": {"kind": "dataset_item", "id": "d1"}}
    world.register({"data_class": "note", "sources": [trace], **item})

    request = world.erase()

    order = [path for method, path in vendor.requests if method == "DELETE" and path.startswith("/api/")]
    assert order == ["/api/public/dataset-items/d1", "/api/public/traces/t1"]
    assert world.state(request) == "verifying", "the trace is queued"
    vendor.work()
    world.now += timedelta(hours=2)
    world.work()
    assert world.state(request) == "completed"
    assert (vendor.things["traces"], sorted(vendor.things["dataset_items"])) == ({}, ["d2"])

"""The certificate's date for bytes that no key opens any more is kept: by then they are gone from the object store."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from erasure.payload_expiry import parts_gone
from erasure.sweep_copies import Sweeps
from ledger.expiry import Expiry
from retention.sweep import Brakes

HOUR = timedelta(hours=1)


def residual(world: Any, request: str) -> str | None:
    body = json.loads(world.reader.certificate(world.acting(), request))["certificate"]
    return next((line["until"] for line in body["residuals"] if line["what"] == "sealed_bytes"), None)


def objects(world: Any) -> set[str]:
    return set(world.services.locked.list(f"{world.tenant.log_id}/payload/"))


def test_what_was_erased_is_physically_gone_by_the_date_that_the_certificate_prints(world: Any) -> None:
    store = Expiry(world.services.locked, world.services.database.transaction, parts_gone)
    world.change(payload=store)
    sweeps = Sweeps(world.parts, brakes=Brakes(jump=timedelta(days=10_000), share=1.0))
    world.say("I live in Lima")
    mine = objects(world)
    request = world.erase()
    until = datetime.fromisoformat(residual(world, request) or "")
    # The skeletons of the same flush lie in the same object, and their class keeps them for seven years.
    assert until == datetime(2033, 6, 30, 23, 59, 59, 999999, tzinfo=UTC) + 2 * HOUR
    for now in (until - 3 * HOUR, until - 2 * HOUR, until - HOUR, until):
        world.services.clock.move(now - world.services.clock.now())
        sweeps.start(world.acting(), now)
        sweeps.run_due(world.tenant.tenant_id, now)
        assert (mine <= objects(world)) == (now < until - HOUR)
    assert not mine & objects(world)


def test_a_class_whose_clock_waits_counts_to_its_cap(world: Any) -> None:
    world.classes({"chat": {"retention": {"keep": "P90D", "from": "last_activity", "latest": "P2Y", "then": "erase"}}})
    world.say("I live in Lima")
    assert residual(world, world.erase()) == "2033-07-01T01:59:59.999999Z"
    world.classes({"voice": {"retention": {"keep": "P90D", "from": "event:left", "latest": "P9Y", "then": "erase"}}})
    world.say("I live in Rome", ["user:bob_7"])
    assert residual(world, world.erase("user:bob_7")) == "2035-07-01T01:59:59.999999Z"


def test_a_person_without_a_key_in_the_record_has_no_such_line(world: Any) -> None:
    world.note("1", "a row of the store")
    assert residual(world, world.erase()) is None


@pytest.mark.parametrize("lang", ["en", "de"])
def test_the_letter_says_it_in_words(lang: str) -> None:
    from erasure.rendering import wording

    words = {"en": wording._EN, "de": wording._DE}[lang]
    assert words["what_sealed_bytes"] != words["what_keys"]

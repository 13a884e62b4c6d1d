"""Certificates lie in the locked store too: written once, read back, taken up after a crash, back after a rebuild."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import select

from erasure.certificate_rows import CertificateKey, digest_of, newest_certificate, open_certificate
from erasure.certificate_store import CertificateDiffers, CertificateStore
from erasure.models import CertificateRow
from ledger.errors import ObjectLocked, StoreUnavailable
from ledger.memory_objects import MemoryStore
from tests.process.conftest import wait_for
from tests.process.test_process_rebuild import (
    erase,
    log_of,
    lose_database,
    own,
    rebuild,
    say,
    serving_again,
    ship,
    tenant_id,
)

__all__ = ["serving_again"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


def stored(running: Any, desk: Any, request: str) -> list[str]:
    return list(running.services.locked.list(f"{log_of(desk)}/certificate/{request}/"))


def test_an_erased_entry_answers_with_its_request_and_once_it_is_issued_with_the_certificate(
    desk: Any, running: Any
) -> None:
    (entry,) = say(desk, "eve", "hello")
    request = erase(desk, "eve")
    asked = {"Accept": "application/json", "X-Purpose": "dispute;case=7"}
    gone = desk.client("auditor")._transport.request("GET", f"/v1/record/entries/{entry}", None, asked)
    answer = json.loads(gone.body)
    assert (gone.status, answer["type"]) == (410, "/problems/erased")
    assert answer["request"] == request
    assert answer["erased_at"]
    path = answer["certificate"]
    body = desk.client("legal").send("GET", path, None, {"Accept": "application/json"}).body
    assert json.loads(body)["certificate"]["request"] == request


def test_an_issued_certificate_lies_under_the_lock_of_the_log_and_is_the_one_that_is_served(
    desk: Any, running: Any
) -> None:
    say(desk, "ada", "hello")
    request = erase(desk, "ada")
    (key,) = wait_for(lambda: stored(running, desk, request))
    assert re.search(f"/{request}/0001-interim-[0-9a-f]{{16}}\\.json$", key)
    body = desk.client("legal").send("GET", f"/v1/requests/{request}/report", None, {"Accept": "application/json"}).body
    assert running.services.locked.get(key) == body
    now = running.services.clock.now()
    until = running.services.locked.head(key).locked_until
    assert until is not None
    assert abs(until - running.services.lock_end(now)) < timedelta(minutes=2)
    with pytest.raises(ObjectLocked):
        running.services.locked.delete(key)
    assert b"user:ada" not in body


def test_a_store_that_is_away_leaves_it_to_the_next_pass_and_another_object_in_its_place_is_named(
    desk: Any, running: Any
) -> None:
    say(desk, "bob", "hello")
    request = erase(desk, "bob")
    wait_for(lambda: stored(running, desk, request))
    services, tenant = running.services, tenant_id(running, desk)
    away = MemoryStore(services.clock.now)
    store = CertificateStore(locked=away, transactions=services.database.transaction, lock_end=services.lock_end)
    fails = [away.fail_before, away.fail_after]

    def row() -> CertificateRow:
        with services.database.transaction(tenant, write=False) as session:
            found: CertificateRow = session.exec(
                select(CertificateRow).where(CertificateRow.request_id == request)
            ).one()
            return found

    def body_digest() -> str:
        with services.database.transaction(tenant, write=False) as session:
            return digest_of(session, CertificateKey(tenant, request, row().version, row().number))

    def forget() -> None:
        with services.database.transaction(tenant) as session:
            found = session.merge(row())
            found.stored_at = None
            session.add(found)

    for fail in fails:
        forget()
        for key in list(away.list("")):
            away.vanish(key)
        fail(0)
        with pytest.raises(StoreUnavailable):
            store.store_due(tenant, log_of(desk), services.clock.now())
        assert row().stored_at is None
        assert store.store_due(tenant, log_of(desk), services.clock.now()) == 1
        assert row().stored_at is not None
        assert store.store_due(tenant, log_of(desk), services.clock.now()) == 0
    (key,) = list(away.list(""))
    assert hashlib.sha256(away.get(key)).hexdigest() == body_digest()
    forget()
    away.alter(key, b"another certificate")
    with pytest.raises(CertificateDiffers):
        store.store_due(tenant, log_of(desk), services.clock.now())
    assert row().stored_at is None
    assert services.certificates.store_due(tenant, log_of(desk), services.clock.now()) == 1


def planned(desk: Any, person: str) -> tuple[str, str]:
    """A request up to its plan."""
    asked = {
        "right": "erasure", "subjects": [f"user:{person}"], "regulation": "gdpr", "jurisdiction": "DE-BY",
        "timezone": "Europe/Berlin", "channel": "e-mail",
    }  # fmt: skip
    request = str(desk.call("legal", "POST", "/v1/requests", asked)["id"])
    identity = {"identifier": f"user:{person}", "method": "login", "evidence": "session of today"}
    desk.call("legal", "POST", f"/v1/requests/{request}/verify-identity", identity)
    return request, str(desk.call("legal", "POST", f"/v1/requests/{request}/plan")["plan_hash"])


@pytest.mark.slow
def test_a_lost_database_gets_its_certificates_back_and_those_of_lost_requests_are_named(
    desk: Any, running: Any
) -> None:
    say(desk, "early", "hello")
    say(desk, "late", "hello")
    say(desk, "between", "hello")
    services = running.services
    first = erase(desk, "early")
    third, plan_hash = planned(desk, "between")
    services.journal.snapshot(tenant_id(running, desk), services.clock.now())
    second = erase(desk, "late")
    desk.call("legal2", "POST", f"/v1/requests/{third}/approve", {"plan_hash": plan_hash})
    wait_for(lambda: stored(running, desk, second) and stored(running, desk, third), 60)
    with services.database.transaction(tenant_id(running, desk)) as session:
        known = newest_certificate(session, tenant_id(running, desk), first)
        assert known is not None
        with open_certificate(session, known) as signed:
            body = signed.read()
    ship(running, desk)
    running.stop()
    lose_database(running)
    report = own(rebuild(running), desk)
    assert report["verify"] == "sound"
    (line,) = [line for line in report["lost"] if "certificates;" in line]
    assert f"{log_of(desk)}/certificate/{second}/0001-interim-" in line
    assert first not in line
    assert third not in line
    assert report["certificates"] == 1
    running.start()
    again = desk.client("legal").send("GET", f"/v1/requests/{first}/report", None, {"Accept": "application/json"}).body
    assert again == body

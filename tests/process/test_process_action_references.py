"""What a provider calls an action goes with the person it was done for; that it was done stays.

Embedded and on servers.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlmodel import select

from ledger.models import ActionRow
from registry.keyed import NOBODY, Seals
from registry.models import Subject
from tests.process.test_process_keeping import WHO, everywhere, request, say, until, without_grace
from tests.process.test_process_rebuild import tenant_id
from vault.errors import NotDecryptable

__all__ = ["without_grace"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
REFERENCE = "refund-of-zaphod-beeblebrox"


def done(desk: Any, name: str, **more: Any) -> Any:
    """A settled action with the provider's reference."""
    desk.call("writer", "POST", "/v1/actions", {"action_id": name, "kind": "mail.send", "lease": "PT5M", **more})
    outcome = {"state": "succeeded", "provider_ref": REFERENCE}
    return desk.call("writer", "POST", f"/v1/actions/{name}/outcome", outcome)


def test_the_providers_reference_of_an_action_goes_with_the_person_and_the_action_stays(
    desk: Any, running: Any
) -> None:
    """It was sealed under the tenant's own key, and stayed readable for everybody with a writer's token."""
    say(desk, "please refund", "refunds")
    assert done(desk, "mine", stream="refunds")["provider_ref"] == REFERENCE
    assert done(desk, "nobodys")["provider_ref"] == REFERENCE
    services, tenant = running.services, tenant_id(running, desk)

    def rows(session: Any) -> dict[bool, ActionRow]:
        found = session.exec(select(ActionRow).where(ActionRow.tenant_id == tenant)).all()
        return {row.stream_no is not None: row for row in found}

    with services.database.transaction(tenant) as session:
        kept = rows(session)
        bare = kept[False]
        # As it was sealed before: under the tenant's own key, without the number of a set.
        bare.provider_ref = Seals(session, services.vault, tenant).seal(
            NOBODY, "action", bare.lookup.hex(), REFERENCE.encode()
        )
        bare.row_digest = None  # nor had rows one then
        session.add(bare)
        whole = kept[True].provider_ref or b""
    until(desk, request(desk), "completed")

    left = desk.call("writer", "GET", "/v1/actions/mine")
    assert (left["state"], left["retry"], left["provider_ref"]) == ("succeeded", "unsafe", None)
    assert desk.call("writer", "GET", "/v1/actions/nobodys")["provider_ref"] == REFERENCE
    with services.database.transaction(tenant, write=False) as session:
        row = rows(session)[True]
        assert row.provider_ref == whole
        seals = Seals(session, services.vault, tenant)
        everybody = [NOBODY, *session.exec(select(Subject.subject_no).where(Subject.tenant_id == tenant))]
        for who in everybody:
            for name in (row.lookup.hex(), f"{row.lookup.hex()}:{int.from_bytes(whole[:8], 'big')}"):
                for data in (whole, whole[8:]):
                    try:
                        assert seals.open(who, "action", name, data) is None
                    except NotDecryptable:
                        continue
    assert everywhere(running, REFERENCE.encode()) == []
    assert everywhere(running, WHO.partition(":")[2].encode()) == []

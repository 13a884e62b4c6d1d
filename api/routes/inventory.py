"""The inventory of classes and stores with what is missing, worst first; coverage and the record of processing."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from api.answers import Open, Row
from api.auth import Auditor, Desk, Parts, Platform
from api.inspecting import inspect
from api.requests import Body, make_router
from api.wiring import Services
from connectors.errors import ConnectorError
from registry.errors import RegistryError
from registry.inventory import inventory
from registry.models import StoreRow
from registry.reports import coverage, processing_record
from retention.quarantine import gaps

router = make_router("inventory")


class InventoryView(Open):
    """Classes and stores with their gaps, and how many gaps there are."""

    classes: list[Row]
    stores: list[Row]
    gaps: int


@router.get("/v1/inventory")
def get_inventory(acting: Desk, parts: Parts) -> InventoryView:
    """What is held and what nobody looks after."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = inventory(
            session,
            acting.tenant_id,
            parts.clock.now(),
            level_of=lambda store: erasable_level(parts, store),
            quarantined=gaps(session, acting.tenant_id),
        )
    return InventoryView.model_validate(found)


class Inspection(Body):
    """How many of the newest items of each class in each store are looked into."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"sample": 50}]})
    sample: int = Field(default=50, ge=1, le=1000)


@router.post("/v1/inventory:inspect")
def inspect_content(body: Inspection, acting: Platform, parts: Parts) -> Row:
    """Looks into content for gaps that only it shows; the reading is an entry of the record."""
    return inspect(parts, acting, parts.clock.now(), sample=body.sample)


@router.get("/v1/audit/coverage")
def get_coverage(acting: Auditor, parts: Parts) -> Row:
    """Every store and class: what lies there, up to which level it can be erased, or why it is not covered."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        return coverage(
            session, acting.tenant_id, parts.clock.now(), level_of=lambda store: erasable_level(parts, store)
        )


@router.get("/v1/audit/processing-record")
def get_processing_record(acting: Auditor, parts: Parts) -> Row:
    """The record of processing activities (GDPR Art. 30), and what is missing for it to be complete."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        return processing_record(session, acting.tenant_id, parts.clock.now())


def erasable_level(parts: Services, store: StoreRow) -> str | None:
    """Up to which level the store's connector can erase by what it is; None where none can be opened."""
    try:
        with parts.connect(store, read_only=True) as connector:
            return connector.capabilities().reclaim_level.value
    except (ConnectorError, RegistryError, OSError):
        return None

"""The inventory of classes and stores with what is missing, worst first."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from api.auth import Desk, Parts
from api.requests import make_router
from api.wiring import Services
from connectors.errors import ConnectorError
from registry.errors import RegistryError
from registry.inventory import inventory
from registry.models import StoreRow

router = make_router("inventory")


class InventoryView(BaseModel):
    """Classes and stores with their gaps, and how many gaps there are."""

    model_config = ConfigDict(extra="allow")
    classes: list[dict[str, Any]]
    stores: list[dict[str, Any]]
    gaps: int


@router.get("/v1/inventory")
def get_inventory(acting: Desk, parts: Parts) -> InventoryView:
    """What is held and what nobody looks after."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        found = inventory(
            session, acting.tenant_id, parts.clock.now(), level_of=lambda store: erasable_level(parts, store)
        )
    return InventoryView.model_validate(found)


def erasable_level(parts: Services, store: StoreRow) -> str | None:
    """Up to which level the store's connector can erase by what it is; None where none can be opened."""
    try:
        with parts.connect(store, read_only=True) as connector:
            return connector.capabilities().reclaim_level.value
    except (ConnectorError, RegistryError, OSError):
        return None

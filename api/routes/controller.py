"""Who answers for the data: the controller's name, contact, zone and jurisdiction, as letters and clocks need them."""

from __future__ import annotations

from typing import Annotated
from zoneinfo import ZoneInfo

from fastapi import Depends
from pydantic import AfterValidator, ConfigDict, Field

from api.answers import Row
from api.auth import Desk, Parts, require
from api.requests import Body, make_router
from registry.acting import Acting
from registry.errors import UnknownTenant
from registry.models import Tenant

router = make_router("settings")
Setter = Annotated[Acting, Depends(require("platform", "admin"))]


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        message = "not a time zone of the IANA database, such as Europe/Berlin"
        raise ValueError(message) from None
    return name


class Controller(Body):
    """The controller in the sense of GDPR Art. 4(7). These are the data of an organisation."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "Example GmbH",
                    "contact": "privacy@example.org",
                    "dpo": "dpo@example.org",
                    "complaint_body": "BayLDA",
                    "timezone": "Europe/Berlin",
                    "jurisdiction": "DE-BY",
                }
            ]
        }
    )
    name: str = Field(min_length=1, max_length=200)
    contact: str = Field(min_length=1, max_length=500)
    dpo: str | None = Field(None, max_length=500)
    complaint_body: str | None = Field(None, max_length=500)
    timezone: Annotated[str, AfterValidator(_known_zone)] = Field("UTC", max_length=64)
    jurisdiction: str | None = Field(None, pattern=r"^[A-Z]{2}(-[A-Z0-9]{1,3})?$", examples=["DE-BY"])


@router.put("/v1/settings/controller")
def put_controller(body: Controller, acting: Setter, parts: Parts) -> Controller:
    """Sets who the controller is."""
    with parts.database.transaction(acting.tenant_id) as session:
        row = _tenant(session.get(Tenant, acting.tenant_id), acting.tenant)
        row.controller = body.model_dump()
        session.add(row)
    return body


@router.get("/v1/settings/controller")
def get_controller(acting: Desk, parts: Parts) -> Row:
    """Who the controller is; empty while nobody said so."""
    with parts.database.transaction(acting.tenant_id, write=False) as session:
        return _tenant(session.get(Tenant, acting.tenant_id), acting.tenant).controller


def _tenant(row: Tenant | None, name: str) -> Tenant:
    if row is None:
        raise UnknownTenant(name)
    return row

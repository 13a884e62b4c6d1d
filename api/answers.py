"""What goes out of the packages below as mappings: every instant in it as the contract writes times.

Guarantees: UTC with microseconds, also where they are zero, however deep the instant lies. Source: API §0.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer, SerializerFunctionWrapHandler, model_serializer

from ledger.entry import format_instant


def with_instants(value: Any) -> Any:
    """Returns the value with its instants as text."""
    if isinstance(value, Mapping):
        return {name: with_instants(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [with_instants(item) for item in value]
    return format_instant(value.astimezone(UTC)) if isinstance(value, datetime) else value


Row = Annotated[dict[str, Any], PlainSerializer(with_instants, return_type=dict[str, Any], when_used="json")]
"""An answer, or an item of one."""


class Open(BaseModel):
    """An answer that has more members than are declared."""

    model_config = ConfigDict(extra="allow")

    @model_serializer(mode="wrap", when_used="json")
    def _with_instants(self, inner: SerializerFunctionWrapHandler) -> dict[str, Any]:
        made: dict[str, Any] = inner(self)
        return {**made, **with_instants(self.__pydantic_extra__ or {})}

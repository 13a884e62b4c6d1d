"""Kind `langgraph_store`: memories of LangGraph's SQLite and PostgreSQL stores, with their vectors.

Config: `{"url", "owner_field"?}` as of kind `sql`; `owner_field` is a member of the memory's value. Locator:
`{"namespace": [label, …], "key"}`.

Guarantees: the namespace is compared whole (`users.alice` is neither `users.alice2` nor `users.alice.notes`), and so is
the key. Vectors whose memory is gone (the SQLite store never enables foreign keys, so its own delete leaves them) are
found and erased with the memory's name; see `sql_units`. Expired memories that no sweep took are rows like any other.
Source: reference/store-recipes.md §1a, §2.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from connectors.errors import BadLocator
from connectors.sql import open_database, owner_of
from connectors.sql_units import Part, Shape, UnitConnector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from connectors.base import Locator
    from connectors.sql_catalog import Key

_SHAPE = Shape(
    kind="langgraph_store",
    noun="memory",
    columns=("prefix", "key"),
    parts=(
        Part(table="store_vectors", content=("embedding",), optional=True),
        Part(table="store", content=("value",)),
    ),
    owner="value",
)


def open_store(config: Mapping[str, Any], *, read_only: bool) -> LangGraphStoreConnector:
    """Return the connector of a store's database. Raises: BadConfig."""
    return LangGraphStoreConnector(open_database(config), _SHAPE, owner_field=owner_of(config), read_only=read_only)


class LangGraphStoreConnector(UnitConnector):
    """Drives one store's tables."""

    @override
    def key_of(self, locator: Locator) -> Key:
        namespace, key = locator.get("namespace"), locator.get("key")
        if set(locator) != {"namespace", "key"} or not isinstance(namespace, list | tuple) or not namespace:
            raise BadLocator("a langgraph_store locator is {namespace: [label, …], key}")
        # The store joins labels by dots, so a label with one would name another namespace.
        if any(not isinstance(label, str) or not label or "." in label or "\0" in label for label in namespace):
            raise BadLocator("a label of the namespace is no text, is empty or holds a dot")
        if not isinstance(key, str) or "\0" in key:
            raise BadLocator("key is a text")
        return ".".join(namespace), key

    @override
    def locator_of(self, key: Key) -> dict[str, Any]:
        return {"namespace": key[0].split("."), "key": key[1]}

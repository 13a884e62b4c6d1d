"""Kind `langgraph`: threads of LangGraph's SQLite and PostgreSQL savers.

Config: as of kind `sql`, without `children`, and `"fence": "none" | "triggers"`; `owner_field` is a member of the
checkpoints' metadata, where LangGraph copies every plain member of `config.configurable` and `config.metadata`.
Locator: `{"thread_id": text}`.

Guarantees: a thread is its rows in every table of the saver, over all namespaces (subgraphs), branches and forks; see
`sql_units`. Reads and deletes by plain SQL: LangGraph is not imported and nothing of a checkpoint is built. A late
`put_writes`, which the saver itself never shows again, is seen by `verify` and erased by the next `erase`; with the
fence it is refused by the database (see `sql_fence`).
Source: reference/store-recipes.md §1a, §2.1, §2.2, §2.10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from connectors.errors import BadConfig, BadLocator
from connectors.sql import open_database, owner_of
from connectors.sql_sqlite import SqliteDatabase
from connectors.sql_units import Part, Shape, UnitConnector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from connectors.base import Locator
    from connectors.sql_catalog import Key

_ROOT = Part(table="checkpoints", content=("checkpoint", "metadata"), written="type")
_SQLITE = (Part(table="writes", content=("value",), written="type"), _ROOT)
_POSTGRES = (
    Part(table="checkpoint_writes", content=("blob",), written="type"),
    Part(table="checkpoint_blobs", content=("blob",), written="type"),
    _ROOT,
)


def open_store(config: Mapping[str, Any], *, read_only: bool) -> LangGraphConnector:
    """Return the connector of a saver's database. Raises: BadConfig."""
    fence = config.get("fence", "none")
    if fence not in {"none", "triggers"}:
        raise BadConfig('fence is "none" or "triggers"')
    database = open_database({name: value for name, value in config.items() if name != "fence"})
    parts = _SQLITE if isinstance(database, SqliteDatabase) else _POSTGRES
    shape = Shape(kind="langgraph", noun="thread", columns=("thread_id",), parts=parts, owner="metadata")
    owner = owner_of(config)
    return LangGraphConnector(database, shape, owner_field=owner, read_only=read_only, fenced=fence == "triggers")


class LangGraphConnector(UnitConnector):
    """Drives one saver's tables."""

    @override
    def key_of(self, locator: Locator) -> Key:
        thread = locator.get("thread_id")
        if set(locator) != {"thread_id"}:
            raise BadLocator("a langgraph locator is {thread_id}")
        if not isinstance(thread, str) or not thread or "\0" in thread:
            raise BadLocator("thread_id is a text; savers write numbers as texts")
        return (thread,)

    @override
    def locator_of(self, key: Key) -> dict[str, Any]:
        return {"thread_id": key[0]}

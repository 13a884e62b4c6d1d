"""Kind `langgraph`: threads of LangGraph's SQLite and PostgreSQL savers.

Config: as of kind `sql`, without `children`, and `"fence": "none" | "triggers"`; `owner_field` is a member of the
checkpoints' metadata, where LangGraph copies every plain member of `config.configurable` and `config.metadata`.
With `keys` beside `url` see `langgraph_sealed`, with `folder` in its place `langgraph_folder`.
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
from connectors.thread_folder import ThreadFolder, folder_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from connectors.base import Connector, Locator
    from connectors.sql_catalog import Key
    from connectors.sql_database import Database

_ROOT = Part(table="checkpoints", content=("checkpoint", "metadata"), written="type")
_SQLITE = (Part(table="writes", content=("value",), written="type"), _ROOT)
_POSTGRES = (
    Part(table="checkpoint_writes", content=("blob",), written="type"),
    Part(table="checkpoint_blobs", content=("blob",), written="type"),
    _ROOT,
)


def open_store(config: Mapping[str, Any], *, read_only: bool) -> Connector:
    """Return the connector of a saver's database, or of a folder of threads. Raises: BadConfig."""
    if "folder" in config:
        return _open_folder(config, read_only=read_only)
    if "keys" in config:
        return _open_sealed(config, read_only=read_only)
    return _open_database(config, read_only=read_only)


def _open_folder(config: Mapping[str, Any], *, read_only: bool) -> Connector:
    # Imported here: they are made of what stands below.
    from connectors.langgraph_folder import ThreadFilesConnector

    if unknown := set(config) - {"folder", "owner_field"}:
        raise BadConfig(f"unknown setting beside folder: {', '.join(sorted(unknown))}")
    owner = owner_of(config)

    def open_file(path: Path) -> LangGraphConnector:
        return _open_database({"url": f"sqlite:///{path}"} | ({"owner_field": owner} if owner else {}), read_only=True)

    folder = ThreadFolder(folder_of(config, "folder"), read_only=read_only)
    return ThreadFilesConnector(folder, open_file, owner_field=owner, read_only=read_only)


def _open_sealed(config: Mapping[str, Any], *, read_only: bool) -> Connector:
    from connectors.langgraph_sealed import SealedConnector  # as above

    if "fence" in config:
        raise BadConfig("a folder of keys is a fence by itself; leave fence out")
    folder = ThreadFolder(folder_of(config, "keys"), read_only=read_only)
    rest = {name: value for name, value in config.items() if name != "keys"}
    return SealedConnector(*_tables(rest), owner_field=owner_of(config), read_only=read_only, folder=folder)


def _open_database(config: Mapping[str, Any], *, read_only: bool) -> LangGraphConnector:
    return LangGraphConnector(
        *_tables(config),
        owner_field=owner_of(config),
        read_only=read_only,
        fenced=config.get("fence") == "triggers",
    )


def _tables(config: Mapping[str, Any]) -> tuple[Database, Shape]:
    """Return the database of a saver and the shape of its threads. Raises: BadConfig."""
    if config.get("fence", "none") not in {"none", "triggers"}:
        raise BadConfig('fence is "none" or "triggers"')
    database = open_database({name: value for name, value in config.items() if name != "fence"})
    parts = _SQLITE if isinstance(database, SqliteDatabase) else _POSTGRES
    return database, Shape(kind="langgraph", noun="thread", columns=("thread_id",), parts=parts, owner="metadata")


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

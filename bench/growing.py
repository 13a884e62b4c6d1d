"""Makes a registry of millions of artifacts out of one of thousands, in the database, in minutes.

What was registered is copied with other numbers, block by block: each block has its own people, sets, edges, keys and
places, shaped as the registered ones are, and lies before them in time, so that what is registered afterwards comes
last as it would have. Copies cannot be opened, since their sealed values are bound to other numbers: measure with the
people who were registered. Afterwards the rows of a block are compared with those that were registered.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlmodel import SQLModel

_SHIFT = "CASE WHEN {name} = 0 THEN 0 ELSE {name} - :shift END"
_TABLES: dict[str, dict[str, str]] = {
    "subject": {"subject_no": "shift", "subject_id": "hex", "person_no": "shift"},
    "subject_identifier": {"lookup": "bytes", "subject_no": "shift"},
    "subject_set": {"set_id": "shift", "digest": "bytes"},
    "subject_set_member": {"subject_no": "shift", "set_id": "shift"},
    "artifact": {
        "id": "shift", "holder_no": "shift", "set_id": "shift", "own_set_id": "shift", "locator_hash": "place",
        "given_id": "given",
    },
    "derivation": {"child": "shift", "parent": "shift"},
    "scope_key": {"lookup": "bytes", "item": "shift"},
    "vault_data_key": {"key_id": "hex", "subject_id": "shift"},
}  # fmt: skip
"""Each table with the columns that differ in a copy, and how; its first `shift` column says what is copied."""
_SQLITE = {
    "shift": _SHIFT,
    "hex": "substr(lower(hex(randomblob(16))), 1, length({name}))",
    "bytes": "randomblob(32)",
    "place": "randomblob(16)",
    "given": "'art_' || substr(lower(hex(randomblob(30))), 1, length({name}) - 4)",
}
_HEX = "replace(gen_random_uuid()::text, '-', '')"
_POSTGRES = {
    "shift": _SHIFT,
    "hex": f"left({_HEX}, length({{name}}))",
    "bytes": "uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())",
    "place": "uuid_send(gen_random_uuid())",
    "given": f"'art_' || left({_HEX} || {_HEX}, length({{name}}) - 4)",
}
_FAST = {"synchronous": "OFF", "cache_size": "-3000000", "wal_autocheckpoint": "100000"}


class Unlike(Exception):
    """A block of copies is not what was registered."""


def grow(engine: sa.Engine, tenant_id: int, artifacts: int) -> int:
    """Copy what is registered until there are at least so many artifacts; how many there are."""
    begun = time.perf_counter()
    with engine.connect() as connection:
        lite = connection.dialect.name == "sqlite"
        kept = _set(connection, _FAST) if lite else {}
        first, last = _range(connection)
        size = int(connection.execute(sa.text("SELECT COUNT(*) FROM artifact")).scalar_one())
        blocks = -(-(artifacts - size) // size)
        for block in range(blocks, 0, -1):
            for table in _TABLES:
                copied = _copy(table, lite=lite)
                shift = block * (last - first + 1)
                connection.execute(sa.text(copied), {"tenant": tenant_id, "first": first, "shift": shift})
            connection.commit()
            if sys.stderr.isatty():
                print(f"\r{block} blocks to go ", end="", file=sys.stderr)
        if blocks > 0:
            _compare(connection, first, last - first + 1)
        connection.rollback()
        _set(connection, kept)
    made = size * (max(blocks, 0) + 1)
    print(f"grown from {size:,} to {made:,} artifacts in {time.perf_counter() - begun:.0f} s")
    return made


def refill(engine: sa.Engine, target: sa.Table, source: sa.Table) -> None:
    """Have the rows of one table in another of the same columns, and no others."""
    with engine.connect() as connection:
        kept = _set(connection, _FAST) if connection.dialect.name == "sqlite" else {}
        connection.execute(sa.delete(target))
        connection.execute(sa.insert(target).from_select(list(source.columns.keys()), sa.select(source)))
        connection.commit()
        _set(connection, kept)


def _set(connection: sa.Connection, wanted: Mapping[str, object]) -> dict[str, object]:
    """Set SQLite's switches outside a transaction; what they were."""
    driver: Any = connection.connection.driver_connection
    former = {}
    for name, value in wanted.items():
        former[name] = driver.execute(f"PRAGMA {name}").fetchone()[0]
        driver.execute(f"PRAGMA {name} = {value}")
    return former


def _number(table: str) -> str:
    return next(name for name, how in _TABLES[table].items() if how == "shift")


def _range(connection: sa.Connection) -> tuple[int, int]:
    """The smallest and the greatest surrogate of anything that is copied."""
    found = []
    for table in _TABLES:
        number = _number(table)
        query = f"SELECT MIN({number}), MAX({number}) FROM {table} WHERE {number} <> 0"  # noqa: S608 - names of ours
        found += [value for value in connection.execute(sa.text(query)).one() if value is not None]
    return min(found), max(found)


def _copy(table: str, *, lite: bool) -> str:
    changes, forms = _TABLES[table], _SQLITE if lite else _POSTGRES
    names = [column.name for column in sa.Table(table, _metadata()).columns]
    values = [forms[changes[name]].format(name=name) if name in changes else name for name in names]
    return (
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} "  # noqa: S608 - names of ours
        f"FROM {table} WHERE tenant_id = :tenant AND {_number(table)} >= :first"
    )


def _metadata() -> sa.MetaData:
    return SQLModel.metadata


def _compare(connection: sa.Connection, first: int, span: int) -> None:
    """Rows, lengths and empty values of the last block are those of what was registered. Raises: Unlike."""
    for table, changes in _TABLES.items():
        columns = list(_metadata().tables[table].columns)
        sums = ", ".join(
            f"COUNT({column.name}), SUM(LENGTH(CAST({column.name} AS TEXT)))"
            if not isinstance(column.type, sa.LargeBinary)
            else f"COUNT({column.name}), SUM(LENGTH({column.name}))"
            for column in columns
            if changes.get(column.name) != "shift"
        )
        number = _number(table)
        query = sa.text(f"SELECT COUNT(*), {sums} FROM {table} WHERE {number} BETWEEN :low AND :high")  # noqa: S608 - as above
        made = connection.execute(query, {"low": first, "high": first + span - 1}).one()
        copied = connection.execute(query, {"low": first - span, "high": first - 1}).one()
        if tuple(made) != tuple(copied):
            message = f"{table}: {tuple(copied)} in a block of copies, registered were {tuple(made)}"
            raise Unlike(message)

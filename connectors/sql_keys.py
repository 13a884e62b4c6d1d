"""Unique and foreign keys as PostgreSQL's catalog has them, each kind in one statement for all that is asked.

Guarantees: a unique key is one that the server holds for every row: an index that is partial, of expressions or not
valid is none. Of temporary tables and of the server's own schemas nothing is said. SQLAlchemy's reflection asks several
times a table and once a schema, which takes longer than erasing the rows of a person.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

Place = tuple[str, str]
"""Schema and name of a table."""

_ON_DELETE = {"a": "NO ACTION", "r": "RESTRICT", "c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}
"""Source: PostgreSQL manual, pg_constraint.confdeltype."""

_OURS = "{0}.relkind IN ('r', 'p') AND {0}.relpersistence <> 't' AND {1}.nspname !~ '^(pg_|information_schema)'"

_UNIQUE = f"""
SELECT n.nspname::text, c.relname::text, ARRAY(
  SELECT a.attname::text FROM generate_series(0, i.indnkeyatts - 1) AS place
  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[place] ORDER BY place
)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
  AND i.indexprs IS NULL
WHERE {_OURS.format("c", "n")} AND (n.nspname, c.relname) IN ({{places}})
ORDER BY i.indisprimary DESC, i.indexrelid
"""

_FOREIGN = f"""
SELECT n.nspname::text, c.relname::text, pn.nspname::text, p.relname::text, k.confdeltype::text,
  ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS u (number, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.number ORDER BY place),
  ARRAY(SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY AS u (number, place)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.number ORDER BY place)
FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_class p ON p.oid = k.confrelid
JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
WHERE k.contype = 'f' AND {_OURS.format("c", "n")}
ORDER BY 1, 2, k.conname
"""


class ForeignKey(NamedTuple):
    """Which rows point at which, and what becomes of them when the row they point at is deleted."""

    child: Place
    columns: tuple[str, ...]
    parent: Place
    parent_columns: tuple[str, ...]
    on_delete: str
    """CASCADE, SET NULL, SET DEFAULT, RESTRICT or NO ACTION."""


def unique_keys(connection: sa.Connection, places: Sequence[Place]) -> dict[Place, list[tuple[str, ...]]]:
    """Return the unique keys of those places that are tables, the primary key first; a table without has none."""
    query = _UNIQUE.replace("{places}", ", ".join(["(%s, %s)"] * len(places)))
    found: dict[Place, list[tuple[str, ...]]] = {}
    for schema, name, columns in connection.exec_driver_sql(query, tuple(word for place in places for word in place)):
        found.setdefault((schema, name), []).extend([tuple(columns)] if columns else [])
    return found


def foreign_keys(connection: sa.Connection) -> list[ForeignKey]:
    """Return every foreign key of the database."""
    return [
        ForeignKey((schema, name), tuple(columns), (of, parent), tuple(parent_columns), _ON_DELETE[action])
        for schema, name, of, parent, action, columns, parent_columns in connection.exec_driver_sql(_FOREIGN)
    ]

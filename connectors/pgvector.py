"""Kind `pgvector`: rows of PostgreSQL tables with embeddings.

Config: as of kind `sql` on PostgreSQL, without `children`. Locator: `{"collection": table, "id": key}`; the table's
primary key is one column.

Guarantees, beyond those of `sql`: vectors are captured in the byte forms that heap, cosine index and protocol hold (see
`vectors`), so that `verify` and `residue` look for them and not only for texts; `reclaim` at L2 rewrites the heap and
thereby builds each of its indexes anew, and says which ones keep vectors. VACUUM alone cleans an index and leaves the
heap's bytes; no level is claimed for that. What an index trained is rebuilt with it.
Source: reference/store-recipes.md §1d, §2.7.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from typing_extensions import override

from connectors.base import Capabilities, Deadline, Item, Level, ReclaimReport
from connectors.errors import BadConfig, BadLocator, StoreUnreachable
from connectors.sql import SqlConnector, open_database, owner_of
from connectors.sql_catalog import key_of
from connectors.sql_postgres import PostgresDatabase
from connectors.vectors import PROBE, HalfVectorType, forms, is_vector, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from connectors.base import Locator, Selector
    from connectors.sql import Candidate, _Open
    from connectors.sql_catalog import Catalog, Table
    from connectors.sql_rows import Batch

_INDEXES = (
    "SELECT count(*) FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid"
    " JOIN pg_catalog.pg_am a ON a.oid = c.relam"
    " WHERE i.indrelid = %s::regclass AND a.amname IN ('hnsw', 'ivfflat') AND i.indisvalid"
)


def open_store(config: Mapping[str, Any], *, read_only: bool) -> PgvectorConnector:
    """Return the connector of a database. Raises: BadConfig."""
    if "children" in config:
        raise BadConfig("children is a setting of kind sql")
    database = open_database(config)
    if not isinstance(database, PostgresDatabase):
        raise BadConfig("url is of postgresql+psycopg://")
    return PgvectorConnector(database, owner_field=owner_of(config), delete_children=False, read_only=read_only)


class PgvectorConnector(SqlConnector):
    """Drives one database; a collection is a table."""

    @override
    def capabilities(self) -> Capabilities:
        locks = "the erased rows until commit; during reclaim ACCESS EXCLUSIVE on each table while heap and indexes are"
        return replace(super().capabilities(), kind="pgvector", locks=f"{locks} written anew (VACUUM FULL)")

    @override
    def check_locator(self, locator: Locator) -> None:
        with self._session(Deadline("check_locator", 10), read_only=True) as now_open:
            row = _row(now_open.catalog, locator)
        super().check_locator(row)

    @override
    def _by_table(
        self, now_open: _Open, items: Sequence[Item], *, refuse: bool, bad: dict[int, str] | None = None
    ) -> list[list[tuple[list[int], Batch]]]:
        rows = []
        for number, item in enumerate(items):
            try:
                rows.append(replace(item, locator=_row(now_open.catalog, item.locator)))
            except BadLocator as problem:
                if refuse:
                    raise
                if bad is not None:
                    bad[number] = problem.detail
                # Keeps the numbers of the others; it names no table, so it is refused below once more.
                rows.append(replace(item, locator={}))
        own: dict[int, str] = {}
        found = super()._by_table(now_open, rows, refuse=refuse, bad=own)
        if bad is not None:
            bad |= {number: detail for number, detail in own.items() if number not in bad}
        return found

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        for found in super().discover(selector, deadline=deadline):
            if len(found["key"]) != 1:
                raise BadLocator("a table of the owner has a key of several columns, so its rows have no single id")
            (value,) = found["key"].values()
            yield {"collection": found["table"], "id": value}

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("walk", deadline)
        with self._session(limit, read_only=True) as now_open:
            catalog = now_open.catalog
            primary = {name: table.primary for table in catalog.tables() for name in catalog.written(table)}
        for place in super().walk(deadline=limit.left()):
            # An id is the value of the primary key; other unique keys name no item of this kind.
            if tuple(place["key"]) == primary.get(place["table"]):
                yield {"collection": place["table"], "id": place["key"][primary[place["table"]][0]]}

    @override
    def _pieces(self, table: Table, column: str, value: object) -> Iterator[Candidate]:
        kind = table.columns[column]
        if not is_vector(kind):
            yield from super()._pieces(table, column, value)
            return
        if found := forms(numbers_of(value), half=isinstance(kind, HalfVectorType)):
            yield str(value)[:PROBE].encode(), tuple(found)

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        limit = Deadline("reclaim", deadline)
        report = super().reclaim(level, now=now, deadline=deadline)
        if report.level < Level.L2:
            return report
        with self._session(limit, read_only=False) as now_open:
            run = now_open.connection.exec_driver_sql
            try:
                counts = [
                    int(run(_INDEXES, (table.quoted.replace("%%", "%"),)).scalar() or 0)
                    for table in self._touched.values()
                ]
            except sa.exc.DBAPIError:
                raise StoreUnreachable("pgvector", "its indexes cannot be counted") from None
        detail = f"heaps: {report.detail}; indexes: {sum(counts)} of vectors built anew without the erased rows"
        return replace(report, detail=detail)


def _row(catalog: Catalog, locator: Locator) -> dict[str, Any]:
    """Return the row of a locator as kind `sql` names it. Raises: BadLocator."""
    if set(locator) != {"collection", "id"}:
        raise BadLocator("a pgvector locator is {collection, id}")
    table = catalog.table(locator["collection"])
    if len(table.primary) != 1:
        raise BadLocator("the table has no key of one column, so an id names no row")
    row = {"table": locator["collection"], "key": {table.primary[0]: locator["id"]}}
    key_of(table, row)
    return row

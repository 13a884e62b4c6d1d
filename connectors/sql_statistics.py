"""What PostgreSQL's planner keeps of rows: samples of their values, as `ANALYZE` and autovacuum take them.

Guarantees: after `renew` without problems, the statistics of these tables, of their partitions and of what they inherit
from were dropped where the role may, and taken anew from the rows that are there; what cannot be renewed is named. Does
not free the bytes of the old statistics: the caller rewrites `CATALOGS`. A table that was never analysed has none.
Source: PostgreSQL's documentation, pg_statistic, pg_stats, ANALYZE; an emptied table keeps its statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import sqlalchemy as sa

CATALOGS = ("pg_catalog.pg_statistic", "pg_catalog.pg_statistic_ext_data")
_USERS = "schemaname !~ '^(pg_|information_schema$)'"
SAMPLES = (
    f"SELECT most_common_vals, histogram_bounds, most_common_elems FROM pg_catalog.pg_stats WHERE {_USERS}",
    f"SELECT most_common_vals FROM pg_catalog.pg_stats_ext WHERE {_USERS}",
    f"SELECT most_common_vals, histogram_bounds, most_common_elems FROM pg_catalog.pg_stats_ext_exprs WHERE {_USERS}",
)
"""Every sampled value that the role may see."""
_CLEARS = 180_000
"""The version whose owners of tables may drop statistics."""

_FAMILY = f"""
WITH RECURSIVE own AS (
  SELECT %s::regclass::oid AS oid
  UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN own ON i.inhparent = own.oid
), family AS (
  SELECT oid FROM own UNION SELECT i.inhparent FROM pg_catalog.pg_inherits i JOIN family ON i.inhrelid = family.oid
)
SELECT c.oid::bigint AS oid, format('%%I.%%I', n.nspname, c.relname) AS name
FROM family JOIN pg_catalog.pg_class c USING (oid) JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm') AND (
  pg_stat_get_last_analyze_time(c.oid) IS NOT NULL OR pg_stat_get_last_autoanalyze_time(c.oid) IS NOT NULL
  OR EXISTS (SELECT FROM pg_catalog.pg_stats s WHERE {_USERS} AND format('%%I.%%I', s.schemaname, s.tablename)::regclass
    IN (SELECT c.oid UNION SELECT indexrelid FROM pg_catalog.pg_index WHERE indrelid = c.oid))
)
"""
_OF = """
(SELECT %s::bigint UNION SELECT indexrelid::bigint FROM pg_catalog.pg_index WHERE indrelid = %s::bigint)
"""
_EXTENDED = f"""
SELECT EXISTS (SELECT FROM pg_catalog.pg_stats_ext WHERE {_USERS} AND most_common_vals IS NOT NULL
  AND format('%%I.%%I', schemaname, tablename)::regclass::oid = %s::bigint)
OR EXISTS (SELECT FROM pg_catalog.pg_stats_ext_exprs WHERE {_USERS}
  AND format('%%I.%%I', schemaname, tablename)::regclass::oid = %s::bigint)
"""
_STALE = f"""
SELECT bool_or(a.attstattarget = 0), count(*) FROM pg_catalog.pg_stats s JOIN pg_catalog.pg_attribute a
  ON a.attrelid = %s::bigint AND a.attname = s.attname
WHERE {_USERS} AND format('%%I.%%I', s.schemaname, s.tablename)::regclass::oid = %s::bigint
  AND (most_common_vals IS NOT NULL OR histogram_bounds IS NOT NULL OR most_common_elems IS NOT NULL)
"""


def analysed(connection: sa.Connection, names: Sequence[str]) -> dict[int, str]:
    """Return the tables of these families that have statistics: quoted names by their ids. Raises: DBAPIError."""
    found: dict[int, str] = {}
    for name in names:
        found |= {row.oid: row.name for row in connection.exec_driver_sql(_FAMILY, (name,))}
    return found


def renew(connection: sa.Connection, tables: Mapping[int, str], arm: Callable[[], None]) -> list[str]:
    """Drop the statistics of these tables and take them anew; return what could not be.

    `arm` bounds the statements that follow. Raises: DBAPIError, and what `arm` raises.
    """
    run = connection.exec_driver_sql
    version = int(run("SHOW server_version_num").scalar() or 0)
    is_super = bool(run("SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user").scalar())
    problems = []
    for oid, name in tables.items():
        arm()
        if is_super:
            run(f"DELETE FROM pg_catalog.pg_statistic WHERE starelid IN {_OF}", (oid, oid))
            run(
                "DELETE FROM pg_catalog.pg_statistic_ext_data WHERE stxoid IN"
                " (SELECT oid FROM pg_catalog.pg_statistic_ext WHERE stxrelid = %s)",
                (oid,),
            )
        elif version >= _CLEARS:
            run(
                "SELECT pg_clear_attribute_stats(schemaname, tablename, attname, inherited) FROM pg_catalog.pg_stats"
                f" WHERE {_USERS} AND format('%%I.%%I', schemaname, tablename)::regclass::oid IN {_OF}",
                (oid, oid),
            )
        run(f"ANALYZE {name.replace('%', '%%')}")
        if not is_super and _is_stale(connection, oid, name):
            problems.append(f"{name}: the planner's statistics may hold values of rows that are gone")
    return problems


def _is_stale(connection: sa.Connection, oid: int, name: str) -> bool:
    """Tell whether statistics are there that `ANALYZE` takes from no row: of an emptied table, of a silenced column."""
    run = connection.exec_driver_sql
    is_silenced, count = run(_STALE, (oid, oid)).fetchone() or (False, 0)
    if is_silenced:
        return True
    is_empty = run(f"SELECT NOT EXISTS (SELECT FROM {name.replace('%', '%%')})").scalar()
    return bool(is_empty and (count or run(_EXTENDED, (oid, oid)).scalar()))

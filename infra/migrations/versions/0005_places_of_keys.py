"""Which keys seal which parts: one row for all places of a key in a stretch of a batch, instead of one for each place.

A row for each part and key, and its index, took 146 bytes an entry, more than the entry's own row. Every row that exists
is packed anew. SQLite's file keeps its size and fills what became free.

The indexes of keys by their group no longer hold the epoch, which a rotation changes in every row.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

from infra.migrations.schema import guard_tables, on_postgres

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TENANTED: dict[str, str] = {"part_places": "tenant_id"}
SHARED: tuple[str, ...] = ()
DROPPED = ("part_ref",)

_STRETCH = 1_000
_TOGETHER = 2_000
_REFS = """
SELECT r.tenant_id, r.idx, r.part, r.key_id, COALESCE(e.batch_first, (
    SELECT n.batch_first FROM entry n WHERE n.tenant_id = r.tenant_id AND n.idx > r.idx ORDER BY n.idx LIMIT 1
)) AS batch_first FROM part_ref r
LEFT JOIN entry e ON e.tenant_id = r.tenant_id AND e.idx = r.idx ORDER BY r.tenant_id, r.idx
"""


def upgrade() -> None:
    """Packs what is there, and takes the old table away."""
    places = op.create_table(
        "part_places",
        sa.Column("tenant_id", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("places", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "start", "key_id", "part"),
        sqlite_with_rowid=False,
    )
    if on_postgres():  # the policies let no owner read what is of tenants
        for table in ("part_ref", "entry"):
            op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    _pack(op.get_bind(), places)
    op.create_index("ix_part_places_key", "part_places", ["key_id", "tenant_id", "start", "part"], unique=False)
    op.drop_table("part_ref")
    if on_postgres():
        op.execute("ALTER TABLE entry FORCE ROW LEVEL SECURITY")
    for table in ("vault_data_key", "vault_part_key"):
        op.drop_index(f"ix_{table}_group", table_name=table)
        op.create_index(f"ix_{table}_group", table, ["tenant_id", "group_no"], unique=False)
    guard_tables(TENANTED, SHARED)


def _pack(bind: sa.Connection, places: sa.Table) -> None:
    with bind.execute(sa.text(_REFS), execution_options={"yield_per": _TOGETHER}) as refs:
        waiting: list[dict[str, Any]] = []
        for (tenant, start), some in groupby(refs, key=_stretch):
            waiting += _rows(tenant, start, some)
            if len(waiting) >= _TOGETHER:
                bind.execute(sa.insert(places), waiting)
                waiting = []
        if waiting:
            bind.execute(sa.insert(places), waiting)


def _stretch(ref: sa.Row[Any]) -> tuple[int, int]:
    """The tenant, and where the stretch begins.

    Without an index row of its own an entry is of the batch of the next that has one, if that begins before it.
    Otherwise nobody knows its batch.
    """
    first = ref.idx if ref.batch_first is None or ref.batch_first > ref.idx else ref.batch_first
    return ref.tenant_id, first + (ref.idx - first) // _STRETCH * _STRETCH


def _rows(tenant: int, start: int, refs: Iterable[sa.Row[Any]]) -> Iterator[dict[str, Any]]:
    found: dict[tuple[str, int], list[str]] = {}
    for ref in refs:
        found.setdefault((ref.key_id, ref.part), []).append(str(ref.idx - start))
    for (key_id, part), some in found.items():
        text = f"[{','.join(some)}]"
        yield {"tenant_id": tenant, "start": start, "key_id": key_id, "part": part, "places": text}

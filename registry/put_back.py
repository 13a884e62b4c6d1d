"""Rows of a snapshot or a journal, put back into their tables.

Guarantees: putting the same rows back again changes nothing; a row of another key whose place is taken is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import sqlalchemy as sa
from sqlmodel import Session

from registry.journal import Row
from vault import rows as vault_rows

_CERTIFICATE = "certificate"
_PIECES = "certificate_piece"
_PIECE = 1 << 20
"""Bytes of a certificate in a row, as whoever reads it counts them."""


def as_now(tables: Mapping[str, Sequence[Row]]) -> Iterator[tuple[str, Sequence[Row]]]:
    """Yield rows by their tables as these have them now.

    Until revision 0006 a certificate's row bore its bytes; its pieces are made of them.
    """
    for name, rows in tables.items():
        if name == _CERTIFICATE:
            yield name, [_sized(row) for row in rows]
            for row in rows:
                if "body" in row:
                    yield _PIECES, _cut(row)
        else:
            yield name, rows


def _sized(row: Row) -> Row:
    return {"size": len(row["body"]), **row} if "body" in row else row


def _cut(row: Row) -> list[Row]:
    key = {name: row[name] for name in ("tenant_id", "request_id", "version", "number")}
    body = memoryview(row["body"])
    return [
        {**key, "n": n, "data": bytes(body[start : start + _PIECE])}
        for n, start in enumerate(range(0, len(body), _PIECE))
    ]


def put_rows(session: Session, table: sa.Table, rows: Sequence[Row], *, replace: bool = True) -> int:
    """Put rows into a table, in place of older ones of the same key; returns how many there are now of these.

    With `replace` off, rows that are there stay as they are, and the missing ones are counted.

    Columns that the table no longer has are left out. A row whose place another one has taken is left out too.
    """
    names = {column.name for column in table.columns}
    key = [column.name for column in table.primary_key.columns]
    session.flush()
    db = session.connection()
    done = 0
    for some in _alike([{name: value for name, value in row.items() if name in names} for row in rows]):
        # Of two rows of one key in one object the later stands.
        unique = list({tuple(row[name] for name in key): row for row in some}.values())
        inserted = {tuple(found[name] for name in key) for found in vault_rows.insert_missing(db, table, unique)}
        if not replace:
            done += len(inserted)
            continue
        old = [row for row in unique if tuple(row[name] for name in key) not in inserted]
        values = [name for name in unique[0] if name not in key]
        if old and values:
            where = sa.and_(*(table.c[name] == sa.bindparam(f"at_{name}") for name in key))
            statement = sa.update(table).where(where).values({name: sa.bindparam(f"to_{name}") for name in values})
            db.execute(
                statement,
                [{**{f"at_{n}": row[n] for n in key}, **{f"to_{n}": row[n] for n in values}} for row in old],
            )
        done += len(unique)
    return done


def _alike(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the rows in groups that have the same columns, as one statement needs them."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row), []).append(row)
    yield from groups.values()


def recount_groups(session: Session, tenant_id: int) -> None:
    """A group's size was written when its rows were; the rows know better."""
    db = vault_rows.connection(session)
    sizes: dict[int, int] = {}
    for table in (vault_rows.KEYS, vault_rows.PARTS):
        query = (
            sa.select(table.c.group_no, sa.func.count())
            .where(table.c.tenant_id == tenant_id)
            .group_by(table.c.group_no)
        )
        for group_no, count in db.execute(query):
            sizes[group_no] = sizes.get(group_no, 0) + count
    groups = vault_rows.GROUPS
    where = sa.and_(groups.c.tenant_id == tenant_id, groups.c.group_no == sa.bindparam("at_group"))
    if sizes:
        db.execute(
            sa.update(groups).where(where).values(size=sa.bindparam("to_size")),
            [{"at_group": group_no, "to_size": size} for group_no, size in sizes.items()],
        )

"""Which keys seal which parts: packed with a batch, asked for by key and by place, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
import zstandard
from msgspec.structs import replace
from sqlmodel import Session, SQLModel, col, create_engine

from ledger import index, statements
from ledger.index import IndexLine
from ledger.models import STRETCH, EntryRow, PartPlaces, PartRef

TENANT, OTHER = 3, 4
NOW = datetime(2026, 1, 1, tzinfo=UTC)
_TABLES = [SQLModel.metadata.tables[str(model.__tablename__)] for model in (EntryRow, PartPlaces)]


def line(*key_ids: tuple[str, ...]) -> IndexLine:
    return IndexLine(
        entry_id="",
        class_version=1,
        stream_no=0,
        run_no=None,
        set_id=0,
        digest=b"",
        noncanonical=False,
        key_ids=key_ids,
    )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    """Two tenants with a batch of one entry, one of two stretches and a half, and a part of two people."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_database")
    engine = create_engine(url)
    SQLModel.metadata.create_all(engine, tables=_TABLES)
    with Session(engine) as made:
        for tenant in (TENANT, OTHER):
            for first, count in ((0, 1), (1, 2 * STRETCH + STRETCH // 2)):
                lines = [line(("ann", "bob") if first + n == STRETCH + 5 else ("ann",), ("own",)) for n in range(count)]
                packed = [(tenant, *row) for row in index.pack_refs(first, lines)]
                statements.insert(made, PartPlaces, ("tenant_id", "start", "key_id", "part", "places"), packed)
                made.connection().execute(
                    sa.insert(EntryRow),
                    [
                        {
                            "tenant_id": tenant, "idx": idx, "entry_id": b"%d" % idx, "batch_first": first,
                            "stream_no": 0, "position": idx, "kind": "note", "data_class": "chat", "class_version": 1,
                            "at": NOW, "received": NOW, "digest": b"", "noncanonical": False,
                        }
                        for idx in range(first, first + count)
                    ],
                )  # fmt: skip
        yield made
    engine.dispose()


def test_a_place_is_found_by_its_batch_whatever_stretch_of_it(session: Session) -> None:
    asked = [0, 1, STRETCH, STRETCH + 1, STRETCH + 5, 2 * STRETCH + 400, 10**6]
    found = index.keys_of(session, TENANT, asked)
    assert found == {(idx, part): [("ann", "own")[part]] for idx in asked[:-1] for part in (0, 1)} | {
        (STRETCH + 5, 0): ["ann", "bob"]
    }
    assert list(index.refs_of(session, OTHER + 1, asked)) == []


def test_a_key_gives_each_part_once_and_of_its_tenant_alone(session: Session) -> None:
    rows = session.execute(
        sa.select(col(PartRef.idx), col(PartRef.part)).where(
            col(PartRef.tenant_id) == TENANT, col(PartRef.key_id).in_(["ann", "bob"])
        )
    )
    assert sorted(map(tuple, rows)) == sorted([(n, 0) for n in range(2 * STRETCH + 501)] + [(STRETCH + 5, 0)])


def test_a_batch_of_a_thousand_takes_one_row_a_key_and_part(session: Session) -> None:
    count = sa.select(sa.func.count()).select_from(PartPlaces).where(col(PartPlaces.tenant_id) == TENANT)
    assert session.scalar(count) == 2 * 1 + 2 * 3 + 1


@pytest.mark.parametrize("keys", [1, 2, 3, 50, 500])
def test_no_question_by_key_begins_with_the_whole_tenant(keys: int, tmp_path: Path) -> None:
    # Without statistics SQLite did: first every row of the tenant, later every entry of it for each stretch.
    engine = create_engine(f"sqlite:///{tmp_path / 'b.db'}")
    SQLModel.metadata.create_all(engine, tables=_TABLES)
    entry = sa.and_(col(EntryRow.tenant_id) == col(PartRef.tenant_id), col(EntryRow.idx) == col(PartRef.idx))
    by_key = (col(PartRef.tenant_id) == TENANT, col(PartRef.key_id).in_([f"{n:x}" for n in range(keys)]))
    tenant = col(PartPlaces.tenant_id) == TENANT
    packed = (tenant, col(PartPlaces.key_id).in_([f"{n:x}" for n in range(keys)]))
    questions: list[sa.Select[Any]] = [
        sa.select(col(PartRef.idx)).where(*by_key),
        sa.select(sa.func.count(sa.distinct(col(PartRef.idx)))).where(*by_key).group_by(col(PartRef.key_id)),
        sa.select(col(EntryRow.stream_no)).join(PartRef, entry).where(*by_key),
        sa.select(col(PartRef.idx)).join(EntryRow, entry).where(*by_key, col(EntryRow.stream_no).in_([1, 2])),
        sa.select(col(PartPlaces.start)).where(*packed),
        sa.select(col(PartPlaces.part)).where(
            col(PartPlaces.tenant_id) == TENANT, col(PartPlaces.start).in_(range(keys))
        ),
        sa.select(col(PartRef.idx)).where(col(PartRef.within) == TENANT, col(PartRef.start).between(5, 500)),
    ]
    with engine.connect() as connection:
        for question in questions:
            text = str(question.compile(engine, compile_kwargs={"literal_binds": True}))
            plan = [line[3] for line in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")]
            wide = [one for one in plan if one.endswith("(tenant_id=?)") or one.startswith("SCAN part_places")]
            assert wide == [], text
    engine.dispose()


def test_lines_come_back_and_only_for_the_entries_they_were_written_for() -> None:
    lines = [
        IndexLine(
            entry_id=f"id-{n}", class_version=1 + n % 2, stream_no=n % 7, run_no=None if n % 3 else n, set_id=n % 5,
            digest=bytes([n % 256]) * (16 if n % 11 else 0), noncanonical=n % 13 == 0, key_ids=((f"k{n % 4}",), ()),
        )
        for n in range(400)
    ]  # fmt: skip
    ids = [one.entry_id for one in lines]
    assert index.decode_lines(index.encode_lines(lines), ids) == lines
    for wrong in (ids[1:], ids[::-1], [*ids, "id-400"], []):
        with pytest.raises(msgspec.DecodeError):
            index.decode_lines(index.encode_lines(lines), wrong)


@pytest.mark.parametrize(
    ("column", "value"), [(2, [0, 1, 2]), (2, [0, -1, 0]), (3, b"short"), (3, bytes(49)), (4, [16, 48, -16])]
)
def test_lines_whose_columns_do_not_fit_each_other_are_refused(column: int, value: Any) -> None:
    lines = [replace(line((key,), ("s",)), digest=bytes(16)) for key in "aba"]
    whole = index.encode_lines(lines)
    columns = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(whole[1:]))
    columns[column] = value
    forged = whole[:1] + zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(columns))
    with pytest.raises(msgspec.DecodeError):
        index.decode_lines(forged, ["", "", ""])


def test_lines_of_the_first_version_are_read() -> None:
    lines = [line(("a",), ("s",))] * 3
    data = zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(lines))
    assert index.decode_lines(data, ["", "", ""]) == lines
    with pytest.raises(msgspec.DecodeError):
        index.decode_lines(data, ["", ""])


def test_no_flipped_byte_of_lines_is_taken_for_lines() -> None:
    lines = [line(("a",), ("s",)), line(("b",), ("s",))]
    whole = index.encode_lines(lines)
    for at in range(len(whole)):
        for bit in (1, 64):
            broken = whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :]
            with pytest.raises(msgspec.MsgspecError):
                index.decode_lines(broken, ["", ""])

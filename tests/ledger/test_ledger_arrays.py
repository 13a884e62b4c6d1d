"""Arrays in PostgreSQL's binary form are the values that were given, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import arrays

pytestmark = pytest.mark.postgres

_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(2**63), 2**63 - 1),
    "int4": st.integers(-(2**31), 2**31 - 1),
    "bool": st.booleans(),
    "float8": st.floats(allow_nan=False),
    "bytea": st.binary(max_size=40),
    "text": _TEXTS | st.sampled_from(["", "NULL", "{}", 'a"b\\c,d', " "]),
    "json": st.sampled_from(["null", "{}", '{"a": "ä\\"b"}', "[1, 2]"]),
}


@pytest.fixture(scope="module")
def db(postgres_url: str) -> Iterator[sa.Connection]:
    """A connection."""
    engine = sa.create_engine(postgres_url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(data=st.data())
def test_the_server_reads_what_was_packed(db: sa.Connection, kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | KINDS[kind], max_size=12))
    read = "u::text" if kind == "json" else "u"
    arrays.accept(db)
    asked = db.exec_driver_sql(f"SELECT {read} FROM unnest(%s::{kind}[]) AS u", (arrays.packed(kind, values),))
    assert [row[0] for row in asked] == values


def test_a_connection_that_was_closed_takes_arrays_again(db: sa.Connection) -> None:
    for _ in range(2):
        with db.engine.connect() as other:
            arrays.accept(other)
            assert other.exec_driver_sql("SELECT %s::int8[]", (arrays.packed("int8", [1, None]),)).scalar() == [1, None]
            other.invalidate()

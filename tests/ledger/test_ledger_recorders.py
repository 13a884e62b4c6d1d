"""The numbers of a recorder as ranges: held against the plain set of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.pool import StaticPool
from sqlmodel import Session, SQLModel, create_engine, select

from ledger import recorders
from ledger.models import RecorderBeat, RecorderRange

TENANT = 7
TABLES = [SQLModel.metadata.tables[str(table.__tablename__)] for table in (RecorderRange, RecorderBeat)]


@contextmanager
def opened() -> Iterator[Session]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    SQLModel.metadata.create_all(engine, tables=TABLES)
    with Session(engine) as session:
        yield session
    engine.dispose()


@pytest.fixture
def session() -> Iterator[Session]:
    with opened() as made:
        yield made


@given(
    st.lists(st.sets(st.integers(min_value=0, max_value=60), min_size=1, max_size=15), max_size=8),
    st.integers(min_value=0, max_value=60),
    st.integers(min_value=0, max_value=60),
)
def test_ranges_hold_exactly_the_numbers_that_came(batches: list[set[int]], one: int, two: int) -> None:
    first, last = sorted((one, two))
    with opened() as session:
        seen: set[int] = set()
        for numbers in batches:
            recorders.dropped(session, TENANT, {"r": numbers})
            seen |= numbers
        assert recorders.held(session, TENANT, "r", first, last) == len(seen & set(range(first, last + 1)))
        rows = sorted((row.first, row.last) for row in session.exec(select(RecorderRange)))
        assert {number for start, end in rows for number in range(start, end + 1)} == seen
        # Never two rows that touch: a recorder that lost nothing has one.
        assert all(right[0] > left[1] + 1 for left, right in pairwise(rows))


def test_tenants_and_recorders_are_kept_apart(session: Session) -> None:
    recorders.dropped(session, TENANT, {"a": {1, 2}, "b": {9}})
    recorders.dropped(session, TENANT + 1, {"a": {3}})
    assert recorders.held(session, TENANT, "a", 0, 100) == 2
    assert recorders.held(session, TENANT, "b", 0, 100) == 1
    assert recorders.held(session, TENANT + 1, "a", 0, 100) == 1
    assert recorders.held(session, TENANT, "c", 0, 100) == 0
    assert recorders.recorders_with_beats(session, TENANT) == []

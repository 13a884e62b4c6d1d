"""Every batch that may name an object is asked: those of its time, and all that the index does not know for sure."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlmodel import Session

from ledger.entry import uuid7
from ledger.models import microseconds
from ledger.naming import Naming
from tests.ledger.test_ledger_log import LOG_ID, NOW, TENANT, Bench, bench, draft

__all__ = ["bench"]
FIRSTS = (0, 3, 4, 9, 11)
SIZE = 13


def asked_for(bench: Bench, at: datetime, page: int) -> list[int]:
    """Which batches are asked for an object of a time; each of them names it."""
    asked: list[int] = []
    name = f"payload/none/{uuid7(at)}"

    def names_in(first: int) -> list[str]:
        asked.append(first)
        return [name]

    found = Naming(bench.locked, bench.transactions, TENANT, LOG_ID, page=page).batches(name, names_in)
    assert sorted(found) == sorted(asked)
    return sorted(asked)


def change(bench: Bench, statement: str, **values: object) -> None:
    with Session(bench.engine) as session:
        session.connection().execute(sa.text(statement), values)
        session.commit()


@pytest.fixture
def days(bench: Bench) -> Bench:
    """A log of five batches, a day apart, the second of them before the first, as a clock that stepped leaves them."""
    for first, end in zip(FIRSTS, (*FIRSTS[1:], SIZE), strict=True):
        bench.log.append(TENANT, [draft(number) for number in range(first, end)], now=NOW)
    for day, first in enumerate((3, 0, 4, 9, 11)):
        at = microseconds(NOW + timedelta(days=day))
        change(bench, "UPDATE entry SET received = :at + idx WHERE batch_first = :first", at=at, first=first)
    return bench


@pytest.mark.parametrize("page", [1, 2, 3, 5, SIZE, 1000])
def test_only_the_batches_of_its_time_and_the_newest_are_asked_in_pages_of_any_size(days: Bench, page: int) -> None:
    for day, first in enumerate((3, 0, 4, 9)):
        for apart in (timedelta(minutes=-29), timedelta(minutes=29)):
            assert asked_for(days, NOW + timedelta(days=day) + apart, page) == [first, 11]
        assert asked_for(days, NOW + timedelta(days=day, minutes=31), page) == [11]


@pytest.mark.parametrize("page", [1, 2, 3, 5, SIZE, 1000])
def test_from_the_batch_before_an_entry_that_the_index_lacks_all_are_asked(days: Bench, page: int) -> None:
    for idx in (12, 8, 6, 4, 1, 0):
        change(days, "DELETE FROM entry WHERE idx = :idx", idx=idx)
        asked = asked_for(days, NOW + timedelta(days=30), page)
        holding = max(first for first in FIRSTS if first <= idx)
        assert set(asked) >= {first for first in FIRSTS if first >= holding}

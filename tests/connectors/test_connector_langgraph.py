from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.contract import Contract
from tests.connectors.langgraph_beds import PostgresThreads, SqliteThreads, ThreadBed


@pytest.fixture
def sqlite_bed(tmp_path: Path) -> Iterator[SqliteThreads]:
    made = SqliteThreads(tmp_path)
    yield made
    made.close()


@pytest.fixture
def postgres_bed(server: Any) -> Iterator[PostgresThreads]:
    made = PostgresThreads(server)
    yield made
    made.close()


class TestSqliteSaver(Contract):
    @pytest.fixture
    def bed(self, sqlite_bed: SqliteThreads) -> SqliteThreads:
        return sqlite_bed


@pytest.mark.postgres
class TestPostgresSaver(Contract):
    @pytest.fixture
    def bed(self, postgres_bed: PostgresThreads) -> PostgresThreads:
        return postgres_bed

"""The local PostgreSQL is real, separate per process, and dies with its owner."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from infra.services import postgres

REPOSITORY = Path(__file__).resolve().parents[2]
OWNER = """
import sys, time
from pathlib import Path
from infra.services import postgres
with postgres.running(Path(sys.argv[1])) as url:
    print(url, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def owned_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="muniment-owner-") as name:
        yield Path(name) / "pg"


@pytest.mark.postgres
def test_a_fresh_database_has_nothing_of_another_one(make_postgres_database: Callable[..., str]) -> None:
    first, second = make_postgres_database(), make_postgres_database()
    with psycopg.connect(postgres.plain(first)) as connection:
        connection.execute("CREATE TABLE only_here (id int)")
    with psycopg.connect(postgres.plain(second)) as connection:
        assert connection.execute("SELECT to_regclass('only_here')").fetchone() == (None,)


@pytest.mark.postgres
def test_a_prepared_database_is_prepared_once_and_copied(make_postgres_database: Callable[..., str]) -> None:
    prepared: list[str] = []

    def prepare(url: str) -> None:
        prepared.append(url)
        with psycopg.connect(postgres.plain(url)) as connection:
            connection.execute("CREATE TABLE prepared (id int)")

    for url in (make_postgres_database(prepare), make_postgres_database(prepare)):
        with psycopg.connect(postgres.plain(url)) as connection:
            assert connection.execute("SELECT count(*) FROM prepared").fetchone() == (0,)
    assert len(prepared) == 1


@pytest.mark.postgres
def test_pgvector_can_be_created(postgres_database: str) -> None:
    with psycopg.connect(postgres.plain(postgres_database)) as connection:
        connection.execute("CREATE EXTENSION vector")
        assert connection.execute("SELECT '[1,2]'::vector <-> '[1,2]'::vector").fetchone() == (0.0,)


@pytest.mark.postgres
def test_the_server_is_gone_soon_after_its_owner_is_killed(owned_folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(owned_folder)], stdout=subprocess.PIPE, text=True, env=environment
    ) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        psycopg.connect(postgres.plain(url)).close()
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        try:
            psycopg.connect(postgres.plain(url), connect_timeout=2).close()
        except psycopg.OperationalError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the server still answers although its owner was killed")

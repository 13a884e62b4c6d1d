"""A backup of the database opens nothing of who was erased, whatever it holds, once the grace is over.

The key folder is as it is now, every object is there, the rows are yesterday's; the service, which would erase again
when it starts, takes no part. Embedded and on servers.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import select

from api.settings import Settings
from api.wiring import Services, build
from ledger.models import EntryRow
from registry.playback import read_entries
from tests.process.test_process_keeping import request, say, until, without_grace
from tests.process.test_process_rebuild import tenant_id
from tests.process.test_process_restore import backup, restore
from vault.errors import KekDestroyed, VaultError
from vault.rows import KEYS, PARTS, binding_of
from vault.wrapping import at_epoch, unwrap

__all__ = ["without_grace"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
WORDS = ["the rash came back", "and so did the fever"]


def opened_keys(services: Services, tenant: int) -> set[bytes]:
    """Every key that any key-encryption key of today opens out of any row of the database, tombstones set aside."""
    keks = []
    for status in services.keks.epochs(str(tenant)):
        try:
            keks.append((status.epoch, services.keks.recover(str(tenant), status.group_no, status.epoch)))
        except VaultError:
            continue
    found: set[bytes] = set()
    with services.database.transaction(tenant, write=False) as session:
        for table in (KEYS, PARTS):
            rows = session.connection().execute(sa.select(table).where(table.c.wrapped.is_not(None)))
            for row in rows.mappings():
                for epoch, kek in keks:
                    for binding in (binding_of(table, row), at_epoch(binding_of(table, row), epoch)):
                        try:
                            found.add(unwrap(kek, binding, row["wrapped"]))
                        except VaultError:
                            continue
    return found


def said(services: Services, tenant: int) -> bytes:
    """What the record's own reading gives of all bodies."""
    with services.database.transaction(tenant, write=False) as session:
        rows = session.exec(select(EntryRow).where(EntryRow.tenant_id == tenant, EntryRow.stream_no != 0)).all()
        read = read_entries(session, services.vault, services.log, tenant, rows)
    return b"|".join(part.data for entry in read for part in entry.parts if part.data is not None)


def files_with(settings: Settings, needle: bytes) -> list[str]:
    """The files of the PostgreSQL server, its write-ahead log among them, that hold some bytes."""
    engine = sa.create_engine(settings.database, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("CHECKPOINT")
        folder = Path(connection.exec_driver_sql("SHOW data_directory").scalar_one())
    engine.dispose()
    return [path.name for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()]


def test_a_backup_and_todays_keys_give_no_word_and_no_key_of_who_was_erased(desk: Any, running: Any) -> None:
    tenant = tenant_id(running, desk)
    for number, words in enumerate(WORDS):
        say(desk, words, f"conv_{number}")
    running.stop()
    kept = backup(running)
    with closing(build(running.settings)) as services:
        before = opened_keys(services, tenant)
        assert all(words.encode() in said(services, tenant) for words in WORDS)
        with services.database.transaction(tenant, write=False) as session:
            db = session.connection()
            sample = db.execute(sa.select(KEYS.c.wrapped).where(KEYS.c.data_class == "transcript")).scalars().first()
            mine = {
                services.vault.open_keys(session, tenant, [row.key_id])[row.key_id]
                for row in db.execute(sa.select(KEYS).where(KEYS.c.data_class == "transcript"))
            }
    assert mine
    assert sample is not None
    assert mine <= before, "the attack finds what is there"

    running.start()
    until(desk, request(desk), "completed")
    running.stop()
    if running.settings.on_postgres:
        # Dead rows and the write-ahead log keep the old wrapped form, until the server overwrites it; nothing else.
        assert files_with(running.settings, sample)
        assert not [name for key in mine for name in files_with(running.settings, key)]
    restore(running, kept)
    with closing(build(running.settings)) as services:
        with services.database.transaction(tenant, write=False) as session:
            wrapped = session.connection().execute(sa.select(KEYS).where(KEYS.c.data_class == "transcript")).all()
        assert [row.wrapped for row in wrapped].count(None) == 0, "yesterday's rows are whole"
        assert not mine & opened_keys(services, tenant)
        with pytest.raises(KekDestroyed):
            said(services, tenant)
    running.start()

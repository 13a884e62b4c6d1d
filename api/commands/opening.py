"""Opening a data folder in this process: lock, settings, keys, schema, parts.

Guarantees: one process at a time; keys that should be there and are not are never made anew, because everything sealed
under the old ones would silently be lost; a newer schema is refused and an older one brought up before anything runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api import folder, migrate, settings
from api.commands.options import CannotRun
from api.wiring import Services, build
from ledger.objects import PROBE_PREFIX, ObjectStore


@contextmanager
def opened(data: Path, *, create: bool = False, **overrides: object) -> Iterator[Services]:
    """Yields the services of a folder whose lock is held; `create` makes what is missing.

    Raises:
        FolderMissing, FolderLocked, CannotRun, SettingRefused, NewerSchema.
    """
    chosen = settings.load(data, **overrides)
    if create:
        folder.make(chosen.data)
    os.umask(0o077)
    with folder.lock(chosen.data):
        if not create and not folder.is_initialised(chosen.data):
            raise folder.FolderMissing(chosen.data)
        if folder.is_rebuilding(chosen.data):
            message = f"a rebuild of {chosen.data} did not end: run muniment rebuild --data {chosen.data} again"
            raise CannotRun(message)
        if folder.is_initialised(chosen.data):
            require_keys(chosen)
        services = build(chosen)
        try:
            migrate.upgrade(services.database)
            require_database(services)
            services.lease.take(services.clock.now(), force=services.database.on_sqlite)
            yield services
        finally:
            services.close()


def require_database(services: Services) -> None:
    """Returns unless the database is empty where a tenant was made, or stores hold logs. Raises CannotRun."""
    if services.tenants():
        return
    data = services.settings.data
    if any(_holds_log(store) for store in (services.locked, services.hot)):
        message = (
            f"the database holds no tenant, but the stores hold logs: it was lost or another one is meant; check "
            f"DATABASE_URL, or run muniment rebuild --data {data}"
        )
        raise CannotRun(message)
    if folder.is_initialised(data):
        message = (
            f"{data} is initialised, but its database holds no tenant and the stores no log: they were lost or others "
            f"are meant; check DATABASE_URL, OBJECT_STORE and HOT_STORE, or start anew with muniment init --data OTHER"
        )
        raise CannotRun(message)


def _holds_log(store: ObjectStore) -> bool:
    return any(not key.startswith(PROBE_PREFIX) for key in store.list(""))


def require_keys(chosen: settings.Settings) -> None:
    """Returns when the key folder of an initialised data folder is there. Raises CannotRun."""
    if not chosen.key_folder.is_dir():
        message = (
            f"the keys of {chosen.data} are missing ({chosen.key_folder}): bring them back before anything is served"
        )
        raise CannotRun(message)

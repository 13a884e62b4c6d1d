"""`muniment rebuild`: the database again, from object store, unlocked store and key folder.

Guarantees: never runs over a database that holds a tenant; can be stopped anywhere and run again, and nothing is served
in between (`run/rebuilding`); ends with the same verification as `muniment verify`, and says what could not be brought
back and how old the registry's snapshot is. Exit codes: 0 all is back that was ever written to the stores, 1 a proven
fault or a refused run, 2 could not run. Makes no key: without the key folder it says what is lost and stops.
"""

from __future__ import annotations

from pathlib import Path

import click

from api.commands.options import CannotRun, local


@click.command("rebuild")
@local("Not taken: every tenant is brought back.")
def rebuild(*, data: Path, tenant: str | None, as_json: bool) -> int:
    """Rebuilds the database of all tenants from object store, unlocked store and key folder."""
    if tenant is not None:
        message = "rebuild brings back every tenant of the stores: leave out --tenant"
        raise CannotRun(message)
    from api.commands.rebuilding import rebuild_folder  # noqa: PLC0415 - the service is heavy, and --help needs none of it

    return rebuild_folder(data, as_json=as_json)


COMMANDS = {"rebuild": rebuild}

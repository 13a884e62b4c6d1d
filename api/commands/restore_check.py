"""`muniment restore-check`: after a restore of our database, or of a store, what was erased goes again.

Guarantees: reads the folder, so that nothing is served meanwhile; without the log it changes nothing and stops; running
it again changes nothing. Exit codes: 0 nothing that was erased is alive, 1 something came back and is not gone again,
2 somebody could not look: no log, or a store that does not answer or cannot list its places.
"""

from __future__ import annotations

from pathlib import Path

import click

from api.commands.options import ONE_TENANT, local


@click.command("restore-check")
@click.option("--store", default=None, help="Look for revived copies in this store only.")
@local(ONE_TENANT)
def restore_check(*, data: Path, tenant: str | None, store: str | None, as_json: bool) -> int:
    """Applies every later erasure and hold of the record again, and erases what stores brought back."""
    from api.commands.restoring import check_restored  # noqa: PLC0415 - the service is heavy, and --help needs none of it

    return check_restored(data, tenant, store, as_json=as_json)


COMMANDS = {"restore-check": restore_check}

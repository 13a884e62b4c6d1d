"""`muniment doctor`: is this installation able to keep its promises? Reads the folder; nothing of the data is changed.

Guarantees: each finding says what is wrong and what to do; "could not check" is never "fine". Exit 0 sound, 1 a proven
fault, 2 something could not be checked. Both stores are attacked with probe objects of their own. Runs beside a serving
process. What is looked at: `api.examination`.
"""

from __future__ import annotations

from pathlib import Path

import click

from api.commands.options import ONE_TENANT, local


@click.command("doctor")
@local(ONE_TENANT)
def doctor(data: Path, tenant: str | None, *, as_json: bool) -> int:
    """Checks configuration, schema, keys, clock, room, both stores' promises, and what crashes left."""
    from api.commands.examining import examine_folder  # noqa: PLC0415 - the service is heavy, and --help needs none of it

    return examine_folder(data, tenant, as_json=as_json)


COMMANDS = {"doctor": doctor}

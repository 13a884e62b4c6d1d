"""`muniment serve`: the service in one process; the socket is bound before anything is started."""

from __future__ import annotations

from pathlib import Path

import click

from api.commands.options import data_option

ROLES = frozenset({"api", "worker", "scheduler"})


def _roles(_context: click.Context, _parameter: click.Parameter, value: str) -> frozenset[str]:
    roles = frozenset(part.strip() for part in value.split(",") if part.strip())
    if not roles or not roles <= ROLES:
        message = f"choose from {', '.join(sorted(ROLES))}"
        raise click.BadParameter(message)
    return roles


@click.command()
@data_option
@click.option("--tenant", default=None, hidden=True)
@click.option("--host", default=None, help="Address to bind to (MUNIMENT_HOST, else 127.0.0.1).")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=None, help="Port (MUNIMENT_PORT, else 8811); 0: a free one."
)
@click.option("--roles", callback=_roles, default="api,worker,scheduler", show_default=True, help="What it does.")
def serve(data: Path, tenant: str | None, host: str | None, port: int | None, roles: frozenset[str]) -> int:
    """Runs the service and prints `ready http://H:P` when it answers."""
    del tenant  # every tenant is served; the option exists because every command takes it
    from api.commands.serving import serve_folder  # noqa: PLC0415 - the service is heavy, and --help needs none of it

    return serve_folder(data, host=host, port=port, roles=roles)


COMMANDS = {"serve": serve}

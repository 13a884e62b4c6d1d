"""`muniment demo`: says its first line at once, then imports and runs the demo."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click


@click.command("demo")
@click.option("--keep", type=click.Path(path_type=Path), default=None, help="Keep the data in this folder.")
@click.option("--data", default=None, hidden=True)
@click.option("--tenant", default=None, hidden=True)
def demo(keep: Path | None, data: str | None, tenant: str | None) -> int:
    """Runs the main job end to end on embedded stores, with a readable result."""
    del data, tenant  # a demo has its own; the options exist because every command takes them
    click.echo("Muniment demo: a recruiting screen, its record, one erasure, and the end of a role.")
    code: int = import_module("api.demo").run(keep=keep)
    return code


COMMANDS = {"demo": demo}

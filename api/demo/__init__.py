"""The main job, end to end: the recruiting screen on embedded stores, told so that a non-engineer can follow it."""

from __future__ import annotations

from pathlib import Path

import click


def run(keep: Path | None = None) -> int:
    """Run the demonstration in a temporary folder, or in `keep`; returns 0 only if every check held."""
    from api.demo.story import run as tell  # noqa: PLC0415 - the command has said its first line before this imports

    return tell(keep, click.echo)

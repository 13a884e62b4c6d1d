"""The commands of the contract that are not built yet: they exist, say so in one line, and exit 2."""

from __future__ import annotations

import click

_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}


def not_built(name: str, shown: str) -> click.Command:
    """A command that takes any arguments and says that it is not built."""

    @click.command(name, context_settings=_ANYTHING, help="Not built yet.")
    @click.pass_context
    def command(context: click.Context) -> int:
        del context
        click.echo(f"muniment: {shown} is not built yet: this version cannot do it", err=True)
        return 2

    return command


COMMANDS: dict[str, click.Command] = {"verify-bundle": not_built("verify-bundle", "verify-bundle")}

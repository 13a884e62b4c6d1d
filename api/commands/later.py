"""The commands that a later issue owns: they exist, say so in one line, and exit 2."""

from __future__ import annotations

import click

_ISSUES: dict[str, int | None] = {
    "demo": 2,
    "verify": 3,
    "verify-bundle": None,
    "retention": 7,
    "verify-report": 5,
}
_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}


def not_built(name: str, shown: str, issue: int | None) -> click.Command:
    """A command that takes any arguments and says that it is not built; `issue` owns it, None a later one."""
    owner = "a later issue" if issue is None else f"issue {issue}"

    @click.command(name, context_settings=_ANYTHING, help=f"Not built yet ({owner}).")
    @click.pass_context
    def command(context: click.Context) -> int:
        del context
        click.echo(f"muniment: {shown} is not built yet ({owner})", err=True)
        return 2

    return command


COMMANDS: dict[str, click.Command] = {name: not_built(name, name, issue) for name, issue in _ISSUES.items()}

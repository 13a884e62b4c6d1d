"""The command `muniment`: names every command, imports one only when it runs, and turns errors into one clear line.

Guarantees: `--help` imports none of the server. Exit codes: 0 done and sound, 1 a proven fault or a refused action,
2 could not check or could not run.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import Any

import click

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("initialise", "Make the data folder, keys, tenant, classes and tokens."),
    "serve": ("serve", "Run the service on a data folder."),
    "demo": ("demo", "Run the main job end to end in a temporary folder."),
    "tenant": ("tenants", "Create and list tenants."),
    "token": ("tokens", "Create, list and revoke tokens."),
    "classes": ("declarations", "Apply data classes from files."),
    "stores": ("declarations", "Apply stores from files."),
    "inventory": ("inventory", "Show classes and stores with what is missing."),
    "import": ("imports", "Bring real transcripts into the record."),
    "scan": ("scan", "Look at what an existing store holds."),
    "request": ("requests", "File a rights request, and work on it."),
    "approve": ("approving", "Approve a planned request."),
    "report": ("papers", "Fetch a request's certificate or export."),
    "letter": ("papers", "Write the letter to the person."),
    "hold": ("holds", "Place, list and release legal holds."),
    "controller": ("controller", "Say who answers for the data."),
    "replay": ("reading", "Show a stream with its proof state."),
    "explain": ("reading", "Show where a remembered fact came from."),
    "retention": ("retention", "See what is due and let retention run."),
    "verify": ("verify", "Check the record against its checkpoints."),
    "verify-report": ("verify_report", "Check a certificate offline."),
    "verify-bundle": ("later", "Not built yet."),
    "key": ("keys", "Rotate keys."),
    "anchor": ("anchors", "Offer the checkpoint to the anchors."),
    "witness": ("anchors", "Witness somebody else's log."),
    "rebuild": ("rebuild", "Rebuild the database from object store, unlocked store and keys."),
    "restore-check": ("restore_check", "Re-apply erasures after a restore."),
    "doctor": ("doctor", "Check configuration, schema, stores, locks and keys."),
}
"""Command → (module below `api.commands`, help). Each module lists its commands in `COMMANDS`."""


_AGAIN = " May be given again."


def _repeatable_told(command: click.Command) -> click.Command:
    """The command, with the help of each option that may be given again saying so, also of those below it."""
    for each in command.params:
        if isinstance(each, click.Option) and each.multiple and each.help and not each.help.endswith(_AGAIN):
            each.help += _AGAIN
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _repeatable_told(below)
    return command


class Lazy(click.Group):
    """A group that knows its commands by name and imports the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the documentation."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        commands: dict[str, click.Command] = import_module(f"api.commands.{COMMANDS[cmd_name][0]}").COMMANDS
        return _repeatable_told(commands[cmd_name])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list without importing any of it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="muniment-server", message="muniment %(version)s")
def muniment() -> None:
    """A provable record of what AI agents did, and erasure with evidence."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits with its code.

    Most of a short command's time would be the collector walking what was just imported, again and again and once
    more at the end: it comes a hundred times as seldom, and leaves alone what the process's end frees anyway.
    """
    gc.set_threshold(100_000, 50, 100)
    code = run(arguments)
    gc.freeze()
    sys.exit(code)


def run(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code; an error becomes one line on stderr."""
    try:
        result: Any = muniment.main(args=arguments, prog_name="muniment", standalone_mode=False)
    except click.exceptions.Abort:
        return _say("stopped", 2)
    except click.exceptions.NoArgsIsHelpError as error:
        # Asked for nothing: what there is to ask for, as `--help` shows it.
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _say(_mistake(error), 2)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001 - the last place that can still explain
        return _say(*_explained(error))
    return result if isinstance(result, int) else 0


def _mistake(error: click.ClickException) -> str:
    """What was typed wrong, and where the right form stands, in one line."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "muniment"
    said = " ".join(error.format_message().split()).rstrip(".")
    return f"{said}: {path} --help shows how"


def _explained(error: Exception) -> tuple[str, int]:
    from api.commands.failures import explain

    return explain(error)


def _say(line: str, code: int) -> int:
    from api.commands.terminal import say

    say(f"muniment: {line}", err=True)
    return code


if __name__ == "__main__":
    main()

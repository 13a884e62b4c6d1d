"""What every command shares: its options, the client of the running server, and the services of a folder.

Guarantees: a command that talks to the server finds it by `--url` or by the data folder, and acts as the principal of
`--token`; it never opens the database beside a running server.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from api.commands.terminal import printable, say
from muniment.errors import BadAddress, BadToken, TransportError
from muniment.registry import Client

Command = TypeVar("Command", bound=Callable[..., Any])

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="MUNIMENT_DATA",
    default=Path(".muniment"),
    help="Data folder (MUNIMENT_DATA, else .muniment).",
)
ONE_TENANT = "Only this tenant; without, all of them."
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")

_ANSWER_S = 120.0
_NO_ANSWER = {
    "ConnectionRefusedError": "nothing listens there",
    "FileNotFoundError": "no such socket",
    "gaierror": "no such host",
    "TimeoutError": f"silent for {_ANSWER_S:.0f} s",
    "ConnectionResetError": "it broke the connection off",
    "RemoteDisconnected": "it broke the connection off",
}
"""The reasons of a TransportError in words."""
_UNPRINTED = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Controls and marks of direction that JSON may hold as they are; other controls it writes by number already."""
_UNSEEN = dict.fromkeys((0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF))
"""Soft hyphen, zero-width characters and byte order mark, which pages put between others for their line breaks."""


class Listed(click.Group):
    """A group whose help lists its commands in the order of the work, each with its whole sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list; long sentences are wrapped, never cut."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(limit=1000)) for name, one in self.commands.items()])


class CannotRun(Exception):
    """The command cannot do its work here; the message says what to do."""


def copied_key(_context: click.Context, _option: click.Parameter, given: str | tuple[str, ...] | None) -> Any:
    """A public key as it is written, from one that was copied off a page: no spaces, line breaks, unseen characters."""
    if isinstance(given, tuple):
        return tuple(copied_key(_context, _option, one) for one in given)
    return None if given is None else "".join(given.translate(_UNSEEN).split())


def local(tenant: str) -> Callable[[Command], Command]:
    """Adds the options of a command that reads the folder: `--data`, `--tenant` with this help, `--json`."""

    def added(command: Command) -> Command:
        return data_option(click.option("--tenant", default=None, help=tenant)(json_option(command)))

    return added


def remote(command: Command) -> Command:
    """Adds the options of a command that talks to the server: also `--url` and `--token`."""
    token = click.option("--token", envvar="MUNIMENT_TOKEN", default=None, help="Bearer token (MUNIMENT_TOKEN).")
    url = click.option("--url", envvar="MUNIMENT_URL", default=None, help="Address of the server (MUNIMENT_URL).")
    return local("The tenant; must be the token's.")(token(url(command)))


@contextmanager
def client_of(*, data: Path, url: str | None, token: str | None, tenant: str | None = None) -> Iterator[Client]:
    """Yields a client of the running server, and says where it was looked for when none answers.

    Raises: CannotRun, ServerNotRunning, FolderMissing, ApiProblem.
    """
    if not token:
        message = "no token: pass --token or set MUNIMENT_TOKEN (muniment init printed them)"
        raise CannotRun(message)
    address = url or _announced(data)
    with _explained(address), Client(address, token, timeout=_ANSWER_S) as client:
        if tenant is not None:
            mine = client.request("GET", "/v1/tokens/self")["tenant"]
            if mine != tenant:
                message = f"the token belongs to tenant {mine}, not {tenant}"
                raise CannotRun(message)
        yield client


@contextmanager
def _explained(address: str) -> Iterator[None]:
    """Says what to do about an address, a token or a server that cannot be used. Raises CannotRun for them."""
    try:
        yield
    except BadAddress as error:
        message = f"{error}: pass another with --url or set MUNIMENT_URL"
        raise CannotRun(message) from error
    except BadToken as error:
        message = f"{error}: pass it with --token or set MUNIMENT_TOKEN"
        raise CannotRun(message) from error
    except TransportError as error:
        # Without a name and password that somebody may have put before the host.
        place = re.sub(r"//[^/]*@", "//", address)
        why = _NO_ANSWER.get(error.reason, f"no answer that can be read, {error.reason}")
        message = f"no server answers at {place} ({why}): start it with muniment serve, or name its address with --url"
        raise CannotRun(message) from error


def _announced(data: Path) -> str:
    from api.folder import FolderMissing, running_server  # noqa: PLC0415 - as above

    try:
        return running_server(data.expanduser().absolute()).url
    except FolderMissing as error:
        message = f"{error}; or say where the server is: --data of its folder, --url, or MUNIMENT_URL"
        raise CannotRun(message) from error


def show(value: Any, *, as_json: bool, lines: Sequence[str], exact: bool = False) -> None:
    """Prints one JSON document, or lines for a reader; `exact` ones, in which the record speaks, also on a terminal."""
    if as_json:
        click.echo(_UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False)))
        return
    for line in lines:
        if exact:
            click.echo(printable(line))
        else:
            say(line)


def progress(length: int, label: str) -> Any:
    """A progress bar on stderr; silent where stderr is no terminal."""
    # Left to itself it would still print its label, beside the one line that a script reads of an error.
    return click.progressbar(length=length, label=label, file=sys.stderr, show_pos=True, hidden=not sys.stderr.isatty())


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """Show on a terminal that work of unknown length goes on: its label and the seconds so far, once a second."""
    if not sys.stderr.isatty():
        yield
        return
    done, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        while True:
            sys.stderr.write(f"\r{label} {time.monotonic() - begun:.0f} s")
            sys.stderr.flush()
            if done.wait(1.0):
                return

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
        sys.stderr.write("\n")

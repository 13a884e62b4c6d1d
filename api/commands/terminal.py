"""How a line looks to a person: without control characters, and on a terminal in lines that fit it.

Guarantees: what goes into a file, a pipe or a program is the line as it is, controls aside. On a terminal a line breaks
between words only, and no command in it breaks, so that it can be copied; a time stamp is told to the second.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Container, Sequence

import click

_GLUE = "\0"
"""Stands for a space at which no line breaks; no text has it once `printable` looked at it."""
_KEPT_WHOLE = re.compile(
    r"(?P<command>\bmuniment [^,;)`\n]*)|(?P<day>\b\d{4}-\d\d-\d\d)T(?P<time>\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)"
)
_FIRST_COLUMN = re.compile(r"\S{1,10} {2,9}(?=\S)")
_NARROWEST = 40


def printable(text: str) -> str:
    """The text without control characters: what somebody said could move a terminal's cursor, or colour a lie."""
    return text if text.isprintable() else "".join(one if one.isprintable() or one in "\n\t" else "�" for one in text)


def say(line: str, *, err: bool = False) -> None:
    """Prints a line, on stderr where `err` is true."""
    line = printable(line)
    stream = sys.stderr if err else sys.stdout
    # None where a program was started with the stream closed; echo prints nothing then.
    if stream is not None and stream.isatty():
        line = fitted(line, shutil.get_terminal_size().columns)
    click.echo(line, err=err)


def width_of_stdout() -> int | None:
    """The columns of the terminal that stdout is; None where it is none, which takes lines of any length."""
    stream = sys.stdout
    if stream is None or not stream.isatty():
        return None
    return max(shutil.get_terminal_size().columns, _NARROWEST)


def columns(rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> list[str]:
    """The rows as lines, each cell as wide as the widest of its column; the columns in `right` end alike."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def fitted(text: str, width: int) -> str:
    """The text in lines of at most `width` columns where words and commands let it; all but the first are indented."""
    width = max(width, _NARROWEST)
    return "\n".join(part for line in text.split("\n") for part in _broken(_KEPT_WHOLE.sub(_whole, line), width))


def _whole(found: re.Match[str]) -> str:
    if found["command"]:
        return found["command"].replace(" ", _GLUE)
    return f"{found['day']}{_GLUE}{found['time']}{_GLUE}UTC"


def _broken(line: str, width: int) -> list[str]:
    first = _FIRST_COLUMN.match(line)
    indent = " " * (first.end() if first else len(line) - len(line.lstrip(" ")) + 4)
    parts = textwrap.wrap(
        line,
        width,
        subsequent_indent=indent,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace(_GLUE, " ") for part in parts] or [""]

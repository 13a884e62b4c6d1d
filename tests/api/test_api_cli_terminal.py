"""How lines look on a terminal and everywhere else."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from api.commands.holds import release_lines
from api.commands.inventory import class_lines
from api.commands.options import show
from api.commands.terminal import fitted

REQUEST = "req_" + "0" * 32


class Terminal(io.StringIO):
    """What a terminal takes."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("short  as  it is", "short  as  it is"),
        ("", ""),
        ("a proven fault of the record is named here", "a proven fault of the record is named\n    here"),
        ("  - indented as a point of a list, and long", "  - indented as a point of a list, and\n      long"),
        ("fine     keys: closed to others; back them up", "fine     keys: closed to others; back\n         them up"),
        ("two\nlines of which the second one is too long", "two\nlines of which the second one is too\n    long"),
        ("due 2026-12-30T23:59:59.999999Z", "due 2026-12-30 23:59:59 UTC"),
        ("it is due on 2026-12-30T23:59:59+00:00, then", "it is due on 2026-12-30 23:59:59 UTC,\n    then"),
        ("at 2026-12-30T23:59:59+01:00", "at 2026-12-30T23:59:59+01:00"),
        ("a" * 50, "a" * 50),
    ],
)
def test_a_line_fits_a_terminal(line: str, shown: str) -> None:
    assert fitted(line, 40) == shown


def test_a_command_is_never_broken_nor_changed() -> None:
    commands = [f"muniment report {REQUEST} -o certificate.pdf", "muniment retention run --at 2026-12-30T23:59:59.5Z"]
    assert fitted(f"next: {', '.join(commands)}", 60) == f"next:\n    {commands[0]},\n    {commands[1]}"


def test_a_terminal_narrower_than_any_gets_lines_that_can_be_read() -> None:
    assert (
        fitted("as many words as go into forty columns, no fewer", 0).split("\n")[0]
        == "as many words as go into forty columns,"
    )


def test_only_a_terminal_gets_lines_that_are_not_as_they_were_told(monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"request {REQUEST}: waits since 2026-12-30T23:59:59.999999Z"
    monkeypatch.setenv("COLUMNS", "60")
    for out, exact, told in (
        (io.StringIO(), False, f"{line}\n"),
        (Terminal(), True, f"{line}\n"),
        (Terminal(), False, f"request {REQUEST}: waits since\n    2026-12-30 23:59:59 UTC\n"),
    ):
        monkeypatch.setattr(sys, "stdout", out)
        show({}, as_json=False, lines=[line], exact=exact)
        assert out.getvalue() == told


@pytest.mark.parametrize(
    ("items", "keys", "entries", "told"),
    [
        (1, 0, 0, "kept: 1 copy; due"),
        (2, 1, 3, "kept: 2 copies, 1 whole key of the record, 3 parts with keys of their own; due"),
        (0, 0, 0, "kept: no copy, no whole key of the record and no part with a key of its own; due"),
    ],
)
def test_a_release_says_what_was_kept_in_words_that_agree(items: int, keys: int, entries: int, told: str) -> None:
    found = {"items": items, "keys": keys, "entries": entries, "due": 1, "requests": []}
    [line] = release_lines(found)
    assert line == f"  {told} then, with what was made from them: 1"


def class_of(name: str, gaps: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "name": name, "owner": "team-support", "state": "conversation", "live": 1_234, "keep": "P90D",
        "scope": {"subject_types": ["email", "user"], "personal": True}, "update_authority": "append-only",
        "replay": "exact", "gaps": list(gaps), "counts": dict.fromkeys(gaps, 3),
    }  # fmt: skip


def test_an_inventory_fits_a_terminal_and_a_pipe_gets_a_line_for_each_class() -> None:
    # It had 97 columns wherever it went.
    found = [class_of("conversation"), class_of("note", ("no_owner",))]
    whole = class_lines(found, None)
    assert [len(whole), whole] == [3, class_lines(found, 200)]
    assert all("append-only" in line and "email, user" in line for line in whole[1:])
    assert whole[0].split() == ["CLASS", "OWNER", "STATE", "LIVE", "KEEP", "SCOPE", "UPDATE", "REPLAY", "GAPS"]
    fitting = class_lines(found, 80)
    assert max(map(len, fitting)) <= 80
    assert len(fitting) == 1 + 2 * len(found)
    told = " ".join(fitting)
    assert all(word in told for word in ("no_owner (3)", "append-only", "exact", "email, user", "1234", "P90D"))

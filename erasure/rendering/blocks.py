"""The few shapes every paper is made of, so that HTML, PDF and text show the same words. Pure.

A paper is a mapping with a head and `sections`; a section has a title and blocks; a block is one of: `text`, `note`,
`fields`, `table`, `code`, `items`. All leaves are texts. Templates lay them out and add no facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, overload
from zoneinfo import ZoneInfo

PROVEN = "proven"
STATED = "stated"
Block = dict[str, Any]
Line = Mapping[str, Any]
_MONTHS = {
    "en": ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December"),
    "de": ("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober",
           "November", "Dezember"),
}  # fmt: skip


def text(*paragraphs: str) -> Block:
    """Paragraphs."""
    return {"type": "text", "paragraphs": list(paragraphs)}


def note(*paragraphs: str) -> Block:
    """Paragraphs in small type."""
    return {"type": "note", "paragraphs": list(paragraphs)}


def code(*lines: str) -> Block:
    """Lines to be typed or compared exactly."""
    return {"type": "code", "lines": list(lines)}


def items(*lines: str) -> Block:
    """A list."""
    return {"type": "items", "items": list(lines)}


def field(label: str, value: object, mark: str = "", *, exact: bool = False) -> dict[str, Any]:
    """One line of `fields`; `exact` is set in a fixed-width type, None is shown as a dash."""
    return {"label": label, "value": "–" if value in (None, "") else str(value), "mark": mark, "exact": exact}


def fields(*lines: Mapping[str, Any]) -> Block:
    """Label and value, line by line."""
    return {"type": "fields", "fields": [dict(line) for line in lines]}


def column(label: str, width: int, mark: str = "", *, exact: bool = False) -> dict[str, Any]:
    """A column with its share of the width."""
    return {"label": label, "width": width, "mark": mark, "exact": exact}


class Rows(Sequence[list[str]]):
    """The rows of a long table, each made of a line when somebody looks at it."""

    def __init__(self, lines: Sequence[Line], row_of: Callable[[Line], list[str]]) -> None:
        self._lines, self._row_of = lines, row_of

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, place: int) -> list[str]: ...

    @overload
    def __getitem__(self, place: slice) -> list[list[str]]: ...

    def __getitem__(self, place: int | slice) -> list[str] | list[list[str]]:
        if isinstance(place, slice):
            return [self._row_of(line) for line in self._lines[place]]
        return self._row_of(self._lines[place])

    def __iter__(self) -> Iterator[list[str]]:
        return map(self._row_of, self._lines)


def table(columns: Sequence[Mapping[str, Any]], rows: Sequence[Sequence[str]], *, dense: bool = False) -> Block:
    """Rows under columns; `dense` is for annexes of thousands of rows."""
    made = rows if isinstance(rows, Rows) else [list(row) for row in rows]
    return {"type": "table", "columns": [dict(one) for one in columns], "rows": made, "dense": dense}


def section(title: str, *blocks: Block, annex: bool = False) -> dict[str, Any]:
    """A titled part; an `annex` follows what is signed."""
    return {"title": title, "blocks": list(blocks), "annex": annex}


def day_text(day: date, lang: str = "en") -> str:
    """A date as people write it: `29 November 2026`, `29. November 2026`."""
    month = _MONTHS[lang][day.month - 1]
    return f"{day.day}. {month} {day.year}" if lang == "de" else f"{day.day} {month} {day.year}"


def local_day(at: datetime, timezone: str) -> date:
    """The day of an instant where the request's law counts days."""
    return at.astimezone(ZoneInfo(timezone)).date()


def moment_text(instant: str | None) -> str:
    """An instant of the record to the second, in UTC; a dash where there is none."""
    if instant is None:
        return "–"
    at = datetime.fromisoformat(instant)
    return f"{day_text(at.date())}, {at:%H:%M:%S} UTC"


def short_moment(instant: str | None) -> str:
    """The same for narrow columns."""
    return "–" if instant is None else f"{datetime.fromisoformat(instant):%Y-%m-%d %H:%M:%S}"


def until_text(value: str | None, *, lang: str = "en") -> str:
    """The end of a window: a date, or the word for an end that nobody declared."""
    if value is None or value == "unknown":
        return "unbekannt" if lang == "de" else "unknown"
    return day_text(datetime.fromisoformat(value).date(), lang)

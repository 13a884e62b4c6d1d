"""Typed reads of an untrusted declaration: every fault is collected with its JSON pointer, none stops the others.

Guarantees: fields that nobody read are refused, fields that are not built are refused by name, and no value of the
caller is repeated in a detail. Does not decide what a declaration means; that is `classes`, `stores`, `streams`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from registry.duration import Duration
from registry.errors import Fault, InvalidDeclaration, MalformedDuration, NotBuilt

NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/+-]{0,127}")
_TEXT_LIMIT = 4096
_UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and halves of characters that no encoding can write."""


class Faults:
    """What was found wrong so far with one declaration."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.invalid: list[Fault] = []
        self.not_built: list[Fault] = []

    def add(self, pointer: str, detail: str) -> None:
        """Note a fault."""
        self.invalid.append(Fault(pointer=pointer, detail=detail))

    def add_not_built(self, pointer: str, detail: str) -> None:
        """Note something this version does not do."""
        self.not_built.append(Fault(pointer=pointer, detail=detail))

    def raise_any(self) -> None:
        """Pass when nothing was found. Raises: InvalidDeclaration; NotBuilt when only that is wrong."""
        if self.invalid:
            raise InvalidDeclaration(self.what, [*self.invalid, *self.not_built])
        if self.not_built:
            raise NotBuilt(self.what, self.not_built)


class Reader:
    """Reads the members of one JSON object; `done()` refuses those that nobody asked for."""

    def __init__(self, value: object, faults: Faults, pointer: str = "") -> None:
        self.faults = faults
        self.pointer = pointer
        self.fields: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
        self._read: set[str] = set()
        if not isinstance(value, Mapping):
            self.add("", "expected an object")

    def add(self, name: str, detail: str, number: int | None = None) -> None:
        """Note a fault at a member, at one of a list's by `number`, or at the object itself with an empty name."""
        self.faults.add(self.at(name) if number is None else f"{self.at(name)}/{number}", detail)

    def at(self, name: str) -> str:
        """The JSON pointer of a member. Source: RFC 6901 §3."""
        return f"{self.pointer}/{name.replace('~', '~0').replace('/', '~1')}" if name else self.pointer

    def raw(self, name: str) -> Any:
        """The member as it came, None where it is absent."""
        self._read.add(name)
        return self.fields.get(name)

    def not_built(self, name: str, why: str) -> None:
        """Refuse a member by name unless it is absent or null."""
        if self.raw(name) is not None:
            self.faults.add_not_built(self.at(name), why)

    def text(self, name: str, *, required: str = "", limit: int = _TEXT_LIMIT) -> str:
        """A text without control characters, empty where absent; `required` says why it must be there."""
        value = self.raw(name)
        if value is None or (isinstance(value, str) and not value.strip()):
            if required:
                self.add(name, f"missing: {required}")
            return ""
        if not isinstance(value, str) or len(value) > limit or _UNFIT.search(value):
            self.add(name, f"expected a text of at most {limit} characters without control characters")
            return ""
        return value

    def code(self, name: str, *, pattern: re.Pattern[str] = CODE) -> str | None:
        """A short code, None where absent."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, str) or not pattern.fullmatch(value):
            self.add(name, f"expected a code matching {pattern.pattern}")
            return None
        return value

    def flag(self, name: str, *, default: bool | None = None, required: str = "") -> bool:
        """A boolean."""
        value = self.raw(name)
        if value is None:
            if default is None:
                self.add(name, f"missing: {required}")
            return bool(default)
        if not isinstance(value, bool):
            self.add(name, "expected true or false")
            return bool(default)
        return value

    def choice(self, name: str, choices: Collection[str], *, default: str | None = None, required: str = "") -> str:
        """One of the listed words."""
        value = self.raw(name)
        if value is None:
            if default is None and required:
                self.add(name, f"missing: {required} (one of {', '.join(choices)})")
            return default or ""
        if not isinstance(value, str) or value not in choices:
            self.add(name, f"expected one of {', '.join(choices)}")
            return default or ""
        return value

    def duration(self, name: str, *, required: str = "") -> Duration | None:
        """An ISO 8601 duration, None where absent."""
        value = self.raw(name)
        if value is None:
            if required:
                self.add(name, f"missing: {required}")
            return None
        try:
            return Duration.parse(value if isinstance(value, str) else "")
        except MalformedDuration as error:
            self.add(name, error.detail)
            return None

    def share(self, name: str, *, required: str = "") -> float | None:
        """A number from 0 to 1, None where absent."""
        value = self.raw(name)
        if value is None:
            if required:
                self.add(name, f"missing: {required}")
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            self.add(name, "expected a number from 0 to 1")
            return None
        return float(value)

    def codes(self, name: str, *, pattern: re.Pattern[str] = CODE) -> tuple[str, ...]:
        """A list of distinct codes, empty where absent."""
        value = self.raw(name)
        if value is None:
            return ()
        if not is_list(value) or not all(isinstance(item, str) and pattern.fullmatch(item) for item in value):
            self.add(name, f"expected a list of codes matching {pattern.pattern}")
            return ()
        return tuple(dict.fromkeys(value))

    def instant(self, name: str) -> datetime | None:
        """An RFC 3339 instant with a zone, in UTC; None where absent."""
        value = self.raw(name)
        if value is None:
            return None
        parsed = parse_instant(value)
        if parsed is None:
            self.add(name, "expected an RFC 3339 time with a zone")
        return parsed

    def inner(self, name: str) -> Reader | None:
        """A reader of a nested object, None where it is absent or null."""
        value = self.raw(name)
        return None if value is None else Reader(value, self.faults, self.at(name))

    def done(self) -> None:
        """Refuse every member that was not read."""
        if self.fields.keys() <= self._read:
            return
        for name in self.fields:
            if name not in self._read:
                shown = name if NAME.fullmatch(str(name)) else "?"
                self.faults.add(self.at(shown), "unknown field; unknown fields are refused so that no rule is ignored")


def is_list(value: object) -> bool:
    """Whether a JSON value is a list."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)
"""A time as the contract takes it: with a zone. Source: RFC 3339 §5.6, without the space that its note lets in."""
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def parse_instant(value: object) -> datetime | None:
    """The aware UTC instant of an RFC 3339 text or an aware datetime, from 1970 to 2999; None for anything else."""
    try:
        if isinstance(value, str) and RFC3339.fullmatch(value) is not None:
            value = datetime.fromisoformat(value.upper())
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        parsed = value.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return parsed if _FIRST <= parsed <= _LAST else None

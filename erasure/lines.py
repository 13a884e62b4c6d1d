"""Lines of a plan, as values and, by the hundred thousand, as columns.

Guarantees: `Lines` gives back what it was given, in the order of a plan and numbered from one. What lines have in
common is held once: a line costs about 45 bytes, and its name where that does not follow from its number; one that says
something of its own, such as a path, costs that too. Not here: what is planned.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, overload

from erasure.collateral import WHOM, view_of
from erasure.facts import Packed, follows
from registry.ids import artifact_name
from retention.decide import Because


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCopy:
    """One line. `ref` is its opaque public id; `state` is where execution starts from."""

    copy_no: int
    kind: str
    ref: str
    artifact_id: int | None = None
    key_id: str | None = None
    entry_idx: int | None = None
    data_class: str
    store: str
    action: str
    rule: str
    because: tuple[Because, ...]
    until: datetime | None
    path: tuple[str, ...]
    collateral: Mapping[str, int] | None
    depth: int
    required: str
    state: str
    detail: str | None = None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NEVER = -(1 << 63)


class Lines(Sequence[PlanCopy]):
    """Lines that nothing changes any more, in the order of a plan; each is made anew when it is looked at."""

    def __init__(self, lines: Iterable[PlanCopy], rank: Callable[[PlanCopy], Any]) -> None:
        """Take lines in. `rank` tells what stands before what, of lines of one rank the smaller name."""
        self._alike: list[PlanCopy] = []
        self._kinds, self._names = array("I"), Packed()
        self._artifacts, self._untils, self._whom = array("q"), array("q"), array("q")
        self._keys: dict[int, tuple[str | None, int | None]] = {}
        self._paths: dict[int, tuple[str, ...]] = {}
        known: dict[tuple[Any, ...], int] = {}
        paths: dict[tuple[str, ...], tuple[str, ...]] = {}
        for place, line in enumerate(lines):
            kind = known.setdefault(_in_common(line), len(self._alike))
            if kind == len(self._alike):
                bare = replace(line, copy_no=0, ref="", artifact_id=None, key_id=None, entry_idx=None, path=())
                self._alike.append(replace(bare, until=None, collateral=view_of(line.collateral)))
            self._kinds.append(kind)
            self._artifacts.append(_NEVER if line.artifact_id is None else line.artifact_id)
            self._untils.append(_NEVER if line.until is None else (line.until - _EPOCH) // _MICROSECOND)
            # Every circle of others is one of its own.
            self._whom.append((line.collateral or {}).get(WHOM, _NEVER))
            self._names.append("" if line.artifact_id is not None and follows(line.ref, line.artifact_id) else line.ref)
            if line.key_id is not None or line.entry_idx is not None:
                self._keys[place] = line.key_id, line.entry_idx
            if line.path:
                self._paths[place] = paths.setdefault(line.path, line.path)
        self._order = self._ordered([rank(one) for one in self._alike])

    def _ordered(self, ranks: Sequence[Any]) -> array[int]:
        places: dict[Any, array[int]] = {}
        for place, kind in enumerate(self._kinds):
            places.setdefault(ranks[kind], array("I")).append(place)
        found = array("I")
        for rank in sorted(places):
            # Bytes of UTF-8 stand in the order of their characters.
            found.extend(sorted(places[rank], key=lambda place: self._ref(place).encode()))
        return found

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, number: int) -> PlanCopy: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[PlanCopy, ...]: ...

    def __getitem__(self, number: int | slice) -> PlanCopy | tuple[PlanCopy, ...]:
        if isinstance(number, slice):
            return tuple(map(self._line, range(*number.indices(len(self)))))
        return self._line(range(len(self))[number])

    def __iter__(self) -> Iterator[PlanCopy]:
        return map(self._line, range(len(self)))

    def _ref(self, place: int) -> str:
        return self._names[place] or artifact_name(self._artifacts[place])

    def _line(self, number: int) -> PlanCopy:
        place = self._order[number]
        alike = self._alike[self._kinds[place]]
        artifact, until, whom = self._artifacts[place], self._untils[place], self._whom[place]
        key_id, entry_idx = self._keys.get(place, (None, None))
        return PlanCopy(
            copy_no=number + 1,
            kind=alike.kind,
            ref=self._ref(place),
            artifact_id=None if artifact == _NEVER else artifact,
            key_id=key_id,
            entry_idx=entry_idx,
            data_class=alike.data_class,
            store=alike.store,
            action=alike.action,
            rule=alike.rule,
            because=alike.because,
            until=None if until == _NEVER else _EPOCH + timedelta(microseconds=until),
            path=self._paths.get(place, ()),
            collateral=alike.collateral if whom == _NEVER else {**(alike.collateral or {}), WHOM: whom},
            depth=alike.depth,
            required=alike.required,
            state=alike.state,
            detail=alike.detail,
        )


def _in_common(line: PlanCopy) -> tuple[Any, ...]:
    """Everything of a line that a column of its own does not hold."""
    counts = view_of(line.collateral)
    collateral = None if counts is None else tuple(sorted(counts.items()))
    return (
        line.kind, line.data_class, line.store, line.action, line.rule, line.because, collateral, line.depth,
        line.required, line.state, line.detail,
    )  # fmt: skip


def line_of(copy: PlanCopy) -> dict[str, Any]:
    """A line as the contract shows it: what is hashed is what can be read. Source: API §6."""
    return {
        "copy": copy.copy_no,
        copy.kind: copy.ref,
        "data_class": copy.data_class,
        "store": copy.store,
        "action": copy.action,
        "rule": copy.rule,
        "because": [reason._asdict() for reason in copy.because],
        "until": None if copy.until is None else instant_text(copy.until),
        "path": list(copy.path),
        "collateral": view_of(copy.collateral),
        "required": copy.required,
    }


def instant_text(at: datetime) -> str:
    """UTC with microseconds and `Z`. Source: API §0."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"

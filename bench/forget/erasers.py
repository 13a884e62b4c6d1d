"""What an eraser is to the benchmark, and those that need nothing: two controls and the stores' own deletes.

An adapter for another product implements `Eraser` in a module of its own and is named by
`--eraser package.module:Class`. It gets the places as `places.Place` describes them. In the greenfield track it is
handed the records as they were written; in the brownfield track only each place's `scanned` addresses and the
identifier of the person.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from bench.forget.bed import Person
from bench.forget.places import Place

Track = Literal["greenfield", "brownfield"]
Level = Literal["L1", "L2", "L3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What an eraser says of one place, after it is done.

    `level` as the product's documents define them: L1 absent by the store's interface, L2 absent from its own files, L3
    absent from logs and copies too. An eraser that says "erased" without a level is taken at its word: L2.
    `residual_until` is the date by which it says the rest is gone. `joint` is what it says of a text that names two.
    """

    outcome: Literal["erased", "waiting", "not_covered", "failed"]
    level: Level | None = None
    residual_until: str | None = None
    joint: str = "nothing said"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What an eraser keeps for itself: the folders of its state and record, and whether its own check of them passes.

    `sound` and `notices` are None where nobody checked: its check of the record after the erasure, and of a copy of it
    in which one byte of each kind of object was changed in turn. `missed` are the kinds in which it was not noticed.
    """

    folders: tuple[Path, ...]
    sound: bool | None = None
    notices: bool | None = None
    missed: tuple[str, ...] = ()
    note: str = ""


class Eraser(Protocol):
    """One way to forget a person."""

    name: str

    def erase(self, places: Sequence[Place], person: Person, track: Track, work: Path) -> Mapping[str, Claim]:
        """Erases the person everywhere it can and says what it did, by place. `work` is a folder for its own state."""
        ...

    def record(self) -> Kept | None:
        """What it keeps, once it is done; None where it keeps nothing."""
        ...


class Nothing:
    """A control: does nothing and says so."""

    name = "nothing"

    def erase(self, places: Sequence[Place], person: Person, track: Track, work: Path) -> Mapping[str, Claim]:
        """Leaves everything."""
        return {place.name: Claim(outcome="not_covered") for place in places}

    def record(self) -> Kept | None:
        """Nothing is kept."""
        return None


class Lying:
    """A control: does nothing and says that everything is gone."""

    name = "lying"

    def erase(self, places: Sequence[Place], person: Person, track: Track, work: Path) -> Mapping[str, Claim]:
        """Leaves everything."""
        return {place.name: Claim(outcome="erased", level="L3") for place in places}

    def record(self) -> Kept | None:
        """Nothing is kept."""
        return None


class Native:
    """The baseline: each store's documented delete of everything that is the person's alone, claimed as L1."""

    name = "native"

    def erase(self, places: Sequence[Place], person: Person, track: Track, work: Path) -> Mapping[str, Claim]:
        """Deletes by each store's own interface; it knows nothing of joint texts."""
        found = {}
        for place in places:
            place.native_delete([record for record in place.records if record.people == (person.id,)])
            found[place.name] = Claim(outcome="erased", level="L1")
        return found

    def record(self) -> Kept | None:
        """Stores keep no record of what they deleted."""
        return None


def by_name(name: str) -> Eraser:
    """The eraser of that name, or of `module:Class`."""
    if name == "muniment":
        from bench.forget.ours import Muniment

        return Muniment()
    if ":" in name:
        module, _, attribute = name.partition(":")
        made: Eraser = getattr(importlib.import_module(module), attribute)()
        return made
    simple: dict[str, Eraser] = {"nothing": Nothing(), "native": Native(), "lying": Lying()}
    if name not in simple:
        message = f"no eraser {name!r}: muniment, native, nothing, lying, or module:Class"
        raise LookupError(message)
    return simple[name]

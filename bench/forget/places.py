"""What a place of the bed is: it is filled, read through its own interface, deleted from as its documents say.

Guarantees of every place: `fill` leaves no handle open on files; `read` asks the store's own interface and nothing
else; `native_delete` is what most teams run today. A place decides nothing about scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.forget.bed import Person, Record, Role, canary_in

OWNER = "user_id"
"""Under this name every store says whose a thing is."""


class Unavailable(Exception):
    """A place cannot be made here; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """One store of a place as an eraser is told about it: a kind and how to reach it."""

    name: str
    kind: str
    config: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Ground:
    """What places stand on: a folder of this run and servers that are started on demand."""

    folder: Path
    seed: int
    postgres: Callable[[str], str]
    """Makes a database of that name and returns its address for libpq."""
    redis: Callable[[], tuple[str, Path]]
    """Returns the address of an empty server with AOF, and the folder of its files."""
    notes: list[str] = field(default_factory=list)


class Place(ABC):
    """One of the ten."""

    name: str
    title: str
    texts = 2

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.folder = ground.folder / self.name
        self.folder.mkdir(parents=True)
        self.records: list[Record] = []
        self.stores: list[Store] = []
        self.scanned: list[str] = []
        """Addresses that a look without registration is given."""
        self.note = ""

    @abstractmethod
    def fill(self, everybody: Sequence[Person]) -> None:
        """Writes everything of these people and keeps a record of each thing."""

    @abstractmethod
    def read(self) -> dict[str, str]:
        """What the store's own interface still gives out, by the record's name."""

    @abstractmethod
    def native_delete(self, records: Sequence[Record]) -> None:
        """Deletes these as the store's documents say."""

    def question(self) -> dict[str, Any]:
        """Where the oracle has to look."""
        return {"files": [str(self.folder)]}

    def close(self) -> None:  # noqa: B027 - most places have nothing to give up
        """Gives up what is open."""

    def add(
        self, role: Role, name: str, owners: Sequence[Person], text: str, where: Mapping[str, Any], **more: Any
    ) -> None:
        """Keeps a record of one thing that was written; `store` says where if there is more than one."""
        self.records.append(
            Record(
                place=self.name,
                store=more.pop("store", self.name),
                name=name,
                role=role,
                people=tuple(person.id for person in owners),
                where=where,
                canaries=(canary_in(text),) if role != "identity" else (),
                **more,
            )
        )


def parts_of(person: Person) -> list[tuple[Role, str, str, str | None]]:
    """Role, name, text and origin of everything that is written of a person, for stores of flat records."""
    found: list[tuple[Role, str, str, str | None]] = []
    for said in person.said:
        found += [
            ("text", said.name, said.text, None),
            ("summary", f"{said.name}-summary", said.summary, said.name),
            ("cache", f"{said.name}-cache", said.cache, said.name),
        ]
    return found

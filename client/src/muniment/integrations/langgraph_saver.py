"""What the governed savers share: whose thread a run is, and the folder in which its files lie."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from muniment.context import current_scope
from muniment.errors import ThreadUnnamed
from muniment.thread_folder import ThreadFolder
from muniment.thread_register import Registering, ThreadRegister, Told

_HALF = re.compile("[\ud800-\udfff]")

SubjectFrom = str | Callable[[Any], str | None]
"""A path in the run's config, such as `configurable.user_id`, or what returns a subject of a config, or None."""


class Whose:
    """Finds whose thread a run's config is."""

    def __init__(self, subject_from: SubjectFrom) -> None:
        if not subject_from:
            raise ValueError("subject_from is a path such as configurable.user_id, or a function of the config")
        self._from = subject_from
        self.where = subject_from if isinstance(subject_from, str) else "subject_from"
        self.member = self.where.rpartition(".")[2]

    def of(self, config: Any) -> tuple[str, ...]:
        """Return who is named; nobody where nobody is."""
        found: Any = config
        if callable(self._from):
            found = self._from(config)
        else:
            for name in self._from.split("."):
                found = found.get(name) if isinstance(found, Mapping) else None
        named = () if found is None or found == "" else (str(found),)
        return named or tuple(current_scope().subjects)


class GovernedSaver(BaseCheckpointSaver[Any]):
    """What `govern` returns."""

    def __init__(self, folder: ThreadFolder, whose: Whose, *, serde: Any = None) -> None:
        super().__init__(serde=serde)
        self._folder = folder
        self._whose = whose
        self._register: ThreadRegister | None = None

    @property
    def register(self) -> ThreadRegister | None:
        """What tells the service of threads, where `govern` was given `register`: its `stats()` and `flush()`."""
        return self._register

    def begin_registering(self, settings: Registering) -> None:
        """Tell the service of every thread that is here, and of each that begins. Raises: BadAddress, BadToken."""
        self._register = ThreadRegister(self._folder, self.end, settings, self.read_told)

    @property
    @abstractmethod
    def end(self) -> str:
        """Return how the file ends that each thread has."""

    @abstractmethod
    def read_told(self, path: Path) -> Told | None:
        """Return which thread a file is and whom it names; None where it is gone or nobody is named in it yet.

        Raises: GovernError, OSError where it cannot be read.
        """

    def _notice(self, config: Any) -> None:
        if self._register is not None:
            self._register.notice(thread_of(config), self._whose.of(config))


def thread_of(config: Any) -> str:
    """Return the thread of a run's config, as savers write it. Raises: ThreadUnnamed."""
    name = str(config["configurable"]["thread_id"])
    # No store can be asked to erase such a thread: databases cut names at a zero, and end at half a character.
    if not name or "\0" in name or _HALF.search(name):
        raise ThreadUnnamed
    return name

"""Drivers that take a second to import, imported by the test that uses them: every worker collects every test."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Lazily:
    """Stands for a module until something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):
            raise AttributeError(name)  # the collection asks every object whether it is a test
        return getattr(import_module(self._name), name)

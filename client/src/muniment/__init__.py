"""Muniment's SDK: record what agents say and do, govern what they remember.

Importing it is cheap: msgspec and the standard library; what is not needed to record is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muniment.context import current_scope, subject
from muniment.errors import ApiProblem, MunimentError, ProofError
from muniment.recorder import FlushResult, Recorder, RecorderStats

if TYPE_CHECKING:
    from muniment.importers import read_entries
    from muniment.proof import ProofResult, verify_proof
    from muniment.registry import Client, derive

_LATER = {
    "Client": "registry",
    "ProofResult": "proof",
    "derive": "registry",
    "read_entries": "importers",
    "verify_proof": "proof",
}

__all__ = [
    "ApiProblem",
    "Client",
    "FlushResult",
    "MunimentError",
    "ProofError",
    "ProofResult",
    "Recorder",
    "RecorderStats",
    "current_scope",
    "derive",
    "read_entries",
    "subject",
    "verify_proof",
]


def __getattr__(name: str) -> Any:
    module = _LATER.get(name)
    if module is None:
        message = f"module 'muniment' has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module

    return getattr(import_module(f"muniment.{module}"), name)

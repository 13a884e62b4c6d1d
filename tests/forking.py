"""A fork of the test's own process."""

from __future__ import annotations

import os
import warnings


def fork() -> int:
    """Return what `os.fork` does, whatever libraries other tests have loaded."""
    with warnings.catch_warnings():
        # It says so at every fork; no child here uses it.
        warnings.filterwarnings("ignore", message="lance is not fork-safe")
        return os.fork()

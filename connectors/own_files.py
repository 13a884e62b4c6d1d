"""Which files lie below a store's folder.

Guarantees: every file, or an error. A folder that may not be listed is never passed over, because what is in it would
count as not there. Links to files are named, links to folders are not followed.
"""

from __future__ import annotations

import os
from pathlib import Path

from connectors.errors import StoreUnreachable, WrongCredentials


def files_below(kind: str, folder: Path) -> list[Path]:
    """Return every file below a folder, in order. Raises: WrongCredentials, StoreUnreachable."""

    def refused(problem: OSError) -> None:
        if not isinstance(problem, FileNotFoundError):
            raise problem

    try:
        walked = os.walk(folder, onerror=refused)
        return sorted(path for base, _, names in walked for path in map(Path(base).joinpath, names) if path.is_file())
    except PermissionError:
        raise WrongCredentials(kind, "a folder of it may not be read") from None
    except OSError:
        raise StoreUnreachable(kind, "a folder of it cannot be read") from None

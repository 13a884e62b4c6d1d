"""From an error to one line and an exit code; imports nothing of ours, so that it works whatever failed."""

from __future__ import annotations

import os
import traceback

_CODES: dict[str, int] = {
    "api.folder.FolderMissing": 2,
    "api.folder.FolderLocked": 2,
    "api.folder.NotAFolder": 2,
    "api.folder.ServerNotRunning": 2,
    "api.settings.SettingRefused": 2,
    "api.commands.rebuilding.Refused": 1,
    "api.wiring.StoreRefused": 2,
    "api.migrate.NewerSchema": 2,
    "api.migrate.OlderSchema": 2,
    "api.migrate.UnknownSchema": 2,
    "api.database.DatabaseUnavailable": 2,
    "api.commands.options.CannotRun": 2,
    "muniment.errors.ApiProblem": 1,
    "muniment.errors.MunimentError": 2,
    "registry.errors.RegistryError": 1,
    "retention.errors.RetentionError": 1,
    "erasure.errors.ErasureError": 1,
    "ledger.errors.LedgerError": 2,
    "vault.errors.VaultError": 2,
    "builtins.OSError": 2,
}
"""Qualified class → exit code, matched along the error's bases, nearest first."""


def explain(error: BaseException) -> tuple[str, int]:
    """Returns what to print and the code to exit with; an unknown error names its class and place, never its text."""
    for base in type(error).__mro__:
        name = f"{base.__module__}.{base.__qualname__}"
        if name in _CODES:
            return _line(error, name), _CODES[name]
        cause = type(getattr(error, "orig", error))
        if (cause.__module__, cause.__name__) == ("sqlite3", "DatabaseError"):
            # Its other errors are of classes below this one: here the file itself is bad.
            return "the database file is no database or is damaged: bring a copy back, or run muniment rebuild", 2
        if name.startswith("sqlalchemy.exc."):
            return "the database does not answer or refuses the connection; check DATABASE_URL", 2
    if os.environ.get("MUNIMENT_LOG_LEVEL") == "debug":
        traceback.print_exception(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"a fault of the program: {type(error).__name__} at {place.name}:{place.lineno} (please report it)", 2


def _line(error: BaseException, name: str) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    if name != "muniment.errors.ApiProblem":
        return " ".join(str(error).split())
    title, detail = getattr(error, "title", ""), getattr(error, "detail", "")
    lines = [f"refused ({getattr(error, 'status', '')}): {title}: {detail}".rstrip(": ")]
    found = [f"{item.get('pointer', '')}: {item.get('detail', '')}" for item in getattr(error, "errors", None) or []]
    return "\n  ".join(lines + [one for one in found if one not in lines[0]])

"""The errors of the SDK.

`Recorder.record` never raises any of them: what goes wrong there is counted and logged once a kind. They are
for the calls a program makes on purpose (opening a spool, asking the server, checking a proof, importing).
No message holds a body, a subject, a token or a key.
"""

from __future__ import annotations

from typing import Any


class MunimentError(Exception):
    """The base of every error of the SDK."""


class SpoolError(MunimentError):
    """The base of the spool's errors."""


class SpoolLocked(SpoolError):
    """Another recorder, in this or another process, holds the spool folder."""

    def __init__(self, folder: str) -> None:
        """Name the folder that is held."""
        super().__init__(f"spool folder {folder} is held by another recorder; give each process its own folder")
        self.folder = folder


class SpoolFull(SpoolError):
    """The record was dropped and counted, because there was no room for it."""

    def __init__(self, reason: str) -> None:
        """Name why there was no room: `bound`, `disk`, `busy` or `too_large`."""
        super().__init__(f"record dropped and counted: {reason}")
        self.reason = reason


class SpoolClosed(SpoolError):
    """The spool was closed, or belongs to the process this one was forked from."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("spool is closed")


class BadRecord(MunimentError):
    """What was handed to `record` cannot become an entry."""

    def __init__(self, fault: str) -> None:
        """Name the fault by a code, such as `no_stream`."""
        super().__init__(fault)
        self.fault = fault


class BadAddress(MunimentError, ValueError):
    """The server's address cannot be one; nothing was sent."""

    def __init__(self) -> None:
        """Say what an address looks like. What was given is not repeated: it may hold a password."""
        super().__init__("the server's address must be http://host[:port], https://host[:port] or unix:/path")


class BadToken(MunimentError, ValueError):
    """The token holds what no token holds, such as a line break; nothing was sent."""

    def __init__(self) -> None:
        """Say so, without the token."""
        super().__init__("the token holds a line break, a space or another sign that no token has; copy it again")


class TransportError(MunimentError):
    """No answer came back: refused, reset, timed out, or not HTTP."""

    def __init__(self, reason: str) -> None:
        """Name the kind of failure, which is the name of the exception below."""
        super().__init__(f"no answer from the server: {reason}")
        self.reason = reason


class ApiProblem(MunimentError):
    """The server refused: an RFC 9457 problem."""

    def __init__(
        self,
        *,
        status: int,
        type: str = "about:blank",  # noqa: A002 (RFC 9457 gives the word)
        title: str = "",
        detail: str = "",
        errors: list[dict[str, Any]] | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Keep the members of the problem as fields."""
        super().__init__(f"{status} {title or type}" + (f": {detail}" if detail else ""))
        self.status = status
        self.type = type
        self.title = title
        self.detail = detail
        self.errors = errors or []
        self.retry_after = retry_after


class ProofError(MunimentError):
    """A proof does not hold; `step` names the check that failed."""

    def __init__(self, step: str, detail: str) -> None:
        """Name the step and what differed."""
        super().__init__(f"{step}: {detail}")
        self.step = step
        self.detail = detail


class ImportFault(MunimentError):
    """A place of a file that cannot be imported; names file line and field, never a value."""

    def __init__(self, fault: str, *, line: int, path: str | None = None) -> None:
        """Name the fault, the line (or the element's number, from 1) and the dotted field, if one is at fault."""
        where = f"line {line}" + (f", field {path}" if path else "")
        super().__init__(f"{where}: {fault}")
        self.fault = fault
        self.line = line
        self.path = path


class UnsupportedShape(MunimentError):
    """The file is of a shape that no reader here knows."""

    def __init__(self, shape: str, advice: str) -> None:
        """Name the shape seen and what to do instead."""
        super().__init__(f"cannot import {shape}: {advice}")
        self.shape = shape
        self.advice = advice


class GovernError(MunimentError):
    """The base of what governed storage refuses; raised into the run that asked, so that it stops there."""


class ThreadErased(GovernError):
    """The thread was erased; nothing of it is read or written again."""

    def __init__(self) -> None:
        """Say so, without the thread's id."""
        super().__init__("the thread was erased; begin a new one under a new id")


class ThreadUnnamed(GovernError, ValueError):
    """A thread would begin under an id by which no store could be asked to erase it."""

    def __init__(self) -> None:
        """Say so, without the id."""
        super().__init__("a thread's id is a text of at least one character, without zeros and half characters")


class KeyMissing(GovernError):
    """What is sealed cannot be opened: its key is gone, damaged or not in this folder."""

    def __init__(self) -> None:
        """Say so, without a name."""
        super().__init__("the thread's key is gone or cannot be read; is this the folder that it was written with?")


class SealBroken(GovernError):
    """A stored value is not what was sealed: altered, moved from another place, or written past the seal."""

    def __init__(self) -> None:
        """Say so, without the value."""
        super().__init__("a stored value does not open under the thread's key; it was altered, moved or never sealed")


class SubjectMissing(GovernError):
    """A thread would begin that names nobody, and could not be found again when somebody asks for erasure."""

    def __init__(self, where: str, fault: str) -> None:
        """Name where a person was looked for and what is wrong there; never the person."""
        super().__init__(f"{fault} at {where}; give one there, or open `with subject(...)` around the run")
        self.where = where

"""The refusals of retention. Each names one fact and carries its fields; none holds a person's data.

`problem` is the name under which the HTTP edge documents a refusal; nothing here knows HTTP.
"""

from __future__ import annotations

from typing import ClassVar


class RetentionError(Exception):
    """Base of every error of this package."""

    problem: ClassVar[str] = "retention"
    hint: ClassVar[str] = ""


class UnknownTimezone(RetentionError):
    """No time zone has this name."""

    problem = "unknown-timezone"
    hint = "use a name of the IANA data base, such as Europe/Berlin"

    def __init__(self, name: str) -> None:
        super().__init__(f"time zone {name!r} is unknown")
        self.name = name


class UnknownJurisdiction(RetentionError):
    """No calendar of public holidays is known for this country or subdivision."""

    problem = "unknown-jurisdiction"
    hint = "use an ISO 3166 code such as DE, DE-BY or US-CA"

    def __init__(self, name: str) -> None:
        super().__init__(f"jurisdiction {name!r} has no known calendar of working days")
        self.name = name


class UnknownRegulation(RetentionError):
    """The deadlines of this regulation are not built."""

    problem = "unknown-regulation"
    hint = "built are gdpr and ccpa"

    def __init__(self, name: str) -> None:
        super().__init__(f"regulation {name!r} is not known")
        self.name = name


class NoSecondPeriod(RetentionError):
    """The regulation, or this request, has no further extension."""

    problem = "extension-too-late"

    def __init__(self, detail: str) -> None:
        super().__init__(f"no extension: {detail}")
        self.detail = detail

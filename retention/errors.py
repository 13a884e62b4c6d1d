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


class NotKnown(RetentionError):
    """No hold, run or disposition of that id exists in this tenant."""

    problem = "not-found"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"no {what} {name!r} in this tenant" if name else f"no such {what} in this tenant")
        self.what = what
        self.name = name


class NothingLeft(RetentionError):
    """No content of an entry opens any more, so that nothing is left to decide about; its header stays."""

    problem = "erased"
    hint = "its header stands in the record; what ended it is in the report of the run, or in the certificate"

    def __init__(self, entry: str) -> None:
        super().__init__(f"nothing of entry {entry} opens any more: there is nothing left to decide about")
        self.entry = entry


class NotOpen(RetentionError):
    """A run, hold or disposition is past the point where this can be done to it."""

    problem = "conflict"

    def __init__(self, what: str, name: str, state: str, wanted: str) -> None:
        super().__init__(f"{what} {name} is {state}: it cannot be {wanted}")
        self.what = what
        self.name = name
        self.state = state
        self.wanted = wanted


class SecondPersonNeeded(RetentionError):
    """Who started a run or placed a hold cannot approve or release it."""

    problem = "separate-duties"
    hint = "another principal with the role legal does this; APPROVAL=single lifts it for a team of one"

    def __init__(self, step: str, other: str) -> None:
        super().__init__(f"the principal of the {other} cannot {step}")
        self.step = step
        self.other = other


class EventNotListed(RetentionError):
    """A writer may report only events that start the clock of a class its token carries."""

    problem = "outside-token-scope"
    hint = 'a class lists it as retention.from "event:<name>"; legal and platform tokens may report any'

    def __init__(self, name: str) -> None:
        super().__init__(f"no class of this token waits for event {name!r}")
        self.name = name

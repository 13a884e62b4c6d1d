"""When an item ends by the rules of its class: the dates from which its end is counted, and the end they give.

Guarantees: pure. It is a hint for the sweep, stored with the item; `retention.decide` has the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import sqlalchemy as sa

from registry import bulk
from registry.declaration import DataClass
from registry.memories import faded_at

HeldClasses = Sequence[frozenset[str]]
"""The classes that each legal hold in force names, of holds that name any."""


def leaves_hold(held: HeldClasses, former: str, wanted: str) -> bool:
    """Whether a hold on the former class would lose an item that comes into the wanted one."""
    return any(former in names and wanted not in names for names in held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dates:
    """The instants from which an item's end is counted."""

    created: datetime
    observed: datetime | None = None
    last_activity: datetime | None = None
    expires: datetime | None = None
    confidence: float | None = None
    confirmed: datetime | None = None


class InMicroseconds(Protocol):
    """A row with an item's instants as the database has them."""

    @property
    def created_us(self) -> int: ...  # noqa: D102 - named as the columns
    @property
    def observed_us(self) -> int | None: ...  # noqa: D102
    @property
    def last_activity_us(self) -> int | None: ...  # noqa: D102
    @property
    def confirmed_us(self) -> int | None: ...  # noqa: D102
    @property
    def expires_us(self) -> int | None: ...  # noqa: D102


class Instants:
    """Those instants by the names that `Artifact` has for them; made when asked for, since a batch reads thousands."""

    __slots__ = ()

    @property
    def created_at(self: InMicroseconds) -> datetime:
        """When it was registered."""
        return bulk.moment(self.created_us)

    @property
    def observed_at(self: InMicroseconds) -> datetime | None:
        """When what it says was observed."""
        return bulk.moment(self.observed_us)

    @property
    def last_activity_at(self: InMicroseconds) -> datetime | None:
        """When something last happened to it."""
        return bulk.moment(self.last_activity_us)

    @property
    def confirmed_at(self: InMicroseconds) -> datetime | None:
        """When its person last said that it holds."""
        return bulk.moment(self.confirmed_us)

    @property
    def expires_at(self: InMicroseconds) -> datetime | None:
        """Its own end."""
        return bulk.moment(self.expires_us)


class Dated(Protocol):
    """What has the instants of an item."""

    @property
    def created_at(self) -> datetime: ...  # noqa: D102 - named as the columns
    @property
    def observed_at(self) -> datetime | None: ...  # noqa: D102
    @property
    def last_activity_at(self) -> datetime | None: ...  # noqa: D102
    @property
    def confirmed_at(self) -> datetime | None: ...  # noqa: D102
    @property
    def expires_at(self) -> datetime | None: ...  # noqa: D102
    @property
    def confidence(self) -> float | None: ...  # noqa: D102


def dates_of(row: Dated | sa.Row[Any]) -> Dates:
    """The dates of a registered item, whole or as a row with these columns."""
    return Dates(
        created=row.created_at,
        observed=row.observed_at,
        last_activity=row.last_activity_at,
        expires=row.expires_at,
        confidence=row.confidence,
        confirmed=row.confirmed_at,
    )


CONSENT = "consent"
"""The clock whose end a registration does not know: an item that comes into its class is dated by the next pass."""

EndsAt = Callable[[DataClass, Dates], datetime | None]


def default_ends_at(data_class: DataClass, dates: Dates) -> datetime | None:
    """When a class ends an item at the latest.

    A clock that waits for an event or a consent is counted to its cap; a memory that fades ends when it has faded.
    """
    start = {
        "created": dates.created,
        "observed": dates.observed or dates.created,
        "last_activity": dates.last_activity or dates.created,
    }.get(data_class.keep_from)
    ends = []
    if start is not None:
        ends.append(data_class.keep.add_to(start))
    if data_class.latest is not None:
        ends.append(data_class.latest.add_to(dates.created))
    if data_class.ceiling is not None:
        ends.append(data_class.ceiling.keep.add_to(dates.created))
    if dates.expires is not None:
        ends.append(dates.expires)
    if (faded := fades_at(data_class, dates)) is not None:
        ends.append(faded)
    return min(ends, default=None)


def fades_at(data_class: DataClass, dates: Dates) -> datetime | None:
    """When confidence falls below what its class expires at; None where it has none or does not decay so far."""
    decay = data_class.decay
    if decay is None or dates.confidence is None:
        return None
    since = max(at for at in (dates.observed or dates.created, dates.confirmed) if at is not None)
    return faded_at(dates.confidence, since, decay.half_life.upper_bound(), decay.expire_below)

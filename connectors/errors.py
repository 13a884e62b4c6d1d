"""The named refusals of connectors.

Guarantees: no message holds a connection string, a secret, a key value, a path or content. What a driver said is never
chained onto these errors, because drivers print row values and connection strings. Does not decide what a caller does
about a refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class ConnectorError(Exception):
    """A store could not be driven; every refusal of this package is one of these."""


class StoreUnreachable(ConnectorError):
    """Nothing answers where the store should be, or it broke off; trying again later may help."""

    def __init__(self, kind: str, detail: str = "no answer") -> None:
        super().__init__(f"{kind} store is unreachable: {detail}")
        self.kind = kind
        self.detail = detail


class WrongCredentials(ConnectorError):
    """The store answered and refused who we are or what we may do."""

    def __init__(self, kind: str, detail: str = "the store refused the credentials") -> None:
        super().__init__(f"{kind} store: {detail}")
        self.kind = kind
        self.detail = detail


class BadLocator(ConnectorError):
    """A locator does not name exactly one item of this store; `detail` names the part, never its value."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"locator refused: {detail}")
        self.detail = detail


class OutsideRoot(BadLocator):
    """A path leaves the folder that the store was registered with."""

    def __init__(self) -> None:
        super().__init__("the path leaves the root of the store")


class BadConfig(ConnectorError):
    """A store's configuration is incomplete or contradicts the store; `detail` names the setting."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"store configuration refused: {detail}")
        self.detail = detail


class OwnerMismatch(ConnectorError):
    """An item belongs to somebody else than the plan says; it was left untouched."""

    def __init__(self, copy_id: str) -> None:
        super().__init__(f"copy {copy_id} belongs to somebody else")
        self.copy_id = copy_id


class Timeout(ConnectorError):
    """A call reached its deadline; `seconds` is the limit it was given."""

    def __init__(self, operation: str, seconds: float) -> None:
        super().__init__(f"{operation} did not finish within {seconds:g} s")
        self.operation = operation
        self.seconds = seconds


class ReadOnlyConnector(ConnectorError):
    """A connector opened read-only was asked to change something."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} refused: the connector was opened read-only")
        self.operation = operation


class KindUnknown(ConnectorError):
    """No kind of store has this name; `known` are those that exist."""

    def __init__(self, kind: str, known: Iterable[str]) -> None:
        self.kind = kind
        self.known = tuple(sorted(known))
        super().__init__(f"unknown store kind {kind!r}, known are {', '.join(self.known)}")


class KindNotBuilt(ConnectorError):
    """The contract names this kind, and this version cannot drive it; `built` are those it can."""

    def __init__(self, kind: str, built: Iterable[str]) -> None:
        self.kind = kind
        self.built = tuple(sorted(built))
        super().__init__(f"store kind {kind!r} is not built in this version, built are {', '.join(self.built)}")


class ModeNotBuilt(KindNotBuilt):
    """A kind is built, and not in the way the configuration asks for; `setting` is what asks for it."""

    def __init__(self, kind: str, setting: str, instead: str) -> None:
        ConnectorError.__init__(
            self, f"store kind {kind!r} is not built with {setting!r} in this version; use {instead}"
        )
        self.kind = kind
        self.built = ("path",)
        self.setting = setting


class NotWalkable(ConnectorError):
    """A store of this kind cannot list its places, so nobody can look there for copies that came back."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"a store of kind {kind} cannot list every place it has")
        self.kind = kind


class DriverMissing(ConnectorError):
    """The optional driver of a kind is not installed; `extra` is what to install."""

    def __init__(self, kind: str, extra: str) -> None:
        super().__init__(f"store kind {kind!r} needs a driver that is not installed: install {extra}")
        self.kind = kind
        self.extra = extra

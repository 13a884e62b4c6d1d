"""Kind `agent`: a store embedded in an agent's process, which no other process may open.

Config: `{"kind"?: what it is there, "owner_field"?}`. Locators are those of the kind behind, checked for their shape by
`registry.locators` and for everything else in the agent's process.

Guarantees: this connector contacts nothing and claims nothing. Its verbs refuse with `RunsElsewhere`; work is handed
out as tasks (`erasure.tasks`), which the SDK claims (`muniment.tasks`), does with the kind's own connector in the
process that holds the store, and answers with receipts. What the answers say is marked as stated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from connectors.base import (
    Capabilities,
    CheckReport,
    Connector,
    FenceReport,
    Finding,
    Item,
    Level,
    Locator,
    Receipt,
    ReclaimReport,
    Residue,
    Selector,
)
from connectors.errors import BadConfig, BadLocator, ConnectorError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

AGENT = "agent"
BATCH = 500


class RunsElsewhere(ConnectorError):
    """The store lies in an agent's process; `verb` is done there, by a task."""

    def __init__(self, verb: str) -> None:
        super().__init__(f"{verb} is done in the agent's process, by a task that it claims")
        self.verb = verb


def open_store(config: Mapping[str, Any], *, read_only: bool) -> AgentConnector:
    """Return the connector of an embedded store. Raises: BadConfig."""
    if unknown := set(config) - {"kind", "owner_field"}:
        raise BadConfig(f"unknown setting {', '.join(sorted(unknown))}")
    return AgentConnector(has_owner=config.get("owner_field") is not None, read_only=read_only)


class AgentConnector(Connector):
    """Stands for a store that is reached by tasks alone."""

    def __init__(self, *, has_owner: bool, read_only: bool) -> None:
        self._has_owner = has_owner
        self._read_only = read_only

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind=AGENT,
            erase_level=Level.L1,
            reclaim_level=Level.L2,
            verify_level=Level.L2,
            batch_size=BATCH,
            locks="what the kind behind locks, in the agent's process",
            fence=False,
            search=False,
            owner_check=self._has_owner,
            discover=False,
            read_only=self._read_only,
        )

    @override
    def check_locator(self, locator: Locator) -> None:
        if not locator:
            raise BadLocator("a locator names one place")

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        raise RunsElsewhere("discover")

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        raise RunsElsewhere("capture")

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        raise RunsElsewhere("export")

    @override
    def fence(self, scope: Locator) -> FenceReport:
        return FenceReport(held=False, detail="the store lies in the agent's process; late copies are looked for")

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        self._refuse("erase")

    @override
    def await_done(self, *, deadline: float) -> bool:
        self._refuse("await_done")

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        self._refuse("reclaim")

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        self._refuse("verify")

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        self._refuse("residue")

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        return CheckReport(
            reachable=False,
            can_erase=False,
            level_reached=None,
            owner_check="not_configured",
            took_ms=0,
            findings=(str(RunsElsewhere("check")),),
            checked_at=now,
        )

    @override
    def close(self) -> None:
        """Nothing is held open."""

    @staticmethod
    def _refuse(verb: str) -> NoReturn:
        raise RunsElsewhere(verb)

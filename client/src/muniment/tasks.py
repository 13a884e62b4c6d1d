"""Work for stores that lie in this process: claims tasks, does them with the kind's own connector, answers.

For stores that only one process may open (Chroma, LanceDB, SQLite, mem0 embedded in an agent). The service hands out
what is to be erased there; this module erases it, frees the bytes and states what it did, and on a later task looks
again through a connector opened read-only.

    from connectors.base import open_connector

    def memories(read_only: bool):
        return open_connector("sql", {"url": "sqlite:////srv/agent/memory.db", "owner_field": "owner"}, secrets=str,
                              read_only=read_only)

    TaskRunner(Client(url, token), {"memories": memories}).run_once()

Guarantees: a task is answered only after its connector returned; one that breaks off stays claimed until its lease
ends and is handed out again, and connectors are idempotent. Answers hold outcomes, levels and the canaries that the
service seals; nothing is written to disk. Needs the package `muniment-server` beside this one, for the connectors.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from typing import Any
from urllib.parse import quote

from muniment.registry import Client

OpenStore = Callable[[bool], Any]
"""Opens a store's connector, read-only where asked. Source: `connectors.base.open_connector`."""


class ConnectorsMissing(ImportError):
    """The connectors are not installed in this process."""

    def __init__(self) -> None:
        super().__init__("tasks are done by the connectors of muniment-server; install it in the agent's environment")


class TaskRunner:
    """Does the tasks of some stores; use one a process, from one thread."""

    def __init__(self, client: Client, stores: Mapping[str, OpenStore], *, deadline: float = 120.0) -> None:
        """Take a client whose token carries the stores. Raises: ConnectorsMissing."""
        try:
            self._base: Any = import_module("connectors.base")
        except ModuleNotFoundError:
            raise ConnectorsMissing from None
        self._client = client
        self._stores = dict(stores)
        self._deadline = deadline

    def run_once(self, *, limit: int = 10, lease_s: int = 600) -> int:
        """Claim, do and answer what is open now; return how many tasks were answered.

        Raises: ApiProblem, TransportError, and what the connectors raise: such a task comes again after its lease.
        """
        body = {"stores": sorted(self._stores), "limit": limit, "lease_s": lease_s}
        tasks = self._client.request("POST", "/v1/connector-tasks:claim", body)["tasks"]
        for task in tasks:
            answer = self._erase(task) if task["work"] == "erase" else self._look(task)
            path = f"/v1/connector-tasks/{quote(task['id'], safe='')}"
            self._client.request("POST", path, {"claim": task["claim"], **answer})
        return len(tasks)

    def run(self, stop: Callable[[], bool], *, every: float = 30.0) -> None:
        """Do tasks until `stop` says so, asking again every so many seconds. Raises: as `run_once`."""
        while not stop():
            if not self.run_once():
                time.sleep(every)

    def _items(self, task: Mapping[str, Any]) -> list[Any]:
        return [
            self._base.Item(
                copy_id=str(item["copy"]),
                locator=item["locator"],
                canaries=tuple(b64decode(text) for text in item["canaries"]),
            )
            for item in task["items"]
        ]

    def _erase(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Capture, erase and reclaim; the answer to an erase."""
        items = self._items(task)
        now = datetime.now(UTC)
        with self._stores[task["store"]](False) as connector:
            held = connector.capture(items, deadline=self._deadline)
            receipts = connector.erase(items, owner_identifiers=task["owners"], now=now, deadline=self._deadline)
            report = None
            if task["level"] != "L1" and connector.await_done(deadline=self._deadline):
                report = connector.reclaim(self._base.Level(task["level"]), now=now, deadline=self._deadline)
        results = [
            {
                "copy": int(receipt.copy_id),
                "outcome": receipt.outcome.value,
                "level": None if receipt.level is None else receipt.level.value,
                "canaries": [b64encode(canary).decode() for canary in held.get(receipt.copy_id, ())[:64]],
            }
            for receipt in receipts
        ]
        return {"results": results} if report is None else {"results": results, "reclaim": _report(report)}

    def _look(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Look again, read-only; the answer to a second look."""
        items = self._items(task)
        reported = task["reclaimed"]
        report = None
        if reported is not None:
            report = self._base.ReclaimReport(
                level=self._base.Level(reported["level"]),
                residual_until=None,
                detail="",
                method="",
                evidence=reported["evidence"],
            )
        with self._stores[task["store"]](True) as connector:
            findings = connector.verify(
                items, self._base.Level(task["level"]), deadline=self._deadline, reclaimed=report
            )
        results = [
            {
                "copy": int(finding.copy_id),
                "level": None if finding.level is None else finding.level.value,
                "present": finding.present,
            }
            for finding in findings
        ]
        return {"results": results}


def _report(report: Any) -> dict[str, Any]:
    until = report.residual_until
    return {
        "level": report.level.value,
        "residual_until": until.isoformat() if isinstance(until, datetime) else until,
        "evidence": dict(report.evidence),
    }

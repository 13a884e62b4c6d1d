"""What the shapes of `govern` cost in a run, and what they spare in an erasure, beside LangGraph's plain SQLite saver.

Writes threads of some kilobytes a turn through a compiled graph, in turns:
  plain    one SQLite file of all threads, as upstream has it;
  files    `storage="one-file-a-thread"`;
  sealed   `storage="sealed"` over a plain saver of its own.
Prints milliseconds a turn, then the seconds that erasing a tenth of the threads, freeing their bytes and verifying at
L2 took, each with how much of it is freeing. Run: `python -m bench.governed [--threads N] [--turns N]`.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from connectors.base import Item, Level, Outcome, open_connector
from muniment.integrations.langgraph import govern

TEXT = "a remark of somebody, as people make them, some twelve words long; " * 30


class State(TypedDict):
    """A conversation."""

    messages: Annotated[list[AnyMessage], add_messages]


def _answer(state: State) -> dict[str, Any]:
    return {"messages": [AIMessage(content=f"noted, {len(state['messages'])}")]}


def _app(saver: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("answer", _answer)
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver)


def _erase(config: dict[str, Any], threads: list[str]) -> tuple[float, float]:
    """Seconds of all, and of freeing alone. Raises: RuntimeError where not everything was shown absent at L2."""
    items = [Item(copy_id=name, locator={"thread_id": name}) for name in threads]
    with open_connector("langgraph", config, secrets=str) as eraser:
        held = eraser.capture(items, deadline=600)
        items = [Item(copy_id=i.copy_id, locator=i.locator, canaries=tuple(held[i.copy_id])) for i in items]
        started = time.perf_counter()
        receipts = eraser.erase(items, owner_identifiers=["user:mia"], now=datetime.now(UTC), deadline=600)
        erased = time.perf_counter()
        report = eraser.reclaim(Level.L2, now=datetime.now(UTC), deadline=600)
        freed = time.perf_counter() - erased
    with open_connector("langgraph", config, secrets=str, read_only=True) as verifier:
        findings = verifier.verify(items, Level.L2, deadline=600, reclaimed=report)
    took = time.perf_counter() - started
    if {r.outcome for r in receipts} != {Outcome.ERASED} or {(f.level, f.present) for f in findings} != {
        (Level.L2, False)
    }:
        message = "not everything was erased and shown absent"
        raise RuntimeError(message)
    return took, freed


def main() -> int:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=300)
    parser.add_argument("--turns", type=int, default=6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muniment-bench-") as made:
        folder = Path(made)
        opened = [sqlite3.connect(folder / name, check_same_thread=False) for name in ("plain.db", "sealed.db")]
        savers = {
            "plain": SqliteSaver(opened[0]),
            "files": govern(storage="one-file-a-thread", folder=folder / "threads"),
            "sealed": govern(SqliteSaver(opened[1]), storage="sealed", folder=folder / "keys"),
        }
        configs = {
            "plain": {"url": f"sqlite:///{folder}/plain.db"},
            "files": {"folder": f"{folder}/threads"},
            "sealed": {"url": f"sqlite:///{folder}/sealed.db", "keys": f"{folder}/keys"},
        }
        apps = {name: _app(saver) for name, saver in savers.items()}
        took: dict[str, list[float]] = {name: [] for name in apps}
        names = [f"thread-{number}" for number in range(given.threads)]
        for number, thread in enumerate(names):
            config = {"configurable": {"thread_id": thread, "user_id": "mia" if number % 10 == 0 else "ben"}}
            for turn in range(given.turns):
                for name, app in apps.items():
                    started = time.perf_counter()
                    app.invoke({"messages": [HumanMessage(content=f"{thread} {turn} {TEXT}")]}, config)
                    took[name].append(time.perf_counter() - started)
        for connection in opened:
            connection.close()
        for name, place in configs.items():
            whole, freed = _erase({**place, "owner_field": "user_id"}, names[::10])
            print(
                f"{name:<7} {1e3 * statistics.median(took[name]):6.1f} ms a turn; {len(names[::10])} of {len(names)}"
                f" threads erased and verified at L2 in {whole:6.2f} s, freeing {freed:6.3f} s of it"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

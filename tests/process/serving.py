"""Processes of the service for tests that kill them: a start costs milliseconds, what they say goes to a file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tests import forked


class Child:
    """One process that runs a `muniment` command."""

    def __init__(self, command: forked.Command, out: Path) -> None:
        self._command = command
        self.pid = command.pid
        self.out = out

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, if it still runs."""
        self._command.send_signal(number)

    def wait(self, seconds: float = 120.0) -> None:
        """Return once it is gone."""
        end = time.monotonic() + seconds
        while self.alive:
            assert time.monotonic() < end, f"process {self.pid} did not end: {self.out.read_text()[-2000:]}"
            time.sleep(0.002)

    def wait_ready(self, seconds: float = 180.0) -> str | None:
        """Return the address once the server answers, None when the process ended first."""
        end = time.monotonic() + seconds
        while True:
            for line in self.out.read_text().splitlines() if self.out.exists() else ():
                if line.startswith("ready "):
                    return line.split()[1]
            if not self.alive:
                return None
            assert time.monotonic() < end, self.out.read_text()[-2000:]
            time.sleep(0.005)

    def close(self) -> None:
        """End it, if it still runs, and let go of it."""
        self.kill()
        self._command.wait()


class Nursery:
    """Starts children and ends them with itself."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = environment or {}
        self._children: list[Child] = []

    def run(self, arguments: Sequence[str], environment: dict[str, str] | None = None) -> Child:
        """Start `muniment ARGUMENTS`, with more in its environment if given."""
        out = self._folder / f"out-{len(self._children) + 1}"
        env = {**os.environ, **self._environment, **(environment or {})}
        said = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with Path(os.devnull).open("rb") as nothing:
            command = forked.Command(*arguments, stdin=nothing.fileno(), stdout=said, stderr=said, env=env)
        os.close(said)
        child = Child(command, out)
        self._children.append(child)
        return child

    def close(self) -> None:
        """End every child."""
        for child in self._children:
            child.close()

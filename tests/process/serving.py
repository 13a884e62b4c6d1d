"""Real processes of the service for tests that kill them: forked from one that has imported everything already.

A fork makes a start cost milliseconds instead of seconds; the child runs the command line like any other process. Run
as a program this file is that parent: it reads one JSON line for each child and answers with its process id.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG, <linux/prctl.h>


class Child:
    """One process that runs a `muniment` command."""

    def __init__(self, pid: int, out: Path) -> None:
        self.pid = pid
        self.out = out

    @property
    def alive(self) -> bool:
        """Whether it runs; the parent lets the kernel reap it."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float = 30.0) -> None:
        """Return once it is gone."""
        end = time.monotonic() + seconds
        while self.alive:
            assert time.monotonic() < end, f"process {self.pid} did not end: {self.out.read_text()[-2000:]}"
            time.sleep(0.002)

    def wait_ready(self, seconds: float = 60.0) -> str | None:
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


class Nursery:
    """The parent of all children; ends them with itself."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY}/client/src"} | (environment or {}),
        )

    def run(self, arguments: Sequence[str], environment: dict[str, str] | None = None) -> Child:
        """Start `muniment ARGUMENTS`, with more in its environment if given."""
        self._count += 1
        out = self._folder / f"out-{self._count}"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(out), list(arguments), environment or {}]) + "\n")
        self._process.stdin.flush()
        return Child(int(self._process.stdout.readline()), out)

    def close(self) -> None:
        """End the parent, and with it every child."""
        self._process.kill()
        self._process.communicate()


def _serve() -> None:
    from importlib import import_module

    from api.app import ROUTERS
    from api.cli import main

    for name in ("api.commands.serving", "api.administration", *(f"api.routes.{router}" for router in ROUTERS)):
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        out, arguments, environment = json.loads(line)
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.environ |= environment
            sys.argv = ["muniment", *arguments]
            try:
                main()
            finally:
                sys.stdout.flush()
        print(pid, flush=True)


if __name__ == "__main__":
    _serve()

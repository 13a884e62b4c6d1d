"""`muniment` commands as processes that start in milliseconds: forked from one that has imported everything already.

A fresh interpreter needs two seconds of processor for its imports alone, which says nothing new the hundredth time.
The child has its own environment, working directory and standard streams and runs the same `main` as the console
script. Tests of the start itself (imports, `--help`, what the README says to type) start fresh interpreters.

Run as a program this file is the parent of all: it listens at the path it is given and ends when its standard input
does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

REPOSITORY = Path(__file__).resolve().parents[1]
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG, <linux/prctl.h>
_STREAMS = 3
_parents: list[subprocess.Popen[bytes]] = []
_address: list[str] = []


class Command:
    """One running `muniment` command; as much of `subprocess.Popen` as tests use.

    `stdin`, `stdout` and `stderr` are file descriptors of this process, which may close them afterwards.
    """

    def __init__(
        self,
        *arguments: str,
        stdin: int,
        stdout: int,
        stderr: int,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link.connect(_listening())
        environment = dict(os.environ if env is None else env)
        asked = json.dumps([list(arguments), environment, str(cwd or Path.cwd())]).encode()
        socket.send_fds(self._link, [len(asked).to_bytes(4, "big")], [stdin, stdout, stderr])
        self._link.sendall(asked)
        self._answers = self._link.makefile("r")
        self.pid = int(self._answers.readline())

    def wait(self, timeout: float = 60.0) -> int:
        """Return the exit code, negative for a signal.

        Raises:
            TimeoutError: it still runs after `timeout` seconds.
        """
        if self.returncode is None:
            self._link.settimeout(timeout)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._link.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal; it may be gone already."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Piped(Command):
    """A running command whose standard output is read line by line; the other stream goes to `stderr`, else nowhere."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stderr: int | None = None,
    ) -> None:
        reading, writing = os.pipe()
        with Path(os.devnull).open("r+b") as nothing:
            dropped = nothing.fileno()
            saying = dropped if stderr is None else stderr
            super().__init__(*arguments, stdin=dropped, stdout=writing, stderr=saying, env=env, cwd=cwd)
        os.close(writing)
        self.stdout: IO[str] = os.fdopen(reading, encoding="utf-8")


def run(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run `muniment ARGUMENTS` to its end; returns its exit code and what it said.

    Raises:
        TimeoutError: it still runs after `timeout` seconds; it is killed.
    """
    with tempfile.TemporaryFile() as fed, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        fed.write((stdin or "").encode())
        fed.seek(0)
        command = Command(*arguments, stdin=fed.fileno(), stdout=out.fileno(), stderr=err.fileno(), env=env, cwd=cwd)
        try:
            code = command.wait(timeout)
        except TimeoutError:
            command.kill()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["muniment", *arguments], code, out.read().decode(), err.read().decode())


def _listening() -> str:
    """Return the address of this process's parent of commands; started at the first call."""
    if not _address:
        path = tempfile.mkdtemp(prefix="muniment-forked-") + "/socket"
        _parents.append(
            subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=REPOSITORY,
                env=os.environ | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY}/client/src"},
            )
        )
        atexit.register(_end, path)
        stream = _parents[0].stdout
        assert stream is not None
        assert stream.readline() == b"listening\n"
        _address.append(path)
    return _address[0]


def _end(path: str) -> None:
    _parents[0].communicate()
    Path(path).unlink(missing_ok=True)
    Path(path).parent.rmdir()


def _become(arguments: list[str], environment: dict[str, str], folder: str, streams: list[int]) -> NoReturn:
    """Be that command, from here to the end of the process."""
    from api.cli import main

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.environ.clear()
    os.environ |= environment
    tempfile.tempdir = None
    os.chdir(folder)
    sys.argv = ["muniment", *arguments]
    code: Any = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - as the interpreter does at its end
        traceback.print_exc()
        code = 1
    # As the interpreter ends, but for taking apart every module, which costs half a second and shows nothing.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _answer(link: socket.socket) -> None:
    """In a process of its own: start the command asked for, say its id, wait, say its exit code."""
    head, streams, _, _ = socket.recv_fds(link, 4, _STREAMS)
    asked = link.makefile("rb").read(int.from_bytes(head, "big"))
    arguments, environment, folder = json.loads(asked)
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        link.close()
        _become(arguments, environment, folder, streams)
    for stream in streams:
        os.close(stream)
    link.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    link.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _serve(path: str) -> None:
    from sqlalchemy.orm import configure_mappers

    from api.app import ROUTERS

    commands = importlib.import_module("api.commands")
    names = [f"api.commands.{module.name}" for module in pkgutil.iter_modules(commands.__path__)]
    for name in (*names, "api.administration", *(f"api.routes.{router}" for router in ROUTERS)):
        importlib.import_module(name)
    configure_mappers()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(64)
    print("listening", flush=True)
    import selectors

    with selectors.DefaultSelector() as waiting:
        waiting.register(sys.stdin.buffer, selectors.EVENT_READ)
        waiting.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not listener:
                    return
                link, _address = listener.accept()
                if os.fork() == 0:
                    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    waiting.close()
                    listener.close()
                    _answer(link)
                    os._exit(0)
                link.close()


if __name__ == "__main__":
    _serve(sys.argv[1])

"""A real Redis for tests and development: the machine's `redis-server`, or Debian's, installed where there is none.

`running(folder)` guarantees: a server of its own on a free loopback port with a random password, ready when the block
is entered, gone when it is left and when the process that entered it dies, however it dies. It keeps an append-only
file and dumps, both below `folder`, so that they can be searched. `restart` ends it with SIGKILL and starts it again.

Installing needs root, apt-get and Debian's mirror; elsewhere the error says what to install.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

LEASH = Path(__file__).with_name("leash.py")
START_SECONDS = 30.0
START_ATTEMPTS = 5
INSTALL_SECONDS = 300.0


class RedisUnavailable(Exception):
    """The server could not be installed or started; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisService:
    """Where the server is, and where its files lie."""

    url: str = field(repr=False)
    folder: Path
    restart: Callable[[], None] = field(repr=False)


def binary() -> Path:
    """Returns the `redis-server` of this machine; installs Debian's where there is none and we may.

    Raises:
        RedisUnavailable: it is missing and could not be installed.
    """
    found = shutil.which("redis-server")
    if found is None:
        _install()
        found = shutil.which("redis-server")
    if found is None:
        message = "redis-server is not installed; install Debian's package redis-server"
        raise RedisUnavailable(message)
    return Path(found)


def _install() -> None:
    """Installs Debian's package, one process at a time."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    with (Path(tempfile.gettempdir()) / "muniment-install-redis.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if shutil.which("redis-server") is not None:
            return
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for arguments in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", "redis-server"]):
            done = subprocess.run(
                ["apt-get", *arguments],
                env=quiet,
                capture_output=True,
                text=True,
                check=False,
                timeout=INSTALL_SECONDS,
            )
            if done.returncode != 0:
                message = f"redis-server could not be installed: {done.stderr.strip()[-400:]}"
                raise RedisUnavailable(message)


@contextlib.contextmanager
def running(folder: Path, *, settings: dict[str, str] | None = None) -> Iterator[RedisService]:
    """Runs a new server in `folder` and yields how to reach it; `settings` are those of redis.conf.

    Raises:
        RedisUnavailable: the server does not answer.
    """
    program = binary()
    data = folder / "redis"
    data.mkdir(parents=True)
    password = secrets.token_urlsafe(24)
    for _ in range(START_ATTEMPTS):
        port = _free_port()
        config = folder / "redis.conf"
        config.touch(mode=0o600)
        config.write_text(_config(data, port, password, settings or {}), encoding="ascii")
        held = [_start(program, folder, config)]

        def restart(held: "list[subprocess.Popen[bytes]]" = held, port: int = port, config: Path = config) -> None:
            _stop(held.pop())
            held.append(_start(program, folder, config))
            if not _wait_ready(held[0], port, password):
                message = "the server did not come back"
                raise RedisUnavailable(message)

        try:
            if _wait_ready(held[0], port, password):
                yield RedisService(url=f"redis://:{password}@127.0.0.1:{port}/0", folder=data, restart=restart)
                return
        finally:
            for process in held:
                _stop(process)
    message = f"the server did not answer within {START_ATTEMPTS} attempts"
    raise RedisUnavailable(message)


def _config(data: Path, port: int, password: str, settings: dict[str, str]) -> str:
    lines = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(data),
        "requirepass": password,
        "appendonly": "yes",
        "appendfsync": "everysec",
        "daemonize": "no",
        "databases": "4",
        **settings,
    }
    return "".join(f"{name} {value}\n" for name, value in lines.items())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(program: Path, folder: Path, config: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-I", "-S", str(LEASH), "--signal", str(int(signal.SIGKILL)), "--"]
    command += [str(program), str(config)]
    with (folder / "redis.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, cwd="/")


def _wait_ready(process: "subprocess.Popen[bytes]", port: int, password: str) -> bool:
    """Returns True when the server answers and has loaded its data, False when it ended."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as wire:
                wire.sendall(f"AUTH {password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2:  # noqa: PLR2004 (one line for each of the two commands)
                    if not (piece := wire.recv(4096)):
                        break
                    answer += piece
            if answer == b"+OK\r\n+PONG\r\n":
                return True
        except OSError:
            pass
        time.sleep(0.05)
    return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

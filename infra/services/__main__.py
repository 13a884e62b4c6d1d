"""`python -m infra.services up|down`: PostgreSQL and S3 for a developer, in the background of this checkout.

`up` prints shell lines to `eval`; a second `up` prints the same ones. `down` ends what `up` started, data included.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from infra.services import postgres, seaweedfs

STATE = Path(__file__).resolve().parents[2] / ".services"
ADDRESSES = STATE / "addresses.json"
START_SECONDS = 90.0


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _read() -> dict[str, str] | None:
    try:
        found: dict[str, str] = json.loads(ADDRESSES.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found if _alive(int(found["pid"])) else None


def keep_running() -> int:
    """Runs the services until SIGTERM; the addresses file appears when all answer."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    root = Path(tempfile.mkdtemp(prefix="muniment-services-"))
    root.chmod(0o755)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        stack.callback(ADDRESSES.unlink, missing_ok=True)
        addresses = {
            "pid": str(os.getpid()),
            "MUNIMENT_DATABASE_URL": stack.enter_context(postgres.running(root / "pg")),
        }
        service = stack.enter_context(seaweedfs.running(root / "s3"))
        addresses["MUNIMENT_S3_ENDPOINT_URL"] = service.endpoint
        addresses["AWS_ACCESS_KEY_ID"] = service.access_key
        addresses["AWS_SECRET_ACCESS_KEY"] = service.secret_key
        draft = ADDRESSES.with_suffix(".draft")
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(addresses), encoding="utf-8")
        draft.replace(ADDRESSES)
        while True:
            signal.pause()


def up() -> int:
    """Starts the services unless they run, waits until they answer and prints `export` lines."""
    STATE.mkdir(mode=0o700, exist_ok=True)
    if _read() is None:
        with (STATE / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "infra.services", "run"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=STATE.parent,
            )
        deadline = time.monotonic() + START_SECONDS
        while _read() is None:
            if process.poll() is not None or time.monotonic() > deadline:
                print(f"the services did not start, see {STATE / 'log'}", file=sys.stderr)
                return 2
            time.sleep(0.1)
    for name, value in (_read() or {}).items():
        if name != "pid":
            print(f"export {name}={value}")
    return 0


def down() -> int:
    """Stops what `up` started; nothing running is fine."""
    found = _read()
    if found is None:
        print("nothing is running")
        return 0
    pid = int(found["pid"])
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + START_SECONDS
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    return 2 if _alive(pid) else 0


def main(arguments: list[str]) -> int:
    """Runs the command that the arguments name and returns the exit code."""
    commands = {"up": up, "down": down, "run": keep_running}
    if len(arguments) != 1 or arguments[0] not in commands:
        print("usage: python -m infra.services up|down", file=sys.stderr)
        return 2
    return commands[arguments[0]]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A process that never outlives its owner.

Runs one command and ends it when its own standard input closes, which the kernel does when the owner dies for whatever
reason, `kill -9` included. Started by path with nothing but the standard library, so that it costs a few milliseconds:

    python -I -S leash.py --signal 3 --user 65534 -- postgres -D folder

With `--remove FOLDER` it also removes what the command left, once the owner is gone. It does not restart anything, and
it does not end processes that the command moved into another session.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading

GRACE_SECONDS = 10.0


def end_group(process: "subprocess.Popen[bytes]", polite: int) -> None:
    """Ends the command's process group: politely first, by force after the grace."""
    if process.poll() is not None:
        return
    process.send_signal(polite)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def wait_for_owner() -> None:
    """Returns when the owner closed our standard input or died."""
    while os.read(0, 4096):
        pass


def main() -> int:
    """Runs the command on the leash and returns its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--signal", type=int, default=int(signal.SIGTERM))
    parser.add_argument("--user", type=int, default=None)
    parser.add_argument("--remove", default=None)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    # A Ctrl-C in the owner's terminal reaches the owner, who then closes our input: ending twice would race.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    demotion: dict[str, object] = {}
    if arguments.user is not None:
        demotion = {"user": arguments.user, "group": arguments.user, "extra_groups": []}
    process = subprocess.Popen(
        arguments.command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        **demotion,  # type: ignore[call-overload]  # the three keywords have different types
    )
    signal.signal(signal.SIGTERM, lambda *_: end_group(process, arguments.signal))

    orphaned = threading.Event()

    def follow() -> None:
        wait_for_owner()
        orphaned.set()
        end_group(process, arguments.signal)

    threading.Thread(target=follow, daemon=True).start()
    code = int(process.wait())
    if arguments.remove is not None and orphaned.is_set():
        shutil.rmtree(arguments.remove, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())

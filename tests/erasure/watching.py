"""The most memory of its own that a process had, seen from outside: `python watching.py PID`, ended by a line on stdin.

Prints bytes. Looked at every two milliseconds by another process, because a call into C lets no thread of its own run.
Source: proc(5), /proc/pid/status, RssAnon.
"""

from __future__ import annotations

import select
import sys


def anonymous(pid: str) -> int:
    """Bytes of a process's memory that lie in no file, and so cannot be taken back while it lives."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:  # noqa: PTH123 - as little as possible is imported
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:")) * 1024


def watch(pid: str) -> int:
    """The most there was until a line came."""
    peak = anonymous(pid)
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        peak = max(peak, anonymous(pid))
    return max(peak, anonymous(pid))


if __name__ == "__main__":
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    sys.stdout.write(f"{watch(sys.argv[1])}\n")

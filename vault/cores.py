"""A process that can open keys leaves no image of its memory behind.

Guarantees, on Linux: no core file is written and none is piped to a handler, whatever the limits were before, and no
other process of the same user may read its memory; a process started from it is asked again when it opens keys itself.
Elsewhere only the limit is set. Does not hold against root, swap, or a snapshot of a virtual machine.

Source: core(5) (a piped handler is not bound by RLIMIT_CORE), PR_SET_DUMPABLE(2const).
"""

import ctypes
import resource
import sys
from functools import cache

_PR_SET_DUMPABLE = 4  # <linux/prctl.h>


@cache
def forbid_cores() -> None:
    """Do it, once a process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)

from __future__ import annotations

import socket
import threading
import time

from connectors.watch import cut_after


def test_a_peer_that_says_nothing_is_cut_off_at_the_limit_and_its_neighbour_is_not() -> None:
    mine, theirs = socket.socketpair()
    other, others = socket.socketpair()
    with mine, theirs, other, others:
        started = time.monotonic()
        with cut_after(other.fileno(), 30), cut_after(mine.fileno(), 0.05):
            assert mine.recv(1) == b""
        assert 0.04 < time.monotonic() - started < 5
        others.sendall(b"x")
        assert other.recv(1) == b"x"


def test_a_block_that_ends_in_time_keeps_its_connection() -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        with cut_after(mine.fileno(), 0.02):
            pass
        with cut_after(mine.fileno(), 30):
            time.sleep(0.05)  # the first limit passes meanwhile
        theirs.sendall(b"x")
        assert mine.recv(1) == b"x"


def test_a_shorter_limit_that_comes_later_is_kept_too_and_all_share_one_thread() -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs, cut_after(theirs.fileno(), 30):
        before = threading.active_count()
        with cut_after(mine.fileno(), 0.02):
            assert mine.recv(1) == b""
        assert threading.active_count() == before

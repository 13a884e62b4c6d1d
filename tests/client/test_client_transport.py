"""Answers that a dying server cut short are no answers."""

from __future__ import annotations

import socket
import threading

import pytest

from muniment.errors import TransportError
from muniment.transport import Transport


@pytest.mark.parametrize("sent", [b"", b'{"res'])
def test_an_answer_that_was_cut_short_is_a_lost_answer(sent: bytes) -> None:
    """A server killed in the middle of a response: what came must not be read as all of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def die() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n" + sent)

        thread = threading.Thread(target=die)
        thread.start()
        transport = Transport(f"http://127.0.0.1:{server.getsockname()[1]}", None, timeout_seconds=5)
        with pytest.raises(TransportError):
            transport.request("GET", "/")
        thread.join()
        transport.close()

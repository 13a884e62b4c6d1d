"""Tests cannot leave the machine, and loopback still works."""

import socket
import threading

import httpx
import pytest


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("2001:db8::1", 80), ("example.org", 443)])
def test_a_connection_to_the_outside_is_refused_before_it_starts(address: tuple[str, int]) -> None:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as outward, pytest.raises(OSError, match="a test tried to connect"):
        outward.connect(address)


def test_an_outer_name_does_not_resolve() -> None:
    with pytest.raises(socket.gaierror, match="tests resolve no outer names"):
        socket.getaddrinfo("example.org", 443)


def test_an_http_client_cannot_leave() -> None:
    with pytest.raises(httpx.ConnectError):
        httpx.get("http://example.org/", timeout=2)


def test_loopback_passes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            server.accept()[0].close()

        answer = threading.Thread(target=accept)
        answer.start()
        with socket.create_connection(("localhost", server.getsockname()[1]), timeout=5) as client:
            assert client.recv(1) == b""
        answer.join(5)
    assert not answer.is_alive()

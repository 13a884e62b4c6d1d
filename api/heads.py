"""What the head of a request may be: at most 64 KiB, and there within 20 seconds.

Guarantees: a longer or slower head is ended before it fills the memory or holds a connection, whoever sends it; what
follows the head is `api.limits`' business. The server's own parser has no such bounds.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 20.0
_BETWEEN = 4
"""The signs between a field's name and its value, and after it. Source: RFC 9112 §5."""


class HeadTooLarge(Exception):
    """The head has more bytes than are read; the parser makes a 400 of it."""


class BoundedHeads(HttpToolsProtocol):
    """One connection."""

    seconds = HEAD_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the class above has it
        """Begins to wait for the first head."""
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing any more."""
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses, and ends what is still in its head after more than a head's bytes."""
        self._unread += len(data)
        super().data_received(data)
        if self._timer is not None and self._unread > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request's head is too large.")

    def on_message_begin(self) -> None:
        """Begins to wait for the rest of a head."""
        super().on_message_begin()
        self._expect()

    def on_url(self, url: bytes) -> None:
        """Takes a piece of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes one field."""
        self._count(len(name) + len(value) + _BETWEEN)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hands the request on."""
        self._arrived()
        super().on_headers_complete()

    def _expect(self) -> None:
        self._arrived()
        self._head = self._unread = 0
        self._timer = self.loop.call_later(self.seconds, self.transport.close)

    def _arrived(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > MAX_HEAD_BYTES:
            raise HeadTooLarge

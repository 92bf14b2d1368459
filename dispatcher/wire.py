"""The HTTP/1.1 wire with limits: what uvicorn's parser would gather, or wait for, without end.

Nothing here looks at a credential: it bounds what strangers can make a process hold. What leans on
uvicorn's inside is in this module: ``pipeline``, ``parser``, ``transport``, ``loop``,
``send_400_response``, ``cycle``, ``shutdown``, and the parser's callbacks.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers, or trailers, beyond the read that they begin in (256 KiB at most)."""

MAX_PIPELINED = 32
"""Requests sent ahead of the answers; the parser would queue them without end."""

HEAD_S = 30.0
"""How long a connection may take until a request's headers are complete, the first byte included.
Between requests uvicorn's own keep-alive limit counts."""


FRESH_S = 1.0
"""How long a connection that has sent nothing yet may still do so when the process goes: it was
accepted, so whoever made it believes that somebody listens."""


class Corked:
    """A transport that sends together what is written in one turn of the loop.

    One system call for an answer's head and body, and one wake-up of whoever reads it.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._written: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        """Do everything else as the transport does, once what was written before is sent."""
        self._send()
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Tell whether the transport is closing."""
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send with whatever else is written now."""
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def _send(self) -> None:
        written, self._written = self._written, []
        if written and not self._transport.is_closing():
            self._transport.writelines(written)


class Bounded(HttpToolsProtocol):
    """Uvicorn's protocol, refusing heads without end, endless pipelines and slow headers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Begin to wait for the first request."""
        super().connection_made(cast("asyncio.Transport", Corked(transport, self.loop)))
        self._unseen = 0
        self._progress = False
        self._leaving = False
        self._patience: asyncio.TimerHandle | None = None
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse a read; count what the parser keeps to itself."""
        self._progress = False
        super().data_received(data)
        self._unseen = 0 if self._progress else self._unseen + len(data)
        if self._unseen > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request's head is too large.")

    def on_message_begin(self) -> None:
        """Note that a head begins; raise, which ends the connection, when too many wait."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise OverflowError("too many pipelined requests")
        super().on_message_begin()
        self._progress = True
        self._await_head()

    def on_headers_complete(self) -> None:
        """Note that a head is there."""
        super().on_headers_complete()
        self._progress = True
        self._head_came()
        if self._leaving:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Take a part of a body: those are counted, and held back, by who reads them."""
        super().on_body(body)
        self._progress = True

    def shutdown(self) -> None:
        """Close when nothing is under way; a connection nobody has asked on yet a little later."""
        if self.cycle is not None or self._leaving or self.transport.is_closing():
            super().shutdown()
            return
        self._leaving = True
        self.loop.call_later(FRESH_S, self._unused)

    def _unused(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()

    def _await_head(self) -> None:
        self._head_came()
        self._patience = self.loop.call_later(HEAD_S, self._too_slow)

    def _head_came(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _too_slow(self) -> None:
        self._patience = None
        if not self.transport.is_closing():
            self.transport.close()

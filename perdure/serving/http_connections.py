"""Ends HTTP connections whose client owes something for too long: a head, a body, or the reading of an answer.

uvicorn bounds the pause between two requests, and nothing else.
https://github.com/Kludex/uvicorn/blob/main/uvicorn/protocols/http/h11_impl.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

__all__ = ["ConnectionLimits", "timed_protocol"]

_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

_READ_AT_ONCE = 48_000
"""Bytes whose reading counts as progress: what uvicorn's transports let go before an application may write on."""


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits on how long a client may take."""

    head: timedelta = timedelta(seconds=10)
    """From the connection's begin, or a further request's first byte, to the end of its head. Default: 10 s."""
    body: timedelta = timedelta(seconds=20)
    """Between two pieces of a body, and for all of it beside what `rate` gives. Default: 20 s."""
    rate: int = 10_000
    """Bytes a second for which a body gets a further second. Default: 10 kB."""
    reading: timedelta = timedelta(seconds=60)
    """For reading some 48 kB of an answer, or the rest of it. Default: 60 s."""
    lingering: timedelta = timedelta(seconds=2)
    """For the rest of a body whose request is answered already, so that the answer is not lost. Default: 2 s."""
    lingering_bytes: int = 1_000_000
    """What that rest may have. Default: 1 MB."""
    every: timedelta = timedelta(seconds=1)
    """How often it is looked whether a client is late. Default: 1 s."""


class _TimedProtocol(H11Protocol):
    """uvicorn's connection, with limits for what the client owes."""

    limits = ConnectionLimits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._timer: asyncio.TimerHandle | None = None
        self._head_since: float | None = None
        self._body_of: object = None
        """The request whose body comes in."""
        self._body_due = self._piece_due = 0.0
        self._linger_until = 0.0
        self._lingered = 0
        self._unread = 0
        """Bytes of answers that were not read, when some last were."""
        self._unread_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_since = self._unread_since = self.loop.time()
        self._rearm()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        now = self.loop.time()
        if self.conn.their_state is h11.IDLE:
            self._head_since = self._head_since or now
        elif self._is_left_over():
            self._lingered += len(data)
            if self._lingered > self.limits.lingering_bytes:
                self._end()
        elif self.conn.their_state is h11.SEND_BODY:
            self._expect_body(now)
            self._piece_due = now + self.limits.body.total_seconds()
            self._body_due += len(data) / self.limits.rate
        if self.conn.their_state is not h11.IDLE:
            self._head_since = None

    def on_response_complete(self) -> None:
        self._lingered = 0
        self._linger_until = self.loop.time() + self.limits.lingering.total_seconds()
        super().on_response_complete()

    def resume_writing(self) -> None:
        self._unread_since = self.loop.time()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        # Behind an answer, or in the midst of one, no other can be sent; nor one of the application's behind this.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        self._end()

    def _rearm(self) -> None:
        self._timer = self.loop.call_later(self.limits.every.total_seconds(), self._look)

    def _look(self) -> None:
        now = self.loop.time()
        if self._reads_too_slowly(now):
            self.transport.abort()
        elif self._is_late(now):
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self.transport.write(_TIMEOUT)
            self._end()
        else:
            self._rearm()

    def _reads_too_slowly(self, now: float) -> bool:
        unread = self.transport.get_write_buffer_size()
        if unread == 0 or unread <= self._unread - _READ_AT_ONCE or self._unread == 0:
            self._unread, self._unread_since = unread, now
            return False
        self._unread = max(self._unread, unread)
        return now - self._unread_since > self.limits.reading.total_seconds()

    def _is_late(self, now: float) -> bool:
        if self._is_left_over():
            return now > self._linger_until
        if self.conn.their_state is h11.SEND_BODY:
            self._expect_body(now)
            if self.flow.read_paused:
                # It is the application that does not read.
                self._body_due += self.limits.every.total_seconds()
                self._piece_due = now + self.limits.body.total_seconds()
            return now > min(self._body_due, self._piece_due)
        return self._head_since is not None and now - self._head_since > self.limits.head.total_seconds()

    def _is_left_over(self) -> bool:
        """Return whether what comes is of a request that is answered already."""
        return self.conn.their_state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)

    def _expect_body(self, now: float) -> None:
        if self._body_of is not self.cycle:
            self._body_of = self.cycle
            self._body_due = self._piece_due = now + self.limits.body.total_seconds()

    def _end(self) -> None:
        if cast("Any", self.cycle) is not None:
            self.cycle.disconnected = True
        # A connection with something left to write would be closed when all of that is read, which may be never.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()


def timed_protocol(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with limits, for `uvicorn.Config(http=…)`."""

    class TimedProtocol(_TimedProtocol):
        pass

    TimedProtocol.limits = limits
    return TimedProtocol

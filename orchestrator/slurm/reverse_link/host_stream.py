"""The TLS stream of one host that connects back. All streams of a listener are served by its event loop: none has a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from ...node.hostlink.tls_stream import limit_unacknowledged

#: Bytes that are decrypted at once, and that an unread stream may hold before its peer has to wait.
_BLOCK = 1 << 16


class HostStream(asyncio.Protocol):
    """The server's end. The event loop calls the methods of ``asyncio.Protocol``; any thread may call the others.

    What arrives before ``deliver_to`` is kept for ``receive_line``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext) -> None:
        self._loop = loop
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_handshaken = False
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._arrival: asyncio.Future[None] | None = None
        self._receive: Callable[[bytes], None] | None = None
        self._report_end: Callable[[str], None] | None = None
        self._end_reason = "the peer closed the connection"
        self.is_ended = False

    async def next_line(self, limit: int) -> bytes:
        """The next line without its newline, in the event loop. Raises EOFError, or ValueError for more than ``limit`` bytes."""
        while (end := self._unread.find(b"\n")) < 0:
            if len(self._unread) > limit:
                raise ValueError(f"more than {limit} bytes without a newline")
            if self.is_ended:
                raise EOFError(self._end_reason)
            self._arrival = self._loop.create_future()
            await self._arrival
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line

    def receive_line(self, limit: int, deadline_s: float) -> bytes:
        """The same for another thread. Raises TimeoutError too."""
        line = self.next_line(limit)
        try:
            future = asyncio.run_coroutine_threadsafe(line, self._loop)
        except RuntimeError as error:
            line.close()
            raise EOFError("the listener is closed") from error
        try:
            return future.result(deadline_s)
        finally:
            future.cancel()

    def deliver_to(self, receive: Callable[[bytes], None], report_end: Callable[[str], None]) -> None:
        """Let the loop call ``receive`` with what arrives from now on, and ``report_end`` once with the reason of the end."""
        self._call(self._deliver_to, receive, report_end)

    def sendall(self, data: bytes, /) -> None:
        """Send all bytes later, in the order of the calls; returns at once. Raises ConnectionError after the end."""
        if self.is_ended:
            raise ConnectionError(self._end_reason)
        self._call(self.write, data)

    def close(self) -> None:
        """End both directions at once."""
        self.is_ended = True
        self._call(self.abort)

    def write(self, data: bytes) -> None:
        """Send bytes, in the event loop: in blocks, as the memory of a BIO never shrinks."""
        rest = memoryview(data)
        while rest and self._transport and not self._transport.is_closing():
            rest = rest[self._tls.write(rest[:_BLOCK]) :]
            self._flush()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        limit_unacknowledged(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        try:
            self._decrypt()
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, OSError) as error:
            self._fail(str(error))
        self._flush()
        self._wake()
        if self._receive is None and self._transport and len(self._unread) > _BLOCK:
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._end_reason = str(error) if error else self._end_reason
        self.is_ended = True
        self._wake()
        if self._report_end:
            self._report_end(self._end_reason)

    def _decrypt(self) -> None:
        """Raises SSLWantReadError at the end of what has arrived."""
        if not self._is_handshaken:
            self._tls.do_handshake()
            self._is_handshaken = True
        while data := self._tls.read(_BLOCK):
            if self._receive:
                self._receive(data)
            else:
                self._unread += data
        self._fail(self._end_reason)

    def _deliver_to(self, receive: Callable[[bytes], None], report_end: Callable[[str], None]) -> None:
        self._receive, self._report_end = receive, report_end
        unread, self._unread = bytes(self._unread), bytearray()
        if unread:
            receive(unread)
        if self._transport is None or self._transport.is_closing():
            report_end(self._end_reason)
        else:
            self._transport.resume_reading()

    def abort(self) -> None:
        """End both directions, in the event loop."""
        self.is_ended = True
        if self._transport:
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        self._end_reason = reason
        self.abort()

    def _flush(self) -> None:
        if self._transport and (data := self._outgoing.read()):
            self._transport.write(data)

    def _wake(self) -> None:
        if self._arrival and not self._arrival.done():
            self._arrival.set_result(None)

    def _call(self, work: Callable[..., None], *args: object) -> None:
        """Call in the event loop; nothing is called once that is closed, as no stream of it is open then."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *args)


async def accept(peer: socket.socket, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext) -> HostStream:
    """The stream over a socket that was accepted; its handshake has not begun."""
    _, stream = await loop.connect_accepted_socket(lambda: HostStream(loop, context), peer)
    return stream

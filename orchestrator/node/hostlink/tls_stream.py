"""A TLS stream for two threads: one receives while the other sends. It is the node's end of a reverse link."""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import threading
import time
from pathlib import Path

#: The most bytes that are encrypted, or received, at once.
BLOCK = 1 << 16
#: How long sent data may stay unacknowledged before the kernel closes the connection.
UNACKNOWLEDGED_S = 10
_TCP_USER_TIMEOUT = 18


class TlsStream:
    """Created without a handshake. ``SSLSocket`` is not safe for a sender and a receiver at once; this class is.

    The lock of the TLS state is never held during a system call, so a slow peer cannot stop both directions.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=False)
        self._state = threading.Lock()
        self._sending = threading.Lock()
        self.is_ended = False
        limit_unacknowledged(sock)

    def handshake(self, until: float) -> None:
        """Authenticate the peer as the context demands, before ``until`` (monotonic). Raises OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush(until)
                self._feed(until)
            else:
                self._flush(until)
                return

    def receive_line(self, limit: int, until: float) -> bytes:
        """One line without its newline, of at most ``limit`` bytes, before ``until``. Raises OSError or ValueError."""
        line = b""
        while not line.endswith(b"\n"):
            if len(line) > limit:
                raise ValueError(f"more than {limit} bytes without a newline")
            byte = self.recv(1, until)
            if not byte:
                raise EOFError("the peer closed the connection")
            line += byte
        self._sock.settimeout(None)
        return line[:-1]

    def recv(self, size: int, until: float = math.inf, /) -> bytes:
        """Some bytes, before ``until`` (monotonic); empty at the end of the stream. Raises OSError."""
        while True:
            with self._state:
                try:
                    data = self._tls.read(size)
                except ssl.SSLWantReadError:
                    data = None
                except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                    data = b""
            if data is not None:
                self.is_ended = self.is_ended or not data
                return data
            received = self._receive(until)
            with self._state:
                self._incoming.write(received) if received else self._incoming.write_eof()

    def sendall(self, data: bytes, /) -> None:
        """Send all bytes. Raises OSError."""
        rest = memoryview(data)
        with self._sending:
            while rest:
                with self._state:
                    rest = rest[self._tls.write(rest[:BLOCK]) :]
                    encrypted = self._outgoing.read()
                self._sock.sendall(encrypted)

    def close(self) -> None:
        """End both directions at once; a thread that waits in ``recv`` or ``sendall`` returns."""
        self.is_ended = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _receive(self, until: float) -> bytes:
        if until < math.inf:
            self._limit(until)
        try:
            return self._sock.recv(BLOCK)
        except ConnectionError:
            return b""

    def _flush(self, until: float) -> None:
        if data := self._outgoing.read():
            self._limit(until)
            self._sock.sendall(data)

    def _feed(self, until: float) -> None:
        self._limit(until)
        data = self._sock.recv(BLOCK)
        if not data:
            raise EOFError("the peer closed the connection")
        self._incoming.write(data)
        self._sock.settimeout(None)

    def _limit(self, until: float) -> None:
        """Limit the next system call: a peer that sends a byte now and then gets no more time. Raises TimeoutError."""
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the peer is too slow")
        self._sock.settimeout(left_s)


def limit_unacknowledged(sock: socket.socket) -> None:
    """Send small packets at once, and close a connection whose peer acknowledges nothing for ``UNACKNOWLEDGED_S``."""
    with contextlib.suppress(OSError):  # a socket pair has none of these options
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, UNACKNOWLEDGED_S * 1000)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The orchestrator's end: TLS 1.3 only, without session tickets. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.load_cert_chain(certificate, key)
    return context


def client_context(certificate: bytes) -> ssl.SSLContext:
    """The node's end: accepts this certificate (PEM) only, whatever its address. Raises OSError (ssl.SSLError)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is pinned
    context.load_verify_locations(cadata=certificate.decode("ascii"))
    return context

"""Requests over one channel to the helper of a host: each response goes to its request, other frames to a handler."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

from ...node.hostlink import frames

#: The value of a response, and the bytes that came with it.
Response = tuple[Any, bytes]
_BLOCK = 1 << 16


class Channel(Protocol):
    """A paramiko channel, or an object with the same methods."""

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class PushedChannel(Protocol):
    """A channel that an event loop serves: ``sendall`` returns at once, and what arrives is delivered by the loop's thread."""

    def deliver_to(self, receive: Callable[[bytes], None], report_end: Callable[[str], None]) -> None: ...

    def sendall(self, data: bytes, /) -> None: ...

    def close(self) -> None: ...


class RemoteError(Exception):
    """The host reports an error, in its own words. ``kind``: the class of the error there."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class Link:
    """A link is open from its creation until its channel ends. ``handle`` is called by the thread that reads the channel: one
    of its own, with another one that sends, or that of the channel's event loop.

    ``last_received``: when the last bytes arrived, on the monotonic clock.
    """

    def __init__(
        self,
        channel: Channel | PushedChannel,
        handle: Callable[[Mapping[str, Any], bytes], None],
        lost: Callable[[Link, str], None],
        first: bytes = b"",
    ) -> None:
        self._channel = channel
        self._decoder = frames.Decoder()
        self._handle = handle
        self._lost = lost
        self._numbers = itertools.count(1)
        self._pending: dict[int, Future[Response]] = {}
        self._lock = threading.Lock()
        self._out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._is_ended = False
        self.last_received = time.monotonic()
        self._put: Callable[[bytes], None] = self._out.put
        if isinstance(channel, PushedChannel):
            self._put = self._send_at_once
            self._receive(first)
            channel.deliver_to(self._receive, self.close)
            return
        threading.Thread(target=self._read, args=(channel, first), daemon=True, name="ccbed-link-read").start()
        threading.Thread(target=self._send, daemon=True, name="ccbed-link-send").start()

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def request(self, header: Mapping[str, Any], body: bytes = b"") -> Future[Response]:
        """Send a request; returns at once. The future raises RemoteError, or ConnectionError if no response can come."""
        number, future = next(self._numbers), Future[Response]()
        with self._lock:
            if self._is_ended:
                future.set_exception(ConnectionError("the connection is lost"))
                return future
            self._pending[number] = future
        self._put(frames.encode({"id": number, **header}, body))
        return future

    def notify(self, header: Mapping[str, Any]) -> None:
        """Send a frame without a response."""
        self._put(frames.encode(header))

    def close(self, reason: str = "closed") -> None:
        """Close the link and fail its open requests; the helper on the host ends with it."""
        with self._lock:
            first, self._is_ended = not self._is_ended, True
            pending, self._pending = list(self._pending.values()), {}
        if not first:
            return
        self._out.put(b"")
        with contextlib.suppress(Exception):  # the transport may be dead already
            self._channel.close()
        for future in pending:
            future.set_exception(ConnectionError(reason))
        self._lost(self, reason)

    def _send(self) -> None:
        try:
            while data := self._out.get():
                self._channel.sendall(data)
        except Exception as error:  # noqa: BLE001  after any error the channel is unusable
            self.close(str(error) or "the connection is lost")

    def _send_at_once(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except ConnectionError as error:
            self.close(str(error))

    def _read(self, channel: Channel, data: bytes) -> None:
        try:
            self._receive(data)
            while data := channel.recv(_BLOCK):
                self._receive(data)
            self.close("the helper on the host ended")
        except Exception as error:  # noqa: BLE001  the same
            self.close(str(error) or "the connection is lost")

    def _receive(self, data: bytes) -> None:
        """Handle the frames that these bytes complete; close the link if they are no frames."""
        self.last_received = time.monotonic()
        try:
            for header, body in self._decoder.feed(data):
                self._dispatch(header, body)
        except Exception as error:  # noqa: BLE001  the same
            self.close(str(error) or "the connection is lost")

    def _dispatch(self, header: Mapping[str, Any], body: bytes) -> None:
        if "id" not in header:
            if "sum" in header:  # acknowledge, so that the host sends only what arrives soon
                self.notify({"do": "got", "sum": header["sum"]})
            self._handle(header, body)
            return
        with self._lock:
            future = self._pending.pop(int(header["id"]), None)
        if future is None:
            return
        if "error" in header:
            future.set_exception(RemoteError(str(header["error"]), str(header.get("kind", ""))))
        else:
            future.set_result((header.get("ok"), body))

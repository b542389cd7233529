"""Requests and frames over one channel to the helper of a host: answers find whoever asked, all else goes to a handler."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from ...node.hostlink import frames

#: What a host answers: the value, and the bytes that came with it.
Answer = tuple[Any, bytes]
_BLOCK = 1 << 16


class Channel(Protocol):
    """A paramiko channel, or anything that is like one."""

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...

    def close(self) -> None: ...


class RefusedError(Exception):
    """The host answered that it could not: its own sentence. ``kind``: the name of the error there."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class Link:
    """Open from the moment that it is made until the channel ends. ``handle`` is called by the reading thread.

    ``heard``: when the last bytes came, on the monotonic clock.
    """

    def __init__(
        self,
        channel: Channel,
        handle: Callable[[Mapping[str, Any], bytes], None],
        lost: Callable[[Link, str], None],
        first: bytes = b"",
    ) -> None:
        self._channel = channel
        self._handle = handle
        self._lost = lost
        self._numbers = itertools.count(1)
        self._open: dict[int, Future[Answer]] = {}
        self._lock = threading.Lock()
        self._out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._ended = False
        self.heard = time.monotonic()
        threading.Thread(target=self._read, args=(first,), daemon=True, name="ccbed-link-read").start()
        threading.Thread(target=self._send, daemon=True, name="ccbed-link-send").start()

    @property
    def ended(self) -> bool:
        return self._ended

    def request(self, header: Mapping[str, Any], body: bytes = b"") -> Future[Answer]:
        """Send; returns at once. The future raises RefusedError, or ConnectionError where no answer will come."""
        number, future = next(self._numbers), Future[Answer]()
        with self._lock:
            if self._ended:
                future.set_exception(ConnectionError("the connection is lost"))
                return future
            self._open[number] = future
        self._out.put(frames.encode({"id": number, **header}, body))
        return future

    def tell(self, header: Mapping[str, Any]) -> None:
        """Send what is not answered."""
        self._out.put(frames.encode(header))

    def close(self, reason: str = "closed") -> None:
        """End it, whatever is still open; the helper there ends with it."""
        with self._lock:
            first, self._ended = not self._ended, True
            left, self._open = list(self._open.values()), {}
        if not first:
            return
        self._out.put(b"")
        with contextlib.suppress(Exception):  # of a transport that is dead already
            self._channel.close()
        for future in left:
            future.set_exception(ConnectionError(reason))
        self._lost(self, reason)

    def _send(self) -> None:
        try:
            while data := self._out.get():
                self._channel.sendall(data)
        except Exception as error:  # noqa: BLE001  whatever a channel raises, it is of no use any more
            self.close(str(error) or "the connection is lost")

    def _read(self, data: bytes) -> None:
        decoder = frames.Decoder()
        try:
            while True:
                for header, body in decoder.feed(data):
                    self._take(header, body)
                data = self._channel.recv(_BLOCK)
                if not data:
                    raise EOFError("the helper there ended")
                self.heard = time.monotonic()
        except Exception as error:  # noqa: BLE001  the same
            self.close(str(error) or "the connection is lost")

    def _take(self, header: Mapping[str, Any], body: bytes) -> None:
        if "id" not in header:
            if "sum" in header:  # so that only as much is on its way as arrives soon
                self.tell({"do": "got", "sum": header["sum"]})
            self._handle(header, body)
            return
        with self._lock:
            future = self._open.pop(int(header["id"]), None)
        if future is None:
            return
        if "error" in header:
            future.set_exception(RefusedError(str(header["error"]), str(header.get("kind", ""))))
        else:
            future.set_result((header.get("ok"), body))

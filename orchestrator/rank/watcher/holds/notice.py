"""SIGTERM to a held rank whose script handles it: the script wants to save, so the hold ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Notice:
    """While it is entered, knows whether the script's own handler of SIGTERM was called. ``error``: what that raised."""

    def __init__(self) -> None:
        self.has_arrived = False
        self.error: Exception | None = None
        self._handler: Any = None

    def __enter__(self) -> Notice:
        handler = signal.getsignal(signal.SIGTERM)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._handler = handler
            signal.signal(signal.SIGTERM, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        if self._handler is not None and signal.getsignal(signal.SIGTERM) == self._receive:
            signal.signal(signal.SIGTERM, self._handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.has_arrived = True
        try:
            self._handler(number, frame)
        except Exception as error:  # noqa: BLE001 raised in the script, once the hold is over
            self.error = error

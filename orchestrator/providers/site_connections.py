"""The sites of a bed's hosts in use: each is connected once, in the background if it is begun early."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

from ..model.bed import HostSpec
from .bounded_threads import BoundedThreads
from .sites import Site


class Sites:
    """Sites by host. Several threads may use it at once: all of them get the same site or the same error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[str, Future[Site]] = {}
        self._threads = BoundedThreads("ccbed-connect")

    def begin(self, host: HostSpec, connect: Callable[[], Site]) -> None:
        """Connect in the background, unless that has begun already."""
        future, is_owner = self._claim(host.name, retry=False)
        if is_owner:
            self._threads.start(lambda: _settle(future, connect))

    def get(self, host: HostSpec, connect: Callable[[], Site]) -> Site:
        """Raises what ``connect`` raises. A failed connection is tried again by the next call."""
        future, is_owner = self._claim(host.name, retry=True)
        if is_owner:
            _settle(future, connect)
        try:
            return future.result()
        except BaseException:
            with self._lock:
                if self._futures.get(host.name) is future:
                    del self._futures[host.name]
            raise

    def close(self) -> None:
        """Close all sites at once; a site that is still connecting is closed as soon as it is connected."""
        with self._lock:
            futures, self._futures = self._futures, {}
        closing = [
            self._threads.start(functools.partial(_close, future)) for future in futures.values() if future.done()
        ]
        for future in futures.values():
            if not future.done():
                future.add_done_callback(_close)
        wait(closing)

    def _claim(self, name: str, *, retry: bool) -> tuple[Future[Site], bool]:
        """(future of a host's site, whether the caller must connect it). ``retry``: also after a failure."""
        with self._lock:
            present = self._futures.get(name)
            if present is None or (retry and present.done() and present.exception()):
                present = self._futures[name] = Future()
                return present, True
            return present, False


def _settle(future: Future[Site], connect: Callable[[], Site]) -> None:
    try:
        future.set_result(connect())
    except BaseException as error:  # noqa: BLE001  raised again by get()
        future.set_exception(error)


def _close(future: Future[Site]) -> None:
    if future.exception() is None:
        future.result().close()

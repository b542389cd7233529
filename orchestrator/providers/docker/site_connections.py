"""The sites of a bed's hosts while they are in use: each is connected once, before it is asked for if that can be foreseen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from ...model.bed import HostSpec
from ..sites import Site


class Sites:
    """By host. Used by several threads at once: all of them get the same site, or the same error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Future[Site]] = {}

    def begin(self, host: HostSpec, connect: Callable[[], Site]) -> None:
        """Connect in the background, unless that is done or under way."""
        future, is_owner = self._claim(host.name, anew=False)
        if is_owner:
            threading.Thread(target=_settle, args=(future, connect), daemon=True, name=f"ccbed-{host.name}").start()

    def get(self, host: HostSpec, connect: Callable[[], Site]) -> Site:
        """Raises what ``connect`` raises; asked again after that, it is tried again, as is what went wrong before anybody asked."""
        future, is_owner = self._claim(host.name, anew=True)
        if is_owner:
            _settle(future, connect)
        try:
            return future.result()
        except BaseException:
            with self._lock:
                if self._found.get(host.name) is future:
                    del self._found[host.name]
            raise

    def close(self) -> None:
        """All at once; one that is still being connected is closed as soon as it is."""
        with self._lock:
            futures, self._found = self._found, {}
        closing = [
            threading.Thread(target=_close, args=(future,), daemon=True) for future in futures.values() if future.done()
        ]
        for thread in closing:
            thread.start()
        for future in futures.values():
            if not future.done():
                future.add_done_callback(_close)
        for thread in closing:
            thread.join()

    def _claim(self, name: str, *, anew: bool) -> tuple[Future[Site], bool]:
        """(what comes of a host, whether it is the caller's to bring about). ``anew``: also where that has failed."""
        with self._lock:
            present = self._found.get(name)
            if present is None or (anew and present.done() and present.exception()):
                present = self._found[name] = Future()
                return present, True
            return present, False


def _settle(future: Future[Site], connect: Callable[[], Site]) -> None:
    try:
        future.set_result(connect())
    except BaseException as error:  # noqa: BLE001  whoever asks is told
        future.set_exception(error)


def _close(future: Future[Site]) -> None:
    if future.exception() is None:
        future.result().close()

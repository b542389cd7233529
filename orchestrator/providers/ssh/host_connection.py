"""The connection to a host's helper, reconnected in the background when it is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from ...model.frozen import dataclass
from ..bounded_threads import Upkeep
from . import helper_start
from .connection_errors import HostError
from .host_requests import Link, RemoteError, Response

#: A link server ends without a request in 30 s (``link_server.SILENCE_S``). It sends something twice a second by itself.
PING_S = 5.0
RESYNC_S = 1.0
#: Without any response for so long, a connection counts as lost.
SILENCE_S = 5.0
SLICE_S = 0.25
#: Helpers send something twice a second: after so long without a frame, no request waits for its response.
QUIET_S = 1.5
#: After so long without a frame, the host's sshd is probed by a new connection: TCP sends lost data again in growing
#: intervals, so an old connection recovers only long after its link does.
PROBE_AFTER_S = 1.0
#: How long a successful probe of sshd counts.
RESPONSIVE_S = 3.0
BACKOFF_S = (0.05, 0.2, 0.5, 1.0, 2.0, 3.0)
CONNECT_S = 6.0
#: After so many failed attempts a host counts as unreachable.
TRIES = 2
#: How often a request is retried that was lost with its connection.
RETRIES = 4
T = TypeVar("T")


class Transport(Protocol):
    """The base of a link to a host: an SSH connection, or a stream that the host opened."""

    @property
    def alive(self) -> bool: ...

    def is_responding(self, within_s: float) -> bool | None:
        """Return whether the host accepts a new connection; None if that is not known."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Transport)
#: The class that an error of the host is raised as; all others are a RuntimeError.
_ERRORS: Mapping[str, type[Exception]] = {"OSError": OSError, "ValueError": ValueError}


class LostError(HostError):
    """The connection ended while it was made or used; a retry over a new one may work."""


@dataclass(kw_only=True)
class _Watch:
    """The times of one link: when the present time slice began, when the next ping and call are due, for how long nothing came."""

    link: Link
    began: float
    ping_at: float = 0.0
    resync_at: float = 0.0
    silent_s: float = 0.0


class HostConnection(Generic[C]):
    """``connect`` and ``start`` make a connection and its helper; ``handle`` receives frames that are no responses.

    ``initialize`` (may raise what a future raises) prepares a new helper before its first use. ``on_up`` is called, with
    ``state`` held, when the link is ready; ``every_second`` while it is. ``upkeep``: of all connections of a bed; without it
    this one has its own.
    """

    def __init__(
        self,
        *,
        connect: Callable[[float], C],
        start: Callable[[C, float], helper_start.Started],
        handle: Callable[[Mapping[str, Any], bytes], None],
        initialize: Callable[[Link, float], None],
        on_up: Callable[[Link], None],
        every_second: Callable[[Link], None],
        upkeep: Upkeep | None = None,
    ) -> None:
        self._connect = connect
        self._start = start
        self._handle = handle
        self._initialize = initialize
        self._on_up = on_up
        self._every_second = every_second
        self._connection: C | None = None
        self._upkeep = upkeep or Upkeep(SLICE_S)
        self._watch: _Watch | None = None
        self._tries = 0
        self._reconnect_at = 0.0
        self._is_reconnecting = False
        self._closed = False
        self._responded_at: float | None = None
        self._is_sshd_silent = False
        #: Guards ``link``, and is notified when it changes.
        self.state = threading.Condition()
        self.link: Link | None = None
        self.reason = "never opened"

    def open(self, deadline_s: float, *, patient: bool = False) -> None:
        """Make the first connection. Raises HostError. From then on the connection is maintained until ``close``.

        ``patient``: the host may also come later, to a run that continues without it.
        """
        until = time.monotonic() + deadline_s
        try:
            _retry_lost(lambda: self._connect_once(max(0.05, until - time.monotonic())), until)
        except HostError as error:
            if not patient:
                raise
            with self.state:
                self._tries, self.reason = TRIES, str(error)
                self._reconnect_at = time.monotonic() + BACKOFF_S[min(TRIES, len(BACKOFF_S) - 1)]
        with self.state:
            if not self._closed:
                self._upkeep.add(self)

    @property
    def connection(self) -> C:
        """The connection. Raises HostError if there is none now."""
        connection = self._connection
        if connection is None or not connection.alive:
            raise self._lost_error()
        return connection

    @property
    def is_responding(self) -> bool:
        """Return whether the host accepts a new connection although the old one is silent."""
        return self._responded_at is not None and time.monotonic() - self._responded_at < RESPONSIVE_S

    def request(self, header: Mapping[str, Any], body: bytes, deadline_s: float) -> Response:
        """Send a request and wait for its response. It waits for a reconnection, unless two attempts have failed.

        A request is sent again if its response was lost with the connection, so it must be idempotent. Raises the host's
        error (OSError, ValueError, RuntimeError), or HostError if the host does not respond.
        """
        until = time.monotonic() + deadline_s
        return _retry_lost(lambda: self._request_once(header, body, until, deadline_s), until)

    def _request_once(self, header: Mapping[str, Any], body: bytes, until: float, deadline_s: float) -> Response:
        with self.state:
            left_s = max(0.0, until - time.monotonic())
            self.state.wait_for(lambda: self.link or self._tries >= TRIES or self._closed, left_s)
            link = self.link
        if link is None:
            raise self._lost_error()
        quiet_s = time.monotonic() - link.last_received
        if quiet_s > QUIET_S and (self._is_sshd_silent or self.is_responding):
            raise HostError(f"no response from it for {quiet_s:.1f} s")
        try:
            return _wait_for(link, link.request(header, body), until)
        except RemoteError as error:
            raise _ERRORS.get(error.kind, RuntimeError)(str(error)) from error
        except TimeoutError as error:
            what = header.get("op", header["do"])
            raise HostError(str(error) or f"no response to {what} within {deadline_s:g} s") from error
        except ConnectionError as error:
            raise LostError(f"the connection was lost: {error}") from error

    def close(self) -> None:
        with self.state:
            self._closed = True
            link, connection = self.link, self._connection
            self._upkeep.remove(self)
            self.state.notify_all()
        if link:
            link.close()
        if connection:
            connection.close()

    def _connect_once(self, deadline_s: float) -> None:
        connection = self._connect(deadline_s)
        try:
            started = self._start(connection, deadline_s)
            link = Link(started.channel, self._handle, self._on_lost, started.rest)
            self._initialize_link(link, deadline_s)
            self._use(connection, link)
        except (OSError, ValueError) as error:
            is_reported = isinstance(error, HostError) and connection.alive
            connection.close()
            if is_reported or isinstance(error, LostError):
                raise
            raise LostError(f"the connection was lost in its beginning: {error}") from error
        except BaseException:
            connection.close()
            raise

    def _initialize_link(self, link: Link, deadline_s: float) -> None:
        try:
            self._initialize(link, deadline_s)
        except ConnectionError as error:
            raise LostError(str(error)) from error
        except (RemoteError, TimeoutError) as error:
            link.close()
            raise HostError(str(error) or f"no response within {deadline_s:g} s") from error

    def _use(self, connection: C, link: Link) -> None:
        with self.state:
            if self._closed or link.is_ended:
                link.close()
                raise HostError("closed" if self._closed else "the connection was lost again")
            self._connection, self.link, self._tries, self.reason = connection, link, 0, ""
            self._on_up(link)
            self.state.notify_all()

    def keep(self) -> None:
        """One time slice of the upkeep."""
        if self._closed:
            return
        if link := self.link:
            self._keep_link(link)
        elif time.monotonic() >= self._reconnect_at:
            self._start_reconnecting()

    def _keep_link(self, link: Link) -> None:
        """Ping now and then until the link is lost; too long a silence, counted in slices, closes it.

        A time in which this process itself did not run counts as one slice.
        """
        watch = self._watch
        if watch is None or watch.link is not link:
            watch = self._watch = _Watch(link=link, began=time.monotonic())
        else:
            watch.silent_s = watch.silent_s + SLICE_S if link.last_received < watch.began else 0.0
            watch.began = time.monotonic()
        if not watch.silent_s:
            self._responded_at, self._is_sshd_silent = None, False
        if watch.silent_s > SILENCE_S:
            link.close(f"no response for {SILENCE_S:g} s")
            return
        if watch.began >= watch.ping_at:
            watch.ping_at = watch.began + PING_S
            link.request({"do": "ping"})
        if watch.began >= watch.resync_at:
            watch.resync_at = watch.began + RESYNC_S
            self._every_second(link)
        if watch.silent_s >= PROBE_AFTER_S:
            self._probe_sshd(link)

    def _probe_sshd(self, link: Link) -> None:
        """The link is silent: probe whether the host accepts a new connection. If it does, lost data will soon be sent again."""
        connection, now = self._connection, time.monotonic()
        answers = connection.is_responding(SLICE_S) if connection and connection.alive else None
        if link.last_received > now or self.link is not link:
            return
        self._is_sshd_silent = answers is False
        self._responded_at = now if answers else None

    def _start_reconnecting(self) -> None:
        with self.state:
            if self._closed or self._is_reconnecting:
                return
            self._is_reconnecting = True
        try:
            self._upkeep.start(self._reconnect)
        except RuntimeError as error:  # no thread can start now; the upkeep tries again
            self._put_off(error)
            self._is_reconnecting = False

    def _reconnect(self) -> None:
        try:
            with self.state:
                if self.state.wait_for(lambda: self._closed, BACKOFF_S[0]):
                    return
            self._connect_once(CONNECT_S)
        except Exception as error:  # noqa: BLE001 nothing else reconnects the host
            self._put_off(error)
        finally:
            self._is_reconnecting = False

    def _put_off(self, error: Exception) -> None:
        with self.state:
            self._tries += 1
            self._reconnect_at = time.monotonic() + BACKOFF_S[min(self._tries, len(BACKOFF_S) - 1)]
            self.reason = str(error)
            self.state.notify_all()

    def _on_lost(self, link: Link, reason: str) -> None:
        with self.state:
            if self.link is not link:
                return
            connection, self._connection, self.link = self._connection, None, None
            self._tries, self.reason = 0, reason
            self._reconnect_at = 0.0
            self.state.notify_all()
        if connection:
            connection.close()
        self._start_reconnecting()

    def _lost_error(self) -> HostError:
        return HostError(f"not connected: {self.reason}")


def _retry_lost(work: Callable[[], T], until: float) -> T:
    """Retry work that was lost with its connection over the next one, until the deadline."""
    try:
        return work()
    except LostError:
        if time.monotonic() > until:
            raise
    import tenacity

    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(LostError),
        stop=tenacity.stop_after_attempt(RETRIES) | tenacity.stop_after_delay(max(0.05, until - time.monotonic())),
        wait=tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
        reraise=True,
    )
    return attempts(work)


def _wait_for(link: Link, future: Future[Response], until: float) -> Response:
    """Wait for a response, but not if the host is silent altogether. Raises TimeoutError."""
    start = time.monotonic()
    while True:
        try:
            return future.result(max(0.01, min(until - time.monotonic(), SLICE_S)))
        except TimeoutError:
            now = time.monotonic()
            if now - start > SLICE_S and now - link.last_received > QUIET_S:
                raise TimeoutError(f"no response from it for {now - link.last_received:.1f} s") from None
            if now >= until:
                raise

"""The connection to a host's helper, reconnected in the background when it is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from . import helper_start
from .connection_errors import HostError
from .requests import Link, RemoteError, Response

PING_S = 1.0
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
    """What a link to a host is made over: an SSH connection, or a stream that the host opened."""

    @property
    def alive(self) -> bool: ...

    def is_responding(self, within_s: float) -> bool | None:
        """Whether the host accepts a new connection; None if that is not known."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Transport)
#: The class that an error of the host is raised as; all others are a RuntimeError.
_ERRORS: Mapping[str, type[Exception]] = {"OSError": OSError, "ValueError": ValueError}


class LostError(HostError):
    """The connection ended while it was made or used; a retry over a new one may work."""


class HostConnection(Generic[C]):
    """``connect`` and ``start`` make a connection and its helper; ``handle`` receives frames that are no responses.

    ``initialize`` (may raise what a future raises) prepares a new helper before its first use. ``on_up`` is called, with
    ``state`` held, when the link is ready; ``every_second`` while it is.
    """

    def __init__(
        self,
        name: str,
        *,
        connect: Callable[[float], C],
        start: Callable[[C, float], helper_start.Started],
        handle: Callable[[Mapping[str, Any], bytes], None],
        initialize: Callable[[Link, float], None],
        on_up: Callable[[Link], None],
        every_second: Callable[[Link], None],
    ) -> None:
        self._name = name
        self._connect = connect
        self._start = start
        self._handle = handle
        self._initialize = initialize
        self._on_up = on_up
        self._every_second = every_second
        self._connection: C | None = None
        self._tries = 0
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
        threading.Thread(target=self._maintain, daemon=True, name=f"ccbed-reach-{self._name}").start()

    @property
    def connection(self) -> C:
        """The connection. Raises HostError if there is none now."""
        connection = self._connection
        if connection is None or not connection.alive:
            raise self._lost_error()
        return connection

    @property
    def is_responding(self) -> bool:
        """Whether the host accepts a new connection although the old one is silent."""
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
            raise HostError(self._name, f"no response from it for {quiet_s:.1f} s")
        try:
            return _wait_for(link, link.request(header, body), until)
        except RemoteError as error:
            raise _ERRORS.get(error.kind, RuntimeError)(str(error)) from error
        except TimeoutError as error:
            what = header.get("op", header["do"])
            raise HostError(self._name, str(error) or f"no response to {what} within {deadline_s:g} s") from error
        except ConnectionError as error:
            raise LostError(self._name, f"the connection was lost: {error}") from error

    def close(self) -> None:
        with self.state:
            self._closed = True
            link, connection = self.link, self._connection
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
            raise LostError(self._name, f"the connection was lost in its beginning: {error}") from error
        except BaseException:
            connection.close()
            raise

    def _initialize_link(self, link: Link, deadline_s: float) -> None:
        try:
            self._initialize(link, deadline_s)
        except ConnectionError as error:
            raise LostError(self._name, str(error)) from error
        except (RemoteError, TimeoutError) as error:
            link.close()
            raise HostError(self._name, str(error) or f"no response within {deadline_s:g} s") from error

    def _use(self, connection: C, link: Link) -> None:
        with self.state:
            if self._closed or link.is_ended:
                link.close()
                raise HostError(self._name, "closed" if self._closed else "the connection was lost again")
            self._connection, self.link, self._tries, self.reason = connection, link, 0, ""
            self._on_up(link)
            self.state.notify_all()

    def _maintain(self) -> None:
        while not self._closed:
            link = self.link
            if link is None:
                self._reconnect()
            else:
                self._watch_link(link)

    def _watch_link(self, link: Link) -> None:
        """Ping every second until the link is lost; too long a silence, counted in slices, closes it.

        A time in which this process itself did not run counts as one slice.
        """
        silent_s, due = 0.0, 0.0
        while not self._closed and self.link is link:
            before = time.monotonic()
            if before >= due:
                due = before + PING_S
                link.request({"do": "ping"})
                self._every_second(link)
            if silent_s >= PROBE_AFTER_S:
                self._probe_sshd(link)
            with self.state:
                wait_s = max(0.0, before + SLICE_S - time.monotonic())
                self.state.wait_for(lambda: self._closed or self.link is not link, wait_s)
            silent_s = silent_s + SLICE_S if link.last_received < before else 0.0
            if not silent_s:
                self._responded_at, self._is_sshd_silent = None, False
            if silent_s > SILENCE_S:
                link.close(f"no response for {SILENCE_S:g} s")

    def _probe_sshd(self, link: Link) -> None:
        """The link is silent: probe whether the host accepts a new connection. If it does, lost data will soon be sent again."""
        connection, now = self._connection, time.monotonic()
        answers = connection.is_responding(SLICE_S) if connection and connection.alive else None
        if link.last_received > now or self.link is not link:
            return
        self._is_sshd_silent = answers is False
        self._responded_at = now if answers else None

    def _reconnect(self) -> None:
        with self.state:
            wait_s = BACKOFF_S[min(self._tries, len(BACKOFF_S) - 1)]
            if self.state.wait_for(lambda: self._closed, wait_s):
                return
        try:
            self._connect_once(CONNECT_S)
        except Exception as error:  # noqa: BLE001 only this thread reconnects the host
            with self.state:
                self._tries += 1
                self.reason = str(error)
                self.state.notify_all()

    def _on_lost(self, link: Link, reason: str) -> None:
        with self.state:
            if self.link is not link:
                return
            connection, self._connection, self.link = self._connection, None, None
            self._tries, self.reason = 0, reason
            self.state.notify_all()
        if connection:
            connection.close()

    def _lost_error(self) -> HostError:
        return HostError(self._name, f"not connected: {self.reason}")


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

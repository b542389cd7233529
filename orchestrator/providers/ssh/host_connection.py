"""A host is reached: one connection with a helper on its other end, made again in the background when it was lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from . import helper_start, ssh_connection
from .connection_errors import HostError
from .requests import Answer, Link, RefusedError

PING_S = 1.0
#: Without a word for so long, although asked, a connection is lost.
SILENCE_S = 5.0
SLICE_S = 0.25
#: Helpers say something twice a second: without a word for so long, nobody waits for an answer any more.
QUIET_S = 1.5
#: After so long without a word it is seen whether the host would answer somebody new: what was sent while a link was
#: broken is sent again in ever longer intervals, which last as long again as the link was broken.
HUSH_S = 1.0
#: So long it counts that a host has answered somebody new.
ANSWERED_S = 3.0
BACKOFF_S = (0.05, 0.2, 0.5, 1.0, 2.0, 3.0)
CONNECT_S = 6.0
#: After so many attempts that failed a host counts as away.
TRIES = 2
#: What was lost with its connection is tried so often again at most.
RETRIES = 4
T = TypeVar("T")
#: What an error of a host is raised as here; all others are a RuntimeError.
_KINDS: Mapping[str, type[Exception]] = {"OSError": OSError, "ValueError": ValueError}


class LostError(HostError):
    """The connection ended while it was made or used; a new one may do."""


class Reach:
    """``connect`` and ``start`` make a connection and its helper; ``handle`` gets what comes unasked.

    ``greet`` (may raise what a future raises) tells a new helper what it needs before anybody else uses it; ``up`` is
    called, with ``state`` held, once it may be used; ``turn`` every second while it is.
    """

    def __init__(
        self,
        name: str,
        *,
        connect: Callable[[float], ssh_connection.Connection],
        start: Callable[[ssh_connection.Connection, float], helper_start.Started],
        handle: Callable[[Mapping[str, Any], bytes], None],
        greet: Callable[[Link, float], None],
        up: Callable[[Link], None],
        turn: Callable[[Link], None],
    ) -> None:
        self._name = name
        self._connect = connect
        self._start = start
        self._handle = handle
        self._greet = greet
        self._up = up
        self._turn = turn
        self._connection: ssh_connection.Connection | None = None
        self._tries = 0
        self._closed = False
        self._answered: float | None = None
        self._deaf = False
        #: Guards ``link``, and is notified when it changes.
        self.state = threading.Condition()
        self.link: Link | None = None
        self.reason = "never opened"

    def open(self, deadline_s: float, *, patient: bool = False) -> None:
        """The first connection. Raises HostError; afterwards nothing does, and it is kept up until ``close``.

        ``patient``: it may come later as well, to a run that goes on without its host.
        """
        until = time.monotonic() + deadline_s
        try:
            _again(lambda: self._once(max(0.05, until - time.monotonic())), until)
        except HostError as error:
            if not patient:
                raise
            with self.state:
                self._tries, self.reason = TRIES, str(error)
        threading.Thread(target=self._keep, daemon=True, name=f"ccbed-reach-{self._name}").start()

    @property
    def connection(self) -> ssh_connection.Connection:
        """Raises HostError where there is none now."""
        connection = self._connection
        if connection is None or not connection.alive:
            raise self._lost_error()
        return connection

    @property
    def answering(self) -> bool:
        """Does the host answer somebody new, though nothing comes over the connection that there was?"""
        return self._answered is not None and time.monotonic() - self._answered < ANSWERED_S

    def ask(self, header: Mapping[str, Any], body: bytes, deadline_s: float) -> Answer:
        """Ask and wait. A connection that was lost just now is waited for, one that twice could not be made again is not.

        What is asked may be asked twice: so it is where the answer was lost with its connection. Raises what the host raised
        (OSError, ValueError, RuntimeError), or HostError where it does not answer.
        """
        until = time.monotonic() + deadline_s
        return _again(lambda: self._asked(header, body, until, deadline_s), until)

    def _asked(self, header: Mapping[str, Any], body: bytes, until: float, deadline_s: float) -> Answer:
        with self.state:
            left_s = max(0.0, until - time.monotonic())
            self.state.wait_for(lambda: self.link or self._tries >= TRIES or self._closed, left_s)
            link = self.link
        if link is None:
            raise self._lost_error()
        quiet_s = time.monotonic() - link.heard
        if quiet_s > QUIET_S and (self._deaf or self.answering):
            raise HostError(self._name, f"no word from it for {quiet_s:.1f} s")
        try:
            return _answer(link, link.request(header, body), until)
        except RefusedError as error:
            raise _KINDS.get(error.kind, RuntimeError)(str(error)) from error
        except TimeoutError as error:
            what = header.get("op", header["do"])
            raise HostError(self._name, str(error) or f"no answer to {what} within {deadline_s:g} s") from error
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

    def _once(self, deadline_s: float) -> None:
        connection = self._connect(deadline_s)
        try:
            started = self._start(connection, deadline_s)
            link = Link(started.channel, self._handle, self._lost, started.rest)
            self._greeted(link, deadline_s)
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

    def _greeted(self, link: Link, deadline_s: float) -> None:
        try:
            self._greet(link, deadline_s)
        except ConnectionError as error:
            raise LostError(self._name, str(error)) from error
        except (RefusedError, TimeoutError) as error:
            link.close()
            raise HostError(self._name, str(error) or f"no answer within {deadline_s:g} s") from error

    def _use(self, connection: ssh_connection.Connection, link: Link) -> None:
        with self.state:
            if self._closed or link.ended:
                link.close()
                raise HostError(self._name, "closed" if self._closed else "the connection was lost again")
            self._connection, self.link, self._tries, self.reason = connection, link, 0, ""
            self._up(link)
            self.state.notify_all()

    def _keep(self) -> None:
        while not self._closed:
            link = self.link
            if link is None:
                self._make_again()
            else:
                self._listen(link)

    def _listen(self, link: Link) -> None:
        """Until the link is lost: ask for a sign of life every second; silence, counted in slices, ends it.

        A time in which this process itself did not run counts as one slice.
        """
        silent, due = 0.0, 0.0
        while not self._closed and self.link is link:
            before = time.monotonic()
            if before >= due:
                due = before + PING_S
                link.request({"do": "ping"})
                self._turn(link)
            if silent >= HUSH_S:
                self._knock(link)
            with self.state:
                patience = max(0.0, before + SLICE_S - time.monotonic())
                self.state.wait_for(lambda: self._closed or self.link is not link, patience)
            silent = silent + SLICE_S if link.heard < before else 0.0
            if not silent:
                self._answered, self._deaf = None, False
            if silent > SILENCE_S:
                link.close(f"no word for {SILENCE_S:g} s")

    def _knock(self, link: Link) -> None:
        """Nothing was heard: would the host answer somebody new? Then what was sent meanwhile is soon sent again as well."""
        connection, now = self._connection, time.monotonic()
        answers = connection.answers(SLICE_S) if connection and connection.alive else None
        if link.heard > now or self.link is not link:
            return
        self._deaf = answers is False
        self._answered = now if answers else None

    def _make_again(self) -> None:
        with self.state:
            patience = BACKOFF_S[min(self._tries, len(BACKOFF_S) - 1)]
            if self.state.wait_for(lambda: self._closed, patience):
                return
        try:
            self._once(CONNECT_S)
        except Exception as error:  # noqa: BLE001 whatever it is: this thread is all that brings the host back
            with self.state:
                self._tries += 1
                self.reason = str(error)
                self.state.notify_all()

    def _lost(self, link: Link, reason: str) -> None:
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


def _again(work: Callable[[], T], until: float) -> T:
    """What is lost with a connection is tried again over the next one, while there is time."""
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


def _answer(link: Link, future: Future[Answer], until: float) -> Answer:
    """Wait for an answer, but not for one of a host that says nothing at all any more. Raises TimeoutError."""
    start = time.monotonic()
    while True:
        try:
            return future.result(max(0.01, min(until - time.monotonic(), SLICE_S)))
        except TimeoutError:
            now = time.monotonic()
            if now - start > SLICE_S and now - link.heard > QUIET_S:
                raise TimeoutError(f"no word from it for {now - link.heard:.1f} s") from None
            if now >= until:
                raise

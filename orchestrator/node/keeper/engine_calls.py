"""Requests to the engine out of the keeper's loop: none of them is waited for, each has a deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..oslayer.engine_api import Asked, Engine, EngineError
from ..oslayer.event_loop import Loop

#: Called with the engine's answer, or with what went wrong.
Then = Callable[[Any, EngineError | None], None]


class Calls:
    """One engine, asked from one loop."""

    def __init__(self, loop: Loop, engine: Engine) -> None:
        self._loop = loop
        self.engine = engine

    def ask(self, method: str, path: str, then: Then, body: Any = None, *, deadline_s: float = 10.0) -> None:
        """Ask now; ``then`` is called once, from the loop, also where the engine is not there or does not answer."""
        try:
            asked = self.engine.send(method, path, body, deadline_s=deadline_s)
        except EngineError as error:
            failure = error
            self._loop.later(0.0, lambda: then(None, failure))
            return
        self._await(asked, then, deadline_s, lambda: self.ask(method, path, then, body, deadline_s=deadline_s))

    def _await(self, asked: Asked, then: Then, deadline_s: float, ask_again: Callable[[], None]) -> None:
        fd = asked.fd

        def over() -> None:
            self._loop.forget(fd)
            asked.close()
            then(None, EngineError(f"{self.engine.path}: the engine has not answered within {deadline_s:g} s"))

        def answered() -> None:
            timer.cancel()
            self._loop.forget(fd)
            try:
                answer = asked.answer()
            except EngineError as error:
                if error.again:
                    ask_again()
                else:
                    then(None, error)
            else:
                then(answer, None)

        timer = self._loop.later(deadline_s, over)
        self._loop.watch(fd, answered)

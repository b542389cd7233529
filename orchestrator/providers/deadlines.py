"""An operation on this machine that may hang (an engine, a file system) is not waited for longer than its caller wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def within(deadline_s: float, what: str, work: Callable[[], Any]) -> Any:
    """What ``work`` returns or raises. Raises TimeoutError where it takes longer; it is then left to itself."""
    outcome: list[Callable[[], Any]] = []

    def run() -> None:
        try:
            done = work()
        except BaseException as error:  # noqa: BLE001
            problem = error
            outcome.append(lambda: _raise(problem))
        else:
            outcome.append(lambda: done)

    thread = threading.Thread(target=run, name=f"ccbed-{what}", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if not outcome:
        raise TimeoutError(f"{what} on this machine has taken longer than {deadline_s:g} s")
    return outcome[0]()


def _raise(problem: BaseException) -> None:
    raise problem

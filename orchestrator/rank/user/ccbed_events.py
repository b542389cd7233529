"""Lets a training script report to ccbed: ``step``, ``resumed``, ``saved``, ``point``, ``final``.

Every call is optional, and does nothing where neither ccbed nor ccbed-watch started the process. What a call reports is a
claim: verdicts name it as such, and fail where the watcher's records contradict it. See workloads/events.md.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

#: The largest number of a step.
LAST = 10_000_000


def step(number: int, loss: float | None = None) -> None:
    """The job has completed ``number`` steps since its beginning. ``loss``: of this rank, unscaled. Raises ValueError."""
    done, value = _step(number), None if loss is None else float(loss).hex()
    path = os.environ.get("CCBED_EVENTS")
    if path:
        now = time.monotonic()
        line = {"step": done, "loss": value, "start": now, "end": now, "digest": None}
        with open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
            out.write(json.dumps(line) + "\n")
    _claim("step", step=done, loss=value)


def resumed(step: int, source: str | os.PathLike[str] = "") -> None:
    """The state is that after ``step`` steps; call it before the first step. Raises ValueError.

    ``source``: the file or directory that was read, or ``peer`` for the memory of another rank.
    """
    _claim("resumed", step=_step(step), source=os.fspath(source))


def saved(step: int, path: str | os.PathLike[str] = "") -> None:
    """The state after ``step`` steps is saved completely, in ``path`` if it is a file or directory. Raises ValueError."""
    _claim("saved", step=_step(step), path=os.fspath(path))


def point(name: str, value: float, unit: str = "") -> None:
    """A figure of the job at this moment, for ``metrics.jsonl``. Raises ValueError."""
    _claim("point", name=str(name), value=float(value).hex(), unit=str(unit))


def final(name: str, value: float, unit: str = "") -> None:
    """A result of the whole job, such as its accuracy, for ``metrics.jsonl``. Raises ValueError."""
    _claim("final", name=str(name), value=float(value).hex(), unit=str(unit))


def _step(number: int) -> int:
    done = int(number)
    if not 0 <= done <= LAST:
        raise ValueError(f"a step must be 0 to {LAST:,} (got {done:,})")
    return done


def _claim(what: str, **fields: str | int | None) -> None:
    """Write the claim into the record of this process, if the watcher is loaded in it."""
    if "_ccbed_watch" in sys.modules:
        importlib.import_module("_ccbed_watch.claims").add(what, **fields)

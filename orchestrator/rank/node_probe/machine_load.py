"""The load of the machine while a probe runs: CPU time that went to other processes, to other guests, or was withheld."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...model.events import ProbeFigure
from ...model.frozen import dataclass
from ..runtime import recorder, run_gaps
from .results import Missing, Node, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Seconds of all CPUs together since boot: ``total``, ``busy`` and ``stolen`` by a hypervisor; None where /proc/stat is not readable.

    ``own``: of this process, its threads and its children that have ended; ``withheld``: from its cgroup, by its quota.
    """

    total: float | None
    busy: float
    stolen: float
    own: float
    withheld: float
    moment: float


def beside(node: Node, measured: Iterable[Result]) -> Iterator[Result]:
    """What a probe yields, and then the load of the machine while it ran."""
    before = read(node.system, time.monotonic())
    yield from measured
    yield from figures(before, read(node.system, time.monotonic()))


def read(system: Path, now: float) -> Reading:
    ticks = os.sysconf("SC_CLK_TCK")
    times = [int(text) / ticks for text in recorder.read(system / "proc/stat").partition("\n")[0].split()[1:9]]
    is_known = len(times) == 8
    return Reading(
        total=sum(times) if is_known else None,
        busy=sum(times) - times[3] - times[4] - times[7] if is_known else 0.0,
        stolen=times[7] if is_known else 0.0,
        own=sum(os.times()[:4]), withheld=run_gaps.throttled_s(system), moment=now,
    )  # fmt: skip


def figures(before: Reading, after: Reading) -> Iterator[Result]:
    """Shares of the time of all CPUs; the last one of the time that passed."""
    if before.total is None or after.total is None or after.total <= before.total:
        yield Missing(name="cpu used by others", reason="/proc/stat does not show it")
        return
    total, busy = after.total - before.total, after.busy - before.busy
    others = max(0.0, busy - (after.own - before.own))
    passed = max(after.moment - before.moment, 1e-9)
    for name, share in (
        ("cpu used by others", others / total),
        ("cpu stolen", (after.stolen - before.stolen) / total),
        ("cpu withheld", (after.withheld - before.withheld) / passed),
    ):
        yield ProbeFigure(name=name, unit="1", better="lower", values=(round(max(0.0, share), 4),))

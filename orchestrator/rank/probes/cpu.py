"""Frequency of the CPU under load, and throttling by heat and by the node's CPU limit."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from ...model.events import ProbeFigure
from ..node_probe import probe_results
from ..node_probe.probe_results import Missing, Node, Result
from ..runtime import recorder, run_gaps

_CPUS = "sys/devices/system/cpu"


def measure(node: Node) -> Iterator[Result]:
    """One core is kept busy for all repeats; counters are read before and after."""
    before = _counters(node.system)
    frequencies, spins = [], []
    for _ in range(node.params.repeats):
        spins.append(_spin(node.params.repeat_s))
        frequency = frequency_hz(node.system)
        if frequency is not None:
            frequencies.append(frequency / 1e9)
    yield ProbeFigure(name="cpu loop", unit="1/s", better="higher", values=tuple(spins))
    if len(frequencies) == node.params.repeats:
        ceiling = probe_results.highest_frequency(node.system)
        yield ProbeFigure(
            name="cpu frequency", unit="GHz", better="higher", values=tuple(frequencies), ceiling=ceiling and ceiling / 1e9
        )  # fmt: skip
    else:
        yield Missing(name="cpu frequency", reason="neither cpufreq nor /proc/cpuinfo shows it")
    yield from _differences(before, _counters(node.system))


def _spin(seconds: float) -> float:
    """Rounds of a fixed loop per second of one core."""
    begin, rounds = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < seconds:
        sum(range(2000))
        rounds += 1
    return rounds / passed


def frequency_hz(system: Path) -> float | None:
    """The highest of all CPUs at this moment, which is that of the busy one."""
    paths = (system / _CPUS).glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
    values = [float(text) * 1000 for path in paths if (text := recorder.read(path)).strip().isdigit()]
    values = values or [
        float(text) * 1e6
        for text in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", recorder.read(system / "proc/cpuinfo"), re.MULTILINE)
    ]
    return max(values, default=None)


def _counters(system: Path) -> dict[str, float | None]:
    """Read the counters since boot; None where the kernel does not report it."""
    heat = map(recorder.read, (system / _CPUS).glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
    known = [float(text) for text in heat if text.strip().isdigit()]
    return {
        "cpu throttled by heat": sum(known) if known else None,
        "cpu throttled by its limit": run_gaps.cpu_statistics(system).get("nr_throttled"),
    }


def _differences(before: dict[str, float | None], after: dict[str, float | None]) -> Iterator[Result]:
    for name in ("cpu throttled by heat", "cpu throttled by its limit"):
        first, last = before[name], after[name]
        if first is None or last is None:
            yield Missing(name=name, reason="the kernel does not report it")
            continue
        yield ProbeFigure(name=name, unit="count", better="lower", values=(last - first,))

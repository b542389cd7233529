"""Bandwidth of memory: copy and triad as STREAM counts them, of the host, and of the rank's GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ...model import requirements
from ...model.events import ProbeFigure
from ..node_probe import probe_results
from ..node_probe.probe_results import Fact, Missing, Node, Result
from ..runtime import recorder

PER_RANK = True
#: Of an array: as STREAM demands, four times the last-level cache; MiB at most, and share of the available memory at most.
CACHES, MOST_MIB, SHARE = 4, 256, 16
DEVICE_MIB = 512
_CACHE = "sys/devices/system/cpu/cpu0/cache/index3/size"


def measure(node: Node) -> Iterator[Result]:
    """GB/s (10^9 bytes): a copy reads and writes an array; a triad a = b + s c reads two and writes one (McCalpin, STREAM, 1995).

    The reads that a write causes in a CPU's cache are not counted, as in STREAM.
    """
    if not node.local_rank:
        yield from _host(node)
    if node.has_gpu:
        ceiling, reason = device_ceiling(node)
        if ceiling is None:
            yield Missing(name="ceiling of memory device", reason=reason)
        yield from _rates(node, node.device, DEVICE_MIB, "memory device", ceiling)


def _host(node: Node) -> Iterator[Result]:
    size = node.params.memory_mib or _host_mib(node)
    cache = cache_mib(node.system)
    yield Fact(name="memory arrays", text=f"3 of {size} MiB, {torch.get_num_threads()} threads")
    if cache is not None and size < CACHES * cache:
        yield Fact(
            name="memory cache",
            text=f"arrays are smaller than {CACHES} times the cache of {cache:g} MiB: in part its rate",
        )
    yield from _rates(node, torch.device("cpu"), size, "memory host", None)


def _rates(node: Node, device: torch.device, mib: int, name: str, ceiling: float | None) -> Iterator[Result]:
    count = mib * (1 << 20) // 4
    a, b, c = (torch.ones(count, device=device) for _ in range(3))
    works = {"copy": (lambda: a.copy_(b), 2), "triad": (lambda: torch.add(b, c, alpha=3.0, out=a), 3)}
    for kind, (work, arrays) in works.items():
        values = probe_results.rates(node, work, arrays * count * 4 / 1e9)
        yield ProbeFigure(name=f"{name} {kind}", unit="GB/s", better="higher", values=values, ceiling=ceiling)


def _host_mib(node: Node) -> int:
    wanted = min(MOST_MIB, round(CACHES * (cache_mib(node.system) or MOST_MIB / CACHES)))
    sizes = [requirements.available_on_host(recorder.read), requirements.available_in_cgroup(recorder.read)]
    available = min((size for size in sizes if size is not None), default=MOST_MIB * SHARE << 20)
    return max(1, min(wanted, available // SHARE >> 20))


def cache_mib(system: Path) -> float | None:
    """The last-level cache that one core sees."""
    try:
        text = (system / _CACHE).read_text().strip()
        return float(text.rstrip("KMG")) * {"K": 1 / 1024, "M": 1.0, "G": 1024.0}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        size = os.sysconf("SC_LEVEL3_CACHE_SIZE") if "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names else 0
        return size / (1 << 20) if size > 0 else None


def device_ceiling(node: Node) -> tuple[float | None, str]:
    """GB/s by the clock and the width of the GPU's memory, or why it is not known."""

    def read(nvml: Any, gpu: Any) -> tuple[float | None, str]:
        clock = nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM)
        return probe_results.dram_gb_s(clock, nvml.nvmlDeviceGetMemoryBusWidth(gpu)), "NVML reports no clock or width"

    return probe_results.ceiling_by_nvml(node, read)

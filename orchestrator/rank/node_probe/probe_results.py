"""Holds what probes yield, and what they know of their node; repeats of a rate; the best values that hardware allows. Needs no torch.

A ceiling may be too high, never too low: a figure above its ceiling is a wrong measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.events import ComputedBits, ProbeDone, ProbeFigure
from ...model.frozen import dataclass

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeParams:
    """The parameters of the workload, which says what they mean."""

    probes: tuple[str, ...] = ()
    repeats: int = 5
    repeat_s: float = 0.2
    dtypes: tuple[str, ...] = ()
    disk_mib: int = 64
    disk_tool: str = "auto"
    memory_mib: int = 0
    nic_mib: int = 16
    in_turn: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact that a figure depends on, such as the size of a matrix or the kind of a file system."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A figure or a group of figures that could not be read, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A defect that the hardware itself reports."""

    text: str


Result = ProbeFigure | ComputedBits | Fact | Missing | Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The node of a rank. ``sharers``: the ranks on the same host, in order; ``local_rank``: of the rank in its node.

    ``directory``: in the node's own directory; ``shared``: in the directory of checkpoints. ``load_nvml``: the module pynvml,
    initialised; raises OSError where it is not usable. ``system``: the root of /proc and /sys. ``is_quick``: without what takes minutes.
    """

    params: ProbeParams
    rank: int
    world: int
    local_rank: int
    device: torch.device
    interface: str
    directory: Path
    shared: Path
    sharers: tuple[int, ...]
    load_nvml: Callable[[], Any]
    system: Path = Path("/")
    is_quick: bool = False

    @property
    def has_gpu(self) -> bool:
        return self.device.type == "cuda"


NO_GPU = "the rank has no GPU"


def collect(node: Node, probe: str, results: Iterable[Result], clock: Callable[[], float]) -> ProbeDone:
    """The event of a probe. A probe that raises keeps what it measured before."""
    begin, kept, error = clock(), list[Result](), None
    try:
        for result in results:
            kept.append(result)
    except Exception as problem:  # noqa: BLE001 another probe may still work; the check of the run reports this one
        error = f"{type(problem).__name__}: {problem}"
    figures = tuple(result for result in kept if isinstance(result, ProbeFigure) and result.values)
    return ProbeDone(
        rank=node.rank, probe=probe, figures=figures or None,
        facts={result.name: result.text for result in kept if isinstance(result, Fact)} or None,
        missing=_missing(kept) or None,
        problems=tuple(result.text for result in kept if isinstance(result, Problem)) or None,
        bits=tuple(result for result in kept if isinstance(result, ComputedBits)) or None,
        error=error, took_s=round(clock() - begin, 3),
    )  # fmt: skip


def _missing(results: Iterable[Result]) -> dict[str, str]:
    reasons = {result.name: result.reason for result in results if isinstance(result, Missing)}
    empty = {result.name: "no repeat" for result in results if isinstance(result, ProbeFigure) and not result.values}
    return {**empty, **reasons}


#: Calls of one repeat at most.
MOST_CALLS = 1_000_000


def rates(node: Node, work: Callable[[], object], amount: float) -> tuple[float, ...]:
    """``amount`` per second of each repeat. The first calls, which warm up, are not counted.

    The number of calls is too small if something interrupted the calls that it was computed from. So when a repeat lasts
    less than half of its time, all repeats start again with twice the calls.
    """
    calls = calls_of_a_repeat(lambda count: seconds(node, work, count), node.params.repeat_s)
    times: list[float] = []
    while len(times) < node.params.repeats:
        times.append(seconds(node, work, calls))
        if times[-1] < node.params.repeat_s / 2 and calls < MOST_CALLS:
            calls = min(MOST_CALLS, 2 * calls)
            times.clear()
    return tuple(amount * calls / took_s for took_s in times)


def calls_of_a_repeat(time_calls: Callable[[int], float], repeat_s: float) -> int:
    """The number of calls that last ``repeat_s``, by doubling."""
    count = 1
    time_calls(1)
    while count < MOST_CALLS:
        took_s = time_calls(count)
        if took_s >= repeat_s / 4:
            return min(MOST_CALLS, max(1, round(count * repeat_s / took_s)))
        count *= 2
    return count


def seconds(node: Node, work: Callable[[], object], count: int) -> float:
    """The time of ``count`` calls until the device has ended them."""
    settle(node)
    begin = time.perf_counter()
    for _ in range(count):
        work()
    settle(node)
    return time.perf_counter() - begin


def settle(node: Node) -> None:
    """Wait for the work of a GPU."""
    if node.has_gpu:
        import torch

        torch.cuda.synchronize(node.device)


#: Data sheets of NVIDIA, dense, with tensor cores, of the largest variant with this name. TFLOP/s by dtype.
GPUS: dict[str, dict[str, float]] = {
    "B200": {"float64": 40, "float32": 80, "tf32": 1250, "float16": 2500, "bfloat16": 2500},
    "H200": {"float64": 67, "float32": 67, "tf32": 495, "float16": 990, "bfloat16": 990},
    "H100": {"float64": 67, "float32": 67, "tf32": 495, "float16": 990, "bfloat16": 990},
    "A100": {"float64": 19.5, "float32": 19.5, "tf32": 156, "float16": 312, "bfloat16": 312},
    "L40S": {"float64": 1.5, "float32": 91.6, "tf32": 183, "float16": 362, "bfloat16": 362},
    "V100": {"float64": 8.2, "float32": 16.4, "float16": 130},
    "T4": {"float64": 0.26, "float32": 8.1, "float16": 65},
}
#: GT/s of a lane by PCIe generation, and the share of its bits that are data (8b/10b, 128b/130b; PAM4 with flits).
PCIE = {1: (2.5, 0.8), 2: (5.0, 0.8), 3: (8.0, 128 / 130), 4: (16.0, 128 / 130), 5: (32.0, 128 / 130), 6: (64.0, 0.984)}
#: Operations of a core in a cycle by flag of /proc/cpuinfo: two FMA units (Intel's optimization manual), two operations each.
FLOAT32_PER_CYCLE = {"avx512f": 64, "fma": 32, "avx": 16, "sse2": 8}


def gpu_tflops(model: str, dtype: str) -> float | None:
    """Return the ceiling of a GPU with this name, such as ``NVIDIA H100 80GB HBM3``."""
    words = model.replace("-", " ").split()
    return next((rates.get(dtype) for name, rates in GPUS.items() if name in words), None)


def cpu_tflops(system: Path, cores: int, dtype: str) -> float | None:
    """Cores x highest frequency x operations in a cycle. Only for dtypes that a CPU computes without matrix units."""
    widths = {"float32": 1.0, "float64": 0.5}
    frequency, flags = highest_frequency(system), _flags(system)
    per_cycle = next((count for flag, count in FLOAT32_PER_CYCLE.items() if flag in flags), None)
    if frequency is None or per_cycle is None or dtype not in widths:
        return None
    return cores * frequency * per_cycle * widths[dtype] / 1e12


def highest_frequency(system: Path) -> float | None:
    """Return the highest frequency of a CPU, in Hz, with its boost."""
    try:
        return float((system / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").read_text()) * 1000
    except (OSError, ValueError):
        return None


def pcie_gb_s(generation: int, lanes: int) -> float | None:
    """GB/s of a link in one direction, without the headers of its packets."""
    if generation not in PCIE or lanes <= 0:
        return None
    rate, share = PCIE[generation]
    return rate * share * lanes / 8


def dram_gb_s(clock_mhz: float, bus_bits: float) -> float | None:
    """GB/s of a GPU's memory: two transfers in a cycle over the whole bus."""
    return 2 * clock_mhz * 1e6 * bus_bits / 8 / 1e9 if clock_mhz > 0 and bus_bits > 0 else None


def ceiling_by_nvml(node: Node, read: Callable[[Any, Any], tuple[float | None, str]]) -> tuple[float | None, str]:
    """Return what ``read`` (pynvml, the handle of the node's GPU) returns: the best value, or None and why it is not known."""
    import torch

    try:
        nvml = node.load_nvml()
        return read(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(node.device).uuid}"))
    except OSError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 NVMLError is known only where pynvml is installed
        return None, f"NVML: {error}"


def _flags(system: Path) -> set[str]:
    try:
        with open(system / "proc/cpuinfo") as file:
            return next((set(line.partition(":")[2].split()) for line in file if line.startswith("flags")), set())
    except OSError:
        return set()

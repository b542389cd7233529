"""The best values that physics and data sheets allow. None where a part of the formula is not known.

A ceiling may be too high, never too low: a figure above its ceiling is a wrong measurement.
"""

from __future__ import annotations

from pathlib import Path

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
    """Of a GPU with this name, such as ``NVIDIA H100 80GB HBM3``."""
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
    """Of a CPU, in Hz, with its boost."""
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


def _flags(system: Path) -> set[str]:
    try:
        with open(system / "proc/cpuinfo") as file:
            return next((set(line.partition(":")[2].split()) for line in file if line.startswith("flags")), set())
    except OSError:
        return set()

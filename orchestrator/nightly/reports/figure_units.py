"""Figures in the units that people use: TFLOP/s, GB/s, Gbit/s, µs, and the change of a figure in percent. Pure."""

from __future__ import annotations

import math

#: Unit -> its base with the factor to it; rates of memory, disks and computing, and bits of a link.
_RATES = {
    "TFLOP/s": (1e12, "FLOP/s"), "GFLOP/s": (1e9, "FLOP/s"), "GB/s": (1e9, "B/s"), "MB/s": (1e6, "B/s"), "B/s": (1.0, "B/s"),
    "Gbit/s": (1e9, "bit/s"), "Mbit/s": (1e6, "bit/s"), "GHz": (1e9, "Hz"), "FLOP/s": (1.0, "FLOP/s"),
}  # fmt: skip
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"))
#: The time of a byte, whose rate people know.
PER_BYTE = "s/byte"
_NAMES = {"link beta": "link rate"}


def name(metric: str) -> str:
    """The metric as people know it: the time of a byte is shown as a rate."""
    return _NAMES.get(metric, metric)


def quantity(value: float, unit: str) -> str:
    """Three digits with the unit: 7.41 ms, 957 Mbit/s, 61.2 TFLOP/s, 0.967 for a share."""
    if unit == PER_BYTE:
        return quantity(8 / value, "bit/s") if value > 0 else f"{value:.3g} {unit}"
    factor, base = _RATES.get(unit, (1.0, unit))
    if (base.endswith(("/s", "Hz")) and base != unit) or unit in ("bit/s", "B/s", "FLOP/s"):
        amount = value * factor
        size, prefix = next((entry for entry in _LARGE if abs(amount) >= 0.9995 * entry[0]), (1.0, ""))
        return f"{_digits(amount / size)} {prefix}{base}"
    if unit == "s" and 0 < abs(value) < 1:
        size, prefix = next((entry for entry in _SMALL if abs(value) >= 0.9995 * entry[0]), _SMALL[-1])
        return f"{_digits(value / size)} {prefix}s"
    return f"{_digits(value)} {unit}".removesuffix(" 1")


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def change(share: float, unit: str = "") -> str:
    """-0.587 -> -58.7 %; of the time of a byte the change of its rate."""
    share = 1 / (1 + share) - 1 if unit == PER_BYTE and share > -1 else share
    return f"{share * 100:+,.0f} %" if abs(share) >= 10 else f"{round(share * 100, 1) + 0.0:+.1f} %"  # never -0.0


def limit(excess: float) -> str:
    """The least change that fails, as a share of the value: 5 %."""
    percent = -100 * math.expm1(-excess)
    return f"{percent:.0f} %" if percent >= 9.95 or abs(percent - round(percent)) < 0.05 else f"{percent:.1f} %"

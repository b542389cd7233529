"""Quantities in words: sizes, times, rates and shares."""

from __future__ import annotations

import math


def size(count: int) -> str:
    """``4 KiB``, ``1 MiB``; sizes that are no whole number of them in bytes: ``971,048 B``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if unit <= count < 1024 * unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count:,} B"


def milliseconds(seconds: float | None) -> str:
    """Four significant digits: 0.284, 13.41, 478.2, 4,577."""
    if seconds is None:
        return "-"
    return _digits(seconds * 1000)


def duration(seconds: float) -> str:
    """Write a duration for sentences: 38 us, 14 ms, 0.89 s, 4.5 s."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def bandwidth(gigabytes: float | None) -> str:
    """10^9 bytes per second."""
    return "-" if gigabytes is None else f"{gigabytes:.4f}" if gigabytes < 1 else _digits(gigabytes)


def rate(bits: float) -> str:
    """``957 Mbit/s``, ``1 Gbit/s``."""
    for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= unit:
            return f"{bits / unit:.4g} {name}"
    return f"{bits:.0f} bit/s"


def multiple(change: float) -> str:
    """A change of 1.8 is ``2.8`` times as much."""
    return f"{1 + change:.2f}" if change < 1 else f"{1 + change:.1f}" if change < 99 else f"{1 + change:.3g}"


def percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}".replace("%", " %")


def fraction(part: float | None) -> str:
    """``2 %``, ``0.5 %``; a question mark where it is not known."""
    return f"{part * 100:{'.2g' if part < 1 else '.0f'}} %" if part is not None and part < math.inf else "?"


def _digits(value: float) -> str:
    """Four significant digits, at most three behind the point."""
    if value < 0.01:
        return f"{value:.4f}"
    for limit, digits in ((10, 3), (100, 2), (1000, 1)):
        if value < limit:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"

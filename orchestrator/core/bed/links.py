"""``ccbed_link`` as a user writes it, in the units of tc, and how a shaped link is told. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ...model.bed import LinkSpec
from ..spec import values

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)bit(?:/s|ps)?", re.IGNORECASE)
_BYTES_A_SECOND = re.compile(r"[\d.]+\s*[kmgt]?i?b?ps", re.IGNORECASE)
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_LOSS = re.compile(r"(\d+(?:\.\d+)?)\s*%")
LEAST_RATE, MOST_RATE = 8_000, 400 * 10**9
#: A bucket must hold a whole frame, or nothing ever leaves.
LEAST_BURST, MOST_BURST = 1600, 64 * 1024**2
MOST_DELAY_S = 10.0
#: The default bucket holds what the link carries in this time. Where all nodes send and receive at once on few cores the
#: kernel wakes a shaper up late by a millisecond and more, and what the bucket cannot hold meanwhile is lost: with 1 ms a ring
#: of four takes 6 % longer. More would show in what leaves a link alone for a while and then uses it above its rate: a message
#: gains up to this time once, as often as both of its ends have rested.
BURST_S = 0.002
BURST_FLOOR = 32 * 1024


def parse(value: Any) -> LinkSpec:
    """``{rate: 1gbit, burst: 64k, delay: 1ms, loss: 0.1%, groups: 2, uplink: 1gbit}``, each optional. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping of {', '.join(_READ)}")
    if unknown := [str(key) for key in value if key not in _READ]:
        raise ValueError(f"{unknown[0]} is unknown; {values.nearest(unknown[0], _READ)}")
    if not value:
        raise ValueError("says nothing; give a rate, such as {rate: 1gbit}")
    found = {key: _read(key, given) for key, given in value.items()}
    rate, uplink = found.get("rate", 0), found.get("uplink", 0)
    _refuse(found)
    return LinkSpec(
        rate=rate,
        burst=found.get("burst") or (default_burst(rate) if rate else 0),
        delay_s=found.get("delay", 0.0),
        loss=found.get("loss", 0.0),
        groups=found.get("groups", 1),
        uplink=uplink,
        uplink_burst=default_burst(uplink) if uplink else 0,
    )


def default_burst(rate: int) -> int:
    """Bytes that a bucket of ``rate`` bit/s holds: few, so that little is sent above the rate after a pause, and enough to reach it."""
    return max(BURST_FLOOR, math.ceil(rate / 8 * BURST_S))


def text(link: LinkSpec | None) -> str:
    """``1 Gbit/s tbf, burst 31 kB``; what is not set is not told."""
    if link is None or link == LinkSpec():
        return "unshaped"
    shaped = [f"{speed(link.rate)} tbf, burst {link.burst / 1000:.3g} kB"] if link.rate else []
    delay = [f"delay {link.delay_s * 1000:g} ms"] if link.delay_s else []
    loss = [f"loss {link.loss * 100:g}%"] if link.loss else []
    tiers = [f"{link.groups} groups behind uplinks of {speed(link.uplink)}"] if link.groups > 1 else []
    return ", ".join([*shaped, *delay, *loss, *tiers])


def speed(rate: int) -> str:
    """bit/s in the largest unit that keeps it short: ``145 Mbit/s``."""
    for unit, size in (("Tbit/s", 10**12), ("Gbit/s", 10**9), ("Mbit/s", 10**6), ("kbit/s", 10**3)):
        if rate >= size:
            return f"{rate / size:.6g} {unit}"
    return f"{rate} bit/s"


def _read(key: str, given: Any) -> Any:
    try:
        return _READ[key](given)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _refuse(found: Mapping[str, Any]) -> None:
    """What does not go together. Raises ValueError."""
    if "burst" in found and "rate" not in found:
        raise ValueError("burst: is the bucket of a rate; give a rate as well")
    if ("uplink" in found) != (found.get("groups", 1) > 1):
        raise ValueError("uplink: goes with groups: 2 or more, and groups with an uplink such as 1gbit")


def _rate(given: Any) -> int:
    match = _RATE.fullmatch(str(given).strip())
    if not match:
        known = "must be a rate such as 145mbit or 1gbit"
        if _BYTES_A_SECOND.fullmatch(str(given).strip()):
            known += " (to tc, bps are bytes)"
        raise ValueError(known)
    rate = round(float(match[1]) * _DECIMAL[match[2].lower()])
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise ValueError(f"must be from {speed(LEAST_RATE)} to {speed(MOST_RATE)}")
    return rate


def _burst(given: Any) -> int:
    size = values.size(str(given))
    if not LEAST_BURST <= size <= MOST_BURST:
        raise ValueError(f"must be from {LEAST_BURST} bytes, a frame, to {MOST_BURST // 1024**2}m")
    return size


def _delay(given: Any) -> float:
    delay = values.seconds(given)
    if delay > MOST_DELAY_S:
        raise ValueError(f"must be <= {MOST_DELAY_S:g}s")
    return delay


def _loss(given: Any) -> float:
    match = _LOSS.fullmatch(str(given).strip())
    part = float(match[1]) / 100 if match else 1.0
    if part >= 1.0:
        raise ValueError("must be a part of the packets such as 0.1%")
    return part


def _groups(given: Any) -> int:
    return values.whole(given, 1)


_READ: Mapping[str, Callable[[Any], Any]] = {
    "rate": _rate,
    "burst": _burst,
    "delay": _delay,
    "loss": _loss,
    "groups": _groups,
    "uplink": _rate,
}

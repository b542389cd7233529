"""Names of files, lists and ages as people read them, and ages as they write them."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterable
from pathlib import Path

from ..core.spec import written_values
from ..model.errors import UsageError

_DAY = 86_400.0
#: A drill that takes longer is said to be long, and how to make it short.
LONG_S, SHORTER = 300.0, "a shorter drill: --budget 5m, --no-reference, or fewer steps"


def age(seconds: float) -> str:
    """``12 s``, ``3 min``, ``2 h``, ``4 d``."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def short_list(names: Iterable[str]) -> str:
    """``n0 n1 n2``; a long list keeps its ends."""
    names = list(names)
    return " ".join(names) if len(names) <= 8 else f"{' '.join(names[:3])} … {names[-1]} ({len(names)})"


def short_path(path: str | Path) -> str:
    """Return a path relative to the current directory where it is below that, else unchanged."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def run_path(directory: Path) -> str:
    """Return the short path of a run, as ``…/latest`` while it is the latest."""
    latest = directory.parent / "latest"
    return short_path(latest if latest.resolve() == directory.resolve() else directory)


def duration(seconds: float) -> str:
    """``0.3 s``, ``42 s``, ``3 min 05 s``, ``1 h 20 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def is_twin(path: str) -> bool:
    """Tell whether the directory is that of a run to compare with."""
    return "-twin-" in Path(path).name


def age_s(option: str, text: str) -> float:
    """``7d``, ``12h`` -> seconds. Raises UsageError that names the option."""
    try:
        return float(text[:-1]) * _DAY if text.endswith("d") else written_values.seconds(text)
    except ValueError:
        raise UsageError(f"{option}: must be a time such as 7d or 12h (got {text})") from None


def since_s(option: str, text: str | None, now: float) -> float | None:
    """An age before ``now``, or a date or time (UTC unless it says otherwise) -> seconds since 1970. Raises UsageError."""
    return None if text is None else _seconds(option, text, now, -1, "an age")


#: The year 3000, in seconds since 1970.
_LATEST_S = 32_503_680_000.0


def moment(option: str, text: str) -> str:
    """A time to come (3d), or a date or time (UTC unless it says otherwise) -> UTC, in ISO 8601. Raises UsageError."""
    seconds = _seconds(option, text, time.time(), 1, "a time")
    if not time.time() < seconds < _LATEST_S:
        raise UsageError(f"{option}: must be a time to come, before the year 3000 (got {text})")
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _seconds(option: str, text: str, now: float, sign: int, kind: str) -> float:
    try:
        parsed = datetime.datetime.fromisoformat(text)
    except ValueError:
        try:
            return now + sign * age_s(option, text)
        except UsageError:
            raise UsageError(
                f"{option}: must be {kind} such as 30d or a date such as 2026-11-01 (got {text})"
            ) from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp()

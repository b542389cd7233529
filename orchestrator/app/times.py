"""Times on the command line: ages such as 30d or 12h, and dates."""

from __future__ import annotations

import datetime

from ..core.spec import values
from ..model.errors import UsageError

_DAY = 86_400.0


def age_s(option: str, text: str) -> float:
    """``7d``, ``12h`` -> seconds. Raises UsageError that names the option."""
    try:
        return float(text[:-1]) * _DAY if text.endswith("d") else values.seconds(text)
    except ValueError:
        raise UsageError(f"{option}: must be a time such as 7d or 12h (got {text})") from None


def since_s(option: str, text: str | None, now: float) -> float | None:
    """An age before ``now``, or a date or time (UTC unless it says otherwise) -> seconds since 1970. Raises UsageError."""
    if text is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        try:
            return now - age_s(option, text)
        except UsageError:
            raise UsageError(
                f"{option}: must be an age such as 30d or a date such as 2026-11-01 (got {text})"
            ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()

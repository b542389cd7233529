"""Readers of the Slurm variables of an inventory; they raise ValueError with what is expected.

Every value becomes one argument ``--option=value`` of Slurm's clients, without a shell, and one line of a batch script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..core.inventory import literal
from ..core.spec import written_values

PROVIDER = "slurm"
#: What runs the nodes of a Slurm job in a container.
CONTAINERS = ("none", "pyxis", "apptainer")
#: Variables that are options of salloc and sbatch under the same name.
NAMED = ("partition", "account", "qos", "constraint", "reservation", "exclude", "gres", "nodelist")
_OPTION = re.compile(r"[a-z][a-z0-9-]{1,63}")
#: Lists of names, hosts and features: n[1-4], a100&(ib|roce), gpu:8, /a:/b, me@example.org. No space, quote, $ or leading dash.
_WORD = re.compile(r"[A-Za-z0-9_/(\[][A-Za-z0-9_/.+@=,:#!&|()\[\]*-]{0,254}")
_CLOCK = re.compile(r"(?:(\d{1,4})-)?(\d{1,5})(?::(\d{1,2}))?(?::(\d{1,2}))?")
_UNITS = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*(s|m|min|h|d)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
MAX_TIME_S = 365 * 86400
#: Options that ccbed sets or that change what it relies on, and what to write instead. Slurm accepts any beginning of a name.
RESERVED: Mapping[str, str] = {
    "nodes": "set ccbed_nodes and ccbed_spares",
    "time": "set ccbed_time",
    **{name: f"set ccbed_{name}" for name in NAMED},
    "job-name": "the job is called after the bed; set ccbed_bed",
    **dict.fromkeys(
        (
            "comment", "no-kill", "no-shell", "immediate", "jobid", "array", "wrap", "parsable", "wait", "quiet", "verbose",
            "help", "usage", "version", "test-only", "requeue", "no-requeue", "output", "error", "input", "chdir", "export",
            "export-file", "get-user-env", "kill-command", "ntasks", "batch", "bell", "no-bell", "hold", "uid", "gid", "clusters",
            "nodefile", "het-group", "signal",
        ),
        "remove it",
    ),
}  # fmt: skip


def word(value: Any) -> str:
    """A value of an option."""
    result = literal.text(value)
    if not _WORD.fullmatch(result):
        raise ValueError("must be one word of at most 255 letters, digits and _ / . + @ = , : # ! & | ( ) [ ] * -")
    return result


def time_s(value: Any) -> int:
    """A time limit as Slurm writes it, or with a unit, in seconds: ``30:00``, ``12:00:00``, ``1-06:00``, ``90m``, ``2h``.

    A bare number is rejected: it is minutes for Slurm, seconds elsewhere in an inventory; YAML reads 1:30 as the number 90.
    """
    match = _UNITS.fullmatch(str(value))
    seconds = round(float(match[1]) * _SECONDS[match[2]]) if match else _clock_s(value)
    if not 60 <= seconds <= MAX_TIME_S:
        raise ValueError("must be a time from 1m to 365d")
    return seconds


def _clock_s(value: Any) -> int:
    match = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    if not match or (match[1] is None and match[3] is None):
        raise ValueError('must be a time limit in quotes such as "30m", "12:00:00" or "1-06:00:00"')
    first, second, third = (int(part or 0) for part in match.group(2, 3, 4))
    if second > 59 or third > 59 or (match[1] and first > 23):
        raise ValueError(
            "must be a time limit such as 12:00:00: at most 59 minutes and seconds, and 23 hours after days"
        )
    if match[1] is not None:
        return int(match[1]) * 86400 + first * 3600 + second * 60 + third
    return first * 3600 + second * 60 + third if match[4] is not None else first * 60 + second


def format_time(seconds: int) -> str:
    """``D-HH:MM:SS``, the form that Slurm reads in one way only."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{rest:02}"


def options(value: Any) -> dict[str, str]:
    """Further long options of sbatch: name -> value, "" for a flag. ``--`` before a name is optional."""
    if not isinstance(value, dict):
        raise ValueError("must be a mapping of long options of sbatch to values, such as {mem: 64G, exclusive: true}")
    return dict(_option(str(name).removeprefix("--"), item) for name, item in value.items())


def _option(name: str, value: Any) -> tuple[str, str]:
    if not _OPTION.fullmatch(name):
        raise ValueError(f"{written_values.show(name)}: must be a long option of sbatch such as mem or exclusive")
    if reserved := next((option for option in RESERVED if option.startswith(name)), ""):
        what = (
            f"{name} is not allowed here"
            if name == reserved
            else f"{name} is not allowed here: Slurm reads it as {reserved}"
        )
        raise ValueError(f"{what}: ccbed sets it or relies on it; {RESERVED[reserved]}")
    if value is False or value is None or isinstance(value, dict | list):
        raise ValueError(f"{name}: must be text, a number, or true for an option without a value")
    try:
        return name, "" if value is True else word(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _container(value: Any) -> str:
    if value not in CONTAINERS:
        raise ValueError(f"unknown; {written_values.nearest(str(value), CONTAINERS)}")
    return str(value)


def _ports(value: Any) -> tuple[int, int]:
    """``first-last``, both included."""
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", str(value))
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1024 <= first <= last <= 65535:
        raise ValueError("must be a range of ports from 1024 to 65535, such as 30000-30100")
    return first, last


#: The variables of an inventory that only this provider honours.
READERS: Mapping[str, Callable[[Any], Any]] = {
    "container": _container, "ports": _ports, "time": time_s, **dict.fromkeys(NAMED, word), "sbatch": options,
}  # fmt: skip

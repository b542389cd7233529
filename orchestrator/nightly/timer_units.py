"""The systemd units that run a night at a time of day. Pure: text from values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """``calendar``: as OnCalendar of systemd.timer(5). ``command``: absolute; ``directory``: in which it runs."""

    suite: str
    bed: str
    calendar: str
    command: Sequence[str]
    directory: str
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        """Of both units, without their suffix. A night of another suite or bed has units of its own."""
        return _UNSAFE.sub("-", f"ccbed-nightly-{self.bed}-{self.suite}".rstrip("-"))


def calendar(text: str) -> str:
    """``2:00`` -> every day at that time; anything else is systemd's own syntax. Raises ValueError for several lines."""
    match = _TIME.fullmatch(text.strip())
    if match:
        return f"*-*-* {int(match[1]):02}:{match[2]}:00"
    if not text.strip() or not text.isprintable():
        raise ValueError("must be a time such as 02:00, or a calendar expression such as Mon..Fri 02:00")
    return text.strip()


def service(schedule: Schedule) -> str:
    """A night has its own deadlines, so the unit has none. A verdict that is no pass fails the unit: monitoring sees it.

    KillMode: the nodes of a bed that the night brought up outlive it.
    """
    environment = "".join(f"Environment={quote(f'{name}={value}')}\n" for name, value in schedule.environment.items())
    return f"""\
[Unit]
Description=ccbed night: suite {_line(schedule.suite)} on bed {_line(schedule.bed or "as it is up")}
Documentation=man:systemd.service(5)
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
WorkingDirectory={_line(schedule.directory)}
{environment}ExecStart={" ".join(map(quote, schedule.command))}
TimeoutStartSec=infinity
KillMode=process
"""


def timer(schedule: Schedule) -> str:
    """A night that was missed, because the controller was off, is run when it is on."""
    return f"""\
[Unit]
Description=Starts {schedule.name}.service

[Timer]
OnCalendar={_line(schedule.calendar)}
Persistent=true
AccuracySec=1min

[Install]
WantedBy=timers.target
"""


def quote(word: str) -> str:
    """A word of a command line in a unit: neither a specifier (%) nor a variable ($). Raises ValueError for control characters."""
    text = _line(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return text if re.fullmatch(r"[A-Za-z0-9_./:=@,+-]+", text) else f'"{text}"'


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r} has a control character, which a unit cannot hold")
    return text.replace("%", "%%")

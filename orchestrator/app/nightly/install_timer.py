"""Carry out `ccbed nightly --install-timer`: print the systemd units, and write them only with --yes."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...model.errors import InfrastructureError, UsageError
from ...model.frozen import dataclass
from ...store import paths
from ..session import Session
from .request import NightRequest

_SYSTEM = Path("/etc/systemd/system")
_SECONDS = 30
_WHEN = "--install-timer"
_RESUME_OPEN = "--resume-open"
_OWN = (_WHEN, "--system", "--yes")
#: Options whose values may be secret -> the variable that sets them instead.
_SECRET = {"--notify": "CCBED_NOTIFY", "--on-culprit": "CCBED_ON_CULPRIT"}
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_SPECIAL = re.compile(r'[\\"`$]')
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """``calendar``: as OnCalendar of systemd.timer(5). ``command``: absolute; ``directory``: in which it runs. ``state``: XDG_STATE_HOME.

    ``environment``: may be secret: every user can read the environment of a unit. ``folder``: of the units and of its file.
    """

    suite: str
    bed: str
    calendar: str
    command: Sequence[str]
    directory: str
    state: str
    environment: Mapping[str, str]
    folder: Path

    @property
    def name(self) -> str:
        """Of both units, without their suffix. A night of another suite or bed has units of its own."""
        return _UNSAFE.sub("-", f"ccbed-nightly-{self.bed}-{self.suite}".rstrip("-"))

    @property
    def environment_file(self) -> Path:
        return self.folder / f"{self.name}.env"


def run(session: Session, suite: str, request: NightRequest) -> None:
    """Raises UsageError for a wrong time, InfrastructureError where the units cannot be written or started."""
    schedule = _schedule(session, suite, request)
    folder = schedule.folder
    files = {
        folder / f"{schedule.name}.service": service(schedule),
        folder / f"{schedule.name}.timer": timer(schedule),
    }
    terminal = session.terminal
    for path, text in files.items():
        terminal.line(f"# {path}")
        terminal.line(text)
    if schedule.environment:
        terminal.line(f"# {schedule.environment_file}, for its owner only")
        terminal.lines(f"{name}=(not printed)" for name in schedule.environment)
        files = {schedule.environment_file: environment_text(schedule), **files}
    if not request.timer.yes:
        terminal.line("nothing was written; to write the units and start the timer, add --yes")
        return
    scope = [] if request.timer.system else ["--user"]
    _require_systemd(scope, schedule)
    _write(files)
    for arguments in (["daemon-reload"], ["enable", "--now", f"{schedule.name}.timer"]):
        _systemctl([*scope, *arguments])
    terminal.line(
        f"timer {schedule.name} is started     next: systemctl {' '.join([*scope, 'list-timers', schedule.name + '.timer'])}"
    )
    if not request.timer.system:
        terminal.line(f"it runs only while you are logged in, unless: loginctl enable-linger {getpass.getuser()}")
    terminal.line(
        f"undo: systemctl {' '.join([*scope, 'disable', '--now', schedule.name + '.timer'])}; rm {folder}/{schedule.name}.*"
    )


def _schedule(session: Session, suite: str, request: NightRequest) -> Schedule:
    try:
        schedule = Schedule(
            suite=Path(suite).stem,
            bed=request.bed.bed or (request.bed.inventory.stem if request.bed.inventory else ""),
            calendar=calendar(request.timer.install_timer or ""),
            command=tuple(_command(session.argv)),
            directory=str(Path.cwd()),
            state=str(session.state.parent),
            environment=_environment(request),
            folder=_SYSTEM if request.timer.system else _user_folder(),
        )
        service(schedule)
        environment_text(schedule)
    except ValueError as error:
        raise UsageError(f"--install-timer: {error}", hint="--install-timer 02:00") from None
    _check_calendar(schedule.calendar)
    return schedule


def _environment(request: NightRequest) -> dict[str, str]:
    """The variables of ccbed that this shell sets, and options that may be secret.

    Without the URL of its index, a night would find no earlier ones.
    """
    own = {name: value for name, value in sorted(os.environ.items()) if name.startswith("CCBED_")}
    given = {"--notify": shlex.join(request.notify), "--on-culprit": request.on_culprit}
    return own | {_SECRET[name]: value for name, value in given.items() if value}


def _command(words: Sequence[str]) -> Iterator[str]:
    """The same command line without the options of the timer, and of its environment; relative paths hold, because it runs in the
    same directory.

    A night whose process died must not block the later ones until a person acts.
    """
    yield from (sys.executable, "-P", "-m", "orchestrator.cli")
    with_value = (_WHEN, *_SECRET)
    skips_next = False
    for word in words:
        if not (skips_next or word in (*_OWN, *_SECRET) or word.partition("=")[0] in with_value):
            yield word
        skips_next = word in with_value and not skips_next
    if _RESUME_OPEN not in words:
        yield _RESUME_OPEN


def _check_calendar(expression: str) -> None:
    """systemd itself judges its expressions, where it is installed."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return
    if _execute([program, "calendar", expression]):
        raise UsageError(f"--install-timer: not a time of systemd (got {expression})", hint="--install-timer 02:00")


def _user_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"


def _write(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        try:
            paths.write(path, text.encode())
        except OSError as error:
            raise InfrastructureError(
                f"{path}: cannot be written: {error.strerror}", hint="sudo, or without --system"
            ) from None


def _require_systemd(scope: Sequence[str], schedule: Schedule) -> None:
    """Raises InfrastructureError where systemd cannot start the timer: then no unit is written."""
    state = f"XDG_STATE_HOME={schedule.state}"
    command = f"{shlex.join(['cd', schedule.directory])} && {shlex.join(['env', state, *schedule.command])}"
    cron = f"a line for cron does the same: MINUTE HOUR * * * {command}".replace("%", r"\%")
    if schedule.environment:
        cron += f"; set in its environment: {', '.join(schedule.environment)}"
    if shutil.which("systemctl") is None:
        raise InfrastructureError("systemd is not on this machine (no systemctl); nothing was written", hint=cron)
    reason = _execute(["systemctl", *scope, "show-environment"])
    if reason:
        manager = "the systemd of this user" if scope else "systemd"
        way = f"log in as the user with a session of its own, or: --system as root; or {cron}" if scope else cron
        raise InfrastructureError(f"{manager} cannot be reached: {reason}; nothing was written", hint=way)


def _systemctl(arguments: Sequence[str]) -> None:
    reason = _execute(["systemctl", *arguments])
    if reason:
        command = shlex.join(["systemctl", *arguments])
        raise InfrastructureError(f"{command}: {reason}", hint=f"the units are written; try again: {command}")


def _execute(command: Sequence[str]) -> str:
    """The reason for which a command failed; empty if it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no reply within {_SECONDS} s"
    except OSError as error:
        return str(error.strerror)
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""


# --- the text of the units ---------------------------------------------------------------------------------------------


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
    environment = f"Environment={quote(f'XDG_STATE_HOME={schedule.state}')}\n"
    if schedule.environment:
        environment += f"EnvironmentFile={_line(str(schedule.environment_file))}\n"
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


def environment_text(schedule: Schedule) -> str:
    """As EnvironmentFile of systemd.exec(5), which expands nothing in it. Raises ValueError for control characters."""
    values = {name: _SPECIAL.sub(r"\\\g<0>", _printable(value)) for name, value in schedule.environment.items()}
    return "".join(f'{name}="{value}"\n' for name, value in values.items())


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
    return _printable(text).replace("%", "%%")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a text has a control character, which a unit cannot hold")
    return text

"""The keeper as a systemd unit, which starts it again after a reboot and after a crash, on hosts where systemd is pid 1.

A system unit if this user is root or may use sudo without a password; else a unit of the user's own systemd, which must linger.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from ...model.frozen import dataclass
from ...system import plain_files
from ..files import label
from ..keeper import keeper_start
from ..oslayer import processes

SYSTEM, USER = "system", "user"
RUNNING = Path("/run/systemd/system")
SYSTEM_UNITS = Path("/etc/systemd/system")
NO_SYSTEMD = "this host does not run systemd"
#: The keeper's options, one per line. Every user may read a unit, but only the owner this file.
OPTIONS = "options"
_START_S = 30.0
#: How long a command may take. After a reboot, a start waits until the host has booted.
_LIMIT_S = 120.0
LINGERING = Path("/var/lib/systemd/linger")
#: How long the systemd of a user may take to start.
_MANAGER_S = 5.0
_TEMPLATE = """\
# Written by `ccbed up`, removed by `ccbed down`.
[Unit]
Description=Host agent of ccbed bed {bed}
ConditionPathExists={archive}
RequiresMountsFor={hostdir}
After=network.target docker.service
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
ExecStart={python} {archive} keeper @{options}
{user}Environment="{variable}={tag}"
WorkingDirectory={hostdir}
UMask=0077
# The host agent's nodes, and the connections that it serves, outlive it: `ccbed down` ends them.
KillMode=process
OOMPolicy=continue
Restart=on-failure
RestartSec=1
TimeoutStartSec={limit_s:g}
# No sandbox: the host agent enters the namespaces of nodes, and runs the commands of ccbed_engine_control.

[Install]
WantedBy={target}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """A systemd that may keep units for this user. ``root``: the command that acts as root; empty if it is not needed."""

    scope: str
    folder: Path
    root: tuple[str, ...] = ()

    def systemctl(self, *words: str, check: bool = False) -> bool:
        """Return whether it succeeds. ``check``: raise OSError with its message if it does not."""
        scope = ("--user",) if self.scope == USER else ()
        return _run([*self.root, "systemctl", *scope, *words], check=check)

    def as_root(self, *argv: str) -> None:
        """Raises OSError."""
        _run([*self.root, *argv], check=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The keeper that shall run. ``more``: its options beside those of every keeper; ``named``: see ``launch.ensure_keeper``."""

    hostdir: Path
    bed: str
    archive: Path
    digest: str
    python: str
    named: str
    more: Sequence[str]


def unit_name(bed: str, hostdir: str) -> str:
    return f"ccbed-keeper-{processes.bed_tag(bed, hostdir)}.service"


def ensure_keeper(wanted: Wanted) -> None:
    """Ensure that a keeper runs the archive, as a unit if this host can have one. Raises RuntimeError.

    If the unit cannot be installed or does not start, the keeper starts without one, and its file ``unit.json`` names the reason.
    """
    directory = wanted.hostdir / label.KEEPER_DIR
    if keeper_start.is_running(directory, wanted.digest, wanted.named):
        return
    manager, problem = find_manager()
    if manager:
        try:
            with keeper_start.exclusive(directory):
                _ensure_unit(manager, wanted)
            plain_files.write_json(directory / label.UNIT, {"scope": manager.scope})
            return
        except OSError as error:
            problem = str(error)
    remove(str(wanted.hostdir), wanted.bed)
    plain_files.write_json(directory / label.UNIT, {"scope": "", "problem": problem})
    keeper_start.ensure_keeper(
        wanted.hostdir, wanted.bed, wanted.archive, wanted.digest, wanted.python, wanted.more, named=wanted.named
    )


def find_manager() -> tuple[Manager | None, str]:
    """The systemd for this user's units, or None with the reason."""
    if not RUNNING.is_dir():
        return None, NO_SYSTEMD
    if os.geteuid() == 0:
        return Manager(scope=SYSTEM, folder=SYSTEM_UNITS), ""
    if _run(["sudo", "-n", "true"]):
        return Manager(scope=SYSTEM, folder=SYSTEM_UNITS, root=("sudo", "-n")), ""
    name = _user_name()
    if not _lets_linger(name):
        return None, f"{name} may not become root and does not linger; fix: sudo loginctl enable-linger {name}"
    manager = Manager(scope=USER, folder=_user_units())
    if not manager.systemctl("show-environment"):
        return None, f"the systemd of user {name} does not respond; fix: sudo systemctl start user@{os.geteuid()}"
    return manager, ""


def remove(hostdir: str, bed: str) -> None:
    """Stop, disable and remove the unit of a bed's keeper, if there is one. Raises RuntimeError if that is not permitted."""
    name = unit_name(bed, hostdir)
    for scope, folder in ((SYSTEM, SYSTEM_UNITS), (USER, _user_units())):
        path = folder / name
        if not path.exists():
            continue
        root = ("sudo", "-n") if scope == SYSTEM and os.geteuid() else ()
        manager = Manager(scope=scope, folder=folder, root=root)
        try:
            manager.systemctl("disable", "--now", name)
            manager.as_root("rm", "-f", str(path))
        except OSError as error:
            fix = f"sudo systemctl disable --now {name}; sudo rm {path}"
            raise RuntimeError(f"{path} cannot be removed: {error}; fix: {fix}") from None
        manager.systemctl("daemon-reload")
        manager.systemctl("reset-failed", name)


def render(scope: str, wanted: Wanted, user: str) -> str:
    """The text of the unit. Its user and every other one may read it."""
    return _TEMPLATE.format(
        bed=_literal(wanted.bed),
        hostdir=_literal(str(wanted.hostdir)),
        archive=_literal(str(wanted.archive)),
        python=_literal(shutil.which(wanted.python) or wanted.python),
        options=_literal(str(wanted.hostdir / label.KEEPER_DIR / OPTIONS)),
        user=f"User={user}\n" if scope == SYSTEM else "",
        variable=processes.TAG_VARIABLE,
        tag=keeper_start.starting_tag(wanted.bed, wanted.hostdir),
        limit_s=_START_S,
        target="multi-user.target" if scope == SYSTEM else "default.target",
    )


def _ensure_unit(manager: Manager, wanted: Wanted) -> None:
    """A unit that is as wanted is only started: it may be starting just now, after a reboot. Raises OSError."""
    directory, name = wanted.hostdir / label.KEEPER_DIR, unit_name(wanted.bed, str(wanted.hostdir))
    if keeper_start.is_running(directory, wanted.digest, wanted.named):
        return
    arguments = (*keeper_start.keeper_arguments(wanted.hostdir, wanted.bed, wanted.digest, wanted.named), *wanted.more)
    options = "".join(f"{line}\n" for line in (*arguments, "--unit")).encode()
    text = render(manager.scope, wanted, _user_name())
    if (_content(manager.folder / name), _content(directory / OPTIONS)) == (text.encode(), options):
        manager.systemctl("reset-failed", name)
        if manager.systemctl("start", name) and keeper_start.is_running(directory, wanted.digest, wanted.named):
            return
    manager.systemctl("stop", name)
    keeper_start.end_keeper(directory)
    plain_files.replace_file(directory / OPTIONS, options)
    _install(manager, directory / name, text)
    manager.systemctl("reset-failed", name)
    manager.systemctl("start", name, check=True)
    if not keeper_start.is_running(directory, wanted.digest, wanted.named):
        raise OSError(f"unit {name} has started no host agent")


def _install(manager: Manager, draft: Path, text: str) -> None:
    """Write and enable a unit. ``draft``: where it is written first, as this user. Raises OSError."""
    plain_files.replace_file(draft, text.encode())
    manager.as_root("install", "-D", "-m", "0644", str(draft), str(manager.folder / draft.name))
    draft.unlink()
    manager.systemctl("daemon-reload", check=True)
    manager.systemctl("enable", draft.name, check=True)


def _run(argv: Sequence[str], *, check: bool = False) -> bool:
    environment = {**os.environ, "LC_ALL": "C", "XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"}
    try:
        done = subprocess.run(
            argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if check:
            raise OSError(f"{' '.join(argv)}: {error}") from None
        return False
    if check and done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(f"{' '.join(argv)}: {lines[0] if lines else f'exit code {done.returncode}'}")
    return done.returncode == 0


def _lets_linger(name: str) -> bool:
    """Return whether the user's systemd runs without a session, from boot on; it is asked to. Its start takes a moment."""
    if not (LINGERING / name).exists():
        _run(["loginctl", "enable-linger"])
    until = time.monotonic() + _MANAGER_S
    while (LINGERING / name).exists() and time.monotonic() < until:
        if Path(f"/run/user/{os.geteuid()}/systemd/private").exists():
            break
        time.sleep(0.05)
    return (LINGERING / name).exists()


def _content(path: Path) -> bytes:
    try:
        return plain_files.read_file(path)
    except OSError:
        return b""


def _user_name() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _user_units() -> Path:
    return Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".config/systemd/user"


def _literal(text: str) -> str:
    """A text in which systemd expands nothing. Paths on hosts have no blanks and no characters of a shell."""
    return text.replace("%", "%%")

"""Holds what a shell's last `run`, `sweep`, `nightly` or `accept` announced: its run, or why none began. Bare `ccbed resume` acts on it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..model.errors import CcbedError, UsageError
from ..model.frozen import asdict, dataclass, replace
from ..node.oslayer import processes
from ..system import host_facts, plain_files

#: In the state directory: a file for each announcement, named after the process that made it.
FOLDER = "announced"
#: Names the shell where ccbed cannot know it, such as on another host.
SHELL = "CCBED_SHELL"
#: The announcement that `run --detach` leaves to its process in the background.
INHERITED = "CCBED_ANNOUNCEMENT"
#: Variables that name a job of a CI system: GitHub, GitLab, Buildkite, Jenkins.
_CI_JOB = (
    SHELL, "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_JOB", "RUNNER_NAME", "CI_JOB_ID", "BUILDKITE_JOB_ID", "BUILD_TAG"
)  # fmt: skip
#: Variables that name a terminal, which srun passes to other hosts.
_TERMINAL = ("SSH_CONNECTION", "SSH_TTY", "TMUX_PANE", "STY", "WINDOW", "WINDOWID")
_KEPT_S = 30 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """``ancestors`` of a process, nearest first, each ``pid:start``. ``ci``: the job of a CI system, else empty; None: not known.

    ``callers``: Slurm's job, and where `srun` was called, of a process that may be no descendant of its shell. ``places``:
    those, and this place.
    """

    boot: str
    ancestors: tuple[str, ...] = ()
    ci: str | None = ""
    callers: tuple[str, ...] = ()
    places: tuple[str, ...] = ()

    def distance(self, other: Shell) -> int | None:
        """Return how far up the first common ancestor of the two is; None if they are different shells."""
        common = [position for position, process in enumerate(self.ancestors) if process in other.ancestors]
        if other.ci not in (self.ci, None):
            return None
        if common and self.boot == other.boot:
            return common[0]
        return 0 if other.ci or set(self.places) & set(other.callers) else None

    def is_alive(self, *, without: Shell) -> bool:
        """Return whether an ancestor that ``without`` lacks still runs."""
        return self.boot == without.boot and any(map(_is_alive, set(self.ancestors) - set(without.ancestors)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """``process``: the `ccbed run` with this ``command``. ``directory``: of its run, once that has a name.

    ``code``: its exit code, None until it ends at ``until``. ``problems``, ``hint``: the error that ended it before its run began.
    """

    at: float
    process: str
    shell: Shell
    command: str
    directory: str = ""
    code: int | None = None
    until: float = 0.0
    problems: tuple[str, ...] = ()
    hint: str | None = None

    @property
    def has_run(self) -> bool:
        """Return whether its run exists: its inputs are written."""
        from ..store import bundle, index

        directory = Path(self.directory)
        return bool(self.directory) and (index.is_night(directory) or bundle.stage(directory) != "none")

    @property
    def is_ended_night(self) -> bool:
        """Return whether it is of a night that has ended: a timer starts those, beside the runs of a shell."""
        return self.code is not None and self.command.startswith(("ccbed nightly", "ccbed accept"))

    def is_running(self, boot: str) -> bool:
        return self.code is None and (self.shell.boot != boot or _is_alive(self.process))

    def why_no_run(self) -> UsageError:
        """The error of a `resume` that has nothing to resume."""
        if self.problems:
            ended = f"{self.command}: failed before its run began, with exit code {self.code}"
            return UsageError(ended, *self.problems, hint=self.hint or f"run it again: {self.command}")
        if self.is_running(self.shell.boot):
            return UsageError(f"{self.command}: still prepares its run (process {self.process})", hint="wait for it")
        run = f"run {Path(self.directory).name}" if self.directory else "run"
        reason = f"its {run} was removed" if self.code is not None else f"it was killed before its {run} began"
        return UsageError(f"{self.command}: {reason}", hint=f"run it again: {self.command}")


class Announcer:
    """Announces a `ccbed run`, and with that clears what earlier ones of the same shell announced.

    It replaces the file that ``__main__`` writes before ccbed is loaded, which says no more than that this process began.
    """

    def __init__(self, state: Path, arguments: tuple[str, ...]) -> None:
        shell, process = current_shell(os.environ), host_facts.ancestors()[0]
        self._content = Announcement(at=time.time(), process=process, shell=shell, command="ccbed run")
        inherited = os.environ.pop(INHERITED, "")
        self.file = Path(inherited or state / FOLDER / f"{process}.json")
        if inherited:
            self._content = _parse(self.file) or self._content
            (state / FOLDER / f"{process}.json").unlink(missing_ok=True)
        else:
            _clear(state, shell)
        self._write(process=process)
        from ..core.spec import redact

        self._write(command=redact.command_line(["ccbed", *arguments], os.environ))

    def run(self, directory: Path) -> None:
        """The run has a name, and is about to be prepared."""
        self._write(directory=str(directory.resolve()))

    def end(self, code: int, error: CcbedError | None = None) -> None:
        """The command ends. ``error``: what ended it."""
        has_run = True
        with suppress(CcbedError):  # damaged evidence is that of a run
            has_run = self._content.has_run
        if code == 0 and not has_run:  # it was not asked to run anything
            self.file.unlink(missing_ok=True)
            return
        problems = () if has_run else tuple(error.problems) if error else (f"exit code {code}",)
        self._write(code=code, until=time.time(), problems=problems, hint=error.hint if error else None)

    def _write(self, **values: Any) -> None:
        """Write the announcement. If the disk is full, there is none, and that of an earlier run is gone."""
        self._content = replace(self._content, **values)
        with suppress(OSError):
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            plain_files.write_json(self.file, asdict(self._content))


def last(state: Path, shell: Shell) -> Announcement | None:
    """Return what the last `ccbed run` of the shell announced, if any did. Raises UsageError where it is not known which was the last."""
    known = [announcement for _, announcement in _read(state)]
    distances = [(shell.distance(item.shell), item) for item in known]
    least = min((distance for distance, _ in distances if distance is not None), default=None)
    if least is None:
        return None
    nearest = [item for distance, item in distances if distance == least]
    ended = [item for item in nearest if not item.is_running(shell.boot)] or nearest
    newest = max(item.at for item in ended)
    ended = [item for item in ended if item.at == newest or item.code is None or item.until > newest]
    unclear = [
        item for distance, item in distances
        if distance is None and item.at > newest and not (item.is_ended_night or item.shell.ci or item.shell.callers)
        and not item.shell.is_alive(without=shell)
    ]  # fmt: skip
    if len(ended) + len(unclear) == 1:
        return ended[0]
    names = ", ".join(f"{item.command} ({Path(item.directory).name or 'no run'})" for item in (*ended, *unclear))
    raise UsageError(
        f"it is not known which was the last run of this shell: {names}",
        hint="name the run: ccbed resume RUN; a shell that ccbed cannot recognise is named by " + SHELL,
    )


def current_shell(environment: Mapping[str, str]) -> Shell:
    """The shell of this process, also through timeout, sudo, srun or a script between them."""

    def values(names: tuple[str, ...]) -> str:
        return " ".join(f"{name}={environment[name]}" for name in names if environment.get(name))

    terminal, directory, job = values(_TERMINAL), "", values(("SLURM_JOB_ID",))
    with suppress(OSError):  # it was removed
        directory = str(Path.cwd())
    caller = f"{environment.get('SLURM_SUBMIT_HOST')} {environment.get('SLURM_SUBMIT_DIR')} {terminal}"
    callers = (job, caller) if job else ()
    places = (f"{socket.gethostname()} {directory} {terminal}", *callers)
    ancestors = host_facts.ancestors()[1:]
    return Shell(boot=host_facts.boot_id(), ancestors=ancestors, ci=values(_CI_JOB), callers=callers, places=places)


def _clear(state: Path, shell: Shell) -> None:
    """Remove what ended runs of the shell announced, and what is old. Those of a part of a script that still runs are its own."""
    for file, item in _read(state):
        is_old = time.time() - item.at > _KEPT_S
        is_replaced = shell.distance(item.shell) is not None and not item.shell.is_alive(without=shell)
        if (is_old or is_replaced) and not item.is_running(shell.boot):
            file.unlink(missing_ok=True)


def _read(state: Path) -> Iterator[tuple[Path, Announcement]]:
    for file in sorted((state / FOLDER).glob("*.json")):
        if item := _parse(file):
            yield file, item


def _parse(file: Path) -> Announcement | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        text = file.read_text()
        if not text.startswith("{"):
            boot, process, *ancestors = text.split()
            shell = Shell(boot=boot, ancestors=tuple(ancestors), ci=None)
            return Announcement(at=file.stat().st_mtime, process=process, shell=shell, command="ccbed run")
        content = json.loads(text)
        return Announcement(**{**content, "shell": Shell(**content["shell"])})
    return None


def _is_alive(process: str) -> bool:
    pid, _, start = process.partition(":")
    return processes.is_alive(int(pid), int(start))

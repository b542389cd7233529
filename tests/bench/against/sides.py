"""A build with a bed of its own, and what a command costs there."""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .. import bed as beds
from .turns import FailedError

#: For hangs only.
LIMIT_S = 600.0
CHECK_LIMIT_S = 3600.0
#: Until a command that was interrupted has taken back what it did.
INTERRUPTED_S = 60.0
#: Seconds from the fault to the first step of every rank, by the code that wrote the bundle.
FAILOVERS = """
import json, pathlib, sys
from orchestrator import views
from orchestrator.store import bundle
run = bundle.load(pathlib.Path(sys.argv[1]).resolve())
print(json.dumps([failover.ttr_s for failover in views.failovers(run.trial, run.history, run.files.steps())]))
"""
#: Of make, and of the interpreter: a command is run as its user runs it.
NOT_INHERITED = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """``cpu_s``: of the process and of those that it waited for."""

    wall_s: float
    cpu_s: float


class Side:
    """``tree``: an installed checkout. Its bed is called as its folder, and its state lies beside it."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.name = tree.name
        self.folder = tree.with_name(f"{tree.name}-work")
        self.folder.mkdir()
        self.inventory = self.folder / "bed.yml"
        text = beds.INVENTORY.format(nodes=4, spares=1)
        self.inventory.write_text(text.replace("ccbed_bed: local", f"ccbed_bed: {self.name}"))
        self._log = self.folder / "log"

    @functools.cached_property
    def no_reference(self) -> str:
        """The option as this build calls it: a reference run was a twin before."""
        self.ccbed("run", "--help")
        return "--no-reference" if "--no-reference" in self._log.read_text() else "--no-twin"

    def up(self) -> Cost:
        return self.ccbed("up", str(self.inventory))

    def renew(self) -> None:
        """A run that failed may have left a node behind that is lost."""
        self.down()
        self.up()

    def down(self) -> None:
        """Take the bed down, also if it never came up."""
        with suppress(FailedError):
            self.ccbed("down", self.name)

    def ccbed(self, *args: str, accept: Sequence[int] = (0,)) -> Cost:
        return self.call([str(self.tree / ".venv/bin/ccbed"), *args], self.folder, accept)

    def check(self) -> Cost:
        return self.call(["make", "check"], self.tree, limit_s=CHECK_LIMIT_S)

    def recovered_s(self) -> float:
        """Time to recover of the one failover of the last run. Raises FailedError if it has another number of them, or an open one."""
        latest = str(self.folder / "runs" / "latest")
        self.call([str(self.tree / ".venv/bin/python"), "-c", FAILOVERS, latest], self.folder)
        times = json.loads(self._log.read_text().splitlines()[-1])
        if len(times) != 1 or times[0] is None:
            raise FailedError(f"{self.name}: one failover was expected in {latest}, its times to recover are {times}")
        return float(times[0])

    def call(self, argv: Sequence[str], cwd: Path, accept: Sequence[int] = (0,), limit_s: float = LIMIT_S) -> Cost:
        """Raises FailedError for another exit code, with the end of what was printed."""
        used, begin = _children_s(), time.monotonic()
        with self._log.open("wb") as log:
            code = _ended(argv, cwd, self._environment(), log.fileno(), limit_s)
        cost = Cost(wall_s=time.monotonic() - begin, cpu_s=_children_s() - used)
        if code not in accept:
            raise FailedError(
                f"{self.name}: exit {code}: {' '.join(argv)}\n{self._log.read_text(errors='replace')[-2000:]}"
            )
        return cost

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        return {**kept, "XDG_STATE_HOME": str(self.folder / "state"), "NO_COLOR": "1"}


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _ended(argv: Sequence[str], cwd: Path, environment: dict[str, str], output: int, limit_s: float) -> int:
    """The exit code. If this process is interrupted, the command is, too, as by Ctrl-C on its own terminal."""
    nothing = subprocess.DEVNULL
    with subprocess.Popen(
        argv, cwd=cwd, env=environment, stdin=nothing, stdout=output, stderr=output, start_new_session=True
    ) as process:
        try:
            return process.wait(limit_s)
        except BaseException as error:
            _interrupt(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise FailedError(f"no end after {limit_s:g} s: {' '.join(argv)}") from error
            raise


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(INTERRUPTED_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)

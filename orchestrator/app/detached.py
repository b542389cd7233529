"""Start a run in the background: the orchestrator goes on without the terminal that started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from ..model.bed import BedSpec
from ..model.errors import InfrastructureError
from ..store import shipped
from . import announcement
from .places import short_path
from .session import Session

OPTION = "--detach"
POLL_S = 0.05
#: A run that has not begun after this time is reported as it stands.
BEGIN_S = 60.0
_BEGUN = "run    "
#: Of a line that says why the job of a bed waits.
_WAITS = " waits in partition "


def start(session: Session, bed: BedSpec) -> int:
    """Start the same command in a session of its own, and return once its run has begun or its job waits, or with its exit code."""
    log = _log(bed)
    begin = session.argv.index("--") if "--" in session.argv else len(session.argv)
    own = [word for word in session.argv[:begin] if word != OPTION]
    command = [sys.executable, "-P", str(shipped.program()), *own, *session.argv[begin:]]
    environment = {**os.environ, "CCBED_DETACH": "", "XDG_STATE_HOME": str(session.state.parent)}
    if session.announcer:
        environment[announcement.INHERITED] = str(session.announcer.file)
        session.announcer = None
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )  # fmt: skip
    until = time.monotonic() + BEGIN_S
    while process.poll() is None and time.monotonic() < until and not (_directory(log) or _waits(log)):
        time.sleep(POLL_S)
    session.terminal.block(log.read_text(errors="replace"))
    if process.poll() is not None:
        return process.returncode
    directory = _directory(log)
    if not directory and not bed.slurm:
        raise InfrastructureError(f"the run has not begun after {BEGIN_S:g} s", hint=f"its output: {log}")
    next_step = (
        f"watch it: ccbed watch {directory}" if directory else f"it begins with its job; to end it: kill {process.pid}"
    )
    session.terminal.line(f"detached, pid {process.pid}     {next_step}     output: {short_path(log)}")
    return 0


def _log(bed: BedSpec) -> Path:
    """Return the log's path. It lies beside the directory of a bed of provider slurm, which may not exist yet, and may go with the run."""
    return Path(f"{bed.workdir}.detached.log") if bed.slurm else Path(bed.workdir) / "detached.log"


def _waits(log: Path) -> bool:
    return _WAITS in log.read_text(errors="replace")


def _directory(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return next((line.removeprefix(_BEGUN).strip() for line in lines if line.startswith(_BEGUN)), "")

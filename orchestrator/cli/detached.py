"""Start a run in the background: the orchestrator goes on without the terminal that started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from ..model.errors import InfrastructureError
from .inputs.session import Session
from .render.terminal import short_path

OPTION = "--detach"
POLL_S = 0.05
#: A run that has not begun after this time is reported as it stands.
BEGIN_S = 60.0
_BEGUN = "run    "


def start(session: Session, workdir: Path) -> int:
    """Start the same command in a session of its own, and return once its run has begun, or with its exit code."""
    log = workdir / "detached.log"
    begin = session.argv.index("--") if "--" in session.argv else len(session.argv)
    own = [word for word in session.argv[:begin] if word != OPTION]
    command = [sys.executable, "-P", "-m", "orchestrator.cli", *own, *session.argv[begin:]]
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "CCBED_DETACH": "", "XDG_STATE_HOME": str(session.state.parent)},
        )  # fmt: skip
    until = time.monotonic() + BEGIN_S
    while process.poll() is None and time.monotonic() < until and not _directory(log):
        time.sleep(POLL_S)
    session.terminal.block(log.read_text(errors="replace"))
    if process.poll() is not None:
        return process.returncode
    directory = _directory(log)
    if not directory:
        raise InfrastructureError(f"the run has not begun after {BEGIN_S:g} s", hint=f"its output: {log}")
    session.terminal.line(
        f"detached, pid {process.pid}     watch it: ccbed watch {directory}     output: {short_path(log)}"
    )
    return 0


def _directory(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return next((line.removeprefix(_BEGUN).strip() for line in lines if line.startswith(_BEGUN)), "")

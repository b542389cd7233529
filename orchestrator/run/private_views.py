"""The view of this machine's files in which a reference run's ranks run: what they write there, only they see."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ..model.gang import View
from ..node.files import private_view
from ..store import paths

_PROGRAM = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r});"
    " from orchestrator.node.files import private_view; private_view.hold()"
)
#: Keep a reference run off the services that a job reports to, as their libraries document them. ``--env`` replaces them one by one.
OFFLINE = {
    "WANDB_MODE": "offline",
    "MLFLOW_TRACKING_URI": "mlruns",  # a directory of the copy
    "COMET_START_ONLINE": "0",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "local",
    "HF_HUB_OFFLINE": "1",
}


def open_view(
    stack: ExitStack, directory: Path, *, keep: Sequence[str], moved: Mapping[str, str], hidden: Sequence[str]
) -> View | None:
    """Make a view that ends with ``stack``; None where this machine allows none. See ``node/files/private_view.py``."""
    marker = f"/.ccbed-view-{directory.name}"
    for parent in (directory / paths.VIEW, Path(tempfile.gettempdir()), Path("/dev/shm")):
        with ExitStack() as attempt, suppress(OSError):
            parent.mkdir(exist_ok=True)
            scratch = tempfile.mkdtemp(prefix="ccbed-view-", dir=parent)
            attempt.callback(_remove, Path(scratch))
            holder = subprocess.Popen(
                [sys.executable, "-I", "-c", _PROGRAM],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            attempt.callback(holder.communicate)
            assert holder.stdin is not None and holder.stdout is not None
            about = private_view.request(scratch=scratch, marker=marker, keep=keep, moved=moved, hidden=hidden)
            holder.stdin.write(about)
            holder.stdin.flush()
            if holder.stdout.readline().strip() == private_view.READY:
                stack.push(attempt.pop_all())
                return View(pid=holder.pid, marker=marker)
    return None


def _remove(scratch: Path) -> None:
    """overlayfs leaves a directory that its owner may not enter."""

    def allow(_function: Any, path: str, _error: object) -> None:
        with suppress(OSError):
            Path(path).chmod(0o700)

    shutil.rmtree(scratch, onerror=allow)
    shutil.rmtree(scratch, ignore_errors=True)
    if scratch.parent.name == paths.VIEW:
        with suppress(OSError):
            scratch.parent.rmdir()

"""A run of pytest that is interrupted, at five moments: no process, mount, namespace or directory of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.oslayer import processes

from . import interrupted_server, sshd
from .conftest import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(sshd.lacking()), reason=sshd.lacking())]

BED, SERVER = "tests/e2e/interrupted_bed.py", "tests/e2e/interrupted_server.py"
#: For hangs only.
_LIMIT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class InnerRun:
    """``folder`` has pytest's base directory, which stands in the environment or in the command of all that the run starts."""

    folder: Path
    process: subprocess.Popen[bytes]

    def facts(self, moment: str) -> dict[str, Any]:
        """What a test reports at this moment, which is waited for."""
        file = self.folder / moment
        self.wait_until(file.exists)
        return dict(json.loads(file.read_text()))

    def commands(self) -> list[str]:
        """Of the processes that the run has started, or that are in a namespace of it; not that which waits for its end."""
        reports = [json.loads(file.read_text()) for file in self.folder.glob("server")]
        namespaces = {report["namespace"] for report in reports}
        commands = [_command(process.pid) for process in processes.scan() if self._is_own(process.pid, namespaces)]
        return [command for command in commands if "reaper.py" not in command]

    def traces(self) -> list[str]:
        """Commands, mounts and directories of the run."""
        reports = [json.loads(file.read_text()) for file in self.folder.glob("server")]
        directories = [str(self.folder), *(report["directory"] for report in reports)]
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        notes = self.folder.glob("base/**/process-*")
        return [
            *self.commands(),
            *(line for line in mounts if any(directory in line for directory in directories)),
            *(directory for directory in (*directories[1:], *map(str, notes)) if Path(directory).exists()),
        ]

    def wait_until(self, holds: Callable[[], bool], limit_s: float = _LIMIT_S) -> None:
        end = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError("\n".join([(self.folder / "output").read_text(), *self.traces()]))
            time.sleep(0.05)

    def _is_own(self, pid: int, namespaces: set[str]) -> bool:
        with contextlib.suppress(OSError):
            texts = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
            basetemp = str(self.folder / "base").encode()
            return any(basetemp in text for text in texts) or str(Path(f"/proc/{pid}/ns/net").readlink()) in namespaces
        return False


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[InnerRun]:
    # As from a terminal, also where this run ignores a signal: under nohup.
    argv = [
        "env", "--default-signal=HUP,INT", sys.executable, "-m", "pytest", "-p", "no:cacheprovider",
        f"--basetemp={folder / 'base'}", *options,
    ]  # fmt: skip
    environment = {**os.environ, interrupted_server.VARIABLE: str(folder)}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            argv, cwd=ROOT, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield InnerRun(folder=folder, process=process)
    finally:
        process.kill()
        process.wait()


def test_ctrl_c_while_a_bed_comes_up(tmp_path: Path) -> None:
    with running(tmp_path, BED) as run:
        run.facts("begun")
        run.wait_until(lambda: any(" keeper " in command for command in run.commands()))
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.process.wait(_LIMIT_S) == pytest.ExitCode.INTERRUPTED, (tmp_path / "output").read_text()
        assert run.traces() == [], "all is gone before pytest has ended"


def test_a_killed_worker_and_then_sigterm(tmp_path: Path) -> None:
    """What the other worker has started stays, until pytest is told to end."""
    with running(tmp_path, BED, SERVER, "-n2", "--dist=loadfile", "--max-worker-restart=0") as run:
        server, bed = run.facts("server"), run.facts("bed")
        os.kill(server["pid"], signal.SIGKILL)
        parts = ("sshd", "sleep", server["directory"])
        run.wait_until(lambda: not [line for line in run.traces() if any(part in line for part in parts)])
        assert any(" keeper " in command for command in run.commands())
        assert processes.find(bed["pid"])
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(_LIMIT_S) == pytest.ExitCode.INTERRUPTED, (tmp_path / "output").read_text()
        assert run.traces() == [], "all is gone before pytest has ended"


def test_a_killed_controller(tmp_path: Path) -> None:
    with running(tmp_path, SERVER, "-n1") as run:
        run.facts("server")
        run.process.kill()
        run.wait_until(lambda: not run.traces())


def test_killed_while_it_takes_down(tmp_path: Path) -> None:
    folder = tmp_path / "slow"
    folder.mkdir()
    with running(folder, SERVER) as run:
        run.facts("server")
        run.process.send_signal(signal.SIGHUP)
        run.facts("down")
        run.process.kill()
        run.wait_until(lambda: not run.traces())

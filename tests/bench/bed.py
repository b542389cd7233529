"""ccbed as a user has it: the installed program, a state directory and a directory for runs of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from orchestrator import views
from orchestrator.store import bundle

INVENTORY = """\
all:
  hosts:
    localhost: {{ansible_connection: local}}
  vars: {{ccbed_provider: process, ccbed_bed: local, ccbed_nodes: {nodes}, ccbed_spares: {spares}}}
"""


class Bed:
    """Nodes of this machine, and spares."""

    def __init__(self, folder: Path, nodes: int = 4, spares: int = 1) -> None:
        self.folder = folder
        self.inventory = folder / "local.yml"
        self.inventory.write_text(INVENTORY.format(nodes=nodes, spares=spares))

    def call(self, *args: str, expect: int | None = 0, timeout_s: float = 120.0) -> float:
        """Seconds from argv to exit. Raises AssertionError with what was printed for another exit code."""
        begin = time.monotonic()
        done = self._done(args, timeout_s)
        took = time.monotonic() - begin
        assert expect is None or done.returncode == expect, f"ccbed {' '.join(args)}\n{done.stdout}\n{done.stderr}"
        return took

    def output(self, *args: str) -> str:
        """What a command line prints."""
        return self._done(args, 120.0).stdout

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """Start a command line in the background; what it prints is dropped."""
        silent = subprocess.DEVNULL
        return subprocess.Popen(
            [program(), *args], cwd=self.folder, env=self.environment(), stdout=silent, stderr=silent
        )

    def failover(self, *args: str) -> views.Failover:
        """The one failover of a run of dp-ring that loses node 2 at step 30, read from its sealed bundle."""
        self.call("run", "dp-ring", "--fail-node", "2", *args)
        run = bundle.load((self.folder / "runs" / "latest").resolve())
        (failover,) = views.failovers(run.trial, run.history, run.files.steps())
        return failover

    def steps(self, name: str, **params: object) -> list[float]:
        """Seconds of every step of every rank of an undisturbed dp-ring with these parameters, the first five left out."""
        trial = {"trial": name, "workload": "train-dp", "params": params, "world": {"nodes": 4}}
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(trial))
        self.call("run", str(file))
        records = bundle.load((self.folder / "runs" / "latest").resolve()).files.steps()
        return [record.end - record.start for record in records if record.step > 5]

    def environment(self) -> dict[str, str]:
        """With byte code, as users have it: without it each command would compile its modules, which takes 0.6 s."""
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "NO_COLOR": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return environment

    def _done(self, args: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program(), *args],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def program() -> str:
    """The program beside this interpreter."""
    return str(Path(sys.executable).with_name("ccbed"))


@contextmanager
def load(count: int) -> Iterator[None]:
    """Busy processes beside the body."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()

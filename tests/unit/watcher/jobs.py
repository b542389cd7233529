"""Scripts that run in a Python process of their own with the watcher loaded, and the lines that it records."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

SITE = Path(__file__).parents[3] / "orchestrator" / "rank" / "watcher" / "site"


@dataclass(frozen=True)
class Watched:
    """One process that has ended, and its record."""

    code: int
    output: str
    lines: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["k"] == kind]


def run(folder: Path, text: str, *arguments: str, options: tuple[str, ...] = (), **environment: str) -> Watched:
    """Run ``text`` as a script with the watcher's site directory first on PYTHONPATH."""
    script, records = folder / "job.py", folder / "records"
    script.write_text(text)
    records.mkdir(exist_ok=True)
    variables: Mapping[str, str] = {
        **os.environ, "RANK": "0", "CCBED_WATCH": str(records), "PYTHONPATH": str(SITE), "OMP_NUM_THREADS": "1", **environment,
    }  # fmt: skip
    command = [sys.executable, *options, str(script), *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600, check=False)
    return Watched(done.returncode, done.stdout + done.stderr, read(records))


def read(records: Path) -> list[dict[str, Any]]:
    """All lines in a directory of records."""
    return [json.loads(line) for path in sorted(records.glob("watch-*")) for line in path.read_text().splitlines()]


def fork(folder: Path, body: Callable[[int], None], world: int = 1, **environment: str) -> list[list[dict[str, Any]]]:
    """Run ``body(rank)`` in watched processes that are forked from this one; the lines of each rank."""
    importlib.import_module(
        "torch._dynamo"
    )  # the first optimizer imports it, which takes seconds: once for all children
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    pids = [os.fork() or _child(folder, body, rank, world, port, environment) for rank in range(world)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0] * world, (folder / "errors").read_text() if (folder / "errors").exists() else codes
    paths = [next(iter(folder.glob(f"watch-r{rank}-*"))) for rank in range(world)]
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


def _child(
    folder: Path, body: Callable[[int], None], rank: int, world: int, port: int, environment: Mapping[str, str]
) -> NoReturn:
    """The forked process: it records, runs ``body``, and leaves without the exit handlers of pytest."""
    code = 1
    try:
        ranks = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ.update({**ranks, "CCBED_WATCH_EVERY": "1", **environment})
        import torch

        from orchestrator.rank.watcher import install
        from orchestrator.rank.watcher.budget import budget

        budget.__init__()  # type: ignore[misc]  # tests of this process may have begun a window
        torch.set_num_threads(1)
        install.install(str(folder), via="test")
        torch.manual_seed(0)
        body(rank)
        install.end()
        code = 0
    except BaseException:  # noqa: BLE001 reported to the test
        with (folder / "errors").open("a") as out:
            traceback.print_exc(file=out)
    finally:
        os._exit(code)


def free_port() -> int:
    """A port below those that the kernel gives to connections: no other process gets it before the ranks listen."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as server, contextlib.suppress(OSError):
            server.bind(("127.0.0.1", port))
            return port


def of(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["k"] == kind]

"""Pytest plugin: ``report.json`` has the machine, and each test with its outcome, seconds, figures and failure; kept up to date."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from . import device

#: Characters of the end of a failure.
TEXT = 20_000
_FIELDS = ("name", "driver_version", "memory.total", "pstate", "pcie.link.gen.current", "pcie.link.width.current")


def machine() -> dict[str, Any]:
    """What the figures depend on. Nothing here initialises CUDA, so that processes can still be forked."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None  # type: ignore[no-untyped-call]
    return {
        "gpus": _gpus(), "torch": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl,
        "python": platform.python_version(), "kernel": platform.release(), "is_rehearsal": device.IS_REHEARSAL,
    }  # fmt: skip


def _gpus() -> list[dict[str, str]]:
    argv = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [line.split(", ") for line in done.stdout.splitlines() if done.returncode == 0]
    return [dict(zip(_FIELDS, row, strict=False)) for row in rows]


class Report:
    """Written after every test, so that a run that is killed leaves what it knows."""

    def __init__(self, path: Path) -> None:
        self._path, self._begin = path, time.monotonic()
        self._machine = machine()
        self._tests: dict[str, dict[str, Any]] = {}

    def leave_out(self, nodeids: Iterable[str]) -> None:
        """Tests that a rehearsal cannot run."""
        self._tests.update({nodeid: {"outcome": "not rehearsed"} for nodeid in nodeids})
        self._write()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """List all tests, so that those for which no time is left are in the report."""
        self._tests.update({item.nodeid: {"outcome": "not run"} for item in session.items})
        self._write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            self._tests[report.nodeid] = {"outcome": "passed", "seconds": 0.0}
        entry = self._tests[report.nodeid]
        entry["seconds"] = round(entry["seconds"] + report.duration, 3)
        if report.outcome != "passed" and entry["outcome"] == "passed":
            entry["outcome"] = report.outcome if report.when == "call" or report.skipped else f"failed in {report.when}"
            entry["text"] = str(report.longrepr)[-TEXT:]
        if report.when == "call" and report.user_properties:
            entry["figures"] = dict(report.user_properties)
        self._write()

    def pytest_sessionfinish(self) -> None:
        self._write()

    def _write(self) -> None:
        content = {
            "machine": self._machine,
            "seconds": round(time.monotonic() - self._begin, 1),
            "tests": [{"test": nodeid, **entry} for nodeid, entry in self._tests.items()],
        }
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(self._path)

"""Scripts that run in a Python process of their own with the watcher loaded, and the lines that it records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    return Watched(done.returncode, done.stdout + done.stderr, read(records))


def read(records: Path) -> list[dict[str, Any]]:
    """All lines in a directory of records."""
    return [json.loads(line) for path in sorted(records.glob("watch-*")) for line in path.read_text().splitlines()]

"""`ccbed --help` answers at once: it loads neither torch nor Ansible."""

from __future__ import annotations

import subprocess
import sys
import time

from . import table
from .bed import program

PYTHON, HELP = "python -c pass", "ccbed --help"


def timed(*argv: str) -> float:
    begin = time.monotonic()
    subprocess.run(argv, check=True, capture_output=True, timeout=30)
    return time.monotonic() - begin


def test_help_is_quick() -> None:
    cases = {PYTHON: lambda: timed(sys.executable, "-c", "pass"), HELP: lambda: timed(program(), "--help")}
    taken = table.paired(cases, max(table.ROUNDS, 9))
    more = table.median(taken[HELP]) - table.median(taken[PYTHON])
    note = f"--help takes {more * 1000:.0f} ms more than python -c pass; to reach: under 250 ms"
    table.Table(name="help", title="Help", samples=taken, against=PYTHON, notes=(note,)).write()
    assert more < 0.25

"""What a shell ignores or blocks does not reach the programs that tests start, except for a lost terminal under nohup."""

from __future__ import annotations

import signal
import subprocess
import sys

from ..e2e.stage import ROOT

#: It is what a shell may be, and becomes a process of pytest.
SHELL = """
import os, signal, sys
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
PYTEST = """
import subprocess
from tests import session_end
subprocess.run(["grep", "-E", "SigIgn|SigBlk", "/proc/self/status"], check=True)
"""


def numbers(mask: str) -> set[int]:
    """But for those that the C library keeps for itself, which no program can set."""
    return {number for number in signal.valid_signals() if int(mask, 16) >> (number - 1) & 1}


def test_programs_of_tests_ignore_only_a_lost_terminal() -> None:
    lines = subprocess.check_output([sys.executable, "-c", SHELL, PYTEST], text=True, cwd=ROOT).split()
    masks = dict(zip(lines[::2], map(numbers, lines[1::2]), strict=True))
    assert masks == {"SigIgn:": {signal.SIGHUP}, "SigBlk:": set()}

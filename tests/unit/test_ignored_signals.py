"""Whatever a shell ignored, ranks begin as under torchrun: on processes, SSH and Slurm (one way into an agent), and in containers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Ways into an agent, which serves no command here, but shows what the ranks that it would fork ignore.
AGENT = r"""
import os, re, sys
from pathlib import Path
from orchestrator.node.agent import agent, container_main
class Serving:
    def __init__(self, directory, own): pass
    def run(self, ready):
        if os.fork() == 0:
            print(re.search("SigIgn:.*", Path("/proc/self/status").read_text())[0], flush=True)
            os._exit(0)
        os.wait()
agent.Agent = Serving
"""
ENTRIES = {
    "process": "agent.main(Path(sys.argv[1]), {}, {}, lambda: None)",
    "container": "container_main.forks.redirect_output = container_main.warm_up.import_modules = lambda *_: None\n"
    "container_main.main(Path(sys.argv[1]))",
}
COLD = """
import sys
from pathlib import Path
from types import SimpleNamespace
from orchestrator.workloads import script
gang = SimpleNamespace(out="/")
ctx = SimpleNamespace(params=script.Params(exec_=("grep", "SigIgn:", "/proc/self/status")), gang=gang, events_path="/")
script._run_cold(ctx, "", Path("/a/b"))
"""


def _ignored(code: str, folder: Path, ignored: set[signal.Signals]) -> set[int]:
    """The signals that are ignored in the end, of a program that was started with these ignored, whatever ran the tests."""

    def ignore() -> None:
        for number in ALL:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CCBED_LABEL": "{}"}
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, preexec_fn=ignore, capture_output=True, text=True, check=False
    )
    mask = re.search(r"SigIgn:\s*(\w+)", done.stdout)
    assert mask, done.stderr
    return {number for number in signal.valid_signals() if int(mask[1], 16) >> (number - 1) & 1}


ALL = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
OF_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}


@pytest.mark.parametrize("ignored", [ALL, {signal.SIGHUP}, {signal.SIGINT, signal.SIGQUIT}, set()])
@pytest.mark.parametrize("entry", ENTRIES)
def test_ranks_ignore_what_any_python_process_ignores(entry: str, ignored: set[signal.Signals], tmp_path: Path) -> None:
    assert _ignored(AGENT + ENTRIES[entry], tmp_path, ignored) == OF_PYTHON


def test_a_program_that_replaces_a_rank_ignores_nothing(tmp_path: Path) -> None:
    assert _ignored(COLD, tmp_path, set()) == set()

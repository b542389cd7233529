"""Runs of a user's script on a bed: interrupted, standing still, failing, with the output on the terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.core.engine import liveness
from orchestrator.model.event import Event
from orchestrator.model.trial import Recovery, Trial, World
from orchestrator.run import lifecycle

from .conftest import Bed, ran
from .test_bad_input import untouched

pytestmark = pytest.mark.e2e


def _script(directory: Path, text: str, recovery: tuple[str, ...] = ("none",), **params: object) -> Trial:
    file = directory / "job.py"
    file.write_text(text)
    return Trial(
        name="job", workload="script", params={"file": str(file), "cwd": str(directory), **params},
        world=World(nodes=2), recovery=Recovery(policy=recovery),
    )  # fmt: skip


def _at(name: str, act: Callable[[], object]) -> Callable[[Event], None]:
    events: list[Event] = []

    def record(event: Event) -> None:
        if event.f == name and not events:
            events.append(event)
            act()

    return record


@pytest.mark.usefixtures("own_interrupts")
def test_ctrl_c_ends_a_script_and_the_next_run_is_not_refused(bed: Bed, tmp_path: Path) -> None:
    trial = _script(tmp_path, "import time\ntime.sleep(100)\n")
    interrupt = _at("rank.start", lambda: os.kill(os.getpid(), signal.SIGINT))
    stopped = ran(lifecycle.launch(bed.request(trial, on_event=interrupt)).directory, bed)
    assert stopped.code == 130
    assert [line for line in stopped.bad() if line.startswith("fail")] == []
    assert bed.ccbed("bundle", "verify", str(stopped.directory))[0] == 0
    assert bed.ccbed("resume", str(stopped.directory))[0] == 3
    following = ran(lifecycle.launch(bed.request(_script(tmp_path, "print('next')\n"))).directory, bed)
    assert (following.code, following.bad()) == (0, [])
    assert untouched(bed)


def test_ranks_that_left_while_another_stands_still_are_the_cause(bed: Bed, tmp_path: Path) -> None:
    text = """
import os, time

def wait():
    time.sleep(100)

if os.environ["RANK"] == "0":
    wait()
"""
    result = ran(lifecycle.launch(bed.request(_script(tmp_path, text, timeout_s=15.0))).directory, bed)
    assert result.code == 1
    (stalled,) = result.of("gang.stalled")
    assert stalled.data.culprit == 1
    assert "rank 1 has left; rank 0 is at job.py:5 (wait), in no collective" in result.verdict("finished").text
    assert untouched(bed)


def test_a_script_that_never_comes_to_its_first_step_has_stalled_after_the_timeout(bed: Bed, tmp_path: Path) -> None:
    text = """
import time

def download():
    time.sleep(100)

download()
"""
    result = ran(lifecycle.launch(bed.request(_script(tmp_path, text, timeout_s=10.0))).directory, bed)
    assert result.code == 1
    assert "job.py:5 (download)" in result.verdict("finished").text
    assert untouched(bed)


STOPPED = """
import os, signal, torch, torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(step):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step == 3 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()

for step in range(10):
    train(step)
"""


def test_a_rank_that_stands_still_is_the_cause_and_its_peers_wait(bed: Bed, tmp_path: Path) -> None:
    result = ran(lifecycle.launch(bed.request(_script(tmp_path, STOPPED, timeout_s=15.0))).directory, bed)
    assert result.code == 1
    (stalled,) = result.of("gang.stalled")
    assert stalled.data.culprit == 1
    text = "rank 1 is stopped by a signal; rank 0 waits for peers at job.py:13 (train)"
    assert text in result.verdict("finished").text
    assert untouched(bed)


SLOW_SAVE = """
import datetime, time, torch, torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))

def save():
    time.sleep(60)

if dist.get_rank() == 0:
    save()
dist.all_reduce(torch.ones(1))
"""


def test_the_verdict_names_the_rank_for_which_its_peers_waited_in_vain(bed: Bed, tmp_path: Path) -> None:
    result = ran(lifecycle.launch(bed.request(_script(tmp_path, SLOW_SAVE))).directory, bed)
    assert result.code == 1
    text = result.verdict("finished").text
    waited = "rank 1 (n1) left with exit code 1: rank 0 was at job.py:7 (save), in no collective; RuntimeError"
    assert text.startswith(waited), text
    assert untouched(bed)


OWN_PORT = """
import datetime, os, torch.distributed as dist

os.environ["MASTER_PORT"] = "1"
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
"""


def test_ranks_that_do_not_meet_are_told_why_before_they_fail(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "JOINED_S", 1.0)
    result = ran(lifecycle.launch(bed.request(_script(tmp_path, OWN_PORT))).directory, bed)
    assert result.code == 1
    reason = result.of("gang.joining")[0].data.reason
    assert reason.startswith("0 of 2 ranks have joined after ")
    assert (
        "ranks 0 and 1 wait in init_process_group; ranks 0 and 1 look for the store at 127.0.0.1:1; that of the bed has port"
        in reason
    )
    assert "ranks 0 and 1 look for the store at 127.0.0.1:1" in result.verdict("finished").text
    assert untouched(bed)


RESTARTED = """
import os, signal, sys, time

def save(*_):
    print("saved on SIGTERM")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
ready = f"ready-{os.environ['RANK']}"
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    open(ready, "w").close()
    while os.environ["RANK"] == "0" or not os.path.exists("ready-0"):
        time.sleep(0.01)
    sys.exit(3)
"""


def test_a_failed_script_restarts_with_grace_and_its_output_is_on_the_terminal(bed: Bed, tmp_path: Path) -> None:
    """Without steps the budget of restarts counts; the survivor gets SIGTERM first, as under torchrun."""
    _script(tmp_path, RESTARTED)
    cwd = Path.cwd()
    os.chdir(tmp_path)
    try:
        options = ("--nodes", "2", "--max-restarts", "1", "--grace", "20s", "--log-dir", "logs")
        code, output = bed.ccbed("run", "job.py", *options, "--runs-dir", str(bed.runs))
    finally:
        os.chdir(cwd)
    assert code == 1, "an unplanned failure stays a finding"
    (first, saved, second) = (output.index(text) for text in ("\nattempt 0\n", "\nsaved on SIGTERM\n", "\nattempt 1\n"))
    assert first < saved < second
    assert "survived       yes       rank 1 failed (left with exit code 3); back and finished" in output
    (logs,) = (tmp_path / "logs").iterdir()
    assert "saved on SIGTERM" in (logs / "attempt_0/0/output.log").read_text()
    assert "attempt 1" in (logs / "attempt_1/1/output.log").read_text()
    assert untouched(bed)


def test_a_detached_run_goes_on_without_its_terminal(bed: Bed, tmp_path: Path) -> None:
    _script(tmp_path, "import time\nprint('began')\ntime.sleep(0.5)\n")
    options = ("--nodes", "2", "--detach", "--runs-dir", str(tmp_path / "runs"))
    code, output = bed.ccbed("run", str(tmp_path / "job.py"), *options)
    assert (code, "detached, pid" in output, "finished" in output) == (0, True, False)
    code, output = bed.ccbed("watch", str((tmp_path / "runs/latest").resolve()))
    assert (code, "PASS" in output) == (0, True)
    assert untouched(bed)

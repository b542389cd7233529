"""No signal reaches a job that it could have taken for itself, and its stacks are known all the same."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.gang import GangSpec
from orchestrator.node.agent import inspection
from orchestrator.node.agent.rank_processes import Gang, RankProcesses
from orchestrator.node.files.event_log import EventLog
from orchestrator.node.oslayer import launched_workers, processes
from orchestrator.node.oslayer.event_loop import Loop

HANDLED = (
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGCONT,
    signal.SIGRTMIN + 1, signal.SIGRTMAX - 6,
)  # fmt: skip
#: A job that handles signals: the number of each one that arrives is on its standard error, also while C keeps the interpreter.
JOB = f"""
import collections, faulthandler, itertools, os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from orchestrator.rank.watcher.holds import stack_signal
stack_signal.register()
os.set_blocking(2, False)
signal.set_wakeup_fd(2, warn_on_full_buffer=False)
def handle(*numbers):
    for number in numbers:
        signal.signal(number, lambda *_: None)
"""
SPIN = "def spin(): print(1, flush=True); collections.deque(itertools.repeat(None), maxlen=0)\nspin()\n"
WAIT = "def wait(): print(1, flush=True); sys.stdin.read()\nwait()\n"


@dataclass
class Job:
    process: subprocess.Popen[bytes]
    out: Path

    def arrived(self) -> set[int]:
        """The signals that its handlers got until it ended."""
        self.process.kill()
        return set(self.process.communicate()[1])

    def spec(self) -> GangSpec:
        return GangSpec(
            run="r", epoch=0, world_size=1, nodes=1, group_rank=0, ranks=(0,), master_addr="127.0.0.1", master_port=1,
            backend="gloo", timeout_s=1.0, max_restarts=0, workload="w", params={}, seed=1, payload="", out=str(self.out),
            checkpoints=str(self.out), interface="lo",
        )  # fmt: skip


@dataclass
class Node:
    """An agent's ranks: one job, which the agent did not start itself."""

    ranks: RankProcesses
    loop: Loop
    gang: Gang
    responses: list[tuple[str, Any]]

    def respond(self, kind: str, done: Any) -> None:
        self.responses.append((kind, done))

    def wait(self) -> Any:
        while not self.responses:
            self.loop.run_once()
        return self.responses.pop()[1]

    def inspect(self) -> Any:
        self.ranks.inspect("r", 0, stacks=True, respond=self.respond)
        return self.wait()

    def stop(self, **options: Any) -> Any:
        self.ranks.stop("r", 0, limit_s=60.0, spare=lambda: (), respond=self.respond, **{"dump": False, **options})
        return self.wait()

    def expire(self) -> None:
        self.ranks._expire(self.gang)
        while self.gang.alive:
            self.loop.run_once()
            self.ranks._reap()


Begin = Callable[[str], tuple[Job, Node]]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Starts a job with its text, and the agent of its node."""
    jobs = []

    def start(text: str) -> tuple[Job, Node]:
        command = [sys.executable, "-c", JOB + text]
        process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1)
        jobs.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        job, loop, log = Job(process, tmp_path), Loop(), EventLog(tmp_path / "events.jsonl", writer="agent")
        gang = Gang(spec=job.spec(), alive={process.pid: 0}, release={0: os.open(os.devnull, os.O_RDONLY)})

        def reap() -> None:
            if process.poll() is not None and process.pid in gang.alive:
                ranks.exited(process.pid, process.returncode)

        living = processes.find(process.pid)
        monkeypatch.setattr(processes, "descendants", lambda pid: [living] if process.poll() is None else [])
        ranks = RankProcesses(loop, tmp_path, ("n0", "i"), lambda run: log, reap)
        ranks._gangs["r", 0] = gang
        loop.call_every(0.02, lambda: None)
        return job, Node(ranks, loop, gang, [])

    monkeypatch.setattr(inspection, "WINDOW_S", 0.02)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    yield start
    for process in jobs:
        process.kill()
        process.communicate()


SITUATIONS: dict[str, Callable[[Node], object]] = {
    "inspection": Node.inspect,
    "stall": lambda node: (node.inspect(), node.stop(dump=True)),
    "deadline": Node.expire,
    "stop": Node.stop,
}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("number", HANDLED)
def test_no_signal_that_a_job_handles_arrives(number: int, situation: str, begin: Begin) -> None:
    job, node = begin(f"handle({number})\n" + WAIT)
    SITUATIONS[situation](node)
    assert number not in job.arrived()


def test_a_signal_that_the_launcher_would_send_arrives(begin: Begin) -> None:
    """Negative control: a stop with a grace sends SIGTERM first, as torchrun does, and the job sees it."""
    job, node = begin(f"handle({int(signal.SIGTERM)})\n" + WAIT)
    assert node.stop(grace_s=0.2).had_s["0"] >= 0.2
    assert job.arrived() == {signal.SIGTERM}


def test_the_stack_of_a_rank_that_keeps_the_interpreter_is_known(begin: Begin) -> None:
    _, node = begin(SPIN)
    done = node.inspect()
    assert done.stacks["0"][0].endswith(" spin") and done.no_stack is None


@pytest.mark.parametrize("end", [lambda node: node.stop(dump=True), Node.expire])
def test_stacks_are_in_the_log_of_a_rank_that_is_ended(end: Callable[[Node], object], begin: Begin) -> None:
    job, node = begin(SPIN)
    end(node)
    assert "in spin\n" in (job.out / "rank-0.log").read_text()


TAKEN = {
    "signal.signal(own, lambda *_: None)": "",
    "from signal import signal as take; take(own, lambda *_: None)": "",
    "faulthandler.register(signum=own, file=open(os.devnull, 'w'))": "",
    "take_in_c(own); stack_signal.verify()": "set no signal aside",
    "signal.pthread_sigmask(signal.SIG_BLOCK, {own})": "blocks signal",
    "signal.signal(own, signal.SIG_IGN)": "",
    "faulthandler.unregister(own)": "does not handle signal",
    "os.closerange(3, 100)": "set no signal aside",
    "[signal.signal(n, lambda *_: None) for n in range(signal.SIGRTMIN, signal.SIGRTMAX + 1)]": "set no signal aside",
    "os.execv(sys.executable, [sys.executable, '-c', 'print(1, flush=True); input()'])": "set no signal aside",
}
TAKE_IN_C = """
import ctypes
own = stack_signal._Own.number
def take_in_c(number):
    keep.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: os.write(2, bytes([number]))))
    ctypes.CDLL(None).signal(number, keep[0])
keep = []
"""


@pytest.mark.parametrize("taking", TAKEN)
def test_a_signal_that_the_job_takes_later_is_given_up(taking: str, begin: Begin) -> None:
    """The stacks come at another signal then, or the reason is given."""
    job, node = begin(f"{TAKE_IN_C}\n{taking}\n{WAIT}")
    done = node.inspect()
    assert TAKEN[taking] in (done.no_stack or {"0": ""})["0"]
    assert bool(done.stacks["0"]) is not bool(TAKEN[taking])
    assert job.process.poll() is None
    assert job.arrived() == set()


def test_why_there_is_no_stack_is_in_the_log(begin: Begin) -> None:
    job, node = begin("os.closerange(3, 100)\n" + WAIT)
    node.stop(dump=True)
    text = "no stack: py-spy is not installed, and the rank has set no signal aside for its stacks\n"
    assert (job.out / "rank-0.log").read_text() == text


def test_a_stop_says_how_long_each_rank_had(begin: Begin) -> None:
    _, node = begin(WAIT)
    assert node.stop().had_s == {"0": pytest.approx(0.0, abs=0.01)}


def _record(job: Job, *kinds: str) -> None:
    with (job.out / f"watch-r0-{job.process.pid}.jsonl").open("a") as record:
        record.writelines(f'{{"k":"{kind}","id":1}}\n' for kind in kinds)


def test_a_rank_inside_a_save_may_finish_it(begin: Begin) -> None:
    job, node = begin(WAIT)
    _record(job, "save")
    node.loop.call_later(0.1, lambda: _record(job, "saved"))
    had_s = node.stop(save_grace_s=60.0).had_s["0"]
    assert 0.1 <= had_s < 60.0


@pytest.mark.parametrize(
    ("kinds", "grace_s", "least_s"), [(["save"], 0.1, 0.1), (["save"], 0.0, 0.0), (["save", "saved"], 60.0, 0.0)]
)
def test_a_save_that_hangs_is_cut_off_after_the_grace(
    kinds: list[str], grace_s: float, least_s: float, begin: Begin
) -> None:
    """Without a grace, and outside of a save, a rank is killed at once."""
    job, node = begin(WAIT)
    _record(job, *kinds)
    assert least_s <= node.stop(save_grace_s=grace_s).had_s["0"] < 10.0
    assert job.process.wait() == -signal.SIGKILL


def test_under_a_launcher_its_workers_are_asked_and_not_itself(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    job, node = begin(SPIN)
    (process,) = processes.descendants(0)
    worker = launched_workers.Worker(3, 0, 77, 0.0, process)
    monkeypatch.setattr(launched_workers, "find", lambda out, launcher: {0: worker})
    node.gang.spec = dataclasses.replace(node.gang.spec, params={"launcher": "torchrun"})
    assert node.inspect().stacks["3"][0].endswith(" spin")
    node.stop(dump=True)
    assert "in spin\n" in (job.out / "stacks-r3-77.txt").read_text()

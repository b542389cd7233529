"""What the kernel killed for memory is named: by the counter of the cgroup, and the exit of the process."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.render import bed_view
from orchestrator.model.frozen import replace
from orchestrator.node.agent.rank_processes import Gang, RankProcesses, Stop
from orchestrator.node.keeper import keeper_start
from orchestrator.node.oslayer import cgroups, processes
from orchestrator.providers.preflight import checked
from orchestrator.providers.process import process_provider

from . import beds

#: Version of cgroups -> /proc/self/cgroup, the file system and its options, the file of the counter and what precedes it.
VERSIONS = {
    1: ("4:memory:/\n0::/\n", "cgroup", "rw,memory", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n"),
    2: ("0::/\n", "cgroup2", "rw", "memory.events", "low 0\noom 3\n"),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_counter_of_the_cgroup_is_read(tmp_path: Path, version: int) -> None:
    membership, kind, options, file, head = VERSIONS[version]
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(membership)
    (tmp_path / "self/mountinfo").write_text(f"1 2 0:3 / {tmp_path} rw - {kind} none {options}\n")
    assert cgroups.oom_kills(tmp_path)[1] == 0
    (tmp_path / file).write_text(f"{head}oom_kill 2\noom_group_kill 5\n")
    assert cgroups.oom_kills(tmp_path)[1] == 2
    assert cgroups.explain_oom(cgroups.oom_kills(tmp_path), tmp_path) == ""
    assert "out of memory" in cgroups.explain_oom((str(cgroups.find("self", "memory", tmp_path)), 1), tmp_path)
    assert "oom_kill 2" in cgroups.explain_oom(("the cgroup before a limit", 7), tmp_path)
    assert cgroups.explain_oom(("", 0), tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("code", "count", "text"),
    [(-signal.SIGKILL, 1, "out of memory"), (-signal.SIGKILL, 0, ""), (-signal.SIGTERM, 1, ""), (1, 1, ""), (0, 1, "")],
)
def test_a_rank_that_was_killed_for_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, count: int, text: str
) -> None:
    monkeypatch.setattr(cgroups, "oom_kills", lambda *_: ("cgroup", count))
    ranks, notes = _ranks(tmp_path, monkeypatch)
    assert ranks.exited(7, code)
    assert (text in (notes[0].error or "")) if text else notes[0].error is None


def test_a_rank_that_its_agent_kills_is_not_named_although_the_kernel_killed_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "oom_kills", lambda *_: ("cgroup", 1))
    monkeypatch.setattr(processes, "kill", lambda due: [process.pid for process in due])
    ranks, notes = _ranks(tmp_path, monkeypatch)
    own: Any = ranks
    own._reap, own._loop = lambda: None, SimpleNamespace(call_later=lambda *_: None)
    own._descendants = lambda exiting, spare: [SimpleNamespace(pid=7, start=1)]
    now = time.monotonic()
    stop = Stop(run="r", epoch=0, respond=lambda *_: None, began=now, until=now + 600)
    ranks._kill_until_stopped(stop, lambda: ())
    assert ranks.exited(7, -signal.SIGKILL)
    assert notes[0].error is None


def _ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RankProcesses, list[Any]]:
    """A node with rank 0 of pid 7, in whose cgroup none had been killed as it began; and what it reports."""
    monkeypatch.setattr(os, "close", lambda fd: None)
    spec: Any = SimpleNamespace(out=str(folder), isolation=None, run="r", epoch=0)
    gang = Gang(spec=spec, alive={7: 0}, release={0: 99}, oom_kills=("cgroup", 0))
    notes: list[Any] = []
    ranks = object.__new__(RankProcesses)
    ranks._gangs, ranks._exiting, ranks._node, ranks._incarnation = {("r", 0): gang}, set(), "n0", "i"
    log = SimpleNamespace(note=lambda event, **where: notes.append(event))
    ranks._log = lambda run: log  # type: ignore[assignment,return-value]
    return ranks, notes


def test_a_keeper_that_was_killed_for_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter((0, 1))
    monkeypatch.setattr(cgroups, "oom_kills", lambda *_: ("cgroup", next(counts)))
    monkeypatch.setattr(keeper_start, "READY_S", 0.0)
    archive = tmp_path / "agent.py"
    archive.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    env = {processes.TAG_VARIABLE: "tag"}
    with pytest.raises(RuntimeError, match="the host agent did not start: out of memory"):
        keeper_start._start(tmp_path, archive, sys.executable, (), env)


@pytest.mark.parametrize("file", ["memory.events", "memory.oom_control"])
def test_a_keeper_that_is_gone_since_the_kernel_killed_it_for_memory_is_named(tmp_path: Path, file: str) -> None:
    """Its label has the counter of its cgroup as it began. Others killed before that, and labels of older versions, say nothing."""
    gone = "the host agent of this bed is gone"
    (tmp_path / file).write_text("oom_kill 3\n")
    assert keeper_start.describe_loss(tmp_path) == gone
    for before, reason in (
        (3, ""),
        (2, f" (out of memory: the kernel killed a process of its cgroup (oom_kill 3 in {tmp_path}))"),
    ):
        (tmp_path / "keeper.json").write_text(json.dumps({"oom_kills": [str(tmp_path), before]}))
        assert keeper_start.describe_loss(tmp_path) == gone + reason
    (tmp_path / "keeper.json").write_text(json.dumps({"oom_kills": ["/none", 0], "pid": 1}))
    assert keeper_start.describe_loss(tmp_path) == gone


def test_a_bed_whose_keeper_was_killed_for_memory_says_so_in_its_status_and_refuses_a_run_with_the_reason(
    tmp_path: Path,
) -> None:
    bed = replace(beds.local(), workdir=str(tmp_path))
    (tmp_path / "keeper").mkdir()
    (tmp_path / "memory.events").write_text("oom_kill 3\n")
    (tmp_path / "keeper/keeper.json").write_text(json.dumps({"oom_kills": [str(tmp_path), 2], "pid": 1}))
    status = process_provider.bed_status(bed)
    reason = f"out of memory: the kernel killed a process of its cgroup (oom_kill 3 in {tmp_path})"
    assert (status.keeper_pid, status.keeper_loss) == (0, reason)
    assert bed_view.keeper(bed, status) == f"no host agent ({reason})"
    warm = replace(beds.up(bed), keeper_pid=0, keeper_hash="", keeper_loss=reason)
    assert checked.agent(bed, warm).text == f"the host agent is gone ({reason})"

"""What the kernel killed for memory is named: by the counter of the cgroup, and the exit of the process."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.agent.rank_processes import Gang, RankProcesses
from orchestrator.node.keeper import launch
from orchestrator.node.oslayer import cgroups, process_tag

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
    monkeypatch.setattr(cgroups, "oom_kills", lambda proc=None: ("cgroup", count))
    monkeypatch.setattr(os, "close", lambda fd: None)
    spec: Any = SimpleNamespace(out=str(tmp_path), isolation=None, run="r", epoch=0)
    gang = Gang(spec=spec, alive={7: 0}, release={0: 99}, oom_kills=("cgroup", 0))
    notes: list[Any] = []
    ranks = object.__new__(RankProcesses)
    ranks._gangs, ranks._exiting, ranks._node, ranks._incarnation = {("r", 0): gang}, set(), "n0", "i"
    log = SimpleNamespace(note=lambda event, **where: notes.append(event))
    ranks._log = lambda run: log  # type: ignore[assignment,return-value]
    assert ranks.exited(7, code)
    assert (text in (notes[0].error or "")) if text else notes[0].error is None


def test_a_keeper_that_was_killed_for_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter((0, 1))
    monkeypatch.setattr(cgroups, "oom_kills", lambda proc=None: ("cgroup", next(counts)))
    monkeypatch.setattr(launch, "READY_S", 0.0)
    archive = tmp_path / "agent.py"
    archive.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    env = {process_tag.VARIABLE: "tag"}
    with pytest.raises(RuntimeError, match="the keeper did not start: out of memory"):
        launch._start(tmp_path, archive, sys.executable, (), env)

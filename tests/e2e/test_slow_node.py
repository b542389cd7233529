"""slow-node on a real bed: proved, healed, without loss; and healed by its lease where the orchestrator was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.node.files import label
from orchestrator.node.oslayer import cgroups, processes
from orchestrator.plugins import discover
from orchestrator.store import bundle

from ..patience import until
from . import trials
from .conftest import ROOT, Bed, ran

pytestmark = pytest.mark.e2e

#: slow-node with a lease that a test can wait for.
SHORT_LEASE = '''"""slow-node with a short lease."""

from dataclasses import replace

from .slow_node import SAFETY, Params
from . import slow_node

def plan(params, target, host):
    return replace(slow_node.plan(params, target, host), lease_s=8.0)
'''
TRIAL = """
trial: slow
workload: train-dp
params: {epochs: 1, step_min_ms: 400, checkpoint_every: 5}
faults: [slow-shortly: {node: 2, at: {step: 3}, cpu_percent: 40}]
"""


def test_a_slow_node_is_proved_and_healed_and_nothing_is_lost(bed: Bed) -> None:
    done = bed.run(trials.dp(trials.slow(2, cpu_percent=40)))
    assert done.bad() == []
    assert done.of("recovery.decided") == ()
    assert [event.value["held"] for event in done.of("fault.before")] == [False]
    assert [event.node for event in done.of("fault.verified", "heal.verified")] == ["n2", "n2"]
    assert not is_slowed(bed, "n2")
    assert bed.unchanged()


def test_a_node_is_slow_for_a_time(bed: Bed) -> None:
    done = bed.run(trials.dp(trials.slow(1, cpu_percent=40, for_s=0.3)))
    assert done.bad() == []
    (injected,), (healed,) = done.of("fault.injected"), done.of("fault.healed")
    assert healed.t - injected.t >= 0.3
    assert bed.unchanged()


def test_a_slow_node_is_healed_by_its_lease_where_the_orchestrator_was_killed(bed: Bed, tmp_path: Path) -> None:
    plugins, runs, trial = tmp_path / "plugins", tmp_path / "runs", tmp_path / "slow.yml"
    (plugins / "faults").mkdir(parents=True)
    (plugins / "faults" / "slow_shortly.py").write_text(SHORT_LEASE)
    trial.write_text(TRIAL)
    env = {**os.environ, "XDG_STATE_HOME": str(bed.state.parent), "PYTHONPATH": str(ROOT)}
    command = ["--plugins", str(plugins), "run", str(trial), "--no-reference", "--runs-dir", str(runs)]
    argv = [sys.executable, "-m", "orchestrator.cli", *command]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        until(lambda: b'"fault.verified"' in written(runs))
        assert is_slowed(bed, "n2")
        process.kill()
    until(lambda: not is_slowed(bed, "n2"))
    directory = str((runs / "latest").resolve())
    code, output = bed.ccbed("--plugins", str(plugins), "resume", directory)
    assert code == 2, output
    resumed = ran(directory, replace(bed, catalogue=discover((plugins,))))
    assert [event.node for event in resumed.of("lease.over")] == ["n2"]
    assert resumed.outcome("fault-verified") == "unknown"
    assert bed.unchanged()


def is_slowed(bed: Bed, node: str) -> bool:
    """By what the kernel shows of the node's agent: a quota, or, where there is no cgroup, that it stands still at times."""
    agent = processes.find(int(label.live_label(Path(bed.spec.workdir) / "nodes" / node)["pid"]))
    assert agent is not None
    if cgroups.is_available(["cpu_percent"]):
        return cgroups.limits(agent, ["cpu_percent"])["cpu_percent"] == 40
    states = []
    for _ in range(100):
        process = processes.find(agent.pid)
        states.append(process.state if process else "")
        time.sleep(0.005)
    return processes.STOPPED in states


def written(runs: Path) -> bytes:
    return b"".join(file.read_bytes() for file in runs.glob(f"*/{bundle.HISTORY}"))

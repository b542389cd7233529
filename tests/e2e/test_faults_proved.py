"""Faults on a real bed that change nothing, or less than they claim: never verified, and never a pass."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.model.event import Event
from orchestrator.model.trial import FaultPlan, Trigger
from orchestrator.node.files import label
from orchestrator.node.oslayer import processes

from . import trials
from .conftest import ROOT, Bed

pytestmark = pytest.mark.e2e

KILL_RANK = ROOT / "tests/examples/plugins/faults/kill_rank.py"


def _with(bed: Bed, directory: Path, name: str, **changes: str) -> Bed:
    """The bed with a fault like kill-rank, some of its source replaced."""
    source = KILL_RANK.read_text()
    for old, new in changes.items():
        source = source.replace(*{"signals": ('("KILL", "TERM")', new), "default": ('"KILL"\n', new + "\n")}[old])
    (directory / "faults").mkdir()
    (directory / "faults" / f"{name}.py").write_text(source)
    return replace(bed, catalogue=plugins.discover((directory,)))


def _fault(name: str) -> FaultPlan:
    return FaultPlan(id="f0", fault=name, node=2, at=Trigger(step=13))


def test_a_signal_that_changes_nothing_is_unknown(bed: Bed, tmp_path: Path) -> None:
    """SIGCONT to a running rank: the state to verify, that it runs, holds without any injection."""
    waking = _with(bed, tmp_path, "wake_rank", default='"CONT"', signals='("CONT",)')
    ran = waking.run(trials.dp(_fault("wake-rank")))
    (before,) = ran.of("fault.before")
    assert before.value["held"] is True
    assert not ran.of("fault.injected")
    assert "already held before the injection" in ran.verdict("fault-verified").text
    assert (ran.outcome("fault-verified"), ran.outcome("bit-exact"), ran.code) == ("unknown", "unknown", 2)


def test_a_signal_that_ends_a_rank_is_proved(bed: Bed, tmp_path: Path) -> None:
    ran = _with(bed, tmp_path, "kill_rank").run(trials.dp(_fault("kill-rank")))
    assert [event.value["held"] for event in ran.of("fault.before")] == [False]
    assert ran.bad() == []


def test_a_node_that_was_stopped_by_hand_before_it_is_paused_proves_nothing(bed: Bed) -> None:
    """Its agent and its ranks stand still already when the fault is to stop them."""
    stopped: list[int] = []

    def stop(event: Event) -> None:
        if event.f == "rank.held":
            agent = label.live_label(Path(bed.spec.workdir) / "nodes" / str(event.node))
            stopped.extend(_tree(int(agent["pid"])))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            # A process stops when it is next on a CPU; one that has ended never does.
            settled = processes.STOPPED + processes.EXITED
            while any((process := processes.find(pid)) and process.state not in settled for pid in stopped):
                time.sleep(0.001)

    ran = bed.run(trials.dp(trials.pause(2, for_s=0.5)), on_event=stop)
    held: list[Any] = [event.value.get("held") for event in ran.of("fault.before")]
    assert held == [True]
    assert stopped
    assert ran.outcome("fault-verified") == "unknown"
    assert ran.code in (1, 2), "never a pass"
    assert bed.unchanged()


def _tree(pid: int) -> list[int]:
    return [pid, *(process.pid for process in processes.descendants(pid))]


def test_nodes_that_are_to_fail_at_one_point_fail_at_the_same_time(bed: Bed) -> None:
    faults = (trials.crash(1, id="f0"), trials.crash(3, id="f1"))
    ran = bed.run(trials.dp(*faults))
    orders = [event.seq for event in ran.of("fault.act") if event.type == "invoke"]
    assert len(orders) == 2 and max(orders) < ran.of("node.exit")[0].seq, "both are ordered before either node exits"
    lost = [node for event in ran.of("recovery.decided") for node in event.value["lost"]]
    assert sorted(lost) == ["n1", "n3"], (
        "in one recovery, or in two where the host agent was kept from a CPU between the crashes"
    )
    assert ran.bad() == []


def test_three_crashes_at_one_step_by_plan_are_no_crash_loop(bed: Bed) -> None:
    faults = tuple(trials.crash(2, id=f"f{epoch}", step=13, epoch=epoch) for epoch in range(3))
    ran = bed.run(trials.dp(*faults, policy=("restart",)))
    assert len(ran.of("recovery.decided")) == 3
    assert ran.bad() == []

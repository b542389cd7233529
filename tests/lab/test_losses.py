"""Hosts that are lost for real, each by its own fault with its own detector: recovered, verified, never hung."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.model.errors import EXIT_FINDING, EXIT_PASS
from orchestrator.model.event import Event, History
from orchestrator.store import bundle

from ..e2e.conftest import ccbed
from . import layout

#: The fault is aimed at rank 1, which is alone on h2; a spare waits on h3.
VICTIM = "h2"
STEPS = 60
#: Nothing here may take longer: a run that hangs is the one thing that must not be.
RUN_S = 180.0
EXITS = {"node.exit", "rank.exit"}
SILENCE = {"node.silent"}

slow = pytest.mark.lab


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a run on the lab."""

    code: int
    output: str
    directory: Path

    @property
    def history(self) -> History:
        return bundle.read_history(self.directory)

    @property
    def detectors(self) -> set[str]:
        return {str(event.value["detector"]) for event in self.history.of("recovery.decided")}

    def verdict(self, check: str) -> str:
        outcomes = {verdict.check: verdict.outcome for verdict in bundle.load(self.directory).verdicts}
        return outcomes.get(check, "none")

    def first(self, f: str) -> Event:
        event = self.history.first(f)
        assert event, f"{f} is not in the history"
        return event


@dataclass(frozen=True, kw_only=True)
class Bed:
    """The bed of the lab, up, with a directory for runs."""

    state: Path
    runs: Path
    inventory: Path

    def run(self, *faults: dict[str, Any], policy: str | list[str] = "auto", **params: Any) -> Ran:
        file = self.trial(*faults, policy=policy, **params)
        begun = time.monotonic()
        code, output = ccbed(self.state, "run", str(file), "--runs-dir", str(self.runs))
        assert time.monotonic() - begun < RUN_S, output
        return Ran(code=code, output=output, directory=(self.runs / "latest").resolve())

    def unchanged(self) -> None:
        """The bed is as `up` left it."""
        code, output = ccbed(self.state, "up", str(self.inventory))
        assert (code, "nothing to change" in output) == (0, True), output

    def trial(self, *faults: dict[str, Any], policy: str | list[str], **params: Any) -> Path:
        document = {
            "trial": "loss", "workload": "train-dp", "world": {"nodes": 3},
            "params": {"model": "mnist-mlp", "algorithm": "ring", "batch": 63, "checkpoint_every": 5, **params},
            "faults": list(faults), "recovery": {"policy": policy}, "checks": ["bit-exact", {"detected-within": "6s"}],
        }  # fmt: skip
        file = self.runs / "loss.yml"
        file.write_text(yaml.safe_dump(document))
        return file


@pytest.fixture(scope="module")
def bed(lab: layout.Lab, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    state, runs = tmp_path_factory.mktemp("state") / "ccbed", tmp_path_factory.mktemp("runs")
    inventory = runs / "inventory.yml"
    document = yaml.safe_load(layout.inventory(lab, image))
    for host in document["all"]["hosts"].values():
        host["ccbed_nodes"] = 1  # so that the loss of a host is that of one node
    inventory.write_text(yaml.safe_dump(document))
    code, output = ccbed(state, "up", str(inventory))
    assert code == 0, output
    made = Bed(state=state, runs=runs, inventory=inventory)
    yield made
    code, output = ccbed(state, "down", str(inventory), "--force")
    assert code == 0, output


@pytest.fixture(autouse=True)
def _as_up_left_it(bed: Bed) -> Iterator[None]:
    yield
    bed.unchanged()


def fault(name: str, node: int = 1, step: int = 30, **params: Any) -> dict[str, Any]:
    return {name: {"node": node, "at": {"step": step}, **params}}


def _recovered(ran: Ran, detectors: set[str]) -> None:
    assert ran.code == EXIT_PASS, ran.output
    assert ran.detectors
    assert ran.detectors <= detectors
    for check in ("bit-exact", "fault-verified", "planned-faults-only", "no-orphans", "membership", "detected-within"):
        assert ran.verdict(check) == "pass", ran.output


# --- the two that every change must pass ------------------------------------------------------------------------------


def test_a_container_that_is_killed_is_replaced(bed: Bed) -> None:
    _recovered(bed.run(fault("crash-node")), EXITS)


def test_a_host_without_power_is_detected_by_silence_alone_and_replaced_by_one_on_another_host(bed: Bed) -> None:
    ran = bed.run(fault("power-off"))
    _recovered(ran, SILENCE)
    silent = ran.first("node.silent")
    assert silent.t - ran.first("fault.injected").t < 6.0
    assert silent.value["seen"] == "unreachable"
    assert not [e for e in ran.history.of(*EXITS) if e.seq < silent.seq and (e.f != "rank.exit" or e.value.get("code"))]


# --- the rest ---------------------------------------------------------------------------------------------------------


@slow
def test_a_container_that_is_frozen_is_found_by_silence_and_ended_before_the_next_epoch(bed: Bed) -> None:
    ran = bed.run(fault("pause-node"))
    _recovered(ran, SILENCE)
    ended = next(event for event in ran.history.of("node.kill") if event.type == "ok")
    started = next(event for event in ran.history.of("gang.start") if event.epoch == 1)
    assert ended.seq < started.seq


@slow
def test_an_engine_that_is_stopped(bed: Bed) -> None:
    _recovered(bed.run(fault("stop-engine")), EXITS)


@slow
def test_where_the_engine_is_stopped_a_restart_fails_and_the_spare_follows(bed: Bed) -> None:
    ran = bed.run(fault("stop-engine"), policy=["restart", "spare"])
    assert ran.code == EXIT_PASS, ran.output
    policies = [next(iter(event.value["policy"].values())) for event in ran.history.of("recovery.decided")]
    assert policies == ["restart", "spare"]


@slow
def test_a_partition_that_is_healed_when_the_run_ends(bed: Bed) -> None:
    _recovered(bed.run(fault("cut-link")), SILENCE)


@slow
def test_a_partition_that_is_healed_while_the_next_epoch_trains(bed: Bed) -> None:
    ran = bed.run(fault("cut-link", for_s=4.0), step_min_ms=150)
    _recovered(ran, SILENCE)
    assert len(ran.history.of("recovery.decided")) == 1, "the node that came back broke nothing"


@slow
@pytest.mark.parametrize("for_s", [0.8, 1.3])
def test_a_partition_that_is_healed_before_anybody_is_missed(bed: Bed, for_s: float) -> None:
    """After the longer one what was sent meanwhile is sent again only when everybody would be given up."""
    ran = bed.run(fault("cut-link", for_s=for_s))
    assert ran.history.of("recovery.decided") == ()
    assert ran.verdict("finished") == "pass"
    assert ran.verdict("fault-verified") == "pass"


@slow
def test_a_host_whose_sshd_is_gone_survives_or_is_replaced(bed: Bed) -> None:
    ran = bed.run(fault("stop-ssh"))
    assert ran.detectors <= SILENCE
    assert ran.verdict("finished") == "pass"
    assert ran.verdict("bit-exact") == "pass"


@slow
def test_rank_0_may_be_lost_with_its_host(bed: Bed) -> None:
    _recovered(bed.run(fault("power-off", node=0)), SILENCE)


@slow
def test_two_losses_in_a_row(bed: Bed) -> None:
    ran = bed.run(
        fault("crash-node", node=2, step=20), fault("power-off", node=1, step=40), policy=["spare", "restart"]
    )
    assert ran.detectors <= EXITS | SILENCE
    assert ran.code in (EXIT_PASS, EXIT_FINDING), "the only spare is taken by the first loss"


@slow
@pytest.mark.parametrize("policy", ["none", "restart"])
def test_a_loss_that_nothing_replaces_is_a_finding_and_the_run_does_not_hang(bed: Bed, policy: str) -> None:
    ran = bed.run(fault("power-off"), policy=policy)
    assert ran.code == EXIT_FINDING, ran.output


@slow
def test_an_orchestrator_that_is_killed_during_a_partition_is_taken_over_from(bed: Bed, lab: layout.Lab) -> None:
    file = bed.trial(fault("cut-link"), policy="auto", step_min_ms=100)
    environment = {**os.environ, "XDG_STATE_HOME": str(bed.state.parent), "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-m", "orchestrator.cli", "run", str(file), "--runs-dir", str(bed.runs), "--no-reference"]
    first = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(bed, first, "fault.verified")
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    directory = (bed.runs / "latest").resolve()
    code, output = ccbed(bed.state, "resume", str(directory))
    ran = Ran(code=code, output=output, directory=directory)
    assert ran.detectors == SILENCE
    for check in ("finished", "fault-verified", "planned-faults-only", "membership", "no-orphans"):
        assert ran.verdict(check) == "pass", output


def _wait_for(bed: Bed, process: subprocess.Popen[bytes], f: str) -> None:
    before, until = set(bed.runs.iterdir()), time.monotonic() + 600
    while time.monotonic() < until and process.poll() is None:
        for directory in set(bed.runs.iterdir()) - before:
            if (directory / bundle.HISTORY).exists() and bundle.read_history(directory).of(f):
                return
        time.sleep(0.05)
    raise AssertionError(f"{f} was not seen")

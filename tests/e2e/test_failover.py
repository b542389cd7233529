"""Real failovers: every node, every policy, several faults, pauses; and what must never be called a pass."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.model.event import Event
from orchestrator.model.trial import CheckSpec, World
from orchestrator.providers import node_files
from orchestrator.providers.process.process_provider import ProcessProvider

from . import trials
from .conftest import Bed, Ran, with_damage

pytestmark = pytest.mark.e2e
EXAMPLES = Path(__file__).parents[1] / "examples" / "plugins"


def _decisions(ran: Ran) -> list[dict[str, str]]:
    return [dict(event.value["policy"]) for event in ran.of("recovery.decided")]


def test_a_crashed_node_is_replaced_by_the_warm_spare_bit_exact(bed: Bed) -> None:
    ran = bed.run(trials.dp(trials.crash(2), checks=(*trials.CHECKS, "spare-warm")))
    assert ran.bad() == []
    assert ran.code == 0
    assert _decisions(ran) == [{"n2": "spare"}]
    assert [event.value["step"] for event in ran.of("resume.chosen")] == [0, 10]
    assert bed.unchanged()


def test_every_node_tells_in_the_bundle_what_it_runs_on(bed: Bed) -> None:
    ran = bed.run(trials.dp())
    system_facts = {
        file.parent.name: json.loads(file.read_text()) for file in ran.directory.glob("nodes/*/system.json")
    }
    assert set(system_facts) == {"n0", "n1", "n2", "n3", "n4"}
    assert all(facts["node"] == name and facts["torch"] and facts["cpu"] for name, facts in system_facts.items())
    provider = ProcessProvider(bed.state)
    provider.open(bed.spec, "bed")
    assert node_files.read_systems(provider, system_facts) == system_facts
    provider.close()


@pytest.mark.parametrize("node", [0, 1, 3])
def test_any_other_node_too(bed: Bed, node: int) -> None:
    ran = bed.run(trials.dp(trials.crash(node)))
    assert ran.bad() == []
    assert _decisions(ran) == [{f"n{node}": "spare"}]
    assert bed.unchanged()


@pytest.mark.parametrize("node", [0, 2])
def test_restart_brings_the_node_back_on_its_host(bed: Bed, node: int) -> None:
    ran = bed.run(trials.dp(trials.crash(node), policy=("restart",)))
    assert ran.bad() == []
    assert _decisions(ran) == [{f"n{node}": "restart"}]
    assert bed.unchanged()


def test_without_a_policy_the_loss_is_a_finding(bed: Bed) -> None:
    ran = bed.run(trials.dp(trials.crash(2), policy=("none",)))
    assert ran.outcome("finished") == "fail"
    assert ran.code == 1
    assert bed.unchanged()


def test_the_fault_of_contributing_is_proved_and_has_nothing_to_undo(bed: Bed, tmp_path: Path) -> None:
    trial = tmp_path / "kill.yml"
    trial.write_text(
        "{trial: kill, workload: train-dp, params: {epochs: 1}, faults: [{kill-rank: {node: 1, at: {step: 12}, signal: TERM}}]}"
    )
    code, output = bed.ccbed(
        "--plugins", str(EXAMPLES), "run", str(trial), "--runs-dir", str(bed.runs), "--recovery", "restart", "-v"
    )
    assert code == 0, output
    assert "kill-rank n1: injected, verified and undone" in output
    assert bed.unchanged()


def test_two_faults_in_a_row(bed: Bed) -> None:
    ran = bed.run(trials.dp(trials.crash(2), trials.crash(2, id="f1", step=17)))
    assert ran.bad() == []
    assert _decisions(ran) == [{"n2": "spare"}, {"n4": "restart"}]
    assert bed.unchanged()


def test_a_fault_in_the_recovery_of_another(bed: Bed) -> None:
    ran = bed.run(trials.dp(trials.crash(2), trials.crash(1, id="f1", phase="restore", epoch=1)))
    assert ran.bad() == []
    assert len(_decisions(ran)) == 2
    assert bed.unchanged()


@pytest.mark.parametrize("phase", ["forward", "optimizer", "checkpoint", "data", "backward"])
def test_held_in_any_phase_of_a_step(bed: Bed, phase: str) -> None:
    ran = bed.run(trials.dp(trials.crash(0, step=15, phase=phase)))
    assert ran.bad() == []


def test_a_pause_that_is_healed_in_time_costs_nothing_but_time(bed: Bed) -> None:
    ran = bed.run(trials.dp(trials.pause(2, for_s=0.5), liveness=replace(trials.LIVENESS, lost_s=15.0)))
    assert ran.bad() == []
    assert _decisions(ran) == []
    assert bed.unchanged()


def test_a_pause_until_the_run_ends_is_found_by_silence_and_the_old_epoch_cannot_act(bed: Bed) -> None:
    ran = bed.run(trials.dp(trials.pause(2)))
    assert ran.bad() == []
    assert [event.value["detector"] for event in ran.of("recovery.decided")] == ["node.silent"]
    assert bed.unchanged()


def test_a_pause_healed_while_the_next_epoch_trains(bed: Bed) -> None:
    ran = bed.run(trials.dp(trials.pause(2, for_s=2.6), params={"step_min_ms": 60}))
    assert ran.bad() == []
    assert bed.unchanged()


def test_a_paused_node_that_is_restarted(bed: Bed) -> None:
    ran = bed.run(trials.dp(trials.pause(1), policy=("restart",)))
    assert ran.bad() == []
    assert _decisions(ran) == [{"n1": "restart"}]
    assert bed.unchanged()


def test_a_node_killed_by_hand_is_recovered_too_and_said(bed: Bed) -> None:
    def kill(event: Event) -> None:
        if event.f == "checkpoint.commit" and event.value["step"] == 10 and event.epoch == 0:
            os.kill(_pid(bed, "n3"), signal.SIGKILL)

    ran = bed.run(trials.dp(params={"step_min_ms": 100}), on_event=kill)
    assert ran.outcome("finished") == "pass"
    assert ran.outcome("bit-exact") == "pass"
    assert ran.outcome("planned-faults-only") == "fail"
    assert bed.unchanged()


def test_two_ranks_per_node_and_the_librarys_all_reduce(bed: Bed) -> None:
    trial = trials.dp(trials.crash(1), params={"algorithm": "library"}, world=World(nodes=2, ranks_per_node=2))
    ran = bed.run(trial)
    assert ran.bad() == []


def test_a_world_of_one(bed: Bed) -> None:
    trial = trials.dp(trials.crash(0, step=13, phase="optimizer"), world=World(nodes=1))
    assert bed.run(trial).bad() == []


# --- what must never pass ---------------------------------------------------------------------------------------------


def test_optimizer_state_that_is_not_restored_is_found(bed: Bed) -> None:
    ran = with_damage(bed).run(trials.damaged(trials.dp(trials.crash(2)), "optimizer"))
    assert ran.outcome("bit-exact") == "fail"
    assert ran.code == 1


def test_random_state_that_is_not_restored_is_found(bed: Bed) -> None:
    ran = with_damage(bed).run(trials.damaged(trials.dp(trials.crash(2)), "rng"))
    assert ran.outcome("bit-exact") == "fail"
    assert ran.outcome("replay-equal") == "fail"


def test_a_trigger_that_is_never_reached_is_unknown(bed: Bed) -> None:
    ran = bed.run(trials.dp(trials.crash(2, step=99)))
    assert ran.outcome("fault-verified") == "unknown"
    assert ran.code == 2


def _pid(bed: Bed, name: str) -> int:
    return int(json.loads((Path(bed.spec.workdir) / "nodes" / name / "node.json").read_text())["pid"])


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(bed: Bed) -> None:
    directory: list[Path] = []

    def damage(event: Event) -> None:
        if event.f == "checkpoint.commit" and event.value["step"] == 10:
            path = Path(bed.spec.shared_dir) / directory[-1].name / "checkpoints" / f"{event.value['name']}.pt"
            path.write_bytes(path.read_bytes()[:-100])

    ran = bed.run(
        replace(trials.dp(trials.crash(2), params={"step_min_ms": 20}), checks=(CheckSpec(name="bit-exact"),)),
        on_event=damage, on_begin=lambda path: directory.append(Path(path)),
    )  # fmt: skip
    assert [event.value["name"] for event in ran.of("checkpoint.skipped")] == ["e0-s10"]
    assert [event.value["step"] for event in ran.of("resume.chosen")] == [0, 5]
    assert ran.bad() == []

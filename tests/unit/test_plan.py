"""Trial and bed: who takes which group rank, what is refused before anything starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from orchestrator import plugins
from orchestrator.core.spec import parse_trial, planning
from orchestrator.core.spec.trial_draft import Override
from orchestrator.model.bed import BedSpec, BedStatus, Machine
from orchestrator.model.errors import InfrastructureError, UsageError
from orchestrator.model.plan import Plan
from orchestrator.model.trial import Trial
from orchestrator.rank.watcher.holds import acts

from . import beds

CATALOGUE = plugins.discover()


def trial(text: str = "", *, fail: str | None = None) -> Trial:
    body = {"crash-node": {"node": fail}}
    overrides = [Override(path=("faults",), content=body, source="--fail-node", append=True)] if fail else []
    return parse_trial.parse(f"trial: t\nworkload: train-dp\n{text}", "t.yml", CATALOGUE, overrides)


def planned(of: Trial, bed: BedSpec | None = None, status: BedStatus | None = None, **change: Any) -> Plan:
    bed = bed or beds.local()
    given: dict[str, Any] = {"run": "r", "payload": "/p", "capabilities": {"localhost": frozenset({"kill", "pause"})}}
    return planning.plan(of, bed, status or beds.up(bed), CATALOGUE, **{**given, **change})


def test_nodes_take_the_group_ranks_in_order_and_spares_are_kept_apart() -> None:
    made = planned(trial("world: {nodes: 2}"))
    assert (made.slots, made.spares) == (("n0", "n1"), ("n4",))
    assert (made.backend, made.last_step, made.keep) == ("gloo", 60, 3)
    assert made.nodes["n4"].incarnation == "i-n4"
    assert made.checkpoints == "/state/beds/local/shared/r/checkpoints"


def test_auto_is_a_spare_while_one_is_warm_and_else_a_restart() -> None:
    bed = beds.local()
    assert planned(trial()).policy == ("spare", "restart")
    assert planned(trial(), status=beds.up(bed, n4="dead")).policy == ("restart",)


def test_spare_alone_is_refused_where_none_is_warm() -> None:
    bed = beds.local()
    with pytest.raises(UsageError, match="needs a ready spare; bed local has none"):
        planned(trial("recovery: {policy: spare}"), status=beds.up(bed, n4="dead"))


def test_too_few_nodes_is_a_mistake_of_the_trial() -> None:
    with pytest.raises(UsageError, match="needs 5 nodes; bed local has 4") as caught:
        planned(trial("world: {nodes: 5}"))
    assert caught.value.hint == "raise ccbed_nodes in local.yml and: ccbed up local.yml"


def test_a_node_that_is_not_warm_is_a_failure_of_the_bed() -> None:
    bed = beds.local()
    with pytest.raises(InfrastructureError, match="node n2 of bed local is dead, not ready"):
        planned(trial(), status=beds.up(bed, n2="dead"))


def test_every_node_that_a_fault_may_meet_has_its_act() -> None:
    assert set(planned(trial(fail="2")).acts["f0"]) == {"n0", "n1", "n2", "n3", "n4"}
    assert set(planned(trial(fail="n2")).acts["f0"]) == {"n2"}


def test_a_node_that_takes_no_part_cannot_be_the_target() -> None:
    with pytest.raises(UsageError, match=r"fault f0 \(crash-node\): unknown node n7"):
        planned(trial(fail="n7"))


def test_a_fault_needs_what_its_host_can_do() -> None:
    with pytest.raises(UsageError, match=r"needs kill; host localhost .* offers: pause"):
        planned(trial(fail="2"), capabilities={"localhost": frozenset({"pause"})})


def test_faults_on_real_hosts_need_to_be_allowed() -> None:
    bed = dataclasses.replace(beds.local(), provider="docker", allow_faults="process")
    with pytest.raises(UsageError, match="is of class container; bed local allows process: set ccbed_allow_faults"):
        planned(trial(fail="2"), bed)
    allowed = planned(trial(fail="2"), dataclasses.replace(bed, allow_faults="container"))
    assert allowed.acts["f0"]["n2"].safety == "container"


def test_a_pause_on_a_slurm_node_is_short_and_needs_to_be_allowed() -> None:
    """Slurm drains a node whose processes do not end within KillWait: pause and lease end before that."""
    bed = dataclasses.replace(beds.local(), provider="slurm", allow_faults="node")
    with pytest.raises(UsageError, match="is of class node; bed local allows container"):
        planned(trial("faults: [pause-node: {node: 2, for_s: 5}]"), dataclasses.replace(bed, allow_faults="container"))
    for params in ("{node: 2}", "{node: 2, for_s: 21}"):
        with pytest.raises(UsageError, match="set for_s to at most 20 s"):
            planned(trial(f"faults: [pause-node: {params}]"), bed)
    assert planned(trial("faults: [pause-node: {node: 2, for_s: 5}]"), bed).acts["f0"]["n2"].lease_s == 25.0
    local = planned(trial("faults: [pause-node: {node: 2, for_s: 5}]"), beds.local())
    assert local.acts["f0"]["n2"].lease_s == 65.0


DOCKER = """all:
  hosts: {h1: {ansible_host: 198.18.0.1}, h2: {ansible_host: 198.18.0.2}}
  vars:
    ccbed_provider: docker
    ccbed_nodes: 2
    ccbed_allow_faults: node
"""


@pytest.mark.parametrize(
    ("fault", "variable"),
    [
        ("power-off", "ccbed_power: {off: [pdu, off], on: [pdu, on]}"),
        (
            "power-off",
            "ccbed_power: {'false': [pdu, 'off'], 'true': [pdu, 'on']}",
        ),  # as ansible-inventory lists bare words
        ("cut-link", "ccbed_switch_port: {down: [sw, down], up: [sw, up]}"),
        ("stop-engine", "ccbed_engine_control: {stop: [sv, stop], start: [sv, start]}"),
        ("stop-ssh", "ccbed_ssh_control: {stop: [con, stop], start: [con, start]}"),
    ],
)
def test_what_takes_a_host_away_needs_the_argv_of_the_inventory_and_to_be_allowed(fault: str, variable: str) -> None:
    text = f"faults: [{fault}: {{node: 1}}]\nworld: {{nodes: 2}}"
    can: dict[str, Any] = {"capabilities": {"h1": frozenset({"kill"}), "h2": frozenset({"kill"})}}
    bare, name = beds.local(DOCKER), variable.partition(":")[0]
    with pytest.raises(UsageError, match=f"needs {fault}; host h1 .* offers: kill; set {name}"):
        planned(trial(text), bare, **can)
    given = beds.local(f"{DOCKER}    {variable}\n")
    act = planned(trial(text), given, **can).acts["f0"]["n1"]
    assert act.of_host
    assert all(isinstance(part, str) for primitive in act.inject for part in primitive.args["run"])
    careful = dataclasses.replace(given, allow_faults="container")
    with pytest.raises(UsageError, match="is of class node; bed local allows container"):
        planned(trial(text), careful, **can)


def test_on_slurm_only_the_power_can_be_taken_away_by_a_command_of_the_administrator() -> None:
    """Other variables of an inventory for it are rejected there, so that no error may recommend one."""
    bed = dataclasses.replace(beds.local(), provider="slurm", allow_faults="node")
    for fault in ("cut-link", "stop-ssh", "stop-engine"):
        with pytest.raises(UsageError, match=rf"needs {fault}; .*; unsupported on the nodes of a Slurm job"):
            planned(trial(f"faults: [{fault}: {{node: 2}}]"), bed)
    with pytest.raises(UsageError, match=r"needs power-off; .*; an administrator's command is needed: set ccbed_power"):
        planned(trial("faults: [power-off: {node: 2}]"), bed)


SLURM = """all:
  hosts: {cluster: {ccbed_nodes: 2}}
  vars:
    ccbed_provider: slurm
    ccbed_time: 1h
    ccbed_allow_faults: node
"""


def test_the_power_of_a_slurm_node_is_switched_by_its_name_and_watched_at_its_slurmd() -> None:
    power = "ccbed_power: {off: [ipmi, '--host={node}-bmc', off], on: [ipmi, '--host={node}-bmc', on]}"
    bed = beds.local(f"{SLURM}    {power}\n")
    machine = Machine(name="gpu07", address="10.0.0.7", port=6818)
    text = "faults: [power-off: {node: 1}]\nworld: {nodes: 2}"
    act = planned(trial(text), bed, machines={"h1": machine}).acts["f0"]["n1"]
    at = {"address": "10.0.0.7", "port": 6818, "greeting": ""}
    (off,) = act.inject
    (on,) = act.verify_heal
    assert off.args == {"state": "off", "of": "host", "run": ["ipmi", "--host=gpu07-bmc", "off"], **at}
    assert on.args == {"state": "on", "of": "host", "run": ["ipmi", "--host=gpu07-bmc", "on"], **at}
    assert act.of_host and act.outside


def test_a_slurm_node_is_not_named_within_a_value_out_of_a_vault() -> None:
    """Bundles hide exactly that value. Beside it the name is set."""
    power = "ccbed_power: {off: [pdu, 'pass=open-sesame off {node}'], on: [pdu, 'pass=open-sesame on {node}']}"
    bed = beds.local(f"{SLURM}    {power}\n")
    machine = {"h1": Machine(name="gpu07", address="10.0.0.7", port=6818)}
    text = "faults: [power-off: {node: 1}]\nworld: {nodes: 2}"
    part = dataclasses.replace(bed, vault=("open-sesame",))
    (off,) = planned(trial(text), part, machines=machine).acts["f0"]["n1"].inject
    assert off.args["run"][1] == "pass=open-sesame off gpu07"
    whole = dataclasses.replace(bed, vault=("pass=open-sesame off {node}",))
    with pytest.raises(UsageError, match=r"in ccbed_power \{node\} is part of a value out of a vault"):
        planned(trial(text), whole, machines=machine)


def test_the_power_of_the_machine_that_runs_ccbed_is_not_switched() -> None:
    power = "ccbed_power: {off: [pdu, 'off {node}'], on: [pdu, 'on {node}']}"
    bed = beds.local(f"{SLURM}    {power}\n")
    machines = {
        "h0": Machine(name="gpu06", address="10.0.0.6", port=6818, is_own=True),
        "h1": Machine(name="gpu07", address="10.0.0.7", port=6818),
    }
    text = "faults: [power-off: {node: %s}]\nworld: {nodes: 2}"
    assert planned(trial(text % "n1"), bed, machines=machines).acts["f0"].keys() == {"n1"}
    for node in ("n0", 1):  # rank 1 may be on any node when the fault is injected
        with pytest.raises(UsageError, match=r"needs power-off; host h0 .*; ccbed runs on it \(gpu06\)"):
            planned(trial(text % node), bed, machines=machines)


def test_a_power_command_that_names_no_slurm_node_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"off: an argument must contain \{node\}.*\(got pdu off\)"):
        beds.local(f"{SLURM}    ccbed_power: {{off: [pdu, off], on: [pdu, 'on', '{{node}}']}}\n")


def test_nccl_where_every_rank_and_every_spare_has_a_gpu() -> None:
    bed = beds.local(beds.LOCAL.replace("ccbed_spares: 1", "ccbed_spares: 1, ccbed_gpus: 2"))
    assert planned(trial("world: {ranks_per_node: 2}"), bed).backend == "nccl"
    assert planned(trial("world: {ranks_per_node: 3}"), bed).backend == "gloo"
    with pytest.raises(UsageError, match="backend nccl needs 1 GPU per node"):
        planned(trial("world: {backend: nccl}"))


def test_a_bundles_plan_keeps_no_secret_and_goes_on_with_the_beds() -> None:
    env = {"WANDB_API_KEY": "abc", "LEVEL": "3"}
    bed = beds.local()
    bed = dataclasses.replace(bed, nodes=tuple(dataclasses.replace(node, env=env) for node in bed.nodes))
    made = planned(trial(), bed)
    kept = planning.without_secrets(made)
    assert kept.nodes["n1"].env == {"WANDB_API_KEY": "***", "LEVEL": "3"}
    assert planning.with_secrets(kept, bed) == made


def test_a_variable_whose_value_came_out_of_a_vault_is_secret_whatever_its_name() -> None:
    env = {"STATION": "open-sesame", "PIN": "7", "URL": "a/open-sesame", "LEVEL": "3"}
    bed = beds.local()
    bed = dataclasses.replace(bed, vault=("7", "open-sesame"))
    bed = dataclasses.replace(bed, nodes=tuple(dataclasses.replace(node, env=env) for node in bed.nodes))
    made = planned(trial(), bed)
    assert made.secret_names == ("STATION", "PIN", "URL")
    assert planning.without_secrets(made).nodes["n1"].env == {
        "STATION": "***",
        "PIN": "***",
        "URL": "***",
        "LEVEL": "3",
    }


def test_a_fault_that_changes_nothing_is_refused_by_name(tmp_path: Path) -> None:
    """A plugin whose injection and healing are both SIGCONT to a running rank."""
    (tmp_path / "faults").mkdir()
    source = (Path(__file__).parents[1] / "examples/plugins/faults/kill_rank.py").read_text()
    source = source.replace('signal: str = "KILL"', 'signal: str = "CONT"').replace('("KILL", "TERM")', '("CONT",)')
    source = source.replace("heal=(), verify_heal=()", "heal=(kill,), verify_heal=(kill,)")
    (tmp_path / "faults" / "wake_rank.py").write_text(source)
    catalogue = plugins.discover((tmp_path,))
    text = "trial: t\nworkload: train-dp\nfaults: [wake-rank: {node: 2}]\n"
    with pytest.raises(
        UsageError, match=r"fault f0 \(wake-rank\): inject equals `heal`: the fault would change nothing"
    ):
        planning.plan(
            parse_trial.parse(text, "t.yml", catalogue, []), beds.local(), beds.up(beds.local()), catalogue,
            run="r", payload="/p", capabilities={"localhost": frozenset({"signal"})},
        )  # fmt: skip


#: A fault with what makes it act inside of a rank -> what the ranks must be able to do.
ACTS_OF_RANKS = {
    "flip-bit: {node: 2}": "flip",
    "oom: {node: 2}": "run-out-of-memory",
    "torn-checkpoint: {node: 2}": "tear",
    "hang-rank: {node: 2, how: spinning}": "spin",
}
CAPABLE = {"localhost": frozenset({"kill", "pause", "stop", "signal", "limit"})}


@pytest.mark.parametrize("workload", sorted(set(CATALOGUE.workloads) - {"script"}))
@pytest.mark.parametrize("fault", ACTS_OF_RANKS)
def test_a_fault_that_the_ranks_cannot_do_is_refused_with_the_workloads_that_can(fault: str, workload: str) -> None:
    of = dataclasses.replace(trial(f"faults: [{fault}]"), workload=workload, params={}, checks=())
    text = (
        rf"the ranks of {workload} cannot do it \({ACTS_OF_RANKS[fault]}\); it acts on the ranks of script \(a FILE.py"
    )
    with pytest.raises(UsageError, match=text):
        planned(of, capabilities=CAPABLE)


@pytest.mark.parametrize("fault", [*ACTS_OF_RANKS, "hang-rank: {node: 2}", "crash-rank: {node: 2}"])
def test_a_fault_that_the_ranks_can_do_is_planned(fault: str) -> None:
    """Negative control: on a script; and what needs no help of a rank on any workload."""
    of = trial(f"faults: [{fault}]")
    is_inside = fault in ACTS_OF_RANKS
    of = dataclasses.replace(of, workload="script", params={"file": "/x.py"}) if is_inside else of
    assert planned(of, capabilities=CAPABLE).acts["f0"]


def test_what_the_ranks_of_a_script_can_do_is_what_the_watcher_does() -> None:
    assert set(CATALOGUE.workloads["script"].module.ACTS) == set(acts._ACTS)

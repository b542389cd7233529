"""Trial and bed -> the plan of a run: who takes which group rank, what a loss may lead to, every possible act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ...model import redaction, vaulted
from ...model.act import SAFETY_ORDER, Act, HostFacts, Target, objection
from ...model.bed import BedSpec, BedStatus, NodeSpec
from ...model.errors import InfrastructureError, UsageError
from ...model.plan import Gap, HostClock, Plan, PlanNode
from ...model.plugin import Catalogue
from ...model.room import Room
from ...model.trial import FaultPlan, Trial
from ..verdict import judge
from . import host_capabilities, memory_budget, plugin_files, shared_directory, values

#: Beds whose nodes are processes: no fault of a trial can harm a host, whatever its class.
EMULATED = ("process",)


def plan(
    trial: Trial,
    bed: BedSpec,
    status: BedStatus,
    catalogue: Catalogue,
    *,
    run: str,
    payload: str,
    capabilities: Mapping[str, frozenset[str]],
    data_dir: str | None = None,
    clocks: Mapping[str, HostClock] = MappingProxyType({}),
    gaps: Sequence[Gap] = (),
    rooms: Sequence[Room] = (),
    twin: bool = True,
    secret_names: Sequence[str] = (),
    umask: int = 0o077,
) -> Plan:
    """``capabilities``: host -> what its provider can do; ``payload``: where the ranks find their code.

    ``clocks``: as preflight measured them; ``gaps``: who does not share the directory for checkpoints;
    ``rooms``: the memory that is free where its ranks will be; ``twin``: the run is compared with an uninterrupted one.

    Raises UsageError when the trial does not fit the bed, InfrastructureError when nodes of the bed are not warm.
    """
    slots, spares = _seats(trial, bed, status)
    data = data_dir or bed.data_dir
    apart = shared_directory.apart((node.name for node in slots), gaps)
    left_out: Mapping[str, str] = {}
    if {"auto", "spare"} & set(trial.recovery.policy):
        spares, left_out = shared_directory.sorted_out(slots, spares, gaps)
    policy, problems = _policy(trial, bed, slots, spares, apart, left_out)
    nodes = {node.name: node for node in (*slots, *spares)}
    acts, refused = _acts(trial, bed, nodes, slots, catalogue, capabilities)
    backend, unfit = _backend(trial, tuple(nodes.values()))
    last = last_step(trial, catalogue, data)
    blind = _without_data(trial, bed, catalogue, data) if last is None else ()
    large = tuple(memory_budget.problems(trial, [node.name for node in slots], rooms, catalogue))
    if problems or refused or unfit or blind or large:
        raise UsageError(*problems, *refused, *unfit, *blind, *large)
    return Plan(
        run=run,
        bed=bed.name,
        slots=tuple(node.name for node in slots),
        spares=tuple(node.name for node in spares),
        nodes={name: _plan_node(node, bed, status) for name, node in nodes.items()},
        policy=policy,
        backend=backend,
        payload=payload,
        checkpoints=f"{bed.shared_dir}/{run}/checkpoints",
        last_step=last,
        data=data,
        acts=acts,
        keep=int(trial.params.get("keep", 3)),
        clocks=clocks,
        link=bed.link,
        left_out=left_out,
        checks=judge.planned(trial, catalogue, twin=twin),
        workload=plugin_files.described(catalogue.workloads[trial.workload]),
        secret_names=tuple(dict.fromkeys((*secret_names, *_vaulted(bed)))),
        umask=umask,
    )


def _vaulted(bed: BedSpec) -> list[str]:
    """Environment variables whose values came out of a vault."""
    return [name for node in bed.nodes for name in vaulted.names(node.env, bed.vault)]


def shown(plan: Plan) -> Plan:
    """The plan as a bundle keeps it: without the secrets of the inventory."""
    return _with_env(plan, {name: redaction.redacted(node.env, plan.secret_names) for name, node in plan.nodes.items()})


def restored(plan: Plan, bed: BedSpec) -> Plan:
    """The plan of a bundle as it was: what it does not show is in the bed."""
    return _with_env(plan, {node.name: node.env for node in bed.nodes if node.name in plan.nodes})


def _with_env(plan: Plan, env: Mapping[str, Mapping[str, str]]) -> Plan:
    nodes = {name: replace(node, env=env.get(name, node.env)) for name, node in plan.nodes.items()}
    return replace(plan, nodes=nodes)


def last_step(trial: Trial, catalogue: Catalogue, data_dir: str | None) -> int | None:
    """The number of steps of the trial where its workload counts them."""
    module: Any = catalogue.workloads[trial.workload].module
    found: int | None = module.last_step(module.Params(**trial.params), data_dir)
    return found


def _without_data(trial: Trial, bed: BedSpec, catalogue: Catalogue, data: str | None) -> tuple[str, ...]:
    """A data directory of this machine in which the workload finds nothing, though it counts its steps elsewhere."""
    if data is None or bed.provider not in EMULATED or last_step(trial, catalogue, None) is None:
        return ()
    return (f"{data}: no data set that {trial.workload} can read; --data-dir or ccbed_data_dir names its directory",)


def _seats(trial: Trial, bed: BedSpec, status: BedStatus) -> tuple[Sequence[NodeSpec], Sequence[NodeSpec]]:
    """The nodes that take group ranks 0, 1, …, and the warm spares."""
    members = [node for node in bed.nodes if node.role == "node"]
    if trial.world.nodes > len(members):
        raise UsageError(
            f"trial {trial.name} needs {trial.world.nodes} nodes; bed {bed.name} has {len(members)}"
            " (spares are never counted)",
            hint=f"ask for more in {bed.inventory} (ccbed_nodes) and: ccbed up {bed.inventory}",
        )
    slots = members[: trial.world.nodes]
    cold = [node.name for node in slots if status.node(node.name).state != "warm"]
    if cold:
        listed = (f"node {name} of bed {bed.name} is {_state(status, name)}, not warm" for name in cold)
        busy = all(status.node(name).state == "busy" for name in cold)
        hint = (
            f"ccbed heal {bed.name}, or wait for what runs there (ccbed exec)" if busy else f"ccbed up {bed.inventory}"
        )
        raise InfrastructureError(*listed, hint=hint)
    spares = [node for node in bed.nodes if node.role == "spare" and status.node(node.name).state == "warm"]
    return slots, spares


def _state(status: BedStatus, name: str) -> str:
    found = status.node(name)
    return f"{found.state} ({found.reason})" if found.reason else found.state


def _policy(
    trial: Trial,
    bed: BedSpec,
    slots: Sequence[NodeSpec],
    spares: Sequence[NodeSpec],
    apart: str,
    left_out: Mapping[str, str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Every rank of the next gang reads the checkpoint, on whichever host it is: where its nodes do not share a directory,
    nothing recovers. What the bed's other hosts have there does not matter."""
    asked = trial.recovery.policy
    if asked == ("none",) or (apart and asked == ("auto",) and not trial.faults):
        return ("none",), ()
    if apart:
        names = " ".join(node.name for node in slots)
        needs = f"recovery {', '.join(asked)} needs a directory that the trial's nodes ({names}) share"
        fix = "mount one file system there on their hosts, set ccbed_shared_dir, or --recovery none"
        return asked, (f"{needs}; {bed.shared_dir} is none: {apart}: {fix}",)
    if asked == ("auto",):
        return (("spare", "restart") if spares else ("restart",)), ()
    if asked == ("spare",) and not spares:
        return asked, (_no_spare(bed, left_out),)
    return asked, ()


def _no_spare(bed: BedSpec, left_out: Mapping[str, str]) -> str:
    if not left_out:
        return f"recovery spare needs a warm spare; bed {bed.name} has none: set ccbed_spares, or --recovery restart"
    listed = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
    needs = (
        f"recovery spare needs a warm spare that shares {bed.shared_dir} with the trial's nodes; none does: {listed}"
    )
    return f"{needs}: mount one file system there on all their hosts, set ccbed_shared_dir, or --recovery restart"


def _plan_node(node: NodeSpec, bed: BedSpec, status: BedStatus) -> PlanNode:
    found = status.node(node.name)
    return PlanNode(
        name=node.name,
        role=node.role,
        incarnation=found.incarnation,
        ordinal=found.ordinal,
        pid=found.pid,
        address=found.address or node.address,
        interface=found.interface or node.interface,
        directory=f"{bed.hostdir or bed.workdir}/nodes/{node.name}",
        host=node.host,
        env=node.env,
        leaf=node.port.group if node.port else 0,
    )


def _backend(trial: Trial, nodes: Sequence[NodeSpec]) -> tuple[str, tuple[str, ...]]:
    """nccl where every rank, a spare's too, has a GPU of its own; else gloo."""
    short = [node for node in nodes if 0 <= node.gpus < trial.world.ranks_per_node]
    if trial.world.backend == "auto":
        return ("gloo" if short else "nccl"), ()
    if trial.world.backend == "nccl" and short:
        listed = ", ".join(f"{node.name}: {node.gpus}" for node in short)
        return "nccl", (f"backend nccl needs {trial.world.ranks_per_node} GPU per node (ccbed_gpus {listed})",)
    return trial.world.backend, ()


def _acts(
    trial: Trial,
    bed: BedSpec,
    nodes: Mapping[str, NodeSpec],
    slots: Sequence[NodeSpec],
    catalogue: Catalogue,
    capabilities: Mapping[str, frozenset[str]],
) -> tuple[dict[str, dict[str, Act]], list[str]]:
    """Every fault on every node that it may meet: a group rank may have moved to a spare when the trigger fires."""
    ranks = {node.name: index for index, node in enumerate(slots)}
    specs = {host.name: host for host in bed.hosts}
    acts: dict[str, dict[str, Act]] = {}
    problems: list[str] = []
    for fault in trial.faults:
        if isinstance(fault.node, str) and fault.node not in nodes:
            near = values.nearest(fault.node, nodes)
            problems.append(f"fault {fault.id} ({fault.fault}): no node {fault.node} takes part; {near}")
            continue
        targets = (fault.node,) if isinstance(fault.node, str) else tuple(nodes)
        acts[fault.id] = {}
        for name in targets:
            host = nodes[name].host
            can = (
                capabilities.get(host, frozenset())
                | host_capabilities.of(specs.get(host))
                | host_capabilities.of_bed(bed)
            )
            facts = HostFacts(name=host, provider=bed.provider, capabilities=can, spec=specs.get(host))
            act = _act(fault, Target(node=name, rank=ranks.get(name), role=nodes[name].role), facts, catalogue)
            acts[fault.id][name] = act
            problems += _refusals(fault, act, bed, facts)
    return acts, list(dict.fromkeys(problems))


def _act(fault: FaultPlan, target: Target, facts: HostFacts, catalogue: Catalogue) -> Act:
    module: Any = catalogue.faults[fault.fault].module
    made: Act = module.plan(module.Params(**fault.params), target, facts)
    return made


def _refusals(fault: FaultPlan, act: Act, bed: BedSpec, facts: HostFacts) -> list[str]:
    missing = [need for need in act.needs if need not in facts.capabilities]
    listed = ", ".join(sorted(facts.capabilities)) or "nothing"
    found = [
        f"fault {fault.id} ({fault.fault}) needs {need}; host {facts.name} (provider {facts.provider}) can: {listed}"
        f"{_given_by(need)}"
        for need in missing
    ]
    if problem := objection(act):
        found.append(f"fault {fault.id} ({fault.fault}): {problem}; correct the plugin's plan()")
    allowed = SAFETY_ORDER.index(bed.allow_faults)
    if bed.provider not in EMULATED and SAFETY_ORDER.index(act.safety) > allowed:
        found.append(
            f"fault {fault.id} ({fault.fault}) is of class {act.safety}; bed {bed.name} allows {bed.allow_faults}: "
            f"set ccbed_allow_faults: {act.safety} in {bed.inventory}"
        )
    return found


def _given_by(need: str) -> str:
    """The variable that gives a host this capability, for people."""
    variable = host_capabilities.VARIABLES.get(need)
    return f"; {variable} gives it to a host of containers" if variable else ""

"""Planned acts: every fault on every node that it may hit, and the capabilities of the hosts that acts require."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ...model import vaulted
from ...model.act import SAFETY_ORDER, Act, HostFacts, Safety, Target, objection
from ...model.bed import NODE_FIELD, BedSpec, HostSpec, Machine, NodeSpec
from ...model.plugin import Catalogue
from ...model.trial import SCRIPT, FaultPlan, Trial
from . import written_values

#: Beds whose nodes are processes: no fault of a trial can harm a host, whatever its class.
EMULATED = ("process",)
#: The longest pause on a Slurm node, and how much longer its lease may be: both end before KillWait, 30 s by default.
SLURM_PAUSE_S, SLURM_MARGIN_S = 20.0, 5.0
#: Capability -> the variable of the inventory that provides it.
_CAPABILITY_VARIABLES = {
    "power-off": "ccbed_power",
    "cut-link": "ccbed_switch_port",
    "stop-ssh": "ccbed_ssh_control",
    "stop-engine": "ccbed_engine_control",
}


def plan_acts(
    trial: Trial,
    bed: BedSpec,
    nodes: Mapping[str, NodeSpec],
    slots: Sequence[NodeSpec],
    catalogue: Catalogue,
    capabilities: Mapping[str, frozenset[str]],
    machines: Mapping[str, Machine] = MappingProxyType({}),
) -> tuple[dict[str, dict[str, Act]], list[str]]:
    """Fault -> node -> act, and the problems. A group rank may have moved to a spare when the trigger fires.

    ``machines``: host -> what it is outside of the bed, where that is known.
    """
    ranks = {node.name: index for index, node in enumerate(slots)}
    specs = {host.name: host for host in bed.hosts}
    acts: dict[str, dict[str, Act]] = {}
    problems: list[str] = []
    for fault in trial.faults:
        if isinstance(fault.node, str) and fault.node not in nodes:
            hint = written_values.nearest(fault.node, nodes)
            problems.append(f"fault {fault.id} ({fault.fault}): unknown node {fault.node}; {hint}")
            continue
        targets = (fault.node,) if isinstance(fault.node, str) else tuple(nodes)
        acts[fault.id] = {}
        for name in targets:
            host = nodes[name].host
            spec = _on_machine(specs.get(host), machines.get(host), bed)
            available = capabilities.get(host, frozenset()) | _host_capabilities(spec) | _bed_capabilities(bed)
            facts = HostFacts(name=host, provider=bed.provider, capabilities=available, spec=spec)
            act = _plan_act(fault, Target(node=name, rank=ranks.get(name), role=nodes[name].role), facts, catalogue)
            acts[fault.id][name] = act = _with_short_lease(act, bed)
            problems += _find_problems(fault, act, bed, facts, machines.get(host))
            problems += _beyond_ranks(trial, fault, act, catalogue)
    return acts, list(dict.fromkeys(problems))


def _on_machine(host: HostSpec | None, machine: Machine | None, bed: BedSpec) -> HostSpec | None:
    """The host with the address of its machine, whose name replaces ``{node}`` in the programs for its power.

    Within a value out of a vault nothing is replaced: bundles hide exactly that value. The power of the machine that runs
    ccbed cannot be switched: nothing would switch it on again.
    """
    if host is None or machine is None:
        return host

    def named(part: str) -> str:
        return part.replace(NODE_FIELD, machine.name) if NODE_FIELD in vaulted.hide(part, bed.vault) else part

    power = {state: tuple(map(named, argv)) for state, argv in host.power.items()}
    return replace(host, address=machine.address, port=machine.port, power={} if machine.is_own else power)


def _plan_act(fault: FaultPlan, target: Target, facts: HostFacts, catalogue: Catalogue) -> Act:
    module: Any = catalogue.faults[fault.fault].module
    act: Act = module.plan(module.Params(**fault.params), target, facts)
    return act


def _find_problems(fault: FaultPlan, act: Act, bed: BedSpec, facts: HostFacts, machine: Machine | None) -> list[str]:
    missing = [need for need in act.needs if need not in facts.capabilities]
    available = ", ".join(sorted(facts.capabilities)) or "nothing"
    problems = [
        f"fault {fault.id} ({fault.fault}) needs {need}; host {facts.name} (provider {facts.provider}) offers: {available}"
        f"{_hint(need, facts.provider, machine)}"
        for need in missing
    ]
    if machine and facts.spec and "power-off" in act.needs and _has_node_field(facts.spec):
        problems.append(
            f"fault {fault.id} ({fault.fault}): in ccbed_power {NODE_FIELD} is part of a value out of a vault, where it is not "
            f"replaced: write that argument of ccbed_power into a file that is not encrypted"
        )
    if problem := objection(act):
        problems.append(f"fault {fault.id} ({fault.fault}): {problem}; correct the plugin's plan()")
    allowed, safety = SAFETY_ORDER.index(bed.allow_faults), _safety(act, bed)
    if bed.provider not in EMULATED and SAFETY_ORDER.index(safety) > allowed:
        problems.append(
            f"fault {fault.id} ({fault.fault}) is of class {safety}; bed {bed.name} allows {bed.allow_faults}: "
            f"set ccbed_allow_faults: {safety} in {bed.inventory}"
        )
    if _is_pause_on_slurm(act, bed) and not (act.heal_after_s and act.heal_after_s <= SLURM_PAUSE_S):
        problems.append(
            f"fault {fault.id} ({fault.fault}): Slurm drains a node whose processes do not end within KillWait, 30 s by "
            f"default: set for_s to at most {SLURM_PAUSE_S:g} s"
        )
    return problems


def _beyond_ranks(trial: Trial, fault: FaultPlan, act: Act, catalogue: Catalogue) -> list[str]:
    """Return what the act asks ranks to do, if those of the workload cannot do it."""
    orders = {str(item.args["do"]) for item in (*act.inject, *act.verify) if item.kind == "inside"}
    able = [name for name, plugin in catalogue.workloads.items() if orders <= set(getattr(plugin.module, "ACTS", ()))]
    if not orders or trial.workload in able:
        return []
    where = ", ".join(
        "script (a FILE.py of yours, or example:gpt-ddp)" if name == SCRIPT else name for name in sorted(able)
    )
    problem = f"the ranks of {trial.workload} cannot do it ({', '.join(sorted(orders))})"
    return [f"fault {fault.id} ({fault.fault}): {problem}; it acts on the ranks of {where or 'no workload'}"]


def _has_node_field(host: HostSpec) -> bool:
    return any(NODE_FIELD in part for argv in host.power.values() for part in argv)


def _is_pause_on_slurm(act: Act, bed: BedSpec) -> bool:
    return bed.provider == "slurm" and "pause" in act.needs


def _safety(act: Act, bed: BedSpec) -> Safety:
    """The class of an act on this bed. A pause on a Slurm node concerns the whole node: Slurm may drain it."""
    return max(act.safety, "node", key=SAFETY_ORDER.index) if _is_pause_on_slurm(act, bed) else act.safety


def _with_short_lease(act: Act, bed: BedSpec) -> Act:
    """Shorten the lease of a pause on a Slurm node, so that it ends before KillWait as well."""
    if not _is_pause_on_slurm(act, bed):
        return act
    return replace(act, lease_s=min(act.lease_s, SLURM_PAUSE_S + SLURM_MARGIN_S))


def _hint(need: str, provider: str, machine: Machine | None) -> str:
    """Return the end of the error message: the variable that gives a host this capability, or that its engine lacks it."""
    if need == "power-off" and machine and machine.is_own:
        return f"; ccbed runs on it ({machine.name}): name another node of the bed, or run ccbed elsewhere"
    if provider == "docker" and need in ("limit", "pause"):
        return "; its container engine lacks it, see ccbed doctor"
    variable = _CAPABILITY_VARIABLES.get(need)
    if variable and provider == "slurm":
        if need == "power-off":
            return "; an administrator's command is needed: set ccbed_power"
        return "; unsupported on the nodes of a Slurm job"
    return f"; set {variable} for a host of containers" if variable else ""


def _bed_capabilities(bed: BedSpec) -> frozenset[str]:
    """The capabilities of every node of a bed: on an emulated fabric each node has its own switch port."""
    return frozenset({"own-link", "cut-link"}) if bed.fabric else frozenset()


def _host_capabilities(host: HostSpec | None) -> frozenset[str]:
    """The capabilities from a host's spec, in addition to those of the provider.

    Only the loss of a host that is reached over a network can be observed.
    """
    if host is None:
        return frozenset()
    engine = {"stop-engine"} if host.engine_control else set()
    if host.connection == "local":
        return frozenset(engine)
    controls = {"power-off": host.power, "cut-link": host.switch_port, "stop-ssh": host.ssh_control}
    return frozenset(engine | {name for name, control in controls.items() if control})

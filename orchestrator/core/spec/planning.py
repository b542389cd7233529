"""Plan a run from trial and bed: the node of each group rank, the recovery policy, every possible act."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ...model import codec, redaction, vaulted
from ...model.bed import BedSpec, BedStatus, Machine, NodeSpec
from ...model.errors import InfrastructureError, UsageError
from ...model.gang import Isolation, WorkDir
from ...model.plan import Gap, HostClock, Placement, Plan, PlanNode, PluginFile
from ...model.plugin import BUILT_IN, Catalogue, Plugin
from ...model.requirements import FreeMemory, RequiredMemory, size_text
from ...model.trial import SHRINK, THEIRS, CheckSpec, Trial
from ..engine import planned_stop
from ..verdict import judge
from . import planned_acts, planned_room
from . import slots as assignment

ANY_NODE = Placement()


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
    free_memory: Sequence[FreeMemory] = (),
    twin: bool = True,
    secret_names: Sequence[str] = (),
    umask: int = 0o077,
    work_dir: WorkDir | None = None,
    isolation: Isolation | None = None,
    paths: Mapping[str, str] = MappingProxyType({}),
    placement: Placement = ANY_NODE,
    machines: Mapping[str, Machine] = MappingProxyType({}),
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """``capabilities``: host -> capabilities from its provider; ``payload``: the directory of the ranks' code.

    ``clocks``: as preflight measured them; ``gaps``: nodes that do not share the directory for checkpoints;
    ``free_memory``: of the hosts and containers of the ranks; ``twin``: the run is compared with an undisturbed twin;
    ``work_dir``, ``isolation``, ``paths``: see model/plan.py; ``placement``: nodes that it must not use;
    ``machines``: host -> what it is outside of the bed; ``refused``: host -> why no replacement can be started there.

    Raises UsageError when the trial does not fit the bed, InfrastructureError when nodes of the bed are not warm, or too few
    of them may be used.
    """
    assigned = _assign_slots(trial, bed, status, placement)
    slots: Sequence[NodeSpec] = assigned.slots
    spares: Sequence[NodeSpec] = assigned.spares
    data = data_dir or bed.data_dir
    sharing_problem = _sharing_problem((node.name for node in slots), gaps)
    left_out: Mapping[str, str] = {}
    if {"auto", "spare"} & set(trial.recovery.policy):
        spares, left_out = _split_spares(slots, spares, gaps)
    missing = assignment.missing_spares(bed, placement, assigned.substitutes)
    policy, problems = _policy(trial, bed, slots, spares, sharing_problem, left_out, missing)
    backend, backend_problems = _backend(trial, (*slots, *spares))
    room = planned_room.plan_room(trial, bed, status, placement, (*slots, *spares), gaps, refused, backend)
    nodes = {node.name: node for node in (*slots, *spares, *room.nodes)}
    acts, act_problems = planned_acts.plan_acts(trial, bed, nodes, slots, catalogue, capabilities, machines)
    last = last_step(trial, catalogue, data)
    data_problems = _missing_data(trial, bed, catalogue, data) if last is None else ()
    memory_problems = _memory_problems(trial, [node.name for node in slots], free_memory, catalogue)
    all_problems = (
        *problems,
        *filter(None, [planned_room.missing_room(trial, bed, room)]),
        *planned_stop.problems(trial),
        *act_problems,
        *backend_problems,
        *data_problems,
        *memory_problems,
    )
    if all_problems:
        raise UsageError(*all_problems)
    workload = catalogue.workloads[trial.workload]
    return Plan(
        run=run,
        bed=bed.name,
        slots=tuple(node.name for node in slots),
        spares=tuple(node.name for node in spares),
        nodes={name: _plan_node(node, bed, status, machines.get(node.host)) for name, node in nodes.items()},
        policy=policy,
        backend=backend,
        payload=payload,
        checkpoints=f"{bed.shared_dir}/{run}/checkpoints",
        last_step=last,
        has_launcher=bool(trial.params.get("launcher")),
        data=data,
        acts=acts,
        keep=int(trial.params.get("keep", 3)),
        grace_s=float(trial.params.get("grace_s") or 0.0),
        save_grace_s=float(trial.params.get("save_grace_s") or 0.0),
        clocks=clocks,
        link=bed.link,
        left_out=left_out,
        checks=judge.planned(trial, catalogue, twin=twin),
        workload=PluginFile(name=workload.name, sha256=workload.sha256, source=workload.source),
        secret_names=tuple(dict.fromkeys((*secret_names, *_vaulted(bed)))),
        umask=umask,
        work_dir=work_dir,
        isolation=isolation,
        paths=paths,
        placement=placement,
        substitutes=assigned.substitutes,
        replacements=tuple(node.name for node in room.nodes),
        hosts=room.hosts,
    )


def _vaulted(bed: BedSpec) -> list[str]:
    """Environment variables whose values came from a vault."""
    return [name for node in bed.all_nodes for name in vaulted.names(node.env, bed.vault)]


def without_secrets(plan: Plan) -> Plan:
    return _with_env(plan, {name: redaction.redacted(node.env, plan.secret_names) for name, node in plan.nodes.items()})


def with_secrets(plan: Plan, bed: BedSpec) -> Plan:
    """The plan of a bundle with the secrets from the bed."""
    return _with_env(plan, {node.name: node.env for node in bed.all_nodes if node.name in plan.nodes})


def _with_env(plan: Plan, env: Mapping[str, Mapping[str, str]]) -> Plan:
    nodes = {name: replace(node, env=env.get(name, node.env)) for name, node in plan.nodes.items()}
    return replace(plan, nodes=nodes)


def last_step(trial: Trial, catalogue: Catalogue, data_dir: str | None) -> int | None:
    """The number of steps of the trial, if its workload counts them."""
    module: Any = catalogue.workloads[trial.workload].module
    step: int | None = module.last_step(module.Params(**trial.params), data_dir)
    return step


def _missing_data(trial: Trial, bed: BedSpec, catalogue: Catalogue, data: str | None) -> tuple[str, ...]:
    """A problem if the workload counts its steps without a data directory, but cannot read this machine's."""
    if data is None or bed.provider not in planned_acts.EMULATED or last_step(trial, catalogue, None) is None:
        return ()
    return (f"{data}: no data set that {trial.workload} can read; set --data-dir or ccbed_data_dir to its directory",)


def _assign_slots(trial: Trial, bed: BedSpec, status: BedStatus, placement: Placement) -> assignment.Assignment:
    """The nodes of group ranks 0, 1, …, and the warm spares. Raises UsageError, InfrastructureError."""
    assigned = assignment.assign(trial, bed, placement, lambda name: status.node(name).state == "warm")
    cold = [node.name for node in assigned.slots if status.node(node.name).state != "warm"]
    if cold:
        listed = (f"node {name} of bed {bed.name} is {_describe_state(status, name)}, not ready" for name in cold)
        busy = all(status.node(name).state == "busy" for name in cold)
        hint = f"ccbed heal {bed.name}, or wait for the running ccbed exec" if busy else f"ccbed up {bed.inventory}"
        raise InfrastructureError(*listed, hint=hint)
    return assigned


def _describe_state(status: BedStatus, name: str) -> str:
    node = status.node(name)
    return f"{node.state} ({node.reason})" if node.reason else node.state


def _policy(
    trial: Trial,
    bed: BedSpec,
    slots: Sequence[NodeSpec],
    spares: Sequence[NodeSpec],
    sharing_problem: str,
    left_out: Mapping[str, str],
    missing: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The recovery policy and its problems. ``missing``: why spares of the bed are no spares of the run.

    Every rank of the next gang reads the checkpoint, on any host: a trial whose nodes do not share a directory cannot
    recover. The bed's other hosts do not matter.
    """
    policy = trial.recovery.policy
    if policy == (THEIRS,):
        return (THEIRS, *(("spare", "restart") if spares else ("restart",))), ()
    if policy == ("none",) or (sharing_problem and policy == ("auto",) and not trial.faults):
        return ("none",), ()
    if sharing_problem:
        names = " ".join(node.name for node in slots)
        problem = f"recovery {', '.join(policy)} needs a directory that the trial's nodes ({names}) share"
        fix = "mount the same file system there on their hosts, set ccbed_shared_dir, or --recovery none"
        return policy, (f"{problem}; {bed.shared_dir} is not shared: {sharing_problem}: {fix}",)
    if policy == ("auto",):
        spare, shrink = ("spare",) if spares else (), (SHRINK,) if trial.world.can_shrink else ()
        return (*spare, *shrink, "restart"), ()
    if policy == ("spare",) and not spares:
        return policy, (_missing_spare(bed, left_out, missing),)
    return policy, ()


def _missing_spare(bed: BedSpec, left_out: Mapping[str, str], missing: Sequence[str]) -> str:
    if not left_out and missing:
        reasons = "; ".join(missing)
        return f"recovery spare needs a ready spare; bed {bed.name} has none left: {reasons}: raise ccbed_spares, or --recovery restart"
    if not left_out:
        return f"recovery spare needs a ready spare; bed {bed.name} has none: set ccbed_spares, or --recovery restart"
    listed = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
    problem = (
        f"recovery spare needs a ready spare that shares {bed.shared_dir} with the trial's nodes; none does: {listed}"
    )
    return f"{problem}: mount the same file system there on their hosts, set ccbed_shared_dir, or --recovery restart"


def _sharing_problem(names: Iterable[str], gaps: Iterable[Gap]) -> str:
    """Return why these nodes do not share the directory for checkpoints; empty if they do. Other nodes do not matter."""
    nodes = set(names)
    relevant = (gap for gap in gaps if gap.nodes & nodes and (gap.other_nodes is None or gap.other_nodes & nodes))
    return next((gap.reason for gap in relevant), "")


def _split_spares(
    slots: Sequence[NodeSpec], spares: Sequence[NodeSpec], gaps: Sequence[Gap]
) -> tuple[tuple[NodeSpec, ...], Mapping[str, str]]:
    """The spares that share the directory with the nodes and with each other; and the others -> the reason."""
    usable: list[NodeSpec] = []
    left_out: dict[str, str] = {}
    for spare in spares:
        reason = _sharing_problem((node.name for node in (*slots, *usable, spare)), gaps)
        if reason:
            left_out[spare.name] = reason
        else:
            usable.append(spare)
    return tuple(usable), left_out


def _plan_node(node: NodeSpec, bed: BedSpec, status: BedStatus, machine: Machine | None) -> PlanNode:
    observed = status.node(node.name)
    address, interface = planned_room.address(bed, status, node) if node.role == "replacement" else ("", "")
    return PlanNode(
        name=node.name,
        role=node.role,
        incarnation=observed.incarnation,
        ordinal=observed.ordinal,
        pid=observed.pid,
        address=observed.address or node.address or address,
        interface=observed.interface or node.interface or interface,
        directory=f"{bed.directory_on(node.host)}/nodes/{node.name}",
        host=node.host,
        env=node.env,
        leaf=node.port.group if node.port else 0,
        machine=machine.name if machine else "",
    )


def _backend(trial: Trial, nodes: Sequence[NodeSpec]) -> tuple[str, tuple[str, ...]]:
    """nccl if every rank, including those of spares, has its own GPU; else gloo."""
    short = [node for node in nodes if 0 <= node.gpus < trial.world.ranks_per_node]
    if trial.world.backend == "auto":
        return ("gloo" if short else "nccl"), ()
    if trial.world.backend == "nccl" and short:
        listed = ", ".join(f"{node.name}: {node.gpus}" for node in short)
        return "nccl", (f"backend nccl needs {trial.world.ranks_per_node} GPU per node (ccbed_gpus {listed})",)
    return trial.world.backend, ()


def _memory_problems(
    trial: Trial, slots: Sequence[str], free_memory: Sequence[FreeMemory], catalogue: Catalogue
) -> Iterator[str]:
    """A problem for each host or container that has too little. ``slots``: group rank -> node."""
    required = _required_memory(trial, catalogue) if free_memory else None
    for free in free_memory if required else ():
        assert required is not None
        ranks = [rank for rank in range(trial.world.size) if slots[rank // trial.world.ranks_per_node] in free.nodes]
        total = sum(required.ranks[rank] for rank in ranks)
        if total > free.size_bytes:
            subject = f"rank {ranks[0]} needs" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]} need"
            lack = f"{subject} {size_text(total)} of memory on {free.location}, {size_text(free.size_bytes)} are free"
            yield f"trial {trial.name}: {required.operation}: {lack}; {_memory_hint(required, total, free)}"


def _memory_hint(required: RequiredMemory, total: int, free: FreeMemory) -> str:
    """The largest power of two that fits, if the user can reduce a size."""
    fitting = int(required.size_bytes * free.size_bytes / total)
    power = 1 << max(fitting.bit_length() - 1, 0)
    smaller = f"{required.setting} of at most {size_text(power)} fit; or " if fitting and required.setting else ""
    return f"{smaller}free memory there, or run fewer ranks there"


def _required_memory(trial: Trial, catalogue: Catalogue) -> RequiredMemory | None:
    """The memory for the largest operation of the trial; None if its workload does not declare it."""
    module: Any = catalogue.workloads[trial.workload].module
    memory = getattr(module, "memory", None)
    required: RequiredMemory | None = (
        memory(codec.build(module.Params, trial.params), trial.world.size) if memory else None
    )
    return required


def user_sources(trial: Trial, checks: Iterable[CheckSpec], catalogue: Catalogue) -> dict[str, bytes]:
    """Path under ``inputs/`` -> code, of every plugin from the user's own folders that the run uses."""
    return {plugin.source: plugin.code for plugin in _used(trial, checks, catalogue) if plugin.source != BUILT_IN}


def _used(trial: Trial, checks: Iterable[CheckSpec], catalogue: Catalogue) -> Iterator[Plugin]:
    """Every report of the catalogue renders every run; an algorithm is used if a parameter names it. ccbed's own are not loaded."""
    algorithms = {text.partition(":")[0] for text in _texts(trial.params)}
    used = {
        "checkers": [check.name for check in checks],
        "workloads": [trial.workload],
        "faults": [fault.fault for fault in trial.faults],
        "algorithms": sorted(algorithms),
        "reports": list(catalogue.reports),
    }
    for kind, names in used.items():
        plugins, own = getattr(catalogue, kind), catalogue.built_in.get(kind, ())
        yield from (plugins[name] for name in names if name in plugins and name not in own)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for item in value.values() for text in _texts(item))
    elif isinstance(value, list | tuple):
        yield from (text for item in value for text in _texts(item))


def require_programs(
    trial: Trial, bed: BedSpec, catalogue: Catalogue, systems: Mapping[str, Mapping[str, Any]]
) -> None:
    """``systems``: node -> its system.json; a program that it does not mention passes. Raises InfrastructureError."""
    module: Any = catalogue.workloads[trial.workload].module
    declare = getattr(module, "programs", None)
    required: Mapping[str, tuple[tuple[str, ...], str]] = (
        declare(codec.build(module.Params, trial.params)) if declare else {}
    )
    lacking: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, (programs, _) in required.items():
        for node, system in systems.items():
            missing = tuple(program for program in programs if program in system.get("missing", ()))
            if missing:
                lacking.setdefault((name, missing), []).append(node)
    if lacking:
        ways = "; ".join(dict.fromkeys(way for _, way in required.values()))
        raise InfrastructureError(
            *(
                f"algorithm {name}: {' '.join(nodes)}: no {', no '.join(programs)}"
                for (name, programs), nodes in lacking.items()
            ),
            hint=f"remove it from --algorithm; or {_source(bed)} ({ways}), and: ccbed up {bed.inventory}",
        )


def _source(bed: BedSpec) -> str:
    return "set ccbed_image to an image that has it" if bed.provider == "docker" else "install it for the nodes"

"""The results of preflight: each requirement that was checked, and the measurements that the run uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...model.bed import BedSpec, BedStatus
from ...model.errors import InfrastructureError
from ...model.frozen import dataclass, field
from ...model.plan import Gap, HostClock
from ...model.requirements import FreeMemory, Requirement

#: A peer's name that takes longer to look up delays every start of a gang.
LOOKUP_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """``clocks``: boot id -> offset of that clock from this machine's. ``gaps``: nodes that do not share the directory.

    ``free_memory``: of each host, and of each container that may not use all of its host's.
    """

    requirements: tuple[Requirement, ...]
    clocks: Mapping[str, HostClock] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    free_memory: tuple[FreeMemory, ...] = ()


def summary(requirements: Iterable[Requirement]) -> str:
    """One line for all of them; a requirement that is not met has lines of its own, so the summary names it only."""
    by_name: dict[str, list[Requirement]] = {}
    for requirement in requirements:
        by_name.setdefault(requirement.name, []).append(requirement)
    return " · ".join(f"{name} {_word(group)}" for name, group in by_name.items())


def failure(requirements: Iterable[Requirement]) -> InfrastructureError | None:
    """The failed requirements, each problem and each fix once; None if none failed."""
    failed = [requirement for requirement in requirements if requirement.outcome == "fail"]
    problems = dict.fromkeys(f"preflight: {requirement.name}: {requirement.text}" for requirement in failed)
    fixes = dict.fromkeys(requirement.fix for requirement in failed)
    return InfrastructureError(*problems, hint="\n".join(fixes)) if failed else None


def _word(group: list[Requirement]) -> str:
    if all(requirement.outcome == "ok" for requirement in group):
        return ", ".join(requirement.text for requirement in group)
    return "FAILED" if any(requirement.outcome == "fail" for requirement in group) else "warned"


def versions(bed: BedSpec, status: BedStatus) -> Iterable[Requirement]:
    """The torch and the Python of the nodes, as far as they are known; nodes that differ may compute different bits."""
    groups: dict[str, list[str]] = {}
    for node in (status.node(node.name) for node in bed.nodes):
        if node.torch:
            groups.setdefault(f"{node.torch.partition('+')[0]}, Python {node.python}", []).append(node.name)
    if len(groups) == 1:
        yield Requirement.ok("torch", f"{next(iter(groups))} ok")
    elif groups:
        listed = "; ".join(f"{text} on {' '.join(names)}" for text, names in groups.items())
        fix = "give all hosts the same environment: ccbed_python or ccbed_image"
        yield Requirement.warn("torch", f"nodes differ: {listed}", fix)


def agent(bed: BedSpec, status: BedStatus) -> Requirement:
    """The keeper and every node run this agent, and every node has the spec that the inventory describes."""
    name = f"agent {bed.agent[:6]}"
    states = [(node, status.node(node.name)) for node in bed.nodes]
    outdated = [node.name for node, state in states if state.spec_hash != node.hash or state.changed]
    if status.keeper_hash == bed.agent and not outdated:
        return Requirement.ok(name, "on all ok")
    loss = f"the host agent is gone{f' ({status.keeper_loss})' if status.keeper_loss else ''}"
    text = loss if not (outdated or status.keeper_pid) else f"not on {', '.join(outdated) or 'keeper'}"
    return Requirement.fail(name, text, f"ccbed up {bed.inventory}")

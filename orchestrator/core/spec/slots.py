"""Assign the nodes of a bed to the slots of a trial: a warm spare takes the place of a node that the run must not use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...model.bed import BedSpec, NodeSpec
from ...model.errors import InfrastructureError, UsageError
from ...model.frozen import dataclass
from ...model.plan import Placement
from ...model.trial import Trial

#: The option that gives ranks to nodes in quarantine.
INCLUDE = "--include-quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """``slots``: the nodes of group ranks 0, 1, …; ``substitutes``: node that is excluded -> the node that has its slot."""

    slots: tuple[NodeSpec, ...]
    spares: tuple[NodeSpec, ...] = ()
    substitutes: Mapping[str, str]


def assign(
    trial: Trial, bed: BedSpec, placement: Placement, is_warm: Callable[[str], bool] = lambda name: True
) -> Assignment:
    """The nodes of the slots and the warm spares. Other nodes keep their slots; an unused node is taken before a spare.

    Raises UsageError if the bed is too small, InfrastructureError if too few of its nodes may be used.
    """
    aimed = [fault for fault in trial.faults if fault.node in placement.excluded]
    if aimed:
        raise UsageError(
            *(
                f"fault {fault.id} ({fault.fault}): {fault.node} {placement.excluded[str(fault.node)]}, so that it takes no part"
                for fault in aimed
            ),
            hint=f"aim it at another node{f', or: {INCLUDE}' if placement.quarantined else ''}",
        )
    if placement.members:
        return Assignment(slots=tuple(bed.node(name) for name in placement.members), substitutes={})
    members = [node for node in bed.nodes if node.role == "node"]
    count = trial.world.nodes
    if count > len(members):
        raise UsageError(
            f"trial {trial.name} needs {count} nodes; bed {bed.name} has {len(members)} (spares are never counted)",
            hint=f"raise ccbed_nodes in {bed.inventory} and: ccbed up {bed.inventory}",
        )
    spares = [
        node
        for node in bed.nodes
        if node.role == "spare" and is_warm(node.name) and node.name not in placement.excluded
    ]
    unused = [node for node in members[count:] if is_warm(node.name) and node.name not in placement.excluded]
    candidates = [*unused, *spares]
    slots, substitutes = [], {}
    for node in members[:count]:
        if node.name not in placement.excluded:
            slots.append(node)
        elif candidates:
            slots.append(candidates.pop(0))
            substitutes[node.name] = slots[-1].name
    if len(slots) < count:
        raise _too_few(trial, bed, placement, len(slots))
    _refuse_faults_on_substitutes(trial, placement, substitutes)
    return Assignment(
        slots=tuple(slots), spares=tuple(node for node in spares if node in candidates), substitutes=substitutes
    )


def _refuse_faults_on_substitutes(trial: Trial, placement: Placement, substitutes: Mapping[str, str]) -> None:
    """A fault that names a node without a rank would end a rank where that node takes a slot. Raises UsageError."""
    aimed = [
        f"fault {fault.id} ({fault.fault}): {new} has no rank of its own, and takes the place of {old}, which {placement.excluded[old]}"
        for fault in trial.faults
        for old, new in substitutes.items()
        if fault.node == new
    ]
    if aimed:
        raise UsageError(*aimed, hint=f"aim it at another node{f', or: {INCLUDE}' if placement.quarantined else ''}")


def missing_spares(bed: BedSpec, placement: Placement, substitutes: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each spare of the bed that is no spare of the run: it must not be used, or has the slot of a node."""
    spares = {node.name for node in bed.nodes if node.role == "spare"}
    used = {old: new for old, new in substitutes.items() if new in spares}
    return tuple(
        f"{name} {placement.excluded[name]}" + (f"; {used[name]} takes its place" if name in used else "")
        for name in _excluded(bed, placement)
        if name in spares or name in used
    )


def count_usable(bed: BedSpec, placement: Placement) -> int:
    """Return how many nodes a trial on all nodes of the bed has: excluded ones count only where a spare takes their slot."""
    members = sum(node.role == "node" for node in bed.nodes)
    return min(members, sum(node.name not in placement.excluded for node in bed.nodes))


def describe_excluded(bed: BedSpec, placement: Placement, substitutes: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each node of the bed that the run must not use, with the node that has its slot."""
    return tuple(
        f"{name} {placement.excluded[name]}" + _describe_use(bed, placement, name, substitutes.get(name, ""))
        for name in _excluded(bed, placement)
    )


def _describe_use(bed: BedSpec, placement: Placement, name: str, substitute: str) -> str:
    if not substitute:
        return "" if name in placement.unfit else "; it takes no part"
    is_unknown = bed.node(substitute).role == "spare" and not placement.spare_probe
    return f"; {substitute} takes its place{', not probed before' if is_unknown else ''}"


def _excluded(bed: BedSpec, placement: Placement) -> list[str]:
    return [node.name for node in bed.nodes if node.name in placement.excluded]


def _too_few(trial: Trial, bed: BedSpec, placement: Placement, count: int) -> InfrastructureError:
    excluded = _excluded(bed, placement)
    names_by_reason: dict[str, list[str]] = {}
    for name in excluded:
        names_by_reason.setdefault(placement.excluded[name], []).append(name)
    reasons = "; ".join(
        f"{', '.join(names)}{': each' * (len(names) > 1)} {reason}" for reason, names in names_by_reason.items()
    )
    quarantined = [name for name in excluded if name in placement.quarantined]
    hints = [f"ccbed set-aside {quarantined[0]} --end --bed {bed.name}, if it was repaired"] if quarantined else []
    if quarantined:
        hints.append(f"or give it ranks all the same: {INCLUDE}")
    elif not excluded or not set(excluded) <= set(placement.drained):
        hints.append(f"repair it, then: ccbed up {bed.inventory}")
    hosts = dict.fromkeys(bed.node(name).host for name in excluded if name in placement.drained)
    hints += [f"ccbed set-aside {' '.join(hosts)} --end -i {bed.inventory}"] if hosts else []
    return InfrastructureError(
        f"trial {trial.name} needs {trial.world.nodes} nodes; bed {bed.name} has {count} that may be used: {reasons}",
        hint="\n".join(hints),
    )

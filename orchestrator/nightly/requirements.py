"""The requirements that a suite may name for a cell, and whether a bed meets them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..model.bed import BedSpec, NodeSpec

#: Name -> (what is missing without it, whether a bed has it).
KNOWN: Mapping[str, tuple[str, Callable[[BedSpec], bool]]] = {
    "gpu": ("a GPU on every node", lambda bed: all(node.gpus for node in _members(bed))),
    "containers": ("nodes that are containers", lambda bed: all(node.container for node in _members(bed))),
    "fabric": ("nodes with a shaped link of their own (ccbed_link)", lambda bed: bed.fabric),
    "spare": ("a warm spare", lambda bed: any(node.role == "spare" for node in bed.nodes)),
    "hosts": ("more than one host", lambda bed: len({node.host for node in _members(bed)}) > 1),
}


def missing(needs: Sequence[str], bed: BedSpec) -> str:
    """The first requirement that the bed lacks, as a sentence; empty if it has all."""
    lacking = next((need for need in needs if not KNOWN[need][1](bed)), None)
    return f"needs {KNOWN[lacking][0]}; bed {bed.name} has none" if lacking else ""


def _members(bed: BedSpec) -> tuple[NodeSpec, ...]:
    return tuple(node for node in bed.nodes if node.role == "node")

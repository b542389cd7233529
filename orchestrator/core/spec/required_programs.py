"""Required programs: reject a trial whose nodes lack programs, according to the system.json of each node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model import codec
from ...model.bed import BedSpec
from ...model.errors import InfrastructureError
from ...model.plugin import Catalogue
from ...model.trial import Trial


def require(trial: Trial, bed: BedSpec, catalogue: Catalogue, systems: Mapping[str, Mapping[str, Any]]) -> None:
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

"""Whether the nodes have the programs that a trial needs, by what each of them says that it has (its system.json)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model import codec
from ...model.bed import BedSpec
from ...model.errors import InfrastructureError
from ...model.plugin import Catalogue
from ...model.trial import Trial


def require(trial: Trial, bed: BedSpec, catalogue: Catalogue, told: Mapping[str, Mapping[str, Any]]) -> None:
    """``told``: by node; one that does not say whether it has something is not refused. Raises InfrastructureError."""
    module: Any = catalogue.workloads[trial.workload].module
    asked = getattr(module, "programs", None)
    needed: Mapping[str, tuple[tuple[str, ...], str]] = asked(codec.build(module.Params, trial.params)) if asked else {}
    lacking: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, (programs, _) in needed.items():
        for node, says in told.items():
            missing = tuple(one for one in programs if one in says.get("missing", ()))
            if missing:
                lacking.setdefault((name, missing), []).append(node)
    if lacking:
        ways = "; ".join(dict.fromkeys(way for _, way in needed.values()))
        raise InfrastructureError(
            *(
                f"algorithm {name}: {' '.join(nodes)}: no {', no '.join(what)}"
                for (name, what), nodes in lacking.items()
            ),
            hint=f"leave it out of --algorithm; or make ccbed_image one that has it ({ways}), and: ccbed up {bed.inventory}",
        )

"""Former names of modules that users' plugins import: they work for one release, with a notice."""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Former name -> the name now, below the package.
FORMER = {
    "views.collectives.statistics": "views.statistics",
    "views.comparison.pairs": "views.comparison.run_pairs",
    "views.training.checkpoints": "views.training.job_checkpoints",
    "views.training.claims": "views.training.stated_steps",
    "views.training.cost": "views.training.checkpoint_cost",
    "views.training.overview": "views.training.job_steps",
    "views.training.parts": "views.training.state_parts",
    "views.training.recovery": "views.training.recovery_times",
    "views.training.replay": "views.training.redone_steps",
    "views.training.systems": "views.training.compared_systems",
    "views.clock": "views.event_order",
    "views.faults": "views.fault_stages",
    "views.values": "views.json_values",
    "model.free_memory": "model.requirements",
    "model.events.checkpoints": "model.events.checkpoint_events",
    "model.events.collectives": "model.events.collective_events",
    "model.events.faults": "model.events.fault_events",
    "model.events.gang": "model.events.gang_events",
    "model.events.run": "model.events.run_events",
    "model.events.units": "model.events.field_types",
    "checkers.times_possible": "collectives.plugins.checkers.times_possible",
    "checkers.results_exact": "collectives.plugins.checkers.results_exact",
    "rank.collective.cases": "rank.exchange.cases",
    "rank.collective.sizes": "rank.exchange.sizes",
    "workloads.collective": "collectives.plugins.workloads.collective",
    "checkers.gaps_kept": "collectives.plugins.checkers.gaps_kept",
    "views.collectives.table": "collectives.views.case_table",
    "views.collectives.comparisons": "collectives.views.finding_text",
    "views.collectives.straggler_text": "collectives.views.finding_text",
    "views.collectives.critical_path": "collectives.views.dependencies",
    "views.collectives.lasting": "collectives.views.stragglers",
    "views.collectives": "collectives.views",
    "workloads.emulate": "collectives.plugins.workloads.emulate",
    "rank.collective.settings": "collectives.rank.measuring",
    "rank.collective": "collectives.rank",
    "rank.open_mpi.installed": "collectives.rank.mpi_names",
    "rank.open_mpi.names": "collectives.rank.mpi_names",
    "rank.open_mpi": "collectives.rank.mpi_peer",
    "rank.replay.pacing": "collectives.rank.replay_pacing",
    "nightly.gates.records": "nightly.records",
    "nightly.gates": "nightly.statistics",
    "nightly.night_judge": "nightly.statistics.night_statistics",
    "rank.replay.sequence": "collectives.rank.replay_sequence",
}


class _Finder:
    """Finds a module by its former name."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        former = next((old for old in FORMER if f"{rest}.".startswith(f"{old}.")), "")
        if package != __name__.partition(".")[0] or not former:
            return None
        present = f"{package}.{FORMER[former]}{rest.removeprefix(former)}"
        if rest == former:
            warnings.warn(
                f"{name} is now {present}; the former name works for one release", FutureWarning, stacklevel=2
            )
        return ModuleSpec(name, _Loader(present))  # type: ignore[arg-type]


class _Loader:
    def __init__(self, present: str) -> None:
        self._present = present

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual empty module, which takes the lock of the import."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of today in its place."""
        sys.modules[module.__name__] = importlib.import_module(self._present)


def install() -> None:
    """Called before a user's plugin is loaded."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)

"""The catalogue of the source tree and of the folders in CCBED_PLUGINS, so that contract suites take up plugins of users."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator import plugins
from orchestrator.model.plugin import Catalogue, Plugin


def load(folder: Mapping[str, Plugin]) -> dict[str, Plugin]:
    """All plugins of a kind, each with the whole first line of its docstring."""
    return {
        name: replace(plugin, summary=(plugin.module.__doc__ or "").split("\n")[0]) for name, plugin in folder.items()
    }


DISCOVERED = plugins.discover(
    Path(folder) for folder in os.environ.get("CCBED_PLUGINS", "").split(os.pathsep) if folder
)
CATALOGUE = Catalogue(
    checkers=load(DISCOVERED.checkers),
    faults=load(DISCOVERED.faults),
    algorithms=load(DISCOVERED.algorithms),
    workloads=load(DISCOVERED.workloads),
    reports=load(DISCOVERED.reports),
)
#: These judge every run, whatever the trial names.
ALWAYS = {
    "finished",
    "fault-verified",
    "planned-faults-only",
    "membership",
    "no-orphans",
    "bundle-complete",
    "evidence-agrees",
    "history-replays",
}

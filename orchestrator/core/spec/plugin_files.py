"""Plugin files: the plugins that a run uses, and the paths of their files in its bundle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...model.plan import PluginFile
from ...model.plugin import BUILT_IN, Catalogue, Plugin
from ...model.trial import CheckSpec, Trial


def describe_plugin(plugin: Plugin) -> PluginFile:
    return PluginFile(name=plugin.name, sha256=plugin.sha256, source=plugin.source)


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

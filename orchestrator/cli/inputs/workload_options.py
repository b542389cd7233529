"""The options of `run` that are parameters of its trial's workload."""

from __future__ import annotations

from collections.abc import Iterable

import click

from ...app.trials import Source
from ...core.spec import parameter_docs
from ...model.frozen import fields
from ...model.plugin import Catalogue
from ...model.trial import SCRIPT

#: Parameters of the script workload that arguments set, not options.
_POSITIONAL = {SCRIPT: ("file", "module", "args", "cwd", "cold", "timeout_s", "grace_s")}


def of(source: Source, catalogue: Catalogue, taken: Iterable[str]) -> list[click.Option]:
    """Return an option per field of the workload's Params, with the trial's value as default; options of `run` win."""
    workload = source.workload
    if workload not in catalogue.workloads:
        return []
    names = set(taken)
    cls = catalogue.workloads[workload].module.Params
    meanings, kinds = parameter_docs.read_meanings(cls), parameter_docs.placeholders(cls)
    added = []
    for field in fields(cls):
        flag = f"--{field.name.strip('_').replace('_', '-')}"
        if flag in names or field.name in _POSITIONAL.get(workload, ()):
            continue
        value = parameter_docs.format_value(source.params.get(field.name, field.default))
        text = meanings.get(field.name, f"of workload {workload}") + (f"  [default: {value}]" if value else "")
        variable = f"CCBED_{field.name.strip('_').upper()}"
        added.append(
            click.Option(
                [flag, f"param_{field.name}"], default=None, help=text, envvar=variable, metavar=kinds[field.name]
            )
        )
    return added

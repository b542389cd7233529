"""Installs the observation of saves and loads in a process that has imported torch."""

from __future__ import annotations

from typing import Any

from .. import imports, record, states, steps
from . import contents, dcp, loads, renames, safetensors_files, save_moments, saves, torch_files


@record.guarded("saves")
def install(torch: Any) -> None:
    """Wrap the functions of ``torch`` now, those of other packages once they are imported."""
    torch_files.install(torch)
    renames.install()
    imports.when_imported("torch.distributed.checkpoint", dcp.install)
    imports.when_imported("safetensors.torch", safetensors_files.install)
    imports.when_imported("safetensors", safetensors_files.install_open)
    steps.on_step(saves.complete_step)
    steps.measure("saves", saves.take_stall)
    saves.observe("before", _announce)
    saves.observe("after", _request_full_state)
    saves.observe("committed", _request_full_state)  # also of files that something else writes
    loads.observe("after", _request_full_state)
    contents.owner.observers.append(loads.match)


def _announce(number: int) -> None:
    if states.states.saves is not None:
        states.states.saves.announce(save_moments.PART if saves.open_passes() else save_moments.WHOLE)


def _request_full_state(number: int) -> None:
    states.states.request_full()

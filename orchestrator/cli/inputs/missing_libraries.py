"""Algorithms of a library that this machine lacks: left out by name before anything starts, the others measured all the same."""

from __future__ import annotations

from dataclasses import replace

from ...model.bed import BedSpec
from ...model.errors import InfrastructureError
from ...model.trial import Trial
from ..render.terminal import Terminal


def available(terminal: Terminal, trial: Trial, bed: BedSpec) -> Trial:
    """The trial without what cannot be done; raises InfrastructureError where nothing would be left.

    Only where the ranks are processes of this machine; elsewhere they find out, and say it.
    """
    if bed.provider != "process" or any(host.connection != "local" for host in bed.hosts):
        return trial
    asked = _asked(trial)
    if not asked:
        return trial
    from ...rank.open_mpi import installed

    try:
        installed.find()
    except installed.Missing as missing:
        return _without(terminal, trial, asked, str(missing))
    return trial


def _asked(trial: Trial) -> tuple[str, ...]:
    """Every algorithm that is Open MPI's."""
    chosen = trial.params.get("algorithm") or ()
    chosen = [chosen] if isinstance(chosen, str) else chosen
    replayed = [str(item.get("algorithm", "")) for item in trial.params.get("items") or ()]
    if not (chosen or replayed):
        return ()
    from ...rank.open_mpi import names

    return tuple(dict.fromkeys(one for one in (*chosen, *replayed) if names.meant(one)))


def _without(terminal: Terminal, trial: Trial, asked: tuple[str, ...], missing: str) -> Trial:
    chosen = trial.params.get("algorithm") or ()
    kept = [] if isinstance(chosen, str) else [one for one in chosen if one not in asked]
    if not kept:
        raise InfrastructureError(f"{', '.join(asked)}: {missing}")
    terminal.warn(f"{', '.join(asked)} skipped: {missing}")
    return replace(trial, params={**trial.params, "algorithm": kept})

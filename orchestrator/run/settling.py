"""What an orchestrator that died left on a bed, as far as the next command can settle it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..model.bed import BedSpec
from ..model.plugin import Catalogue
from ..model.provider import Provider
from ..store import beds, bundle, paths
from . import judging, preparation


def settle(bed: BedSpec, provider: Provider, catalogue: Catalogue, notify: Callable[[str], None]) -> None:
    """Remove a run that never began, close one that has ended; the lock of the bed's run is held. Others stay open.

    ``notify`` is called with what was done. Raises TornBundleError for a run that cannot be judged.
    """
    left = beds.open_run(Path(bed.workdir))
    if left is None:
        return
    try:
        _settle(bed, left, provider, catalogue, notify)
    except paths.TornBundleError as error:
        raise paths.TornBundleError(*error.problems, hint=f"give the run up: ccbed heal {bed.name}") from error


def _settle(
    bed: BedSpec, left: beds.OpenRun, provider: Provider, catalogue: Catalogue, notify: Callable[[str], None]
) -> None:
    directory = Path(left.directory)
    stage = bundle.stage(directory)
    if stage == "none" and not left.begun and directory.name == left.run:
        preparation.discard(provider, bed, directory)
        notify(
            f"run {left.run} never began: its orchestrator died while it prepared it; what was left of it is removed"
        )
    elif stage == "ended":
        result = judging.finish(catalogue, directory, Path(bed.workdir))
        died = f"run {left.run} had ended, but its orchestrator died before it was judged"
        notify(f"{died}; it is judged now: exit {result.code}; verdicts: ccbed check {directory}")
    elif stage != "closed":
        return
    beds.end_run(Path(bed.workdir), left.run)

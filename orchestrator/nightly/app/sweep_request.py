"""The request of a sweep."""

from __future__ import annotations

from pathlib import Path

from ...app.requests import BedRef, argument, option, runs_directory
from ...model.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """The request of `ccbed sweep`."""

    trial: str = argument(metavar="TRIAL|FILE.yml", completes="trials")
    each_node: bool = option(False, "Compare the figures of every node with those of its peers.")
    each_pair: bool = option(False, "Compare the links of all pairs of nodes, in both directions.")
    rounds: int | None = option(1, "Run the trial N times, and once more to confirm a suspect.", metavar="N", least=1)
    resume: Path | None = option(
        None,
        "Resume the sweep in DIR that was interrupted; the rest of the line is as before. `ccbed resume DIR` does the same.",
        metavar="DIR",
        exists=True,
        is_folder=True,
    )
    bed: BedRef = BedRef()
    runs_dir: Path = runs_directory()

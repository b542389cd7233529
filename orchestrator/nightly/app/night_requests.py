"""The requests of a night, of an acceptance, and of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ...app.requests import INCLUDE_QUARANTINED, BedRef, argument, baselines_directory, bed_name, option, runs_directory
from ...model.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NightRequest:
    """The request of `ccbed nightly`. ``suite``: None for a night that is resumed."""

    suite: str | None = argument(None, metavar="SUITE|FILE.yml", completes="suites")
    bed: BedRef = BedRef()
    record: bool = option(False, "Record the night: later nights are compared with it.")
    repeat: int | None = option(None, "Run each cell N times, whatever the suite says.", metavar="N", least=1)
    budget: str | None = option(
        None, "The time for all cells, such as 30m; cells that do not fit are skipped.", metavar="TIME"
    )
    only: tuple[str, ...] = option((), "Only this cell, all cells of this trial, or gemm*. Repeatable.", metavar="CELL")
    resume: str | None = option(
        None, "Resume a night that was interrupted, or whose orchestrator died.", metavar="NIGHT"
    )
    resume_open: bool = option(
        False,
        "First end the nights on this bed whose process died: resume those of the last 12 hours, close older ones.",
    )
    notify: tuple[str, ...] = option(
        (),
        "Post the result to a webhook, or run a command with it. Repeatable.",
        metavar="URL|COMMAND",
        splits=True,
    )
    include_quarantined: bool = option(False, INCLUDE_QUARANTINED)
    probe_spares: str = option(
        "30s",
        "How long spares are probed, once, before the first trial that may need one; one that is too slow does not join."
        " 0s: not at all.",
        metavar="TIME",
    )
    baselines: Path = baselines_directory()
    on_culprit: str = option(
        "",
        "Print the call of COMMAND for every node that failed; {node}, {host}, {reason}, {night}, {evidence} are replaced.",
        metavar="COMMAND",
    )
    fail_on: Literal["fail", "warn"] | None = option(
        None,
        "The least finding that fails the night (exit 1): with warn also a warning.  [default: fail]",
        choices=("fail", "warn"),
    )
    report_dir: Path | None = option(None, "Also write the report into DIR.", metavar="DIR")
    junit_xml: Path | None = option(None, "Also write its JUnit XML to FILE.", metavar="FILE", is_file=True)
    apply: bool = option(False, "With --on-culprit: call the command.")
    dry_run: bool = option(False, "Print the cells in their order, and stop.")
    runs_dir: Path = runs_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptRequest:
    """The request of `ccbed accept`: of a bed that is up, or of an inventory."""

    inventory: Path | None = argument(None, completes="inventories")
    bed: str | None = bed_name()
    suite: str = option("acceptance", "Another suite of trials than the built-in one.", metavar="SUITE|FILE.yml")
    include_quarantined: bool = option(False, INCLUDE_QUARANTINED)
    baselines: Path = baselines_directory()
    runs_dir: Path = runs_directory()


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

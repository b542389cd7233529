"""Runs of one job under several systems, side by side: how each came back from a planned fault, and what it lost."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable, Mapping, Sequence

from ...model.frozen import dataclass, field
from ...model.run import Run
from .job_steps import lineage_of
from .redone_steps import redone
from .worker_returns import Return, worker_returns


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One run. ``system``: what started and recovered the job; ``job``: its script and arguments; ``workers``: nodes x processes.

    ``resumed``: the step that each attempt resumed from, None where it is not known; ``redone``: steps executed again;
    None without an attempt that resumed. ``verdicts``: check -> outcome.
    """

    run: str
    system: str
    job: str
    workers: str
    returns: tuple[Return, ...] = ()
    resumed: tuple[int | None, ...] = ()
    redone: int | None = None
    verdicts: Mapping[str, str] = field(default_factory=dict)


def systems(runs: Iterable[tuple[str, Run]]) -> tuple[System, ...]:
    """A column for each run, in the order given. With each run the name of its system; empty for that of its launcher."""
    return tuple(_system(run, name) for name, run in runs)


def jobs_differ(columns: Sequence[System]) -> bool:
    """Return whether the runs are of different jobs: then their figures are not those of one job under several systems."""
    return len({(column.job, column.workers) for column in columns}) > 1


def _system(run: Run, name: str) -> System:
    world = run.trial.world
    lines = lineage_of(run)
    steps = tuple(resumption.step for resumption in lines.resumptions)
    return System(
        run=posixpath.basename(run.directory.rstrip("/")),
        system=name or _name(run),
        job=job_of(run),
        workers=f"{world.nodes} x {run.trial.workers_per_node}",
        returns=worker_returns(run),
        resumed=steps,
        redone=len(redone(lines)) if steps and None not in steps else None,
        verdicts={verdict.check: verdict.outcome for verdict in run.verdicts},
    )


def job_of(run: Run) -> str:
    params = run.trial.params
    program = posixpath.basename(str(params.get("file") or params.get("module") or run.trial.name))
    return shlex.join([program, *map(str, params.get("args") or ())])


def _name(run: Run) -> str:
    """The launcher as the user named it, or the first words of its command; else ccbed."""
    launcher = str(run.trial.params.get("launcher") or "")
    words = [posixpath.basename(word) for word in launcher.split()]
    return " ".join(words[:2]) if words else "ccbed"

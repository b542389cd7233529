"""kill -9 to the first completed step of every rank: by the spare, by a restart of the node, and under torchrun."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import views

from . import table, torchrun
from .bed import Bed

TORCHRUN, SPARE, RESTART = "torchrun, worker killed", "ccbed, spare", "ccbed, restart"
NOTES = (
    "From the return of kill -9 to the last rank's first completed step after it; same model, batch and checkpoint interval.",
    "torchrun: --max-restarts=3 --monitor-interval 0.1, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; one worker process is killed.",
    "ccbed: every process of node 2 is killed, its agent too; its keeper survives, so a restart forks and imports nothing.",
)


def test_a_warm_bed_is_back_many_times_as_fast(bed: Bed, tmp_path: Path) -> None:
    kept: dict[str, list[views.Failover]] = {SPARE: [], RESTART: []}
    numbers = itertools.count()
    taken = table.paired(
        {
            TORCHRUN: lambda: torchrun.back_after_kill(tmp_path / f"t{next(numbers)}"),
            SPARE: _failover(bed, kept[SPARE], "spare"),
            RESTART: _failover(bed, kept[RESTART], "restart"),
        }
    )
    phases = {name: _phases(failovers) for name, failovers in kept.items()}
    results = table.Table(
        name="failover",
        title="A lost node: back to training",
        samples=taken,
        against=TORCHRUN,
        notes=(*NOTES, *(_line(name, medians) for name, medians in phases.items())),
        more={"phases": phases},
    )
    results.write()
    assert results.ratio(SPARE) >= 20
    assert results.ratio(RESTART) >= 10
    assert table.median(taken[SPARE]) < 0.25


@pytest.mark.parametrize(("nodes", "limit_s"), [(32, 2.0), (64, 4.0)])
def test_a_large_gang_is_back_in_seconds(nodes: int, limit_s: float, tmp_path: Path) -> None:
    bed = Bed(tmp_path, nodes)
    bed.call("up", str(bed.inventory))
    try:
        failovers = [bed.failover("--nodes", str(nodes), "--no-reference") for _ in range(5)]
    finally:
        bed.call("down", "local", expect=None)
    name = f"ccbed, {nodes} ranks"
    taken = [failover.ttr_s for failover in failovers if failover.ttr_s is not None]
    results = table.Table(
        name=f"failover-{nodes}", title=f"A lost node of {nodes}: back to training", samples={name: taken}, against=name,
        notes=(*NOTES[:1], _line(name, _phases(failovers))),
    )  # fmt: skip
    results.write()
    assert len(taken) == len(failovers) and table.median(taken) < limit_s


def _failover(bed: Bed, kept: list[views.Failover], policy: str) -> Callable[[], float]:
    def measure() -> float:
        kept.append(bed.failover("--recovery", policy))
        assert set(kept[-1].policies.values()) == {policy}
        assert kept[-1].ttr_s is not None
        return kept[-1].ttr_s

    return measure


def _phases(failovers: list[views.Failover]) -> dict[str, float]:
    """The median of each phase over the runs, in seconds."""
    return {name: table.median([dict(failover.phases)[name] for failover in failovers]) for name in views.PHASES}


def _line(name: str, phases: dict[str, float]) -> str:
    parts = " | ".join(f"{phase} {size * 1000:.1f}" for phase, size in phases.items())
    return f"{name}, median of each phase in ms: {parts}"

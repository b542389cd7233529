"""A real training, and the replay of its trace on the same links: the step time."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from orchestrator.store import bundle

from . import table
from .test_collectives import Fabric

JOB = Path(__file__).parent / "jobs" / "traced" / "ddp.py"
RANKS = 2
#: The step time of the replay over that of the training.
NEAR = 0.05


def test_a_replay_takes_as_long_per_step_as_the_training_of_its_trace(tmp_path: Path) -> None:
    with Fabric(tmp_path, "bench-replay", "200mbit", nodes=RANKS) as fabric:
        trace = tmp_path / "trace"
        trace.mkdir()
        placed = ("--bed", "bench-replay", "--nodes", str(RANKS))
        fabric.call("run", str(JOB), *placed, "--no-reference", "--", "--out", str(trace), expect=None)
        trained = json.loads((trace / "steps-0.txt").read_text())
        fabric.call("size", "--trace", str(trace), "--emit", str(tmp_path / "replay.yml"))
        fabric.call("run", str(tmp_path / "replay.yml"), *placed, expect=None)
        run = bundle.load((fabric.folder / "runs/latest").resolve())
    starts = sorted((record.step, record.start) for record in run.files.steps() if record.rank == 0)
    per_step = len(starts) // (len(trained) + 1)
    replayed = [after - before for (_, before), (_, after) in itertools.pairwise(starts[::per_step])]
    ratio = table.median(replayed) / table.median(trained)
    table.Table(
        name="replay", title="A step of DistributedDataParallel on 2 ranks over 200 Mbit/s, and the replay of its trace",
        samples={"training": trained, "replay": replayed}, against="training", notes=(f"replay / training {ratio:.3f}",),
        more={"replay_over_training": ratio},
    ).write()  # fmt: skip
    assert abs(ratio - 1) <= NEAR

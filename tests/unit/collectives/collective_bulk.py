"""A large collective run written to disk at once: for benches of the report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from orchestrator.collectives.views.samples import RECORD
from orchestrator.core.verdict import judge
from orchestrator.model import codec
from orchestrator.model.event import History
from orchestrator.model.events import RankFinished, RunEnd
from orchestrator.plugins import discover

from .. import simulated
from . import collective_runs


def write(directory: Path, records: int, world: int = 4, size: int = 65536) -> Path:
    """About so many chunk records of a ring all-reduce in three sizes, each with some slow trials; steps as well."""
    import numpy as np

    rounds = 2 * (world - 1)
    trials = records // (3 * rounds * world)
    parts = [
        collective_runs.Part(
            operation="all-reduce", algorithm="ring", bytes=size << k, iterations=1, cost=(rounds, 1.5),
            gang=simulated.Gang(schedules=simulated.ring(world, size << k)),
        )
        for k in range(3)
    ]  # fmt: skip
    run = collective_runs.run(parts, world=world)
    plan = run.history.last("collective.plan")
    assert plan is not None
    for number, case in enumerate(plan.value["cases"]):
        case.update(first_step=number * trials + 1, iterations=trials, stride=1)
    files = collective_runs.Files()
    checks = codec.plain(judge.planned(run.trial, discover(), twin=False))
    extras = {**run.extras, "plan.json": {**run.extras["plan.json"], "checks": checks}}
    draw = np.random.default_rng(7)
    steps = 3 * trials
    values = np.repeat(np.array([1e-3, 2e-3, 4e-3]), trials)[:, None] * (1 + 0.05 * draw.random((steps, rounds)))
    values[draw.integers(0, steps, 40), draw.integers(0, rounds, 40)] += 0.5
    ends = (
        np.cumsum(np.concatenate([values, np.full((steps, 1), 1e-3)], axis=1).ravel()).reshape(steps, rounds + 1) + 1000
    )
    starts = ends - np.concatenate([values, np.full((steps, 1), 1e-3)], axis=1)
    history = _ending(run.history, float(ends[-1, -1]))
    place = collective_runs.write(dataclasses.replace(run, history=history, files=files, extras=extras), directory)
    for rank in range(world):
        folder = place / "nodes" / f"n{rank}" / "i1-e0"
        folder.mkdir(parents=True)
        block = np.zeros((steps, rounds), dtype=RECORD)
        block["step"] = np.arange(1, steps + 1)[:, None]
        block["index"] = np.arange(rounds)
        block["peer"] = (rank - 1) % world
        block["size"] = (np.repeat([size, 2 * size, 4 * size], trials) // world)[:, None]
        block["start"], block["end"] = starts[:, :-1] + rank * 1e-6, ends[:, :-1] + rank * 1e-6
        (folder / f"chunks-r{rank}.bin").write_bytes(block.tobytes())
        lines = [
            json.dumps({"step": n + 1, "loss": "0x0.0p+0", "start": a, "end": b, "digest": None})
            for n, (a, b) in enumerate(zip(starts[:, 0].tolist(), ends[:, -2].tolist(), strict=True))
        ]
        (folder / f"steps-r{rank}.jsonl").write_text("\n".join(lines) + "\n")
    return place


def _ending(history: History, end: float) -> History:
    """The same history, where ranks finish and the run ends after the last step."""
    late = (RankFinished, RunEnd)
    shifted = (
        dataclasses.replace(event, at=dataclasses.replace(event.at, mono=event.at.mono + end, wall=event.at.wall + end))
        if event.kind in late
        else event
        for event in history.events
    )
    return History(tuple(shifted))

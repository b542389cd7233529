"""The index of 10,000 bundles: made from nothing, refreshed, asked for a trend and for what gates read, and `ccbed runs`.

The bundles are synthetic, in the format that ccbed writes: 8 nodes, 20 to 200 figures each, seed 1. 60 recorded nights of 20 cells
with 5 repeats have 6,000 of them; the others are runs of their own.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nightly import index
from orchestrator.nightly.index.database import file_of
from orchestrator.nightly.index.store import Index
from orchestrator.nightly.suite import RUNS, Row
from orchestrator.store import bundle

from ..unit.nightly import night_bundles
from . import table
from .bed import program

BUNDLES = int(os.environ.get("CCBED_BENCH_BUNDLES", "10000"))
NIGHTS, CELLS = 60, 20
NODES = tuple(f"n{number}" for number in range(8))
NAMES = ("gemm float32", "gemm bfloat16", "copy rate", "memory rate", "disk write", "disk read", "clock offset")
ROUNDS = 5
SEED = 1
#: Lines of a history, with what a history's lines are long.
HISTORY = ('{"f": "log", "type": "info", "value": {"text": "' + "x" * 150 + '"}}\n') * 200


def figures(draw: random.Random) -> Iterator[dict[str, Any]]:
    """20 to 200 lines: each metric on each node, repeated as often as fits."""
    yield night_bundles.figure("duration", draw.uniform(5, 60))
    count = draw.randint(20, 200)
    for number in range(count):
        name, node = NAMES[number // len(NODES) % len(NAMES)], NODES[number % len(NODES)]
        yield night_bundles.figure(
            name, draw.gauss(100.0, 1.0), "GB/s", "higher", node=node, rank=int(node[1:]), ceiling=200.0
        )


def write(runs: Path) -> int:
    """How many bundles were written."""
    draw = random.Random(SEED)
    repeats = BUNDLES * 6 // 10 // NIGHTS // CELLS
    for number in range(1, NIGHTS + 1):
        write_night(runs, number, repeats, draw)
    for number in range(BUNDLES - NIGHTS * CELLS * repeats):
        name = f"2026-05-{number % 28 + 1:02d}T02-{number // 60 % 60:02d}-{number % 60:02d}Z-gemm-{number:05x}"
        write_bundle(runs / name, number % CELLS, draw)
    return sum(1 for _ in runs.rglob(bundle.TRIAL))


def write_night(runs: Path, number: int, repeats: int, draw: random.Random) -> None:
    plan = [
        (
            cell,
            Row(
                cell=f"probe-{cell}",
                repeat=repeat,
                state="passed",
                run=f"2026-01-01T02-00-00Z-probe-{cell:02x}{repeat:02x}",
            ),
        )
        for cell in range(CELLS)
        for repeat in range(repeats)
    ]
    night = night_bundles.write_night(runs, number, {}, rows=[row for _, row in plan], nodes=NODES)
    for cell, row in plan:
        write_bundle(night / RUNS / row.run, cell, draw)


def write_bundle(directory: Path, cell: int, draw: random.Random) -> None:
    """Each cell has a key of its own: its parameters differ."""
    lines = list(figures(draw))
    night_bundles.write_bundle(directory, lines, nodes=NODES, trial=f"probe-{cell}", params={"size": 1024 + cell})
    (directory / bundle.HISTORY).write_text(HISTORY)


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("archive") / "runs"
    assert write(directory) == BUNDLES
    return directory


def test_the_index_of_many_bundles(runs: Path) -> None:
    def opened() -> Index:
        return index.open(runs, state=runs.parent, url="")

    def command() -> None:
        done = subprocess.run(
            [program(), "runs", "--runs-dir", str(runs)], check=True, capture_output=True, text=True, timeout=300
        )
        assert f"the newest 30 of {BUNDLES:,} runs" in done.stdout, done.stdout + done.stderr

    with opened() as database:
        samples = {"first refresh": [seconds(database.refresh)]}
        samples["rebuild"] = [seconds(database.rebuild)]
        samples["refresh without a change"] = [seconds(database.refresh) for _ in range(ROUNDS)]
        samples["trend"] = [seconds(lambda: database.trend("probe-7", "gemm float32")) for _ in range(ROUNDS)]
        samples["trend of a node"] = [
            seconds(lambda: database.trend("probe-7", "gemm float32", node="n3")) for _ in range(ROUNDS)
        ]
        samples["records of a bed"] = [seconds(lambda: list(database.records(bed="lab"))) for _ in range(ROUNDS)]
        assert not database.notes
        (trend,) = database.trend("probe-7", "gemm float32")
        assert len(trend.points) == NIGHTS * len(NODES)
    samples["ccbed runs"] = [seconds(command) for _ in range(ROUNDS)]
    size = file_of(runs, runs.parent).stat().st_size / 1024**2
    reach = "to reach: rebuild under 60 s, trend under 0.2 s, ccbed runs under 0.5 s"
    note = f"{BUNDLES:,} bundles, seed {SEED}; the index has {size:.0f} MiB; {reach}"
    table.Table(name="index", title="Index of runs", samples=samples, against="rebuild", notes=(note,)).write()
    assert table.median(samples["rebuild"]) < 60
    assert table.median(samples["trend"]) < 0.2
    assert table.median(samples["ccbed runs"]) < 0.5

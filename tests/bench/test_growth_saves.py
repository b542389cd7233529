"""What a save costs under the watcher as checkpoints grow: in bytes, in tensors, and in files. Two sizes each, so that slopes show.

The stall of a watched save is compared with that of the same save alone, taken in turns. CCBED_BENCH_STATE_BYTES names the sizes of
the state in bytes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from . import table

SIZES = {
    "bytes": [int(size) for size in os.environ.get("CCBED_BENCH_STATE_BYTES", "10000000,200000000").split(",")],
    "tensors": [500, 5000],
    "files": [200, 2000],
}
#: Bytes of history of a checkpoint, whatever its number of files.
MOST_EVENTS = 4096
PROGRAM = Path(__file__).parent / "programs" / "saves.py"
WATCHED, ALONE = "watched", "alone"


@pytest.mark.parametrize("kind", SIZES)
def test_the_stall_of_a_save_and_its_history_as_checkpoints_grow(kind: str, tmp_path: Path) -> None:
    events: dict[int, float] = {}
    samples: dict[str, list[float]] = {}
    for size in SIZES[kind]:

        def stall(*, is_watched: bool, size: int = size) -> float:
            (tmp_path / "records").mkdir(exist_ok=True)
            argv = [
                sys.executable,
                str(PROGRAM),
                kind,
                str(size),
                str(tmp_path / "saves"),
                str(tmp_path / "records") * is_watched,
            ]
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
            done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            result = json.loads(done.stdout)
            if is_watched:
                events[size] = max(events.get(size, 0.0), result["events"])
            return float(statistics.median(result["times"]))

        taken = table.paired({ALONE: lambda: stall(is_watched=False), WATCHED: lambda: stall(is_watched=True)})
        samples |= {f"{size:,} {kind}, {name}": seconds for name, seconds in taken.items()}
        ratios = [watched / alone for watched, alone in zip(taken[WATCHED], taken[ALONE], strict=True)]
        print(
            f"{size:,} {kind}: watched / alone {statistics.median(ratios):.2f}, {events[size]:,.0f} bytes of history each"
        )
    table.Table(
        name=f"growth-saves-{kind}", title="The stall of a save", samples=samples, against=next(iter(samples)),
        notes=tuple(f"{size:,} {kind}: {count:,.0f} bytes of history for a checkpoint" for size, count in events.items()),
    ).write()  # fmt: skip
    assert max(events.values()) < MOST_EVENTS

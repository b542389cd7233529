"""What the watcher costs: step time watched / not watched in interleaved pairs, and its own share of the CPU time.

python tests/bench/watcher_cost.py [PAIRS [WIDTH [STEPS]]]
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SITE = Path(__file__).parents[2] / "orchestrator" / "rank" / "watcher" / "site"
#: Steps at the beginning that do not count: the watcher looks for the model, and chooses k.
WARM_UP = 20
SCRIPT = """
import statistics, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
width, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 4)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
data = DataLoader(TensorDataset(torch.randn(8 * steps, 32, width)), batch_size=8)
times, cpu = [], []
for (batch,) in data:
    begin, used = time.monotonic(), time.process_time()
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    times.append(time.monotonic() - begin)
    cpu.append(time.process_time() - used)
print(statistics.median(cpu[20:]), statistics.median(times[20:]), sum(p.numel() for p in model.parameters()))
"""


def measure(folder: Path, width: int, steps: int, *, is_watched: bool) -> tuple[float, float, int, float]:
    """(CPU time of a step, its time, parameters, the watcher's share of the CPU time)."""
    records = folder / f"records-{random.random()}"
    records.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": "0"}
    if is_watched:
        environment.update(CCBED_WATCH=str(records), PYTHONPATH=str(SITE))
    script = folder / "job.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(width), str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    cpu, elapsed, numel = done.stdout.split()
    lines = [json.loads(line) for path in records.iterdir() for line in path.read_text().splitlines()]
    return float(cpu), float(elapsed), int(numel), share(lines)


def share(lines: list[dict[str, Any]]) -> float:
    """The watcher's CPU time over that of the steps after the warm-up, by its own account."""
    steps = [line for line in lines if line["k"] == "step" and "watcher_cpu_s" in line]
    if len(steps) <= WARM_UP:
        return float("nan")
    first, last = steps[WARM_UP], steps[-1]
    return float((last["watcher_cpu_s"] - first["watcher_cpu_s"]) / (last["cpu_s"] - first["cpu_s"]))


def upper_bound(ratios: list[float]) -> float:
    """The upper end of the 95 % interval of the median, by bootstrap."""
    numbers = random.Random(0)
    medians = sorted(statistics.median(numbers.choices(ratios, k=len(ratios))) for _ in range(4000))
    return medians[int(0.975 * len(medians))]


def main() -> None:
    pairs, width, steps = (int(value) for value in (*sys.argv[1:], *("20", "128", "120")[len(sys.argv) - 1 :]))
    ratios, cpu_ratios, shares = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(pairs):
            order = (True, False) if number % 2 else (False, True)
            results = {watched: measure(Path(folder), width, steps, is_watched=watched) for watched in order}
            ratios.append(results[True][1] / results[False][1])
            cpu_ratios.append(results[True][0] / results[False][0])
            shares.append(results[True][3])
            print(
                f"pair {number + 1}: step {results[False][1] * 1e3:.1f} ms, {results[False][2]:,} parameters; "
                f"watched / not: time {ratios[-1]:.3f}, CPU {cpu_ratios[-1]:.3f}; watcher's share {shares[-1]:.2%}",
                flush=True,
            )
    for name, values in (("time", ratios), ("CPU time", cpu_ratios)):
        print(f"{name}: median {statistics.median(values):.3f}, upper 95 % bound {upper_bound(values):.3f}")
    print(f"the watcher's own CPU time: median {statistics.median(shares):.2%}, largest {max(shares):.2%}")


if __name__ == "__main__":
    main()

"""What the watcher costs at a step of 100 ms on the device: pairs of watched and unwatched processes in the order ABBA."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import device, ranks

pytestmark = pytest.mark.gpu
Figure = Callable[[str, object], None]
STEP_S, STEPS, WARM_UP = (0.01, 24, 4) if device.IS_REHEARSAL else (0.1, 60, 20)
#: Of the median step. Host and device work side by side, so that most of the watcher's time is hidden.
MOST = 1.05
#: ``ROUNDS``: products that fill a step, so that all processes do the same work; 0: find the number, and report it.
TRAINING = """
torch.manual_seed(0)
width = 2048 if DEVICE.type == "cuda" else 64
model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(12))).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
big = torch.ones(4 * width, 4 * width, device=DEVICE)
product = torch.empty_like(big)
step_s, steps, warm_up, rounds = json.loads(os.environ["CCBED_TEST_STEPS"])

def step(rounds):
    for _ in range(rounds):
        torch.mm(big, big, out=product)
    optimizer.zero_grad()
    model(torch.ones(64, width, device=DEVICE)).square().mean().backward()
    optimizer.step()
    wait()

def seconds(rounds):
    begin = time.perf_counter()
    step(rounds)
    return time.perf_counter() - begin

for _ in range(3):
    step(1)
if not rounds:
    alone, most = min(seconds(1) for _ in range(3)), min(seconds(21) for _ in range(3))
    rounds = max(1, round((step_s - alone) / max(1e-6, (most - alone) / 20)))
times = [seconds(rounds) for _ in range(steps)][warm_up:]
report(rounds=rounds, times=times, parameters=sum(item.numel() for item in model.parameters()))
"""


def medians(folder: Path, rounds: int, *, is_watched: bool) -> tuple[float, int]:
    """(median seconds of a step, the number of products of a step)."""
    steps = f"[{STEP_S}, {STEPS}, {WARM_UP}, {rounds}]"
    own: dict[str, Any] = {} if is_watched else {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    (process,) = ranks.run(folder, TRAINING, CCBED_TEST_STEPS=steps, CCBED_WATCH_EVERY="auto", **own)
    assert bool(process.of("step")) is is_watched
    measured = ranks.values(process)
    return statistics.median(measured["times"]), int(measured["rounds"])


def test_the_watcher_costs_little_of_a_step(tmp_path: Path, record_property: Figure) -> None:
    first, rounds = medians(tmp_path / "0", 0, is_watched=False)
    times: dict[bool, list[float]] = {True: [], False: [first]}
    for number, is_watched in enumerate((True, True, False), 1):
        times[is_watched].append(medians(tmp_path / str(number), rounds, is_watched=is_watched)[0])
    ratio = statistics.mean(times[True]) / statistics.mean(times[False])
    record_property("watched_s", times[True])
    record_property("unwatched_s", times[False])
    record_property("ratio", round(ratio, 4))
    assert device.IS_REHEARSAL or ratio <= MOST

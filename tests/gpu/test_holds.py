"""A rank is held only when the device has done what Python has issued: a fault then acts at the step that the history names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.model import codec
from orchestrator.model.gang import Hold

from . import device, ranks

pytestmark = pytest.mark.gpu
#: Work of about a second is queued before the optimizer of step 2; a thread sees whether it is done when the rank is held.
QUEUED = """
import glob, threading
torch.manual_seed(0)
model = torch.nn.Linear(64, 64).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
big = torch.ones(4096 if DEVICE.type == "cuda" else 128, 4096 if DEVICE.type == "cuda" else 128, device=DEVICE)
done, states = None, []

def is_held():
    return any('"held"' in open(path).read() for path in glob.glob(f"{OUT}/watch-*"))

def watch():
    while not is_held():
        time.sleep(0.002)
    states.append(done is None or done.query())

thread = threading.Thread(target=watch, daemon=True)
thread.start()
for step in range(1, 4):
    optimizer.zero_grad()
    model(torch.ones(4, 64, device=DEVICE)).sum().backward()
    if step == 2 and DEVICE.type == "cuda":
        for _ in range(200):
            big @ big
        done = torch.cuda.Event()
        done.record()
        report(was_busy=not done.query())
    optimizer.step()
thread.join(10)
report(was_done=states)
"""


def holds(*planned: Hold) -> str:
    return json.dumps(codec.plain(planned))


@pytest.mark.parametrize("phase", ["optimizer", "backward"])
def test_held_after_the_device_has_ended_its_work(tmp_path: Path, phase: str) -> None:
    hold = Hold(id="f0", rank=0, step=2 if phase == "optimizer" else 3, phase=phase, limit_s=1.0)
    (process,) = ranks.run(tmp_path, QUEUED, CCBED_WATCH_HOLDS=holds(hold))
    (line,) = process.of("held")
    assert (line["where"], line["n"], line["exact"]) == (phase, hold.step - 1, True)
    assert ranks.values(process)["was_done"] == [True]
    if not device.IS_REHEARSAL and phase == "optimizer":
        assert ranks.values(process)["was_busy"], "the work was over before the hold: queue more"


@device.needs_cuda
def test_a_hold_inside_a_capture_does_not_break_it(tmp_path: Path) -> None:
    """A graph that is captured cannot be waited for: the hold says that it is not exact, or is not taken."""
    hold = Hold(id="f0", rank=0, step=1, phase="optimizer", limit_s=0.1)
    text = """
model = torch.nn.Linear(64, 64).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for parameter in model.parameters():
    parameter.grad = torch.ones_like(parameter)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    optimizer.step()
before = model.weight.sum().item()
graph.replay()
wait()
report(moved=model.weight.sum().item() < before)
"""
    (process,) = ranks.run(tmp_path, text, CCBED_WATCH_HOLDS=holds(hold))
    assert ranks.values(process)["moved"] is True
    assert [line["exact"] for line in process.of("held")] in ([], [False])

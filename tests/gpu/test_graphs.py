"""CUDA graphs and torch.compile under the watcher: steps are counted or unknown with a reason, never wrong, and nothing breaks."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from . import device, ranks

pytestmark = pytest.mark.gpu
Figure = Callable[[str, object], None]
MODEL = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to(DEVICE)
batch = torch.ones(16, 64, device=DEVICE)
"""
COMPILED = """
forward = torch.compile(model, backend=os.environ["CCBED_TEST_COMPILER"])
optimizer = torch.optim.AdamW(model.parameters())
losses = []
for _ in range(4):
    optimizer.zero_grad()
    loss = forward(batch).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(falls=losses[-1] < losses[0])
"""
COMPILED_STEP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = torch.compile(optimizer.step, backend=os.environ["CCBED_TEST_COMPILER"])
for _ in range(4):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    step()
wait()
"""
#: The whole step is one graph: its replays are not seen.
WHOLE_STEP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss

stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = step()
losses = []
for _ in range(5):
    graph.replay()
    losses.append(loss.item())
report(falls=losses[-1] < losses[0])
"""
#: Forward and backward are graphs, the optimizer is not: every step is seen.
GRAPHED_MODEL = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
graphed = torch.cuda.make_graphed_callables(model, (batch,))
for _ in range(4):
    optimizer.zero_grad(set_to_none=True)
    graphed(batch).square().mean().backward()
    optimizer.step()
wait()
"""


def compiler() -> str:
    """Inductor where it can work: on a GPU it needs Triton, and a C compiler for Triton's launchers."""
    can_build = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    has_triton = importlib.util.find_spec("triton") is not None
    return "inductor" if not device.IS_REHEARSAL and can_build and has_triton else "aot_eager"


def test_steps_of_a_compiled_model_are_counted(tmp_path: Path, record_property: Figure) -> None:
    record_property("compiler", compiler())
    (process,) = ranks.run(tmp_path, MODEL + COMPILED, CCBED_TEST_COMPILER=compiler())
    assert ranks.values(process)["falls"] is True
    assert [line["n"] for line in process.of("step")] == [1, 2, 3, 4]
    states = [line["weights"] for line in process.of("state")]
    assert len(set(states)) == len(states) >= 5


def test_a_compiled_step_is_counted_or_unknown(tmp_path: Path) -> None:
    (process,) = ranks.run(tmp_path, MODEL + COMPILED_STEP, CCBED_TEST_COMPILER=compiler())
    assert [line["n"] for line in process.of("step")] == [1, 2, 3, 4] or process.of("unknown")


@device.needs_cuda
def test_a_graph_of_the_whole_step_is_captured_and_its_replays_are_unknown(tmp_path: Path) -> None:
    (process,) = ranks.run(tmp_path, MODEL + WHOLE_STEP)
    assert ranks.values(process)["falls"] is True
    assert [line["n"] for line in process.of("step")] == [1, 2, 3], "the steps before the capture"
    assert any("a CUDA graph contains the optimizer's step" in str(line) for line in process.of("unknown"))


@device.needs_cuda
def test_steps_of_a_graphed_model_are_counted(tmp_path: Path, record_property: Figure) -> None:
    (process,) = ranks.run(tmp_path, MODEL + GRAPHED_MODEL)
    record_property("unknown", process.of("unknown"))
    assert [line["n"] for line in process.of("step")] == [1, 2, 3, 4]

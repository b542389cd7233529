"""Faults in the memory of the device: flipped bits that autograd does not notice, and memory that runs out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from . import device, ranks

pytestmark = pytest.mark.gpu
Figure = Callable[[str, object], None]
#: The same training twice: undisturbed, and with an act before the third step.
DISTURBED = """
act = json.loads(sys.argv[1]) if len(sys.argv) > 1 else json.loads(os.environ["CCBED_TEST_ACT"])
def train(act):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(1, 5):
        if step == 3 and act:
            order(act)
        optimizer.zero_grad()
        model(torch.full((2, 64), 0.1 * step, device=DEVICE)).square().sum().backward()
        try:
            optimizer.step()
        except RuntimeError as error:
            report(caught=type(error).__name__, text=str(error)[:200])
    wait()
    return [parameter.detach().clone() for parameter in model.parameters()]

undisturbed = train(None)
disturbed = train(act)
report(same=[bool(torch.equal(a, b)) for a, b in zip(undisturbed, disturbed)], step=4)
if DEVICE.type == "cuda":
    free, total = torch.cuda.mem_get_info()
    report(free_mib=free >> 20, total_mib=total >> 20)
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("part", ["parameter", "optimizer", "gradient"])
def test_a_flipped_bit_changes_the_training_and_crashes_nothing(tmp_path: Path, part: str, when: str) -> None:
    act = {"do": "flip", "part": part, "when": when, "bit": 22}
    (process,) = ranks.run(tmp_path, DISTURBED, CCBED_TEST_ACT=json.dumps(act))
    (answer,) = ranks.answers(tmp_path)
    assert answer.get("problem") is None
    assert answer["before"] != answer["after"]
    assert "caught" not in ranks.values(process)
    assert False in ranks.values(process)["same"]


def test_a_rank_that_runs_out_of_memory_sees_the_error_of_its_allocator_and_goes_on(
    tmp_path: Path, record_property: Figure
) -> None:
    """What the act took is free afterwards: another rank on the same GPU may allocate it."""
    (process,) = ranks.run(tmp_path, DISTURBED, CCBED_TEST_ACT=json.dumps({"do": "run-out-of-memory"}))
    (answer,) = ranks.answers(tmp_path)
    measured = ranks.values(process)
    record_property("oom", {**answer, **measured})
    assert measured["caught"] in (("RuntimeError",) if device.IS_REHEARSAL else ("OutOfMemoryError",))
    assert ("can't allocate memory" if device.IS_REHEARSAL else "out of memory") in answer["error"]
    assert answer["allocated_mib"] > 0
    assert device.IS_REHEARSAL or measured["free_mib"] > measured["total_mib"] // 2

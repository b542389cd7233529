"""Checkpoints of states on the device: the digest of what was saved is that of the training, of the file, and of what was loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import device, ranks

pytestmark = pytest.mark.gpu
#: After the save the weights change at once, on the device's stream: the digest is still that of what was saved.
TRAINING = """
import torch.distributed.checkpoint as dcp
def build(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Dropout(0.1), torch.nn.Linear(256, 8)).to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

def train(model, optimizer, first, last, saves=()):
    for step in range(first, last + 1):
        optimizer.zero_grad()
        model(torch.full((16, 256), float(step), device=DEVICE)).square().mean().backward()
        optimizer.step()
        if step in saves:
            save(model, optimizer, step)

def generators():
    on_device = {"cuda": torch.cuda.get_rng_state()} if DEVICE.type == "cuda" else {}
    return {"torch": torch.get_rng_state(), **on_device}

def restore(states):
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
"""
ONE_FILE = """
def save(model, optimizer, step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": generators(), "step": step}
    torch.save(state, f"{OUT}/step-{step}.pt")

model, optimizer = build(0)
train(model, optimizer, 1, 6, saves=(3,))
model2, optimizer2 = build(1)
state = torch.load(f"{OUT}/step-3.pt", map_location="cpu", weights_only=True)
model2.load_state_dict(state["model"])
optimizer2.load_state_dict(state["optimizer"])
restore(state["rng"])
train(model2, optimizer2, 4, 6)
report(same=all(torch.equal(a, b) for a, b in zip(model.parameters(), model2.parameters())))
"""
#: Of one rank, without a process group.
SHARDED = """
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
def save(model, optimizer, step):
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=f"{OUT}/step-{step}")

model, optimizer = build(0)
train(model, optimizer, 1, 3, saves=(3,))
model2, optimizer2 = build(1)
train(model2, optimizer2, 1, 1)
weights, moments = get_state_dict(model2, optimizer2)
dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=f"{OUT}/step-3")
set_state_dict(model2, optimizer2, model_state_dict=weights, optim_state_dict=moments)
report(same=all(torch.equal(a, b) for a, b in zip(model.parameters(), model2.parameters())))
"""


@pytest.mark.parametrize("text", [ONE_FILE, SHARDED], ids=["torch.save", "dcp"])
def test_what_is_saved_is_what_was_trained_and_comes_back(tmp_path: Path, text: str) -> None:
    (process,) = ranks.run(tmp_path, TRAINING + text)
    assert ranks.values(process)["same"] is True
    assert process.of("unknown") == []
    (saved,) = process.of("saved")
    states = {line["n"]: line["weights"] for line in process.of("state") if line.get("weights")}
    assert saved["weights"] == states[3]
    assert {line["weights"] for line in process.of("load")} == {states[3]}
    assert [line["sha256"] for line in process.of("committed") if "sha256" in line]


def test_the_random_state_of_the_device_is_among_the_contents(tmp_path: Path) -> None:
    (process,) = ranks.run(tmp_path, TRAINING + ONE_FILE)
    (saved,) = process.of("saved")
    assert set(saved["contents"]["rng"]) == {"torch"} | (set() if device.IS_REHEARSAL else {"cuda"})

"""A watched script stops at the points of planned faults, acts on order, and is otherwise the script that it was."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from orchestrator.model import codec
from orchestrator.model.gang import Hold

from .stage import Played, Stage

#: One process trains eight steps, and saves after every second one. ``ORDERS``: what has been ordered when it begins.
TRAINING = """
import json, os, sys, torch
from torch.utils.data import DataLoader
out = os.environ["CCBED_OUT"]
with open(f"{out}/orders-r0.jsonl", "w") as file:
    file.writelines(json.dumps(order) + "\\n" for order in json.loads(sys.argv[1]))
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step, batch in enumerate(DataLoader(torch.ones(8, 4), batch_size=1), 1):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    if step % 2 == 0:
        torch.save({"model": model.state_dict(), "step": step}, f"{out}/{step}.pt")
print("loaded", torch.load(f"{out}/8.pt")["step"])
"""


def hold(
    phase: str, step: int = 0, *, id: str = "", nth: int | None = None, rank: int = 0, limit_s: float = 0.02
) -> Hold:
    return Hold(id=id or phase, rank=rank, step=step, phase=phase, nth=nth, limit_s=limit_s)


def play(stage: Stage, holds: tuple[Hold, ...] = (), *orders: Mapping[str, Any], text: str = TRAINING) -> Played:
    played = stage.script(text, world=1, holds=holds, args=[json.dumps(orders)])
    assert played.codes == {0: 0}, played.log(0)
    assert not [line for line in played.watched(0) if line["k"] == "problem"]
    return played


def held(played: Played) -> list[tuple[str, int]]:
    """Where, and after how many steps, the watcher held the rank; the events agree."""
    lines = [line for line in played.watched(0) if line["k"] == "held"]
    assert [line["hold"] for line in lines] == [value["hold"] for value in played.of("rank.held")]
    return [(line["where"], line["n"]) for line in lines]


def answers(played: Played) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in (played.out / "n0/acts-r0.jsonl").read_text().splitlines()]


def test_it_is_held_at_each_kind_of_point_in_the_right_step(stage: Stage) -> None:
    holds = (
        hold("backward", 2), hold("forward", 3), hold("optimizer", 4), hold("data", 5),
        hold("save", nth=1), hold("save-during", nth=2), hold("save-after", nth=3), hold("load", nth=1),
        hold("backward", 99, id="later"), hold("backward", 6, rank=1, id="peer"),
    )  # fmt: skip
    played = play(stage, holds)
    assert "loaded 8" in played.log(0)
    assert held(played) == [
        ("backward", 1), ("save", 2), ("forward", 2), ("optimizer", 3), ("save-during", 4), ("data", 4),
        ("save-after", 6), ("load", 8),
    ]  # fmt: skip
    assert [value["step"] for value in played.of("rank.held")] == [2, 0, 3, 4, 0, 5, 0, 0]
    assert len(played.of("hold.expired")) == 8


def test_a_save_that_is_held_in_the_middle_has_left_a_torn_file(stage: Stage) -> None:
    """The rank is killed there: the file exists and cannot be loaded."""
    holds = (hold("save-during", nth=2, limit_s=30.0),)
    played = stage.script(TRAINING, world=1, holds=holds, more={"kill": 0}, args=["[]"])
    assert played.codes == {0: -9}, played.log(0)
    torch.load(played.out / "n0/2.pt")
    with pytest.raises((RuntimeError, EOFError)):
        torch.load(played.out / "n0/4.pt")


def test_an_order_holds_a_running_rank_at_the_next_step_that_is_late_enough(stage: Stage) -> None:
    """A release that came first ends the hold at once; a repeated order has no further effect."""
    late, past = hold("backward", 4, id="f0", limit_s=60.0), hold("optimizer", 1, id="f1")
    repeated = codec.plain(hold("backward", 6, id="f0"))
    orders = [{"hold": codec.plain(late)}, {"release": "f0"}, {"hold": repeated}, {"hold": codec.plain(past)}]
    played = play(stage, (), *orders)
    assert held(played) == [("optimizer", 0), ("backward", 3)]
    assert [value["hold"] for value in played.of("rank.released")] == ["f0"]


def test_without_holds_nothing_is_wrapped(stage: Stage) -> None:
    text = "import torch\nprint(torch.save.__module__, torch.autograd.backward.__wrapped__.__module__)\n"
    assert "torch.serialization torch.autograd\n" in play(stage, text=text).log(0)


def test_the_other_ranks_show_that_they_wait_in_their_collective(stage: Stage) -> None:
    text = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""
    is_over = threading.Event()

    def release() -> None:
        while not stage.has_event("rank.inside") and not is_over.wait(0.01):
            pass
        with (stage.directory / "out-0/n1/orders-r1.jsonl").open("a") as orders:
            orders.write(json.dumps({"release": "backward"}) + "\n")

    thread = threading.Thread(target=release)
    thread.start()
    played = stage.script(text, world=2, holds=(hold("backward", 3, rank=1, limit_s=60.0),))
    is_over.set()
    thread.join()
    assert played.codes == {0: 0, 1: 0}, played.log(0)
    assert [value["hold"] for value in played.of("rank.released")] == ["backward"]
    (inside,) = played.of("rank.inside")
    assert (inside["rank"], inside["step"], inside["hold"]) == (0, 3, "backward")
    assert "run_backward" in inside["stack"][0]


def test_a_script_that_handles_sigterm_goes_on_to_save_when_it_gets_it(stage: Stage) -> None:
    text = TRAINING.replace(
        "for step",
        """import signal, threading, time
def stop(number, frame):
    print("asked to save", flush=True)
signal.signal(signal.SIGTERM, stop)
def ask():
    while not any('"held"' in open(f"{out}/{name}").read() for name in os.listdir(out) if name.startswith("watch")):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=ask, daemon=True).start()
for step""",
        1,
    )
    played = play(stage, (hold("backward", 3, limit_s=60.0),), text=text + "print(signal.getsignal(15) is stop)\n")
    assert len(played.of("rank.released")) == 1
    assert "asked to save\nloaded 8\nTrue" in played.log(0)

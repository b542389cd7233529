"""A container of optimizers, as torchtitan has one: the state is that of the optimizers in it."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import jobs


class Container(torch.optim.Optimizer):
    """It owns all parameters by its base class, and holds no state."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        parameters = [p for item in optimizers for group in item.param_groups for p in group["params"]]
        super().__init__(parameters, {} if len(optimizers) == 1 else {"lr": 0.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for item in self.optimizers:
            item.step()


def test_states_and_rates_are_those_of_the_optimizers_inside(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        inside = [torch.optim.Adam(part.parameters(), lr) for part, lr in zip(model, (0.1, 0.2), strict=True)]
        container = Container([*inside])
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            container.step()

    (lines,) = jobs.fork(tmp_path, body)
    second = jobs.of(lines, "state")[1]
    assert {float.fromhex(rate) for rate in second["lr"]} == {0.1, 0.2}
    assert second["optimizer"].keys() >= {"exp_avg", "exp_avg_sq", "step"} and second["counter"] == 1


def test_of_a_container_of_one_optimizer_the_rates_are_those_of_it(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        container = Container([torch.optim.Adam(model.parameters(), 0.1)])
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            container.step()

    (lines,) = jobs.fork(tmp_path, body)
    second = jobs.of(lines, "state")[1]
    assert [float.fromhex(rate) for rate in second["lr"]] == [0.1]

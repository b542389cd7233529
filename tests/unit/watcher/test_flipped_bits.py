"""A flipped bit is silent: the step goes on, and autograd does not know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.rank.watcher.holds import acts


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    acts._owner.clear()


@pytest.fixture
def job() -> tuple[Any, Any, Callable[[], Any]]:
    """A model whose backward pass needs its weights, an optimizer with states and gradients, and its forward pass."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 6)).pow(2).sum().backward()
    optimizer.step()
    acts.remember(optimizer)
    return model, optimizer, lambda: model(torch.ones(3, 6)).pow(2).sum()


def _tensors(model: Any, optimizer: Any) -> list[Any]:
    parameters = list(model.parameters())
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [*parameters, *(parameter.grad for parameter in parameters), *states]


@pytest.mark.parametrize("moment", ["before backward", "after backward"])
@pytest.mark.parametrize("part", ["parameter", "optimizer", "gradient"])
def test_bits_change_and_no_version_does(part: str, moment: str, job: Any, tmp_path: Path) -> None:
    model, optimizer, forward = job
    loss = forward()
    if moment == "after backward":
        loss.backward()
    tensors = _tensors(model, optimizer)
    before = [(tensor.detach().clone(), tensor._version) for tensor in tensors]
    answers: list[dict[str, Any]] = []
    acts._flip({"part": part, "when": "after", "bit": 22}, lambda **fields: answers.append(fields))
    acts.perform_waiting()
    changed = [not torch.equal(tensor, copy) for tensor, (copy, _) in zip(tensors, before, strict=True)]
    assert sum(changed) == 1
    assert [tensor._version for tensor in tensors] == [version for _, version in before]
    assert answers[0]["before"] != answers[0]["after"]
    if moment == "before backward":
        loss.backward()
    optimizer.step()


def test_a_gradient_is_flipped_before_its_reduction(job: Any) -> None:
    model, optimizer, forward = job
    forward().backward()
    loss = forward()
    undisturbed = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    optimizer.zero_grad()
    acts._flip({"part": "gradient", "when": "before", "bit": 22}, lambda **fields: None)
    loss.backward()
    equal = [torch.equal(p.grad, gradient) for p, gradient in zip(model.parameters(), undisturbed, strict=True)]
    assert equal.count(False) == 1

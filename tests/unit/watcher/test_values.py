"""Settings of optimizers after they went through the formats that checkpoints have: equal values are equal."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import inspect
import io
import json
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.rank.watcher import owner

OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, str]]:
    groups = optimizer.param_groups
    return [{k: str(owner.plain_setting(v)) for k, v in group.items() if owner._is_setting(k, v)} for group in groups]


def _as_json(state: dict[str, Any]) -> Any:
    return {**state, "param_groups": json.loads(json.dumps(state["param_groups"]))}


def _as_tensors(state: dict[str, Any]) -> Any:
    """Formats of tensors alone, such as DCP and safetensors, give numbers back as tensors."""

    def tensor(value: Any) -> Any:
        if isinstance(value, float):
            return torch.tensor(value, dtype=torch.float64)
        return [tensor(item) for item in value] if isinstance(value, (list, tuple)) else value

    groups = [{k: v if k == "params" else tensor(v) for k, v in group.items()} for group in state["param_groups"]]
    return {**state, "param_groups": groups}


def _as_torch(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("through", [_as_json, _as_tensors, _as_torch])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_format_changes_no_setting(name: str, through: Any) -> None:
    shape = (4, 4) if name == "Muon" else (4,)
    made = [getattr(torch.optim, name)([nn.Parameter(torch.ones(shape))], lr=0.1) for _ in range(2)]
    before = _settings(made[0])
    made[1].load_state_dict(through(made[0].state_dict()))
    assert _settings(made[1]) == before != [{}]


def test_other_values_differ() -> None:
    optimizers = [torch.optim.Adam([nn.Parameter(torch.ones(2))], betas=betas) for betas in ((0.9, 0.99), (0.9, 0.999))]
    assert _settings(optimizers[0]) != _settings(optimizers[1])


@pytest.mark.parametrize(
    ("first", "second"),
    [((0.9, 0.999), [0.9, 0.999]), (1, 1.0), (1, torch.tensor(1.0)), (torch.tensor([2, 3]), (2, 3)), (None, None)],
)
def test_equal_values_in_other_containers(first: Any, second: Any) -> None:
    assert owner.plain_setting(first) == owner.plain_setting(second)


@pytest.mark.parametrize(("first", "second"), [(0.1, 0.2), ((1, 2), (2, 1)), (None, 0), ("a", "b"), (True, False)])
def test_different_values(first: Any, second: Any) -> None:
    assert owner.plain_setting(first) != owner.plain_setting(second)

"""What counts as one step: the cases in which hooks of optimizers fire more than once, or not at all."""

# mypy: disable-error-code="no-untyped-call,unused-ignore"
from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.rank.watcher import owner, record, steps

from . import jobs

ITERATIONS = 4


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(3, 4)).square().mean()  # type: ignore[no-any-return]


def plain(model: nn.Module, optimizer: Any, snapshot: Callable[[], None]) -> None:
    for _ in range(ITERATIONS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        snapshot()


def accumulation(model: nn.Module, snapshot: Callable[[], None]) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(ITERATIONS):
        for _ in range(3):
            loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        snapshot()


def adversarial(model: nn.Module, snapshot: Callable[[], None], order: str = "small first") -> None:
    """Two optimizers in turn, each after its own backward pass."""
    small = nn.Linear(4, 1)
    model.small = small  # type: ignore[assignment]
    pair = [
        (small, torch.optim.Adam(small.parameters())),
        (model[:3], torch.optim.Adam(model[:3].parameters())),  # type: ignore[index]
    ]
    for _ in range(ITERATIONS):
        for module, optimizer in pair if order == "small first" else pair[::-1]:
            optimizer.zero_grad()
            loss_of(module).backward()
            optimizer.step()
        snapshot()


def adversarial_large_first(model: nn.Module, snapshot: Callable[[], None]) -> None:
    adversarial(model, snapshot, "large first")


def two_after_one_backward(model: nn.Module, snapshot: Callable[[], None]) -> None:
    first, second = torch.optim.SGD([model[0].weight], 0.1), torch.optim.Adam([model[0].bias, *model[2].parameters()])  # type: ignore[index]
    for _ in range(ITERATIONS):
        model.zero_grad()
        loss_of(model).backward()
        second.step()
        first.step()
        snapshot()


def in_backward(model: nn.Module, snapshot: Callable[[], None]) -> None:
    """An optimizer per parameter steps as soon as its gradient is there."""
    optimizers = {parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(ITERATIONS):
        loss_of(model).backward()
        snapshot()


def closure(model: nn.Module, snapshot: Callable[[], None]) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def evaluate() -> float:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return float(loss)

    for _ in range(ITERATIONS):
        optimizer.step(evaluate)
        snapshot()


class Descent(torch.optim.SGD):
    """An optimizer of a user whose step calls that of its base class."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)


def nested(model: nn.Module, snapshot: Callable[[], None]) -> None:
    torch.optim.SGD(model.parameters(), 0.1)
    plain(model, Descent(model.parameters(), 0.1), snapshot)


def raising(model: nn.Module, snapshot: Callable[[], None]) -> None:
    """A step that raised counts nothing, and does not hide those that follow."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def fail() -> float:
        raise MemoryError

    with pytest.raises(MemoryError):
        optimizer.step(fail)
    plain(model, optimizer, snapshot)


def zero_rate(model: nn.Module, snapshot: Callable[[], None]) -> None:
    plain(model, torch.optim.Adam(model.parameters(), lr=0.0), snapshot)


def fused(model: nn.Module, snapshot: Callable[[], None]) -> None:
    plain(model, torch.optim.Adam(model.parameters(), fused=True), snapshot)


def foreach(model: nn.Module, snapshot: Callable[[], None]) -> None:
    plain(model, torch.optim.Adam(model.parameters(), foreach=True), snapshot)


def gradients_by_hand(model: nn.Module, snapshot: Callable[[], None]) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(ITERATIONS):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        snapshot()


def with_average(model: nn.Module, snapshot: Callable[[], None]) -> None:
    """A moving average of the weights is a copy that no optimizer updates."""
    from torch.optim.swa_utils import AveragedModel

    average = AveragedModel(model)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(ITERATIONS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        average.update_parameters(model)
        snapshot()


def initialised_state(model: nn.Module, snapshot: Callable[[], None]) -> None:
    """Loading a distributed checkpoint calls ``step`` once to create the optimizer's state: this is no step."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    optimizer = torch.optim.Adam(model.parameters())
    get_optimizer_state_dict(model, optimizer)
    plain(model, optimizer, snapshot)


def replaced(model: nn.Module, snapshot: Callable[[], None]) -> None:
    """A new optimizer for the same parameters at each step, as scripts do that change it between epochs."""
    for _ in range(ITERATIONS):
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        snapshot()


def zeros_before_a_closure(model: nn.Module, snapshot: Callable[[], None]) -> None:
    """Plain SGD never has states, and the backward pass comes after the step has begun."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def closure() -> torch.Tensor:
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(ITERATIONS):
        optimizer.zero_grad(set_to_none=False)
        optimizer.step(closure)
        snapshot()


def states_by_a_step_of_zeros(model: nn.Module, snapshot: Callable[[], None]) -> None:
    """As torchtitan does it before it loads a checkpoint, for one optimizer after the other."""
    pair = [torch.optim.AdamW([*part.parameters()]) for part in (model[0], model[2])]  # type: ignore[index]
    for optimizer in pair:
        for group in optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 0.1
    for _ in range(ITERATIONS):
        loss_of(model).backward()
        for optimizer in pair:
            optimizer.step()
            optimizer.zero_grad()
        snapshot()


def gradients_of_zero(model: nn.Module, snapshot: Callable[[], None]) -> None:
    """A step after a backward pass is one, whatever the gradients are: weights decay."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
    for _ in range(ITERATIONS):
        optimizer.zero_grad()
        (loss_of(model) * 0).backward()
        optimizer.step()
        snapshot()


CASES = [
    accumulation, adversarial, adversarial_large_first, two_after_one_backward, in_backward, closure, nested, raising,
    zero_rate, fused, foreach, gradients_by_hand, with_average, initialised_state, replaced,
    states_by_a_step_of_zeros, gradients_of_zero, zeros_before_a_closure,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_step_is_one_iteration_and_its_state_that_of_the_model(tmp_path: Path, case: Callable[..., None]) -> None:
    """Digest n is that of the model after n iterations, computed by the script from its own state_dict."""
    from orchestrator.rank.watcher import digest

    def body(rank: int) -> None:
        model = net()
        digests = []

        def snapshot() -> None:
            digests.append(digest.total(dict(model.named_parameters()))[0])

        case(model, snapshot)
        (tmp_path / "digests").write_text("\n".join(digests))

    (lines,) = jobs.fork(tmp_path / "records", body)
    expected = (tmp_path / "digests").read_text().split()
    assert jobs.of(lines, "problem") == []
    assert [line["n"] for line in jobs.of(lines, "step")] == list(range(1, ITERATIONS + 1))
    states = {line["n"]: line["weights"] for line in jobs.of(lines, "state")}
    assert [states[n] for n in range(1, ITERATIONS + 1)] == expected
    assert jobs.of(lines, "end")[0]["n"] == ITERATIONS


def unfreezing(model: nn.Module, is_new: bool) -> None:
    """Only the last layer trains for two steps, then all of them: by another optimizer, or by another group of the same."""
    optimizer = torch.optim.Adam(model[2].parameters())  # type: ignore[index]
    for step in range(ITERATIONS):
        if step == 2 and is_new:
            optimizer = torch.optim.Adam(model.parameters())
        elif step == 2:
            optimizer.add_param_group({"params": [*model[0].parameters()]})  # type: ignore[index]
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


@pytest.mark.parametrize("is_new", [False, True], ids=["group", "optimizer"])
def test_layers_that_train_later_are_part_of_the_state_from_then_on(tmp_path: Path, is_new: bool) -> None:
    def body(rank: int) -> None:
        unfreezing(net(), is_new)

    (lines,) = jobs.fork(tmp_path / "records", body)
    assert [line["tensors"] for line in jobs.of(lines, "owner")] == [2, 4]
    assert [line["n"] for line in jobs.of(lines, "step")] == list(range(1, ITERATIONS + 1))
    assert {line["n"] for line in jobs.of(lines, "state")} == set(range(ITERATIONS + 1))


def folds(extra: bool, kept: list[Any] | None = None) -> None:
    """Cross-validation: a model, an optimizer and a schedule for each half; ``extra``: another optimizer that is there all the time.

    ``kept``: the optimizers of halves that are over.
    """
    probe = nn.Linear(4, 2)
    others = [torch.optim.SGD(probe.parameters(), 0.1)] if extra else []
    for _ in range(2):
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # the two refer to each other
        for _ in range(3):
            for part, stepping in ((model, optimizer), *((probe, other) for other in others)):
                stepping.zero_grad()
                loss_of(part).backward()
                stepping.step()
            schedule.step()
        if kept is not None:
            kept.append(optimizer)


@pytest.mark.parametrize(("extra", "kept"), [(False, None), (True, None), (False, []), (True, [])])
def test_a_model_that_is_trained_after_another_goes_on_with_the_count_of_steps(
    tmp_path: Path, extra: bool, kept: list[Any] | None
) -> None:
    (lines,) = jobs.fork(tmp_path / "records", lambda rank: folds(extra, kept))
    assert jobs.of(lines, "owner")[-1]["optimizers"] == 1 + extra
    assert jobs.of(lines, "problem") == []
    assert [line["n"] for line in jobs.of(lines, "step")] == list(range(1, 7))
    states = {line["n"]: line["weights"] for line in jobs.of(lines, "state")}
    assert sorted(states) == list(range(7)) and len({*states.values()}) == 7


def test_an_optimizer_that_joins_later_beside_a_living_one_counts_no_steps(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model, small = net(), nn.Linear(4, 1)
        first = torch.optim.Adam(model.parameters())
        pair = [(model, first), (small, torch.optim.Adam(small.parameters()))]
        for step in range(6):
            for part, stepping in pair[: 1 + (step > 2)]:
                stepping.zero_grad()
                loss_of(part).backward()
                stepping.step()

    (lines,) = jobs.fork(tmp_path / "records", body)
    assert [line["n"] for line in jobs.of(lines, "step")] == list(range(1, 7))
    assert jobs.of(lines, "owner")[-1]["optimizers"] == 2


class Sized:
    """What the groups of steps read of an optimizer."""

    def __init__(self, count: int) -> None:
        self.param_groups = [{"params": [torch.zeros(count)]}]


def test_of_two_optimizers_in_turn_with_equally_many_parameters_one_counts_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_recorder", record.Recorder(str(tmp_path)))
    groups, states = steps.StepGroups(), list[int]()
    groups.boundaries.append(lambda n, optimizer: states.append(n))

    def step(optimizer: Sized) -> None:
        groups.begin_step(optimizer, sys._getframe())
        groups.end_step(optimizer, sys._getframe())

    pair = (Sized(3), Sized(3))
    for _ in range(ITERATIONS):
        for optimizer in pair:
            groups.begin_backward()
            step(optimizer)
    groups.flush()
    assert (groups.n, states) == (ITERATIONS, list(range(ITERATIONS)))


@pytest.mark.parametrize("has_closure", [False, True])
def test_gradients_are_recorded_where_a_backward_pass_made_them_for_the_coming_step(
    tmp_path: Path, has_closure: bool
) -> None:
    """As a step with a closure begins, those of the step before are still there."""

    def body(rank: int) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return loss

        for step in range(ITERATIONS):
            if has_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            if step == 1:
                torch.save(model.state_dict(), tmp_path / "saved.pt")

    (lines,) = jobs.fork(tmp_path / "records", body)
    known = {line["n"]: line["gradients"] for line in jobs.of(lines, "state") if "gradients" in line}
    assert known.keys() == {0, 2} and all((norms is None) == has_closure for norms in known.values())


def test_a_parameter_without_a_gradient_and_one_with_a_gradient_of_zero_are_the_same() -> None:
    """Parameters that a step does not use have none in a new process, and zeros after ``zero_grad(set_to_none=False)``."""
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(owner.NORMS + 2)]
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.full((2,), float(number + 1))
    optimizer = torch.optim.SGD(parameters, 0.1)
    parameters[3].grad = torch.zeros(2)
    zero = owner.gradients(optimizer)
    parameters[3].grad = None
    assert owner.gradients(optimizer) == zero is not None
    parameters[3].grad = torch.ones(2)
    assert owner.gradients(optimizer) != zero

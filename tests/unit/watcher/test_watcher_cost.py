"""What the watcher does at a step is counted, not timed: its lines, its writes, the bytes that it hashes, its function calls."""

# mypy: disable-error-code="no-untyped-call,unused-ignore"
from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from orchestrator.rank.watcher import budget as budgets
from orchestrator.rank.watcher import digest, record, small_tensors, states, steps, tensor_names
from orchestrator.rank.watcher.measures import batches

from . import jobs

PACKAGE = str(Path(record.__file__).parent)
#: Functions of the watcher that are called at a step without a state. More of them make short steps dearer: find another way.
CALLS = 76
STEPS = 20


def test_a_step_is_one_write_and_few_calls(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        counts: dict[str, int] = {"calls": 0, "writes": 0}
        write = os.write

        def count(frame: Any, event: str, argument: Any) -> None:
            counts["calls"] += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

        def count_write(fd: int, data: Any) -> int:
            counts["writes"] += 1
            return write(fd, data)

        for n, (batch,) in enumerate(DataLoader(TensorDataset(torch.zeros(40, 4)), batch_size=1), 1):
            if n == 18:  # after the window of the start, and no choice until the end: those are after 16 and 64 steps
                budgets.budget.moments_every = 1024  # on a busy machine steps take long, and have moments more often
                os.write = count_write
                sys.setprofile(count)
            if n == 28:
                sys.setprofile(None)
                os.write = write
            model(batch).sum().backward()
            optimizer.step()
        (tmp_path / "counts").write_text(json.dumps(counts))

    jobs.fork(tmp_path / "records", body, CCBED_WATCH_EVERY="1024")
    counts = json.loads((tmp_path / "counts").read_text())
    assert counts["writes"] == 10
    assert 0 < counts["calls"] <= 10 * CALLS


@pytest.mark.parametrize("shape", [(16, 16), (4096,), (64, 3, 224, 224), (8, 1024)], ids=str)
def test_at_most_16_kib_of_a_tensor_are_hashed(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    sampled: list[int] = []
    original = batches._sample

    def sample(data: memoryview) -> bytes:
        result = original(data)
        sampled.append(len(result))
        return result

    monkeypatch.setattr(batches, "_sample", sample)
    item = torch.randn(shape)
    whole = item.numel() * 4
    assert batches.fingerprint({"x": item}) == batches.fingerprint({"x": item.clone()})
    assert all(size == whole if whole <= batches.WHOLE else size <= batches.WHOLE + 7 for size in sampled)
    assert batches.fingerprint({"x": item}) != batches.fingerprint({"x": item + 1})


def test_where_steps_are_short_states_and_moments_are_recorded_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget: of a step of 5 ms 75 us; 50 us are spent at every step, a state costs 1 ms, a batch 80 us, generators 40 us."""
    budget, used = budgets.Budget(), 0.0
    monkeypatch.setattr(record, "cpu_s", lambda: used)
    assert budget.choose(0) is not None
    for n in range(1, 17):
        used += 50e-6
        for kind, seconds in (("state", 1e-3), ("batch", 80e-6), ("generators", 40e-6)):
            used += seconds
            budget.add_cost(kind, seconds)
        budget.add_step(5e-3, 5e-3)
        choice = budget.choose(n)
    assert choice is not None
    assert choice["batches"] == 2, "120 us do not fit into 75 us"
    assert budget.every * budgets.LEAST * budgets.SHARE * 5e-3 >= 1e-3
    assert choice["each_s"] == pytest.approx(50e-6)


def test_what_the_start_cost_beyond_the_share_is_saved_at_the_states_that_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of steps of 100 ms 1.5 ms; the first state costs 100 ms, each of a window 1.4 ms: later states take what remains."""
    budget, used = budgets.Budget(), 100e-3
    monkeypatch.setattr(record, "cpu_s", lambda: used)
    budget.choose(0)
    every = []
    for n in range(1, 1025):
        if n <= budgets.WINDOW or not n % budget.every:
            used += 1.4e-3
            budget.add_cost("state", 1.4e-3)
        budget.add_step(0.1, 0.1)
        if budget.choose(n) is not None:
            every.append(budget.every)
    after_steps = dict(zip((1, 4, 16, 64, 256, 1024), every, strict=True))
    assert after_steps[16] >= 8 and after_steps[256] == 1, "once that is made up for"
    assert used <= budgets.SHARE * 0.1 * 1024


def _budget(step_s: float, full_s: float) -> budgets.Budget:
    budget = budgets.Budget()
    budget.every = budget.moments_every = 1 << 10
    budget.add_step(step_s, step_s)
    budget.add_cost("full", full_s)
    return budget


@pytest.mark.parametrize(
    ("full_s", "due"),
    [(1e-3, range(1, 17)), (2e-3, range(1, 17)), (2.1e-3, (1, 2, 4, 8, 16)), (4e-3, (1, 2, 4, 16)), (0.5, (1,))],
)
def test_in_the_window_after_a_save_states_are_recorded_as_often_as_they_are_cheap(full_s: float, due: Any) -> None:
    """Steps of 20 ms. All of it up to a tenth of a step; else at telling steps, within a twentieth of the window's time."""
    budget = _budget(20e-3, full_s)
    budget.begin_window(100)
    assert [n - 100 for n in range(100, 130) if budget.is_state_due(n)] == list(due)
    assert all(budget.is_moment_due(n) for n in range(100, 117)) and not budget.is_moment_due(117)


def test_in_a_window_a_step_that_waits_has_all_of_its_time() -> None:
    """3 ms of computation in a step of 30 ms: a job that copies its state and saves the copy later needs each of these states."""
    budget = _budget(30e-3, 1e-3)
    budget.add_step(30e-3, 3e-3)
    budget.add_step(30e-3, 3e-3)
    budget.begin_window(100)
    assert all(budget.is_state_due(n) for n in range(101, 117)) and not budget.is_state_due(117)


def test_live_objects_are_those_of_the_classes_and_of_all_that_derive_from_them() -> None:
    class Layer(torch.nn.Linear):
        pass

    layer, other = Layer(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    live = tensor_names.live_objects(torch.nn.Linear, torch.nn.Module, torch.optim.Optimizer)
    assert all(
        {id(layer), id(other)} <= {id(item) for item in live[kind]} for kind in (torch.nn.Linear, torch.nn.Module)
    )
    assert any(item is optimizer for item in live[torch.optim.Optimizer])
    assert all(isinstance(item, kind) for kind, items in live.items() for item in items)


def test_what_is_reported_of_one_save_at_two_steps_is_one_window() -> None:
    budget = _budget(20e-3, 4e-3)
    budget.begin_window(100)
    budget.begin_window(101)
    assert [n for n in range(100, 130) if budget.is_state_due(n)] == [101, 102, 104, 116]


def test_the_request_of_a_full_state_begins_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a save, a load or a hold: an attempt that resumes there does these steps again."""
    budget, groups = budgets.Budget(), steps.StepGroups()
    budget.moments_every, groups.n = 8, 100
    monkeypatch.setattr(states, "budget", budget)
    monkeypatch.setattr(steps, "groups", groups)
    states.States().request_full()
    assert all(budget.is_moment_due(n) for n in range(100, 101 + budgets.WINDOW))
    assert not budget.is_moment_due(102 + budgets.WINDOW)


def test_small_tensors_have_the_digest_of_each() -> None:
    torch.manual_seed(0)
    items = {f"layer{i}": torch.randn(i, 5).t() for i in range(1, 9)}
    items["half"] = torch.randn(70).bfloat16()
    groups = small_tensors.group(list(items.items()))
    assert digest.render(sum(group.digest() or 0 for group in groups)) == digest.total(items)[0]
    items["layer3"].add_(1)
    assert digest.render(sum(group.digest() or 0 for group in groups)) == digest.total(items)[0]


def test_a_small_tensor_that_changes_its_type_is_not_digested_as_before() -> None:
    parameter = nn.Parameter(torch.randn(8))
    (group,) = small_tensors.group([("a", parameter)])
    parameter.data = parameter.data.double()
    assert group.digest() is None

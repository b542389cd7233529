"""Losses, batches, times and states: recorded as they are, or absent."""

# mypy: disable-error-code="no-untyped-call,unused-ignore"
from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from orchestrator.rank.watcher import budget
from orchestrator.rank.watcher.measures import batches

from . import jobs

LOADER = DataLoader(TensorDataset(torch.arange(24.0).view(6, 4)), batch_size=2)


def test_each_step_has_its_batches_and_its_loss(tmp_path: Path) -> None:
    losses = tmp_path / "losses"

    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        values = []
        for (batch,) in LOADER:
            loss = model(batch).square().mean()
            values.append(float(loss).hex())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.write_text(" ".join(values))

    (lines,) = jobs.fork(tmp_path / "records", body)
    steps = jobs.of(lines, "step")
    assert [step["loss"] for step in steps] == losses.read_text().split()
    assert [step["batches"] for step in steps] == [[batches.fingerprint(batch)] for batch in LOADER]
    assert all(0 <= step["data_s"] <= step["end"] - step["start"] + 1e-6 for step in steps[1:])
    assert "comm_s" not in steps[0]
    assert jobs.of(lines, "state")[0]["batch"] == steps[0]["batches"][0]


def test_batches_that_a_thread_fetches_in_advance_belong_to_no_step(tmp_path: Path) -> None:
    """How many it has fetched when a step ends depends on the time: two executions of a step would have other batches."""

    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        fetched: list[Any] = []
        thread = threading.Thread(target=lambda: fetched.extend(LOADER))
        thread.start()
        thread.join()
        for (batch,) in fetched:
            model(batch).square().mean().backward()
            optimizer.step()

    (lines,) = jobs.fork(tmp_path, body)
    assert all("batches" not in step for step in jobs.of(lines, "step"))
    assert jobs.of(lines, "state")[0]["batch"] is None
    assert any(line["what"] == "data" for line in jobs.of(lines, "unknown"))


def test_the_loss_is_the_one_before_scaling_and_a_skipped_update_is_no_step(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.001, foreach=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean() * 0 + 0.5
            scaler.scale(loss * factor if factor == 1.0 else loss + model.weight.sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()

    (lines,) = jobs.fork(tmp_path, body)
    steps = jobs.of(lines, "step")
    assert len(steps) == 2
    assert steps[0]["loss"] == (0.5).hex()
    assert jobs.of(lines, "state")[0]["scaler"]["scale"] == (1024.0).hex()


def test_accumulated_losses_are_a_sum_with_their_number(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        for factor in (0.25, 0.5):
            (model(torch.ones(2, 4)).sum() * 0 + factor).backward()
        optimizer.step()

    (lines,) = jobs.fork(tmp_path, body)
    (step,) = jobs.of(lines, "step")
    assert (step["loss"], step["passes"]) == ((0.75).hex(), 2)


def test_the_first_state_shows_the_generators_rates_schedule_and_buffers(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        optimizer = torch.optim.Adam(model.parameters(), 0.5)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            schedule.step()

    (lines,) = jobs.fork(tmp_path, body)
    first, second, last = jobs.of(lines, "state")
    assert first["full"] and first["lr"] == [(0.5).hex()] and first["scheduler"] == [[0, 1]]
    assert int(first["buffers"], 16) != 0
    assert first["rng"]["python"] == second["rng"]["python"] and first["rng"]["torch"] != second["rng"]["torch"]
    assert last["optimizer"].keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert second["counter"] == 1


@pytest.mark.parametrize("seed", [0, 1])
def test_batches_of_equal_content_have_equal_hashes(seed: int) -> None:
    torch.manual_seed(seed)
    batch: dict[str, Any] = {"x": torch.randn(3, 5), "name": ["a", "b"], "y": (1, 2.5, None)}
    assert batches.fingerprint(batch) == batches.fingerprint({**batch, "x": batch["x"].clone()})
    changed = batch["x"].clone()
    changed[2, 4] += 1e-6
    assert batches.fingerprint(batch) != batches.fingerprint({**batch, "x": changed})
    assert batches.fingerprint(batch) != batches.fingerprint({**batch, "name": ["a", "c"]})


def test_updates_without_an_optimizer_are_unknown(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.grad, alpha=-0.1)  # type: ignore[arg-type]

    (lines,) = jobs.fork(tmp_path, body)
    assert jobs.of(lines, "step") == []
    assert [(line["what"], line["why"][:17]) for line in jobs.of(lines, "unknown")] == [("steps", "3 backward passes")]


def test_an_error_in_the_watcher_switches_it_off_and_the_script_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("inside")

    monkeypatch.setattr("orchestrator.rank.watcher.owner.Owner.__init__", fail)

    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    (lines,) = jobs.fork(tmp_path, body)
    (problem,) = jobs.of(lines, "problem")
    assert problem["where"] == "states" and "KeyError: 'inside'" in problem["error"]
    assert len(jobs.of(lines, "step")) == 3


def test_a_child_of_the_process_records_nothing(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        import os

        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if os.fork() == 0:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            os._exit(0)
        os.wait()

    (lines,) = jobs.fork(tmp_path, body)
    assert jobs.of(lines, "step") == []


def test_buffers_and_copies_of_the_model_are_in_the_states_of_the_window(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        average = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.Adam(model.parameters(), 0.5)
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            average.update_parameters(model)

    (lines,) = jobs.fork(tmp_path, body, CCBED_WATCH_EVERY="1")
    first, second = jobs.of(lines, "state")[:2]
    assert first["copies"].keys() == {"AveragedModel 0", "AveragedModel 0 inside"} and int(
        first["copies"]["AveragedModel 0"], 16
    )
    assert second["buffers"] != first["buffers"]


class _Cropped(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.arange(4.0) + number + torch.rand(1)


def test_the_numbers_of_samples_are_known_whatever_random_numbers_change_them(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for seed in (1, 2):
            torch.manual_seed(seed)
            for batch in DataLoader(_Cropped(), batch_size=4):
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()

    (lines,) = jobs.fork(tmp_path, body)
    steps = jobs.of(lines, "step")
    samples, batches = ([step[name][0] for step in steps] for name in ("samples", "batches"))
    assert samples[:2] == samples[2:] and samples[0] != samples[1]
    assert len({*batches}) == 4


class _Ema:
    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.slow
def test_averages_in_lists_and_dicts_are_in_the_states_after_a_save_and_a_momentum_is_not(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        kept, average = _Ema(model), [parameter.detach().clone() for parameter in model.parameters()]
        momentum = [torch.zeros_like(parameter) for parameter in model.parameters()]
        first = [parameter.detach().clone() + 1 for parameter in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for step in range(6):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            for own, parameter in zip(momentum, model.parameters(), strict=True):
                own.add_(parameter.grad if parameter.grad is not None else 0)
            optimizer.step()
            with torch.no_grad():
                for own, other, parameter in zip(average, kept.shadow.values(), model.parameters(), strict=True):
                    own.lerp_(parameter, 0.1)
                    other.lerp_(parameter, 0.2)
            if step == 2:
                snapshot = {
                    "model": {name: value.clone() for name, value in model.state_dict().items()},
                    "first": first,
                }
                torch.save(snapshot, tmp_path / "c.pt")

    (lines,) = jobs.fork(tmp_path, body)
    states = {line["n"]: line["copies"] for line in jobs.of(lines, "state") if line["full"]}
    again = [copies.pop("again", None) for copies in states.values()]
    assert again[0] == "" and {*again[4:]} == {None}
    assert again[3] in states[0].values()  # that of the first state, which no step changed
    assert (
        len(states[0]) == 5
    )  # of one state there is one digest in the order of the tensors, of a dict one by its names as well
    assert [key.partition(" named")[1] for key in sorted(states[3])].count(" named") == 1 and len(states[3]) == 3
    assert states[3].keys() == states[4].keys()
    assert not {*states[3].values()} & {*states[4].values()}


def test_a_teacher_inside_the_trained_module_is_a_copy_and_a_frozen_part_is_none(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.ModuleDict({"net": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "base": nn.Linear(4, 4)})
        model["teacher"] = copy.deepcopy(model["net"])
        optimizer = torch.optim.SGD(model["net"].parameters(), 0.5)
        for _ in range(2):
            model["net"](torch.randn(3, 4)).sum().backward()
            optimizer.step()

    (lines,) = jobs.fork(tmp_path, body, CCBED_WATCH_EVERY="1")
    assert jobs.of(lines, "state")[0]["copies"].keys() == {"Sequential 0"}


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_seed_that_a_loader_draws_for_workers_is_no_draw_of_the_script(tmp_path: Path, shuffle: bool) -> None:
    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            for batch in torch.utils.data.DataLoader(torch.ones(6, 4), batch_size=3, shuffle=shuffle):  # type: ignore[arg-type]
                model(batch).sum().backward()
                optimizer.step()

    (lines,) = jobs.fork(tmp_path, body, CCBED_WATCH_EVERY="1")
    prints = {state["rng"]["torch"] for state in jobs.of(lines, "state") if "rng" in state}
    assert (len(prints) > 1) == shuffle


@pytest.mark.parametrize(("cost_s", "states"), [(1e6, [0, 1, 5]), (0.0, [0, 1, 2, 3, 4, 5])])
def test_the_state_after_the_first_step_is_recorded_at_any_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cost_s: float, states: list[int]
) -> None:
    """It shows whether ranks that average their weights now and then are replicas of each other."""
    monkeypatch.setattr(budget.Budget, "_cost_s", lambda own, kind: cost_s)

    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    (lines,) = jobs.fork(tmp_path, body, CCBED_WATCH_EVERY="64")
    assert sorted({state["n"] for state in jobs.of(lines, "state")}) == states


def test_ddp_times_its_own_communication_and_a_step_has_the_time_of_its_passes(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        for _ in range(2):
            for (batch,) in LOADER:
                model(batch).square().mean().backward()
                optimizer.step()
        torch.distributed.destroy_process_group()

    lines, _ = jobs.fork(tmp_path, body, world=2)
    ddp = jobs.of(lines, "ddp")[-1]
    assert ddp["buckets"] == [40]  # 10 numbers of 4 bytes
    assert ddp["n"] == 4
    assert ddp["comm_s"] > 0 and ddp["backward_s"] > 0 and ddp["forward_s"] > 0
    for step in jobs.of(lines, "step")[1:]:
        assert 0 < step["compute_s"] <= step["end"] - step["start"] - step["data_s"] + 1e-5
    assert all("comm_s" not in step for step in jobs.of(lines, "step"))  # DDP's collectives are not called from Python


def test_without_a_data_loader_the_time_of_the_passes_is_not_measured(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    (lines,) = jobs.fork(tmp_path, body)
    assert all("compute_s" not in step and "data_s" not in step for step in jobs.of(lines, "step"))
    assert not jobs.of(lines, "ddp")


@pytest.mark.parametrize("how", ["no gradients", "mode of the model"])
def test_the_batches_of_an_evaluation_belong_to_no_step(tmp_path: Path, how: str) -> None:
    """An evaluation within an epoch, as HF Trainer, Accelerate and plain loops make it."""

    def body(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train = DataLoader(TensorDataset(torch.arange(24.0).view(6, 4)))
        held_out = DataLoader(TensorDataset(-torch.arange(12.0).view(3, 4)))
        for n, (batch,) in enumerate(train, 1):
            model(batch).sum().backward()
            optimizer.step()
            if n % 2 == 0:
                model.train(how != "mode of the model")
                with torch.set_grad_enabled(how != "no gradients"):
                    for (other,) in held_out:
                        model(other)
                model.train()

    (lines,) = jobs.fork(tmp_path, body)
    batches = [line["batches"] for line in jobs.of(lines, "step")]
    assert [len(own) for own in batches] == [1] * 6 and len({own[0] for own in batches}) == 6


def test_without_a_loader_the_inputs_of_the_wrapped_model_are_hashed_outermost_and_with_gradients(
    tmp_path: Path,
) -> None:
    def body(rank: int) -> None:
        torch.distributed.init_process_group("gloo", rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for n in (1, 2, 1):
            model(torch.full((2, 4), float(n))).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model(torch.zeros(2, 4))

    (lines,) = jobs.fork(tmp_path, body)
    first, second, third = (line["inputs"] for line in jobs.of(lines, "step"))
    assert len(first) == 1 and first == third != second

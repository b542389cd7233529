"""All ranks know when one of them saves; a restarted reference gets the random states of that moment, before it draws."""

# mypy: disable-error-code="no-untyped-call,unused-ignore"
from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader

from orchestrator.rank.watcher.checkpoints import generator_states
from orchestrator.rank.watcher.checkpoints.save_moments import PART, VARIABLE, WHOLE, Restore, SaveMoments

from . import jobs

SAVED, STEPS = 4, 7


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SaveMoments, SaveMoments]:
    monkeypatch.setenv("CCBED_CHECKPOINTS", str(tmp_path))
    monkeypatch.setenv("CCBED_EPOCH", "1")
    return SaveMoments(), SaveMoments()


def test_a_save_of_one_rank_is_new_to_each_once(ranks: tuple[SaveMoments, SaveMoments]) -> None:
    saving, other = ranks
    assert not other.is_new()
    saving.announce()
    assert (saving.is_new(), other.is_new()) == (True, True)
    assert (saving.is_new(), other.is_new()) == (False, False)
    saving.announce()
    assert other.is_new()


def test_a_process_that_begins_later_does_not_take_earlier_saves_for_new_ones(
    ranks: tuple[SaveMoments, SaveMoments], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks[0].announce()
    assert not SaveMoments().is_new()


def test_without_a_directory_or_a_run_nothing_is_written_and_nothing_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCBED_CHECKPOINTS", str(tmp_path / "absent"))
    monkeypatch.setenv("CCBED_EPOCH", "0")
    absent = SaveMoments()
    monkeypatch.delenv("CCBED_EPOCH")
    outside = SaveMoments()
    for moments in (absent, outside):
        moments.announce()
        assert not moments.is_new()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("byte", "is_kept"), [(WHOLE, True), (PART, False)])
def test_the_moments_of_a_step_are_kept_unless_it_was_saved_in_its_middle(
    ranks: tuple[SaveMoments, SaveMoments], tmp_path: Path, byte: bytes, is_kept: bool
) -> None:
    restore = Restore(tmp_path / "random.json")
    for last in (WHOLE, byte):
        restore.end_step()
        ranks[0].announce(last)
        restore.keep(1, None)
    assert (tmp_path / "random.json").exists() == is_kept


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    """Items that are drawn as they are read."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(4) + index


def train(folder: Path, *, begins: bool) -> None:
    """Steps with drawn noise, dropout, shuffled and augmented data; the checkpoint has no random states."""
    distributed.init_process_group("gloo")
    random.seed(int(begins))
    np.random.seed(int(begins))
    torch.manual_seed(int(begins))
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    first = 0 if begins else torch.load(folder / "saved.pt")["n"]
    step_of, optimizer = nn.parallel.DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.0)
    drawn: dict[int, Any] = {}
    for n in range(first, STEPS):
        noise = [random.random(), float(np.random.rand()), torch.rand(1).item()]
        batch = next(iter(DataLoader(Noisy(), batch_size=2, shuffle=True)))
        output = step_of(batch)
        output.sum().backward()
        optimizer.step()
        drawn[n] = [noise, batch.tolist(), (output == 0).tolist()]
        if n + 1 == SAVED:
            torch.save({"n": n + 1}, folder / "saved.pt")
    (folder / f"drawn-{begins}").write_text(json.dumps(drawn))


def draws(folder: Path, **environment: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the steps after the save drew at first, and in a process that resumed there."""
    for attempt in (0, 1):
        jobs.fork(
            folder / f"records-{attempt}", lambda rank, begins=not attempt: train(folder, begins=begins), 1,  # type: ignore[misc]
            CCBED_CHECKPOINTS=str(folder), CCBED_EPOCH=str(attempt), **environment,
        )  # fmt: skip
    before, after = (json.loads((folder / f"drawn-{begins}").read_text()) for begins in (True, False))
    return {n: drawn for n, drawn in before.items() if n in after}, after


@pytest.mark.slow
def test_all_that_a_restart_draws_is_as_after_the_save(tmp_path: Path) -> None:
    before, after = draws(tmp_path, **{VARIABLE: "1"})
    assert [*after] == ["4", "5", "6"]
    assert after == before


@pytest.mark.slow
def test_any_other_run_draws_as_it_would(tmp_path: Path) -> None:
    before, after = draws(tmp_path)
    assert all(after[n] != before[n] for n in after)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("random")]


def test_states_that_were_json_are_those_that_were_read() -> None:
    def draw() -> list[float]:
        return [random.gauss(0, 1), float(np.random.randn()), torch.randn(1).item()]

    draw()
    states = json.loads(json.dumps(generator_states.read(), default=lambda state: state.tolist()))
    first = [draw() for _ in range(3)]
    generator_states.write(states)
    assert [draw() for _ in range(3)] == first

"""What every workload offers to the orchestrator, and what the two of this repository refuse."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from orchestrator.rank.runtime import even_shares
from orchestrator.rank.user import ccbed_events
from orchestrator.workloads import script, train_dp


def test_three_epochs_of_the_digits_are_sixty_steps() -> None:
    assert train_dp.last_step(train_dp.Params()) == 60


def test_a_last_incomplete_batch_is_a_step() -> None:
    assert train_dp.last_step(train_dp.Params(batch=100, epochs=1)) == 13


def test_the_steps_follow_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + (60_000).to_bytes(4, "big") + bytes(60_000))
    assert train_dp.last_step(train_dp.Params(batch=8192, epochs=1), str(tmp_path)) == 8
    assert train_dp.last_step(train_dp.Params(dataset="digits"), str(tmp_path)) == 60
    assert train_dp.last_step(train_dp.Params(), str(tmp_path / "nothing")) is None


def test_good_values_have_no_problems() -> None:
    assert train_dp.check(train_dp.Params()) == []
    assert train_dp.check(train_dp.Params(algorithm="library", noise=0)) == []
    assert script.check(script.Params(file="a.py", step_regex=r"step (\d+)")) == []


def test_all_mistakes_are_told_at_once() -> None:
    params = train_dp.Params(
        model="gpt", dataset="cats", algorithm="rong", batch=0, epochs=-1, checkpoint_every=0, keep=0, lr=0.0, noise=-1
    )
    assert train_dp.check(params) == [
        "batch: must be >= 1 (got 0)",
        "epochs: must be >= 1 (got -1)",
        "checkpoint_every: must be >= 1 (got 0)",
        "keep: must be >= 1 (got 0)",
        "noise: must be >= 0 (got -1)",
        "lr: must be > 0 (got 0.0)",
        "dataset: must be one of auto, digits, idx (got 'cats')",
        "model: must be one of mnist-mlp (got 'gpt')",
        "algorithm: must be an all-reduce of algorithms/ or library (got 'rong')",
    ]
    assert len(script.check(script.Params(step_regex="(", exit_timeout_s=0))) == 3


@pytest.mark.parametrize("total", [64, 7, 3, 0, 242_762])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 32])
def test_shares_are_contiguous_complete_and_differ_by_one_at_most(total: int, parts: int) -> None:
    bounds = even_shares.bounds(total, parts)
    sizes = [stop - start for start, stop in bounds]
    assert bounds[0][0] == 0 and bounds[-1][1] == total and len(bounds) == parts
    assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))
    assert max(sizes) - min(sizes) <= 1


def test_a_script_reports_steps_in_the_format_of_the_step_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCBED_EVENTS", str(tmp_path / "steps"))
    ccbed_events.step(3, loss=1.5)
    line = json.loads((tmp_path / "steps").read_text())
    assert (line["step"], line["loss"], line["digest"]) == (3, (1.5).hex(), None)
    monkeypatch.delenv("CCBED_EVENTS")
    ccbed_events.step(4)
    assert len((tmp_path / "steps").read_text().splitlines()) == 1

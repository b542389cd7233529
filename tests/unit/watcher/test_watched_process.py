"""The watcher in a Python process of a job: what it records, and that the script notices nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import jobs

STEPS = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""


def test_a_process_with_torch_records_its_steps_and_its_end(tmp_path: Path) -> None:
    watched = jobs.run(tmp_path, STEPS)
    assert (watched.code, watched.output) == (0, "")
    assert [line["k"] for line in watched.lines if line["k"] in ("begin", "torch", "end")] == ["begin", "torch", "end"]
    assert watched.lines[0]["via"] == "site"
    assert [line["n"] for line in watched.of("step")] == [1, 2, 3]
    assert watched.of("problem") == []


def test_a_process_without_a_rank_or_without_torch_records_nothing(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, STEPS.replace("range(3)", "range(0)"), RANK="").lines == []
    assert jobs.run(tmp_path, "print('no torch')").lines == []


SPAWNED = """
import multiprocessing
import torch
def save(path):
    torch.save(torch.ones(1), path)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=save, args=("sample.pt",))
    process.start()
    process.join()
    assert process.exitcode == 0
"""


def test_a_helper_that_the_rank_spawns_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    watched = jobs.run(tmp_path, SPAWNED)
    assert (watched.code, len(watched.of("begin")), watched.of("save")) == (0, 1, [])
    assert (tmp_path / "sample.pt").exists()

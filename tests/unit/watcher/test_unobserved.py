"""What the watcher cannot observe is reported to the bed while the job runs, once, and not only in the record."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from orchestrator.rank.watcher import owner, record, states, steps
from orchestrator.rank.watcher.checkpoints import saves

from .observed import Observed, observed

__all__ = ["observed"]


@pytest.fixture
def reports(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(what, why) of each report."""
    reports: list[tuple[str, str]] = []

    def notify(name: str, **value: Any) -> None:
        if name == "rank.unobserved":
            reports.append((value["what"], value["why"]))

    assert record._recorder is not None
    monkeypatch.setattr(record._recorder, "_notify", notify)
    return reports


def test_what_is_unknown_is_reported_once_and_what_is_no_part_of_the_state_is_not(
    observed: Observed, reports: list[tuple[str, str]]
) -> None:
    for _ in range(2):
        record.unknown("steps", "a CUDA graph")
        record.unknown("loss", "on a device")
        record.unknown("files", "no inotify")
        record.report("batches", ValueError("no such field"))
    assert reports == [
        ("steps", "a CUDA graph"),
        ("batches", "an error of the watcher, ValueError: no such field"),
    ]
    assert [line["what"] for line in observed.of("unknown")] == ["steps", "loss", "files"]


def test_reasons_that_differ_each_time_are_reported_a_few_times(
    observed: Observed, reports: list[tuple[str, str]]
) -> None:
    for number in range(100):
        record.unknown("contents", f"AttributeError: <Job object at {number:#x}>")
    record.unknown("steps", "a CUDA graph")
    assert [what for what, _ in reports] == ["contents"] * record.MOST + ["steps"]
    assert len(observed.of("unknown")) == 101


def test_a_generator_of_a_library_that_is_not_read_is_reported_with_the_state(
    reports: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(3, 2)
    known = owner.Owner(torch.optim.SGD(model.parameters(), 0.1))
    states.States()._rest(known)
    assert reports == []
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    states.States()._rest(known)
    states.States()._rest(known)
    assert reports == [("RNG", "of cupy: its state is not read, and cannot be put back")]


class Blocks:
    """What an optimizer of the user keeps beside tensors."""


@pytest.mark.parametrize(
    ("kept", "reported"),
    [
        (Blocks(), [("optimizer", "its pre: a Blocks is not read")]),
        (torch.zeros(2, device="meta"), [("optimizer", "its pre: a tensor without memory (meta)")]),
        ([torch.zeros(2)], []),
        (None, []),
        (torch.zeros(2), []),
    ],
)
def test_an_optimizers_state_that_cannot_be_read_is_reported(
    reports: list[tuple[str, str]], kept: Any, reported: list[tuple[str, str]]
) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    known = owner.Owner(optimizer)
    for parameter in model.parameters():
        optimizer.state[parameter]["pre"] = kept
    known.optimizer_states()
    assert reports == reported


def test_saves_without_any_step_are_reported_but_not_of_a_job_that_steps_or_has_just_begun(
    observed: Observed, reports: list[tuple[str, str]]
) -> None:
    model = torch.nn.Linear(4, 2)
    steps.groups.passes = saves.UNSEEN - 1
    torch.save(model.state_dict(), observed.folder / "a.pt")
    assert reports == []
    steps.groups.passes = saves.UNSEEN
    torch.save(model.state_dict(), observed.folder / "b.pt")
    assert reports == [("steps", f"{saves.UNSEEN} backward passes and no step of an optimizer of torch yet")]
    assert observed.of("unknown") == []  # a step may follow
    steps.groups.n, steps.groups.passes = 1, 200
    torch.save(model.state_dict(), observed.folder / "c.pt")
    assert len(reports) == 1

"""The watcher of saves and loads inside the process of a test: its record, and functions of torch that are restored after it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp

from orchestrator.rank.watcher import record, steps
from orchestrator.rank.watcher.checkpoints import loads, observed_calls, saved_contents, saves

from . import jobs


class Observed:
    """The record of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Lines of one kind, after all hashes are known."""
        assert saves.hashes.drain(30)
        return [line for line in jobs.read(self.folder) if line["k"] == kind]

    def merged(self, kind: str) -> dict[str, Any]:
        """The fields of all lines of one kind, of which there is one id."""
        lines = self.of(kind)
        assert len({line.get("id") for line in lines}) == 1, lines
        return {key: value for line in lines for key, value in line.items()}

    def step(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        """One training step, as the hooks report it."""
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        steps.groups.n += 1
        saves.commit_waiting(steps.groups.n)


@pytest.fixture
def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Observed]:
    """Saves and loads of this test are recorded."""
    folder = tmp_path / "records"
    folder.mkdir()
    install_in_test(folder, monkeypatch)
    yield Observed(folder)
    assert saves.hashes.drain(30)


def install_in_test(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the watcher of checkpoints; ``monkeypatch`` restores every function that it wraps."""
    wrapped = [
        (torch, "save"), (torch, "load"), (torch.serialization, "save"), (torch.serialization, "load"),
        (torch.serialization, "_save"), (os, "rename"), (os, "replace"), (os, "symlink"), (shutil, "move"),
    ]  # fmt: skip
    modules = [dcp, dcp.state_dict_saver, dcp.state_dict_loader]
    names = ("save", "async_save", "_stateful_to_state_dict", "_save_state_dict", "load", "_load_state_dict")
    wrapped += [(module, name) for module in modules for name in names if hasattr(module, name)]
    for module, name in wrapped:
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(record, "_recorder", record.Recorder(str(folder)))
    monkeypatch.setattr(steps, "groups", steps.StepGroups())
    monkeypatch.setattr(saves, "_registry", saves._Registry())
    monkeypatch.setattr(loads, "_progress", loads._Progress())
    monkeypatch.setattr(saved_contents, "owner", saved_contents.OwnerState())
    observed_calls.install(torch)

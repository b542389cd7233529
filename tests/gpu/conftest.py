"""Fixtures of the tests on a GPU: the report, what a rehearsal leaves out, and beds whose ranks use the GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from orchestrator import plugins
from orchestrator.store import bed_files
from tests.e2e.conftest import Bed, ccbed

from . import device
from .report import Report

INVENTORY = """all:
  hosts: {{localhost: {{ansible_connection: local}}}}
  vars: {{ccbed_bed: {name}, ccbed_nodes: {nodes}{gpus}}}
"""
_REPORT = pytest.StashKey[Report]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the report. Without a GPU nothing is collected, and nothing passes."""
    if not device.IS_REHEARSAL and not torch.cuda.is_available():
        pytest.exit("tests/gpu: torch sees no NVIDIA GPU; see make test-gpu", returncode=3)
    folder = os.environ.get("CCBED_GPU_OUT")
    if folder:
        report = Report(Path(folder) / "report.json")
        config.stash[_REPORT] = report
        config.pluginmanager.register(report)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, in a rehearsal, the tests whose subject is CUDA, and list them in the report."""
    if not device.IS_REHEARSAL:
        return
    outside = [item for item in items if item.get_closest_marker("needs_cuda")]
    items[:] = [item for item in items if item not in outside]
    config.hook.pytest_deselected(items=outside)
    if report := config.stash.get(_REPORT, None):
        report.leave_out(item.nodeid for item in outside)


@pytest.fixture(autouse=True)
def _free_memory() -> Iterator[None]:
    """What this process has allocated is free for the ranks of the next test."""
    yield
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where files stay after the tests, if a place was named."""
    return Path(os.environ.get("CCBED_GPU_OUT", tmp_path))


def brought_up(folder: Path, name: str, nodes: int, *, has_gpus: bool) -> Iterator[Bed]:
    """A bed of processes. ``has_gpus``: each node has a GPU of its own, so that ranks use NCCL."""
    gpus = ", ccbed_gpus: 1" if has_gpus and not device.IS_REHEARSAL else ""
    inventory, state = folder / f"{name}.yml", folder / "state"
    inventory.write_text(INVENTORY.format(name=name, nodes=nodes, gpus=gpus))
    code, output = ccbed(state, "up", str(inventory))
    assert code == 0, output
    spec = bed_files.read(state, name)
    assert spec is not None
    (folder / "runs").mkdir()
    yield Bed(state=state, runs=folder / "runs", spec=spec, catalogue=plugins.discover(()))
    code, output = ccbed(state, "down", name, "--force")
    assert code == 0, output


@pytest.fixture(scope="session")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """One node with one GPU: its rank uses NCCL."""
    yield from brought_up(tmp_path_factory.mktemp("one"), "gpu", 1, has_gpus=True)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Two nodes on one GPU: NCCL refuses a GPU twice, so the ranks use gloo."""
    yield from brought_up(tmp_path_factory.mktemp("two"), "gpu-shared", 2, has_gpus=False)

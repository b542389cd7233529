"""The probes of a node's hardware on a GPU: each figure exists, is above zero, and not above what the hardware can reach."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from orchestrator.model.events import ProbeFigure
from orchestrator.rank.node_probe import probe_results, probe_run
from orchestrator.rank.node_probe.probe_results import Node
from orchestrator.rank.probes import copies, gemm, gpu_health, memory, sdc, versions
from orchestrator.workloads import node_probe

from . import device

pytestmark = pytest.mark.gpu
Figure = Callable[[str, object], None]
#: Probe -> the figures that a GPU must give.
EXPECTED = {
    "gemm": {f"gemm {dtype}" for dtype in node_probe.DTYPES},
    "memory": {"memory device copy", "memory device triad"},
    "copies": {"copy to device", "copy to host"},
    "gpu-health": {"temperature gpu0", "power gpu0"},
    "versions": set(),
}
MODULES = {
    "gemm": gemm, "memory": memory, "copies": copies, "gpu-health": gpu_health, "versions": versions,
}  # fmt: skip
#: Ceilings are of data sheets, at the greatest clock: a measured value may exceed them by rounding only.
MARGIN = 1.05


def node(folder: Path) -> Node:
    short = (
        {"repeats": 2, "repeat_s": 0.002, "memory_mib": 1} if device.IS_REHEARSAL else {"repeats": 3, "repeat_s": 0.2}
    )
    return Node(
        params=node_probe.Params(**short), rank=0, world=1, local_rank=0,  # type: ignore[arg-type]
        device=torch.device("cpu") if device.IS_REHEARSAL else torch.device("cuda", 0), interface="lo",
        directory=folder, shared=folder, sharers=(0,), load_nvml=probe_run.load_nvml,
    )  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_a_probe_measures(name: str, tmp_path: Path, record_property: Figure) -> None:
    done = probe_results.collect(node(tmp_path), name, MODULES[name].measure(node(tmp_path)), lambda: 0.0)
    assert done.error is None
    figures = {figure.name: figure for figure in done.figures or ()}
    for figure in figures.values():
        record_property(figure.name, {"unit": figure.unit, "values": figure.values, "ceiling": figure.ceiling})
    record_property("facts", done.facts)
    record_property("missing", done.missing)
    record_property("problems", done.problems)
    assert device.IS_REHEARSAL or EXPECTED[name] <= figures.keys(), done.missing
    assert [figure.name for figure in figures.values() if not _is_possible(figure)] == []


def _is_possible(figure: ProbeFigure) -> bool:
    if figure.unit not in ("TFLOP/s", "GB/s"):
        return True
    most = MARGIN * float(figure.ceiling or "inf")
    return all(0 < float(value) <= most for value in figure.values)


def test_the_same_computation_gives_the_same_bits(tmp_path: Path) -> None:
    done = probe_results.collect(node(tmp_path), "sdc", sdc.measure(node(tmp_path)), lambda: 0.0)
    digests: dict[str, set[str]] = {}
    for bits in done.bits or ():
        digests.setdefault(bits.software, set()).add(bits.digest)
    assert digests
    assert {len(different) for different in digests.values()} == {1}

"""Rate of copies between host and GPU, both directions, from and to pinned memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...model.events import ProbeFigure
from ..node_probe import probe_results
from ..node_probe.probe_results import NO_GPU, Fact, Missing, Node, Result

PER_RANK = True
MIB = 256


def measure(node: Node) -> Iterator[Result]:
    """GB/s. Ceiling: the PCIe link of the GPU, at its greatest generation and width."""
    if not node.has_gpu:
        yield Missing(name="copies", reason=NO_GPU)
        return
    host = torch.ones(MIB << 20, dtype=torch.uint8).pin_memory()
    device = torch.ones(MIB << 20, dtype=torch.uint8, device=node.device)
    ceiling, reason = probe_results.ceiling_by_nvml(node, _ceiling)
    if ceiling is None:
        yield Missing(name="ceiling of copies", reason=reason)
    yield Fact(name="copies", text=f"{MIB} MiB, pinned")
    works = {"to device": (device, host), "to host": (host, device)}
    for name, (target, source) in works.items():
        values = probe_results.rates(node, lambda: target.copy_(source, non_blocking=True), (MIB << 20) / 1e9)  # noqa: B023
        yield ProbeFigure(name=f"copy {name}", unit="GB/s", better="higher", values=values, ceiling=ceiling)


def _ceiling(nvml: Any, gpu: Any) -> tuple[float | None, str]:
    generation, lanes = nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu), nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)
    return probe_results.pcie_gb_s(generation, lanes), f"PCIe generation {generation} x{lanes} has no known rate"

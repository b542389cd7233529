"""Rate of copies between host and GPU, both directions, from and to pinned memory."""

from __future__ import annotations

from collections.abc import Iterator

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
    ceiling, reason = _ceiling(node)
    if ceiling is None:
        yield Missing(name="ceiling of copies", reason=reason)
    yield Fact(name="copies", text=f"{MIB} MiB, pinned")
    works = {"to device": (device, host), "to host": (host, device)}
    for name, (target, source) in works.items():
        values = probe_results.rates(node, lambda: target.copy_(source, non_blocking=True), (MIB << 20) / 1e9)  # noqa: B023
        yield ProbeFigure(name=f"copy {name}", unit="GB/s", better="higher", values=values, ceiling=ceiling)


def _ceiling(node: Node) -> tuple[float | None, str]:
    try:
        nvml = node.load_nvml()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(node.device).uuid}")
        generation, lanes = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
        return probe_results.pcie_gb_s(generation, lanes), f"PCIe generation {generation} x{lanes} has no known rate"
    except OSError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 NVMLError is known only where pynvml is installed
        return None, f"NVML: {error}"

"""Silent data corruption: the same seeded computation on every node, SHA-256 of its bits; equal bits are no proof of health."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator

import torch

from ...model.events import ComputedBits
from ..node_probe import probe_results
from ..node_probe.probe_results import Node, Result
from . import gemm

PER_RANK = True
#: Rows of the matrices, and products of a computation.
CPU_ROWS, CPU_PRODUCTS, GPU_ROWS, GPU_PRODUCTS = 384, 24, 4096, 200
SEED = 20260101


def measure(node: Node) -> Iterator[Result]:
    """A chain of matrix products and sines, in which an error of one bit spreads. The same for every repeat and node."""
    device, rows, products = gemm.device_name(node), CPU_ROWS, CPU_PRODUCTS
    if node.has_gpu:
        rows, products = GPU_ROWS, GPU_PRODUCTS
    for dtype in ("float32", "float16", "bfloat16", "float64") if node.has_gpu else ("float32", "float64"):
        software = f"torch {torch.__version__}, {_library(node)}, {dtype} {rows} x {rows}"
        for _ in range(node.params.repeats):
            begin = time.perf_counter()
            digest = compute(node.device, getattr(torch, dtype), rows, products)
            probe_results.settle(node)
            yield ComputedBits(
                device=device, software=software, digest=digest, seconds=round(time.perf_counter() - begin, 6)
            )  # fmt: skip


def compute(device: torch.device, dtype: torch.dtype, rows: int, products: int) -> str:
    """SHA-256 of the result. Inputs are drawn on the CPU, so that they are equal on every device."""
    generator = torch.Generator().manual_seed(SEED)
    state, weights = (torch.randn(rows, rows, generator=generator).to(device, dtype) for _ in range(2))
    for _ in range(products):
        state = torch.sin(state @ weights)
    return hashlib.sha256(state.cpu().view(torch.uint8).numpy().tobytes()).hexdigest()


def _library(node: Node) -> str:
    """Name what the last bits depend on, besides the device."""
    if node.has_gpu:
        return f"CUDA {torch.version.cuda}"
    return f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"

"""Rate of matrix products by dtype, of the rank's GPU, else of its CPU threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...model.events import ProbeFigure
from ...workloads.node_probe import DTYPES, ON_CPU
from ..node_probe import probe_results
from ..node_probe.probe_results import Fact, Missing, Node, Result

PER_RANK = True
#: Rows of the square matrices: doubled until a product takes so many seconds.
LEAST, MOST, PRODUCT_S = 128, 16384, 0.02
_CPU_DEFAULT = ("float32", "float64")


def measure(node: Node) -> Iterator[Result]:
    """A figure for every dtype: ``gemm float32``, in TFLOP/s, 2 n^3 operations per product."""
    yield Fact(name="gemm device", text=device_name(node))
    if not node.has_gpu:
        yield Fact(name="gemm threads", text=str(torch.get_num_threads()))
    for dtype in node.params.dtypes or (DTYPES if node.has_gpu else _CPU_DEFAULT):
        if not node.has_gpu and dtype not in ON_CPU:
            yield Missing(name=f"gemm {dtype}", reason="needs a GPU")
            continue
        with _tensor_cores(dtype == "tf32"):
            yield from _rate(node, dtype)


def device_name(node: Node) -> str:
    return torch.cuda.get_device_name(node.device) if node.has_gpu else cpu_model(node)


def cpu_model(node: Node) -> str:
    with open(node.system / "proc/cpuinfo") as file:
        names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
        return next(names, "unknown CPU")


def _rate(node: Node, dtype: str) -> Iterator[Result]:
    kind = getattr(torch, "float32" if dtype == "tf32" else dtype)
    rows = _rows(node, kind)
    left, right, product = (torch.ones(rows, rows, dtype=kind, device=node.device) for _ in range(3))
    flops = 2 * rows**3 / 1e12
    yield Fact(name=f"gemm {dtype}", text=f"{rows} x {rows}")
    yield ProbeFigure(
        name=f"gemm {dtype}", unit="TFLOP/s", better="higher",
        values=probe_results.rates(node, lambda: torch.mm(left, right, out=product), flops), ceiling=_ceiling(node, dtype),
    )  # fmt: skip


def _rows(node: Node, kind: torch.dtype) -> int:
    """Doubled until a product takes long enough."""
    rows = LEAST
    while rows < MOST:
        matrix = torch.ones(rows, rows, dtype=kind, device=node.device)
        torch.mm(matrix, matrix)
        if min(probe_results.seconds(node, lambda: torch.mm(matrix, matrix), 1) for _ in range(2)) >= PRODUCT_S / 4:  # noqa: B023
            break
        rows *= 2
    return rows


def _ceiling(node: Node, dtype: str) -> float | None:
    if node.has_gpu:
        return probe_results.gpu_tflops(torch.cuda.get_device_name(node.device), dtype)
    return probe_results.cpu_tflops(node.system, torch.get_num_threads(), dtype)


@contextmanager
def _tensor_cores(allowed: bool) -> Iterator[None]:
    """Allow products of float32 to use tensor cores (tf32), or forbid it, within the block."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before

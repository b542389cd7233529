"""Versions of what figures depend on: torch, Python, kernel, C library, CUDA, NCCL, GPU driver, network driver, microcode."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from ..node_probe.probe_results import NO_GPU, Fact, Missing, Node, Result


def measure(node: Node) -> Iterator[Result]:
    yield Fact(name="torch", text=torch.__version__)
    yield Fact(name="python", text=platform.python_version())
    yield Fact(name="kernel", text=os.uname().release)
    yield Fact(name="C library", text=" ".join(platform.libc_ver()).strip() or "unknown")
    yield from _gpu(node)
    yield from _network(node)
    yield from _microcode(node.system)


def _gpu(node: Node) -> Iterator[Result]:
    if not node.has_gpu:
        yield Missing(name="CUDA", reason=NO_GPU)
        return
    yield Fact(name="CUDA", text=str(torch.version.cuda))
    yield Fact(name="NCCL", text=".".join(str(part) for part in torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    try:
        nvml = node.load_nvml()
        yield Fact(name="driver", text=str(nvml.nvmlSystemGetDriverVersion()))
    except OSError as error:
        yield Missing(name="driver", reason=str(error))


def _network(node: Node) -> Iterator[Result]:
    link = node.system / "sys/class/net" / node.interface / "device/driver"
    if link.exists():
        yield Fact(name="network driver", text=link.resolve().name)
    else:
        yield Missing(name="network driver", reason=f"{node.interface} is no physical interface")


def _microcode(system: Path) -> Iterator[Result]:
    try:
        with open(system / "proc/cpuinfo") as file:
            text = next((line.partition(":")[2].strip() for line in file if line.startswith("microcode")), "")
    except OSError:
        text = ""
    yield Fact(name="microcode", text=text) if text else Missing(name="microcode", reason="the kernel does not show it")

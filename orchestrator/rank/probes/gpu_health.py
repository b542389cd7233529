"""Health of the node's GPUs by NVML: memory errors, retired pages and rows, throttling, PCIe, NVLink, power, temperature; dcgmi."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from ...model.events import ProbeFigure
from ..node_probe.probe_results import Fact, Missing, Node, Problem, Result

#: Reasons of slow clocks that no user has chosen: those of pynvml by name.
THROTTLES = {
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "hardware power brake",
    "nvmlClocksEventReasonSwThermalSlowdown": "software thermal slowdown",
}
#: Seconds of ``dcgmi diag -r 1``, which takes a few.
DIAGNOSIS_S = 120.0
_NOT_READABLE = "XIDs are in the log of the host's kernel, which nodes cannot read"


def measure(node: Node) -> Iterator[Result]:
    """All GPUs that the node sees, read by its first rank. What the driver does not support is missing, never 0."""
    try:
        nvml = node.load_nvml()
        count = nvml.nvmlDeviceGetCount()
    except OSError as error:
        yield Missing(name="gpu-health", reason=str(error))
        return
    if not count:
        yield Missing(name="gpu-health", reason="NVML sees no GPU on the node")
        return
    yield Missing(name="gpu XID", reason=_NOT_READABLE)
    for index in range(count):
        yield from _gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index), f"gpu{index}")
    if not node.is_quick:
        yield from diagnose()


def _gpu(nvml: Any, gpu: Any, label: str) -> Iterator[Result]:
    """Read one GPU. Counts are those since the driver was loaded, except of retired pages and rows, which last."""
    yield Fact(name=label, text=f"{nvml.nvmlDeviceGetName(gpu)}, {nvml.nvmlDeviceGetUUID(gpu)}")
    yield from _errors(nvml, gpu, label)
    yield from _retired(nvml, gpu, label)
    yield from _throttles(nvml, gpu, label)
    yield from _pcie(nvml, gpu, label)
    yield from _nvlinks(nvml, gpu, label)
    watts = _Reading(f"power {label}", "W", lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000)
    heat = _Reading(f"temperature {label}", "C", lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))
    for reading in (watts, heat):
        yield reading.result(nvml)


class _Reading:
    """A value of NVML that is a figure, or missing with the driver's reason."""

    def __init__(self, name: str, unit: str, read: Callable[[], float], better: str = "lower") -> None:
        self._name, self._unit, self._read, self._better = name, unit, read, better

    def result(self, nvml: Any) -> Result:
        try:
            value = float(self._read())
        except nvml.NVMLError as error:
            return Missing(name=self._name, reason=f"NVML: {error}")
        return ProbeFigure(name=self._name, unit=self._unit, better=self._better, values=(value,))


def _errors(nvml: Any, gpu: Any, label: str) -> Iterator[Result]:
    kinds = {"corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, "uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED}
    for kind, number in kinds.items():
        read = lambda number=number: nvml.nvmlDeviceGetTotalEccErrors(gpu, number, nvml.NVML_VOLATILE_ECC)  # noqa: E731
        result = _Reading(f"ecc {kind} {label}", "count", read).result(nvml)
        yield result
        if kind == "uncorrected" and isinstance(result, ProbeFigure) and float(result.values[0]) > 0:
            yield Problem(
                text=f"{label}: {float(result.values[0]):g} uncorrected memory errors since the driver was loaded"
            )


def _retired(nvml: Any, gpu: Any, label: str) -> Iterator[Result]:
    """Rows that were remapped (since Ampere), or pages that were retired (before)."""
    try:
        corrected, uncorrected, pending, failure = nvml.nvmlDeviceGetRemappedRows(gpu)
    except nvml.NVMLError as error:
        yield Missing(name=f"remapped rows {label}", reason=f"NVML: {error}")
        read = lambda: len(  # noqa: E731
            nvml.nvmlDeviceGetRetiredPages(gpu, nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
        )
        yield _Reading(f"retired pages {label}", "count", read).result(nvml)
        return
    yield ProbeFigure(
        name=f"remapped rows {label}", unit="count", better="lower", values=(float(corrected + uncorrected),)
    )
    if failure:
        yield Problem(text=f"{label}: remapping a row of its memory failed")
    if pending:
        yield Problem(text=f"{label}: a row of its memory waits to be remapped (reset the GPU)")


def _throttles(nvml: Any, gpu: Any, label: str) -> Iterator[Result]:
    try:
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except nvml.NVMLError as error:
        yield Missing(name=f"throttle {label}", reason=f"NVML: {error}")
        return
    active = [text for name, text in THROTTLES.items() if reasons & getattr(nvml, name)]
    yield ProbeFigure(name=f"throttle reasons {label}", unit="count", better="lower", values=(float(len(active)),))
    if active:
        yield Problem(text=f"{label}: clocks are lowered: {', '.join(active)}")


def _pcie(nvml: Any, gpu: Any, label: str) -> Iterator[Result]:
    """The generation may be lower while a GPU is idle; the width may not."""
    try:
        width, most_width = nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu), nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)
        generation, most = nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu), nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)
    except nvml.NVMLError as error:
        yield Missing(name=f"pcie {label}", reason=f"NVML: {error}")
        return
    yield Fact(name=f"pcie {label}", text=f"generation {generation} of {most} now, x{width} of x{most_width}")
    yield ProbeFigure(
        name=f"pcie width {label}", unit="lanes", better="higher", values=(float(width),), ceiling=float(most_width)
    )  # fmt: skip
    if width < most_width:
        yield Problem(text=f"{label}: PCIe has {width} lanes of {most_width}")
    yield _Reading(f"pcie replays {label}", "count", lambda: nvml.nvmlDeviceGetPcieReplayCounter(gpu)).result(nvml)


def _nvlinks(nvml: Any, gpu: Any, label: str) -> Iterator[Result]:
    states = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(bool(nvml.nvmlDeviceGetNvLinkState(gpu, link)))
        except nvml.NVMLError:
            break
    if not states:
        yield Missing(name=f"nvlinks {label}", reason="the GPU has no NVLink")
        return
    yield ProbeFigure(
        name=f"nvlinks active {label}", unit="count", better="higher", values=(float(sum(states)),), ceiling=float(len(states))
    )  # fmt: skip
    if 0 < sum(states) < len(states):
        yield Problem(text=f"{label}: {len(states) - sum(states)} of {len(states)} NVLinks are down")


def diagnose(program: str = "dcgmi") -> Iterator[Result]:
    """The short diagnosis of DCGM, where it is installed."""
    path = shutil.which(program)
    if path is None:
        yield Missing(name="dcgmi diag", reason="dcgmi is not installed on the node")
        return
    try:
        done = subprocess.run(
            [path, "diag", "-r", "1", "-j"], capture_output=True, text=True, timeout=DIAGNOSIS_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Missing(name="dcgmi diag", reason=str(error))
        return
    try:
        failed = sorted(_failures(json.loads(done.stdout)))
    except ValueError:
        yield Missing(name="dcgmi diag", reason=f"exit code {done.returncode}, and no JSON")
        return
    yield Fact(name="dcgmi diag", text=f"exit code {done.returncode}")
    for name in failed:
        yield Problem(text=f"dcgmi diag: {name} failed")
    if done.returncode and not failed:
        yield Problem(text=f"dcgmi diag: exit code {done.returncode}")


def _failures(document: Any, name: str = "") -> Iterator[str]:
    """Names of the tests with the status Fail, at any depth: the layout differs between versions of DCGM."""
    if isinstance(document, dict):
        label = str(document.get("name", name))
        if str(document.get("status", "")).lower() == "fail":
            yield label or "a test"
        for value in document.values():
            yield from _failures(value, label)
    elif isinstance(document, list):
        for item in document:
            yield from _failures(item, name)

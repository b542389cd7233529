"""Probes of a node's hardware: what they measure here, and that what cannot be read is missing with a reason, never a number."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.core.verdict import run_metrics
from orchestrator.model.events import ComputedBits, ProbeFigure
from orchestrator.model.run import Run, StepRecord
from orchestrator.rank import probes as registry
from orchestrator.rank.node_probe import probe_results, probe_run
from orchestrator.rank.node_probe.probe_results import Fact, Missing, Node, Problem
from orchestrator.rank.probes import clock, cpu, disk, gemm, gpu_health, memory, nic, sdc, versions
from orchestrator.reports import html, summary
from orchestrator.views import probes
from orchestrator.workloads import node_probe

from . import history
from .catalogue import CATALOGUE


class NvmlError(Exception):
    pass


def no_nvml() -> Any:
    raise OSError("NVML: Driver Not Loaded")


def node(tmp_path: Path, *, nvml: Any = None, system: Path = Path("/"), **params: Any) -> Node:
    values: dict[str, Any] = {
        "repeats": 2,
        "repeat_s": 0.002,
        "disk_mib": 1,
        "memory_mib": 1,
        "disk_tool": "ccbed",
    } | params
    return Node(
        params=node_probe.Params(**values), rank=0, world=1, local_rank=0, device=torch.device("cpu"), interface="lo",
        directory=tmp_path, shared=tmp_path, sharers=(0,), load_nvml=(lambda: nvml) if nvml else no_nvml, system=system,
    )  # fmt: skip


def by_name(measured: Iterator[probe_results.Result]) -> dict[str, Any]:
    return {getattr(result, "name", type(result).__name__): result for result in measured}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_folder_is_the_registry_and_the_parameters_name_all_probes() -> None:
    assert {"gemm", "gpu-health", "sdc"} <= set(registry.names())
    assert node_probe.Params().probes == registry.names()
    assert node_probe.check(node_probe.Params(probes=("gem",)))[0].startswith("probes: must be among clock")
    meanings = str(node_probe.Params.__doc__)
    assert all(name in meanings for name in registry.names())


def test_a_repeat_has_as_many_calls_as_last_its_time() -> None:
    timed: list[int] = []

    def time_calls(count: int) -> float:
        timed.append(count)
        return count * 0.003

    assert probe_results.calls_of_a_repeat(time_calls, 0.3) == 100
    assert max(timed) == 32
    assert probe_results.calls_of_a_repeat(lambda count: 5.0, 0.3) == 1


def test_an_interruption_while_calls_are_counted_does_not_make_the_repeats_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[int] = []

    def seconds(_node: Node, _work: object, count: int) -> float:
        timed.append(count)
        return count * 0.003 + (0.5 if len(timed) == 2 else 0.0)

    monkeypatch.setattr(probe_results, "seconds", seconds)
    measured = probe_results.rates(node(tmp_path, repeats=3, repeat_s=0.3), lambda: None, 6.0)
    assert measured == pytest.approx([2000.0] * 3)
    assert timed == [1, 1, 1, 2, 4, 8, 16, 32, 64, 64, 64]


def test_matrix_products_memory_and_disk_are_measured_for_real(tmp_path: Path) -> None:
    probed = node(tmp_path, dtypes=("float32", "tf32"))
    measured = by_name(gemm.measure(probed)) | by_name(memory.measure(probed)) | by_name(disk.measure(probed))
    for name in ("memory host copy", "memory host triad", "disk node write", "disk node read", "disk node fsync p50"):
        assert len(measured[name].values) == 2
        assert min(measured[name].values) > 0
    assert measured["gemm tf32"] == Missing(name="gemm tf32", reason="needs a GPU")
    assert isinstance(measured["disk shared"], Missing)
    assert list(tmp_path.iterdir()) == []


FIO = """#!/bin/sh
test "$FIO_FAILS" && { echo "fio: unknown option" >&2; exit 1; }
echo '{"jobs": [{"error": 0, "job_runtime": 500, "write": {"io_bytes": 67108864}, "read": {"io_bytes": 33554432},
 "sync": {"lat_ns": {"percentile": {"50.000000": 2000000, "99.000000": 9000000}}}}]}'
"""


def test_fio_measures_where_it_is_installed_and_its_figures_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/fio"
    write(program, FIO)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    probed = node(tmp_path, disk_tool="auto")
    measured = by_name(disk.measure(probed))
    assert measured["disk node write (fio)"].values == (pytest.approx(134.2, rel=0.01),) * 2
    assert measured["disk node read (fio)"].values == (pytest.approx(67.1, rel=0.01),) * 2
    assert measured["disk node fsync p99 (fio)"].values == (pytest.approx(0.009),) * 2
    assert "disk node write" not in measured
    monkeypatch.setenv("FIO_FAILS", "1")
    measured = by_name(disk.measure(probed))
    assert measured["disk node write (fio)"] == Missing(name="disk node write (fio)", reason="fio: fio: unknown option")
    monkeypatch.setenv("PATH", "/nonexistent")
    measured = by_name(disk.measure(node(tmp_path, disk_tool="fio")))
    assert measured["disk node"].reason == "fio is not installed on the node"


def test_a_probe_that_raises_keeps_what_it_measured_before(tmp_path: Path) -> None:
    def measure() -> Iterator[probe_results.Result]:
        yield ProbeFigure(name="rate", unit="1/s", better="higher", values=(1.0,))
        yield ProbeFigure(name="empty", unit="1/s", better="higher", values=())
        raise ValueError("broken")

    done = probe_results.collect(node(tmp_path), "rate", measure(), lambda: 0.0)
    assert [figure.name for figure in done.figures or ()] == ["rate"]
    assert done.missing == {"empty": "no repeat"}
    assert done.error == "ValueError: broken"


def test_ceilings_are_those_of_data_sheets_and_formulas(tmp_path: Path) -> None:
    assert probe_results.gpu_tflops("NVIDIA H100 80GB HBM3", "bfloat16") == 990
    assert probe_results.gpu_tflops("NVIDIA A100-SXM4-80GB", "tf32") == 156
    assert probe_results.gpu_tflops("NVIDIA GH100X", "float32") is None
    assert probe_results.pcie_gb_s(4, 16) == pytest.approx(31.5, rel=0.01)
    assert probe_results.dram_gb_s(2619, 5120) == pytest.approx(3352, rel=0.01)
    assert probe_results.cpu_tflops(tmp_path, 4, "float32") is None
    write(tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3000000\n")
    write(tmp_path / "proc/cpuinfo", "flags\t: fpu sse2 avx2 fma\n")
    assert probe_results.cpu_tflops(tmp_path, 4, "float32") == pytest.approx(4 * 3e9 * 32 / 1e12)
    assert probe_results.cpu_tflops(tmp_path, 4, "bfloat16") is None


def nvml(**changes: Any) -> SimpleNamespace:
    """A GPU in good health, with NVLink and remapped rows, as pynvml shows it."""
    good = {
        "NVMLError": NvmlError, "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0, "NVML_TEMPERATURE_GPU": 0, "NVML_NVLINK_MAX_LINKS": 4,
        "NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR": 1,
        "nvmlClocksEventReasonHwSlowdown": 8, "nvmlClocksEventReasonHwThermalSlowdown": 64,
        "nvmlClocksEventReasonHwPowerBrakeSlowdown": 128, "nvmlClocksEventReasonSwThermalSlowdown": 32,
        "nvmlDeviceGetCount": lambda: 1, "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda gpu: "NVIDIA H100 80GB HBM3", "nvmlDeviceGetUUID": lambda gpu: "GPU-8f6c",
        "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, counter: 0, "nvmlDeviceGetRemappedRows": lambda gpu: (1, 0, 0, 0),
        "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: 1, "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: 16,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: 16, "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: 1,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: 5, "nvmlDeviceGetPcieReplayCounter": lambda gpu: 0,
        "nvmlDeviceGetNvLinkState": lambda gpu, link: 1, "nvmlDeviceGetPowerUsage": lambda gpu: 70_500,
        "nvmlDeviceGetTemperature": lambda gpu, sensor: 31,
    }  # fmt: skip
    return SimpleNamespace(**(good | changes))


def unsupported(*_: Any) -> Any:
    raise NvmlError("Not Supported")


def health(tmp_path: Path, **changes: Any) -> list[probe_results.Result]:
    return list(gpu_health.measure(node(tmp_path, nvml=nvml(**changes))))


def test_a_healthy_gpu_has_figures_and_no_problem(tmp_path: Path) -> None:
    measured = by_name(iter(health(tmp_path)))
    assert measured["ecc uncorrected gpu0"].values == (0.0,)
    assert measured["remapped rows gpu0"].values == (1.0,)
    assert measured["pcie width gpu0"].ceiling == 16
    assert measured["nvlinks active gpu0"].values == (4.0,)
    assert measured["power gpu0"].values == (70.5,)
    assert "Problem" not in measured


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"nvmlDeviceGetTotalEccErrors": lambda gpu, kind, counter: 2 * kind}, "2 uncorrected memory errors"),
        ({"nvmlDeviceGetRemappedRows": lambda gpu: (0, 1, 1, 0)}, "waits to be remapped"),
        ({"nvmlDeviceGetRemappedRows": lambda gpu: (0, 1, 0, 1)}, "remapping a row of its memory failed"),
        ({"nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: 64}, "hardware thermal slowdown"),
        ({"nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: 8}, "8 lanes of 16"),
        ({"nvmlDeviceGetNvLinkState": lambda gpu, link: int(link != 2)}, "1 of 4 NVLinks are down"),
    ],
)
def test_a_defect_that_the_gpu_reports_is_a_problem(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    problems = [result.text for result in health(tmp_path, **changes) if isinstance(result, Problem)]
    assert len(problems) == 1
    assert text in problems[0]


def test_what_the_driver_does_not_support_is_missing_never_0(tmp_path: Path) -> None:
    names = (
        "TotalEccErrors",
        "RemappedRows",
        "RetiredPages",
        "CurrentClocksEventReasons",
        "CurrPcieLinkWidth",
        "PowerUsage",
    )
    measured = by_name(iter(health(tmp_path, **{f"nvmlDeviceGet{name}": unsupported for name in names})))
    for name in ("ecc uncorrected gpu0", "retired pages gpu0", "throttle gpu0", "pcie gpu0", "power gpu0"):
        assert measured[name] == Missing(name=name, reason="NVML: Not Supported")
    assert measured["temperature gpu0"].values == (31.0,)
    assert list(gpu_health.measure(node(tmp_path))) == [Missing(name="gpu-health", reason="NVML: Driver Not Loaded")]


def test_the_diagnosis_of_dcgm_names_the_tests_that_failed(tmp_path: Path) -> None:
    tests = [{"name": "PCIe", "results": [{"status": "Fail"}]}, {"name": "Memory", "results": [{"status": "Pass"}]}]
    program = tmp_path / "dcgmi"
    program.write_text(f"#!/bin/sh\necho '{json.dumps({'categories': [{'tests': tests}]})}'\nexit 1\n")
    program.chmod(0o755)
    measured = list(gpu_health.diagnose(str(program)))
    assert measured == [Fact(name="dcgmi diag", text="exit code 1"), Problem(text="dcgmi diag: PCIe failed")]
    absent = list(gpu_health.diagnose("no-such-dcgmi"))
    assert absent == [Missing(name="dcgmi diag", reason="dcgmi is not installed on the node")]


def offset(seconds: float, bound: float, at: float) -> clock.Offset:
    return clock.Offset(offset_s=seconds, bound_s=bound, at_s=at)


def test_the_drift_of_a_clock_counts_only_beyond_its_bound() -> None:
    first, second = [offset(0.5, 1e-3, 0), offset(2e-3, 1e-5, 0)], [offset(3e-3, 1e-5, 10)]
    measured = by_name(clock.figures(first, second, is_shared=False))
    assert measured["clock offset"].values == (2e-3, 3e-3)
    assert measured["clock drift"].values == (pytest.approx(1e-4),)
    measured = by_name(clock.figures(first, [offset(2.01e-3, 1e-5, 10)], is_shared=False))
    assert "below" in measured["clock drift"].reason
    measured = by_name(clock.figures(first, second, is_shared=True))
    assert isinstance(measured["clock offset"], Missing)


def test_counters_of_an_interface_are_those_that_the_kernel_reports(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/net/eth0/statistics"
    write(folder / "rx_errors", "5\n")
    write(tmp_path / "proc/net/snmp", "Tcp: RtoMin RetransSegs\nTcp: 200 7\n")
    before = nic.counters(tmp_path, "eth0")
    assert before == {"rx_errors": 5, "tcp_retransmitted": 7}
    measured = by_name(nic._growth(before, {"rx_errors": 8, "tcp_retransmitted": 9}))
    assert measured["nic errors"].values == (3.0,)
    assert measured["Problem"].text == "network interface: 3 rx_errors"
    assert isinstance(measured["nic drops"], Missing)
    assert measured["tcp retransmissions"].values == (2.0,)


def test_throttling_of_the_cpu_is_the_growth_of_its_counters(tmp_path: Path) -> None:
    before = {"cpu throttled by heat": 1.0, "cpu throttled by its limit": None}
    after = {"cpu throttled by heat": 4.0, "cpu throttled by its limit": None}
    measured = by_name(cpu._differences(before, after))
    assert measured["cpu throttled by heat"].values == (3.0,)
    assert isinstance(measured["cpu throttled by its limit"], Missing)
    write(tmp_path / "proc/self/cgroup", "0::/bed/n1\n")
    write(tmp_path / "sys/fs/cgroup/bed/n1/cpu.stat", "usage_usec 5\nnr_throttled 12\n")
    assert cpu._counters(tmp_path)["cpu throttled by its limit"] == 12


def test_the_load_of_a_machine_is_what_others_took_of_its_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    monkeypatch.setattr("os.times", lambda: (1.0, 0.5, 0.0, 0.5, 9.0))
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/cpu.stat", "throttled_usec 1000000\n")
    write(tmp_path / "proc/stat", "cpu  100 0 100 700 50 0 0 50 0 0\n")
    before = probe_run.read(tmp_path, 10.0)
    monkeypatch.setattr("os.times", lambda: (3.0, 0.5, 0.0, 0.5, 9.0))
    write(tmp_path / "sys/fs/cgroup/cpu.stat", "throttled_usec 1500000\n")
    write(tmp_path / "proc/stat", "cpu  400 0 200 1150 100 0 50 100 0 0\n")
    measured = by_name(probe_run.figures(before, probe_run.read(tmp_path, 20.0)))
    # Of 1,000 ticks others had 300 + 100 + 50 without the own 200; the hypervisor took 50; 0.5 s of 10 were withheld.
    assert {name: figure.values for name, figure in measured.items()} == {
        "cpu used by others": (0.25,), "cpu stolen": (0.05,), "cpu withheld": (0.05,),
    }  # fmt: skip
    (tmp_path / "proc/stat").unlink()
    (missing,) = probe_run.figures(before, probe_run.read(tmp_path, 20.0))
    assert isinstance(missing, Missing)


def test_equal_computations_have_equal_bits_and_an_error_of_one_bit_spreads(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_device = torch.device("cpu")
    digests = {sdc.compute(cpu_device, torch.float32, 32, 4) for _ in range(3)}
    assert len(digests) == 1
    sine = torch.sin

    def flipped(state: torch.Tensor) -> torch.Tensor:
        result = sine(state)
        result.view(torch.int32)[0, 0] ^= 1 << 10
        return result

    monkeypatch.setattr(torch, "sin", flipped)
    assert sdc.compute(cpu_device, torch.float32, 32, 4) not in digests


def test_versions_are_facts(tmp_path: Path) -> None:
    measured = by_name(versions.measure(node(tmp_path)))
    assert measured["torch"] == Fact(name="torch", text=torch.__version__)
    assert isinstance(measured["CUDA"], Missing)


def probed(*values: dict[str, Any], names: tuple[str, ...] = ("gemm",)) -> Run:
    """A run of four ranks, each of which reports one of ``values``, if there is one."""
    trial = history.trial(workload="node-probe")
    trial = dataclasses.replace(trial, params={"probes": list(names)})
    bed = history.Bed(trial=trial)
    bed.begin()
    bed.start()
    for rank, value in enumerate(values):
        bed.rank(rank, "probe.done", **({"probe": "gemm"} | value))
    bed.finish()
    return bed.run()


def figure(*values: float | str, ceiling: float | None = None) -> dict[str, Any]:
    entry = {"name": "gemm float32", "unit": "TFLOP/s", "better": "higher", "values": list(values)}
    return {"figures": [entry if ceiling is None else entry | {"ceiling": ceiling}]}


def outcome(check: str, run: Run) -> tuple[str, str]:
    module = CATALOGUE.checkers[check].module
    verdict = module.check(run, module.Params())
    return verdict.outcome, verdict.text


def test_every_repeat_of_a_figure_is_a_metric_and_nan_is_none() -> None:
    run = probed(figure(1.0, "nan", 3.0, ceiling=8.0), figure(2.0))
    lines = [json.loads(line) for line in run_metrics.lines(run)]
    own = [
        (line["node"], line["value"], line["rep"], line.get("ceiling")) for line in lines if "gemm" in line["metric"]
    ]
    assert own == [("n0", 1.0, 0, 8.0), ("n0", 3.0, 1, 8.0), ("n1", 2.0, 0, None)]
    (row,) = probes.rows(run.history)
    assert (row.median, row.spread, row.worst.node) == (2.0, 0.0, "n0")


def test_the_page_and_the_summary_show_the_figures_and_no_loss() -> None:
    record = StepRecord(epoch=0, node="n0", rank=0, step=1, loss=(0.0).hex(), start=0.0, end=1.0)
    end = {"steps": 1, "loss": None, "loss_mean": None}
    missing = {"missing": {"gemm": "no <GPU>"}}
    run = history.with_records(
        history.changed(probed(figure(1.0, 3.0), figure(2.0), missing), "rank.finished", value=end), [record]
    )
    page = html.render(run)["index.html"].decode()
    assert re.findall(r'<td class="n">(.*?)</td>', page)[:3] == ["2 ±50%", "2", "0.0%"]
    assert "not measured: gemm: no &lt;GPU&gt; (n2)" in page
    assert 'id="h-loss"' not in page and "<dt>loss</dt>" not in page and "</i>measuring</li>" in page
    trained = html.render(history.with_records(run, [dataclasses.replace(record, loss=(0.5).hex())]))[
        "index.html"
    ].decode()
    assert 'id="h-loss"' in trained and "<dt>loss</dt>" in trained, "the control"
    text = summary.render(run)["summary.md"].decode()
    assert (
        "| gemm float32 | TFLOP/s | 2 ±50% | 2 | 0.0% |" in text and "not measured: gemm: no &lt;GPU&gt; (n2)" in text
    )


def test_complete_figures_pass_and_a_missing_rank_is_unknown() -> None:
    complete = probed(*[figure(1.0, 1.1)] * 4)
    assert outcome("hardware-probed", complete) == ("pass", "4 figures on 4 nodes; the hardware reports no defect")
    assert outcome("hardware-probed", probed(*[figure(1.0)] * 3)) == ("unknown", "rank 3 did not end probe gemm")
    early = probed(*[figure(1.0)] * 3, {"error": "OSError: full"})
    assert outcome("hardware-probed", early) == ("unknown", "n3: gemm ended early: OSError: full")
    nothing = probed(*[{"missing": {"gemm": "no GPU"}}] * 4)
    assert outcome("hardware-probed", nothing) == ("unknown", "nothing was measured: no GPU")


def test_a_reported_defect_fails_and_a_figure_above_its_ceiling_is_unknown() -> None:
    defect = probed(*[figure(1.0)] * 3, figure(1.0) | {"problems": ["gpu0: PCIe has 8 lanes of 16"]})
    assert outcome("hardware-probed", defect) == ("fail", "n3: gpu0: PCIe has 8 lanes of 16")
    beyond = probed(*[figure(1.0, ceiling=1.0)] * 3, figure(9.0, ceiling=1.0))
    state, text = outcome("hardware-probed", beyond)
    assert (state, "better than its ceiling" in text) == ("unknown", True)


def bits(digest: str, device: str = "Xeon") -> dict[str, Any]:
    return {"bits": [{"device": device, "software": "torch 2", "digest": digest, "seconds": 0.5}]}


def test_equal_bits_are_never_a_pass_and_a_mismatch_fails() -> None:
    state, text = outcome("same-bits", probed(*[bits("aa")] * 4))
    assert (state, "no mismatch in 2 device-seconds on 4 nodes" in text) == ("skipped", True)
    state, text = outcome("same-bits", probed(*[bits("aa")] * 3, bits("bb")))
    assert (state, text) == ("fail", "Xeon, torch 2: results differ (n0, n1, n2: aa; n3: bb)")


def test_bits_of_another_device_are_not_compared() -> None:
    state, text = outcome("same-bits", probed(*[bits("aa")] * 3, bits("bb", device="Epyc")))
    assert (state, "one node only: Epyc, torch 2" in text) == ("skipped", True)
    assert outcome("same-bits", probed(*[figure(1.0)] * 4)) == ("skipped", "no probe compared bits")


def test_a_computation_names_its_device_and_library(tmp_path: Path) -> None:
    computed = next(sdc.measure(node(tmp_path)))
    assert isinstance(computed, ComputedBits)
    assert torch.__version__ in computed.software
    assert computed.seconds > 0

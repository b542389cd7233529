"""The check of a node before a job: a defect is named, a busy machine and unknown hardware accuse no node."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.model.events import ProbeDone, ProbeFigure
from orchestrator.nightly.app import node_probing
from orchestrator.nightly.baselines import Baseline, Floor
from orchestrator.nightly.node_check import Checked, judge

HARDWARE = "8x NVIDIA H100, 64x AMD EPYC 9554, 512 GiB"


def baseline(hardware: str = HARDWARE, parameters: str = "backend=nccl threads=8") -> Baseline:
    floor = Floor(
        metric="gemm float32", floor=40.0, unit="TFLOP/s", better="higher", measured=44.0, margin=0.1, n=8, evidence=(), accepted="",
        trial="gemm", workload="node-probe", parameters=parameters,
    )  # fmt: skip
    return Baseline(hardware=hardware, floors=(floor,))


def gemm(value: float, rank: int = 0, others: float = 0.0, **fields: object) -> ProbeDone:
    figures = [("gemm float32", "TFLOP/s", "higher", value), ("cpu used by others", "1", "lower", others)]
    return ProbeDone(
        rank=rank, probe="gemm", took_s=1.0, **fields,  # type: ignore[arg-type]
        figures=tuple(ProbeFigure(name=n, unit=u, better=b, values=(v,)) for n, u, b, v in figures),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("results", "outcome", "reason"),
    [
        ([gemm(44.0)], "pass", "1 figures meet their floors"),
        ([gemm(30.0)], "fail", "gemm float32 30 TFLOP/s, floor 40"),
        ([gemm(44.0), gemm(30.0, rank=3)], "fail", "gemm float32 on device 3 30 TFLOP/s, floor 40"),
        ([gemm(30.0, others=0.4)], "unknown", "the machine is busy: gemm float32 30 TFLOP/s, floor 40; cpu used by others 40%"),
        ([gemm(44.0, problems=("gpu3: 2 uncorrected ECC errors",))], "fail", "gpu3: 2 uncorrected ECC errors"),
        ([gemm(44.0, error="RuntimeError: CUDA error")], "fail", "probe gemm: RuntimeError: CUDA error"),
        ([], "unknown", "no figure that was measured has a floor"),
    ],
)  # fmt: skip
def test_a_node_fails_for_what_is_known_of_it(results: Sequence[ProbeDone], outcome: str, reason: str) -> None:
    checked = judge(HARDWARE, [baseline()], results)
    assert (checked.outcome, checked.reason) == (outcome, reason)
    assert checked.suspects == (("gemm",) if "floor 40" in reason and outcome == "fail" else ())


@pytest.mark.parametrize(
    ("hardware", "outcome"),
    [
        ("7x NVIDIA H100, 64x AMD EPYC 9554, 512 GiB", "fail"),
        ("64x AMD EPYC 9554, 512 GiB", "fail"),
        ("8x NVIDIA H100, 64x AMD EPYC 9554, 448 GiB", "fail"),
        ("8x NVIDIA A100, 64x AMD EPYC 9554, 256 GiB", "unknown"),
        ("16x Intel Xeon, 64 GiB", "unknown"),
    ],
)
def test_a_lost_part_fails_and_another_machine_is_not_known(hardware: str, outcome: str) -> None:
    checked = judge(hardware, [baseline()], [gemm(44.0)])
    assert checked.outcome == outcome
    assert ("hardware is missing: " in checked.reason) == (outcome == "fail")


def test_floors_of_other_parameters_say_nothing() -> None:
    checked = judge(HARDWARE, [baseline(parameters="disk_mib=4 threads=8")], [gemm(1.0)])
    assert checked.outcome == "unknown"


@pytest.mark.parametrize(("again", "outcome"), [(30.0, "fail"), (44.0, "unknown")], ids=["worse twice", "worse once"])
def test_a_figure_fails_only_when_it_is_measured_twice(
    monkeypatch: pytest.MonkeyPatch, again: float, outcome: str
) -> None:
    values = [30.0, again]
    monkeypatch.setattr(node_probing, "_measure", lambda *_: (gemm(values.pop(0)),))
    checked = node_probing._check(("gemm",), HARDWARE, [baseline()], 60.0)
    assert (checked.outcome, values) == (outcome, [])
    assert checked.reason.startswith("gemm float32 30 TFLOP/s, floor 40")


@pytest.mark.parametrize(("outcome", "plain", "prolog"), [("pass", 0, 0), ("fail", 1, 1), ("unknown", 2, 0)])
def test_a_prolog_stops_a_job_for_a_defect_alone_and_drains_the_node_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: str, plain: int, prolog: int
) -> None:
    calls: list[Sequence[str]] = []

    def scontrol(argv: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(argv)
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(node_probing, "_check", lambda *_: Checked(outcome=outcome, reason="gemm is slow"))  # type: ignore[arg-type]
    monkeypatch.setattr("shutil.which", lambda name, **_: f"/usr/bin/{name}")
    monkeypatch.setattr("subprocess.run", scontrol)
    monkeypatch.setenv("SLURMD_NODENAME", "gpu7")
    session: object = None
    codes = [
        node_probing.run(session, node_probing.ProbeRequest(prolog=is_prolog, baselines=tmp_path)).code  # type: ignore[arg-type]
        for is_prolog in (False, True)
    ]
    assert codes == [plain, prolog]
    drained = ["/usr/bin/scontrol", "update", "nodename=gpu7", "state=drain", "reason=ccbed: gemm is slow"]
    assert calls == ([drained] if outcome == "fail" else [])

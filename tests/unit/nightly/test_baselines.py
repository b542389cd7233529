"""Baselines: floors are accepted from runs that passed, reviewed in YAML, and refused for another hardware model."""

from __future__ import annotations

import datetime
import io
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.model.errors import CcbedError, UsageError
from orchestrator.nightly import baselines, judging, levels, night_files
from orchestrator.nightly.baselines import Baseline, Floor
from orchestrator.nightly.judging import evidence
from orchestrator.store import seal

from .night_bundles import figure, write_bundle, write_night

HARDWARE = "8x H100, 64x Xeon, 512 GiB"
RUN = "2026-01-02T03-04-05Z-probe-00ff"
DAY = datetime.date(2026, 1, 3)


def rate(*values: float, metric: str = "gemm") -> list[dict[str, Any]]:
    return [figure(metric, value, "TFLOP/s", "higher", node=f"n{number}") for number, value in enumerate(values)]


def accept(directory: Path, file: Path, margin: float = 0.1) -> str:
    [(hardware, floors)] = baselines.accept(evidence.read(directory)[0], lambda _: margin, DAY).items()
    text = baselines.merge(file, hardware, floors)
    file.write_text(text)
    return text


def test_a_floor_is_that_of_the_worst_node_less_the_margin_with_its_evidence(tmp_path: Path) -> None:
    bundle = write_bundle(
        tmp_path / RUN,
        [*rate(98.0, 100.0, 102.0), *(figure("latency", 2.0, node=node) for node in ("n0", "n1", "n2"))],
        nodes=("n0", "n1", "n2"),
    )
    accept(bundle, tmp_path / "b.yml")
    baseline = baselines.read(tmp_path / "b.yml")
    assert baseline.hardware == HARDWARE
    gemm, latency = baseline.floors
    assert (gemm.floor, gemm.measured, gemm.margin, gemm.n, gemm.better) == (88.2, 98.0, 0.1, 3, "higher")
    assert (gemm.evidence, gemm.accepted, gemm.trial, gemm.workload) == ((RUN,), "2026-01-03", "probe", "node-probe")
    assert latency.floor == 2.2  # lower is better


def test_a_night_that_meets_its_own_baseline_passes_and_a_slower_one_fails(tmp_path: Path) -> None:
    night = write_night(tmp_path, 1, {"gemm": [rate(100.0, 101.0)]})
    accept(night, tmp_path / "b.yml")
    [baseline] = baselines.read_all(tmp_path)
    assert judging.judge(night, (), [baseline]).outcome == "pass"
    slower = write_night(tmp_path / "later", 2, {"gemm": [rate(100.0, 80.0)]})
    judgement = judging.judge(slower, (), [baseline])
    assert (judgement.outcome, judgement.exit) == ("fail", 1)
    assert judgement.sentence.startswith("n1: gemm 80 TFLOP/s is worse than its floor 90")


def test_a_night_of_unequal_nodes_passes_its_own_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that differ by more than the margin, counts of 0, noise, a figure that a node lacks, and one that was measured wrongly."""
    monkeypatch.chdir(tmp_path)

    def of_nodes(metric: str, *values: float, **more: Any) -> list[dict[str, Any]]:
        return [figure(metric, value, "s", node=f"n{node}", **more) for node, value in enumerate(values)]

    lines = [
        *rate(100.0, 84.445, 84.44), *of_nodes("copy time", 1.0, 1.2345678, 1.3), *of_nodes("cpu stolen", 0.0, 0.0, 0.02),
        *of_nodes("nic drops", 0.0, 0.0, 0.0), *of_nodes("jitter", 0.1, 0.1, 0.9), *of_nodes("fan", 1.0, 1.0),
    ]  # fmt: skip
    night = write_night(tmp_path / "runs", 1, {"probe": [lines, lines]}, nodes=("n0", "n1", "n2"))
    code, output = run("accept", str(night), "--margin", "0%")
    assert code == 0, output
    [baseline] = baselines.read_all(Path("inventories/baselines"))
    assert {floor.metric: floor.floor for floor in baseline.floors} == {"gemm": 84.44, "copy time": 1.3}
    judgement = judging.judge(night, (), [baseline])
    assert {judged.state for judged in judgement.findings if judged.finding.gate == "floor"} == {"pass"}
    for text in ("cpu stolen, nic drops: it is 0", "jitter: it varies between nodes", "fan: n2: fan was not measured"):
        assert f"no floor for {text}" in output


def test_a_baseline_that_the_accepted_night_does_not_pass_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor of a metric that is not accepted tonight stays as a person wrote it."""
    monkeypatch.chdir(tmp_path)
    night = write_night(tmp_path / "runs", 1, {"probe": [[*rate(100.0, 100.0), *rate(5.0, 5.0, metric="disk")]]})
    assert run("accept", str(night))[0] == 0
    [file] = Path("inventories/baselines").iterdir()
    edited = file.read_text().replace("floor: 4.75\n", "floor: 6\n")
    file.write_text(edited)
    code, output = run("accept", str(night), "--metric", "gemm", "--margin", "5%")
    assert code == 3 and "does not pass the baseline that would be written" in output
    assert "n0: disk 5 TFLOP/s is worse than its floor 6" in output and file.read_text() == edited


def test_a_gangs_floor_is_in_the_file_of_its_nodes_and_holds_for_that_gang(tmp_path: Path) -> None:
    lines = [figure("all-reduce busbw", 40.0, "GB/s", "higher", size=1024)]
    night = write_night(tmp_path, 1, {"allreduce": [lines]}, workload="collective")
    accept(night, tmp_path / "b.yml")
    [baseline] = baselines.read_all(tmp_path)
    assert (baseline.hardware, baseline.floors[0].gang) == (HARDWARE, f"2 nodes of {HARDWARE}")
    lines[0]["value"] = 20.0
    for nodes, outcome in ((("n0", "n1"), "fail"), (("n0", "n1", "n2"), "unknown")):
        slower = write_night(tmp_path / outcome, 2, {"allreduce": [lines]}, workload="collective", nodes=nodes)
        assert judging.judge(slower, (), [baseline]).outcome == outcome


def test_comments_and_edited_floors_of_others_are_kept(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / RUN, [*rate(100.0, 100.0), *rate(5.0, 5.0, metric="disk")])
    text = accept(bundle, tmp_path / "b.yml")
    edited = text.replace("floor: 90", "floor: 85 # agreed with the vendor")
    edited = edited.replace("floors:", "# reviewed by ops\nfloors:")
    (tmp_path / "b.yml").write_text(edited)
    later = write_bundle(tmp_path / RUN.replace("00ff", "00fe"), rate(80.0, 80.0))
    second_text = accept(later, tmp_path / "b.yml", margin=0.05)
    assert "floor: 76 # agreed with the vendor" in second_text
    assert "# reviewed by ops" in second_text
    by_metric = {floor.metric: floor for floor in baselines.read(tmp_path / "b.yml").floors}
    assert (by_metric["gemm"].floor, by_metric["gemm"].margin, by_metric["disk"].floor) == (76, 0.05, 4.5)


def test_a_new_metric_is_added_behind_the_others(tmp_path: Path) -> None:
    accept(write_bundle(tmp_path / RUN, rate(100.0, 100.0)), tmp_path / "b.yml")
    accept(write_bundle(tmp_path / RUN.replace("00ff", "00fe"), rate(5.0, 5.0, metric="disk")), tmp_path / "b.yml")
    assert [floor.metric for floor in baselines.read(tmp_path / "b.yml").floors] == ["gemm", "disk"]


def test_the_baseline_of_another_hardware_model_is_refused_with_both_named(tmp_path: Path) -> None:
    accept(write_bundle(tmp_path / RUN, rate(100.0, 100.0)), tmp_path / "b.yml")
    other = {node: {"gpus": ["H200"] * 8} for node in ("n0", "n1")}
    bundle = write_bundle(tmp_path / RUN.replace("00ff", "00fe"), rate(100.0, 100.0), facts=other)
    with pytest.raises(UsageError) as error:
        accept(bundle, tmp_path / "b.yml")
    assert HARDWARE in str(error.value)
    assert "8x H200" in str(error.value)


def test_a_run_that_failed_is_no_evidence(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / RUN, rate(100.0, 100.0), outcome="fail")
    with pytest.raises(UsageError, match="its outcome is fail"):
        evidence.read(bundle)


@pytest.mark.parametrize(
    ("file", "old", "new", "seal_file"),
    [("metrics.jsonl", "100.0", "1.0", "manifest"), ("verdicts.json", "as planned", "all", "derived")],
)
def test_a_run_that_was_changed_since_it_was_sealed_is_no_evidence(
    tmp_path: Path, file: str, old: str, new: str, seal_file: str
) -> None:
    bundle = write_bundle(tmp_path / RUN, rate(100.0, 100.0))
    assert evidence.read(bundle)[0][0].values == (100.0, 100.0)
    changed = bundle / file
    changed.write_text(changed.read_text().replace(old, new))
    with pytest.raises(
        UsageError, match=rf"is no evidence: .*{file}: changed since {seal_file}-sha256\.txt was written"
    ):
        evidence.read(bundle)


WRONG = """\
hardware: H100
floors:
  - metric: gemm
    floor: fast
    unit: TFLOP/s
    better: bigger
    measured: 1
    margin: 200%
    n: 1
    evidence: []
    accepted: "2026-01-01"
    trial: gemm
    workload: node-probe
    colour: red
  - 7
"""


def test_every_mistake_of_a_baseline_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_text(WRONG)
    with pytest.raises(UsageError) as error:
        baselines.read_all(tmp_path)
    positions = [problem.partition(": ")[0].rpartition("/")[2] for problem in error.value.problems]
    assert positions == ["b.yml:4", "b.yml:6", "b.yml:8", "b.yml:14", "b.yml:15"]
    assert "unknown key" in error.value.problems[3]


def test_a_negative_floor_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "b.yml"
    text = accept(write_bundle(tmp_path / RUN, rate(100.0, 100.0)), file)
    file.write_text(text.replace("floor: 90\n", "floor: -90\n"))
    with pytest.raises(UsageError, match=r"b\.yml:6: floors\[0\]\.floor: must be >= 0 \(got -90\.0\)"):
        baselines.read(file)


def test_a_layout_that_cannot_be_edited_is_refused_and_not_damaged(tmp_path: Path) -> None:
    file = tmp_path / "b.yml"
    text = accept(write_bundle(tmp_path / RUN, rate(100.0, 100.0)), file)
    folded = text.replace("floor: 90\n", "floor:\n      90\n")
    file.write_text(folded)
    later = write_bundle(tmp_path / RUN.replace("00ff", "00fe"), rate(80.0, 80.0))
    with pytest.raises(CcbedError, match="cannot be edited without loss"):
        accept(later, file)
    assert file.read_text() == folded


@pytest.mark.parametrize("text", ["", "yes", "a: b", "# x", "8x H100", "2026-01-01", 'quo"te', "ünïcode", "a\nb"])
def test_every_text_survives_the_file(tmp_path: Path, text: str) -> None:
    floor = Floor(
        metric=f"m {text}", floor=1.5, unit="s", better="lower", measured=1.0, margin=0.5, n=1, evidence=(RUN, text),
        accepted="2026-01-01", trial="t", workload="w", parameters=text,
    )  # fmt: skip
    file = tmp_path / "b.yml"
    file.write_text(baselines.merge(file, HARDWARE, [floor]))
    assert baselines.read(file) == Baseline(hardware=HARDWARE, floors=(floor,), file=str(file))


def run(*words: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    session = Session(state=Path("state"), terminal=terminal.Terminal(out=out, err=err))
    return main.run(["baseline", *words], session), out.getvalue() + err.getvalue()


def test_the_verb_accepts_a_night_and_shows_its_floors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_night(tmp_path / "runs", 1, {"gemm": [rate(100.0, 101.0)]})
    code, output = run("accept", "0001", "--margin", "5%")
    assert code == 0, output
    assert [path.name for path in (tmp_path / "inventories/baselines").iterdir()] == ["8x-h100-64x-xeon-512-gib.yml"]
    assert "≥ 95" in run("show", "h100")[1]
    assert run("show", "h200")[0] == 3


@pytest.mark.parametrize("kind", ["night", "run in a night", "run"])
def test_what_a_baseline_rests_on_is_kept_wherever_its_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    nights = [write_night(tmp_path / "runs", number, {"gemm": [rate(100.0, 101.0)]}) for number in (1, 2, 3)]
    run_directory = write_bundle(tmp_path / "runs/2026-01-01T02-00-00Z-probe-00aa", rate(100.0, 101.0))
    (in_night,) = (nights[0] / "runs").iterdir()
    accepted = {"night": nights[0], "run in a night": in_night, "run": run_directory}[kind]
    for _ in range(2):
        code, output = run("accept", str(accepted), "-o", str(tmp_path / "ops/h100.yml"))
        assert code == 0, output
    kept = run_directory if kind == "run" else nights[0]
    assert (kept / "baselines.txt").read_text() == f"{tmp_path}/ops/h100.yml\n"
    out = io.StringIO()
    session = Session(state=Path("state"), terminal=terminal.Terminal(out=out, err=out))
    assert main.run(["runs", "prune", "--recorded", "--keep-last", "1"], session) == 0, out.getvalue()
    assert [path.exists() for path in (kept, nights[1], nights[2])] == [True, False, True]
    assert run_directory.exists() == (kind == "run")
    assert night_files.verify(nights[2]) == () and (kind == "run" or night_files.verify(kept) == ())
    assert seal.verify_evidence(in_night if kind != "run" else run_directory) == ()


def test_a_floor_that_is_only_printed_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    night = write_night(tmp_path / "runs", 1, {"gemm": [rate(100.0, 101.0)]})
    assert run("accept", str(night), "--dry-run")[0] == 0
    assert not (night / "baselines.txt").exists()


def test_the_margin_is_that_of_the_class_and_several_nights_give_their_worst_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [[*rate(value, 100.0), *rate(value, 100.0, metric="disk work write")] for value in (90.0, 95.0)]
    first, second = (write_night(tmp_path / "runs", number, {"probe": [lines[number - 1]]}) for number in (1, 2))
    code, output = run("accept", str(first), str(second))
    assert code == 0, output
    [baseline] = baselines.read_all(Path("inventories/baselines"))
    assert {floor.metric: (floor.floor, floor.margin) for floor in baseline.floors} == {
        "gemm": (85.5, 0.05), "disk work write": (72.0, 0.2)
    }  # fmt: skip
    assert (
        "TO SPARE" in output and "11.1%" in output and "31.9%" in output
    )  # the second is better than the worst of both


def test_a_night_begins_a_new_level_for_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    night = write_night(tmp_path / "runs", 3, {"probe": [rate(100.0, 100.0)]})
    code, output = run("accept", str(night), "--node", "n1", "--metric", "gemm", "--because", "driver 560")
    assert code == 0 and "bed lab: night 3 begins a new level for n1, gemm: driver 560" in output
    assert not Path("inventories/baselines").exists()
    [level] = levels.read(tmp_path / "runs", "lab")
    assert (level.night, level.nodes, level.metrics, level.because) == (3, ("n1",), ("gemm",), "driver 560")
    assert level.covers("n1:2", "gemm") and not level.covers("n0", "gemm") and not level.covers("n1", "disk")
    assert run("accept", str(night), "--because", "all of it")[0] == 0
    assert [level.nodes for level in levels.read(tmp_path / "runs", "lab")] == [("n1",), ()]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--node", "n1"), "--node: floors are those of all nodes"),
        (("--node", "n9", "--because", "x"), "node n9 was not measured"),
        (("--metric", "disk", "--because", "x"), "no metric disk was measured"),
    ],
)
def test_a_level_that_says_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    night = write_night(tmp_path / "runs", 3, {"probe": [rate(100.0, 100.0)]})
    code, output = run("accept", str(night), *arguments)
    assert code == 3 and text in output and not (tmp_path / "runs" / levels.FILE).exists()


def test_a_run_begins_no_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = run("accept", str(write_bundle(tmp_path / RUN, rate(100.0, 100.0))), "--because", "x")
    assert code == 3 and "only a recorded night begins a level" in output

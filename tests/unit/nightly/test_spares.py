"""Spares are probed before they may join: a slow one does not, a healthy one does, and one that cannot be judged is said to be unknown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.errors import EXIT_INFRASTRUCTURE, InfrastructureError
from orchestrator.model.launch import Request, Result
from orchestrator.model.verdict import Verdict
from orchestrator.nightly import bundle_records, judging
from orchestrator.nightly.baselines import Baseline, Floor
from orchestrator.nightly.culprits import spares
from orchestrator.nightly.run_record import RunRecord

from .. import test_placement
from ..test_placement import Console, night
from .night_bundles import figure, write_bundle

console = test_placement.console
GEMM, WRITE = "gemm float32", "disk node write"
HARDWARE = "8x H100, 64x Xeon, 512 GiB"
PARAMS = {"probes": ["gemm", "memory", "disk"], "repeats": 12}


def probe_bundle(directory: Path, rates: Mapping[str, float], metric: str = GEMM) -> Path:
    lines = [figure(metric, rate, "TFLOP/s", "higher", node=node) for node, rate in rates.items() for _ in range(3)]
    return write_bundle(directory, lines, trial="spare-probe", params=PARAMS, nodes=tuple(rates))


def probed(tmp_path: Path, rates: Mapping[str, float]) -> RunRecord:
    return bundle_records.read(probe_bundle(tmp_path / "2026-01-06T02-00-00Z-spare-probe-0001", rates))


def floor(metric: str = GEMM, value: float = 90.0, **change: Any) -> Floor:
    known = Floor(
        metric=metric, floor=value, unit="TFLOP/s", better="higher", measured=100.0, margin=0.1, n=5, evidence=(), accepted="2026-01-01",
        trial="gemm", workload="node-probe", parameters='backend=gloo probes=["gemm"] ranks_per_node=1 threads=1',
    )  # fmt: skip
    return dataclasses.replace(known, **change)


def baseline(*floors: Floor, hardware: str = HARDWARE) -> list[Baseline]:
    return [Baseline(hardware=hardware, floors=floors)]


def test_a_spare_below_its_floor_does_not_join_and_a_healthy_one_does(tmp_path: Path) -> None:
    slow, healthy = spares.judge(probed(tmp_path, {"n4": 50.0, "n5": 100.0}), ("n4", "n5"), baseline(floor()))
    assert (slow.is_fit, slow.text) == (False, "gemm float32 50 TFLOP/s is worse than its floor 90")
    assert healthy.is_fit
    assert healthy.text == "n5 joins: 1 of 1 figures meet their floors (fewer than 2 peers)"


@pytest.mark.parametrize(
    "floors",
    [
        [],
        baseline(floor(), hardware="8x H100, 32x Xeon, 512 GiB"),
        baseline(floor(parameters="backend=gloo ranks_per_node=1 repeat_s=2.0 threads=1")),
        baseline(floor(workload="collective")),
        baseline(floor(metric="clock offset")),
        baseline(floor(unit="GFLOP/s")),
    ],
)
def test_without_a_floor_and_peers_it_is_not_known_and_joins(tmp_path: Path, floors: list[Baseline]) -> None:
    [result] = spares.judge(probed(tmp_path, {"n4": 50.0}), ("n4",), floors)
    assert result.is_fit
    assert "n4 joins, but whether it is as fast as it should be is not known" in result.text
    assert "fewer than 2 peers" in result.text


def test_a_metric_with_a_floor_that_was_not_measured_fails(tmp_path: Path) -> None:
    [result] = spares.judge(probed(tmp_path, {"n4": 100.0}), ("n4",), baseline(floor(), floor(WRITE)))
    assert (result.is_fit, result.text) == (False, f"{WRITE} was not measured; its floor is 90 TFLOP/s")


def test_six_spares_are_judged_beside_each_other(tmp_path: Path) -> None:
    rates = {f"n{number}": 100.0 + number / 10 for number in range(6)}
    assert all(result.is_fit for result in spares.judge(probed(tmp_path / "same", rates), tuple(rates), []))
    results = spares.judge(probed(tmp_path / "odd", {**rates, "n3": 70.0}), tuple(rates), [])
    assert [result.node for result in results if not result.is_fit] == ["n3"]
    assert "n3 is 30.1% worse than the median of 5 peers" in results[3].text
    assert "no figure is odd beside its peers" in results[0].text


class Rates(dict[str, float]):
    """The rate of each probe in turn, of any node."""

    def __init__(self, rates: Iterator[float]) -> None:
        self._rates = rates

    def __missing__(self, node: str) -> float:
        return next(self._rates)


def simulate_probes(console: Console, monkeypatch: pytest.MonkeyPatch, rates: Mapping[str, float]) -> None:
    """Launches of the probe give these figures; those of other trials pass."""

    def launch(request: Request) -> Result:
        console.requests.append(request)
        if request.trial.name != "spare-probe":
            return Result(run="r", directory=str(console.root), code=0)
        name = f"2026-01-06T02-00-0{len(console.requests)}Z-spare-probe-0001"
        directory = probe_bundle(Path(request.runs) / name, {node: rates[node] for node in request.placement.members})
        return Result(run=name, directory=str(directory), code=0)

    monkeypatch.setattr(console, "launch", launch)


def write_floor(console: Console) -> list[str]:
    directory = console.root / "baselines"
    directory.mkdir()
    text = 'metric: gemm float32, floor: 90, unit: TFLOP/s, better: higher, measured: 100, margin: 10%, n: 5, evidence: ["r"]'
    parameters = 'backend=gloo probes=["gemm"] ranks_per_node=1 threads=1'
    more = f"accepted: '2026-01-01', trial: gemm, workload: node-probe, parameters: '{parameters}'"
    (directory / "h.yml").write_text(f"hardware: {HARDWARE}\nfloors:\n  - {{{text}, {more}}}\n")
    return ["--baselines", str(directory), "--runs-dir", str(console.root / "runs")]


def test_a_run_with_a_healthy_spare_names_the_bundle_of_its_probe(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_probes(console, monkeypatch, {"n4": 100.0})
    _, output = console.run("run", "dp-ring", "--probe-spares", *write_floor(console))
    probe, run = console.requests
    assert probe.placement.members == ("n4",)
    assert probe.trial.params["repeats"] == 12
    assert run.placement.unfit == {}
    assert run.placement.spare_probe == "../2026-01-06T02-00-01Z-spare-probe-0001"
    assert "spare  n4 joins: 1 of 1 figures meet their floors" in output


def test_a_run_leaves_a_slow_spare_out(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_probes(console, monkeypatch, {"n4": 50.0})
    _, output = console.run("run", "dp-ring", "--probe-spares", "10s", *write_floor(console))
    assert [request.trial.name for request in console.requests] == ["spare-probe", "spare-probe", "dp-ring"]
    assert list(console.requests[-1].placement.unfit) == ["n4"]
    assert "note   n4 does not join: gemm float32 50 TFLOP/s is worse than its floor 90" in output


def test_a_spare_that_is_slow_once_is_probed_again_and_joins(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter((50.0, 100.0))
    simulate_probes(console, monkeypatch, Rates(rates))
    _, output = console.run("run", "dp-ring", "--probe-spares", *write_floor(console))
    assert console.requests[-1].placement.unfit == {}
    assert console.requests[-1].placement.spare_probe == "../2026-01-06T02-00-02Z-spare-probe-0001"
    assert "spare  n4 joins: 1 of 1 figures meet their floors" in output


def test_a_slow_spare_takes_no_slot_of_a_node_in_quarantine(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_probes(console, monkeypatch, {"n4": 50.0})
    console.accuse("n1")
    code, output = console.run("run", "dp-ring", "--probe-spares", *write_floor(console))
    assert (code, {request.trial.name for request in console.requests}) == (EXIT_INFRASTRUCTURE, {"spare-probe"})
    assert "has 3 that may be used: n1 is set aside since" in output
    assert "n4 does not join: gemm float32 50 TFLOP/s is worse than its floor 90" in output


@pytest.mark.parametrize("text", ["abc", "1 parsec", "2h"])
def test_a_time_that_is_none_starts_nothing(console: Console, text: str) -> None:
    code, output = console.run("run", "dp-ring", f"--probe-spares={text}", "--runs-dir", str(console.root / "runs"))
    assert (code, console.requests) == (3, [])
    assert "--probe-spares: must be " in output


def test_a_probe_that_cannot_run_is_said_and_the_spare_joins(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(request: Request) -> Result:
        console.requests.append(request)
        if request.trial.name == "spare-probe":
            raise InfrastructureError("host h is unreachable")
        return Result(run="r", directory=str(console.root), code=0)

    monkeypatch.setattr(console, "launch", launch)
    _, output = console.run("run", "dp-ring", "--probe-spares", "--runs-dir", str(console.root / "runs"))
    assert "n4 not probed, and may join: host h is unreachable" in output
    assert console.requests[1].placement.unfit == {}


def test_a_spare_whose_own_probe_fails_does_not_join(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two spares: the common probe fails, so that each is probed alone."""

    def launch(request: Request) -> Result:
        console.requests.append(request)
        directory = probe_bundle(
            Path(request.runs) / f"r{len(console.requests)}", dict.fromkeys(request.placement.members, 100.0)
        )
        has_failed = "n6" in request.placement.members
        verdicts = (Verdict(check="finished", outcome="fail", text="rank 0 on n6 ended with 1"),)
        return Result(run="r", directory=str(directory), code=int(has_failed), verdicts=verdicts if has_failed else ())

    (console.root / "large.yml").write_text(test_placement.LARGE)
    console.run("down", "local", "--force")
    console.run("up", str(console.root / "large.yml"))
    monkeypatch.setattr(console, "launch", launch)
    _, output = console.run("run", "dp-ring", "--probe-spares", "--runs-dir", str(console.root / "runs"))
    assert [request.placement.members for request in console.requests] == [("n6", "n7"), ("n6",), ("n6",), ("n7",), ()]
    assert "note   n6 does not join: finished: rank 0 on n6 ended with 1" in output
    assert console.requests[-1].placement.unfit.keys() == {"n6"}


def two_spares(console: Console) -> None:
    (console.root / "large.yml").write_text(test_placement.LARGE)
    console.run("down", "local", "--force")
    console.run("up", str(console.root / "large.yml"))


#: Of n6 and n7 in turn: a rate, "dead" for a run that loses the node, "bad" for one whose check fails.
Outcome = float | str


def simulate_outcomes(
    console: Console, monkeypatch: pytest.MonkeyPatch, outcomes: Mapping[str, Iterator[Outcome]]
) -> None:
    """Probes of several spares end as the worst of them."""

    def launch(request: Request) -> Result:
        console.requests.append(request)
        members = request.placement.members
        if request.trial.name != "spare-probe":
            return Result(run="r", directory=str(console.root), code=0)
        now = {node: next(outcomes[node]) for node in members}
        name = f"probe-{len(console.requests)}"
        rates = {node: rate for node, rate in now.items() if isinstance(rate, float)}
        directory = probe_bundle(Path(request.runs) / name, rates or dict.fromkeys(members, 100.0))
        bad = next((f"rank 0 on {node} is {state}" for node, state in now.items() if isinstance(state, str)), "")
        verdicts = (Verdict(check="finished", outcome="fail", text=bad),) if bad else ()
        code = EXIT_INFRASTRUCTURE if "dead" in now.values() else int(bool(bad))
        return Result(run=name, directory=str(directory), code=code, verdicts=verdicts)

    monkeypatch.setattr(console, "launch", launch)


def probed_spares(
    console: Console, monkeypatch: pytest.MonkeyPatch, **outcomes: list[Outcome]
) -> tuple[Mapping[str, str], str]:
    """Why spares do not join, and the output."""
    two_spares(console)
    simulate_outcomes(console, monkeypatch, {node: iter(values) for node, values in outcomes.items()})
    _, output = console.run("run", "dp-ring", "--probe-spares", *write_floor(console))
    return console.requests[-1].placement.unfit, output


def test_a_slow_spare_does_not_join_if_its_second_probe_dies(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    unfit, output = probed_spares(console, monkeypatch, n6=[50.0, "dead"], n7=[100.0])
    assert unfit.keys() == {"n6"}
    assert "gemm float32 50 TFLOP/s is worse than its floor 90; its second probe did not end" in unfit["n6"]
    assert unfit["n6"].endswith("(probe-1)"), "the run that decided is the first one"
    assert "spare  n7 joins: 1 of 1 figures meet their floors" in output


def test_what_is_known_of_a_spare_outlives_the_failed_probe_of_another(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit, output = probed_spares(console, monkeypatch, n6=["bad", "dead"], n7=[100.0, 50.0, 51.0])
    assert "n6 not probed, and may join: the probe did not end: rank 0 on n6 is dead" in output
    assert unfit == {"n7": "does not join: gemm float32 51 TFLOP/s is worse than its floor 90 (probe-4)"}


def test_a_spare_that_dies_in_the_common_probe_does_not_hide_a_slow_one(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit, output = probed_spares(console, monkeypatch, n6=["dead", "dead"], n7=[50.0, 50.0, 50.0])
    assert "n6 not probed, and may join" in output
    assert unfit.keys() == {"n7"}


def test_two_slow_spares_are_confirmed_one_by_one(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    unfit, output = probed_spares(console, monkeypatch, n6=[50.0, "bad"], n7=[60.0, 100.0])
    assert unfit == {"n6": "does not join: finished: rank 0 on n6 is bad (probe-2)"}
    assert "spare  n7 joins: 1 of 1 figures meet their floors (fewer than 2 peers) (probe-3)" in output
    assert Path(console.requests[-1].placement.spare_probe).name == "probe-2"


def test_an_odd_spare_is_confirmed_beside_the_peers_of_the_first_probe(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.run("down", "local", "--force")
    spares_only = test_placement.LARGE.replace("ccbed_nodes: 6, ccbed_spares: 2", "ccbed_nodes: 4, ccbed_spares: 6")
    (console.root / "many.yml").write_text(spares_only)
    console.run("up", str(console.root / "many.yml"))
    healthy: dict[str, Iterator[Outcome]] = {f"n{number}": iter([100.0 + number / 10]) for number in range(4, 9)}
    simulate_outcomes(console, monkeypatch, {**healthy, "n9": iter([70.0, 71.0])})
    console.run("run", "dp-ring", "--probe-spares", "--runs-dir", str(console.root / "runs"))
    assert [request.placement.members for request in console.requests[1:]] == [("n9",), ()]
    assert console.requests[-1].placement.unfit.keys() == {"n9"}
    assert "worse than the median of 5 peers" in console.requests[-1].placement.unfit["n9"]


def test_a_figure_without_a_value_is_not_compared(tmp_path: Path) -> None:
    directory = tmp_path / "2026-01-06T02-00-00Z-spare-probe-0001"
    lines = [figure(GEMM, "nan", "TFLOP/s", "higher", node="n4"), figure(GEMM, 100.0, "TFLOP/s", "higher", node="n5")]
    write_bundle(directory, lines, trial="spare-probe", params=PARAMS, nodes=("n4", "n5"))
    first, second = spares.judge(bundle_records.read(directory), ("n4", "n5"), baseline(floor()))
    assert (first.is_fit, first.text) == (False, f"{GEMM} was not measured; its floor is 90 TFLOP/s")
    assert second.is_fit


def test_a_night_probes_its_spares_once_before_its_first_failover(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_probes(console, monkeypatch, {"n4": 100.0})
    suite = test_placement.SUITE.replace("at: {step: 30}}]}", "at: {step: 30}}], repeats: 2}")
    _, document = night(console, suite, *write_floor(console)[:2])
    names = [request.trial.name for request in console.requests]
    assert names.count("spare-probe") == 1
    assert names.index("dp-ring") == names.index("spare-probe") + 1
    assert [request.placement.spare_probe for request in console.requests if request.trial.name == "dp-ring"] == [
        f"../2026-01-06T02-00-0{names.index('spare-probe') + 1}Z-spare-probe-0001"
    ] * 2
    assert any(note.startswith("n4 joins: 1 of 1 figures meet their floors") for note in document["notes"])


def test_a_night_skips_the_failover_of_a_slow_spare_and_warns(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_probes(console, monkeypatch, {"n4": 50.0})
    _, document = night(console, test_placement.SUITE, *write_floor(console)[:2])
    [row] = [row for row in document["rows"] if row["cell"] == "failover"]
    assert row["state"] == "skipped"
    assert row["reason"].startswith(
        "no spare is left to recover with: n4 does not join: gemm float32 50 TFLOP/s is worse"
    )
    [finding] = [judged for judged in document["findings"] if judged["finding"]["gate"] == judging.night.SPARE]
    assert (finding["state"], finding["finding"]["node"]) == ("warn", "n4")
    [directory] = (console.root / "runs").glob("*-night-*")
    assert finding["runs"] == [Path(json.loads((directory / "spares.json").read_text())["spare_probe"]).name]


def test_a_night_without_a_failover_probes_no_spare(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_probes(console, monkeypatch, {"n4": 100.0})
    night(console, "suite: s\ntrials: [gemm, allreduce]\n")
    night(console, test_placement.SUITE, "--probe-spares", "0s")
    assert "spare-probe" not in [request.trial.name for request in console.requests]


def test_a_night_with_a_node_in_quarantine_probes_the_spare_before_it_takes_the_slot(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_probes(console, monkeypatch, {"n4": 50.0})
    console.accuse("n1")
    night(console, test_placement.SUITE, *write_floor(console)[:2])
    [request] = [request for request in console.requests if request.trial.name == "allreduce"]
    assert (request.trial.world.nodes, list(request.placement.excluded)) == (3, ["n1", "n4"])

"""Hardware that is not that of earlier nights, which fails until a baseline accepts it; hosts that are busy with other work."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nightly import judging
from orchestrator.nightly.baselines import Baseline
from orchestrator.nightly.judging import busy_hosts, figures, hardware
from orchestrator.nightly.night_judgement import NightJudgement
from orchestrator.nightly.records import Key, Metric, Record

from .night_bundles import figure, write_night
from .test_judging import NIGHT, NODES, again, bad, from_night, history_of, rates, usual
from .test_judging_floors import baseline_of

EIGHT, SEVEN = ("8x H100, 64x Xeon, 512 GiB", "7x H100, 64x Xeon, 512 GiB")


def night_with(tmp_path: Path, **facts: Any) -> tuple[Path, list[Record]]:
    """Tonight with other facts of n3, and 30 nights with the usual ones."""
    night = {"gemm": rates(usual, NIGHT)}
    directory = write_night(tmp_path / "tonight", NIGHT, night, nodes=NODES, facts={"n3": facts})
    return directory, history_of(write_night(tmp_path / "before", NIGHT, night, nodes=NODES), usual)


def with_hardware(history: list[Record], since: int, kind: str, **versions: str) -> list[Record]:
    """The history with other hardware of n3 in its nights from ``since`` on."""
    return [
        dataclasses.replace(
            record, key=dataclasses.replace(record.key, hardware=kind), suspects={**record.suspects, **versions}
        )
        if record.node == "n3" and record.night >= since else record
        for record in history
    ]  # fmt: skip


def baselines_of(tmp_path: Path, *kinds: str) -> list[Baseline]:
    """Floors that every night here meets."""
    [directory] = (tmp_path / "before").iterdir()
    return [dataclasses.replace(baseline_of(directory, floor=10.0), hardware=kind) for kind in kinds]


def test_other_hardware_begins_a_new_history(tmp_path: Path) -> None:
    directory = write_night(
        tmp_path, NIGHT, {"gemm": rates(usual, NIGHT)}, nodes=NODES, facts={"n3": {"gpus": ["H200"] * 8}}
    )
    every = write_night(tmp_path / "every", NIGHT, {"gemm": rates(usual, NIGHT)}, nodes=NODES)
    judgement = judging.judge(directory, history_of(every, usual))
    assert (judgement.outcome, judgement.exit, bad(judgement)) == ("warn", 0, [("hardware", "n3", "warn")])
    assert judgement.sentence.startswith("n3: its hardware changed from 8x H100")


@pytest.mark.parametrize(
    ("facts", "kind", "lost"),
    [
        ({"gpus": ["H100"] * 7}, SEVEN, "7 of 8 GPUs"),
        ({"gpus": []}, "64x Xeon, 512 GiB", "0 of 8 GPUs"),
        (
            {"cores": 32, "memory_mib": 257_000},
            "8x H100, 32x Xeon, 256 GiB",
            "32 of 64 CPUs, 256 of 512 GiB of memory",
        ),
    ],
)
def test_a_loss_fails_on_its_first_night_and_on_every_later_one(
    tmp_path: Path, facts: dict[str, Any], kind: str, lost: str
) -> None:
    directory, history = night_with(tmp_path, **facts)
    first = judging.judge(directory, history)
    assert (first.outcome, first.exit, bad(first)) == ("fail", 1, [("hardware", "n3", "fail")])
    assert first.sentence.startswith(
        f"n3: has {lost}: its hardware was {EIGHT} on 2025-02-03T02:00:00Z, and is {kind}; to"
    )
    later = judging.judge(directory, with_hardware(history, 20, kind), baselines_of(tmp_path, EIGHT))
    assert bad(later, "hardware") == [("hardware", "n3", "fail")], "the floors of its old hardware say nothing of it"


def test_a_loss_that_a_baseline_accepts_is_none(tmp_path: Path) -> None:
    directory, history = night_with(tmp_path, gpus=["H100"] * 7)
    accepted = baselines_of(tmp_path, EIGHT, SEVEN)
    first = judging.judge(directory, history, accepted)
    assert (first.outcome, bad(first)) == ("warn", [("hardware", "n3", "warn")])
    later = judging.judge(directory, with_hardware(history, 20, SEVEN), accepted)
    assert (later.outcome, bad(later)) == ("pass", [])


def test_a_loss_is_of_a_host(tmp_path: Path) -> None:
    """A node that had more on another host has moved; what it has on this one was never more."""
    directory, history = night_with(tmp_path, gpus=["H100"] * 7)
    moved = [
        dataclasses.replace(record, suspects={**record.suspects, "host": "h9"}) if record.node == "n3" else record
        for record in history
    ]
    assert bad(judging.judge(directory, moved)) == [("hardware", "n3", "warn")]


def test_a_gpu_that_came_back_is_a_change_of_one_night(tmp_path: Path) -> None:
    directory, history = night_with(tmp_path)
    accepted = baselines_of(tmp_path, EIGHT)
    lost = with_hardware(history, 20, SEVEN)
    assert bad(judging.judge(directory, lost, accepted)) == [("hardware", "n3", "warn")]
    repaired = [
        *(record for record in lost if record.night < 30),
        *(record for record in history if record.night == 30),
    ]
    assert bad(judging.judge(directory, repaired, accepted)) == []


@pytest.mark.parametrize("since", [NIGHT, 20])
def test_other_hardware_without_floors_is_unknown_every_night_if_the_old_one_had_some(
    tmp_path: Path, since: int
) -> None:
    directory, history = night_with(tmp_path, gpus=["H200"] * 8)
    kind = "8x H200, 64x Xeon, 512 GiB"
    history = with_hardware(history, since, kind)
    judgement = judging.judge(directory, history, baselines_of(tmp_path, EIGHT))
    assert (judgement.outcome, judgement.exit) == ("unknown", 2)
    assert judgement.sentence.startswith(f"n3: no baseline has floors for its hardware, {kind}; on 20")
    without = judging.judge(directory, history)
    assert bad(without, "hardware") == ([("hardware", "n3", "warn")] if since == NIGHT else [])
    assert judging.judge(directory, history, baselines_of(tmp_path, EIGHT, kind)).outcome in ("pass", "warn")


@pytest.mark.parametrize(("kinds", "states"), [((EIGHT, SEVEN), ["fail"]), ((EIGHT, EIGHT), [])])
def test_a_gpu_that_is_lost_between_two_runs_of_a_night_fails(kinds: tuple[str, str], states: list[str]) -> None:
    metric = Metric(name="gemm", unit="TFLOP/s", better="higher")
    keys = [Key(hardware=kind, workload="node-probe", parameters=f"size={size}") for size, kind in enumerate(kinds)]
    series = {("gemm", key): figures.Series(metric, key, values={"n3": [100.0]}, cells=["gemm"]) for key in keys}
    assert [judged.state for judged in hardware.judge(series, (), {}, ())] == states


def loaded(tmp_path: Path, shares: Mapping[str, float], slowdown: float) -> NightJudgement:
    """Others take these shares of the CPUs of nodes, tonight and on every night before; a second measurement confirms n3."""
    slow = from_night(NIGHT, "n3", slowdown)
    lines = rates(slow, NIGHT)
    lines[0] += [figure("cpu used by others", shares.get(node, 0.0), "1", node=node) for node in NODES]
    directory = write_night(tmp_path, NIGHT, {"gemm": lines}, nodes=NODES, again=again(slow, NIGHT, "n3"))
    history = [
        dataclasses.replace(record, values=(shares.get(record.node, 0.0),)) if record.metric.unit == "1" else record
        for record in history_of(directory, usual)
    ]  # fmt: skip
    return judging.judge(directory, history)


def test_figures_of_a_host_that_is_always_busy_do_not_pass_and_a_defect_of_its_node_still_fails(tmp_path: Path) -> None:
    busy = loaded(tmp_path / "busy", {"n3": 0.6, "n4": 0.6}, 0.0)
    unknown = {judged.finding.node for judged in busy.cells if judged.state == "unknown"}
    assert (busy.outcome, busy.exit, unknown) == ("unknown", 2, {"n3", "n4"})
    assert [entry.partition(":")[0] for entry in busy.busy] == ["n3 on host host-n3", "n4 on host host-n4"]
    assert "not judged: other work took 60% of the CPUs of its host" in busy.sentence
    slow = loaded(tmp_path / "slow", {"n3": 0.6}, 0.3)
    assert (slow.outcome, bad(slow)) == ("fail", [("reference", "n3", "fail")])
    quiet = loaded(tmp_path / "quiet", {"n3": 0.2}, 0.0)
    assert (quiet.outcome, quiet.busy) == ("pass", ())


def test_nodes_of_one_host_are_no_others_of_each_other() -> None:
    metric = Metric(name="cpu used by others", unit="1", better="lower")
    hosts = {"n0": "h0", "n1": "h0", "n2": "h0", "n3": "h1"}
    measured = ("n0", "n1", "n2")
    for share, busy in ((2 / 3, ()), (0.8, measured)):
        records = [
            Record(night=1, node=node, metric=metric, key=Key(hardware="", workload=probe), values=(share,))
            for node in measured for probe in ("gemm", "memory")
        ]  # fmt: skip
        assert tuple(busy_hosts.crowded(records, hosts)) == busy


def test_a_host_is_busier_than_usual_only_beside_the_same_trial_of_earlier_nights() -> None:
    metric = Metric(name="cpu used by others", unit="1", better="lower")
    shares = ((1, "memory", 0.05), (1, "health", 0.6), (2, "memory", 0.6), (2, "health", 0.6))
    records = [
        Record(night=night, node="n0", metric=metric, key=Key(hardware="", workload=trial), values=(share,))
        for night, trial, share in shares
    ]  # fmt: skip
    assert busy_hosts.busy(records[:2]) == {}
    assert busy_hosts.busy(records) == {
        (2, "n0"): "other work took 60% of the CPUs of its host (cpu used by others; usual 5%)"
    }

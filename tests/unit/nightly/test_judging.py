"""A night is judged from its directory, the recorded nights before it and the baselines: every gate fails what it must, and only that."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model import codec
from orchestrator.nightly import judging, levels, night_files
from orchestrator.nightly.app import night_end
from orchestrator.nightly.judging import figures
from orchestrator.nightly.judging.night import read_runs
from orchestrator.nightly.night_judgement import NightJudgement, suspects_of
from orchestrator.nightly.records import Record
from orchestrator.nightly.suite import RUNS, Cell, MetricRule, Row
from orchestrator.store import paths

from .night_bundles import figure, probe_done, write_night

NODES = tuple(f"n{number}" for number in range(8))
NIGHT = 31
Value = Callable[[int, str, int], float]


def usual(night: int, node: str, repeat: int) -> float:
    """A rate with the spread of real ones: 2 % between nodes, 1 % between days, 0.5 % between nights, 0.3 % between repeats."""
    noise = random.Random(f"{night} {node} {repeat}").gauss(0, 0.003) + random.Random(f"{night} {node}").gauss(0, 0.005)
    day, own = random.Random(f"day {night}").gauss(0, 0.01), random.Random(node).gauss(0, 0.02)
    return 100 * math.exp(noise + day + own)


def rates(value: Value, night: int, repeats: int = 5, nodes: Sequence[str] = NODES) -> list[list[dict[str, Any]]]:
    """The figures of a night's repeats: a rate of every node."""
    return [
        [figure("gemm", value(night, node, repeat), "TFLOP/s", "higher", node=node, rank=0) for node in nodes]
        for repeat in range(repeats)
    ]


def records_of(directory: Path) -> list[Record]:
    """As the index has them."""
    night = night_files.read_night(directory)
    runs, _ = read_runs(directory, night_files.read_rows(directory), night_files.read_night(directory))
    series = figures.collect(runs).values()
    return [record for entry in series for record in entry.records(night.number, night.started)]


def history_of(directory: Path, value: Value, nights: int = NIGHT - 1) -> list[Record]:
    """Earlier nights with the keys of tonight's rates."""
    tonight = records_of(directory)
    return [
        dataclasses.replace(
            record, night=night, date=f"2025-{1 + night // 28:02d}-{1 + night % 28:02d}T02:00:00Z",
            values=tuple(value(night, record.node, repeat) for repeat in range(5)), again=(),
        )
        for night in range(1, nights + 1) for record in tonight
    ]  # fmt: skip


def judge(tmp_path: Path, value: Value, *, nights: int = NIGHT - 1, **options: Any) -> NightJudgement:
    """The last of the nights; ``value`` is that of all."""
    night = nights + 1
    directory = write_night(tmp_path, night, {"gemm": rates(value, night)}, nodes=NODES, **options)
    return judging.judge(directory, history_of(directory, value, nights))


def bad(judgement: NightJudgement, *gates: str) -> list[tuple[str, str | None, str]]:
    return [
        (judged.finding.gate, judged.finding.node, judged.state) for judged in judgement.findings
        if judged.state not in ("pass", "unknown") and (not gates or judged.finding.gate in gates)
    ]  # fmt: skip


def from_night(night: int, node: str, slowdown: float) -> Value:
    """A step of one node."""
    return lambda number, name, repeat: (
        usual(number, name, repeat) * (1 - slowdown if number >= night and name == node else 1)
    )


def test_a_clean_night_passes_with_every_node_compared(tmp_path: Path) -> None:
    judgement = judge(tmp_path, usual)
    assert (judgement.outcome, judgement.exit, bad(judgement)) == ("pass", 0, [])
    known = {(judged.finding.gate, judged.finding.node) for judged in judgement.findings if judged.state == "pass"}
    assert known == {("fleet", None), *(("reference", node) for node in NODES)}
    assert (len(judgement.cells), len(judgement.fleet), judgement.history) == (8, 1, "")
    assert len(judgement.earlier) == 30
    assert judgement.sentence == "No metric is worse than its reference; runs: 5 passed."


def again(value: Value, night: int, *nodes: str) -> dict[str, list[list[dict[str, Any]]]]:
    """A second measurement of these nodes: another repeat of the night."""
    return {"gemm": [[figure("gemm", value(night, node, 9), "TFLOP/s", "higher", node=node, rank=0) for node in nodes]]}


def test_a_slow_node_warns_asks_for_a_second_measurement_and_fails_by_it(tmp_path: Path) -> None:
    slow = from_night(NIGHT, "n3", 0.1)
    first = judge(tmp_path / "first", slow)
    assert (first.outcome, first.exit, bad(first)) == ("warn", 0, [("reference", "n3", "warn")])
    assert suspects_of(first) == {("gemm", ("n3",)): ("gemm",)}
    second = judge(tmp_path / "second", slow, again=again(slow, NIGHT, "n3"))
    assert (second.outcome, second.exit, bad(second)) == ("fail", 1, [("reference", "n3", "fail")])
    assert suspects_of(second) == {}
    [finding] = [judged for judged in second.findings if judged.state == "fail"]
    assert finding.value == pytest.approx(90, rel=0.1)
    assert (finding.unit, finding.cell, len(finding.runs)) == ("TFLOP/s", "gemm", 6)
    assert finding.reference == "the median of its 20 earlier nights"
    assert finding.compared and finding.compared.change == pytest.approx(-0.1, abs=0.02)
    assert finding.compared.change_again == pytest.approx(-0.1, abs=0.02)
    pattern = r"n3: gemm -\d+\.\d% against its 20 earlier nights, twice tonight \(again -\d+\.\d%\); limit 5%"
    assert re.match(pattern, second.sentence), second.sentence
    healed = judge(tmp_path / "healed", slow, again=again(usual, NIGHT, "n3"))
    assert (healed.outcome, bad(healed)) == ("warn", [("reference", "n3", "warn")])
    assert ": flaky; limit 5%" in healed.sentence


def test_a_night_after_one_is_judged(tmp_path: Path) -> None:
    judgement = judge(tmp_path, from_night(2, "n3", 0.4), nights=1, again=again(from_night(2, "n3", 0.4), 2, "n3"))
    assert bad(judgement) == [("reference", "n3", "fail")]


def test_a_step_long_ago_still_fails_and_names_the_night(tmp_path: Path) -> None:
    judgement = judge(tmp_path, from_night(25, "n5", 0.1), nights=45)
    [finding] = [judged.finding for judged in judgement.findings if judged.state == "fail"]
    assert (finding.node, finding.since) == ("n5", "2025-01-26T02:00:00Z")


def test_an_odd_node_on_the_first_night_is_a_suspect_and_no_failure(tmp_path: Path) -> None:
    judgement = judge(tmp_path, from_night(1, "n6", 0.5), nights=0)
    assert (judgement.outcome, judgement.exit, bad(judgement)) == ("warn", 0, [("reference", "n6", "warn")])
    assert re.match(r"n6: gemm is -\d+\.\d% beside 7 equal nodes; limit \d+.*%, first night;", judgement.sentence)


def test_peers_that_differ_widely_are_unknown_and_no_pass(tmp_path: Path) -> None:
    judgement = judge(tmp_path, lambda night, node, repeat: 100 * 2 ** (int(node[1:]) % 4), nights=0)
    assert {judged.state for judged in judgement.cells} == {"unknown"}
    assert (judgement.outcome, judgement.exit) == ("unknown", 2)
    assert "its equal nodes differ too much to see an odd one" in judgement.cells[0].finding.text
    beside = [judged for judged in judgement.cells if "beside them" in judged.finding.text]
    assert {(judged.finding.node, judged.is_counted) for judged in beside} == {
        (node, True) for node in ("n0", "n1", "n3", "n4", "n5", "n7")
    }


def test_a_majority_of_slow_nodes_on_a_first_night_is_no_pass(tmp_path: Path) -> None:
    lines = rates(lambda *of: usual(*of) * (1.0 if of[1] == "n0" else 0.7), 1, nodes=NODES[:3])
    judgement = judging.judge(write_night(tmp_path, 1, {"gemm": lines}, nodes=NODES[:3]), ())
    assert bad(judgement) == [("reference", "n0", "warn")]
    assert "n0: gemm is +40.5% beside 2 equal nodes; limit 16.4%, first night; they may be slow" in judgement.sentence


def test_the_first_night_of_two_nodes_is_the_reference_and_unknown(tmp_path: Path) -> None:
    directory = write_night(tmp_path, 1, {"gemm": rates(usual, 1, nodes=NODES[:2])}, nodes=NODES[:2])
    judgement = judging.judge(directory, ())
    assert (judgement.outcome, judgement.exit, bad(judgement)) == ("unknown", 2, [])
    assert judgement.history == "reference set: night 1 for gemm of n0, n1"
    assert judgement.sentence.startswith("Nothing to compare with yet: this night is the reference of the next ones")
    assert judging.judge(directory, history_of(directory, usual, nights=0)).outcome == "unknown"


def test_two_nodes_that_differ_on_their_first_night_are_told_and_none_is_named(tmp_path: Path) -> None:
    lines = rates(from_night(1, "n1", 0.6), 1, nodes=NODES[:2])
    judgement = judging.judge(write_night(tmp_path, 1, {"gemm": lines}, nodes=NODES[:2]), ())
    assert bad(judgement) == [("reference", None, "warn")]
    assert "n1 and n0 differ: gemm of n1 is -59.3%" in judgement.sentence
    assert "which one is odd cannot be told" in judgement.sentence


@pytest.mark.parametrize(("usual_share", "outcome"), [(0.0, "unknown"), (0.8, "warn")])
def test_a_host_that_is_busier_than_usual_makes_figures_unknown(
    tmp_path: Path, usual_share: float, outcome: str
) -> None:
    lines = rates(from_night(NIGHT, "n3", 0.3), NIGHT)
    lines[0] += [figure("cpu used by others", 0.8 if node == "n3" else 0.0, "1", node=node) for node in NODES]
    directory = write_night(tmp_path, NIGHT, {"gemm": lines}, nodes=NODES)
    history = [
        dataclasses.replace(record, values=(usual_share,)) if record.metric.name == "cpu used by others" else record
        for record in history_of(directory, usual)
    ]
    judgement = judging.judge(directory, history)
    assert judgement.outcome == outcome
    reason = "n3: gemm is not judged: other work took 80% of the CPUs of its host (cpu used by others; usual 0%)"
    assert judgement.sentence.startswith(reason) is (outcome == "unknown")


def test_a_second_measurement_belongs_to_its_figure_whatever_its_host_has_beside_it(tmp_path: Path) -> None:
    """Alone on its host a node has another key, and it is no other hardware for that."""
    slow = from_night(NIGHT, "n3", 0.1)
    facts = {"n3": {"memory_mib": 100_000}}
    directory = write_night(tmp_path / "runs", NIGHT, {"gemm": rates(slow, NIGHT)}, nodes=NODES)
    alone = write_night(tmp_path / "alone", NIGHT, {"gemm": rates(slow, NIGHT, 1, ["n3"])}, nodes=["n3"], facts=facts)
    [run] = (alone / RUNS).iterdir()
    run.rename(directory / RUNS / f"{run.name}2")
    row = Row(cell="gemm", repeat=9, state="passed", run=f"{run.name}2", exit=0, again="n1")
    with (directory / "night.jsonl").open("a") as journal:
        journal.write(json.dumps(codec.plain(row)) + "\n")
    judgement = judging.judge(directory, history_of(directory, usual))
    assert bad(judgement) == [("reference", "n3", "fail")]


def test_an_accepted_level_is_the_new_reference(tmp_path: Path) -> None:
    slow = from_night(25, "n3", 0.1)
    for name, accepted, outcome in (
        ("none", [], "fail"), ("node", [levels.Level(bed="lab", night=26, nodes=("n3",), because="new card")], "pass"),
        ("other", [levels.Level(bed="lab", night=26, nodes=("n4",))], "fail"),
        ("bed", [levels.Level(bed="other", night=26)], "fail"), ("metric", [levels.Level(bed="lab", night=26, metrics=("disk",))], "fail"),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        levels.add(tmp_path / name, accepted)
        judgement = judge(tmp_path / name, slow, again=again(slow, NIGHT, "n3"))
        assert judgement.outcome == outcome, name
    (tmp_path / "bed" / levels.FILE).write_text('{"bed": "lab"}\n')
    with pytest.raises(paths.TornBundleError, match=r"levels.jsonl:1: not an accepted level"):
        levels.read(tmp_path / "bed", "lab")


def test_a_change_of_the_whole_fleet_names_the_driver(tmp_path: Path) -> None:
    directory = write_night(
        tmp_path, NIGHT, {"gemm": rates(lambda *where: usual(*where) * 0.93, NIGHT)}, nodes=NODES,
        facts={node: {"driver": "580.170"} for node in NODES},
    )  # fmt: skip
    history = [
        dataclasses.replace(record, suspects={**record.suspects, "driver": "580.159"})
        for record in history_of(directory, usual)
    ]
    judgement = judging.judge(directory, history)
    assert bad(judgement) == [("fleet", None, "warn")]
    assert judgement.sentence.startswith("all 8 nodes together: gemm -")
    assert "driver 580.159 -> 580.170 on 8 of 8 nodes" in judgement.sentence


def test_the_host_is_named_when_a_node_moved(tmp_path: Path) -> None:
    directory = write_night(tmp_path, NIGHT, {"gemm": rates(lambda *where: usual(*where) * 0.93, NIGHT)}, nodes=NODES)
    history = history_of(directory, usual)
    moved = [
        dataclasses.replace(record, suspects={**record.suspects, "host": "h9"}) if record.node == "n3" else record
        for record in history
    ]
    assert "; changed: host h9 -> host-n3 on 1 of 8 nodes" in judging.judge(directory, moved).sentence
    without = [
        dataclasses.replace(
            record, suspects={name: version for name, version in record.suspects.items() if name != "host"}
        )
        for record in history
    ]
    assert "no recorded version changed" in judging.judge(directory, without).sentence


def gang(tmp_path: Path, factor: float, **options: Any) -> tuple[Path, list[Record]]:
    """An all-reduce of the whole gang tonight, and 30 nights before it."""

    def bandwidth(night: int) -> float:
        return 50 * math.exp(random.Random(night).gauss(0, 0.003))

    repeats = [[figure("all-reduce ring busbw", bandwidth(NIGHT) * factor, "GB/s", "higher", size=1 << 22)]] * 3
    directory = write_night(tmp_path, NIGHT, {"allreduce": repeats}, nodes=NODES, workload="collective", **options)
    [tonight] = records_of(directory)
    before = dataclasses.replace(tonight, date="", suspects={**tonight.suspects, "driver": "580.158"})
    nights = range(1, NIGHT)
    return directory, [dataclasses.replace(before, night=night, values=(bandwidth(night),) * 3) for night in nights]


def test_a_gang_has_no_peers_and_names_the_driver_with_its_slowdown(tmp_path: Path) -> None:
    judgement = judging.judge(*gang(tmp_path, 0.8))
    assert {judged.finding.gate for judged in judgement.findings} == {"reference"}
    assert suspects_of(judgement) == {("allreduce", ()): ("all-reduce ring 4 MiB busbw",)}
    texts = [judged.finding.text for judged in judgement.findings]
    assert texts[0].startswith("all-reduce ring 4 MiB busbw -19.9% against its 20 earlier nights, not measured again;")
    assert texts[0].endswith("changed that night: driver 580.158 -> 580.159")
    assert judging.judge(*gang(tmp_path / "clean", 1)).outcome == "pass"


@pytest.mark.parametrize(
    ("row", "outcome", "exit_code"),
    [
        (Row(cell="gemm", repeat=9, state="failed", exit=1, reason="finished fails"), "fail", 1),
        (Row(cell="gemm", repeat=9, state="unfinished", reason="over its deadline"), "fail", 1),
        (Row(cell="gemm", repeat=9, state="unknown", exit=2), "unknown", 2),
        (Row(cell="gemm", repeat=9, state="error", exit=4, reason="node n3 is lost"), "unknown", 4),
        (Row(cell="gemm", repeat=9, state="skipped", reason="over the budget"), "pass", 0),
    ],
)
def test_rows_that_did_not_pass_count(tmp_path: Path, row: Row, outcome: str, exit_code: int) -> None:
    judgement = judging.judge(write_night(tmp_path, 1, {"gemm": rates(usual, 1)}, nodes=NODES, rows=[row]), ())
    assert (judgement.outcome, judgement.exit) == (outcome, exit_code)


def test_a_night_of_skipped_rows_or_without_rows_is_unknown(tmp_path: Path) -> None:
    row = Row(cell="gemm", repeat=0, state="skipped", reason="over the budget")
    cell = Cell(name="gemm", trial="probe", rules=(MetricRule(metric="gemm", floor=90.0),))
    for name, rows in (("skipped", [row]), ("empty", [])):
        judgement = judging.judge(write_night(tmp_path / name, 1, {}, cells=[cell], rows=rows), ())
        assert (judgement.outcome, judgement.exit) == ("unknown", 2)


def test_a_metric_that_became_nan_is_unknown_with_a_note(tmp_path: Path) -> None:
    repeats = rates(usual, NIGHT)
    for repeat in repeats:
        repeat[2]["value"] = "nan"
    directory = write_night(tmp_path, NIGHT, {"gemm": repeats}, nodes=NODES)
    judgement = judging.judge(directory, history_of(directory, usual))
    assert (judgement.outcome, judgement.exit) == ("unknown", 2)
    assert judgement.sentence.startswith("n2: gemm was not measured")
    assert judgement.notes == ("gemm: n2: gemm is nan: not a number that can be compared",)


def test_a_passed_run_without_figures_or_without_known_hardware_is_unknown(tmp_path: Path) -> None:
    empty = judging.judge(write_night(tmp_path / "a", 1, {"gemm": [[]]}, nodes=NODES), ())
    assert (empty.outcome, empty.exit) == ("unknown", 2)
    assert "it has no figure that can be compared" in empty.sentence
    unknown = write_night(tmp_path / "b", 1, {"gemm": rates(usual, 1)}, nodes=NODES, facts={"n3": {"cpu": ""}})
    judgement = judging.judge(unknown, ())
    assert (judgement.outcome, judgement.exit) == ("unknown", 2)
    assert "the hardware of n3 is not known" in judgement.sentence


def test_a_damaged_bundle_is_left_out_and_its_row_unknown(tmp_path: Path) -> None:
    directory = write_night(tmp_path, NIGHT, {"gemm": rates(usual, NIGHT)}, nodes=NODES)
    history = history_of(directory, usual)
    (min((directory / RUNS).iterdir()) / "plan.json").write_text('{"run":')
    judgement = judging.judge(directory, history)
    assert (judgement.outcome, judgement.exit) == ("unknown", 2)
    assert "plan.json" in judgement.notes[0]


def test_nodes_gone_or_absent_are_notes_and_no_defect(tmp_path: Path) -> None:
    tonight = [node for node in NODES if node not in ("n0", "n7")]
    every = write_night(tmp_path / "every", NIGHT, {"gemm": rates(usual, NIGHT)}, nodes=NODES)
    history = history_of(every, usual)
    directory = write_night(tmp_path, NIGHT, {"gemm": rates(usual, NIGHT, nodes=tonight)}, nodes=tonight)
    document = json.loads((directory / "night.json").read_text())
    document["hosts"]["n0"] = "host-n0"
    (directory / "night.json").write_text(json.dumps(document))
    judgement = judging.judge(directory, history)
    assert (judgement.outcome, judgement.exit) == ("pass", 0)
    last = "it was last measured on 2025-02-03T02:00:00Z"
    assert judgement.notes == (f"n0 took no part tonight; {last}", f"n7 is no longer part of the bed; {last}")


@pytest.mark.parametrize("is_drained", [True, False])
def test_a_ticket_for_a_node_on_a_drained_host_has_not_passed(tmp_path: Path, is_drained: bool) -> None:
    """Without the drain the node has left the bed, and with it the defect."""
    tonight = NODES[:-1]
    cell = Cell(name="gemm", trial="probe", rules=(MetricRule(metric="gemm", xfail="OPS-17"),))
    every = write_night(tmp_path / "every", NIGHT, {"gemm": rates(usual, NIGHT)}, nodes=NODES)
    directory = write_night(tmp_path, NIGHT, {"gemm": rates(usual, NIGHT, nodes=tonight)}, nodes=tonight, cells=[cell])
    document = json.loads((directory / "night.json").read_text())
    drained = {"n7": "is on host host-n7, which is set aside since x by y: a fan"} if is_drained else {}
    (directory / "night.json").write_text(json.dumps({**document, "drained": drained}))
    judgement = judging.judge(directory, history_of(every, usual))
    assert (judgement.outcome, len(bad(judgement, "xfail"))) == (("pass", 0) if is_drained else ("fail", 1))
    (note,) = judgement.notes
    assert note.endswith("it takes no part") if is_drained else "no longer part of the bed" in note


def test_a_casual_night_says_which_recorded_nights_it_cannot_use(tmp_path: Path) -> None:
    directory = write_night(tmp_path, NIGHT, {"gemm": rates(usual, NIGHT)}, nodes=NODES)
    history = history_of(directory, usual)
    document = json.loads((directory / "night.json").read_text())
    (directory / "night.json").write_text(json.dumps({**document, "number": 0, "started": "2020-01-01T00:00:00Z"}))
    judgement = judging.judge(directory, history)
    assert judgement.earlier == ()
    assert "30 recorded nights are dated after this one" in judgement.notes[0]


def test_a_clock_that_went_backwards_is_a_note(tmp_path: Path) -> None:
    directory = write_night(tmp_path, NIGHT, {"gemm": rates(usual, NIGHT)}, nodes=NODES)
    history = [
        dataclasses.replace(record, date="2030-01-01T00:00:00Z") if record.night == NIGHT - 1 else record
        for record in history_of(directory, usual)
    ]
    judgement = judging.judge(directory, history)
    assert judgement.outcome == "pass"
    assert "the clock went backwards" in judgement.notes[0]


@pytest.mark.parametrize(
    ("changed", "outcome", "state"),
    [
        (range(NIGHT - 1, NIGHT), "unknown", "pass"),  # tonight has another unit than the last night
        (range(1, 6), "pass", "pass"),  # long ago
        (range(NIGHT - 4, NIGHT - 3), "pass", "pass"),  # for one night, and back again
        (range(1, NIGHT), "unknown", "pass"),  # no night has the unit of tonight: beside the equal nodes
    ],
)
def test_a_unit_that_changed_is_unknown_in_that_night_only(
    tmp_path: Path, changed: range, outcome: str, state: str
) -> None:
    """The nights with the unit of tonight are compared, whatever other nights have."""
    directory = write_night(tmp_path, NIGHT, {"gemm": rates(usual, NIGHT)}, nodes=NODES)
    other = dataclasses.replace(records_of(directory)[0].metric, unit="GFLOP/s")
    history = [
        dataclasses.replace(record, metric=other) if record.night in changed else record
        for record in history_of(directory, usual)
    ]
    judgement = judging.judge(directory, history)
    assert judgement.outcome == outcome
    assert ("changed its unit or direction" in judgement.sentence) is (outcome == "unknown")
    assert {judged.state for judged in judgement.findings if judged.finding.gate == "reference"} == {state}


def write_bits(directory: Path, digests: Mapping[str, str]) -> None:
    """The digests that the nodes computed, in the history of the night's only run."""
    [run] = (directory / RUNS).iterdir()
    lines = []
    for number, (node, digest) in enumerate(digests.items(), start=1):
        bits = {"device": "H100", "software": "torch 2.13", "digest": digest, "seconds": 2.0}
        lines.append(json.dumps(probe_done(number, node, {"probe": "sdc", "bits": [bits]})))
    (run / "history.jsonl").write_text("\n".join(lines) + "\n")


def test_a_node_whose_bits_differ_fails_and_equal_bits_are_no_pass(tmp_path: Path) -> None:
    nodes = NODES[:4]
    figures_of_sdc = [[figure("seconds", 2.0, node=node) for node in nodes]]
    odd = write_night(tmp_path / "odd", 1, {"sdc": figures_of_sdc}, nodes=nodes)
    write_bits(odd, {"n0": "aa", "n1": "aa", "n2": "ab", "n3": "aa"})
    judgement = judging.judge(odd, ())
    assert (judgement.outcome, bad(judgement)) == ("fail", [("sdc", "n2", "fail")])
    equal = write_night(tmp_path / "equal", 1, {"sdc": figures_of_sdc}, nodes=nodes)
    write_bits(equal, dict.fromkeys(nodes, "aa"))
    judgement = judging.judge(equal, ())
    [finding] = [judged for judged in judgement.findings if judged.finding.gate == "sdc"]
    assert (judgement.outcome, finding.state, finding.is_counted) == ("pass", "unknown", False)
    assert "no mismatch in 8 device-seconds on 4 nodes" in finding.finding.text


def test_digests_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    directory = write_night(tmp_path, 1, {"sdc": [[figure("seconds", 2.0, node="n0")]]})
    [run] = (directory / RUNS).iterdir()
    (run / "history.jsonl").write_text("{}\n{}\n")
    judgement = judging.judge(directory, ())
    assert (judgement.outcome, judgement.exit) == ("unknown", 2)
    assert judgement.sentence.startswith(f"the digests of {run.name} cannot be read")


def test_an_error_of_a_gate_is_an_unknown_night_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise ValueError("two definitions")

    monkeypatch.setattr(judging, "judge", fail)
    directory = write_night(tmp_path, 1, {"gemm": rates(usual, 1)}, nodes=NODES)
    judgement = night_end._judge(directory, night_files.read_rows(directory), night_end.History(), tmp_path)
    assert (judgement.outcome, judgement.exit) == ("unknown", 2)
    assert judgement.sentence == "The night cannot be judged: internal error: ValueError: two definitions."


def test_judging_again_gives_the_same_bytes_and_later_nights_change_nothing(tmp_path: Path) -> None:
    directory = write_night(tmp_path, NIGHT, {"gemm": rates(from_night(NIGHT - 1, "n3", 0.06), NIGHT)}, nodes=NODES)
    history = history_of(directory, from_night(NIGHT - 1, "n3", 0.06))
    later = [dataclasses.replace(record, night=NIGHT + 1, values=(1.0,)) for record in history[:8]]

    def write(records: Sequence[Record]) -> bytes:
        night_files.write_judgement(directory, judging.judge(directory, records))
        return (directory / "findings.json").read_bytes()

    first = write(history)
    assert write(list(reversed(history))) == first == write([*history, *later])
    assert night_files.read_judgement(directory) == codec.build(NightJudgement, json.loads(first))


def test_a_casual_night_is_compared_with_the_nights_before_it(tmp_path: Path) -> None:
    directory = write_night(tmp_path, NIGHT, {"gemm": rates(usual, NIGHT)}, nodes=NODES)
    history = history_of(directory, usual)
    document = json.loads((directory / "night.json").read_text())
    (directory / "night.json").write_text(json.dumps({**document, "number": 0}))
    judgement = judging.judge(directory, history)
    assert (judgement.outcome, len(judgement.earlier)) == ("pass", NIGHT - 1)


def test_a_night_that_is_no_night_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="not a night"):
        judging.judge(tmp_path, ())

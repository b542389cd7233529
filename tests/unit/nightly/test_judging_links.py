"""The directions of links in a night: culprits by pairs, where nodes have links of their own and units are equal."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from orchestrator.nightly import judging
from orchestrator.nightly.night_judgement import Judged, NightJudgement

from .night_bundles import figure, write_night
from .test_judging import NODES, bad, records_of


def links(slow: Mapping[str, float], unmeasured: Collection[str] = ()) -> list[list[dict[str, Any]]]:
    """The time of a byte in every direction; a slow one takes longer by a ratio. ``unmeasured``: directions, and nodes with all theirs."""
    lines = []
    for repeat in range(5):
        rng = random.Random(repeat)
        for sender in range(6):
            for receiver in range(6):
                names = {f"n{sender}", f"n{receiver}", f"n{sender}->n{receiver}"}
                if sender != receiver and names.isdisjoint(unmeasured):
                    factor = slow.get(f"n{sender}->n{receiver}", 1.0) * math.exp(rng.gauss(0, 0.003))
                    lines.append(figure(f"link {sender}-{receiver} beta", 1e-9 * factor, "s/byte", node=f"n{sender}"))
    return [lines]


def test_a_slow_direction_is_named_on_the_first_night(tmp_path: Path) -> None:
    options: dict[str, Any] = {"nodes": NODES[:6], "workload": "collective"}
    slow = write_night(tmp_path / "slow", 1, {"links": links({"n1->n4": 1.25})}, **options)
    judgement = judging.judge(slow, ())
    assert (judgement.outcome, bad(judgement, "pairs")) == ("warn", [("pairs", None, "warn")])
    judged = pairs_of(judgement)
    assert judged.finding.culprits == ("direction n1 -> n4",)
    clean = judging.judge(write_night(tmp_path / "clean", 1, {"links": links({})}, **options), ())
    assert (clean.outcome, clean.exit) == ("pass", 0)


def pairs_of(judgement: NightJudgement) -> Judged:
    [judged] = [judged for judged in judgement.findings if judged.finding.gate == "pairs"]
    return judged


def judge_with_history(
    tmp_path: Path, tonight: list[list[dict[str, Any]]], before: list[list[dict[str, Any]]], nights: int = 14
) -> Judged:
    """The pairs of a night after ``nights`` with the figures ``before``."""
    options: dict[str, Any] = {"nodes": NODES[:6], "workload": "collective"}
    directory = write_night(tmp_path / "tonight", nights + 1, {"links": tonight}, **options)
    earlier = write_night(tmp_path / "before", 1, {"links": before}, **options)
    history = [
        dataclasses.replace(record, night=night) for night in range(1, nights + 1) for record in records_of(earlier)
    ]
    return pairs_of(judging.judge(directory, history))


def test_a_slowdown_of_all_links_accuses_no_node(tmp_path: Path) -> None:
    every = {f"n{a}->n{b}": 1.15 for a in range(6) for b in range(6)}
    judged = judge_with_history(tmp_path, links(every), links({}))
    assert (judged.state, judged.finding.culprits) == ("warn", ())
    assert "the 30 pairs together are 13% slower than usual" in judged.finding.text


def test_a_direction_without_a_value_leaves_the_reference_of_the_others(tmp_path: Path) -> None:
    """One direction is always slow: only beside its own past it is no culprit. A new one has no past, and is left out."""
    usual = {"n0->n3": 1.3}
    judged = judge_with_history(tmp_path / "missing", links({**usual, "n1->n4": 1.3}, ["n2->n5"]), links(usual))
    assert judged.finding.culprits == ("direction n1 -> n4",)
    assert judged.finding.text.endswith("; not measured: n2 -> n5; one run, not confirmed by another")
    judged = judge_with_history(tmp_path / "new", links({**usual, "n1->n4": 1.3}), links(usual, ["n2->n5"]))
    assert judged.finding.culprits == ("direction n1 -> n4",)
    assert judged.reference == "the same directions on earlier nights"
    assert "not measured" not in judged.finding.text


def test_a_node_whose_links_were_not_measured_leaves_the_night_unknown(tmp_path: Path) -> None:
    options: dict[str, Any] = {"nodes": NODES[:6], "workload": "collective"}
    judgement = judging.judge(write_night(tmp_path, 1, {"links": links({}, ["n5"])}, **options), ())
    assert (judgement.outcome, judgement.exit) == ("unknown", 2)
    assert pairs_of(judgement).finding.text.endswith("; not measured: n5")
    [healthy] = [
        judged.finding for judged in judging.judge(
            write_night(tmp_path / "quarantined", 1, {"links": links({}, ["n5->n4"])}, **options), (), (), ["n5"]
        ).findings if judged.finding.gate == "pairs"
    ]  # fmt: skip
    assert healthy.outcome == "pass", "a node in quarantine is no gap between the healthy ones"


def test_a_part_that_one_run_names_is_not_confirmed(tmp_path: Path) -> None:
    """``runs`` of the finding says how many rounds it rests on."""
    options: dict[str, Any] = {"nodes": NODES[:6], "workload": "collective"}
    rounds = links({f"n2->n{peer}": 1.25 for peer in range(6)})
    for count, is_confirmed in ((1, False), (2, True)):
        night = write_night(tmp_path / str(count), 1, {"links": rounds * count}, **options)
        judged = pairs_of(judging.judge(night, ()))
        assert (judged.finding.culprits, len(judged.runs)) == (("egress n2",), count)
        assert judged.finding.text.endswith("; one run, not confirmed by another") != is_confirmed


def test_links_whose_unit_changed_are_judged_without_the_nights_before(tmp_path: Path) -> None:
    directory = write_night(tmp_path, 2, {"links": links({})}, nodes=NODES[:6], workload="collective")
    past = [
        dataclasses.replace(record, night=1, metric=dataclasses.replace(record.metric, unit="ns/byte"))
        for record in records_of(directory)
    ]
    judgement = judging.judge(directory, past)
    assert (judgement.outcome, judgement.exit) == ("unknown", 2)
    assert "changed its unit or direction" in judgement.sentence
    assert pairs_of(judgement).state == "pass"


def test_directions_between_nodes_of_one_host_are_not_judged(tmp_path: Path) -> None:
    options: dict[str, Any] = {"nodes": NODES[:6], "workload": "collective", "hosts": dict.fromkeys(NODES, "h0")}
    judgement = judging.judge(write_night(tmp_path, 1, {"links": links({"n1->n4": 1.25})}, **options), ())
    [judged] = judgement.findings
    assert (judgement.outcome, judged.state, judged.is_counted) == ("pass", "unknown", False)
    assert "not judged: n0, n1, n2, n3, n4 and n5 share host h0 and have no link of their own" in judged.finding.text


def test_gates_of_history_judge_no_direction_between_nodes_of_one_host(tmp_path: Path) -> None:
    """A direction that got slower fails between hosts, and is not judged within one: there is no link."""
    for name, hosts, outcome in (("own", None, "fail"), ("shared", {"n1": "h0", "n4": "h0"}, "pass")):
        options: dict[str, Any] = {"nodes": NODES[:6], "workload": "collective", "hosts": hosts}
        directory = write_night(tmp_path / name, 40, {"links": links({"n1->n4": 1.5})}, **options)
        usual = records_of(write_night(tmp_path / f"{name} before", 1, {"links": links({})}, **options))
        # Equal repeats of all nights would have no spread at all.
        history = [
            dataclasses.replace(
                record, night=night, key=records_of(directory)[0].key,
                values=tuple(value * math.exp(random.Random(f"{night} {record.node}").gauss(0, 0.003)) for value in record.values),
            )
            for night in range(1, 39) for record in usual
        ]  # fmt: skip
        history += [dataclasses.replace(record, night=39) for record in records_of(directory)]
        judgement = judging.judge(directory, history)
        failed = {(gate, node) for gate, node, state in bad(judgement) if state == "fail"}
        assert failed == ({("reference", "n1->n4")} if outcome == "fail" else set())
        left_out = [
            judged.is_counted for judged in judgement.findings
            if "n1 and n4 share host h0 and have no link of their own" in judged.finding.text
        ]  # fmt: skip
        assert left_out == ([False] if outcome == "pass" else [])

"""The directions of links in a night: culprits by pairs, where nodes have links of their own and units are equal."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.nightly import judging

from .night_bundles import figure, write_night
from .test_judging import NODES, bad, records_of


def links(slow: Mapping[str, float]) -> list[list[dict[str, Any]]]:
    """The time of a byte in every direction; a slow one takes longer by a ratio."""
    lines = []
    for repeat in range(5):
        rng = random.Random(repeat)
        for sender in range(6):
            for receiver in range(6):
                if sender != receiver:
                    factor = slow.get(f"n{sender}->n{receiver}", 1.0) * math.exp(rng.gauss(0, 0.003))
                    lines.append(figure(f"link {sender}-{receiver} beta", 1e-9 * factor, "s/byte", node=f"n{sender}"))
    return [lines]


def test_a_slow_direction_is_named_on_the_first_night(tmp_path: Path) -> None:
    options: dict[str, Any] = {"nodes": NODES[:6], "workload": "collective"}
    slow = write_night(tmp_path / "slow", 1, {"links": links({"n1->n4": 1.25})}, **options)
    judgement = judging.judge(slow, ())
    assert (judgement.outcome, bad(judgement)) == ("warn", [("pairs", None, "warn")])
    [judged] = [judged for judged in judgement.findings if judged.state == "warn"]
    assert judged.finding.culprits == ("direction n1 -> n4",)
    clean = judging.judge(write_night(tmp_path / "clean", 1, {"links": links({})}, **options), ())
    assert (clean.outcome, clean.exit) == ("pass", 0)


def test_links_whose_unit_changed_are_judged_without_the_nights_before(tmp_path: Path) -> None:
    directory = write_night(tmp_path, 2, {"links": links({})}, nodes=NODES[:6], workload="collective")
    past = [
        dataclasses.replace(record, night=1, metric=dataclasses.replace(record.metric, unit="ns/byte"))
        for record in records_of(directory)
    ]
    judgement = judging.judge(directory, past)
    assert (judgement.outcome, judgement.exit) == ("unknown", 2)
    assert "changed its unit or direction" in judgement.sentence
    [pairs] = [judged for judged in judgement.findings if judged.finding.gate == "pairs"]
    assert pairs.state == "pass"


def test_directions_between_nodes_of_one_host_are_not_judged(tmp_path: Path) -> None:
    options: dict[str, Any] = {"nodes": NODES[:6], "workload": "collective", "hosts": dict.fromkeys(NODES, "h0")}
    judgement = judging.judge(write_night(tmp_path, 1, {"links": links({"n1->n4": 1.25})}, **options), ())
    [judged] = [judged for judged in judgement.findings if judged.finding.gate == "pairs"]
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
        assert failed == ({("relative", "n1->n4")} if outcome == "fail" else set())
        left_out = {
            judged.finding.gate for judged in judgement.findings
            if "n1 and n4 share host h0 and have no link of their own" in judged.finding.text
        }  # fmt: skip
        expected = {"relative", "intermittent", "drift", "fleet"} if outcome == "pass" else set()
        assert left_out == expected

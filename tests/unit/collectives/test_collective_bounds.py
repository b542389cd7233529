"""A time that the links do not allow is no pass: bytes on the busiest link, over its rate, are the least time of a case."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.collectives import views as collectives
from orchestrator.collectives.rank import algorithm_choice, expected_cost
from orchestrator.core.verdict import judge
from orchestrator.core.verdict import run_metrics as core_metrics
from orchestrator.model.run import Run, StepRecord
from orchestrator.model.trial import CheckSpec
from orchestrator.rank.exchange import cases

from .. import verdicts
from ..catalogue import CATALOGUE
from ..simulated import Gang, ring
from . import collective_runs
from .collective_runs import ALPHA, BETA, RATE, Files, Part

MIB = 1 << 20
BURST = 16384


def ran(**changes: Any) -> Run:
    """An all-reduce of 1 MiB, as fast as 140 Mbit/s allow; the link has 145."""
    part = Part(operation="all-reduce", algorithm="ring", bytes=MIB, cost=(6, 1.5), gang=Gang(schedules=ring(4, MIB)))
    return collective_runs.run([part], **{"burst": BURST, **changes})


def retimed(run: Run, change: Any) -> Run:
    """The same with other steps: ``change`` gives the fields of a record that differ."""
    files = run.files
    assert isinstance(files, Files)
    steps = tuple(dataclasses.replace(record, **change(record)) for record in files.records)
    return dataclasses.replace(run, files=Files(steps, files.blocks))


def in_half(record: StepRecord) -> dict[str, float]:
    return {"end": record.start + (record.end - record.start) / 2} if record.step == 3 else {}


def measured(run: Run) -> collectives.Measured:
    result = collectives.measured(run)
    assert result is not None
    return result


def test_an_honest_run_takes_at_least_the_time_of_its_bytes() -> None:
    verdict = verdicts.ask(ran(), "times-possible")
    assert (verdict.outcome, verdict.evidence) == ("pass", {"cases": 1})


def test_an_iteration_that_beats_the_link_is_a_failure() -> None:
    verdict = verdicts.ask(retimed(ran(), in_half), "times-possible")
    assert verdict.outcome == "fail"
    assert "all-reduce ring 1 MiB: iteration 3 took " in verdict.text
    assert "1,572,864 bytes need at least 85.87 ms on the busiest link of a node (145 Mbit/s)" in verdict.text


def test_the_bound_leaves_out_what_the_bucket_holds() -> None:
    setting = measured(ran()).setting
    bound = collectives.lower_bound(setting, setting.cases[0])
    assert bound is not None and bound.seconds == pytest.approx((MIB * 1.5 - BURST) * 8 / RATE)
    link = dataclasses.replace(setting.link, spec={**setting.link.spec, "burst": 2 * MIB})
    assert collectives.lower_bound(dataclasses.replace(setting, link=link), setting.cases[0]) is None


def test_ranks_that_wait_before_their_clock_starts_do_not_make_the_case_faster() -> None:
    """Scatter: rank 0 returns when its bytes are in the socket, and the others begin late. First start to last end counts."""

    def late(record: StepRecord) -> dict[str, float]:
        middle = (record.start + record.end) / 2
        return {"end": middle} if record.rank == 0 else {"start": middle}

    run = retimed(ran(), late)
    row = measured(run).rows[0]
    assert row.trial is not None and row.cct is not None and row.mean_s == row.cct.mean
    assert MIB * 1.5 * 8 / row.trial.p50 > RATE, "the slowest rank alone beats the link"
    assert row.busbw is not None and row.busbw * 8e9 < RATE
    assert verdicts.ask(run, "times-possible").outcome == "pass"
    names = {metric.metric for metric in core_metrics.of(run) if metric.rep == 7}
    assert {"all-reduce ring float32 sum time", "all-reduce ring float32 sum cct"} <= names


def test_where_no_rate_is_known_a_default_check_is_skipped_and_one_that_was_asked_for_is_unknown() -> None:
    run = ran(rate=None)
    assert verdicts.ask(run, "times-possible").outcome == "skipped"
    requested = dataclasses.replace(
        run, trial=dataclasses.replace(run.trial, checks=(CheckSpec(name="times-possible"),))
    )
    assert verdicts.ask(requested, "times-possible").outcome == "unknown"


def test_links_that_are_not_shaped_are_judged_by_the_probe_where_each_rank_has_its_host() -> None:
    setting = measured(ran(rate=None)).setting
    directions = tuple(
        collectives.Direction(sender=0, receiver=b, alpha_s=ALPHA, beta=BETA, samples=((MIB, ALPHA + MIB * BETA, 9),))
        for b in (1, 2, 3)
    )
    apart = dataclasses.replace(
        setting,
        link=dataclasses.replace(setting.link, directions=directions),
        hosts={rank: f"h{rank}" for rank in range(4)},
    )
    bound = collectives.lower_bound(apart, apart.cases[0])
    assert bound is not None and bound.seconds == pytest.approx(MIB * 1.5 * BETA / 4, rel=0.01)
    together = dataclasses.replace(apart, hosts=dict.fromkeys(range(4), "h0"))
    assert collectives.lower_bound(together, together.cases[0]) is None


def test_clocks_between_hosts_count_with_their_error() -> None:
    """9 ms are missing; two clocks that are known to 5 ms each may have hidden them."""
    run = retimed(ran(), lambda record: {"end": record.end - 0.009})
    assert verdicts.ask(run, "times-possible").outcome == "fail"
    clocks = {f"boot{rank}": {"host": f"h{rank}", "offset_s": rank * 1e-6, "uncertainty_s": 0.005} for rank in range(4)}
    nodes = {f"n{rank}": {"host": f"h{rank}"} for rank in range(4)}
    plan = {**run.extras["plan.json"], "clocks": clocks, "nodes": nodes}
    run = retimed(ran(), lambda record: {"end": record.end - 0.009})
    apart = dataclasses.replace(run, extras={**run.extras, "plan.json": plan})
    assert verdicts.ask(apart, "times-possible").outcome == "pass"


def test_iterations_that_were_not_recorded_leave_it_unknown() -> None:
    run = ran()
    files = run.files
    assert isinstance(files, Files)
    kept = tuple(record for record in files.records if record.step != 5)
    verdict = verdicts.ask(dataclasses.replace(run, files=Files(kept, files.blocks)), "times-possible")
    assert (verdict.outcome, verdict.text) == ("unknown", "all-reduce ring 1 MiB: 1 iterations were not recorded")


def test_a_bundle_from_before_keeps_its_figures_and_is_not_judged_by_the_bound() -> None:
    old = ran()
    events = tuple(
        dataclasses.replace(event, value={key: value for key, value in event.value.items() if key != "bandwidth"})
        for event in old.history.events
    )
    old = dataclasses.replace(old, history=dataclasses.replace(old.history, events=events))
    row = measured(old).rows[0]
    assert row.trial is not None and row.algbw == pytest.approx(MIB / row.trial.p50 / 1e9)
    assert not [metric for metric in core_metrics.of(old) if " cct" in metric.metric]
    chosen = judge.unlisted(old, CATALOGUE, ())
    assert "times-possible" not in {spec.name for spec in chosen}


@pytest.mark.parametrize(
    ("operation", "algorithm", "nodes", "share"),
    [
        ("all-reduce", "ring", (0, 1, 2, 3), 1.5), ("scatter", "sequential", (0, 1, 2, 3), 0.75),
        ("gather", "binomial-tree", (0, 1, 2, 3), 0.75), ("broadcast", "binomial-tree", (0, 1, 2, 3), 2),
        ("broadcast", "chain:segments=4", (0, 1, 2, 3), 1), ("all-to-all", "direct", (0, 0, 1, 1), 1),
    ],
)  # fmt: skip
def test_bytes_of_a_port_are_those_of_the_schedule(
    operation: str, algorithm: str, nodes: tuple[int, ...], share: float
) -> None:
    item = cases.Item(operation=operation, algorithm=algorithm, bytes=MIB)
    (case,) = cases.cases([item], 4)
    chosen = algorithm_choice.find(algorithm)
    assert chosen is not None
    assert expected_cost.port_bytes(case, chosen, nodes) == share * MIB


@pytest.mark.parametrize("name", algorithm_choice.names())
@pytest.mark.parametrize("world", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("width", [1, 2])
def test_no_schedule_sends_less_than_the_operation_needs(name: str, world: int, width: int) -> None:
    """The bound that holds for libraries, against every algorithm: also where sizes do not divide and nodes are unequal."""
    chosen = algorithm_choice.find(name)
    assert chosen is not None
    operations = [entry for entry in chosen.operations if entry != "barrier" and not chosen.refuses(entry, world)]
    for operation in operations:
        size = 4 * 840 * world if chosen.even(operation) else 4 * 1013
        item = cases.Item(operation=operation, algorithm=name, bytes=size, root=world - 1)
        (case,) = cases.cases([item], world)
        nodes = [rank // width for rank in range(world)]
        view = collectives.Case(
            number=0, operation=operation, algorithm=name, bytes=size, first_step=1, iterations=1, count=size // 4,
            groups=(tuple(range(world)),), root=world - 1,
        )  # fmt: skip
        least = collectives.least_bytes(view, {rank: f"n{node}" for rank, node in enumerate(nodes)})
        assert expected_cost.port_bytes(case, chosen, nodes) >= least, operation

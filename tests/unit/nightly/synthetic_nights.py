"""Nights that never ran: a fleet with records of earlier nights, judged by the real gates, with failures, tickets and gaps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from orchestrator.nightly import classes
from orchestrator.nightly.judging import cells, floor_limits
from orchestrator.nightly.judging.figures import Series
from orchestrator.nightly.night_judgement import Judged, NightJudgement, State
from orchestrator.nightly.records import Finding, Key, Metric, Outcome, Record
from orchestrator.nightly.reports.night_report import NightReport
from orchestrator.nightly.suite import Cell, MetricRule, Night, Row, Suite

#: The bad node of the fleet, from the night before the last on, and by how much.
SLOW, SLOWDOWN = "n5", 0.12
FLOOR = 0.9
_EPOCH = datetime(2026, 10, 1, 2, 0, 7, tzinfo=UTC)
_METRICS = (
    ("gemm", "rate", "TFLOP/s", 61.0), ("memory", "bandwidth", "GB/s", 812.0), ("disk", "fsync_latency", "ms", 3.1),
    ("disk", "write_rate", "MB/s", 1450.0), ("copies", "host_to_device", "GB/s", 24.6), ("all-reduce", "busbw", "GB/s", 11.2),
)  # fmt: skip


def metrics(count: int = 6) -> list[tuple[str, Metric, Key, float]]:
    """(cell, metric, key, usual value)."""
    made = []
    for number in range(count):
        cell, name, unit, value = _METRICS[number % len(_METRICS)]
        suffix = f"_{number // len(_METRICS)}" if number >= len(_METRICS) else ""
        metric = Metric(name=name + suffix, unit=unit, better="lower" if unit == "ms" else "higher")
        made.append((cell, metric, Key(hardware="H100 SXM 80GB", workload=cell, parameters="dtype=bfloat16"), value))
    return made


def date(night: int) -> str:
    return (_EPOCH + timedelta(days=night)).strftime("%Y-%m-%dT%H:%M:%SZ")


def records(nodes: int, nights: int, count: int = 6, seed: int = 7, *, is_broken: bool = True) -> tuple[Record, ...]:
    """With ``is_broken`` the last two nights of SLOW are slow in the first metric, and its driver changed then."""
    rng = random.Random(seed)
    made = []
    for _, metric, key, usual in metrics(count):
        for number in range(nodes):
            node, own = f"n{number}", rng.gauss(1.0, 0.02)
            for night in range(1, nights + 1):
                is_slow = is_broken and node == SLOW and night >= nights - 1 and metric.name == "rate"
                level = usual * own * (1 - SLOWDOWN if is_slow else 1) * rng.gauss(1, 0.004)
                values = tuple(level * rng.gauss(1, 0.003) for _ in range(3))
                driver = "580.170" if is_broken and node == SLOW and night >= nights - 1 else "580.159"
                suspects = {"driver": driver, "torch": "2.13.0"}
                made.append(
                    Record(
                        night=night,
                        node=node,
                        metric=metric,
                        key=key,
                        values=values,
                        date=date(night),
                        suspects=suspects,
                    )
                )
    return tuple(made)


def findings(history: Sequence[Record], count: int, night: int) -> list[Judged]:
    """Floors and references of a night, as judged; the slow node was measured again."""
    made: list[Judged] = []
    subjects = []
    for cell, metric, key, usual in metrics(count):
        own = [record for record in history if record.metric.name == metric.name and record.key == key]
        series = Series(metric, key, cells=[cell])
        for record in own:
            if record.night == night:
                series.values[record.node], series.versions[record.node] = list(record.values), dict(record.suspects)
                series.runs[record.node] = [run_name(cell, 0)]
                if record.node == SLOW:
                    series.again[record.node] = list(record.values)
        floor = usual * (1 / FLOOR if metric.better == "lower" else FLOOR)
        made += floor_limits.judge(series, floor, cell, f"floor {floor:.4g} {metric.unit}")
        past = [record for record in own if record.night < night]
        subjects.append(cells.Subject(series=series, past=past, kind=classes.of(metric.name, classes.read())))
    return [*made, *cells.judge(subjects, cells.Tonight(number=night, date=date(night)))]


def run_name(cell: str, repeat: int) -> str:
    return f"2026-11-23T02-{repeat:02d}-07Z-{cell}-{abs(hash_of(cell)) % 65536:04x}"


def hash_of(text: str) -> int:
    """The same in every process."""
    return sum((index + 1) * ord(letter) * 2654435761 for index, letter in enumerate(text))


def night(nodes: int, number: int, repeats: int = 3) -> Night:
    names = [*dict.fromkeys(cell for cell, *_ in _METRICS), "crash-node", "sdc[dtype=float32]", "pairs", "late"]
    cells = tuple(
        Cell(name=name, trial=name.partition("[")[0], repeats=repeats,
             rules=(MetricRule(metric="write_rate", xfail="OPS-1234"),) if name == "disk" else ())
        for name in names
    )  # fmt: skip
    suite = Suite(name="standard", cells=cells, seed=12, budget_s=7200.0)
    hosts = {f"n{index}": f"h{index // 8}" for index in range(nodes)}
    return Night(
        name=f"{date(max(number, 1)).replace(':', '-')}-night-standard-3f9c", suite=suite, bed="lab", provider="ssh", hosts=hosts,
        number=number, started=date(max(number, 1)), order=tuple(names[:-1]), command="ccbed nightly standard --bed lab --record",
        ccbed="0.1.0",
    )  # fmt: skip


def rows(of: Night, *, is_broken: bool = True) -> tuple[Row, ...]:
    made = [
        Row(cell=name, repeat=repeat, state="passed", run=run_name(name, repeat), exit=0, duration_s=41.5)
        for name in of.order
        for repeat in range(3)
    ]
    if is_broken:
        changed: dict[tuple[str, int], Row] = {
            ("crash-node", 1): Row(cell="crash-node", repeat=1, state="failed", run=run_name("crash-node", 1), exit=1, duration_s=30.0,
                                   reason="bit-exact: 2 of 4 ranks differ from the twin from step 31 on"),
            ("crash-node", 2): Row(cell="crash-node", repeat=2, state="unfinished", run=run_name("crash-node", 2), duration_s=600.0,
                                   reason="stopped at its deadline of 600 s"),
            ("pairs", 2): Row(cell="pairs", repeat=2, state="error", exit=4, reason="host h1 does not answer: node n9 is lost"),
            ("sdc[dtype=float32]", 0): Row(cell="sdc[dtype=float32]", repeat=0, state="skipped", reason="needs gpu: no node has one"),
            ("copies", 2): Row(cell="copies", repeat=2, state="unknown", run=run_name("copies", 2), exit=2, duration_s=12.0,
                               reason="finished: too few iterations"),
        }  # fmt: skip
        made = [changed.get((row.cell, row.repeat), row) for row in made]
    return tuple(made)


def pair_finding() -> Judged:
    finding = Finding(
        gate="pairs", outcome="warn", metric="link_rate", text="link n2 -> n3 is 21.4 % slower than its pairs explain; confidence 99 %",
        culprits=("n2 -> n3",), since=None,
    )  # fmt: skip
    return Judged(
        finding=finding,
        state="warn",
        cell="pairs",
        unit="Gbit/s",
        value=19.6,
        runs=(run_name("pairs", 0), run_name("pairs", 1)),
    )


def with_tickets(made: list[Judged]) -> list[Judged]:
    """An expected failure, and one that passed although its ticket says that it fails."""
    xfail = Finding(
        gate="floor",
        outcome="fail",
        metric="write_rate",
        node="n1",
        text="n1: write_rate 1201 MB/s is worse than its floor 1305",
    )
    xpass = Finding(
        gate="floor",
        outcome="pass",
        metric="host_to_device",
        node="n2",
        text="n2: host_to_device 25 GB/s meets its floor 22.1",
    )
    states: list[tuple[Finding, State, str, str]] = [
        (xfail, "xfail", "OPS-1234", "disk"),
        (xpass, "xpass", "OPS-99", "copies"),
    ]
    return [
        *made,
        *(
            Judged(finding=finding, state=state, ticket=ticket, cell=cell, reference="floor 1305 MB/s")
            for finding, state, ticket, cell in states
        ),
    ]


def report(nodes: int = 64, nights: int = 40, count: int = 6, *, is_broken: bool = True) -> NightReport:
    """A bad night of a fleet. With ``nights=1``: the first one, without a history."""
    history = records(nodes, nights, count, is_broken=is_broken)
    tonight = night(nodes, nights)
    judged = findings(history, count, nights)
    if is_broken:
        judged = [*with_tickets(judged), pair_finding()]
    outcome: Outcome = "fail" if is_broken else "pass" if nights > 1 else "unknown"
    judgement = NightJudgement(
        outcome=outcome, exit={"pass": 0, "fail": 1, "unknown": 2}[outcome],
        sentence="gemm on n5 is 12 % slower since 2026-11-08, when its driver changed; crash-node failed 2 of 3 repeats" if is_broken
        else "12 cells passed; no node, link or disk got slower.",
        findings=tuple(judged), earlier=tuple(night(nodes, number).name for number in range(max(1, nights - 23), nights)),
        notes=("2026-10-12T02-00-07Z-night-standard-11aa: skipped, its seal is broken",) if is_broken else (),
    )  # fmt: skip
    made = rows(tonight, is_broken=is_broken)
    links = {row.run: f"../runs/{row.run}/report/index.html" for row in made if row.run}
    return NightReport(
        night=tonight,
        rows=made,
        judgement=judgement,
        records=history,
        links=links,
        directory=f"runs/{tonight.name}",
    )

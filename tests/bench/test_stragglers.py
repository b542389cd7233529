"""Seeded sweeps of collectives on shaped links: what is slow is named, and nothing else is; and the clean ones drawn again in blocks.

``CCBED_BENCH_CLEAN``, ``CCBED_BENCH_FAULTY``: numbers of sweeps without and with a defect; ``CCBED_BENCH_SEED``: the first seed;
``CCBED_BENCH_LOAD``: busy processes beside a third of the clean ones, half as many beside another third. The sweeps are kept in
``CCBED_BENCH_RECORDS``: those that are there are judged again without being carried out, so that a change of the rule is seen at once.

``right``: something that is slow is named, and nothing else (nothing, where nothing is slow). ``wrong``: something else is named.
``not resolved``, ``none``: nothing is named, and the sweep says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.collectives import views as collectives
from orchestrator.collectives.views import finding_text, stragglers
from orchestrator.store import bundle

from . import table, test_sweeps
from .bed import load
from .test_collectives import Fabric

FAULTY = int(os.environ.get("CCBED_BENCH_FAULTY", "40"))
CLEAN = int(os.environ.get("CCBED_BENCH_CLEAN", "30"))
LOAD = int(os.environ.get("CCBED_BENCH_LOAD", "8"))
SEED = int(os.environ.get("CCBED_BENCH_SEED", "1"))
RECORDS = Path(os.environ.get("CCBED_BENCH_RECORDS", str(table.OUT / "straggler-records")))
NODES, ITERATIONS, SIZES, RESAMPLES, BLOCK = 4, 20, "64K:4M:4", 1000, 4
#: The operation and the algorithms of a sweep, and the distances of the ranks that exchange messages, or None for pairs of a cube.
SWEEPS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...] | None]] = {
    "ring": ("all-reduce", ("ring",), (1,)),
    "halving-doubling": ("all-reduce", ("halving-doubling",), None),
    "all-gather": ("all-gather", ("ring",), (1,)),
    "all-to-all": ("all-to-all", ("pairwise", "bruck", "direct"), (1, 2, 3)),
}
#: Shaped at the sender by tc, seen by the probe; and by the fault slow-link, which begins after the probe.
KINDS = ("direction", "egress", "ingress", "node", "slow-link out", "slow-link in", "slow-link both")
Ends = tuple[int, int]

pytestmark = [pytest.mark.bench, pytest.mark.root, pytest.mark.timeout(36_000)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A seeded sweep. ``slow``: the directions that are slow; ``node``: the rank that does not run; ``shaped``: slow by tc."""

    name: str
    kind: str
    sweep: str
    busy: int = 0
    share: float = 1.0
    node: int | None = None
    slow: frozenset[Ends] = frozenset()
    shaped: bool = False
    faults: list[dict[str, Any]] = field(default_factory=list)


def clean(number: int) -> Case:
    sweep, busy = list(SWEEPS)[number % len(SWEEPS)], (0, LOAD // 2, LOAD)[number % 3]
    return Case(name=f"clean-{SEED}-{number}", kind="clean", sweep=sweep, busy=busy)


def draw(number: int, share: float = 0.5) -> Case:
    """A part that the algorithm uses, at a share of its rate."""
    random_, sweep, kind = (
        random.Random(f"{SEED}-{number}-{share}"),
        list(SWEEPS)[number % len(SWEEPS)],
        KINDS[number % len(KINDS)],
    )
    rank, distances = random_.randrange(NODES), SWEEPS[sweep][2]
    out = {(rank, peer) for peer in range(NODES) if peer != rank}
    into = {(b, a) for a, b in out}
    used = [(rank, (rank + by) % NODES) for by in distances] if distances else [(rank, rank ^ 1), (rank, rank ^ 2)]
    slow = {"direction": {random_.choice(used)}, "egress": out, "ingress": into, "node": out | into}
    slow |= {"slow-link out": out, "slow-link in": into, "slow-link both": out | into}
    name, ends = f"slow-{SEED}-{number}-{share}", frozenset(slow[kind])
    case = Case(name=name, kind=f"{kind} at {share:.0%}", sweep=sweep, share=share, slow=ends)
    if not kind.startswith("slow-link"):
        return replace(case, shaped=True)
    params = {
        "node": f"n{rank}", "at": {"step": random_.choice((1, 5))}, "direction": kind.split()[1], "percent": round(100 * share),
    }  # fmt: skip
    return replace(case, faults=[{"slow-link": params}])


def stopped(number: int) -> Case:
    """A node that is paused once, or that has 5 % of a CPU."""
    random_, sweep = random.Random(f"{SEED}-{number}-stopped"), list(SWEEPS)[number % len(SWEEPS)]
    node, step, for_s = random_.randrange(NODES), random_.randrange(1, 10), random_.uniform(0.6, 1.5)
    at, kind = {"step": step, "phase": "collective"}, ("paused", "5 % CPU")[number // len(SWEEPS) % 2]
    params = {"node": f"n{node}", "at": at, **({"for_s": for_s} if kind == "paused" else {"cpu_percent": 5})}
    fault = {"pause-node" if kind == "paused" else "slow-node": params}
    near = frozenset(ends for a in range(NODES) for ends in ((a, node), (node, a))) if kind != "paused" else frozenset()
    return Case(name=f"stopped-{SEED}-{number}", kind=kind, sweep=sweep, node=node, slow=near, faults=[fault])


def carry_out(fabric: Fabric, case: Case) -> None:
    """Keep the bundle of the sweep among the records, with the load at its beginning."""
    operation, algorithms, _ = SWEEPS[case.sweep]
    params = {"operation": operation, "algorithm": algorithms, "sizes": [SIZES], "iterations": ITERATIONS}
    trial = {
        "trial": "sweep", "workload": "collective", "faults": case.faults, "recovery": {"policy": "none"}, "params": params, "seed": SEED,
        "world": {"nodes": NODES}, "liveness": {"suspect_s": 6, "lost_s": 20, "stalled_s": 120, "hold_s": 30},
    }  # fmt: skip
    file, latest, busy = fabric.folder / "sweep.json", fabric.folder / "runs/latest", os.getloadavg()[0]
    file.write_text(json.dumps(trial))
    before = latest.resolve()
    shaped = test_sweeps.shaped(fabric, case.slow, case.share) if case.shaped else contextlib.nullcontext()
    with shaped, load(case.busy):
        fabric.call("run", str(file), "--bed", fabric.name, expect=None, timeout_s=600.0)
    assert latest.resolve() != before, "the run was refused"
    shutil.copytree(latest.resolve(), RECORDS / case.name, symlinks=True)
    (RECORDS / f"{case.name}.load").write_text(f"{busy:.1f}")


def judge(case: Case, measured: collectives.Measured) -> str:
    known = measured.stragglers
    links = {(link.sender, link.receiver) for link in known.links}
    links |= {(direction.sender, direction.receiver) for direction in known.probed}
    nodes = {stop.rank for stop in known.stopped} | {late.rank for late in known.late}
    if links - case.slow or nodes - {case.node}:
        return "wrong"
    is_right = bool(links or nodes) == bool(case.slow or case.node is not None)
    return "right" if is_right else "none" if known.is_resolved else "not resolved"


def resampled(directory: Path, count: int, seed: int) -> int:
    """In how many of ``count`` samples of its iterations, drawn in blocks, anything lasts."""
    drawn, true, named = random.Random(seed), stragglers.changes, [False] * count

    def blocks(own: list[float]) -> list[float]:
        starts = [drawn.randrange(max(1, len(own) - BLOCK + 1)) for _ in range(0, len(own), BLOCK)]
        return [figure for start in starts for figure in own[start : start + BLOCK]][: len(own)]

    def drawn_anew(samples: dict[int, dict[Any, list[float]]], *, is_relative: bool) -> dict[Any, stragglers.Changes]:
        for number in range(count):
            sample = {case: {who: blocks(own) for who, own in of.items()} for case, of in samples.items()}
            named[number] |= any(change.lasts for change in true(sample, is_relative=is_relative).values())
        return true(samples, is_relative=is_relative)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stragglers, "changes", drawn_anew)
        collectives.measured(bundle.load(directory))
    return sum(named)


def test_what_is_slow_is_named_and_nothing_in_clean_sweeps(tmp_path: Path) -> None:
    cases = [*map(clean, range(CLEAN)), *map(draw, range(FAULTY)), *map(stopped, range(FAULTY // 5))]
    cases += [draw(number, 0.9) for number in range(FAULTY // 4)]
    RECORDS.mkdir(parents=True, exist_ok=True)
    missing = [case for case in cases if not (RECORDS / f"{case.name}.load").exists()]
    random.Random(SEED).shuffle(missing)
    if missing:
        with Fabric(tmp_path, "bench-stragglers", "1gbit", nodes=NODES) as fabric:
            for case in missing:
                carry_out(fabric, case)
    counts: dict[str, Counter[str]] = {}
    lines, drawn = [], 0
    for case in cases:
        measured = collectives.measured(bundle.load(RECORDS / case.name))
        assert measured is not None
        judgement = judge(case, measured)
        kind = case.kind if case.kind == "clean" or case.node is not None else f"{case.sweep} at {case.share:.0%}"
        counts.setdefault(kind, Counter())[judgement] += 1
        truth = ", ".join(f"n{a} to n{b}" for a, b in sorted(case.slow)) or (
            f"n{case.node}" if case.node is not None else "nothing"
        )
        busy = (RECORDS / f"{case.name}.load").read_text()
        lines.append(
            f"{judgement:12} load {busy} {case.name} {case.kind}, {case.sweep}: {truth} | {finding_text.straggler(measured)}"
        )
    for number, case in enumerate(cases[:CLEAN]):
        drawn += resampled(RECORDS / case.name, RESAMPLES // CLEAN, number)
    outcomes = ("right", "wrong", "not resolved", "none")
    rows = [
        f"| {kind} | {' | '.join(str(count[outcome]) for outcome in outcomes)} |"
        for kind, count in sorted(counts.items())
    ]
    text = [f"| sweeps | {' | '.join(outcomes)} |", "|---|---|---|---|---|", *rows, ""]
    text += [
        "| clean sweeps, drawn again | named |",
        "|---|---|",
        f"| {RESAMPLES // max(CLEAN, 1) * CLEAN} | {drawn} |",
    ]
    out = table.OUT / f"stragglers-{SEED}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(["# Stragglers", "", *text, "", *lines]) + "\n")
    print("\n" + out.read_text())
    assert not sum(count["wrong"] for count in counts.values())
    assert drawn <= 0.01 * RESAMPLES
    half = sum((count for kind, count in counts.items() if kind.endswith("at 50%")), Counter[str]())
    assert half["right"] >= 0.975 * half.total()
    assert not any(count["none"] for kind, count in counts.items() if kind.endswith("at 90%"))

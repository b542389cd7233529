"""Every algorithm on shaped links against its model, and what `auto` chooses against the best that was measured.

``CCBED_BENCH_CASES=3,20:40``: only these of the seeded cases of `auto`, so that a long row can be measured in parts.
"""

from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from orchestrator.collectives.rank import algorithm_choice, link_fit
from orchestrator.model.schedule import OPERATIONS
from orchestrator.rank.exchange import cases

from . import table
from .test_collectives import Fabric

RATE, NODES = "145mbit", 8
WORLDS = range(3, NODES + 1)
#: At least 4 MiB, and whole elements for every rank of every world.
SIZE = 27720 * 4 * 38
#: Measured over model: algorithms that keep every port busy, and trees of which one port is the bottleneck.
NEAR, TREE = (0.97, 1.05), (0.95, 1.10)
TREES = ("binomial-tree", "double-binary-tree", "chain", "star", "sequential")
TRIALS = {
    operation: operation.replace("-", "") for operation in OPERATIONS if operation not in ("barrier", "send-recv")
}
#: The seeded cases of `auto`: rates, sizes in units of 27720 elements, and how many.
RATES, UNITS, COUNT, SEED = ("50mbit", "145mbit", "300mbit"), (1, 2, 4, 8, 16, 32), 100, 11
#: Algorithms that the model expects to take longer than this many times the best are not measured.
HOPELESS = 1.6
#: Iterations of an algorithm: in about so many seconds, within these limits. Medians of 8 times of a few milliseconds differ by
#: 10 to 30 % between two runs of the same algorithm in turns, on two busy cores.
MEASURED_S, LEAST, MOST = 0.8, 8, 120


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    with Fabric(tmp_path_factory.mktemp("reach"), "bench-reach", RATE, nodes=NODES) as fabric:
        yield fabric


@pytest.mark.parametrize("operation", TRIALS)
@pytest.mark.parametrize("world", WORLDS)
def test_every_algorithm_takes_the_time_of_its_model(fabric: Fabric, world: int, operation: str) -> None:
    fabric.nodes = world
    names = [algorithm.name for algorithm in algorithm_choice.candidates(_case(operation, SIZE, world))]
    measured = fabric.measured(TRIALS[operation], names, "--sizes", str(SIZE), "--iterations", "6", "--warmup", "1")
    ratios = {name: case.ratio or 0.0 for name, case in measured.items()}
    _record(f"reach-{operation}-{world}", {"bytes": SIZE, "rate": RATE, "measured_over_model": ratios})
    bounds = {name: TREE if name in TREES else NEAR for name in ratios}
    bad = {name: ratio for name, ratio in ratios.items() if not bounds[name][0] <= ratio <= bounds[name][1]}
    assert not bad, f"load {os.getloadavg()[0]:.1f}"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A seeded case of `auto`."""

    operation: str
    bytes: int
    world: int
    rate: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """``slower``: of the chosen algorithm against the best that was measured; 0: it is the best. ``p50``: seconds of each."""

    choice: Choice
    chosen: str
    best: str
    slower: float
    p50: dict[str, float]


@pytest.mark.timeout(3600)
def test_auto_is_within_5_percent_of_the_best_in_95_of_100_cases(tmp_path: Path) -> None:
    parts = os.environ.get("CCBED_BENCH_CASES", f"0:{COUNT}")
    choices = [_choices()[number] for part in parts.split(",") for number in _numbers(part)]
    results = []
    for rate in sorted({choice.rate for choice in choices}):
        with Fabric(tmp_path, "bench-auto", rate, nodes=NODES) as fabric:
            results += [_raced(fabric, choice) for choice in choices if choice.rate == rate]
    _record(f"auto-{parts.replace(':', '-').replace(',', '_')}", {"results": [asdict(result) for result in results]})
    good = [result for result in results if result.slower <= 0.05]
    assert len(good) >= 0.95 * len(results), f"{len(good)} of {len(results)}, load {os.getloadavg()[0]:.1f}"


def _numbers(part: str) -> range:
    """``20:40``: 20 to 39; ``3``: 3."""
    first, _, end = part.partition(":")
    return range(int(first), int(end or int(first) + 1))


def _choices() -> list[Choice]:
    """Operation x size x world x rate."""
    draw = random.Random(SEED)
    return [
        Choice(
            operation=draw.choice(list(TRIALS)),
            bytes=27720 * 4 * draw.choice(UNITS),
            world=draw.choice(WORLDS),
            rate=draw.choice(RATES),
        )
        for _ in range(COUNT)
    ]


def _raced(fabric: Fabric, choice: Choice) -> Result:
    """`auto` beside every algorithm that might be faster, in turns."""
    case = _case(choice.operation, choice.bytes, choice.world)
    bits = float(choice.rate.removesuffix("mbit")) * 1e6
    expected = algorithm_choice.choose(case, algorithm_choice.candidates(case), link_fit.Fit(5e-5, 8 / bits)).seconds
    least = min(expected.values())
    names = [name for name, seconds in expected.items() if seconds <= HOPELESS * least]
    fabric.nodes = choice.world
    count = min(MOST, max(LEAST, round(MEASURED_S / least)))
    sized = ("--sizes", str(choice.bytes), "--iterations", str(count), "--warmup", "1")
    samples = {
        name: case.samples for name, case in fabric.measured(TRIALS[choice.operation], ["auto", *names], *sized).items()
    }
    chosen = _chosen(fabric)
    samples[chosen] = samples.pop("auto") + samples.get(chosen, [])
    p50 = {name: table.median(seconds) for name, seconds in samples.items()}
    best = min(p50, key=lambda name: p50[name])
    slower = p50[chosen] / p50[best] - 1
    times = ", ".join(f"{name} {seconds * 1e3:.2f}" for name, seconds in sorted(p50.items(), key=lambda item: item[1]))
    print(f"{choice}: auto takes {chosen}, best {best}, {slower:+.1%} ({count} times, ms: {times})", flush=True)
    return Result(choice=choice, chosen=chosen, best=best, slower=slower, p50=p50)


def _case(operation: str, size: int, world: int) -> cases.Case:
    [case] = cases.cases([cases.Item(operation=operation, bytes=size)], world)
    return case


def _chosen(fabric: Fabric) -> str:
    with (fabric.folder / "runs/latest/report/collective.csv").open() as file:
        return next(row["algorithm"] for row in csv.DictReader(file) if row["asked"] == "auto")


def _record(name: str, facts: dict[str, object]) -> None:
    """``out/<name>.json``, with the load of the machine."""
    table.OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps(facts | {"load": os.getloadavg()[0], "machine": table.machine()}, indent=2)
    (table.OUT / f"{name}.json").write_text(text + "\n")
    print(f"{name}: {facts.get('measured_over_model', '')} load {os.getloadavg()[0]:.1f}", flush=True)

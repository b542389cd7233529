"""Algorithms on shaped links against what alpha and beta of the same links allow, and against the library's."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.model.run import StepRecord
from orchestrator.store import bundle

from . import table
from .bed import Bed

#: All gradients of the reference classifier.
SIZE = "971048"
#: What a link carries in 78 ms, so that what its bucket holds is little of it. The bucket of the faster one is the smallest, of
#: 1, 2, 4 ms, with which two cores get 95 % through it when all four links are used both ways at once.
SIZES = {"100mbit": SIZE, "1gbit, burst: 500k": "9710480"}
FABRIC = """\
all:
  hosts:
    localhost: {{ansible_connection: local}}
  vars:
    {{ccbed_provider: process, ccbed_bed: {name}, ccbed_nodes: {nodes}, ccbed_isolation: namespace, ccbed_link: {{rate: {rate}}}}}
"""
#: Measured over model: any algorithm, and those that use every link both ways at once.
NEAR, NEARER = (0.95, 1.10), (0.97, 1.05)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of ``collective.csv``. ``samples``: seconds of each trial, slowest rank; ``ratio``: their median (None: the
    library's) over the model."""

    operation: str
    algorithm: str
    samples: list[float]
    ratio: float | None

    @property
    def p50(self) -> float:
        return table.median(self.samples)


class Fabric(Bed):
    """Nodes in namespaces, each behind a link of ``rate``."""

    def __init__(self, folder: Path, name: str, rate: str, nodes: int = 4) -> None:
        super().__init__(folder)
        self.name, self.nodes = name, nodes
        self.inventory = folder / f"{name}.yml"
        self.inventory.write_text(FABRIC.format(name=name, nodes=nodes, rate=rate))

    def __enter__(self) -> Fabric:
        self.call("up", str(self.inventory))
        return self

    def __exit__(self, *raised: object) -> None:
        self.call("down", self.name, "--force")

    def measured(self, trial: str, algorithms: Sequence[str], *more: str) -> dict[str, Case]:
        """What a run of ``trial`` came to, by algorithm as asked for."""
        chosen = ("--algorithm", ",".join(algorithms), "--nodes", str(self.nodes))
        self.call("run", trial, "--bed", self.name, *chosen, *more)
        run = (self.folder / "runs/latest").resolve()
        with (run / "report/collective.csv").open() as file:
            rows = list(csv.DictReader(file))
        trials = _trials(bundle.load(run).files.steps())
        return {
            row["asked"] or row["algorithm"]: Case(
                operation=row["operation"],
                algorithm=row["algorithm"],
                samples=trials[number :: len(rows)],  # algorithms take turns
                ratio=float(row["measured_over_model"]) if row["measured_over_model"] else None,
            )
            for number, row in enumerate(rows)
        }


def _trials(records: Iterable[StepRecord]) -> list[float]:
    """The slowest rank's time of every trial, in order."""
    slowest: dict[int, float] = {}
    for record in records:
        slowest[record.step] = max(slowest.get(record.step, 0.0), record.end - record.start)
    return [seconds for _, seconds in sorted(slowest.items())]


@pytest.mark.parametrize("rate", SIZES)
def test_algorithms_take_the_time_that_the_link_allows(rate: str, tmp_path: Path) -> None:
    name = rate.partition(",")[0]
    with Fabric(tmp_path, f"bench-{name}", rate) as fabric:
        cases = _all(fabric, SIZES[rate])
    _write(f"collectives-{name}", f"{int(SIZES[rate]):,} bytes over 4 links of {rate}", cases)
    assert _against_the_library(cases) <= 1.02
    for case in cases:
        low, high = NEARER if case.algorithm in ("ring", "halving-doubling") else NEAR
        assert case.ratio is None or low <= case.ratio <= high, case


def test_the_ring_is_as_fast_as_the_librarys_for_a_small_message_too(tmp_path: Path) -> None:
    """The others are in the table, for what the bucket and two cores make of 8 ms on a link."""
    with Fabric(tmp_path, "bench-small", "1gbit") as fabric:
        cases = _all(fabric, SIZE)
    _write("collectives-small", "971,048 bytes over 4 links of 1gbit", cases)
    assert _against_the_library(cases) <= 1.02


def _against_the_library(cases: Iterable[Case]) -> float:
    took = {case.algorithm: case.p50 for case in cases if case.operation == "all-reduce"}
    return took["ring"] / took["library"]


def _all(fabric: Fabric, size: str) -> list[Case]:
    counted = ("--sizes", size, "--iterations", "24", "--warmup", "2")
    reduced = fabric.measured("allreduce", ["ring", "halving-doubling", "star", "binomial-tree", "library"], *counted)
    sent = fabric.measured("broadcast", ["sequential", "binomial-tree"], *counted)
    return [*reduced.values(), *sent.values()]


def test_a_tree_with_acknowledged_rounds_beats_the_librarys_broadcast(tmp_path: Path) -> None:
    with Fabric(tmp_path, "bench-eight", "100mbit", nodes=8) as fabric:
        ratios = fabric.measured("broadcast", ["binomial-tree", "library"], "--sizes", SIZE, "--iterations", "20")
    _write("broadcast-8", "Broadcast of 971,048 bytes over 8 links of 100 Mbit/s", list(ratios.values()))
    assert ratios["binomial-tree"].p50 / ratios["library"].p50 <= 0.6


def test_the_textbooks_example(tmp_path: Path) -> None:
    """8 ranks, 5 MB, 1 MB/s of payload: one after the other 35 s, by a tree 15 s, reduced 15 s."""
    payload = 1448 / 1514  # TCP with time stamps, in frames of Ethernet
    with Fabric(tmp_path, "bench-textbook", f"{8000 / payload:.0f}kbit", nodes=8) as fabric:
        counted = ("--sizes", "5000000", "--iterations", "1", "--warmup", "0", "--probe", "false")
        sent = fabric.measured("broadcast", ["sequential", "binomial-tree"], *counted)
        reduced = fabric.measured("reduce", ["binomial-tree"], *counted)
    _write("textbook", "8 ranks, 5 MB, 1 MB/s", [*sent.values(), *reduced.values()])
    for case, wanted in ((sent["sequential"], 35), (sent["binomial-tree"], 15), (reduced["binomial-tree"], 15)):
        assert case.p50 == pytest.approx(wanted, rel=0.03), case


def _write(name: str, title: str, cases: Sequence[Case]) -> None:
    samples = {f"{case.operation} {case.algorithm}": case.samples for case in cases}
    ratios = {what: case.ratio for what, case in zip(samples, cases, strict=True) if case.ratio is not None}
    notes = [f"{what}: measured / model {ratio:.3f}" for what, ratio in ratios.items()]
    against = next(itertools.chain((what for what in samples if "library" in what), samples))
    table.Table(
        name=name, title=title, samples=samples, against=against, notes=tuple(notes), more={"measured_over_model": ratios}
    ).write()  # fmt: skip

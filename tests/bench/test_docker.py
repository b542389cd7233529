"""Containers on this machine's engine: a script on a warm bed against `docker run` of it, and the way back after a loss."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orchestrator import views

from . import table, torchrun
from .bed import Bed

INVENTORY = """\
all:
  hosts:
    localhost: {{ansible_connection: local}}
  vars: {{ccbed_provider: docker, ccbed_bed: benchbox, ccbed_image: {image}, ccbed_nodes: 3, ccbed_spares: 1}}
"""
NODES = 3
NOOP = torchrun.PROGRAMS / "noop.py"
BED, RUN = "ccbed run noop.py, warm bed", "docker run noop.py, in parallel"
SPARE, RESTART, DOCKER_RUN = "ccbed, spare", "ccbed, restart on the same host", "docker run, import torch, meet"
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def box(engine: Any, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    bench_bed = Bed(tmp_path_factory.mktemp("box"))
    bench_bed.inventory.write_text(INVENTORY.format(image=image))
    bench_bed.call("up", str(bench_bed.inventory))
    try:
        yield bench_bed
    finally:
        bench_bed.call("down", "benchbox", expect=None)


@pytest.fixture
def by_hand(engine: Any, image: str) -> Iterator[Callable[[], float]]:
    """Seconds from `docker run` of the script in as many containers as the bed has nodes until the last has ended."""
    network = engine.networks.create("ccbed-bench")
    numbers = iter(range(1000))

    def measure() -> float:
        names = [f"ccbed-bench-{next(numbers)}" for _ in range(NODES)]
        begin = time.monotonic()
        started = [subprocess.Popen(_argv(image, names, rank), stdout=subprocess.PIPE) for rank in range(NODES)]
        codes = [process.wait(LIMIT_S) for process in started]
        took = time.monotonic() - begin
        assert codes == [0] * NODES
        return took

    yield measure
    network.remove()


def _argv(image: str, names: list[str], rank: int) -> list[str]:
    given = {"MASTER_ADDR": names[0], "MASTER_PORT": 29500, "RANK": rank, "WORLD_SIZE": NODES, "OMP_NUM_THREADS": 1}
    env = [f"--env={name}={value}" for name, value in given.items()]
    place = [f"--volume={NOOP}:/noop.py:ro", "--network=ccbed-bench", f"--name={names[rank]}"]
    return ["docker", "run", "--rm", "--init", *place, *env, image, "python3", "/noop.py"]


def test_a_warm_bed_starts_a_script_at_least_five_times_as_fast(box: Bed, by_hand: Callable[[], float]) -> None:
    def run() -> float:
        return box.call("run", str(NOOP), "--nodes", str(NODES))

    run()
    note = (
        "The same file: init_process_group and one all-reduce on 3 ranks. ccbed: verdicts and sealed bundle included."
    )
    results = table.Table(
        name="docker_start",
        title="A script on containers, argv to exit",
        samples=table.paired({RUN: by_hand, BED: run}),
        against=RUN,
        notes=(note,),
    )
    results.write()
    assert results.ratio(BED) >= 5


def test_a_killed_container_is_replaced_at_least_ten_times_as_fast_as_by_hand(
    box: Bed, by_hand: Callable[[], float]
) -> None:
    kept: dict[str, list[views.Failover]] = {SPARE: [], RESTART: []}
    samples = table.paired(
        {
            DOCKER_RUN: by_hand,
            SPARE: _failover(box, kept[SPARE], "spare"),
            RESTART: _failover(box, kept[RESTART], "restart"),
        }
    )
    results = table.Table(
        name="docker_failover",
        title="A killed container: back to training",
        samples=samples,
        against=DOCKER_RUN,
        notes=(
            "ccbed: from the return of the kill to the last rank's first completed step after it, restore included.",
            "By hand: containers of the same image until an all-reduce of 3 ranks is done; no detection, no checkpoint.",
            *(_line(name, failovers) for name, failovers in kept.items()),
        ),
    )
    results.write()
    assert results.ratio(SPARE) >= 10


def _failover(box: Bed, kept: list[views.Failover], policy: str) -> Callable[[], float]:
    def measure() -> float:
        kept.append(box.failover("--recovery", policy, "--nodes", str(NODES)))
        assert kept[-1].ttr_s is not None
        return kept[-1].ttr_s

    return measure


def _line(name: str, failovers: list[views.Failover]) -> str:
    medians = (
        (phase, table.median([dict(failover.phases)[phase] for failover in failovers])) for phase in views.PHASES
    )
    return f"{name}, median of each phase in ms: " + " | ".join(f"{phase} {size * 1000:.1f}" for phase, size in medians)

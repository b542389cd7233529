"""What is measured of a side, and whether a side has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import checkouts
from .sides import Side
from .turns import Times

NOOP = str(Path(__file__).parents[1] / "programs" / "noop.py")
#: Without a reference run, checks that need one are unknown.
PASS_OR_UNKNOWN = (0, 2)
START_WALL, START_CPU = "start of a no-op script", "start of a no-op script, CPU"
FAILOVER, FAILOVER_DDP = "time to recover of dp-ring", "time to recover of example:gpt-ddp"
UP, DRY_RUN, CHECK = "second up", "dry run", "make check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """``titles``: of its rows. ``exists``: whether a checkout has it."""

    titles: Sequence[str]
    take: Callable[[Side], Times]
    exists: Callable[[Path], bool] = lambda _: True


def start(side: Side) -> Times:
    cost = side.ccbed("run", NOOP, "--nodes", "4")
    return {START_WALL: cost.wall_s, START_CPU: cost.cpu_s}


def failover(trial: str, title: str) -> Callable[[Side], Times]:
    def take(side: Side) -> Times:
        side.ccbed("run", trial, "--fail-node", "2", "--no-twin", accept=PASS_OR_UNKNOWN)
        return {title: side.recovered_s()}

    return take


MEASURES: Mapping[str, Measure] = {
    "start": Measure(titles=(START_WALL, START_CPU), take=start),
    "failover": Measure(titles=(FAILOVER,), take=failover("dp-ring", FAILOVER)),
    "failover-ddp": Measure(
        titles=(FAILOVER_DDP,),
        take=failover("example:gpt-ddp", FAILOVER_DDP),
        exists=lambda tree: (tree / "orchestrator/examples/gpt_ddp.py").exists(),
    ),
    "up": Measure(titles=(UP,), take=lambda side: {UP: side.up().wall_s}),
    "dry-run": Measure(titles=(DRY_RUN,), take=lambda side: {DRY_RUN: side.ccbed("run", "dp-ring", "--dry-run").wall_s}),
    "check": Measure(
        titles=(CHECK,),
        take=lambda side: {CHECK: side.check().wall_s},
        exists=lambda tree: checkouts.has_target(tree, "check"),
    ),
}  # fmt: skip

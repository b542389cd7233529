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
LOSS = ("--fail-node", "2")
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


def failover(side: Side) -> Times:
    side.ccbed("run", "dp-ring", *LOSS, side.no_reference, accept=PASS_OR_UNKNOWN)
    return {FAILOVER: side.recovered_s()}


def failover_ddp(side: Side) -> Times:
    """A snapshot of the run before would leave nothing to train."""
    snapshot = side.folder / "snapshot.pt"
    snapshot.unlink(missing_ok=True)
    side.ccbed(
        "run", "example:gpt-ddp", *LOSS, side.no_reference, "--", "--checkpoint", str(snapshot), accept=PASS_OR_UNKNOWN
    )
    return {FAILOVER_DDP: side.recovered_s()}


MEASURES: Mapping[str, Measure] = {
    "start": Measure(titles=(START_WALL, START_CPU), take=start),
    "failover": Measure(titles=(FAILOVER,), take=failover),
    "failover-ddp": Measure(
        titles=(FAILOVER_DDP,),
        take=failover_ddp,
        exists=lambda tree: any((tree / "orchestrator").glob("**/examples/gpt_ddp.py")),
    ),
    "up": Measure(titles=(UP,), take=lambda side: {UP: side.up().wall_s}),
    "dry-run": Measure(titles=(DRY_RUN,), take=lambda side: {DRY_RUN: side.ccbed("run", "dp-ring", "--dry-run").wall_s}),
    "check": Measure(
        titles=(CHECK,),
        take=lambda side: {CHECK: side.check().wall_s},
        exists=lambda tree: checkouts.has_target(tree, "check"),
    ),
}  # fmt: skip

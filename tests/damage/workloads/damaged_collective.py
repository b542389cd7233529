"""The workload collective with one wrong element in the results of one rank: the verification must detect it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..collectives.plugins.workloads import collective

if TYPE_CHECKING:
    from ..rank.exchange import operations
    from ..rank.runtime import context

METRICS = collective.METRICS
CHECKS = collective.CHECKS
PHASES = collective.PHASES
check = collective.check
fits = collective.fits
memory = collective.memory
programs = collective.programs
last_step = collective.last_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(collective.Params):
    """Parameters, in addition to those of collective.

    wrong_rank      the rank whose results are damaged
    wrong_element   the element that is made larger by 1, in every timed iteration
    """

    wrong_rank: int
    wrong_element: int


def run(ctx: context.RankContext) -> None:
    """Measure as collective does; on one rank, damage every result before it is verified."""
    from ..rank.exchange import operations

    if ctx.rank == ctx.params.wrong_rank:
        operations.Work.begin = _damaged(operations.Work.begin, ctx.params.wrong_element)
    collective.run(ctx)


def _damaged(begin: Callable[..., Callable[[], None]], element: int) -> Callable[..., Callable[[], None]]:
    def damaged(work: operations.Work, step: int, first: Callable[[], None]) -> Callable[[], None]:
        wait = begin(work, step, first)

        def wait_and_damage() -> None:
            wait()
            if step and element < len(work.result):
                work.result[element] += 1

        return wait_and_damage

    return damaged

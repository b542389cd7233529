"""Replays collectives with their gaps: all are warmed up, then they follow each other without barriers, at the times that are due.

A real network has no barrier and empties no bucket between two collectives, so neither does a sequence. The barrier and the
transfer that empties the buckets come once, before it. Verification takes place in gaps that are long enough for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ...model.events import CollectiveSequence
from ...model.frozen import dataclass
from ...rank.exchange import cases, operations
from ...rank.runtime import run_gaps
from . import measuring, replay_pacing, verify

if TYPE_CHECKING:
    from ...rank.runtime import context

#: The last part of a wait yields the processor instead of sleeping, because the kernel ends a sleep late.
LAST_S = 0.0005
#: Fills the inputs, synchronises the start of all ranks, and runs a collective; returns its start and end.
RunTimed = Callable[[operations.Work | None], tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One sequence on one rank. ``works``: by the number of the case; None where this rank takes no part."""

    ctx: context.RankContext
    planned: tuple[cases.Case, ...]
    works: Mapping[int, operations.Work | None]
    verifier: verify.Verifier
    settle: Callable[[], None]
    run_gaps: run_gaps.RunGaps

    def run(self, run_timed: RunTimed, synchronise: Callable[[], None]) -> int:
        """Warm up, replay, and verify. Return the number of results that were verified. Raises WrongResult on all ranks."""
        costs = self._warm_up(run_timed)
        before = self._verify_cases(run_timed, first=True)
        iterations = replay_pacing.iterations(self.planned)
        is_verified = replay_pacing.verified(iterations, costs) if self._verifies else (False,) * len(iterations)
        reports = self._replay(iterations, is_verified, synchronise)
        for iteration, report in reports:
            self.verifier.agree(iteration.case, iteration.step, report)
        return before + len(reports) + self._verify_cases(run_timed, first=False)

    @property
    def _verifies(self) -> bool:
        params: measuring.Measuring = self.ctx.params
        return params.verify

    def _warm_up(self, run_timed: RunTimed) -> dict[int, replay_pacing.Costs]:
        """Run every case. The costs are those of the slowest rank."""
        rounds = max(1, self.ctx.params.warmup)
        times: dict[int, list[tuple[float, float]]] = {case.number: [] for case in self.planned}
        for _ in range(rounds):
            for case in self.planned:
                times[case.number].append(run_timed(self.works[case.number]))
                self._discard()
        return {case.number: self._costs(case, times[case.number]) for case in self.planned}

    def _costs(self, case: cases.Case, spans: list[tuple[float, float]]) -> replay_pacing.Costs:
        """Fill and check once more, on all ranks together, as in the sequence."""
        work = self.works[case.number]
        begin = time.monotonic()
        if work:
            work.fill()
        filled = time.monotonic()
        if work:
            self.verifier.observe(work)
        figures = [filled - begin, time.monotonic() - filled, max(end - start for start, end in spans)]
        slowest = torch.tensor(figures, dtype=torch.float64, device=self.ctx.device)
        if self.ctx.world > 1:
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
        fill_s, check_s, run_s = slowest.tolist()
        return replay_pacing.Costs(fill_s=fill_s, check_s=check_s, run_s=run_s)

    def _verify_cases(self, run_timed: RunTimed, *, first: bool) -> int:
        """Run every case once outside of the sequence, and verify its result."""
        if not self._verifies:
            return 0
        for case in self.planned:
            work = self.works[case.number]
            run_timed(work)
            self._discard()
            self.verifier.check(case, case.first_step if first else case.last_step, work)
        return len(self.planned)

    def _replay(
        self,
        iterations: tuple[replay_pacing.Iteration, ...],
        is_verified: tuple[bool, ...],
        synchronise: Callable[[], None],
    ) -> list[tuple[replay_pacing.Iteration, verify.Report]]:
        reports: list[tuple[replay_pacing.Iteration, verify.Report]] = []
        self._fill(iterations[0])
        synchronise()
        schedule = replay_pacing.Schedule(begin=time.monotonic())
        for index, iteration in enumerate(iterations):
            self._iterate(iteration, schedule)
            if index == 0:
                self._report_begin(iterations, is_verified, schedule.begin)
            if is_verified[index]:
                reports.append((iteration, self.verifier.observe(self.works[iteration.case.number])))
            if index + 1 < len(iterations) and is_verified[index + 1]:
                self._fill(iterations[index + 1])
        return reports

    def _iterate(self, iteration: replay_pacing.Iteration, schedule: replay_pacing.Schedule) -> None:
        ctx, work = self.ctx, self.works[iteration.case.number]
        due = schedule.due(iteration.waits) if work else time.monotonic()
        wait_until(due)
        ctx.begin_step(iteration.step)
        pass_phase = ctx.phase_once("collective")
        start = time.monotonic()
        if work:
            work.begin(iteration.step, pass_phase)()
            self.settle()
        end = time.monotonic()
        schedule.add(start, end, due) if work else schedule.skip()
        pass_phase()
        ctx.end_step(None, timed=(start, end), gaps=self.run_gaps.take(start, end))

    def _fill(self, iteration: replay_pacing.Iteration) -> None:
        work = self.works[iteration.case.number]
        if work and self._verifies:
            work.fill()

    def _discard(self) -> None:
        """A warm-up leaves no record of transfers."""
        if self.ctx.chunks:
            self.ctx.chunks.discard()

    def _report_begin(
        self, iterations: tuple[replay_pacing.Iteration, ...], is_verified: tuple[bool, ...], begin: float
    ) -> None:
        chosen = (iteration.step for iteration, flag in zip(iterations, is_verified, strict=True) if flag)
        self.ctx.note(
            CollectiveSequence(
                rank=self.ctx.rank, step=iterations[0].step, begin=begin, iterations=len(iterations),
                cases=len(self.planned) if self._verifies else 0, verified=tuple(chosen),
            )
        )  # fmt: skip


def wait_until(due: float) -> None:
    """Return at ``due`` on the monotonic clock, at once if it has passed."""
    while (rest := due - time.monotonic()) > 0:
        time.sleep(rest - LAST_S if rest > LAST_S else 0)

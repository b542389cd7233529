"""A collective run measured: per case its times, bandwidths and model, its outliers, and the causes of delays."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING

from ...model import events
from ...model.frozen import dataclass
from ...model.run import Run
from ...views import statistics
from ...views.overview import is_collective
from . import dependencies, repeated_delays, samples
from . import dependencies as patterns
from . import fastest as racing
from . import gaps as run_gaps
from .experiment import Case, Setting, factor, setting, wrong_by_case

if TYPE_CHECKING:
    from ...views.statistics import Floats
    from . import link_times, stragglers
    from .samples import Spans, Transfers

#: An iteration, or a transfer, that takes more than so many times the median is an outlier.
OUTLIER = 3.0
#: Transfers of fewer iterations have no usual time.
_LEAST_TRIALS = 3
#: So many slow iterations of a case are explained, the slowest first.
EXPLAINED = 100
#: The critical paths of so many iterations of a case are followed.
MOST_PATHS = 100
OVER = ("max_rank", "mean_rank", "cct", "chunk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """An iteration over 3 x p50: the slowest ``rank``, the ``peer`` that its longest transfer came from.

    ``path``: the parts of its critical path, the longest first.
    """

    case: Case
    trial: int
    step: int
    seconds: float
    usual: float
    rank: int
    peer: int | None
    path: tuple[dependencies.Part, ...] = ()

    @property
    def stopped(self) -> int | None:
        """The rank that did not run for most of the iteration, by its own record."""
        longest = next(iter(self.path), None)
        return (
            longest.rank if longest and longest.kind == "not running" and longest.seconds > self.seconds / 2 else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowChunk:
    """A transfer over 3 x the median of the same transfer in the other iterations."""

    case: Case
    trial: int
    rank: int
    peer: int
    index: int
    seconds: float
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of a case. ``time``: percentiles over what the run says; ``trial``: of the slowest rank's own duration, per
    iteration; ``cct``: from the first start to the last end.

    Bandwidths in 10^9 bytes/s, by ``mean_s``: the mean of ``cct``, or in older bundles the median of ``trial``. ``model_s``: by
    the probe's alpha and beta; ``of_line``: bus bandwidth over the line rate. ``chunks``: of ``transfers``, where all iterations
    together have ``transfers_due``;
    ``waiting``, ``transferring``: the two parts of their times, until the sender had reached the message by its own records and
    from then on; ``lost``: iterations that are not whole; ``wrong``: results. None: not known.
    """

    case: Case
    over: str
    time: statistics.Spread | None
    trial: statistics.Spread | None
    cct: statistics.Spread | None
    chunks: statistics.Spread | None
    waiting: statistics.Spread | None = None
    transferring: statistics.Spread | None = None
    mean_s: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    model_s: float | None = None
    of_model: float | None = None
    of_line: float | None = None
    wrong: int | None = 0
    outliers: int = 0
    slow_chunks: int = 0
    lost: int = 0
    transfers: int = 0
    transfers_due: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """``path``: kind of part -> seconds on the critical paths of recorded iterations, at most ``MOST_PATHS`` of a case.

    ``held``: iterations in which ccbed held a rank for a fault: they are neither slow nor evidence of a straggler.
    ``data``: the arrays by case: (spans, times per iteration, transfers or None). Equal to itself alone."""

    setting: Setting
    rows: tuple[Row, ...]
    slow: tuple[Slow, ...]
    slow_chunks: tuple[SlowChunk, ...]
    fastest: tuple[racing.Fastest, ...]
    stragglers: stragglers.Stragglers
    path: Mapping[str, float]
    data: dict[int, tuple[Spans, Floats, Transfers | None]]
    held: int = 0

    @property
    def trials(self) -> int:
        return sum(row.trial.count for row in self.rows if row.trial)

    @property
    def outliers(self) -> int:
        """Slow iterations of all cases; ``slow`` explains the slowest of each."""
        return sum(row.outliers for row in self.rows)

    @property
    def wrong(self) -> int:
        return sum(row.wrong or 0 for row in self.rows)


class _Same:
    """A run with the identity of its evidence as key, so that the reports of a run share one measurement."""

    def __init__(self, run: Run, over: str | None) -> None:
        self.run, self.over = run, over

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and (self.run.files, self.over) == (other.run.files, other.over) and (
            self.run.history is other.run.history
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((id(self.run.files), self.over))


def measured(run: Run, over: str | None = None) -> Measured | None:
    """None for a run that measured no collectives. ``over``: replaces the setting of the run."""
    return _measured(_Same(run, over)) if is_collective(run.history) else None


@functools.lru_cache(maxsize=1)
def _measured(same: _Same) -> Measured | None:
    from . import stragglers  # a run without collectives starts without it

    run = same.run
    plan = setting(run)
    if plan is None:
        return None
    over = same.over or plan.over
    spans = samples.spans(run.files.steps(), plan)
    raw = samples.records(run.files, plan)
    grids = {case.number: samples.transfers(raw, case) for case in plan.cases}
    wrong = wrong_by_case(run.history)
    gaps = run_gaps.gaps(run.files.steps(), plan)
    held = {event.data.step for event in run.history.of(events.RankHeld)}
    cases = [_Case(plan, case, spans[case.number], grids[case.number], over, gaps, held) for case in plan.cases]
    times = {case.case.number: samples.Timed(trials=case.spans.trials, seconds=case.times) for case in cases}
    moved = [case.moved for case in cases if case.moved is not None]
    return Measured(
        setting=plan,
        rows=tuple(case.row(wrong.get(case.case.number, 0) if plan.verify else None) for case in cases),
        slow=tuple(slow for case in cases for slow in case.slow),
        slow_chunks=tuple(slow for case in cases for slow in case.slow_chunks),
        fastest=racing.fastest(plan.cases, times),
        stragglers=stragglers.stragglers(
            {case.case.number: case.delays for case in cases if case.delays},
            {case.case.number: case.links for case in cases if case.links},
            repeated_delays.stopped([case.spans for case in cases], gaps, plan.hosts),
            {ends for grid in moved for ends in zip(grid.peer.tolist(), grid.rank.tolist(), strict=True)},
            plan,
        ),
        path=_summed(case.path for case in cases),
        data={case.case.number: (case.spans, case.times, case.moved) for case in cases},
        held=sum(int(case.is_held.sum()) for case in cases),
    )


class _Case:
    """The intermediate values from which the figures of a case are computed."""

    def __init__(
        self, setting: Setting, case: Case, spans: Spans, moved: Transfers | None, over: str, gaps: run_gaps.Gaps,
        held: Set[int | None],
    ) -> None:  # fmt: skip
        import numpy as np

        self.gaps = gaps
        self.is_held = np.array([case.steps[int(trial) - 1] in held for trial in spans.trials], dtype=bool)
        self.setting, self.case, self.spans, self.moved, self.over = setting, case, spans, moved, over
        self.local = spans.times("max_rank")
        self.times = spans.times(over) if over in ("cct", "mean_rank") else self.local
        self.trial = statistics.spread(self.local)
        self.cct = statistics.spread(spans.times("cct"))
        self.outliers = self._outliers()
        self.slow: list[Slow] = []
        self.slow_chunks: list[SlowChunk] = []
        self.slow_count = 0
        self.waiting: statistics.Spread | None = None
        self.transferring: statistics.Spread | None = None
        self.path: Mapping[str, float] = {}
        self.delays: dict[int, list[float]] = {}
        self.links: link_times.LinkTimes | None = None
        if moved is not None:
            self._transfers(moved)
        else:
            self.slow = [self._slow(spot, None) for spot in self.outliers[:EXPLAINED]]

    def row(self, wrong_results: int | None) -> Row:
        case, link, trial = self.case, self.setting.link, self.trial
        chunks = statistics.spread(self.moved.seconds.reshape(-1)) if self.moved is not None else None
        by_mean = self.setting.bandwidth == "mean"
        usual = self.cct if by_mean else trial
        mean = (usual.mean if by_mean else usual.p50) if usual else None
        algbw = case.bytes / mean / 1e9 if mean and mean > 0 and case.bytes else None
        busbw = algbw * factor(case.operation, case.world) if algbw is not None else None
        model = None
        if case.cost and link.alpha_s is not None and link.beta is not None:
            model = case.cost[0] * link.alpha_s + case.cost[1] * case.bytes * link.beta
        time = chunks if self.over == "chunk" else statistics.spread(self.times)
        return Row(
            case=case, over=self.over, time=time, trial=trial, cct=self.cct, chunks=chunks, mean_s=mean,
            waiting=self.waiting, transferring=self.transferring,
            algbw=algbw, busbw=busbw, model_s=model,
            of_model=usual.p50 / model if usual and model else None,
            of_line=busbw * 8e9 / link.rate if busbw is not None and link.rate else None,
            wrong=wrong_results, outliers=len(self.outliers), slow_chunks=self.slow_count, lost=self.spans.lost,
            transfers=chunks.count if chunks else 0,
            transfers_due=case.iterations * self.moved.fullest if self.moved is not None else 0,
        )  # fmt: skip

    def _outliers(self) -> list[int]:
        """Rows of the slow iterations, the slowest first."""
        import numpy as np

        if self.trial is None:
            return []
        slow = np.flatnonzero((self.local > OUTLIER * self.trial.p50) & ~self.is_held)
        return [int(spot) for spot in slow[np.argsort(-self.local[slow])]]

    def _transfers(self, moved: Transfers) -> None:
        import numpy as np

        from . import link_times, stragglers

        self._slow_transfers(moved)
        pattern = patterns.pattern(moved, self.spans, self.setting.link.beta)
        rows = patterns.rows(moved, self.spans)
        if pattern is None:
            return
        waiting = pattern.waiting(moved.start[rows], moved.end[rows])
        self.waiting = statistics.spread(waiting.reshape(-1))
        self.transferring = statistics.spread((moved.seconds[rows] - waiting).reshape(-1))
        numbers = moved.trials[rows]
        usual = ~np.isin(numbers, self.spans.trials[self.is_held])
        if usual.sum() >= stragglers.LEAST_TRIALS:
            same, spots = repeated_delays.comparable_rounds(self.case, moved, pattern), np.flatnonzero(usual)
            self.delays = repeated_delays.own_delays(same, moved, pattern, rows, spots, self.gaps)
            self.links = link_times.link_times(same, moved, pattern, rows, spots, self.gaps, self.setting)
        where = {int(number): row for row, number in enumerate(numbers)}
        for spot in self.outliers[:EXPLAINED]:
            row = where.get(int(self.spans.trials[spot]))
            parts = dependencies.path(pattern, moved, rows, row, self.gaps) if row is not None else ()
            self.slow.append(self._slow(spot, moved, dependencies.longest(parts)))
        self.path = dependencies.shares(pattern, moved, rows[:MOST_PATHS], self.gaps)

    def _slow(self, spot: int, moved: Transfers | None, parts: Iterable[dependencies.Part] = ()) -> Slow:
        import numpy as np

        local = self.spans.end[spot] - self.spans.start[spot]
        trial, rank = int(self.spans.trials[spot]), self.spans.ranks[int(local.argmax())]
        peer = None
        if moved is not None and trial in moved.trials:
            row = int(np.flatnonzero(moved.trials == trial)[0])
            received = np.flatnonzero(moved.rank == rank)
            peer = int(moved.peer[received[moved.seconds[row, received].argmax()]]) if received.size else None
        assert self.trial is not None
        return Slow(
            case=self.case, trial=trial, step=self.case.steps[trial - 1], seconds=float(self.local[spot]),
            usual=self.trial.p50, rank=rank, peer=peer, path=tuple(parts),
        )  # fmt: skip

    def _slow_transfers(self, moved: Transfers) -> None:
        import numpy as np

        if len(moved.trials) < _LEAST_TRIALS:
            return
        seconds = moved.seconds
        usual = np.median(seconds, axis=0)
        rows, columns = np.nonzero(seconds > OUTLIER * np.maximum(usual, 1e-6))
        self.slow_count = int(rows.size)
        worst = np.argsort(-(seconds[rows, columns] - usual[columns]))[:EXPLAINED]
        self.slow_chunks = [
            SlowChunk(
                case=self.case, trial=int(moved.trials[row]), rank=int(moved.rank[column]), peer=int(moved.peer[column]),
                index=int(moved.index[column]), seconds=float(seconds[row, column]), usual=float(usual[column]),
            )
            for row, column in zip(rows[worst], columns[worst], strict=True)
        ]  # fmt: skip


def _summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for kind, seconds in (entry for part in parts for entry in part.items()):
        total[kind] = total.get(kind, 0.0) + seconds
    return total

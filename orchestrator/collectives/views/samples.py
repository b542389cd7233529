"""Steps and chunk records as arrays: rows are iterations, columns are ranks, or the transfers of one iteration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...model.frozen import dataclass
from ...model.run import NodeFiles, StepRecord
from .experiment import Case, Setting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...views.statistics import Floats

#: A record of a chunk file (``bundle.json`` names the same format).
RECORD = [
    ("step", "<u4"), ("op", "<u2"), ("index", "<u2"), ("peer", "<u2"), ("chunk", "<u2"), ("size", "<u8"),
    ("start", "<f8"), ("end", "<f8"),
]  # fmt: skip
#: The fields that identify a transfer within an iteration, in the order in which transfers are sorted.
KEY = ("op", "rank", "index", "peer", "chunk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One figure per iteration, and the numbers of the iterations, from 1."""

    trials: NDArray[np.int64]
    seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """The timed regions of one case: [trial, rank], in seconds by the orchestrator's clock. Only whole iterations, in which no
    rank ended before it began.

    ``trials``: their numbers, from 1. ``lost``: how many are not there, or not of all ranks.
    """

    trials: NDArray[np.int64]
    ranks: tuple[int, ...]
    start: Floats
    end: Floats
    lost: int = 0

    def times(self, over: str = "max_rank") -> Floats:
        """One figure per iteration: of the slowest rank, the mean rank, or from the first start to the last end (cct).

        The last never lasts less than one rank's own duration, which an error of the clocks between hosts could suggest.
        """
        import numpy as np

        local = self.end - self.start
        if local.size == 0:
            return local.reshape(-1)
        if over == "cct":
            whole: Floats = np.maximum(self.end.max(axis=1) - self.start.min(axis=1), local.max(axis=1))
            return whole
        times: Floats = local.mean(axis=1) if over == "mean_rank" else local.max(axis=1)
        return times


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """The chunk transfers of one case. ``start``, ``end``: [trial, transfer]; a column is the same transfer in each iteration.

    ``op``, ``rank`` (the receiver), ``index`` (its step of the schedule), ``peer`` (the sender), ``chunk``, ``size``: one
    entry per column. ``trials``: numbers from 1. ``fullest``: transfers of the iteration that has the most.
    """

    trials: NDArray[np.int64]
    op: NDArray[np.int64]
    rank: NDArray[np.int64]
    index: NDArray[np.int64]
    peer: NDArray[np.int64]
    chunk: NDArray[np.int64]
    size: NDArray[np.int64]
    start: Floats
    end: Floats
    fullest: int = 0

    @property
    def seconds(self) -> Floats:
        return self.end - self.start


def spans(records: Iterable[StepRecord], setting: Setting) -> dict[int, Spans]:
    """Case -> its timed regions. Of a step that was done again, the last epoch counts in which all ranks have it."""
    import numpy as np

    every = list(records)
    chosen = _epochs(every, setting)
    chosen_records = [record for record in every if chosen.get(record.step, record.epoch) == record.epoch]
    last = max((case.steps.stop for case in setting.cases), default=1)
    world = max([record.rank + 1 for record in chosen_records] + [setting.world, 1])
    start, end = (np.full((last + 1, world), np.nan) for _ in range(2))
    chosen_records = [record for record in chosen_records if 0 <= record.step <= last]
    where = (
        np.array([r.step for r in chosen_records], dtype=int),
        np.array([r.rank for r in chosen_records], dtype=int),
    )
    offset = np.array([setting.clocks.get(rank, (0.0, 0.0))[0] for rank in range(world)])
    start[where] = [r.start for r in chosen_records]
    end[where] = [r.end for r in chosen_records]
    return {case.number: _spans(case, start + offset, end + offset) for case in setting.cases}


def _epochs(records: Sequence[StepRecord], setting: Setting) -> dict[int, int]:
    """Step -> the last epoch in which all ranks of its case have it; else the last one. Empty where there is one epoch only."""
    if len({record.epoch for record in records}) < 2:
        return {}
    ranks_of: dict[int, dict[int, set[int]]] = {}
    for record in records:
        ranks_of.setdefault(record.step, {}).setdefault(record.epoch, set()).add(record.rank)
    chosen = {}
    for case in setting.cases:
        for step in case.steps:
            epochs = ranks_of.get(step, {})
            whole = [epoch for epoch, ranks in epochs.items() if ranks >= set(case.ranks)]
            if epochs:
                chosen[step] = max(whole or epochs)
    return chosen


def _spans(case: Case, start: Floats, end: Floats) -> Spans:
    import numpy as np

    rows = slice(case.steps.start, case.steps.stop, case.steps.step)
    ranks = [rank for rank in case.ranks if rank < start.shape[1]]
    begin, finish = start[rows][:, ranks], end[rows][:, ranks]
    whole = (np.isfinite(finish) & (begin <= finish)).all(axis=1) & bool(ranks)
    return Spans(
        trials=np.flatnonzero(whole) + 1,
        ranks=tuple(ranks),
        start=begin[whole],
        end=finish[whole],
        lost=case.iterations - int(whole.sum()),
    )


def records(files: NodeFiles, setting: Setting) -> NDArray[Any]:
    """All chunk records with their ``rank``, sorted by step; of a step that was done again, those of the same epoch as spans."""
    import numpy as np

    full = np.dtype([*RECORD, ("rank", "<u2"), ("epoch", "<u2")])
    parts = []
    for _, rank, epoch, content in files.chunk_blocks():
        raw = np.frombuffer(content, dtype=RECORD, count=len(content) // np.dtype(RECORD).itemsize)
        part = np.empty(raw.size, dtype=full)
        for name, _ in RECORD:
            part[name] = raw[name]
        part["rank"], part["epoch"] = rank, epoch
        offset = setting.clocks.get(rank, (0.0, 0.0))[0]
        part["start"] += offset
        part["end"] += offset
        parts.append(part[np.isfinite(part["end"]) & (part["start"] <= part["end"])])  # others are damaged
    if not parts:
        return np.empty(0, dtype=full)
    joined = np.concatenate(parts)
    joined = joined[np.argsort(joined["step"], kind="stable")]
    return _last_epoch(joined, _epochs(list(files.steps()), setting) if len(set(joined["epoch"].tolist())) > 1 else {})


def _last_epoch(joined: NDArray[Any], chosen: Mapping[int, int]) -> NDArray[Any]:
    import numpy as np

    if joined.size == 0 or (joined["epoch"] == joined["epoch"][0]).all():
        return joined
    newest = np.zeros(int(joined["step"].max()) + 1, dtype=joined["epoch"].dtype)
    np.maximum.at(newest, joined["step"], joined["epoch"])
    for step, epoch in chosen.items():
        if step < newest.size:
            newest[step] = epoch
    newest_only: NDArray[Any] = joined[joined["epoch"] == newest[joined["step"]]]
    return newest_only


def of_case(joined: NDArray[Any], case: Case) -> NDArray[Any]:
    """The records of a case; ``joined`` is sorted by step."""
    import numpy as np

    first, last = np.searchsorted(joined["step"], [case.steps.start, case.steps.stop])
    near = joined[first:last]
    return near if case.stride == 1 else near[(near["step"] - case.first_step) % case.stride == 0]


def transfers(joined: NDArray[Any], case: Case) -> Transfers | None:
    """The grid of a case's transfers; None where nothing was recorded, as with ``library``.

    The pattern is that of most iterations; an iteration with another one (a torn file) is counted, not shown.
    """
    import numpy as np

    own = of_case(joined, case)
    if own.size == 0:
        return None
    own = own[np.lexsort((*(own[name] for name in reversed(KEY)), own["step"]))]
    steps, first, counts = np.unique(own["step"], return_index=True, return_counts=True)
    width = int(np.bincount(counts).argmax())
    whole = counts == width
    rows = first[whole][:, None] + np.arange(width)
    grid = own[rows]
    same = _like_most(grid)
    grid = grid[same]
    columns = {name: grid[0][name].astype(np.int64) for name in (*KEY, "size")}
    return Transfers(
        trials=(steps[whole][same].astype(np.int64) - case.first_step) // case.stride + 1,
        start=grid["start"],
        end=grid["end"],
        fullest=int(counts.max()),
        **columns,
    )


def _like_most(grid: NDArray[Any]) -> NDArray[np.bool_]:
    """The rows whose transfers are those of the middle row."""
    middle = grid[grid.shape[0] // 2]
    same = grid["op"] == middle["op"]
    for name in (*KEY[1:], "size"):
        same &= grid[name] == middle[name]
    is_same: NDArray[np.bool_] = same.all(axis=1)
    return is_same

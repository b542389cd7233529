"""Measures the parts of the time to recover of a user's job: how long nothing was committed, and which state was read from where."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...model.frozen import dataclass
from ...model.run import Run
from ..event_order import Clocks, clocks
from ..failovers import Failover
from .attempts import Attempt
from .job_checkpoints import Checkpoint, checkpoints
from .job_steps import watched
from .resumption import Lineage, Resumption

#: Where a checkpoint lies -> types of file systems. Others are shown by their type only.
TIERS = {
    "memory": ("ramfs", "tmpfs"),
    "shared": ("9p", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs", "wekafs"),
    "node-local disk": ("btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "xfs", "zfs"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFigures:
    """The figures of one failover; None: not known, or there is none.

    ``stall_s``: from the last commit before the loss to the first of a later step. ``reduced_s``, ``full_s``: from the fault to the
    first step of a smaller gang, and of every rank of one as large as before; ``regained_s``: until the lost steps were done again.
    ``state_bytes``: of the checkpoint that was resumed; ``tier``: where it lies; ``is_compiled``: by torch.compile.
    """

    stall_s: float | None = None
    reduced_s: float | None = None
    full_s: float | None = None
    regained_s: float | None = None
    state_bytes: int | None = None
    tier: str | None = None
    is_compiled: bool | None = None


def recovery_figures(run: Run, known: tuple[Failover, ...]) -> tuple[RecoveryFigures, ...]:
    """One for each failover of a watched script, in order; empty figures for other runs."""
    lines = watched(run)
    if lines is None:
        return tuple(RecoveryFigures() for _ in known)
    times = clocks(run.history)
    commits = sorted(_commits(lines, times))
    return tuple(_figures(failover, lines, times, commits) for failover in known)


def _figures(failover: Failover, lines: Lineage, times: Clocks, commits: list[tuple[float, int]]) -> RecoveryFigures:
    began = failover.milestones[0].t if failover.milestones else None
    resumption = next((item for item in lines.resumptions if item.attempt.number >= failover.epoch), None)
    if began is None or resumption is None:
        return RecoveryFigures()
    before = lines.attempts[resumption.attempt.index - 1]
    checkpoint = _checkpoint(lines, resumption)
    is_smaller = resumption.attempt.world < before.world
    return RecoveryFigures(
        stall_s=_stall(commits, began),
        reduced_s=failover.ttr_s if is_smaller else None,
        full_s=failover.ttr_s if not is_smaller else _full(lines, resumption, before.world, times, began),
        regained_s=failover.caught_up_s,
        state_bytes=_bytes(checkpoint) if checkpoint else None,
        tier=_tier(resumption.attempt, checkpoint) if checkpoint else None,
        is_compiled=_is_compiled(resumption.attempt),
    )


def _commits(lines: Lineage, times: Clocks) -> Iterator[tuple[float, int]]:
    """(when it was complete, in seconds since the run began, step) of every checkpoint with weights."""
    for attempt in lines.attempts:
        base = lines.bases.get(attempt.index)
        for checkpoint in checkpoints(attempt) if base is not None else ():
            ends = [
                _seconds(attempt, write.rank, write.committed.t_committed or write.committed.t, times)
                for write in checkpoint.writes
                if write.committed and write.holds_weights
            ]
            if checkpoint.is_complete and not checkpoint.is_export and ends and None not in ends:
                yield max(end for end in ends if end is not None), (base or 0) + checkpoint.n


def _seconds(attempt: Attempt, rank: int, t: float, times: Clocks) -> float | None:
    """Seconds since the run began; None where the clock of the rank's host was not compared."""
    begin = attempt.ranks[rank].file.begin
    offset = times.offset(begin.boot) if begin else None
    return None if offset is None else t + offset


def _stall(commits: list[tuple[float, int]], began: float) -> float | None:
    """None if nothing was committed before the loss, or nothing newer after it."""
    before = [(step, t) for t, step in commits if t <= began]
    if not before:
        return None
    newest = max(step for step, _ in before)
    first = min(t for step, t in before if step == newest)
    return next((t - first for t, step in commits if t > began and step > newest), None)


def _full(lines: Lineage, resumption: Resumption, world: int, times: Clocks, began: float) -> float | None:
    """The first step of every rank of the first later attempt that is as large as the one before the loss."""
    later = (a for a in lines.attempts[resumption.attempt.index + 1 :] if len(a.ranks) >= world)
    attempt = next(later, None)
    if attempt is None:
        return None
    firsts = [
        _seconds(attempt, rank, process.steps[1].end, times) if 1 in process.steps else None
        for rank, process in attempt.ranks.items()
    ]
    return None if None in firsts else max((t for t in firsts if t is not None), default=math.nan) - began


def _checkpoint(lines: Lineage, resumption: Resumption) -> Checkpoint | None:
    """The checkpoint of the step that was resumed, if its ranks loaded it."""
    loaded = [rank.steps for rank in resumption.ranks if "file" in (rank.source, rank.how)]
    made = (
        (lines.bases[old.index] + checkpoint.n, checkpoint)
        for old in reversed(lines.earlier(resumption.attempt))
        if old.index in lines.bases
        for checkpoint in checkpoints(old)
    )
    return next((item for step, item in made if step == resumption.step and any(step in own for own in loaded)), None)


def _bytes(checkpoint: Checkpoint) -> int | None:
    """Add up the bytes of all its files; a file that several ranks name counts once."""
    sizes = {write.path: write.committed.bytes for write in checkpoint.writes if write.committed}
    known = [size for size in sizes.values() if size is not None]
    return sum(known) if sizes and len(known) == len(sizes) else None


def _tier(attempt: Attempt, checkpoint: Checkpoint) -> str | None:
    """Name the file systems from which the ranks read it: ``node-local disk (ext4)``."""
    loads = [load for process in attempt.ranks.values() for load in process.loads if not load.error]
    types = {load.fs for load in loads if load.path in checkpoint.paths or load.sha256 in checkpoint.sums}
    kind = next(iter(types)) if len(types) == 1 else ""
    names = [tier for tier, kinds in TIERS.items() if kind in kinds]
    return f"{names[0]} ({kind})" if names else kind or None


def _is_compiled(attempt: Attempt) -> bool | None:
    stated = [process.owner.compiled if process.owner else None for process in attempt.ranks.values()]
    return None if not stated or None in stated else any(stated)

"""The checkpoints of a user's job: what its ranks saved after the same step, and which of them the next attempt can load."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from ...model import watch
from ...model.event import History
from ...model.events import FaultInjected
from ...model.frozen import dataclass, replace
from ..json_values import mapping
from .attempts import Attempt, Process, add, merged

#: Of more files of parts of a model, only all are added up.
MOST_PARTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One save of one rank, after ``n`` steps of its attempt; ``committed`` is None if it was not completed.

    ``is_dated``: whether its contents are known to be those after ``n`` steps; else they are a copy of an earlier moment.
    """

    rank: int
    n: int
    save: watch.Save
    saved: watch.Saved | None
    committed: watch.Committed | None
    is_dated: bool = True

    @property
    def path(self) -> str:
        return (self.committed.path if self.committed else "") or self.save.path

    @property
    def holds_weights(self) -> bool:
        return self.saved is not None and self.saved.weights is not None and self.saved.matched != 0

    @property
    def sums(self) -> set[str]:
        """SHA-256 of its files."""
        listed = [str(item[2] or "") for item in (self.saved.files if self.saved else ()) if len(item) > 2]
        return {*listed, (self.committed and self.committed.sha256) or ""} - {""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file that a planned fault damaged; ``began``: CLOCK_MONOTONIC in seconds on its host, where that is known."""

    path: str
    began: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The saves of the ranks of an attempt after step ``n``.

    ``weights``: digests of the models in it, of shards also their sum; ``sums``: SHA-256 of the files.
    ``is_complete``: every rank that saves weights together with these has committed its part. ``is_export``: it has no state of the
    optimizer, as others of the attempt have, for example the best weights so far. ``number``: of a checkpoint that the script
    reports, the step that it states.
    """

    attempt: int
    n: int
    writes: tuple[Write, ...]
    weights: frozenset[str]
    is_complete: bool
    is_export: bool = False
    number: int | None = None

    @property
    def holds_optimizer(self) -> bool:
        return any(name == "lr" or name.startswith("optimizer.") for name in self.contents)

    @property
    def sums(self) -> frozenset[str]:
        return frozenset[str]().union(*(write.sums for write in self.writes))

    @property
    def parts(self) -> Sequence[Write]:
        """The files that hold the weights together, each a part."""
        return [write for write in self.writes if write.holds_weights and part_of(write.saved)]

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(write.path for write in self.writes if write.holds_weights and write.committed)

    @property
    def is_dated(self) -> bool:
        """Return whether it is known after which step its weights were those of the job."""
        return all(write.is_dated for write in self.writes if write.holds_weights)

    @property
    def contents(self) -> Mapping[str, object]:
        """The digests of all parts that were saved after this step, by category."""
        return {name: digest for w in self.writes if w.saved for name, digest in w.saved.contents.items()}


def checkpoints(attempt: Attempt) -> tuple[Checkpoint, ...]:
    """The checkpoints of an attempt that hold weights, oldest first."""
    writes: dict[int, list[Write]] = {}
    for write in saves_of(attempt):
        writes.setdefault(write.n, []).append(write)
    groups = [{w.rank for w in items if w.holds_weights and w.committed} for items in writes.values()]
    made = [_checkpoint(attempt, n, tuple(items), _due(attempt, items, groups)) for n, items in sorted(writes.items())]
    has_optimizer = any(checkpoint.weights and checkpoint.holds_optimizer for checkpoint in made)
    return tuple(
        replace(checkpoint, is_export=has_optimizer and not checkpoint.holds_optimizer)
        for checkpoint in made
        if checkpoint.weights
    )


def usable(earlier: Sequence[Attempt], attempt: Attempt, damage: Sequence[Damage] = ()) -> tuple[Checkpoint, ...]:
    """The complete checkpoints that earlier attempts left, without those that were overwritten, damaged, or could not be read."""
    overwritten = _overwritten(earlier)
    last = {(write.path, write.rank): part_of(write.saved) for write in committed_writes(earlier)}
    return tuple(
        checkpoint
        for before in earlier
        for checkpoint in checkpoints(before)
        if checkpoint.is_complete
        and not checkpoint.paths & (overwritten | _unreadable((*earlier[before.index + 1 :], attempt)))
        and not _is_damaged(checkpoint, damage)
        and all(last[part.path, part.rank] == part_of(part.saved) for part in checkpoint.parts)
    )


def lack(checkpoint: Checkpoint, attempt: Attempt) -> str:
    """Return why ``attempt`` could not load a checkpoint that had been committed: when a rank read another one in the same directory, a
    file of it was not there or had another size. Empty if nothing is known to have changed.
    """
    loads = [load for process in attempt.ranks.values() for load in process.loads if load.folder is not None]
    commits = [write.committed for write in checkpoint.writes if write.committed]
    for load, commit in itertools.product(loads, commits):
        if load.path == commit.path or PurePath(load.path).parent != PurePath(commit.path).parent:
            continue
        size = (load.folder or {}).get(PurePath(commit.path).name)
        if size is None:
            return f"{commit.path} was no longer there when {load.path} was read"
        if size >= 0 and commit.bytes is not None and size != commit.bytes:
            return f"{commit.path} had {size} bytes instead of {commit.bytes} when {load.path} was read"
    return ""


def reported(earlier: Sequence[Attempt], damage: Sequence[Damage] = ()) -> tuple[Checkpoint, ...]:
    """The complete checkpoints whose contents the watcher does not know: those that a script reports, else files of other writers.

    Without those that were damaged. ``n`` is the count when the last rank reported it; it may have been saved before.
    """
    made = (checkpoint for attempt in earlier for checkpoint in _reported(attempt))
    return tuple(checkpoint for checkpoint in made if checkpoint.is_complete and not _is_damaged(checkpoint, damage))


def _reported(attempt: Attempt) -> Iterator[Checkpoint]:
    writes = [write for write in saves_of(attempt) if write.committed and write.save.api in ("script", "file")]
    by_number: dict[int, list[Write]] = {}
    for write in writes:
        if write.save.step is not None:
            by_number.setdefault(write.save.step, []).append(write)
    savers = {write.rank for items in by_number.values() for write in items}
    for number, items in by_number.items():
        yield Checkpoint(
            attempt=attempt.index, n=max(write.n for write in items), writes=tuple(items), weights=frozenset(),
            is_complete={write.rank for write in items} == savers, number=number,
        )  # fmt: skip
    if not by_number and not checkpoints(attempt):
        for write in writes:
            yield Checkpoint(attempt=attempt.index, n=write.n, writes=(write,), weights=frozenset(), is_complete=True)


def committed_writes(earlier: Iterable[Attempt]) -> tuple[Write, ...]:
    """All that earlier attempts saved, also what holds no weights, or only a part of them."""
    return tuple(write for attempt in earlier for write in saves_of(attempt) if write.committed)


def _unreadable(later: Iterable[Attempt]) -> set[str]:
    """Paths that a rank of these attempts could not read, also not when it tried again."""
    loads = [process.loads for attempt in later for process in attempt.ranks.values()]
    return {x.path for own in loads for x in own if x.error and all(y.error or y.path != x.path for y in own)}


def damages(history: History) -> tuple[Damage, ...]:
    """The files that planned faults damaged."""
    evidence = ((event.data.began, mapping(event.data.evidence).get("path")) for event in history.of(FaultInjected))
    return tuple(Damage(path=path, began=began) for began, path in evidence if isinstance(path, str))


def _is_damaged(checkpoint: Checkpoint, damage: Sequence[Damage]) -> bool:
    """Return whether a file of it, or in its directory, was damaged after it was committed."""
    return any(
        (item.path == write.path or item.path.startswith(f"{write.path}/"))
        and (item.began is None or write.committed.t <= item.began)
        for item in damage
        for write in checkpoint.writes
        if write.committed
    )


def _overwritten(earlier: Iterable[Attempt]) -> set[str]:
    """Paths whose last save was not completed: the file of the save before is gone."""
    torn: set[str] = set()
    for attempt in earlier:
        last: dict[tuple[str, int], bool] = {}  # ranks may write files of their own under one path, on their nodes
        for write in sorted(saves_of(attempt), key=lambda write: write.save.t):
            last[write.save.path, write.rank] = write.committed is not None
            if write.committed:
                last[write.path, write.rank] = True
        torn = (torn - {path for path, _ in last}) | {path for (path, _), is_whole in last.items() if not is_whole}
    return torn


def saves_of(attempt: Attempt) -> Iterator[Write]:
    for process in attempt.ranks.values():
        yield from _joined([*_saves_of(process)], process)


def _joined(writes: Sequence[Write], process: Process) -> Iterator[Write]:
    """The writes. Those of one step that hold the weights together, such as a file for each of two models, count as whole.

    Where no state shows what the weights were, they do so if files of the same names, but for numbers, did so at another step.
    """
    parts: dict[int, dict[str, tuple[str, Write]]] = {}
    for write in writes:
        if write.committed and (part := part_of(write.saved)) and (write.n in process.states or not write.save.thread):
            parts.setdefault(write.n, {})[write.path] = (part, write)
    whole: dict[int, str] = {}
    kinds: list[list[str]] = []
    for n, known in sorted(parts.items(), key=lambda item: item[0] not in process.states):
        kind, own = sorted(re.sub(r"\d", "", path) for path in known), {part for part, _ in known.values()}
        weights = process.states[n].weights if n in process.states else add(own) if kind in kinds else None
        chosen = sum_of(own, weights)
        whole |= {id(write): weights for part, write in known.values() if part in chosen and weights}
        kinds += [kind] if len(chosen) == len(known) else []
    for write in writes:
        saved, weights = write.saved, whole.get(id(write))
        yield replace(write, saved=replace(saved, weights=weights, matched=1.0)) if saved and weights else write


def part_of(saved: watch.Saved | watch.Load | None) -> str:
    """The digest of the weights in a file that holds some of the job's parameters; empty for any other file."""
    return str((saved.contents.get("part") if saved else None) or "")


def sum_of(parts: Iterable[str], weights: str | None) -> Sequence[str]:
    """Return two or more of these digests that add up to ``weights``: all of them, or some of a few; empty if none do."""
    known = sorted({*parts})
    sets = (some for size in range(2, MOST_PARTS + 1) for some in itertools.combinations(known[-MOST_PARTS:], size))
    return next((chosen for chosen in itertools.chain([known], sets) if chosen[1:] and add(chosen) == weights), ())


def _saves_of(process: Process) -> Iterator[Write]:
    saved = {line.id: line for line in process.file.of(watch.Saved)}
    committed = merged(process.file.of(watch.Committed))
    for save in process.file.of(watch.Save):
        commit = committed.get(save.id)
        n = _copied_at(process, save, saved.get(save.id), process.completed_at(save, commit))
        yield Write(
            rank=process.rank, n=process.completed_at(save, commit) if n is None else n, save=save, saved=saved.get(save.id),
            committed=commit, is_dated=n is not None,
        )  # fmt: skip


def _copied_at(process: Process, save: watch.Save, saved: watch.Saved | None, n: int) -> int | None:
    """The steps that the process had completed when the contents of a save that was called after ``n`` were copied.

    A script may copy its state at a step and save the copy later. A thread does so while training goes on: None if no state
    and no counter of the optimizer shows the step.
    """
    state = process.states.get(n)
    unknown = None if save.thread else n
    if saved is None or saved.weights is None or (state and state.weights in (None, saved.weights)):
        return n
    if not save.thread and (state is None or process.is_sharded):
        return n
    equal = [m for m, earlier in process.states.items() if m < n and earlier.weights == saved.weights]
    if equal:
        return max(equal)
    reference = max((m for m, s in process.states.items() if m <= n and s.counter is not None), default=None)
    if saved.counter is None or reference is None:
        return unknown
    copied = reference + int(saved.counter - (process.states[reference].counter or 0))
    return copied if 0 <= copied <= n else unknown


def _due(attempt: Attempt, writes: Sequence[Write], groups: Iterable[set[int]]) -> set[int]:
    """The ranks whose writes make it whole: of shards all that save, else those that save together; and those that did not end."""
    own = {write.rank for write in writes if write.holds_weights and write.committed}
    is_sharded = any(process.is_sharded for process in attempt.ranks.values())
    begun = {write.rank for write in writes if write.saved is None and write.committed is None}
    return begun.union(*(group for group in groups if is_sharded or group & own))


def _checkpoint(attempt: Attempt, n: int, writes: tuple[Write, ...], savers: set[int]) -> Checkpoint:
    holding = [write for write in writes if write.holds_weights]
    by_rank = {write.rank: write.saved.weights for write in holding if write.saved and write.saved.weights}
    digests = {write.saved.weights for write in holding if write.saved and write.saved.weights}
    if any(process.is_sharded for process in attempt.ranks.values()) and set(by_rank) == set(attempt.ranks):
        digests.add(add(by_rank.values()) or "")
    return Checkpoint(
        attempt=attempt.index,
        n=n,
        writes=writes,
        weights=frozenset(digests),
        is_complete=bool(savers) and savers <= {write.rank for write in holding if write.committed},
    )

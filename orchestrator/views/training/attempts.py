"""The attempts of a user's job, by what the watcher recorded in its processes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ...model import watch
from ...model.events import RecoveryReplaced
from ...model.frozen import dataclass, field
from ...model.run import Run
from ..gangs import Gang, gangs, start_name
from ..step_ranges import Steps
from .uneven import FilesOfRank

MODULUS = 1 << 64
L = TypeVar("L", watch.Load, watch.Committed, watch.Claim)
#: By how much the time of the last write of a file may be too early: kernels stamp files by ticks, in seconds.
TICK_S = 0.01
#: Claims of a script that show that its process trains.
TRAINING = ("step", "resumed", "saved")
C = TypeVar("C", bound=watch.Line)
M = TypeVar("M")
#: Names of types of 16 bits or fewer.
SHORT = ("bfloat16", "float16", "half", "float8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The record of one training process by kind; steps, states, fingerprints and learning rates by ``n``, its completed steps.

    ``claims``: what the script reports itself. ``origin``: where only the script reports steps, the number that it counts from.
    ``final``: name of each tensor -> digest, as an own workload reports them at its end; ``seqs``: its events in the history.
    """

    rank: int
    node: str
    file: watch.WatchFile
    owner: watch.Owner | None
    steps: Steps
    states: Mapping[int, watch.State]
    rngs: Mapping[int, Mapping[str, str | None]]
    rates: Mapping[int, tuple[Any, ...]]
    loads: tuple[watch.Load, ...]
    end: watch.End | None
    claims: tuple[watch.Claim, ...] = ()
    origin: int | None = None
    final: Mapping[str, str | None] | None = None
    seqs: tuple[int, ...] = ()

    @property
    def is_claimed(self) -> bool:
        """Return whether its steps are known by the script's own word only, as those of an own update loop."""
        return self.origin is not None

    @property
    def resumed(self) -> watch.Claim | None:
        """Return what the script says that it resumed from: its last word before its first step."""
        first = min((claim.t for claim in self.claims if claim.what == "step"), default=math.inf)
        words = [claim for claim in self.claims if claim.what == "resumed" and claim.n == 0 and claim.t <= first]
        return words[-1] if words else None

    def completed_at(self, save: watch.Save, committed: watch.Committed | None = None) -> int:
        """The steps that the process had completed when the save was called, or that the script saved by its own word.

        A file of another writer counts when it was last written, which the watcher notices later.
        """
        if self.origin is not None and save.step is not None:
            return max(0, save.step - self.origin)
        if self.origin is None and save.api != "file":
            return save.n
        t = ((committed.t_committed if committed else None) or save.t) + TICK_S
        return self.steps.ended_by(t)

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self.node})" if self.node else f"rank {self.rank}"

    @property
    def is_sharded(self) -> bool:
        """Return whether the rank holds a part of the parameters."""
        return self.owner is not None and self.owner.sharded

    @property
    def is_mixed(self) -> bool:
        """Return whether it computes in 16 bits or fewer, as far as it is recorded."""
        types = {str(entry[0]) for entry in (self.owner.parameters or {}).values()} if self.owner else set()
        is_short = any(name.rpartition(".")[2].startswith(SHORT) for name in types)
        return is_short or any(step.mixed for step in self.steps.full.values())

    @property
    def last(self) -> int:
        """The steps that it is known to have completed. The line of a step follows when the next one begins."""
        held = (line.n for line in self.file.of(watch.Held) if line.n is not None)
        return max([self.steps.last, *self.states, *(line.n for line in self.file.of(watch.Save)), *held, 0])

    @property
    def part(self) -> tuple[int, int]:
        """Return which part of the parameters it holds: its position among its shard group, and the size of that; (0, 1) for all."""
        shards = self.owner.shards if self.owner else ()
        return (shards.index(self.rank), len(shards)) if self.rank in shards else (0, 1)

    def holds_same_as(self, other: Process) -> bool:
        """Return whether both hold the same part of the parameters, as a rank and its replicas do."""
        return self.part == other.part and self.is_sharded == other.is_sharded

    def unobserved(self, what: str) -> str:
        """Return why the watcher could not observe a part of the job; empty if it could."""
        reasons = [line.why for line in self.file.of(watch.NotObserved) if line.what == what]
        reasons += [line.error for line in self.file.of(watch.Problem) if what in line.where]
        return next(iter(reasons), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the job. ``index`` counts from 0; ``missing``: rank -> why it has no record of its training.

    ``is_restarted``: the launcher started it again within the same attempt of ccbed. ``size``: its ranks, where the
    orchestrator states them. ``are_replicas``: all ranks hold the same parameters, as an own workload says by its checks.
    """

    index: int
    number: int
    restart: int
    ranks: Mapping[int, Process]
    missing: Mapping[int, str] = field(default_factory=dict)
    is_restarted: bool = False
    size: int | None = None
    are_replicas: bool = False

    @property
    def key(self) -> str:
        """Its name in the evidence of verdicts."""
        return f"attempt {self.number}" + (f", restart {self.restart}" if self.is_restarted else "")

    @property
    def name(self) -> str:
        return start_name(self.number) + (f", restart {self.restart}" if self.is_restarted else "")

    @property
    def world(self) -> int:
        return self.size or len(self.ranks) + len(self.missing)

    def total(self, n: int, of: Process | None = None) -> str | None:
        """The digest of all weights after ``n`` steps: of shards their sum; None if one of them is not known."""
        digests = [state.weights for state in self.shards(n, of) if state.weights is not None]
        return add(digests) if digests and len(digests) == len(self.shards(n, of)) else None

    def shards(self, n: int, of: Process | None = None) -> tuple[watch.State, ...]:
        """The states after ``n`` steps of the group of ``of``, or of the first rank, which has all parameters; empty if one is unknown."""
        first = of or next(iter(self.ranks.values()), None)
        if first is None:
            return ()
        group = first.owner.shards if first.is_sharded and first.owner and first.owner.shards else (first.rank,)
        known = [self.ranks[rank].states.get(n) for rank in group if rank in self.ranks]
        states = tuple(state for state in known if state is not None)
        return states if len(states) == len(group) else ()


def reload_of(attempt: Attempt, process: Process) -> watch.Load | None:
    """The first load after a step whose weights the process trained on with; None if there is none.

    Not what a rank had saved at that moment, which changes nothing. Its steps count on, although the job is at another one.
    """
    saves = [(save.n, save.id, p) for p in attempt.ranks.values() for save in p.file.of(watch.Save)]
    for load in process.loads:
        state = process.states.get(load.n)
        is_used = load.n and load.n < process.last and load.matched != 0 and not load.error
        if is_used and state and load.weights is not None and load.weights == state.weights:
            own = {
                line.weights for n, key, p in saves if n == load.n for line in p.file.of(watch.Saved) if line.id == key
            }
            if load.weights not in own:
                return load
    return None


def add(digests: Iterable[str]) -> str | None:
    """The sum of digests of shards; None for text that is no digest."""
    try:
        return f"{sum(int(digest, 16) for digest in digests) % MODULUS:016x}"
    except ValueError:
        return None


def attempts(run: Run) -> tuple[Attempt, ...]:
    """The attempts in which a process trained, and the last one of the bed, in order."""
    known_files = align_clocks([*run.files.watch()])
    files = sorted(known_files, key=_order(known_files))
    if replica_groups(files):
        return ()
    groups: list[dict[int, watch.WatchFile]] = []
    for file in filter(_trained, files):
        if not groups or _is_next(file, groups[-1]):
            groups.append({})
        groups[-1][file.rank] = file
    keys = [max(map(_key, group.values())) for group in groups]
    known = gangs(run.history)
    if known and known[-1].epoch not in {number for number, _ in keys}:
        groups.append({})
        own = [_key(file) for file in files if file.attempt == known[-1].epoch]
        keys.append(max(own, default=(known[-1].epoch, 0)))
    if groups and (_is_unreturned(run, groups[-1].values()) or _is_untrained_restart(files, groups[-1].values())):
        groups.append({})
        keys.append((keys[-1][0], keys[-1][1] + 1))
    by_epoch = {gang.epoch: gang for gang in known}
    return tuple(
        _attempt(
            index,
            key,
            group,
            files,
            by_epoch.get(key[0]),
            is_restarted=key[0] in {number for number, _ in keys[:index]},
            is_alone=isinstance(run.files, FilesOfRank),
        )
        for index, (key, group) in enumerate(zip(keys, groups, strict=True))
    )


def _is_unreturned(run: Run, newest: Iterable[watch.WatchFile]) -> bool:
    """Return whether the job's own launcher was to recover from a loss, and no process began after it."""
    losses = [event.at.wall for event in run.history.of(RecoveryReplaced)]
    starts = [file.begin.wall for file in newest if file.begin]
    return bool(losses) and bool(starts) and max(starts) < max(losses)


def _is_untrained_restart(files: Iterable[watch.WatchFile], newest: Collection[watch.WatchFile]) -> bool:
    """Return whether the script began again after a rank was killed, and no rank trained."""
    programs = {file.begin.argv0 for file in newest if file.begin}
    last = max(map(_last_wall, newest), default=math.inf)
    later = (file.begin for file in files if file.begin and file.begin.wall > last)
    return not all(file.of(watch.End) for file in newest) and any(begin.argv0 in programs for begin in later)


def replica_groups(files: Iterable[watch.WatchFile]) -> str:
    """Return why the processes are not one world of ranks: several with the same rank train at the same time. Empty if they are."""
    by_rank: dict[tuple[str, int, int], list[watch.WatchFile]] = {}
    for file in filter(_trained, files):
        by_rank.setdefault((_job(file), file.attempt, file.rank), []).append(file)
    for (_, _, rank), own in by_rank.items():
        own.sort(key=lambda file: file.begin.wall if file.begin else 0.0)
        for file, other in itertools.pairwise(own):
            if file.begin and other.begin and file.begin.wall and other.begin.wall < _last_wall(file):
                where = " and ".join(dict.fromkeys(name for name in (file.node, other.node) if name)) or file.begin.host
                return (
                    f"two processes train as rank {rank} at the same time ({where}): replica groups that go on by themselves"
                    " (torchft), or a split brain; their steps are not compared"
                )
    return ""


def _is_next(file: watch.WatchFile, group: Mapping[int, watch.WatchFile]) -> bool:
    """Return whether a process belongs to a later start of the job than those of ``group``: it began when one of them had ended.

    Their restart counts do not tell: where torchrun replaces a node, the new agent counts from 0 again.
    """
    if file.rank in group or any(
        other.attempt != file.attempt or _job(other) != _job(file) for other in group.values()
    ):
        return True
    began = file.begin.wall if file.begin else 0.0
    return bool(began) and any(began > _last_wall(other) for other in group.values())


def _last_wall(file: watch.WatchFile) -> float:
    """Return when the process wrote its last line, in seconds since the epoch; infinite where it did not record when it began."""
    begin = file.begin
    return begin.wall + max(line.t for line in file.lines) - begin.t if begin and begin.wall else math.inf


def _key(file: watch.WatchFile) -> tuple[int, int]:
    return file.attempt, file.begin.restart if file.begin else 0


def align_clocks(files: Sequence[watch.WatchFile]) -> list[watch.WatchFile]:
    """The records with the times of a host moved by the difference of its clock, where that is plain.

    That is: no process of the host ran while one of another host did, and none has the rank of one there. They began together.
    """
    by_boot: dict[str, list[watch.WatchFile]] = {}
    for file in files:
        if file.begin and file.begin.wall and _trained(file):
            by_boot.setdefault(file.begin.boot, []).append(file)
    firsts = {boot: min(_wall(file) for file in own) for boot, own in by_boot.items()}
    early = min(firsts.values(), default=0.0)
    moved = {
        boot: firsts[boot] - early
        for boot, own in by_boot.items()
        if all(_is_apart(own, others) for other, others in by_boot.items() if other != boot)
    }
    return [_moved(file, moved.get(file.begin.boot, 0.0)) if file.begin else file for file in files]


def _is_apart(own: Iterable[watch.WatchFile], others: Iterable[watch.WatchFile]) -> bool:
    return all(
        file.rank != other.rank and (_wall(file) > _last_wall(other) or _wall(other) > _last_wall(file))
        for file, other in itertools.product(own, others)
    )


def _moved(file: watch.WatchFile, seconds: float) -> watch.WatchFile:
    lines = (dataclasses.replace(x, wall=x.wall - seconds) if isinstance(x, watch.Begin) else x for x in file.lines)
    return dataclasses.replace(file, lines=tuple(lines)) if seconds else file


def _wall(file: watch.WatchFile) -> float:
    return file.begin.wall if file.begin else 0.0


def _order(files: Iterable[watch.WatchFile]) -> Callable[[watch.WatchFile], tuple[float, int, float, int, int, int]]:
    """Order by attempt, time and restart; jobs that were submitted again have other names and begin later."""
    starts: dict[str, float] = {}
    for file in files:
        starts[_job(file)] = min(starts.get(_job(file), _wall(file)), _wall(file))
    return lambda file: (starts[_job(file)], file.attempt, _wall(file), _key(file)[1], file.rank, file.pid)


def _job(file: watch.WatchFile) -> str:
    return (file.begin.run or "") if file.begin else ""


def _trained(file: watch.WatchFile) -> bool:
    return any(isinstance(line, watch.Step | watch.Range | watch.State | watch.Owner) for line in file.lines) or any(
        claim.what in TRAINING for claim in file.of(watch.Claim)
    )


#: What a process that had nothing left to train did, and the next step.
FINISHED = "made no step: remove that finished checkpoint, or let it train further"
#: Why a process of a watched job has no record.
_UNWATCHED = (
    "either its launcher started it without RANK, as `accelerate launch --cpu` does with one process (--multi_cpu sets it), or the watcher "
    "was not loaded (python -I, a replaced PYTHONPATH)"
)


def _attempt(
    index: int, key: tuple[int, int], group: Mapping[int, watch.WatchFile], files: Iterable[watch.WatchFile], gang: Gang | None,
    *, is_restarted: bool, is_alone: bool,
) -> Attempt:  # fmt: skip
    files = tuple(files)
    idle = {file.rank: file for file in files if _key(file) == key and file.rank not in group}
    watched = {file.rank for file in files}
    return Attempt(
        index=index,
        number=key[0],
        restart=key[1],
        ranks={rank: _process(group[rank]) for rank in sorted(group)},
        missing={
            rank: _reason(rank, idle.get(rank), gang, was_watched=is_restarted and rank in watched)
            for rank in _expected(group.values(), idle.values(), gang)
            if rank not in group and not is_alone
        },
        is_restarted=is_restarted,
    )


def _expected(trained: Iterable[watch.WatchFile], idle: Iterable[watch.WatchFile], gang: Gang | None) -> Iterator[int]:
    """The ranks that must have trained: of the process group that they joined, else of torchrun's world, else of the gang."""
    joined = [line.world or 0 for file in trained for line in file.of(watch.Joined)]
    stated = [file.begin.world or 0 for file in (*trained, *idle) if file.begin]
    world = max(joined, default=0) or max(stated, default=0)
    yield from range(world) if world else sorted(gang.ranks) if gang else ()


def _reason(rank: int, file: watch.WatchFile | None, gang: Gang | None, *, was_watched: bool) -> str:
    """Return why a rank has no record of its training. ``was_watched``: it had one in another start of its launcher."""
    node = file.node if file else gang.ranks.get(rank, "") if gang else ""
    name = f"rank {rank} ({node})" if node else f"rank {rank}"
    if file is None and was_watched:
        return f"{name} has no record of this start: it was not started again, or it ended before it imported torch"
    if file is None:
        return f"{name} has no record: {_UNWATCHED}"
    if failed := failed_load(file):
        return f"{name} could not load {failed.path}{lacking(failed)}, and made no step"
    reasons = [f"{line.what}: {line.why}" for line in file.of(watch.NotObserved)]
    reasons += [f"{line.where}: {line.error}" for line in file.of(watch.Problem)]
    if not reasons and (loads := [line.path for line in file.of(watch.Load) if line.path and not line.error]):
        return f"{name} loaded {loads[0]} and {FINISHED}"
    reasons.append("no optimizer of torch made one in this process; programs that it starts are seen with --cold")
    return f"{name} recorded no step ({reasons[0]})"


def lacking(load: watch.Load) -> str:
    """The words for what a checkpoint that could not be read lacked, by the names of its files."""
    from . import file_names  # a run without such a load starts without it

    lack = file_names.missing(load.parts or ())
    return f" ({lack})" if lack else ""


def failed_load(file: watch.WatchFile) -> watch.Load | None:
    loads = [*merged(file.of(watch.Load)).values()]
    return loads[-1] if loads and loads[-1].error and loads[-1].path else None


def _process(file: watch.WatchFile) -> Process:
    states: dict[int, watch.State] = {}
    for state in file.of(watch.State):
        states[state.n] = _completed(states[state.n], state) if state.n in states else state
    claims = tuple(merged(file.of(watch.Claim)).values())
    steps = Steps(file.lines)
    origin = None if steps or states else _origin(claims)
    return Process(
        rank=file.rank,
        node=file.node,
        file=file,
        owner=next(iter(reversed(file.of(watch.Owner))), None),
        steps=steps if origin is None else Steps(_claimed_steps(claims, origin).values()),
        states=states,
        rngs=_generators(file),
        rates=_rates(file),
        loads=tuple(merged(file.of(watch.Load)).values()),
        end=next(iter(file.of(watch.End)), None),
        claims=claims,
        origin=origin,
    )


def _origin(claims: Sequence[watch.Claim]) -> int | None:
    """The number of the step before the first that the script reports; None if it reports none, nor what it resumed or saved."""
    words = [claim for claim in claims if claim.what in TRAINING and claim.step is not None]
    if not words:
        return None
    first = next((claim.step for claim in words if claim.what == "step"), None)
    resumed = next((claim.step for claim in words if claim.what == "resumed"), None)
    if first is None or (resumed is not None and resumed < first):
        return resumed or 0
    return first - 1


def _claimed_steps(claims: Sequence[watch.Claim], origin: int) -> Mapping[int, watch.Step]:
    """The steps that the script reports, each from the report of the one before."""
    steps: dict[int, watch.Step] = {}
    begun: float | None = None
    for claim in claims:
        if claim.what == "step" and claim.step is not None and claim.step > origin:
            n, start = claim.step - origin, claim.t if begun is None else begun
            steps.setdefault(n, watch.Step(t=claim.t, n=n, start=start, end=claim.t, loss=claim.loss))
            begun = claim.t
    return steps


def _generators(file: watch.WatchFile) -> Mapping[int, Mapping[str, str | None]]:
    """The fingerprints of the generators by step; a state has them as well."""
    none: Mapping[str, str | None] = {}
    moments = _moments(file, lambda step, known: {**known, **(step.rng or {})}, none)
    return moments | {state.n: state.rng for state in file.of(watch.State) if state.rng}


def _moments(file: watch.WatchFile, follow: Callable[[watch.Step, M], M], known: M) -> dict[int, M]:
    """Return what each step that has a moment began with: it follows from the moment before."""
    result: dict[int, M] = {}
    for step in file.of(watch.Step):
        if step.rng is not None:
            known = follow(step, known)
            result[step.n - 1] = known
    return result


def _rates(file: watch.WatchFile) -> Mapping[int, tuple[Any, ...]]:
    moments: dict[int, tuple[Any, ...]] = _moments(file, lambda step, known: known if step.lr is None else step.lr, ())
    return moments | {state.n: state.lr for state in file.of(watch.State) if state.lr is not None}


def merged(lines: Iterable[L]) -> dict[str | int, L]:
    """Identity -> the line, of which later ones add what was not known before."""
    result: dict[str | int, L] = {}
    for line in lines:
        before = result.get(line.id)
        result[line.id] = line if before is None else _completed(before, line)
    return result


def _completed(before: C, line: C) -> C:
    """The line with what a later one adds, or states in full."""
    names = [item.name for item in dataclasses.fields(line) if item.name != "t"]
    values = {name: getattr(line, name) for name in names if getattr(line, name) is not None}
    known = {name: value for name, value in values.items() if value or getattr(before, name) is None}
    return dataclasses.replace(before, **known)

"""Finds the step that each rank of an attempt resumed from: by the digest of its first state, or by the file that it loaded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from ...model import watch
from ...model.frozen import dataclass, field, replace
from ..findings import Finding
from .attempts import Attempt, Process, reload_of
from .job_checkpoints import (
    Checkpoint,
    Damage,
    Write,
    checkpoints,
    committed_writes,
    part_of,
    reported,
    saves_of,
    sum_of,
    usable,
)
from .stated_steps import Numbering, contradiction, numbering

#: A step counts from the beginning of the run: its number in its attempt, and the step that the attempt resumed from.
Step = int
#: (step, ranks): from that step on the job had so many ranks.
Sizes = tuple[tuple[Step, int], ...]
#: How a failure begins of weights whose parts were saved at several steps.
APART = "begins with parts of other steps:"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResume:
    """``steps``: whose state the rank has as it begins, several where states are equal. ``how``: digest | file | scratch | claim | report.

    ``failure``: what is wrong; ``doubt``: why the steps are not known. ``loaded``: the steps of the checkpoints that it loaded.
    ``claim``: the step that the script says it resumed from, ``contradiction``: why that is not true. ``source``: where the
    weights come from, if that is known: ``file`` or ``memory``, with the rank that gave them. ``seqs``: events of the history.
    """

    rank: int
    name: str
    steps: frozenset[Step] = frozenset()
    loaded: frozenset[Step] = frozenset()
    how: str = ""
    failure: str = ""
    doubt: str = ""
    claim: int | None = None
    contradiction: str = ""
    source: str = ""
    seqs: tuple[int, ...] = ()

    @property
    def is_from_memory(self) -> bool:
        """Return whether no rank of the attempt read a file."""
        return self.source.startswith("memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The beginning of an attempt after the first. ``step``: that its ranks resumed from; None if that is not known.

    ``newest``: the step of the newest checkpoint that it could have loaded; None if there was none. ``damaged``: the steps of
    those that a planned fault had damaged. ``reported``: checkpoints whose contents the watcher does not know, with the step that
    was counted when they were reported; ``counted``: how the script counts. ``writes``: all that had been saved before;
    ``undated``: checkpoints of copies of the state, of which the step is not known. ``commands``: orders to nodes that name another
    checkpoint than the one that the engine chose.
    """

    attempt: Attempt
    ranks: tuple[RankResume, ...]
    step: Step | None
    newest: Step | None
    checkpoint: Checkpoint | None = None
    damaged: frozenset[Step] = frozenset()
    reported: tuple[tuple[Checkpoint, Step], ...] = ()
    counted: Numbering = field(default_factory=Numbering)
    writes: tuple[Write, ...] = ()
    undated: tuple[Checkpoint, ...] = ()
    commands: tuple[Finding, ...] = ()

    @property
    def is_fresh(self) -> bool:
        return bool(self.ranks) and all(rank.how == "scratch" for rank in self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The attempts of a job with the step that each began from; ``bases``: index of the attempt -> step, if it is known.

    ``first``: how the first attempt began, where its ranks report that. ``is_exact``: an own workload, which computes the same
    bits in every execution, numbers its steps itself and records all of them: each difference is a failure.
    """

    attempts: tuple[Attempt, ...]
    resumptions: tuple[Resumption, ...] = ()
    bases: Mapping[int, Step] = field(default_factory=dict)
    first: Resumption | None = None
    is_exact: bool = False

    @property
    def starts(self) -> tuple[Resumption, ...]:
        return ((self.first,) if self.first else ()) + self.resumptions

    def earlier(self, attempt: Attempt) -> tuple[Attempt, ...]:
        return self.attempts[: attempt.index]

    def n_of(self, step: Step, attempt: Attempt) -> int | None:
        """The steps that ``attempt`` had completed when the run was at ``step``."""
        base = self.bases.get(attempt.index)
        return None if base is None or step < base else step - base

    @property
    def size_changes(self) -> Sizes:
        """Return the sizes on the kept lineage, after the first one: sums over another number of ranks have other last bits."""
        known = [attempt for attempt in self.attempts if attempt.index in self.bases]
        return self._sizes(known[-1])[1:] if known else ()

    def have_same_sizes(self, first: Attempt, second: Attempt, step: Step) -> bool:
        """Return whether the same numbers of ranks led to ``step`` in both attempts. Both began from a known step."""
        own, other = ([size for size in self._sizes(item) if size[0] < step] for item in (first, second))
        return own == other

    def _sizes(self, attempt: Attempt) -> Sizes:
        sizes: Sizes = ()
        for item in (item for item in (*self.earlier(attempt), attempt) if item.index in self.bases):
            base = self.bases[item.index]
            sizes = tuple(size for size in sizes if size[0] < base)
            if not sizes or sizes[-1][1] != item.world:
                sizes += ((base, item.world),)
        return sizes


def lineage(known: Sequence[Attempt], damage: Sequence[Damage] = ()) -> Lineage:
    """Return where every attempt resumed from; the first begins at step 0. ``damage``: files that planned faults damaged."""
    result = Lineage(attempts=tuple(known), bases={0: 0} if known else {})
    for attempt in known[1:]:
        resumption = _resumption(attempt, result, damage)
        bases = dict(result.bases) | ({attempt.index: resumption.step} if resumption.step is not None else {})
        result = Lineage(attempts=result.attempts, resumptions=(*result.resumptions, resumption), bases=bases)
    return result


def _resumption(attempt: Attempt, before: Lineage, damage: Sequence[Damage]) -> Resumption:
    complete = _by_step(usable(before.earlier(attempt), attempt), before)
    made = usable(before.earlier(attempt), attempt, damage)
    left, undated = _by_step(made, before), tuple(item for item in made if not item.is_dated)
    others = tuple(_by_step(reported(before.earlier(attempt), damage), before))
    counted = numbering(before.earlier(attempt), before.bases)
    ranks = tuple(
        replace(
            _with_claim(rank := _rank(process, attempt, before, left, undated), process, counted, [*left, *others]),
            source=_source(process, rank, attempt, before, left),
        )
        for process in attempt.ranks.values()
    )
    resumable = [item for item in left if not item[0].is_export and not _is_late(item[0], attempt, before)]
    checkpoint, newest = max(resumable, key=lambda item: (item[1], item[0].attempt), default=(None, None))
    damaged = frozenset(step for _, step in complete) - {step for _, step in left}
    return Resumption(
        attempt=attempt, ranks=ranks, step=_common(ranks), newest=newest, checkpoint=checkpoint, damaged=damaged,
        reported=others, counted=counted, writes=committed_writes(before.earlier(attempt)), undated=undated,
    )  # fmt: skip


def _with_claim(
    rank: RankResume, process: Process, counted: Numbering, known: Sequence[tuple[Checkpoint, Step]]
) -> RankResume:
    """Add what the script says; its word decides only where it alone reports steps."""
    claim = process.resumed
    if process.is_claimed and not rank.steps and not rank.failure:
        rank = _by_claim(rank, process, counted)
    if claim is None:
        return rank
    wrong = contradiction(process, rank.steps, rank.how, counted, known)
    if wrong and rank.how == "claim":
        text = f"what {process.name} resumed from is not known: the file that it names is another one"
        return replace(rank, steps=frozenset(), how="", claim=claim.step, contradiction=wrong, doubt=text)
    doubt = f"{rank.doubt}; the script says step {claim.step}" if rank.doubt else ""
    return replace(rank, claim=claim.step, contradiction=wrong, doubt=doubt)


def _source(
    process: Process, rank: RankResume, attempt: Attempt, before: Lineage,
    left: Sequence[tuple[Checkpoint, Step]],
) -> str:  # fmt: skip
    """Return where the weights of a step that a rank has by digest come from: its file, another rank, or memory of its peers.

    Memory is a source only where every load was observed, and none read a file.
    """
    if rank.how != "digest" or rank.steps <= {0}:
        return ""
    if rank.steps & _loaded(process, process.states.get(0), left):
        return "file"
    ranks = attempt.ranks.values()
    readers = [p.name for p in ranks if rank.steps & _loaded(p, p.states.get(0), left)]
    if readers:
        return f"memory of {readers[0]}"
    is_blind = any(p.unobserved("loads") for p in ranks) or _has_other_files(before.earlier(attempt))
    is_read = any(not load.error for p in ranks for load in p.loads)
    return "" if attempt.missing or is_blind or is_read else "memory"


def _by_claim(rank: RankResume, process: Process, counted: Numbering) -> RankResume:
    first = next((claim.step for claim in process.claims if claim.what == "step"), None)
    if process.resumed and process.resumed.step is not None and first is not None and first <= process.resumed.step:
        text = f"the script says that {process.name} resumed from step {process.resumed.step}, and then reports step {first}"
        return replace(rank, doubt=text)
    if process.resumed and process.resumed.step is not None:
        return replace(rank, steps=counted.steps(process.resumed.step), how="claim", doubt="")
    if process.origin == counted.offset:
        return replace(rank, steps=frozenset({0}), how="scratch", doubt="")
    text = f"{process.name} reports steps from {(process.origin or 0) + 1} on, and not what it resumed from"
    return replace(rank, doubt=text)


def _is_late(checkpoint: Checkpoint, attempt: Attempt, before: Lineage) -> bool:
    """Return whether a rank of the attempt that made it committed it after this one began, as a rank does that was taken for dead."""
    writers = before.attempts[checkpoint.attempt].ranks
    begins: dict[str, float] = {}
    for begin in (process.file.begin for process in attempt.ranks.values()):
        if begin is not None:
            begins[begin.boot] = max(begin.t, begins.get(begin.boot, begin.t))
    commits = [
        (writer.boot, write.committed.t_committed or write.committed.t)
        for write in checkpoint.writes
        if write.committed and (writer := writers[write.rank].file.begin)
    ]
    return any(boot and boot in begins and t > begins[boot] for boot, t in commits)


def _by_step(made: Iterable[Checkpoint], before: Lineage) -> list[tuple[Checkpoint, Step]]:
    """The checkpoints of attempts that began from a known step, each with its own, if that is known."""
    return [(x, before.bases[x.attempt] + x.n) for x in made if x.attempt in before.bases and x.is_dated]


def _common(ranks: Iterable[RankResume]) -> Step | None:
    """The step that all ranks share, the newest of equal ones; where ranks differ, the newest of any rank.

    Of a rank that loaded a checkpoint and trains with other weights it is that of the checkpoint, from which it counts.
    """
    sets = [steps for rank in ranks if (steps := rank.loaded if rank.failure else rank.steps)]
    if not sets:
        return None
    return max(frozenset.intersection(*sets) or frozenset.union(*sets))


def _rank(
    process: Process, attempt: Attempt, before: Lineage, left: Sequence[tuple[Checkpoint, Step]], undated: Sequence[Checkpoint]
) -> RankResume:  # fmt: skip
    start = process.states.get(0)
    loaded = _loaded(process, start, left)
    if start is None or start.weights is None:
        return _without_state(process, start, loaded)
    steps = _equal_steps(process, start, attempt, before, left)
    if not steps and (path := _copy_of_unknown_step(start, before, [item for item, _ in left], undated)):
        text = f"{process.name} begins with what {path} holds: a copy of the weights, of which step is not known"
        return RankResume(rank=process.rank, name=process.name, doubt=text)
    if not steps and (by_parts := _by_parts(process, start, attempt, before)):
        return by_parts
    if not loaded and (load := reload_of(attempt, process)) is not None:
        text = f"{process.name} loaded {load.path or 'a checkpoint'} after its first step"
        return RankResume(rank=process.rank, name=process.name, doubt=text)
    return _by_state(process, start, steps, loaded, attempt, before, left)


def _by_parts(process: Process, start: watch.State, attempt: Attempt, before: Lineage) -> RankResume | None:
    """Judge weights that several files hold, by (attempt, step) of their saves; None if it is not known which files.

    An older part is a failure if it once was in a whole checkpoint, and was saved anew with the newest: others may be frozen or saved late.
    """
    known = [(old, before.bases[old.index]) for old in before.earlier(attempt) if old.index in before.bases]
    saves = [((old.index, base + w.n), part_of(w.saved), w) for old, base in known for w in committed_writes([old])]
    parts = {key: part for _, part, w in saves for key in (*w.sums, part)}
    loads = [load for other in attempt.ranks.values() for load in other.loads if not load.error]
    read = {parts.get(load.sha256 or "") or parts.get(part_of(load), "") for load in loads} - {""}
    if not (chosen := sum_of(read, start.weights)):
        return None
    common = set.intersection(*({at for at, part, w in saves if part == own and not w.save.thread} for own in chosen))
    if steps := frozenset(n for i, n in common if not _digests_at(before.attempts[i], n - before.bases[i])):
        return RankResume(rank=process.rank, name=process.name, steps=steps, how="digest")
    first = {part: (at, w) for at, part, w in reversed(saves) if part in chosen}
    names = sorted(((at, PurePath(w.path).name) for at, w in first.values()), reverse=True)
    paths = [w.path for _, _, w in saves]
    kinds = {path: path if paths.count(path) > 1 else re.sub(r"\d", "", path) for path in paths}
    anew = {kinds[w.path] for at, part, w in saves if at == names[0][0] and part not in {"", *chosen}}
    text = f"{process.name} {APART} {' and '.join(f'{name} of step {n}' for (_, n), name in names)}"
    if common or not any(w.holds_weights and kinds[w.path] in anew for at, w in first.values() if at != names[0][0]):
        return RankResume(rank=process.rank, name=process.name, doubt=f"{text}; they may belong together")
    return RankResume(rank=process.rank, name=process.name, loaded=frozenset(n for (_, n), _ in names), failure=text)


def _by_state(
    process: Process, start: watch.State, steps: frozenset[Step], loaded: frozenset[Step], attempt: Attempt, before: Lineage,
    left: Sequence[tuple[Checkpoint, Step]],
) -> RankResume:  # fmt: skip
    """``steps``: whose weights the rank begins with; ``loaded``: of the checkpoints that it loaded."""
    if steps & loaded:
        return RankResume(rank=process.rank, name=process.name, steps=steps & loaded, how="digest")
    is_exact = _is_exact(loaded, before, left) if loaded else None
    can_differ = any(before.attempts[item.attempt].world != attempt.world for item, step in left if step in loaded)
    if loaded and is_exact and (steps == {0} or not (steps or can_differ)):
        text = _unsaved_contents(process, start, loaded, left) or (
            f"{process.name} loaded the checkpoint of step {max(loaded)}, but trains from other weights"
        )
        how = "digest" if steps else ""
        return RankResume(rank=process.rank, name=process.name, steps=steps, loaded=loaded, how=how, failure=text)
    if steps:
        how = "scratch" if steps == {0} else "digest"
        return RankResume(rank=process.rank, name=process.name, steps=steps, how=how)
    if loaded:
        text = f"whether {process.name} trains with the checkpoint of step {max(loaded)} that it loaded is not known"
        doubt = "" if is_exact is False else f"{text}: it begins with other weights than were recorded"
        return RankResume(rank=process.rank, name=process.name, steps=loaded, how="file", doubt=doubt)
    if altered := _altered(process, start, before.earlier(attempt)):
        text = f"{process.name} loaded {altered}, which is not the file that was committed under that name (SHA-256)"
        return RankResume(rank=process.rank, name=process.name, failure=text)
    if late := [x for x in process.loads if not x.error and x.weights and (x.called or x.t) > start.t]:
        doubt = f"{process.name} loaded {late[0].path or 'weights'} after its first step began"
        return RankResume(rank=process.rank, name=process.name, doubt=doubt)
    if (shared := _shared(process, start, attempt, left)) is not None:
        text = f"{process.name} begins with weights that another rank loaded, of no step that was recorded"
        how, doubt = ("file", "") if shared else ("", text)
        return RankResume(rank=process.rank, name=process.name, steps=shared, how=how, doubt=doubt)
    has_trained = start.counter or (start.counter is None and start.optimizer)
    is_unread = bool(process.unobserved("loads")) or _has_other_files(before.earlier(attempt))
    if left and not process.loads and not has_trained and not is_unread:
        return RankResume(rank=process.rank, name=process.name, steps=frozenset({0}), how="scratch")
    doubt = f"{process.name} begins with the weights of no step that was recorded"
    return RankResume(rank=process.rank, name=process.name, doubt=doubt)


def _unsaved_contents(
    process: Process, start: watch.State, loaded: frozenset[Step], left: Sequence[tuple[Checkpoint, Step]]
) -> str:
    """Return how a file that holds other weights than were saved is named, if the process trains with what it read; else empty."""
    path = next((load.path for load in process.loads if not load.error and load.weights == start.weights), None)
    if path is None:
        return ""
    writes = [w for item, step in left if step in loaded for w in item.writes if w.committed and w.path == path]
    ranks = sorted({write.rank for write in writes})
    several = len({write.saved.weights for write in writes if write.saved}) > 1
    why = f"ranks {', '.join(map(str, ranks))} saved different weights to it" if several else "it is not what was saved"
    return f"{process.name} loaded {path}, which holds the weights of no step: {why}"


def _has_other_files(earlier: Sequence[Attempt]) -> bool:
    """Return whether a writer that the watcher does not know saved files: what reads them is not known either."""
    known = {path for attempt in earlier for checkpoint in checkpoints(attempt) for path in checkpoint.paths}
    saves = (save for attempt in earlier for p in attempt.ranks.values() for save in p.file.of(watch.Save))
    return any(save.api == "file" or (save.api == "script" and save.path not in known) for save in saves)


def _shared(
    process: Process, start: watch.State, attempt: Attempt, left: Sequence[tuple[Checkpoint, Step]]
) -> frozenset[Step] | None:
    """The steps of the checkpoints that another rank loaded, to give this one its weights; None if there is no such rank."""
    if process.loads:
        return None
    loaders = [p for p in attempt.ranks.values() if 0 in p.states and not all(load.error for load in p.loads)]
    givers = [p for p in loaders if process.is_sharded or p.states[0].weights == start.weights]
    if not givers:
        return None
    return frozenset(step for p in givers if not process.is_sharded for step in _loaded(p, p.states[0], left))


def _without_state(process: Process, start: watch.State | None, loaded: frozenset[Step]) -> RankResume:
    if loaded:
        return RankResume(rank=process.rank, name=process.name, steps=loaded, how="file")
    reason = (start.why if start else "") or process.unobserved("digest") or process.unobserved("steps")
    because = f" ({reason})" if reason else ""
    doubt = f"{process.name} recorded no digest of the weights that it began with{because}"
    return RankResume(rank=process.rank, name=process.name, doubt=doubt)


def _loaded(process: Process, start: watch.State | None, left: Sequence[tuple[Checkpoint, Step]]) -> frozenset[Step]:
    """The steps of the checkpoints whose file, by SHA-256, weights or optimizer's states the process loaded before its first step.

    A directory that DeepSpeed loads as a whole has no SHA-256: it is what was last saved under its name.
    """
    until = start.t if start else float("inf")
    loads = [load for load in process.loads if not load.error and (load.called or load.t) <= until]
    sums = {load.sha256 for load in loads if load.sha256}
    weights = {load.weights for load in loads if load.weights and load.matched != 0}
    folders = {load.path for load in loads if load.api == "deepspeed"}
    named = [step for checkpoint, step in left if checkpoint.paths & folders][-1:]
    steps = frozenset(named) | frozenset(
        step
        for checkpoint, step in left
        if checkpoint.weights & weights
        or (
            all(write.sums & sums or part_of(write.saved) in map(part_of, loads) for write in checkpoint.parts)
            and (checkpoint.sums & sums or any(_has_states(load, checkpoint) for load in loads))
        )
    )
    return steps - {0} or steps  # a frozen base that was saved before the first step is loaded beside a checkpoint


def _has_states(load: watch.Load, checkpoint: Checkpoint) -> bool:
    """Return whether the load gave the states of the optimizer that a rank saved in this checkpoint.

    A rank that dies soon after a save does not know its SHA-256, and a job may load the optimizer without the weights.
    """
    names = [name for name in load.contents if name.startswith("optimizer.") and name != "optimizer.step"]
    states = {name: load.contents[name] for name in names if load.contents[name] not in (None, "0" * 16)}
    saved = [write.saved.contents for write in checkpoint.writes if write.saved]
    return bool(states) and any(all(own.get(name) == value for name, value in states.items()) for own in saved)


def _altered(process: Process, start: watch.State, earlier: Sequence[Attempt]) -> str:
    """A file that the process loaded before its first step with another content than was ever committed; empty if there is none."""
    writes = [write for old in earlier for write in saves_of(old)]
    sums = {digest for write in writes for digest in write.sums}
    unhashed = {w.path for w in writes if w.committed and not w.committed.sha256}  # the rank was killed before it knew
    paths = {path for old in earlier for checkpoint in checkpoints(old) for path in checkpoint.paths} - unhashed
    loads = [load for load in process.loads if not load.error and load.sha256 and (load.called or load.t) <= start.t]
    return next((load.path for load in loads if load.path in paths and load.sha256 not in sums), "")


def _equal_steps(
    process: Process, start: watch.State, attempt: Attempt, before: Lineage, left: Iterable[tuple[Checkpoint, Step]]
) -> frozenset[Step]:
    """The steps whose weights equal those of ``start``; ties are decided by the optimizer's counter and state."""
    states = [*_states(process, start, attempt, before)]
    for kind in ("counter", "optimizer"):
        own = getattr(start, kind)
        same = [(step, state) for step, state in states if own is not None and getattr(state, kind) == own]
        states = same or states
    total = attempt.total(0)
    exact = ((item, step) for item, step in left if not _is_copy(item, before))
    saved = {step for checkpoint, step in exact if checkpoint.weights & {start.weights, total}}
    return frozenset(step for step, _ in states) or frozenset(saved)


def _states(
    process: Process, start: watch.State, attempt: Attempt, before: Lineage
) -> Iterator[tuple[Step, watch.State]]:
    total = attempt.total(0) if process.is_sharded else None
    for old in before.earlier(attempt):
        for other in old.ranks.values() if old.index in before.bases else ():
            for n, state in other.states.items():
                if (state.weights == start.weights and other.holds_same_as(process)) or (
                    total is not None and old.total(n) == total
                ):
                    yield before.bases[old.index] + n, state


def _is_exact(loaded: frozenset[Step], before: Lineage, left: Sequence[tuple[Checkpoint, Step]]) -> bool | None:
    """Return whether the loaded checkpoints hold the weights bit by bit, as states of their steps show, or else those of all checkpoints.

    None if no state of such a step was recorded.
    """
    own = [checkpoint for checkpoint, step in left if step in loaded]
    for made in (own, [checkpoint for checkpoint, _ in left]):
        known = [(item.weights, _digests_at(before.attempts[item.attempt], item.n)) for item in made]
        compared = [bool(weights & digests) for weights, digests in known if digests]
        if compared:
            return all(compared)
    return None


def _is_copy(checkpoint: Checkpoint, before: Lineage) -> bool:
    """Return whether it holds other weights than the job had as it was saved: a copy of an earlier moment, or an average."""
    digests = _digests_at(before.attempts[checkpoint.attempt], checkpoint.n)
    return bool(digests) and not checkpoint.weights & digests


def _copy_of_unknown_step(
    start: watch.State, before: Lineage, dated: Sequence[Checkpoint], undated: Sequence[Checkpoint]
) -> str:
    """The path of the checkpoint that holds these weights, which were not those of the job as it was saved; else empty."""
    copies = [*undated, *(item for item in dated if _is_copy(item, before))]
    return next((path for item in copies if start.weights in item.weights for path in sorted(item.paths)), "")


def _digests_at(attempt: Attempt, n: int) -> set[str]:
    digests = {process.states[n].weights for process in attempt.ranks.values() if n in process.states}
    return {digest for digest in (*digests, attempt.total(n)) if digest}

"""What an attempt resumed with, part by part: each is compared with the same moment of the job in an earlier attempt."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...model import watch
from . import world_sizes
from .attempts import Attempt, Process
from .replay import Replay, replays
from .resumption import Lineage, Resumption, Step

Result = Literal["pass", "fail", "unknown", "not applicable"]
PARTS = (
    "weights",
    "buffers",
    "copies of the model",
    "optimizer",
    "learning rate",
    "scheduler",
    "scaler",
    "RNG",
    "data position",
    "other state",
)
#: Parts that have a row only where there is something to say.
_RARE = ("copies of the model", "other state")
#: The better a result is, the later it stands: a row has the worst result of all ranks.
_ORDER: tuple[Result, ...] = ("fail", "unknown", "pass", "not applicable")
#: Part -> its name in a state and in the contents of a checkpoint.
_SAVED = {"buffers": "buffers", "learning rate": "lr", "scheduler": "scheduler", "scaler": "scaler"}
#: The digest of no tensor.
NOTHING = "0" * 16
#: A generator counts as used by steps if it is drawn from between at least this share of them.
_MOST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A part of the state of one rank in one attempt: the result and its reason."""

    part: str
    result: Result
    text: str = ""
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """The state that a rank began with, and that of the same moment before.

    ``before``: of its own rank, with the parts that replicas share from one of them; ``own``: of its own rank only.
    ``saved``: the random generators that the checkpoint holds, and the digests of its tensors.
    """

    process: Process
    start: watch.State
    before: watch.State
    own: watch.State | None
    #: The rank in all attempts until then: of one step, no attempt shows whether steps draw from a generator.
    every: tuple[Process, ...]
    replays: tuple[Replay, ...]
    #: The state of the rank of the same number in a gang of another size.
    namesake: watch.State | None = None
    sizes: str = ""
    saved: frozenset[str] = frozenset()
    #: The key of a copy of the model in the checkpoint that no module of the rank had.
    unobserved: str = ""


def rows(
    lines: Lineage, resumption: Resumption, twin: Mapping[str, Mapping[str, str]] | None = None
) -> tuple[Row, ...]:
    """The rows of every rank. Not for an attempt that began from scratch: nothing was resumed.

    ``twin``: the digests of an undisturbed run, rank -> ``weights@<step>``, where no state of this run decides.
    """
    repeated = replays(lines, resumption.attempt)
    return tuple(
        _by_twin(row, process, resumption.step, (twin or {}).get(str(process.rank), {}))
        for process in resumption.attempt.ranks.values()
        for row in _rank_rows(lines, resumption, process, tuple(r for r in repeated if r.rank == process.name))
    )


def _by_twin(row: Row, process: Process, step: Step | None, twin: Mapping[str, str]) -> Row:
    """A part that is equal to that of the undisturbed run after the same step is whole. A difference shows nothing, but for rates."""
    if step is not None and row.part in ("learning rate", "scheduler") and row.result in ("pass", "unknown"):
        return _by_rates(row, process, step, twin)
    start = process.states.get(0)
    if row.result != "unknown" or start is None or step is None:
        return row
    own: Mapping[str, str | None] = {"weights": start.weights} if row.part == "weights" else {}
    if row.part == "optimizer" and start.optimizer:
        own = {f"optimizer.{name}": digest for name, digest in start.optimizer.items()}
    known = {name.rpartition("@")[0] for name in twin if name.endswith(f"@{step}") and name.startswith(row.part)}
    if own and known == set(own) and all(digest and twin[f"{name}@{step}"] == digest for name, digest in own.items()):
        return replace(row, result="pass", text=f"equal to that of the twin after step {step}")
    return row


def _by_rates(row: Row, process: Process, step: Step, twin: Mapping[str, str]) -> Row:
    """By the learning rates of all steps that both did after ``step``."""
    own = {step + n: " ".join(map(str, rates)) for n, rates in sorted(process.rates.items())}
    common = [(n, rates, twin[f"lr@{n}"]) for n, rates in own.items() if f"lr@{n}" in twin]
    changed = next(((n, rates, other) for n, rates, other in common if rates != other), None)
    if changed is not None:
        n, rates, other = changed
        text = f"of step {n + 1} is {_shown(rates.split())}, in the reference run {_shown(other.split())}"
        return replace(row, result="fail", text=text)
    is_known = row.result == "unknown" and row.part == "scheduler" and len({rates for _, rates, _ in common}) > 1
    return (
        replace(row, result="pass", text=f"the learning rates of {len(common)} steps are those of the twin")
        if is_known
        else row
    )


def worst(items: tuple[Row, ...]) -> dict[str, Row]:
    """Part -> its worst row."""
    return {
        part: min(matching, key=lambda row: _ORDER.index(row.result))
        for part in PARTS
        if (matching := [row for row in items if row.part == part])
    }


def _rank_rows(lines: Lineage, resumption: Resumption, process: Process, repeated: tuple[Replay, ...]) -> Iterator[Row]:
    who = f"{resumption.attempt.name}: {process.name}"
    start = process.states.get(0)
    if resumption.step is None or start is None or not start.full:
        reason = (
            "from which step it resumed is not known" if start and start.full else "its first state was not recorded"
        )
        yield from (Row(part=part, result="unknown", text=reason, who=who) for part in PARTS)
        return
    own, before = _moment(lines, resumption.attempt, process, resumption.step)
    if before is None:
        yield from _by_contents(lines, resumption, process, start, repeated, who)
        return
    sizes, namesake = _namesake(lines, resumption, process)
    known = (*lines.earlier(resumption.attempt), resumption.attempt)
    every = tuple(attempt.ranks[process.rank] for attempt in known if process.rank in attempt.ranks)
    pair = _Pair(
        process=process, start=start, before=before, own=own, every=every, replays=repeated, namesake=namesake, sizes=sizes,
        saved=_saved_parts(resumption), unobserved=_unobserved_copy(resumption, before),
    )  # fmt: skip
    results = {part: _COMPARE[part](pair) for part in PARTS}
    is_explained = any(result == "fail" for part, (result, _) in results.items() if part != "other state")
    for part, (result, text) in results.items():
        if part not in _RARE or not (result == "not applicable" or (is_explained and part == "other state")):
            yield Row(part=part, result=result, text=text, who=who)


def _namesake(lines: Lineage, resumption: Resumption, process: Process) -> tuple[str, watch.State | None]:
    """(how the size of the gang changed, the state of the same rank there) if the attempt before had another size."""
    step, old = resumption.step or 0, lines.attempts[resumption.attempt.index - 1]
    n, other = lines.n_of(step, old), old.ranks.get(process.rank)
    if old.world == resumption.attempt.world:
        return "", None
    return f"world size {resumption.attempt.world} instead of {old.world}", other.states.get(n or 0) if other else None


def _moment(
    lines: Lineage, attempt: Attempt, process: Process, step: Step
) -> tuple[watch.State | None, watch.State | None]:
    """(its own state, the state with the parts that a replica recorded) after ``step``.

    Of the newest earlier attempt of which a rank recorded all parts. A rank that saves nothing does not know that another saves.
    """
    for old in reversed(lines.earlier(attempt)):
        n = lines.n_of(step, old)
        if n is not None and not world_sizes.have_same(lines, old, attempt, step):
            continue
        states = (
            {p.rank: p.states[n] for p in old.ranks.values() if n in p.states and _is_replica(p, process, old)}
            if n is not None
            else {}
        )
        full = next(
            (state for rank, state in sorted(states.items(), key=lambda item: item[0] != process.rank) if state.full),
            None,
        )
        if full is not None:
            own = old.ranks.get(process.rank) if old.world == attempt.world else None
            return _own_state(own, states.get(process.rank) if own else None, n or 0), full
    return None, None


def _is_replica(other: Process, process: Process, old: Attempt) -> bool:
    """Whether ``other`` held in ``old`` what the rank of ``process`` did. Stages of a pipeline differ as they begin."""
    own = old.ranks.get(process.rank)
    starts = [p.states[0].weights for p in (own, other) if p is not None and 0 in p.states]
    differ = len({weights for weights in starts if weights is not None}) > 1
    return other.holds_same_as(process) and (other.rank == process.rank or other.is_sharded or not differ)


def _own_state(process: Process | None, state: watch.State | None, n: int) -> watch.State | None:
    """The state, or what is known of it by the fingerprints of the generators."""
    if state is not None or process is None or n not in process.rngs:
        return state
    return watch.State(t=0.0, n=n, rng=process.rngs[n])


def _saved_parts(resumption: Resumption) -> frozenset[str]:
    """The random generators, and the digests of tensors, that the checkpoint holds: the job itself counts them as its state."""
    checkpoint = resumption.checkpoint if resumption.newest == resumption.step else None
    contents = [write.saved.contents for write in checkpoint.writes if write.saved] if checkpoint else []
    generators = {str(name) for saved in contents for name in saved.get("rng") or ()}
    return frozenset(generators | {str(v) for saved in contents for k, v in saved.items() if k.startswith("tensors.")})


def _unobserved_copy(resumption: Resumption, before: watch.State) -> str:
    checkpoint = resumption.checkpoint if resumption.newest == resumption.step else None
    contents = [write.saved.contents for write in checkpoint.writes if write.saved] if checkpoint else []
    known = set(before.copies.values())
    keys = (
        str(key) for saved in contents for key in saved.get("copies") or () if saved.get(f"tensors.{key}") not in known
    )
    return next(keys, "")


def _by_contents(
    lines: Lineage,
    resumption: Resumption,
    process: Process,
    start: watch.State,
    repeated: tuple[Replay, ...],
    who: str,
) -> Iterator[Row]:
    """Without a state of that moment: by the contents of the checkpoint, and by the steps that were executed again."""
    reason = f"no earlier attempt recorded the whole state after step {resumption.step}"
    checkpoint = resumption.checkpoint if resumption.newest == resumption.step else None
    contents = checkpoint.contents if checkpoint else {}
    for part in PARTS:
        if part == "other state" or (part == "copies of the model" and not start.copies):
            continue
        row = Row(part=part, result="unknown", text=reason, who=who)
        if part == "weights" and checkpoint and not process.is_sharded and start.weights in checkpoint.weights:
            row = replace(row, result="pass", text="equal to those in the checkpoint")
        elif part == "optimizer" and not process.is_sharded:
            row = _saved_optimizer(start, contents, row)
        elif part in _SAVED:
            row = _saved_value(part, start, contents, row)
        elif part == "data position":
            result, text = _data(repeated)
            row = replace(row, result=result, text=text or reason)
        elif part == "RNG" and _is_never_drawn(lines, resumption.attempt, process):
            row = replace(row, result="not applicable", text="steps do not draw from it")
        yield row


def _is_never_drawn(lines: Lineage, attempt: Attempt, process: Process) -> bool:
    """Whether no step of the rank, in this attempt or the one before, drew from a generator, as far as that is known."""
    old = next((a.ranks.get(process.rank) for a in reversed(lines.earlier(attempt)) if a.world == attempt.world), None)
    known = [item for item in (old, process) if item is not None]
    names = {name for item in known for prints in item.rngs.values() for name in prints}
    return old is not None and bool(names) and all(_drawn(name, known) == 0 for name in names)


def _saved_value(part: str, start: watch.State, contents: Mapping[str, object], row: Row) -> Row:
    """Equal to what was saved, or absent on both sides. A difference may be due to the moment of the save: unknown."""
    name = _SAVED[part]
    own, saved = getattr(start, name), contents.get(name)
    if not saved and (not own or own == NOTHING):
        return replace(row, result="not applicable", text="neither saved nor in use")
    same = json.dumps(own) == json.dumps(saved)
    return replace(row, result="pass", text="equal to that in the checkpoint") if same else row


def _saved_optimizer(start: watch.State, contents: Mapping[str, object], row: Row) -> Row:
    saved = {
        name.removeprefix("optimizer."): digest for name, digest in contents.items() if name.startswith("optimizer.")
    }
    if start.optimizer is None:
        return row
    own = dict(start.optimizer)
    shared = sorted(name for name in saved if name in own and saved[name] and own[name])
    if saved and not own:
        return replace(row, result="fail", text=f"has no {min(saved)}")
    if shared and len(shared) == len(own) and all(saved[name] == own[name] for name in shared):
        return replace(row, result="pass", text="equal to that in the checkpoint")
    return row


def _weights(pair: _Pair) -> tuple[Result, str]:
    if pair.start.weights is None or pair.before.weights is None:
        return "unknown", pair.start.why or pair.before.why or "no digest"
    return ("pass", "") if pair.start.weights == pair.before.weights else ("fail", "differ")


def _buffers(pair: _Pair) -> tuple[Result, str]:
    """The forward pass of the coming step has updated them already, so they compare only with the same batch."""
    own = pair.start.buffers
    other = pair.own.buffers if pair.own and pair.own.buffers else pair.before.buffers
    if own == other == NOTHING:
        return "not applicable", "the model has none"
    if own == other and _is_digested(own):
        return "pass", ""
    if not own or not other or not _is_digested(own) or not _is_digested(other):
        return "unknown", "no digest"
    later = next((replay for replay in pair.replays if replay.buffers is not None), None)
    if later is not None and later.buffers:
        return "pass", f"as before at step {later.step}"
    if pair.own is not None and pair.own.buffers and _has_same_batch(pair):
        return "fail", "differ with the same batch"
    return "unknown", "differ, but so may the batch that updated them"


def _copies(pair: _Pair) -> tuple[Result, str]:
    """Averages of the weights, target networks and other models with the same parameters."""
    own, other = pair.start.copies, pair.before.copies
    if not (own or other or pair.unobserved):
        return "not applicable", "there is none"
    if pair.unobserved:
        return "unknown", f"the checkpoint has one in {pair.unobserved}, which is no module: it is not observed"
    if not own or not other:
        return "unknown", "recorded in one of the attempts only"
    if set(own.values()) == set(other.values()) and None not in own.values():
        return "pass", ""
    if None in (*own.values(), *other.values()):
        return "unknown", "no digest"
    saved = sorted(name for name, value in other.items() if value in pair.saved)
    if any(other[name] not in own.values() for name in saved):
        return "fail", f"{saved[0].split()[0]} differs from that in the checkpoint"
    redone = [replay for replay in pair.replays if replay.copies is not None]
    if any(replay.copies for replay in redone):
        return "pass", f"made again by step {next(replay.step for replay in redone if replay.copies)}"
    name = min(set(own) & set(other), default=min(own)).split()[0]
    if redone:
        return "fail", f"{name} differs from before, until step {redone[-1].step}, and no checkpoint holds it"
    return "unknown", f"{name} differs, no checkpoint holds it, and no step shows whether it is made again"


def _optimizer(pair: _Pair) -> tuple[Result, str]:
    own, other = pair.start.optimizer, pair.before.optimizer
    if own is None or other is None:
        return "unknown", "not recorded"
    counters = pair.start.counter, pair.before.counter
    if None not in counters and counters[0] != counters[1]:
        return "fail", f"its step counter is {counters[0]:g}, it was {counters[1]:g}"
    if changed := _changed_setting(pair):
        return "fail", changed
    if not own and not other:
        return "not applicable", "the optimizer has no state"
    missing = sorted(set(other) - set(own))
    if missing:
        return "fail", f"has no {missing[0]}"
    differing = sorted(name for name in own if own[name] and other.get(name) and own[name] != other[name])
    if differing and (
        pair.own is None or not pair.own.full
    ):  # ZeroRedundancyOptimizer gives each rank a share of its own
        return "unknown", f"{differing[0]} differs from that of another rank; its own was not recorded at this moment"
    if differing:
        return "fail", f"{differing[0]} differs"
    return (
        ("pass", "")
        if set(own) == set(other) and _is_digested(own) and _is_digested(other)
        else ("unknown", "no digest")
    )


def _changed_setting(pair: _Pair) -> str:
    """The first setting of a parameter group, such as its weight decay, that differs; empty if none is known to."""
    own, other = pair.start.groups or (), pair.before.groups or ()
    changes = (
        f"its {name} is {group[name]}, it was {before[name]}"
        for group, before in zip(own, other, strict=False)
        for name in sorted(group.keys() & before.keys())
        if group[name] != before[name]
    )
    return next(changes, "")


def _learning_rate(pair: _Pair) -> tuple[Result, str]:
    own, other = pair.start.lr, pair.before.lr
    if own is None or other is None:
        return "unknown", "not recorded"
    if not own and not other:
        return "unknown", "the optimizer has no group of parameters"
    if own != other:
        return "fail", f"is {_shown(own)}, it was {_shown(other)}"
    return _rates(pair) or ("pass", "")


def _rates(pair: _Pair) -> tuple[Result, str] | None:
    """The first redone step after which the learning rates differ; None if there is none."""
    for replay in pair.replays:
        if replay.rates and replay.rates[0] != replay.rates[1]:
            before, after = replay.rates
            return "fail", f"of step {replay.step + 1} is {_shown(after)}, it was {_shown(before)}"
    return None


def _scheduler(pair: _Pair) -> tuple[Result, str]:
    """By the steps that each scheduler has made; its count of calls, ``_step_count``, changes no rate, and a new one begins at 1.

    A schedule that is none of torch's is judged by the learning rates that it sets.
    """
    if not pair.start.scheduler and not pair.before.scheduler and _is_scheduled(pair):
        count = sum(replay.rates is not None for replay in pair.replays)
        if differing := _rates(pair):
            return differing
        if count:
            return "pass", f"not of torch: the learning rates of {count} redone steps are as before"
        return "unknown", "not of torch, and no step was redone whose rate was recorded"
    return _document(_epochs(pair.start.scheduler), _epochs(pair.before.scheduler), "no scheduler")


def _is_scheduled(pair: _Pair) -> bool:
    """Whether the learning rates of the rank change."""
    return len({rates for process in pair.every for rates in process.rates.values()}) > 1


def _epochs(schedulers: Any) -> Any:
    """``last_epoch`` of each scheduler, sorted: the watcher finds them in any order."""
    if not isinstance(schedulers, list | tuple):
        return schedulers
    return sorted((item[0] if isinstance(item, list | tuple) and item else item for item in schedulers), key=json.dumps)


def _scaler(pair: _Pair) -> tuple[Result, str]:
    return _document(pair.start.scaler, pair.before.scaler, "no gradient scaler")


def _document(own: Any, other: Any, absent: str) -> tuple[Result, str]:
    if not own and not other:
        return "not applicable", absent
    if own is None or other is None:
        return "unknown", "recorded in one of the attempts only"
    same = json.dumps(own, sort_keys=True) == json.dumps(other, sort_keys=True)
    return ("pass", "") if same else ("fail", _changed(own, other))


def _changed(own: Any, other: Any) -> str:
    """``scale is 256, it was 1024`` of two mappings."""
    if isinstance(own, Mapping) and isinstance(other, Mapping):
        changes = ((key, own.get(key), other.get(key)) for key in sorted({*own, *other}))
        return ", ".join(f"{key} is {_shown(a)}, it was {_shown(b)}" for key, a, b in changes if a != b)
    return f"is {_shown(own)}, it was {_shown(other)}"


def _rng(pair: _Pair) -> tuple[Result, str]:
    """A generator that steps do not draw from need not be restored."""
    own, other = pair.start.rng, pair.own.rng if pair.own else None
    if own and pair.namesake is not None and own == pair.namesake.rng:
        return "pass", ""
    if own is None or other is None:
        result, text = _undrawn(pair)
        return result, f"not comparable with {pair.sizes}" if pair.sizes and result == "unknown" else text
    results = [_generator(name, pair) for name in sorted({*own, *other})]
    if not results:
        return "not applicable", "no generator"
    return min(results, key=lambda item: _ORDER.index(item[0]))


def _generator(name: str, pair: _Pair) -> tuple[Result, str]:
    own, other = (pair.start.rng or {}).get(name), (pair.own.rng if pair.own and pair.own.rng else {}).get(name)
    share = _drawn(name, pair.every)
    if own is not None and own == other:
        return ("not applicable", "steps do not draw from it") if share == 0 else ("pass", "")
    if own is None and other is None:
        return "not applicable", f"{name} has no generator"
    if share == 0:
        return "not applicable", "steps do not draw from it"
    if share is None:
        return "unknown", f"{name} differs; whether steps draw from it was not recorded"
    if share >= _MOST and _replayed(pair.replays, least=2):
        return "not applicable", f"{name} differs, without influence on the steps that were executed again"
    if share >= _MOST or name in pair.saved:
        return "fail", f"{name} differs, and steps draw from it"
    return "unknown", f"{name} differs, and some steps draw from it"


def _undrawn(pair: _Pair) -> tuple[Result, str]:
    """The rank recorded no generator at this moment: they matter only if steps draw from them."""
    names = {name for process in pair.every for prints in process.rngs.values() for name in prints}
    shares = [_drawn(name, pair.every) for name in names]
    if shares and all(share == 0 for share in shares):
        return "not applicable", "steps do not draw from it"
    if any(share and share >= _MOST for share in shares) and _replayed(pair.replays, least=2):
        return "pass", f"{len(pair.replays)} steps that draw from it came out as before"
    return "unknown", "this rank did not record it at this moment"


def _drawn(name: str, processes: Iterable[Process]) -> float | None:
    """The share of pairs of successive records of the processes between which the generator changed."""
    changes: list[bool] = []
    for process in processes:
        prints = process.rngs
        pairs = [(prints[n].get(name), prints[later].get(name)) for n, later in itertools.pairwise(sorted(prints))]
        changes += [first != second for first, second in pairs if first is not None and second is not None]
    return sum(changes) / len(changes) if changes else None


def _data_position(pair: _Pair) -> tuple[Result, str]:
    """Without batches: the loss of the first step follows from weights, buffers, random numbers and the batch."""
    result, text = _data(pair.replays)
    first = next((replay for replay in pair.replays if replay.is_first), None)
    equal = [replay for replay in pair.replays if replay.inputs]
    if result == "unknown" and first and first.inputs:
        return "pass", f"the inputs of {len(equal)} redone step{'s' * (len(equal) != 1)} are as before"
    if result == "unknown" and first and first.batches is None and _has_same_start(pair):
        if first.inputs is False:
            return "fail", f"step {first.step} has other inputs than before, though its state is equal"
        if not first.has_close_losses:
            before, after = first.losses or (0.0, 0.0)
            same = "weights, buffers and random states are as before"
            return "fail", f"the loss of step {first.step} is {after:g}, it was {before:g}, though {same}"
    if result == "unknown" and _has_same_batch(pair):
        return "pass", "the first batch is the one that was due"
    return result, f"not comparable with {pair.sizes}" if pair.sizes and result == "unknown" else text


def _other_state(pair: _Pair) -> tuple[Result, str]:
    """What the job keeps outside of all other parts shows in the loss of a step that began with the same state and batch."""
    for replay in pair.replays:
        is_same = replay.began_equal or (replay.is_first and _has_same_start(pair))
        if (replay.batches or replay.inputs) and is_same and not replay.has_close_losses:
            before, after = replay.losses or (0.0, 0.0)
            same = "weights, optimizer, random states and batch are equal: something that the job keeps outside of them"
            return "fail", f"the loss of step {replay.step} is {after:g}, it was {before:g}; {same}"
    return "not applicable", ""


def _has_same_start(pair: _Pair) -> bool:
    """Whether all that a loss follows from, apart from the batch, is known to be as before, or not in use."""
    parts = ("weights", "buffers", "copies of the model", "RNG")
    return all(_COMPARE[part](pair)[0] in ("pass", "not applicable") for part in parts)


def _has_same_batch(pair: _Pair) -> bool:
    return pair.own is not None and pair.start.batch is not None and pair.start.batch == pair.own.batch


def _data(repeated: tuple[Replay, ...]) -> tuple[Result, str]:
    """By the batches of the steps that were executed again, else by their results."""
    compared = [replay for replay in repeated if replay.batches is not None]
    differing = [replay for replay in compared if not replay.batches and not replay.is_equal]
    if differing:
        return "fail", f"step {differing[0].step} has another batch than before"
    if compared:
        return "pass", f"{len(compared)} batches are the ones that were due"
    if _replayed(repeated):
        return "pass", f"{len(repeated)} steps came out as before"
    return "unknown", "no batch was recorded in both attempts" if repeated else "no step was executed again"


def _replayed(repeated: tuple[Replay, ...], least: int = 1) -> bool:
    """Whether at least so many steps were executed again, and all came out as before."""
    return len(repeated) >= least and all(replay.is_equal for replay in repeated)


def _is_digested(value: Any) -> bool:
    return bool(value) and (None not in value.values() if isinstance(value, Mapping) else True)


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(_shown(item) for item in value)
    try:
        return f"{float.fromhex(value):g}" if isinstance(value, str) else json.dumps(value)
    except ValueError:
        return str(value)


_COMPARE: Mapping[str, Callable[[_Pair], tuple[Result, str]]] = {
    "weights": _weights,
    "buffers": _buffers,
    "copies of the model": _copies,
    "optimizer": _optimizer,
    "learning rate": _learning_rate,
    "scheduler": _scheduler,
    "scaler": _scaler,
    "RNG": _rng,
    "data position": _data_position,
    "other state": _other_state,
}

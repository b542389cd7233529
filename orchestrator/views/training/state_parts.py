"""Part by part, the state that a rank began with and that of the same moment before: equal, other, or not known."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from ...model import watch
from ...model.frozen import dataclass
from .attempts import Process
from .kept_lists import KEPT, modules
from .redone_steps import Replay

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
    "accumulated gradients",
    "other state",
)
#: Parts that have a row only where there is something to say.
RARE = ("copies of the model", "accumulated gradients", "other state")
#: The better a result is, the later it stands: a row has the worst result of all ranks.
ORDER: tuple[Result, ...] = ("fail", "unknown", "pass", "not applicable")
LIST = "a list of tensors with the model's shapes"
UNOBSERVED = "the checkpoint has one in {}, which is no module: it is not observed"
#: The digest of no tensor.
NOTHING = "0" * 16
#: A generator counts as used by steps if it is drawn from between at least this share of them.
_MOST = 0.5
#: By how much gradients differ that are summed in another order, relative to the largest of their norms.
GRADIENTS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
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
    saved: frozenset[str] = frozenset()
    #: The key of a copy of the model in the checkpoint that no module of the rank had.
    unobserved: str = ""
    #: Backward passes before the checkpoint whose gradients no step had used, and the key of the gradients in it.
    accumulated: tuple[int, str] = (0, "")


def _weights(pair: Pair) -> tuple[Result, str]:
    if pair.start.weights is None or pair.before.weights is None:
        return "unknown", pair.start.why or pair.before.why or "no digest"
    return ("pass", "") if pair.start.weights == pair.before.weights else ("fail", "differ")


def _buffers(pair: Pair) -> tuple[Result, str]:
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
    has_same_inputs = any(replay.is_first and (replay.inputs or replay.batches) for replay in pair.replays)
    if pair.own is None or not pair.own.buffers or not (_has_same_batch(pair) or has_same_inputs):
        return "unknown", "differ, but so may the batch that updated them"
    if _rng(pair)[0] == "fail":
        return ("unknown", "differ, as random states do")
    return ("fail", "differ with the same batch")


def _copies(pair: Pair) -> tuple[Result, str]:
    """Averages of the weights, target networks and other models with the same parameters."""
    of_modules, kept = _module_copies(pair), _kept(pair)
    return kept if ORDER.index(kept[0]) < ORDER.index(of_modules[0]) else of_modules


def _kept(pair: Pair) -> tuple[Result, str]:
    """Tensors that the script keeps in a list or a dict. They need be as before only if they are an average: no step makes that again."""
    before, own = pair.own.copies if pair.own else {}, set(pair.start.copies.values())
    by_number: dict[str, set[str]] = {}
    for key in (key for key in before if key.startswith(KEPT)):
        by_number.setdefault(key.split()[2], set()).add(key)
    lost = sorted(key for keys in by_number.values() if not own & {before[key] for key in keys} for key in keys)
    if not lost:
        return ("pass", "") if by_number else ("not applicable", "there is none")
    name, number = lost[0].split()[1:3]
    keys = by_number[number]
    label = f"{LIST}{f' ({name})' * (name != 'tensors')}"
    if {str(before[key]).split()[0] for key in keys} & pair.saved:
        return "fail", f"{label} differs from that in the checkpoint"
    redone = {key: [(r.step, *r.kept[key]) for r in pair.replays if key in r.kept] for key in sorted(keys)}
    if made := next((step for known in redone.values() for step, _, same in known if same), 0):
        return "pass", f"made again by step {made}"
    for key, known in redone.items():
        is_average = len({before[key], *(value for _, value, _ in known)}) == len(known) + 1  # each step changes it
        if is_average and any(same is False for *_, same in known):
            return "fail", f"{label} differs from before, until step {known[-1][0]}, and no known checkpoint holds it"
    return "unknown", f"{label} differs from before, and no known checkpoint holds it: save it, or --accept ema"


def _module_copies(pair: Pair) -> tuple[Result, str]:
    own, other = modules(pair.start.copies), modules(pair.before.copies)
    if not (own or other or pair.unobserved):
        return "not applicable", "there is none"
    if pair.unobserved:
        return "unknown", UNOBSERVED.format(pair.unobserved)
    if not own or not other:
        return "unknown", "recorded in one of the starts only"
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
    differing = [name for name in sorted(other) if other[name] not in own.values()]
    name = next(iter(differing), min(own)).split()[0]
    if redone:
        return "fail", f"{name} differs from before, until step {redone[-1].step}, and no known checkpoint holds it"
    return "unknown", f"{name} differs, no known checkpoint holds it, and no step shows whether it is made again"


def _optimizer(pair: Pair) -> tuple[Result, str]:
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
    if set(own) == set(other) and _is_digested(own) and _is_digested(other):
        return ("pass", "")
    return ("unknown", "no digest")


def _changed_setting(pair: Pair) -> str:
    """The first setting of a parameter group, such as its weight decay, that differs; empty if none is known to."""
    own, other = pair.start.groups or (), pair.before.groups or ()
    changes = (
        f"its {name} is {group[name]}, it was {before[name]}"
        for group, before in zip(own, other, strict=False)
        for name in sorted(group.keys() & before.keys())
        if group[name] != before[name]
    )
    return next(changes, "")


def _learning_rate(pair: Pair) -> tuple[Result, str]:
    own, other = pair.start.lr, pair.before.lr
    if own is None or other is None:
        return "unknown", "not recorded"
    if not own and not other:
        return "unknown", "the optimizer has no group of parameters"
    if own != other:
        return "fail", f"is {shown(own)}, it was {shown(other)}"
    return _rates(pair) or ("pass", "")


def _rates(pair: Pair) -> tuple[Result, str] | None:
    """The first redone step after which the learning rates differ; None if there is none."""
    for replay in pair.replays:
        if replay.rates and replay.rates[0] != replay.rates[1]:
            before, after = replay.rates
            return "fail", f"of step {replay.step + 1} is {shown(after)}, it was {shown(before)}"
    return None


def _scheduler(pair: Pair) -> tuple[Result, str]:
    """Judge by the steps that each scheduler has made; its count of calls, ``_step_count``, changes no rate, and a new one begins at 1.

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


def _is_scheduled(pair: Pair) -> bool:
    """Return whether the learning rates of the rank change."""
    return len({rates for process in pair.every for rates in process.rates.values()}) > 1


def _epochs(schedulers: Any) -> Any:
    """``last_epoch`` of each scheduler, sorted: the watcher finds them in any order."""
    if not isinstance(schedulers, list | tuple):
        return schedulers
    return sorted((item[0] if isinstance(item, list | tuple) and item else item for item in schedulers), key=json.dumps)


def _document(own: Any, other: Any, absent: str) -> tuple[Result, str]:
    if not own and not other:
        return "not applicable", absent
    if own is None or other is None:
        return "unknown", "recorded in one of the starts only"
    same = json.dumps(own, sort_keys=True) == json.dumps(other, sort_keys=True)
    return ("pass", "") if same else ("fail", _changed(own, other))


def _changed(own: Any, other: Any) -> str:
    """``scale is 256, it was 1024`` of two mappings."""
    if isinstance(own, Mapping) and isinstance(other, Mapping):
        changes = ((key, own.get(key), other.get(key)) for key in sorted({*own, *other}))
        return ", ".join(f"{key} is {shown(a)}, it was {shown(b)}" for key, a, b in changes if a != b)
    return f"is {shown(own)}, it was {shown(other)}"


def _rng(pair: Pair) -> tuple[Result, str]:
    """A generator that steps do not draw from need not be restored."""
    own, other = pair.start.rng, pair.own.rng if pair.own else None
    if own and pair.namesake is not None and own == pair.namesake.rng:
        return "pass", ""
    if own is None or other is None:
        return _undrawn(pair)
    results = [_generator(name, pair) for name in sorted({*own, *other})]
    if not results:
        return "not applicable", "no generator"
    return min(results, key=lambda item: ORDER.index(item[0]))


def _generator(name: str, pair: Pair) -> tuple[Result, str]:
    own, other = (pair.start.rng or {}).get(name), (pair.own.rng if pair.own and pair.own.rng else {}).get(name)
    share = drawn(name, pair.every)
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
        places = f": it was {', then '.join(pair.start.places)}" if name == "torch" and pair.start.places else ""
        return "fail", f"{name} differs, and steps draw from it{places}"
    return "unknown", f"{name} differs, and some steps draw from it"


def _undrawn(pair: Pair) -> tuple[Result, str]:
    """The rank recorded no generator at this moment: they matter only if steps draw from them."""
    names = {name for process in pair.every for prints in process.rngs.values() for name in prints}
    shares = [drawn(name, pair.every) for name in names]
    if shares and all(share == 0 for share in shares):
        return "not applicable", "steps do not draw from it"
    if any(share and share >= _MOST for share in shares) and _replayed(pair.replays, least=2):
        return "pass", f"{len(pair.replays)} steps that draw from it came out as before"
    return "unknown", "this rank did not record it at this moment"


def drawn(name: str, processes: Iterable[Process]) -> float | None:
    """The share of pairs of successive records of the processes between which the generator changed."""
    changes: list[bool] = []
    for process in processes:
        prints = process.rngs
        pairs = [(prints[n].get(name), prints[later].get(name)) for n, later in itertools.pairwise(sorted(prints))]
        changes += [first != second for first, second in pairs if first is not None and second is not None]
    return sum(changes) / len(changes) if changes else None


def _data_position(pair: Pair) -> tuple[Result, str]:
    """Judge by batches; else by the loss of the first step, which follows from weights, buffers, random numbers and the batch."""
    result, text = by_batches(pair.replays, is_random=_rng(pair)[0] == "fail")
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
    return result, text


def _accumulated_gradients(pair: Pair) -> tuple[Result, str]:
    """Judge the gradients of a checkpoint that was saved in the middle of an accumulation: the first step uses those from before it."""
    first = next((replay for replay in pair.replays if replay.is_first), None)
    own, other = pair.start.gradients or (), (pair.own or pair.before).gradients or pair.before.gradients or ()
    passes, key = pair.accumulated
    if not passes or (first is not None and first.passes[0] <= first.passes[1]):
        return "not applicable", "the checkpoint was saved after a whole step"
    if (first and first.weights) or _have_close_norms(own, other):
        return "pass", ""
    if first and own and other and _has_same_start(pair):
        why = f"those in {key} were not loaded" if key else "the checkpoint holds none"
        return (
            "fail",
            f"those of step {first.step} are of {first.passes[1]} of {first.passes[0]} backward passes: {why}",
        )
    return "unknown", f"it was saved after {passes} backward passes of a step, whose gradients are not known"


def _have_close_norms(own: Sequence[float], other: Sequence[float]) -> bool | None:
    """Return whether two lists of norms differ by no more than sums in another order; None where they are not comparable."""
    bound = GRADIENTS * max((*own, *other), default=0.0)
    is_known = bool(own) and len(own) == len(other)
    return all(abs(a - b) <= bound for a, b in zip(own, other, strict=True)) if is_known else None


def _other_state(pair: Pair) -> tuple[Result, str]:
    """Compare the state that the job keeps outside of all other parts. The loss of a step with the same state and batch shows it.

    A momentum of its own in the gradients of the first step, also where the rate is so small that no bit of the weights shows it.
    """
    for replay in pair.replays:
        is_same = replay.began_equal or (replay.is_first and _has_same_start(pair))
        same = "weights, optimizer, random states and batch are equal: something that the job keeps outside of them"
        if (replay.batches or replay.inputs) and is_same and not replay.has_close_losses:
            before, after = replay.losses or (0.0, 0.0)
            return "fail", f"the loss of step {replay.step} is {after:g}, it was {before:g}; {same}"
        is_comparable = is_same and replay.is_first and bool(replay.losses) and not pair.accumulated[0]
        gradients = pair.start.gradients or (), (pair.own.gradients if pair.own else None) or ()
        is_unseen = is_comparable and replay.weights is True  # else a difference shows in the weights after the step
        if (replay.batches or replay.inputs) and is_unseen and _have_close_norms(*gradients) is False:
            return "fail", f"the gradients that step {replay.step} applies have other norms than before; {same}"
    return "not applicable", ""


def _has_same_start(pair: Pair) -> bool:
    """Return whether all that a loss follows from, apart from the batch, is known to be as before, or not in use."""
    parts = ("weights", "buffers", "copies of the model", "RNG")
    return all(COMPARE[part](pair)[0] in ("pass", "not applicable") for part in parts)


def _has_same_batch(pair: Pair) -> bool:
    return pair.own is not None and pair.start.batch is not None and pair.start.batch == pair.own.batch


def by_batches(repeated: tuple[Replay, ...], *, is_random: bool = True) -> tuple[Result, str]:
    """Judge by the batches of the steps that were executed again, else by their results.

    ``is_random``: batches may differ as lost random states do, such as by other crops; then the numbers of their samples decide.
    """
    compared = [replay for replay in repeated if replay.batches is not None]
    differing = [replay for replay in compared if not replay.batches and not replay.is_equal]
    if differing and not (is_random and all(replay.samples for replay in differing)):
        return "fail", f"step {differing[0].step} has another batch than before"
    if differing:
        return "pass", f"{len(compared)} batches are of the samples that were due, changed by random numbers"
    if compared:
        return "pass", f"{len(compared)} batches are the ones that were due"
    known = tuple(
        replay for replay in repeated if replay.is_equal is not None
    )  # of its last step a killed rank recorded none
    if _replayed(known):
        return "pass", f"{len(known)} steps came out as before"
    return "unknown", "no batch was recorded in both starts" if repeated else "no step was executed again"


def _replayed(repeated: tuple[Replay, ...], least: int = 1) -> bool:
    """Return whether at least so many steps were executed again, and all came out as before."""
    return len(repeated) >= least and all(replay.is_equal for replay in repeated)


def _is_digested(value: Any) -> bool:
    return bool(value) and (None not in value.values() if isinstance(value, Mapping) else True)


def shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(shown(item) for item in value)
    try:
        return f"{float.fromhex(value):g}" if isinstance(value, str) else json.dumps(value)
    except ValueError:
        return str(value)


COMPARE: Mapping[str, Callable[[Pair], tuple[Result, str]]] = {
    "weights": _weights,
    "buffers": _buffers,
    "copies of the model": _copies,
    "optimizer": _optimizer,
    "learning rate": _learning_rate,
    "scheduler": _scheduler,
    "scaler": lambda pair: _document(pair.start.scaler, pair.before.scaler, "no gradient scaler"),
    "RNG": _rng,
    "data position": _data_position,
    "accumulated gradients": _accumulated_gradients,
    "other state": _other_state,
}

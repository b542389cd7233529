"""Steps that a job executed more than once: what two executions of a step have in common."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...model import watch
from ...model.frozen import dataclass, field
from .. import json_values
from . import kept_lists
from .attempts import Attempt, Process
from .resumption import Lineage, Step

#: How a check says that nothing was compared.
NONE_TWICE = "no step was done twice"
#: Inputs with this correlation are the same but for noise; of other samples it is near 0, and less certain the fewer numbers are known.
NEAR, LEAST_NUMBERS = 0.6, 32
#: A loss that is equal in any two steps that failed, and so shows nothing.
NAN = math.nan.hex()
#: Losses of the same batch with the same weights differ less: the forward pass of a rank sums in the same order each time.
#: In 16 bits other hardware rounds more.
FORWARD, FORWARD_MIXED = 1e-5, 0.02
#: A loss counts as at least this: a small one is a difference of numbers near 1, which round by more than its last bits.
SMALL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A step that a rank executed in two attempts. Each comparison is None where one side is not recorded.

    ``losses``: both, where they are of as many backward ``passes``; ``rates``: the learning rates after it, both;
    ``inputs``: of the model, of data that no DataLoader gives; it may depend on the weights. ``near``: whether they are the same but
    for noise. ``samples``: of the batches, by their numbers in the data set.
    ``began_equal``: whether weights, optimizer and random states before it are known to be equal.
    ``kept``: key of tensors that the script keeps beside its model -> what they were before, and whether the later attempt has them,
    but for sums in another order that changed the weights as well.
    ``share``: by how much the weights differ, of what the steps since the resumption changed.
    ``is_first``: the first step of the later attempt. ``is_loaded``: the rank fetches batches from a DataLoader.
    ``is_resized``: by another number of ranks, so that only the samples of the whole batch are compared.
    """

    rank: str
    step: Step
    before: str
    after: str
    loss: bool | None
    weights: bool | None
    batches: bool | None
    inputs: bool | None = None
    near: bool | None = None
    samples: bool | None = None
    buffers: bool | None = None
    copies: bool | None = None
    kept: Mapping[str, tuple[str, bool | None]] = field(default_factory=dict)
    losses: tuple[float, float] | None = None
    rates: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None
    began_equal: bool | None = None
    passes: tuple[int, int] = (1, 1)
    share: float | None = None
    is_first: bool = False
    is_loaded: bool = False
    is_mixed: bool = False
    is_resized: bool = False

    @property
    def has_close_losses(self) -> bool:
        """Return whether the losses are those of the same weights and batch; also where one is not known."""
        before, after = self.losses or (0.0, 0.0)
        return abs(after - before) <= (FORWARD_MIXED if self.is_mixed else FORWARD) * max(
            abs(before), abs(after), SMALL
        )

    @property
    def is_equal(self) -> bool | None:
        results = [self.loss, self.weights]
        return False if False in results else True if True in results else None


def redone(lines: Lineage) -> tuple[Step, ...]:
    """The steps that were executed again, once for each time."""
    return tuple(
        step
        for resumption in lines.resumptions
        for step in sorted(
            {
                step
                for first, last in _executed(lines, (resumption.attempt,))
                for before, until in _executed(lines, lines.earlier(resumption.attempt))
                for step in range(max(first, before), min(last, until) + 1)
            }
        )
    )


def replays(lines: Lineage, attempt: Attempt) -> tuple[Replay, ...]:
    """The steps of ``attempt`` that the same rank had executed in the newest attempt before that reached them.

    None where another number of ranks led there: then they share the work of a step in another way. Own workloads record the
    samples of the whole batch, which are compared nevertheless.
    """
    return tuple(replay for process in attempt.ranks.values() for replay in _replays(lines, attempt, process))


def _executed(lines: Lineage, attempts: Sequence[Attempt]) -> set[tuple[Step, Step]]:
    """(first, last) of steps that ranks did."""
    known = [(lines.bases[attempt.index], attempt) for attempt in attempts if attempt.index in lines.bases]
    return {
        (base + first, base + last)
        for base, attempt in known
        for process in attempt.ranks.values()
        for first, last in process.steps.intervals()
    }


def _replays(lines: Lineage, attempt: Attempt, process: Process) -> Iterator[Replay]:
    base = lines.bases.get(attempt.index)
    earlier = [old for old in reversed(lines.earlier(attempt)) if process.rank in old.ranks]
    reached = max((lines.bases.get(old.index, 0) + old.ranks[process.rank].last for old in earlier), default=0)
    for n in itertools.takewhile(lambda n: (base or 0) + n <= reached, process.steps if base is not None else ()):
        for old in earlier:
            before = lines.n_of((base or 0) + n, old)
            other = old.ranks.get(process.rank)
            if other is None or before is None or before not in other.steps:
                continue
            if lines.have_same_sizes(old, attempt, (base or 0) + n):
                yield _replay((base or 0) + n, (old, other, before), (attempt, process, n))
                break
            if lines.is_exact:
                batches = other.steps[before].batches, process.steps[n].batches
                yield Replay(
                    rank=process.name, step=(base or 0) + n, before=old.name, after=attempt.name, loss=None, weights=None,
                    batches=_same_batches(*batches), is_resized=True,
                )  # fmt: skip


def _replay(step: Step, before: tuple[Attempt, Process, int], after: tuple[Attempt, Process, int]) -> Replay:
    (old, other, m), (new, process, n) = before, after
    losses = other.steps[m].loss, process.steps[n].loss
    if (
        other.steps[m].passes != process.steps[n].passes or NAN in losses
    ):  # GANs: the first step has the passes of one network
        losses = None, None
    states = other.states.get(m), process.states.get(n)
    sums = [state.sums if state else () for state in (other.states.get(m - n) or process.states.get(0), *states)]
    weights = tuple(state.weights if state else None for state in states)
    rates = other.rates.get(m), process.rates.get(n)
    return Replay(
        rank=process.name,
        step=step,
        before=old.name,
        after=new.name,
        loss=_equal(*losses),
        weights=_equal(*weights),
        batches=_same_batches(other.steps[m].batches, process.steps[n].batches),
        rates=None if None in rates else (rates[0] or (), rates[1] or ()),
        began_equal=_same_states(other, m - 1, process, n - 1),
        share=share(*sums),
        inputs=_same_batches(other.steps[m].inputs, process.steps[n].inputs),
        near=_are_near(other.steps[m].values, process.steps[n].values),
        samples=_same_batches(other.steps[m].samples, process.steps[n].samples),
        is_first=n == 1,
        passes=(other.steps[m].passes, process.steps[n].passes),
        is_mixed=process.is_mixed,
        is_loaded=other.steps[m].batches is not None or process.steps[n].batches is not None,
        buffers=_equal(*(state.buffers if state else None for state in states)),
        copies=_same_copies(*states),
        kept=kept_lists.compared(*states),
        losses=None if None in losses else (float.fromhex(losses[0] or ""), float.fromhex(losses[1] or "")),
    )


def _are_near(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> bool | None:
    """Return whether rows of inputs are those of another execution with noise added, by their correlation without what all rows share.

    None where too few numbers are known.
    """
    if len(first) != len(second) or {len(row) for row in (*first, *second)} != {len(first[0]) if first else 0}:
        return None
    own, other = (_centred(rows) for rows in (first, second))
    lengths = [math.sqrt(sum(x * x for x in numbers)) for numbers in (own, other)]
    if len(own) < LEAST_NUMBERS or 0.0 in lengths or not all(map(math.isfinite, lengths)):
        return None
    return sum(a * b for a, b in zip(own, other, strict=True)) / (lengths[0] * lengths[1]) >= NEAR


def _centred(rows: Sequence[Sequence[float]]) -> list[float]:
    means = [sum(column) / len(column) if len(rows) > 1 else 0.0 for column in zip(*rows, strict=True)]
    return [number - mean for row in rows for number, mean in zip(row, means, strict=True)]


def share(base: Sequence[int], before: Sequence[int], after: Sequence[int]) -> float | None:
    """Return how much weights differ after the same steps, as a share of what these changed ``base``; None where sums of one are not known.

    Half of the sums decide: noise may be all that changes a few of them.
    """
    if not len(base) == len(before) == len(after) > 0:
        return None
    differences = (abs(first - second) for first, second in zip(before, after, strict=True))
    changes = (abs(first - second) for first, second in zip(base, before, strict=True))
    return json_values.median(differences) / max(json_values.median(changes), 1.0)


def _same_copies(before: watch.State | None, after: watch.State | None) -> bool | None:
    own, other = (kept_lists.modules(state.copies if state else {}) for state in (before, after))
    return set(own.values()) == set(other.values()) if own and other else None


def _same_states(other: Process, m: int, process: Process, n: int) -> bool | None:
    """Return whether weights, optimizer and random generators of two moments are equal; None where one of them is not known."""
    before, after = other.states.get(m), process.states.get(n)
    if before is None or after is None or not before.weights or before.optimizer is None or after.optimizer is None:
        return None
    generators = other.rngs.get(m), process.rngs.get(n)
    same = (before.weights, before.optimizer) == (
        after.weights,
        after.optimizer,
    ) and None not in after.optimizer.values()
    return None if None in generators else same and generators[0] == generators[1]


def _equal(first: str | None, second: str | None) -> bool | None:
    return None if first is None or second is None else first == second


def _same_batches(first: Sequence[str | None] | None, second: Sequence[str | None] | None) -> bool | None:
    """Compare two lists of hashes from their ends, as far as both reach: batches before may be skipped, prefetched or evaluated.

    False if a known pair differs, None if a hash is missing, else True.
    """
    if not first or not second:
        return None
    size = min(len(first), len(second))
    pairs = [*zip(first[-size:], second[-size:], strict=True)]
    if any(own != other for own, other in pairs if own is not None and other is not None):
        return False
    return None if any(None in pair for pair in pairs) else True

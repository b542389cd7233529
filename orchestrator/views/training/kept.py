"""Gathers what a user's job computed in the steps that it kept: losses and digests by rank and step, to compare with another run."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath

from ...model import watch
from ...model.frozen import dataclass, field
from ...model.run import Control, Twin
from ..step_ranges import Steps
from . import kept_lists
from .job_checkpoints import Checkpoint, checkpoints
from .resumption import Lineage

_DIGITS = re.compile(r"\d+")
#: Contents of a save that are judged elsewhere, or are no state.
_NO_KEYS = ("rng", "copies", "gradients", "part")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFacts:
    """``losses``: rank -> step -> float.hex; ``digests``: rank -> ``<part>@<step>`` -> digest, or sums of some weights.

    ``steps``: the last step. ``base``: the step from which the newest attempt resumed; None if it is not known. ``restarts``: the same
    of each attempt after the first; empty if one is not known. ``undisturbed``: facts of earlier steps are those of the first attempt.
    ``saves``: step -> key, with its rank and file -> digest or value of what was saved. ``generators``: rank -> ``<name>@<step>`` ->
    fingerprint of the random state. ``lists``: rank -> step -> tensors that the script keeps in lists, with their digests.
    """

    losses: Mapping[str, Mapping[str, str]]
    digests: Mapping[str, Mapping[str, str]]
    steps: int
    base: int | None
    undisturbed: int
    restarts: tuple[int, ...] = ()
    saves: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    generators: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lists: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)


class KeptLosses(Mapping[str, str]):
    """Step -> loss of a rank, from its records: no copy of them."""

    def __init__(self, parts: Iterable[tuple[int, int, Steps]] = ()) -> None:
        """``parts``: (step from which an attempt resumed, last of its steps that counts, its steps)."""
        self._parts = tuple(parts)

    def until(self, step: int) -> KeptLosses:
        """Return the losses without those of later steps."""
        return KeptLosses((base, min(last, step), steps) for base, last, steps in self._parts if base < step)

    def followed_by(self, base: int, steps: Steps) -> KeptLosses:
        """Return the losses with those of an attempt that resumed from ``base``."""
        return KeptLosses((*self._parts, (base, base + steps.last, steps)))

    def __getitem__(self, key: str) -> str:
        step = int(key)
        for base, last, steps in self._parts:
            made = steps.get(step - base) if base < step <= last else None
            if made is not None and made.loss is not None and _is_whole(steps, made.n):
                return made.loss
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        for base, last, steps in self._parts:
            yield from (str(base + n) for n, _ in steps.losses() if base < base + n <= last and _is_whole(steps, n))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)


def kept_facts(lines: Lineage) -> KeptFacts:
    """The facts of each step as the newest attempt executed it. Attempts from an unknown step are left out."""
    losses: dict[str, KeptLosses] = {}
    digests: dict[str, dict[str, str]] = {}
    generators: dict[str, dict[str, str]] = {}
    saves: dict[int, dict[str, str]] = {}
    lists: dict[str, dict[str, dict[str, str]]] = {}
    steps = 0
    for attempt in lines.attempts:
        base = lines.bases.get(attempt.index)
        if base is None:
            continue
        steps = base + max((process.last for process in attempt.ranks.values()), default=0)
        losses = {rank: known.until(base) for rank, known in losses.items()}
        _forget_after(digests, base)
        _forget_after(generators, base)
        lists = {rank: {n: held for n, held in known.items() if int(n) <= base} for rank, known in lists.items()}
        saves = {step: keys for step, keys in saves.items() if step <= base}
        for checkpoint in checkpoints(attempt):
            saves.setdefault(base + checkpoint.n, {}).update(_saved_keys(checkpoint))
        for rank, process in attempt.ranks.items():
            losses[str(rank)] = losses.get(str(rank), KeptLosses()).followed_by(base, process.steps)
            for n, state in process.states.items():
                digests.setdefault(str(rank), {}).update({f"{part}@{base + n}": d for part, d in _parts(state)})
                if held := kept_lists.of_script(state):
                    lists.setdefault(str(rank), {})[str(base + n)] = held
            for part, name in (("batch", "batches"), ("inputs", "inputs")):
                keys = ((n, made[-1]) for n, step in process.steps.full.items() if (made := getattr(step, name)))
                digests.setdefault(str(rank), {}).update({f"{part}@{base + n}": key for n, key in keys if key})
            for n, prints in process.rngs.items():
                known = {f"{name}@{base + n}": value for name, value in prints.items() if value is not None}
                generators.setdefault(str(rank), {}).update(known)
            for n, rates in process.rates.items():
                digests.setdefault(str(rank), {})[f"lr@{base + n}"] = " ".join(map(str, rates))
    later = [lines.bases[attempt.index] for attempt in lines.attempts[1:] if attempt.index in lines.bases]
    restarts = tuple(later) if len(later) == len(lines.attempts[1:]) else ()
    undisturbed = min(later) if later else steps + 1
    newest = lines.attempts[-1].index if lines.attempts else -1
    return KeptFacts(
        losses=losses, digests=digests, steps=steps, base=lines.bases.get(newest), undisturbed=undisturbed,
        restarts=restarts, saves={str(step): keys for step, keys in saves.items() if keys}, generators=generators, lists=lists,
    )  # fmt: skip


def final_digests(lines: Lineage) -> dict[str, Mapping[str, str | None]]:
    """Rank -> name -> digest of each tensor at its end, of the ranks of the last attempt that report them."""
    ranks = next((attempt.ranks for attempt in reversed(lines.attempts) if attempt.size and not attempt.restart), {})
    return {str(rank): process.final for rank, process in ranks.items() if process.final is not None}


def _is_whole(steps: Steps, n: int) -> bool:
    """Return whether the loss of a step compares: the first one of a GAN has the passes of one network."""
    following = steps.get(n + 1) if n <= 2 else None
    return following is None or following.passes == steps[n].passes


def _saved_keys(checkpoint: Checkpoint) -> dict[str, str]:
    """Return what each rank saved, key by key; random generators are judged by themselves, and numbers in names of files are left out."""
    keys: dict[str, str] = {}
    for write in checkpoint.writes:
        if write.saved is None or write.committed is None or not checkpoint.is_dated:
            continue
        file = _DIGITS.sub("#", PurePath(write.path).name)
        values = {
            "weights": write.saved.weights,
            **{k: v for k, v in write.saved.contents.items() if k not in _NO_KEYS},
        }
        keys |= {f"{write.rank} {file} {k}": json.dumps(v, sort_keys=True) for k, v in values.items() if v is not None}
    return keys


def restarts_shown(facts: KeptFacts, control: Control | None) -> tuple[int, ...]:
    """The steps from which run and restart control both resumed: each time, or the last time only; empty without a control."""
    if control is None or facts.base is None or control.base != facts.base:
        return ()
    return facts.restarts if facts.restarts and facts.restarts == control.restarts else (facts.base,)


def repeats(twin: Twin, facts: KeptFacts) -> bool:
    """Return whether the job computed the same in the run and its reference, bit by bit, until something was lost; some of it is known."""
    return {is_equal for *_, is_equal in _undisturbed(twin, facts)} == {True}


def unrepeated(twin: Twin | None, facts: KeptFacts) -> tuple[tuple[int, str, str], ...]:
    """(step, rank, part) of what differs between the run and its reference before anything was lost, the earliest first."""
    return tuple(sorted(fact[:3] for fact in _undisturbed(twin, facts) if not fact[3])) if twin else ()


def _undisturbed(twin: Twin, facts: KeptFacts) -> Iterator[tuple[int, str, str, bool]]:
    """(step, rank, part, whether it is equal) of all that both recorded until something was lost."""
    for own, other in ((facts.losses, twin.losses), (facts.digests, twin.digests)):
        for rank in own.keys() & other.keys():
            for name in own[rank]:
                if name in other[rank] and step_of(name) < facts.undisturbed and not name.startswith("sums@"):
                    part = name.partition("@")[0] if "@" in name else "loss"
                    yield step_of(name), rank, part, own[rank][name] == other[rank][name]


def other_random_state(twin: Twin, facts: KeptFacts, before: int) -> tuple[int, str, str] | None:
    """(step, rank, generator) of the first random state that is not the reference's, after a step before ``before``, and on.

    Of a generator that the reference draws from between these steps, and that was as in the reference until something was lost.
    """
    differing = [
        (n, rank, name)
        for rank in facts.generators.keys() & twin.generators.keys()
        for name in drawn_from(twin.generators[rank])
        if (n := _differs_since(name, facts.generators[rank], twin.generators[rank], facts.undisturbed, before))
    ]
    return min(differing, default=None)


def _differs_since(
    name: str, own: Mapping[str, str], other: Mapping[str, str], undisturbed: int, before: int
) -> int | None:
    common = sorted(step_of(key) for key in own.keys() & other.keys() if key.rpartition("@")[0] == name)
    equal = [n for n in common if n < before and own[f"{name}@{n}"] == other[f"{name}@{n}"]]
    others = [n for n in common if n > max(equal, default=before)]
    is_repeated = bool(equal) and all(n in equal for n in common if n < undisturbed)
    drawn = {other[f"{name}@{n}"] for n in others[: bisect.bisect_left(others, before) + 1]}
    return others[0] if is_repeated and others and others[0] < before and len(drawn) > 1 else None


def drawn_from(generators: Mapping[str, str]) -> set[str]:
    """The names of the generators of a rank whose state was another one before the first step."""
    return {
        name
        for key, value in generators.items()
        if generators.get((name := key.rpartition("@")[0]) + "@0", value) != value
    }


def step_of(name: str) -> int:
    return int(name.rpartition("@")[2])


def _forget_after(known: dict[str, dict[str, str]], step: int) -> None:
    for rank, facts in known.items():
        known[rank] = {name: fact for name, fact in facts.items() if step_of(name) <= step}


def _parts(state: watch.State) -> Iterator[tuple[str, str]]:
    if state.weights is not None:
        yield "weights", state.weights
    if state.sums:
        yield "sums", " ".join(map(str, state.sums))
    for name, digest in (state.optimizer or {}).items():
        if digest is not None:
            yield f"optimizer.{name}", digest

"""What a user's job computed in the steps that it kept: losses and digests by rank and step, to compare with another run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...model import watch
from ...model.run import Control
from .resumption import Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFacts:
    """``losses``: rank -> step -> float.hex; ``digests``: rank -> ``<part>@<step>`` -> digest; ``steps``: the last step.

    ``base``: the step from which the newest attempt resumed; None if it is not known. ``undisturbed``: facts of earlier
    steps are those of the first attempt.
    """

    losses: Mapping[str, Mapping[str, str]]
    digests: Mapping[str, Mapping[str, str]]
    steps: int
    base: int | None
    undisturbed: int


def kept_facts(lines: Lineage) -> KeptFacts:
    """The facts of each step as the newest attempt executed it. Attempts from an unknown step are left out."""
    losses: dict[str, dict[str, str]] = {}
    digests: dict[str, dict[str, str]] = {}
    steps = 0
    for attempt in lines.attempts:
        base = lines.bases.get(attempt.index)
        if base is None:
            continue
        steps = base + max((process.last for process in attempt.ranks.values()), default=0)
        for known in (losses, digests):
            _forget_after(known, base)
        for rank, process in attempt.ranks.items():
            own = losses.setdefault(str(rank), {})
            own.update({str(base + n): step.loss for n, step in process.steps.items() if step.loss is not None})
            for n, state in process.states.items():
                digests.setdefault(str(rank), {}).update({f"{part}@{base + n}": d for part, d in _parts(state)})
    later = [lines.bases[attempt.index] for attempt in lines.attempts[1:] if attempt.index in lines.bases]
    undisturbed = min(later) if later else steps + 1
    newest = lines.attempts[-1].index if lines.attempts else -1
    return KeptFacts(losses=losses, digests=digests, steps=steps, base=lines.bases.get(newest), undisturbed=undisturbed)


def is_as_restarted(facts: KeptFacts, control: Control | None) -> bool | None:
    """Whether each rank computed what the restart control computed after resuming from the same step.

    None where that is not known: no control, another step, or no digest of weights after it that both recorded on some rank.
    """
    if control is None or facts.base is None or control.base != facts.base:
        return None
    equal = True
    for rank, own in facts.digests.items():
        other = control.digests.get(rank, {})
        common = [name for name in own if name in other and step_of(name) >= facts.base]
        if not any(name.startswith("weights@") and step_of(name) > facts.base for name in common):
            return None
        equal = equal and all(own[name] == other[name] for name in common)
    return equal if facts.digests else None


def step_of(name: str) -> int:
    """The step of a loss or digest."""
    return int(name.rpartition("@")[2])


def _forget_after(known: dict[str, dict[str, str]], step: int) -> None:
    for rank, facts in known.items():
        known[rank] = {name: fact for name, fact in facts.items() if step_of(name) <= step}


def _parts(state: watch.State) -> Iterator[tuple[str, str]]:
    if state.weights is not None:
        yield "weights", state.weights
    for name, digest in (state.optimizer or {}).items():
        if digest is not None:
            yield f"optimizer.{name}", digest

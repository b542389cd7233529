"""What a user's job computed in the steps that it kept: losses and digests by rank and step, to compare with another run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from ...model import watch
from ...model.run import Run
from ..values import mapping
from .resumption import Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFacts:
    """``losses``: rank -> step -> float.hex; ``digests``: rank -> ``<part>@<step>`` -> digest; ``steps``: the last step.

    ``base``: the step from which the newest attempt resumed; None if it is not known.
    """

    losses: Mapping[str, Mapping[str, str]]
    digests: Mapping[str, Mapping[str, str]]
    steps: int
    base: int | None


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
    newest = lines.attempts[-1].index if lines.attempts else -1
    return KeptFacts(losses=losses, digests=digests, steps=steps, base=lines.bases.get(newest))


def outside_paths(run: Run) -> frozenset[str]:
    """The paths of saves outside of the run's own work directory, which another run may read or write as well."""
    plan = mapping(run.extras.get("plan.json"))
    own = str(mapping(plan.get("work_dir")).get("path", ""))
    lines = (line for file in run.files.watch() for line in (*file.of(watch.Save), *file.of(watch.Committed)))
    paths = {line.path for line in lines if line.path}
    return frozenset(path for path in paths if not (own and PurePosixPath(path).is_relative_to(own)))


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

"""Ranks that do not step together, as those with uneven inputs: each is judged by its own steps."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Concatenate, ParamSpec

from ...model import watch
from ...model.frozen import dataclass, replace
from ...model.run import Control, NodeFiles, Run, Twin
from ...model.verdict import Verdict

P = ParamSpec("P")
_ORDER = ("fail", "unknown", "pass", "skipped")
_DIGITS = re.compile(r"\d+")
_Saves = Mapping[str, tuple[int, ...]]
#: The evidence of a verdict on a difference that no part of the state is known to explain.
UNEXPLAINED = "unexplained"
TOGETHER = "each rank by its own steps, as ranks do not step together"


@dataclass(frozen=True, slots=True)
class FilesOfRank:
    """The records of one rank, as if it trained alone; all other files of the run."""

    files: NodeFiles
    rank: int

    def watch(self) -> Iterator[watch.WatchFile]:
        return (file for file in self.files.watch() if file.rank == self.rank)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)


def by_rank(judge: Callable[Concatenate[Run, P], Verdict]) -> Callable[Concatenate[Run, P], Verdict]:
    """A judge of a run that judges each rank by itself where ranks do not step together; the worst verdict counts.

    Of verdicts with one outcome, that with an unexplained difference, or a part whose loss was accepted, says more than the others.
    """

    @functools.wraps(judge)
    def judged(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> Verdict:
        ranks = uneven_ranks(run)
        if not ranks:
            return judge(run, *args, **kwargs)
        verdicts = [judge(of_rank(run, rank), *args, **kwargs) for rank in ranks]
        worst = min(verdicts, key=_rank_of)
        return replace(worst, text=f"{worst.text}; {TOGETHER}") if worst.outcome == "pass" else worst

    return judged


def _rank_of(verdict: Verdict) -> tuple[int, bool]:
    return _ORDER.index(verdict.outcome), not (verdict.evidence.get(UNEXPLAINED) or verdict.evidence.get("accepted"))


def of_rank(run: Run, rank: int) -> Run:
    """The run as if this rank had trained alone, beside what it did in the reference run."""
    return replace(
        run, files=FilesOfRank(run.files, rank), twin=_twin_of_rank(run.twin, str(rank)) if run.twin else None
    )


def _twin_of_rank(twin: Twin, rank: str) -> Twin:
    own = _facts(twin, rank)
    steps = max((int(step) for step in own["losses"].get(rank, {})), default=twin.steps)
    control = twin.control
    if control is not None:
        base = control.bases.get(rank, control.base)
        control = replace(control, base=base, **_facts(control, rank))
    return replace(twin, steps=steps, control=control, **own)


def _facts(source: Twin | Control, rank: str) -> dict[str, Any]:
    saves = {s: {k: v for k, v in keys.items() if k.startswith(f"{rank} ")} for s, keys in source.saves.items()}
    of_rank = ({rank: known[rank]} if rank in known else {} for known in (source.losses, source.digests))
    return {"saves": saves, **dict(zip(("losses", "digests"), of_rank, strict=True))}


def uneven_ranks(run: Run) -> tuple[int, ...]:
    """The ranks, where each saves, and each save comes after another number of steps on some of them; else none."""
    if isinstance(run.files, FilesOfRank):
        return ()
    starts: dict[tuple[int, int], dict[int, _Saves]] = {}
    for file in run.files.watch():
        if any(isinstance(line, watch.Step | watch.Range) for line in file.lines):
            starts.setdefault((file.attempt, file.begin.restart if file.begin else 0), {})[file.rank] = _saves(file)
    ranks = {rank for own in starts.values() for rank in own}
    if len(ranks) < 2 or not any(map(_is_uneven, starts.values())):
        return ()
    return tuple(sorted(ranks)) if all(any(own.get(rank) for own in starts.values()) for rank in ranks) else ()


def _saves(file: watch.WatchFile) -> _Saves:
    """Name of a file, whose numbers count as equal -> the steps after which the main thread saved it, each once."""
    steps: dict[str, dict[int, None]] = {}
    for save in file.of(watch.Save):
        if save.api != "file" and not save.thread and save.n:
            steps.setdefault(_DIGITS.sub("#", PurePath(save.path).name), {})[save.n] = None
    return {name: tuple(own) for name, own in steps.items()}


def _is_uneven(saves: Mapping[int, _Saves]) -> bool:
    """Return whether two ranks save a file of the same name, and never after the same number of steps."""
    return any(
        all(a != b for a, b in zip(first[name], second[name], strict=False))
        for first, second in itertools.combinations(saves.values(), 2)
        for name in first.keys() & second.keys()
    )

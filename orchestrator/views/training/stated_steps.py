"""Reads what a script says itself about its steps, saves and resumptions, beside what the watcher observed.

A claim fills what cannot be observed, and verdicts call it the script's own word. Where both are known they must agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...model import watch
from ...model.frozen import dataclass, field
from .attempts import Attempt, Process
from .job_checkpoints import Checkpoint

#: What a verdict adds that rests on claims only.
OWN_WORD = ", by the script's own word"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """The script's way to count. ``saved``: number that it gave to a save -> steps of the run; ``offset``: number of the run's step 0."""

    saved: Mapping[int, frozenset[int]] = field(default_factory=dict)
    offset: int = 0

    def direct(self, number: int) -> int:
        """The step of the run, if the script counts optimizer steps."""
        return number - self.offset

    def steps(self, number: int) -> frozenset[int]:
        """The steps of the run that the number can mean."""
        own = {self.direct(number)} if self.direct(number) >= 0 else set[int]()
        return self.saved.get(number, frozenset()) | own


def numbering(earlier: Sequence[Attempt], bases: Mapping[int, int]) -> Numbering:
    """Read how the script counts from the saves that it reported in ``earlier``, and from what its first attempt said it began from."""
    saved: dict[int, set[int]] = {}
    for attempt in earlier:
        for process in attempt.ranks.values() if attempt.index in bases else ():
            for save in process.file.of(watch.Save):
                if save.step is not None:
                    saved.setdefault(save.step, set()).add(bases[attempt.index] + process.completed_at(save))
    offsets = [_offset(process) for attempt in earlier[:1] for process in attempt.ranks.values()]
    return Numbering(
        saved={number: frozenset(steps) for number, steps in saved.items()}, offset=min(offsets, default=0)
    )


def _offset(process: Process) -> int:
    if process.origin is not None:
        return process.origin
    return (process.resumed.step or 0) if process.resumed else 0


def contradiction(
    process: Process, steps: frozenset[int], how: str, counted: Numbering, known: Iterable[tuple[Checkpoint, int]]
) -> str:
    """Return why what the script says it resumed from cannot be true; empty if it can. ``steps``: by its weights, ``how`` they are known.

    ``known``: checkpoints with their step, to recognise the file that the script names.
    """
    claim = process.resumed
    if claim is None or claim.step is None:
        return ""
    says = f"the script says that {process.name} resumed from step {claim.step}"
    stated = counted.steps(claim.step)
    if steps and how != "claim" and not steps & stated:
        shown = "the initial state" if how == "scratch" else f"step {max(steps)}"
        return f"{says}, but it begins with the weights of {shown}"
    named = [(item, step) for item, step in known if claim.sha256 and claim.sha256 in item.sums]
    if named and not any(item.number == claim.step or step in stated for item, step in named):
        number = max(step if item.number is None else item.number for item, step in named)
        return f"{says}, but {claim.path} is the checkpoint of step {number} (SHA-256)"
    return ""


def is_older(
    steps: frozenset[int], claim: int | None, checkpoint: Checkpoint, step: int, counted: Numbering
) -> bool | None:
    """Return whether a rank resumed from an older state than a checkpoint that was reported after ``step``; None if it is not known.

    ``steps``: that it resumed from; ``claim``: the number that the script says it resumed from. An upload may be reported late,
    so ``step`` is only an upper bound; two numbers of the script compare by themselves.
    """
    resumed = max(steps)
    if resumed >= step:
        return False
    if checkpoint.number is None:
        return None
    if claim is not None:
        return claim < checkpoint.number
    stated = counted.direct(checkpoint.number)
    if resumed == stated:
        return False
    return True if resumed < min(step, stated) else None

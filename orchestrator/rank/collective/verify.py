"""After every iteration all ranks tell each other whether their result is exact, and its checksum; a wrong one ends the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..exchange.operations import Work, Wrong
from .cases import Case

_FIELDS = 5


class WrongResult(Exception):
    """A collective gave a result that is not the exact one, or not the same on all ranks. ``culprit``: the first that has it."""

    kind = "wrong result"

    def __init__(self, message: str, culprit: int) -> None:
        super().__init__(message)
        self.culprit = culprit


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Compares the results of one rank with those of all ranks."""

    rank: int
    world: int
    device: torch.device
    emit: Callable[..., None]

    def check(self, case: Case, step: int, work: Work | None) -> None:
        """A collective of all ranks, those without work (in no group) too. Raises WrongResult on every rank."""
        wrong = work.wrong() if work else None
        told = self._exchange(wrong, work.hash() if work else 0)
        if wrong is None and self._differs(case, told):
            wrong = Wrong(offset=-1, expected=told[self._first(case)][4], got=told[self.rank][4])
        found = _judged(case, step, told)
        if found:
            self._tell(case, step, wrong)
            raise WrongResult(found[1], found[0])

    def _tell(self, case: Case, step: int, wrong: Wrong | None) -> None:
        """Nobody leaves before all have told what they found: the first one to leave ends the run."""
        if wrong is not None:
            self.emit(
                "collective.wrong", case=case.number, step=step,
                offset=wrong.offset, expected=wrong.expected, got=wrong.got,
            )  # fmt: skip
        if self.world > 1:
            dist.barrier()

    def _exchange(self, wrong: Wrong | None, checksum: int) -> list[list[float]]:
        mine = [1.0, float(wrong.offset), float(wrong.expected), float(wrong.got)] if wrong else [0.0] * 4
        line = torch.tensor([*mine, float(checksum)], dtype=torch.float64, device=self.device)
        if self.world == 1:
            return [line.tolist()]
        lines = [torch.zeros(_FIELDS, dtype=torch.float64, device=self.device) for _ in range(self.world)]
        dist.all_gather(lines, line)
        return [one.tolist() for one in lines]

    def _first(self, case: Case) -> int:
        return next((group[0] for group in case.groups if self.rank in group), self.rank)

    def _differs(self, case: Case, told: Sequence[Sequence[float]]) -> bool:
        return told[self.rank][4] != told[self._first(case)][4]


def _judged(case: Case, step: int, told: Sequence[Sequence[float]]) -> tuple[int, str] | None:
    """The first rank with a wrong element, else the first that differs from its group, and what it has; None: all is well."""
    for rank, (flag, offset, expected, got, _) in enumerate(told):
        if flag:
            values = f"expected {_number(expected)}, got {_number(got)}"
            return rank, f"rank {rank}, element {offset:.0f}: {values} ({case.label()}, step {step})"
    for group in case.groups:
        odd = next((rank for rank in group if told[rank][4] != told[group[0]][4]), None)
        if odd is not None:
            return odd, f"rank {odd} has another result than rank {group[0]} ({case.label()}, step {step})"
    return None


def _number(value: float) -> Any:
    return int(value) if value.is_integer() else value

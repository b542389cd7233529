"""Verifies the result of every iteration: exact on every rank and equal on all; a wrong result ends the run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...model.events import CollectiveWrong
from ...model.frozen import dataclass
from ...rank.exchange.cases import Case
from ...rank.exchange.operations import Work, Wrong

_FIELDS = 5


class WrongResult(Exception):
    """A result is not exact, or differs between ranks. ``culprit``: the first rank with such a result."""

    kind = "wrong result"

    def __init__(self, message: str, culprit: int) -> None:
        super().__init__(message)
        self.culprit = culprit


#: The first wrong element of a result on this rank, and the result's checksum.
Report = tuple[Wrong | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Compares the results of one rank with those of all ranks."""

    rank: int
    world: int
    device: torch.device
    note: Callable[[CollectiveWrong], None]

    def check(self, case: Case, step: int, work: Work | None) -> None:
        """Raises WrongResult on every rank. A collective of all ranks, including those without work (in no group)."""
        self.agree(case, step, self.observe(work))

    @staticmethod
    def observe(work: Work | None) -> Report:
        """Check the result on this rank alone, without any message."""
        return (work.wrong(), work.hash()) if work else (None, 0)

    def agree(self, case: Case, step: int, report: Report) -> None:
        """Compare what all ranks have observed: the second half of ``check``."""
        wrong, checksum = report
        reports = self._exchange(wrong, checksum)
        if wrong is None and reports[self.rank][4] != reports[self._first(case)][4]:
            wrong = Wrong(offset=-1, expected=reports[self._first(case)][4], got=reports[self.rank][4])
        finding = _first_wrong(case, step, reports)
        if finding:
            self._report(case, step, wrong)
            raise WrongResult(finding[1], finding[0])

    def _report(self, case: Case, step: int, wrong: Wrong | None) -> None:
        """Write the event, then wait for all ranks: the first rank that exits ends the run.

        A rank that leaves the barrier at once may end its connections before the others have left it.
        """
        if wrong is not None:
            self.note(
                CollectiveWrong(
                    rank=self.rank, case=case.number, step=step,
                    offset=wrong.offset, expected=wrong.expected, got=wrong.got,
                )
            )  # fmt: skip
        if self.world > 1:
            with contextlib.suppress(RuntimeError):
                dist.barrier()

    def _exchange(self, wrong: Wrong | None, checksum: int) -> list[list[float]]:
        report = [1.0, float(wrong.offset), float(wrong.expected), float(wrong.got)] if wrong else [0.0] * 4
        line = torch.tensor([*report, float(checksum)], dtype=torch.float64, device=self.device)
        if self.world == 1:
            return [line.tolist()]
        lines = [torch.zeros(_FIELDS, dtype=torch.float64, device=self.device) for _ in range(self.world)]
        dist.all_gather(lines, line)
        return [row.tolist() for row in lines]

    def _first(self, case: Case) -> int:
        return next((group[0] for group in case.groups if self.rank in group), self.rank)


def _first_wrong(case: Case, step: int, reports: Sequence[Sequence[float]]) -> tuple[int, str] | None:
    """(rank, message) of the first rank with a wrong element, else of the first that differs from its group; None: all correct."""
    for rank, (flag, offset, expected, got, _) in enumerate(reports):
        if flag:
            values = f"expected {_number(expected)}, got {_number(got)}"
            return rank, f"rank {rank}, element {offset:.0f}: {values} ({case.label()}, step {step})"
    for group in case.groups:
        odd = next((rank for rank in group if reports[rank][4] != reports[group[0]][4]), None)
        if odd is not None:
            return odd, f"rank {odd} has a different result than rank {group[0]} ({case.label()}, step {step})"
    return None


def _number(value: float) -> Any:
    return int(value) if value.is_integer() else value

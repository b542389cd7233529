"""Batches: the steps of an epoch, its short last batch, and uneven shares of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...model.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """``total`` = ceil(dataset / batch) x epochs steps, of which ``short`` (one per epoch) have ``last`` samples."""

    dataset: int
    batch: int
    epochs: int

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.dataset / self.batch)

    @property
    def total(self) -> int:
        return self.steps_per_epoch * self.epochs

    @property
    def last(self) -> int:
        """Samples of an epoch's last batch; a full batch if the data set divides evenly."""
        return self.dataset % self.batch or self.batch

    @property
    def short(self) -> int:
        return 0 if self.last == self.batch else self.epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A rank's part of every batch. ``weight``: the factor of its loss before the even average: n_i p / N.

    ``last``, ``last_weight``: in the last batch of an epoch; None if the number of samples is not known.
    """

    rank: int
    share: float
    samples: int
    last: int | None
    weight: float
    last_weight: float | None


def even(samples: int, parts: int) -> int:
    """The largest part of ``samples`` divided by quotient and remainder."""
    return math.ceil(samples / parts)


def split(samples: int, shares: Sequence[float]) -> tuple[int, ...]:
    """``samples`` divided by ``shares`` into whole numbers; the largest remainders get the rest."""
    exact = [samples * share for share in shares]
    counts = [math.floor(round(share, 9)) for share in exact]
    order = sorted(range(len(shares)), key=lambda rank: (counts[rank] - exact[rank], rank))
    for rank in order[: samples - sum(counts)]:
        counts[rank] += 1
    return tuple(counts)


def uneven(shares: Sequence[float], dp: int, batch: int, last: int | None) -> tuple[Share, ...]:
    """The share of each data-parallel rank. All ranks do the same steps. Raises ValueError with a line per problem."""
    problems = []
    if len(shares) != dp:
        problems.append(f"--shares: {dp} data-parallel ranks need {dp} shares (got {len(shares)})")
    if any(share <= 0 for share in shares):
        problems.append(f"--shares: every share must be > 0 (got {min(shares):g})")
    if abs(sum(shares) - 1) > 1e-6:
        problems.append(f"--shares: must sum to 1 (got {sum(shares):g})")
    if problems:
        raise ValueError("\n".join(problems))
    full, short = split(batch, shares), () if last is None else split(last, shares)
    for rank, share in enumerate(shares):
        size = batch if full[rank] < 1 else last if short and short[rank] < 1 else None
        if size is not None:
            problems.append(f"--shares: rank {rank} gets no sample of a batch of {size:,} ({share:g} of it)")
    if problems:
        raise ValueError("\n".join(problems))
    return tuple(
        Share(
            rank=rank,
            share=shares[rank],
            samples=full[rank],
            last=short[rank] if short else None,
            weight=full[rank] * dp / batch,
            last_weight=short[rank] * dp / last if last else None,
        )
        for rank in range(dp)
    )

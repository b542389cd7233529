"""Compute the size of a training for ``ccbed size``: its traffic, batches, memory and costs."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.frozen import dataclass
from . import batch_shares, gpu_memory, traffic
from .batch_shares import Batches, Share
from .gpu_memory import Memory, Optimizer
from .layout import Layout
from .link_price import Link, Price, Prices
from .model_description import Model
from .traffic import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingRequest:
    """The training to size. ``batch``: samples over all GPUs; ``limit``: bytes of memory of a GPU."""

    model: Model
    layout: Layout
    optimizer: Optimizer
    batch: int | None = None
    dataset: int | None = None
    epochs: int = 1
    shares: Sequence[float] = ()
    link: Link | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A collective of a full step, its bytes in the short last one, and its price on the link."""

    collective: Collective
    last_size: int
    price: Price | None

    @property
    def step_seconds(self) -> float | None:
        return None if self.price is None or self.price.seconds is None else self.price.seconds * self.collective.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """``spare``: free bytes, negative if memory is missing; ``alternatives``: layouts that fit."""

    limit: int
    spare: int
    alternatives: tuple[tuple[Layout, Memory], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSize:
    request: SizingRequest
    rows: tuple[Row, ...]
    batches: Batches | None
    shares: tuple[Share, ...]
    memory: Memory
    fit: Fit | None

    @property
    def step_seconds(self) -> float | None:
        """Communication time of a full step, one collective after the other; None without a link or a price."""
        seconds = [row.step_seconds for row in self.rows]
        if None in seconds or self.request.link is None:
            return None
        return sum(step_seconds for step_seconds in seconds if step_seconds is not None)


def compute(request: SizingRequest, prices: Prices) -> TrainingSize:
    """The size of a training. Raises ValueError with a line per problem."""
    if problems := _problems(request):
        raise ValueError("\n".join(problems))
    batch, batches = request.batch, None
    if request.dataset is not None and batch is not None:
        batches = Batches(dataset=request.dataset, batch=batch, epochs=request.epochs)
    last = batches.last if batches else None
    rows = _rows(request, prices, last)
    if problem := prices.find_problem(tuple(row.collective for row in rows)):
        raise ValueError(problem)
    shares: tuple[Share, ...] = ()
    if request.shares and batch is not None:
        shares = batch_shares.uneven(request.shares, request.layout.dp, batch, last)
        # Here every replica would have as many samples as the one with the largest share.
        batch = max(share.samples for share in shares) * len(shares)
    memory = gpu_memory.of_rank(request.model, request.layout, request.optimizer, batch)
    fit = _fit(request, memory, batch)
    return TrainingSize(request=request, rows=rows, batches=batches, shares=shares, memory=memory, fit=fit)


def _problems(request: SizingRequest) -> list[str]:
    layout, batch = request.layout, request.batch
    problems = []
    if batch is None and (layout.tp > 1 or layout.pp > 1 or layout.ep > 1):
        problems.append(f"--batch: is missing: the traffic of {layout.strategy} grows with the batch")
    if batch is not None and batch < layout.dp * layout.microbatches:
        problems.append(
            f"--batch: must be >= {layout.dp * layout.microbatches}: {layout.dp} replicas x {layout.microbatches} "
            f"microbatches of at least one sample (got {batch})"
        )
    if request.dataset is not None and batch is None:
        problems.append("--batch: is missing: --dataset is counted in batches")
    if request.shares and batch is None:
        problems.append("--batch: is missing: --shares divide a batch")
    return problems


def _rows(request: SizingRequest, prices: Prices, last_batch: int | None) -> tuple[Row, ...]:
    """The collectives of a step, with their bytes in the last one, whose batch may be smaller."""
    full, last = (
        traffic.of_step(request.model, request.layout, request.optimizer, batch)
        for batch in (request.batch or 1, last_batch or request.batch or 1)
    )
    return tuple(
        Row(collective=collective, last_size=other.size, price=prices.of(collective, request.link))
        for collective, other in zip(full, last, strict=True)
    )


def _fit(request: SizingRequest, rank_memory: Memory, batch: int | None) -> Fit | None:
    if request.limit is None:
        return None
    spare = request.limit - rank_memory.total
    alternatives = (
        gpu_memory.fitting_layouts(request.model, request.layout, request.optimizer, batch, request.limit)
        if spare < 0
        else ()
    )
    return Fit(limit=request.limit, spare=spare, alternatives=alternatives)

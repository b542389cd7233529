"""All that ``ccbed size`` says about one training: put together from traffic, trials, memory and prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import memory, traffic, trials
from .described import Model
from .layout import Layout
from .memory import Memory, Optimizer
from .pricing import Link, Price, Prices
from .traffic import Collective
from .trials import Share, Trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked. ``batch`` is that of all GPUs; ``limit``: bytes of memory of a GPU."""

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
    """``spare``: bytes that are left, below 0 what is missing; ``instead``: arrangements that would fit."""

    limit: int
    spare: int
    instead: tuple[tuple[Layout, Memory], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    question: Question
    rows: tuple[Row, ...]
    trials: Trials | None
    shares: tuple[Share, ...]
    memory: Memory
    fit: Fit | None

    @property
    def step_seconds(self) -> float | None:
        """Communication of one full step, one collective after the other; None without a link or a price."""
        found = [row.step_seconds for row in self.rows]
        return None if None in found or self.question.link is None else sum(one for one in found if one is not None)


def answer(question: Question, prices: Prices) -> Answer:
    """Raises ValueError, a line per problem."""
    problems = _problems(question)
    if problems:
        raise ValueError("\n".join(problems))
    found = _trials(question)
    rows = _rows(question, prices, found)
    refused = prices.refused(tuple(row.collective for row in rows))
    if refused:
        raise ValueError(refused)
    shares = _shares(question, found)
    batch = _fullest(question, shares)
    held = memory.of_rank(question.model, question.layout, question.optimizer, batch)
    fit = _fit(question, held, batch)
    return Answer(
        question=question,
        rows=rows,
        trials=found,
        shares=shares,
        memory=held,
        fit=fit,
    )


def _problems(question: Question) -> list[str]:
    layout, batch = question.layout, question.batch
    found = []
    if batch is None and (layout.tp > 1 or layout.pp > 1 or layout.ep > 1):
        found.append(f"--batch: is missing: what {layout.strategy} moves grows with the batch")
    if batch is not None and batch < layout.dp * layout.microbatches:
        found.append(
            f"--batch: must be >= {layout.dp * layout.microbatches}: {layout.dp} replicas x {layout.microbatches} "
            f"microbatches of at least one sample (got {batch})"
        )
    if question.dataset is not None and batch is None:
        found.append("--batch: is missing: --dataset is counted in batches")
    if question.shares and batch is None:
        found.append("--batch: is missing: --shares divide a batch")
    return found


def _trials(question: Question) -> Trials | None:
    if question.dataset is None or question.batch is None:
        return None
    return Trials(dataset=question.dataset, batch=question.batch, epochs=question.epochs)


def _rows(question: Question, prices: Prices, found: Trials | None) -> tuple[Row, ...]:
    full = _step(question, question.batch or 1)
    last = _step(question, found.last) if found else full
    return tuple(
        Row(
            collective=one,
            last_size=other.size,
            price=prices.of(one, question.link),
        )
        for one, other in zip(full, last, strict=True)
    )


def _step(question: Question, batch: int) -> tuple[Collective, ...]:
    return traffic.of_step(question.model, question.layout, question.optimizer, batch)


def _shares(question: Question, found: Trials | None) -> tuple[Share, ...]:
    if not question.shares or question.batch is None:
        return ()
    return trials.uneven(question.shares, question.layout.dp, question.batch, found.last if found else None)


def _fullest(question: Question, shares: tuple[Share, ...]) -> int | None:
    """The batch that would give every replica what the one with the largest share has."""
    return max(share.samples for share in shares) * len(shares) if shares else question.batch


def _fit(question: Question, held: Memory, batch: int | None) -> Fit | None:
    if question.limit is None:
        return None
    spare = question.limit - held.total
    instead = (
        memory.fitting(question.model, question.layout, question.optimizer, batch, question.limit) if spare < 0 else ()
    )
    return Fit(limit=question.limit, spare=spare, instead=instead)

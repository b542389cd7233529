"""The training loop of one rank: restores, trains step by step with checkpoints, and computes the metrics at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from . import classifier
from . import datasets as rank_data

if TYPE_CHECKING:
    import torch

    from ..checkpoint import model_states
    from ..runtime import context


class Trainer(Protocol):
    """Model, optimizer and step of one rank. ``step`` passes the phases and returns the local loss (mean over its samples)."""

    @property
    def model(self) -> torch.nn.Module: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def step(self, step: int) -> float: ...


class PartTrainer(Trainer, Protocol):
    """A trainer whose model is a part. ``whole`` assembles the model from the parts of all ranks, as a collective."""

    def whole(self) -> torch.nn.Module: ...


T = TypeVar("T", bound=Trainer)
Build = Callable[["context.RankContext", classifier.Batches], T]


def data_parallel(ctx: context.RankContext, build: Build[Trainer], states: model_states.States | None = None) -> None:
    """Train on this rank's share of each batch. ``states``: how the model is spread; None: every rank has all of it."""
    batches, trainer, train_s = _train(ctx, build, states)
    mean = _mean_loss(ctx, batches)
    metrics = {"loss_mean": mean, "train_s": train_s}
    if ctx.rank == 0 and states is None:
        metrics["accuracy"] = _accuracy(ctx, trainer.model)
    ctx.finish(trainer.model, trainer.optimizer, metrics, loss_mean=mean)


def model_parallel(ctx: context.RankContext, build: Build[PartTrainer]) -> None:
    """Train this rank's part of the model on whole batches; at the end rank 0 trains the whole model alone and compares."""
    from ..checkpoint import model_states

    batches, trainer, train_s = _train(ctx, build, model_states.Sharded())
    whole = trainer.whole()
    metrics = {"loss_mean": ctx.loss, "train_s": train_s}
    if ctx.rank == 0:
        metrics["accuracy"] = _accuracy(ctx, whole)
        if ctx.params.reference:
            metrics["reference_difference"] = _compare_with_one_process(ctx, batches, whole)
    ctx.finish(trainer.model, trainer.optimizer, metrics, loss_mean=ctx.loss)


def run_steps(ctx: context.RankContext, trainer: Trainer, states: model_states.States | None = None) -> float:
    """Restore, then run every step with its checkpoint; return the seconds. ``states``: None: every rank has the whole model."""
    from ..checkpoint import model_states

    params, states = ctx.params, states or model_states.REPLICATED
    begin = time.monotonic()
    for step in range(ctx.restore(trainer.model, trainer.optimizer, states=states) + 1, ctx.steps + 1):
        ctx.begin_step(step)
        loss = trainer.step(step)
        _pause(ctx)
        due = params.digest_every and step % params.digest_every == 0
        ctx.end_step(loss, trainer.model if due else None)
        if step % params.checkpoint_every == 0 or step == ctx.steps:
            ctx.save(step, trainer.model, trainer.optimizer, keep=params.keep, states=states)
    return time.monotonic() - begin


def _train(
    ctx: context.RankContext, build: Build[T], states: model_states.States | None
) -> tuple[classifier.Batches, T, float]:
    """Join the gang and run all steps; return the data, the trainer, and the seconds that the steps took."""
    ctx.connect()
    batches = classifier.Batches(ctx)
    ctx.steps = batches.steps
    trainer = build(ctx, batches)
    return batches, trainer, run_steps(ctx, trainer, states)


def _mean_loss(ctx: context.RankContext, batches: classifier.Batches) -> float:
    """The loss of the last step over the whole batch, from the losses of all ranks over their shares."""
    import torch
    import torch.distributed as dist

    indices, total = batches.share(ctx.steps, ctx.rank, ctx.world)
    weighted = torch.tensor([ctx.loss * len(indices) / total], dtype=torch.float64, device=ctx.device)
    if ctx.world > 1:
        dist.all_reduce(weighted)
    return float(weighted.item())


def _accuracy(ctx: context.RankContext, model: Any) -> float:
    """The fraction of test images that ``model`` classifies correctly."""
    import torch

    test = rank_data.load(classifier.folder(ctx.params, ctx.gang.data), "test")
    with torch.no_grad():
        predicted = model(rank_data.scaled(test.images.to(ctx.device))).argmax(dim=1).cpu()
    return float((predicted == test.labels).sum().item()) / len(test.labels)


def _pause(ctx: context.RankContext) -> None:
    remaining_s = ctx.params.step_min_ms / 1000 - (time.monotonic() - ctx.begun)
    if remaining_s > 0:
        time.sleep(remaining_s)


def _compare_with_one_process(ctx: context.RankContext, batches: classifier.Batches, model: torch.nn.Module) -> float:
    """Train the whole model on this rank alone, from rank 0's first weights; return the largest difference of a weight.

    One process sums floats in another order, so that the results are close but not equal.
    """
    import torch

    from ...model.events import ReferenceCompared

    alone = classifier.weights(ctx, 0)
    optimizer = torch.optim.Adam(alone.parameters(), lr=ctx.params.lr)
    loss = torch.zeros(())
    for step in range(1, batches.steps + 1):
        images, labels = classifier.noisy_batch(ctx, batches, step)
        optimizer.zero_grad()
        loss = classifier.loss_sum(alone, images, labels) / len(labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    pairs = zip(alone.parameters(), model.parameters(), strict=True)
    difference = max(float((reference - trained).abs().max()) for reference, trained in pairs)
    ctx.note(
        ReferenceCompared(
            rank=ctx.rank, steps=batches.steps, difference=difference, of="a weight", loss=ctx.loss,
            reference_loss=float(loss.item()),
        )
    )  # fmt: skip
    return difference

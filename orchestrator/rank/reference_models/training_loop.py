"""The life of one rank of a training: it joins, begins or goes on, makes every step with its checkpoint, and tells its end."""

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
    """One rank of a training. ``step`` passes the phases of a step and gives the rank's local loss (mean over its samples)."""

    @property
    def model(self) -> torch.nn.Module: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def step(self, step: int) -> float: ...


class PartTrainer(Trainer, Protocol):
    """One whose model is a part. ``whole`` puts the model together from the parts of all ranks: a collective of them."""

    def whole(self) -> torch.nn.Module: ...


T = TypeVar("T", bound=Trainer)
Build = Callable[["context.RankContext", classifier.Batches], T]


def data_parallel(ctx: context.RankContext, build: Build[Trainer], held: model_states.States | None = None) -> None:
    """Every rank trains on its share of each batch. ``held``: how the model is kept; None: every rank has all of it."""
    batches, trainer, train_s = _trained(ctx, build, held)
    mean = _mean_loss(ctx, batches)
    metrics = {"loss_mean": mean, "train_s": train_s}
    if ctx.rank == 0 and held is None:
        metrics["accuracy"] = _accuracy(ctx, trainer.model)
    ctx.finish(trainer.model, trainer.optimizer, metrics, loss_mean=mean)


def model_parallel(ctx: context.RankContext, build: Build[PartTrainer]) -> None:
    """Every rank trains its part of the model on whole batches; at its end rank 0 trains the whole model alone and compares."""
    from ..checkpoint import model_states

    batches, trainer, train_s = _trained(ctx, build, model_states.Sharded())
    whole = trainer.whole()
    metrics = {"loss_mean": ctx.loss, "train_s": train_s}
    if ctx.rank == 0:
        metrics["accuracy"] = _accuracy(ctx, whole)
        if ctx.params.reference:
            metrics["reference_difference"] = _compare_with_one_process(ctx, batches, whole)
    ctx.finish(trainer.model, trainer.optimizer, metrics, loss_mean=ctx.loss)


def live(ctx: context.RankContext, trainer: Trainer, held: model_states.States | None = None) -> float:
    """Restore, then every step with its checkpoint; the seconds that the steps took. ``held``: None: every rank has the whole."""
    from ..checkpoint import model_states

    params, held = ctx.params, held or model_states.REPLICATED
    begin = time.monotonic()
    for step in range(ctx.restore(trainer.model, trainer.optimizer, held=held) + 1, ctx.steps + 1):
        ctx.begin_step(step)
        loss = trainer.step(step)
        _pause(ctx)
        due = params.digest_every and step % params.digest_every == 0
        ctx.end_step(loss, trainer.model if due else None)
        if step % params.checkpoint_every == 0 or step == ctx.steps:
            ctx.save(step, trainer.model, trainer.optimizer, keep=params.keep, held=held)
    return time.monotonic() - begin


def _trained(
    ctx: context.RankContext, build: Build[T], held: model_states.States | None
) -> tuple[classifier.Batches, T, float]:
    """The data, the trainer after its last step, and the seconds that the steps took."""
    ctx.connect()
    batches = classifier.Batches(ctx)
    ctx.steps = batches.steps
    trainer = build(ctx, batches)
    return batches, trainer, live(ctx, trainer, held)


def _mean_loss(ctx: context.RankContext, batches: classifier.Batches) -> float:
    """The loss of the last step over the whole batch, from every rank's over its share."""
    import torch
    import torch.distributed as dist

    mine, total = batches.share(ctx.steps, ctx.rank, ctx.world)
    weighted = torch.tensor([ctx.loss * len(mine) / total], dtype=torch.float64, device=ctx.device)
    if ctx.world > 1:
        dist.all_reduce(weighted)
    return float(weighted.item())


def _accuracy(ctx: context.RankContext, model: Any) -> float:
    """The share of test images that ``model`` recognises."""
    import torch

    test = rank_data.load(classifier.folder(ctx.params, ctx.gang.data), "test")
    with torch.no_grad():
        found = model(rank_data.scaled(test.images.to(ctx.device))).argmax(dim=1).cpu()
    return float((found == test.labels).sum().item()) / len(test.labels)


def _pause(ctx: context.RankContext) -> None:
    left = ctx.params.step_min_ms / 1000 - (time.monotonic() - ctx.begun)
    if left > 0:
        time.sleep(left)


def _compare_with_one_process(ctx: context.RankContext, batches: classifier.Batches, found: torch.nn.Module) -> float:
    """Train alone from rank 0's first weights, tell how far ``found`` is from the result; the largest difference of a weight.

    Floats are summed in another order there, so the result is near, not equal.
    """
    import torch

    alone = classifier.weights(ctx, 0)
    optimizer = torch.optim.Adam(alone.parameters(), lr=ctx.params.lr)
    loss = torch.zeros(())
    for step in range(1, batches.steps + 1):
        images, labels = classifier.noisy_batch(ctx, batches, step)
        optimizer.zero_grad()
        loss = classifier.loss_sum(alone, images, labels) / len(labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    pairs = zip(alone.parameters(), found.parameters(), strict=True)
    difference = max(float((one - other).abs().max()) for one, other in pairs)
    ctx.emit(
        "reference.compared",
        steps=batches.steps,
        difference=difference,
        of="a weight",
        loss=ctx.loss,
        reference_loss=float(loss.item()),
    )
    return difference

"""A built-in training whose ranks lose state when they restore: the checkers must detect it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..model import codec
from ..rank.reference_models import classifier

if TYPE_CHECKING:
    from ..rank.runtime import context

METRICS = classifier.METRICS
CHECKS = classifier.CHECKS
RESIZES = True
LOST = ("optimizer", "rng", "batch", "weighting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters.

    training   name of the built-in workload
    params     its parameters
    lost       what is not restored, or skipped: optimizer | rng | batch | weighting
    """

    training: str
    lost: str
    params: Mapping[str, Any] = field(default_factory=dict)


def check(params: Params) -> list[str]:
    """Problems with the values."""
    if params.lost not in LOST:
        return [f"lost: must be one of {', '.join(LOST)} (got {params.lost!r})"]
    return list(_training(params).check(_params(params)))


def last_step(params: Params, data: str | None = None) -> int | None:
    """The number of steps of the training."""
    steps: int | None = _training(params).last_step(_params(params), data)
    return steps


def run(ctx: context.RankContext) -> None:
    """Run the training with a restore that loses state."""
    training, params = _training(ctx.params), _params(ctx.params)
    damage = {"optimizer": _lose_optimizer, "rng": _lose_rng, "batch": _skip_batch, "weighting": _lose_weighting}[
        ctx.params.lost
    ]
    ctx.params, ctx.restore = params, damage(ctx)
    training.run(ctx)


def _lose_optimizer(ctx: context.RankContext) -> Any:
    """The optimizer begins as a fresh one."""
    restore = ctx.restore

    def damaged(model: Any, optimizer: Any, **states: Any) -> int:
        step = restore(model, optimizer, **states)
        optimizer.state.clear()
        return step

    return damaged


def _lose_rng(ctx: context.RankContext) -> Any:
    """The random states stay those of a fresh start."""
    import torch

    restore = ctx.restore

    def damaged(model: Any, optimizer: Any, **states: Any) -> int:
        own, default = ctx.rng.get_state(), torch.get_rng_state()
        step = restore(model, optimizer, **states)
        ctx.rng.set_state(own)
        torch.set_rng_state(default)
        return step

    return damaged


def _skip_batch(ctx: context.RankContext) -> Any:
    """After a restart the ranks take their shares of the batch that follows."""
    share = classifier.Batches.share
    if ctx.gang.resume:
        classifier.Batches.share = lambda self, step, *more: share(self, step + 1, *more)  # type: ignore[method-assign]
    return ctx.restore


def _lose_weighting(ctx: context.RankContext) -> Any:
    """Each rank's mean gradient counts the same, however large its share is."""
    noisy_share = classifier.noisy_share

    def damaged(ctx: context.RankContext, batches: classifier.Batches, step: int) -> Any:
        images, labels, _ = noisy_share(ctx, batches, step)
        return images, labels, len(labels) * ctx.world

    classifier.noisy_share = damaged
    return ctx.restore


def _training(params: Params) -> Any:
    package = __name__.rpartition(".")[0]
    return importlib.import_module(f"{package}.{params.training.replace('-', '_')}")


def _params(params: Params) -> Any:
    return codec.build(_training(params).Params, dict(params.params))

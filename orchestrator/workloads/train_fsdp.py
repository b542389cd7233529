"""Fully sharded data-parallel training (FSDP2); for a checkpoint the state is gathered whole, and rank 0 writes it.

Every layer's parameters are gathered before they are used, forward and backward, and gradients are reduced and scattered.
Checkpoints are those of every training: torch.distributed.checkpoint.state_dict gathers the whole and cuts it again, no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..rank import training

if TYPE_CHECKING:
    import torch

    from ..rank import context

METRICS: Mapping[str, tuple[str, str]] = {"loss_mean": ("nats", "lower"), "train_s": ("s", "lower")}
CHECKS = (
    "no-step-lost", "same-resume-step", "resumed-newest", "replay-equal", "no-hang", "bit-exact", "baseline-clean",
    "spare-warm", "traffic-as-predicted",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(training.Params):
    """What may be set, beside what every training has.

    reshard           parameters are given up after the forward pass and gathered again in the backward pass
    """

    reshard: bool = True


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    return training.check(params)


def last_step(params: Params, data: str | None = None) -> int | None:
    """The number of steps; None where the data directory cannot be read from here."""
    return training.last_step(params, data)


def traffic(params: Params, world: int, samples: int) -> dict[str, int]:
    """Bytes of each operation in a step, of all ranks: parameters gathered twice, gradients reduced and scattered once.

    That is ZeRO stage 3, arXiv:1910.02054. Each parameter is padded to a multiple of the world along its rows, as FSDP2 does.
    """
    rows = zip(training.LAYERS[1:], training.LAYERS, strict=False)
    size = sum(-(-outputs // world) * world * (inputs + 1) for outputs, inputs in rows) * training.ELEMENT * world
    return {"all-gather": (2 if params.reshard else 1) * size, "reduce-scatter": size}


def run(ctx: context.RankContext) -> None:
    """The whole life of one rank of the training."""
    from ..rank import states

    ctx.connect()
    batches = training.Batches(ctx)
    ctx.steps = batches.steps
    trainer = _Trainer(ctx, batches)
    train_s = training.live(ctx, trainer, states.Distributed())
    mean = training.mean_loss(ctx, batches)
    ctx.finish(trainer.model, trainer.optimizer, {"loss_mean": mean, "train_s": train_s}, loss_mean=mean)


class _Trainer:
    """One rank's part of the model, its optimizer and its data."""

    def __init__(self, ctx: context.RankContext, batches: training.Batches) -> None:
        import torch
        from torch.distributed import device_mesh, fsdp

        self._ctx, self._batches = ctx, batches
        whole: Any = training.weights(ctx, ctx.rank)
        ctx.share_weights(whole)
        mesh = device_mesh.init_device_mesh(ctx.device.type, (ctx.world,))
        for layer in whole.children():
            if isinstance(layer, torch.nn.Linear):
                fsdp.fully_shard(layer, mesh=mesh, reshard_after_forward=ctx.params.reshard)
        self.model: torch.nn.Module = fsdp.fully_shard(whole, mesh=mesh)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=ctx.params.lr)

    def step(self, step: int) -> float:
        """One step: every phase of it in order."""
        from ..rank import counting

        ctx = self._ctx
        ctx.phase("data")
        images, labels, total = training.noisy_share(ctx, self._batches, step)
        ctx.phase("forward")
        self.optimizer.zero_grad()
        with counting.Counting(ctx.comm, ctx.passing("allreduce")) as counted:
            loss = training.loss_sum(self.model, images, labels)
            ctx.phase("backward")
            (loss * (ctx.world / total)).backward()  # type: ignore[no-untyped-call]
        counted.passed()
        ctx.phase("optimizer")
        self.optimizer.step()
        return float(loss.item()) / max(len(labels), 1)

"""Fully sharded data-parallel training (FSDP2): every rank writes its shards with torch.distributed.checkpoint.

The parameters of a layer are gathered before use, forward and backward; gradients are reduced and scattered. A checkpoint is a
directory in the format of torch.distributed.checkpoint: a file per rank, committed by rank 0. Any number of ranks can load it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..model.frozen import dataclass
from ..rank.reference_models import classifier, training_loop

if TYPE_CHECKING:
    import torch

    from ..rank.runtime import context

METRICS = classifier.METRICS
CHECKS = classifier.CHECKS
check = classifier.check
#: It resumes with another number of ranks.
RESIZES = True
last_step = classifier.last_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(classifier.Params):
    """Parameters, in addition to those of every training.

    reshard           free gathered parameters after the forward pass and gather them again in the backward pass
    """

    reshard: bool = True


def traffic(params: Params, world: int, samples: int) -> dict[str, int]:
    """Bytes of each operation in a step, of all ranks: parameters gathered twice, gradients reduced and scattered once.

    That is ZeRO stage 3, arXiv:1910.02054. Each parameter is padded to a multiple of the world along its rows, as FSDP2 does.
    """
    rows = zip(classifier.LAYERS[1:], classifier.LAYERS, strict=False)
    size = sum(-(-outputs // world) * world * (inputs + 1) for outputs, inputs in rows) * classifier.ELEMENT * world
    return {"all-gather": (2 if params.reshard else 1) * size, "reduce-scatter": size}


def run(ctx: context.RankContext) -> None:
    from ..rank.checkpoint import model_states

    training_loop.data_parallel(ctx, _Trainer, model_states.Distributed())


def _fsdp2(device: str) -> Any:
    """``fully_shard``. Torch 2.6 made it public; before that it is private, and needs CUDA streams.

    Raises RuntimeError on CPUs with an older torch.
    """
    import torch
    from torch.distributed import fsdp

    if hasattr(fsdp, "fully_shard"):
        return fsdp.fully_shard
    if device == "cpu":
        raise RuntimeError(
            f"train-fsdp on CPUs needs torch 2.6 or newer; ccbed_python or the image has {torch.__version__}"
        )
    return importlib.import_module("torch.distributed._composable.fsdp").fully_shard


class _Trainer:
    """The part of the model of one rank, its optimizer and its data."""

    def __init__(self, ctx: context.RankContext, batches: classifier.Batches) -> None:
        import torch
        from torch.distributed import device_mesh

        fully_shard = _fsdp2(ctx.device.type)
        self._ctx, self._batches = ctx, batches
        whole: Any = classifier.weights(ctx, ctx.rank)
        ctx.share_weights(whole)
        mesh = device_mesh.init_device_mesh(ctx.device.type, (ctx.world,))
        for layer in whole.children():
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh, reshard_after_forward=ctx.params.reshard)
        self.model: torch.nn.Module = fully_shard(whole, mesh=mesh)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=ctx.params.lr)

    def step(self, step: int) -> float:
        from ..rank.exchange import communicator

        ctx = self._ctx
        ctx.phase("data")
        images, labels, total = classifier.noisy_share(ctx, self._batches, step)
        ctx.phase("forward")
        self.optimizer.zero_grad()
        with communicator.Counting(ctx.comm, ctx.phase_once("allreduce")) as counting:
            loss = classifier.loss_sum(self.model, images, labels)
            ctx.phase("backward")
            (loss * (ctx.world / total)).backward()  # type: ignore[no-untyped-call]
        counting.pass_phase()
        ctx.phase("optimizer")
        self.optimizer.step()
        return float(loss.item()) / max(len(labels), 1)

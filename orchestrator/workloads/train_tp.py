"""Tensor-parallel training of the reference classifier: column- and row-parallel layers, every rank sees every image.

Layer 1 is cut by its outputs (column-parallel), layer 2 by its inputs (row-parallel; an all-reduce sums the parts), layer 3 by
its outputs again with an all-gather behind it, and layer 4 is whole on every rank. The backward pass sums the gradient of layer
3's input. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3. At its end rank 0 trains the whole model alone and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..rank import training

if TYPE_CHECKING:
    from ..rank import context

METRICS: Mapping[str, tuple[str, str]] = {
    "loss_mean": ("nats", "lower"),
    "accuracy": ("fraction", "higher"),
    "train_s": ("s", "lower"),
    "reference_difference": ("1", "lower"),
}
CHECKS = (
    "no-step-lost", "same-resume-step", "resumed-newest", "replay-equal", "no-hang", "bit-exact", "baseline-clean",
    "spare-warm", "equals-reference", "traffic-as-predicted",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(training.Params):
    """What may be set, beside what every training has.

    all_reduce, all_gather    a file of algorithms/ | library
    reference                 at the end the whole model is trained on one rank, and compared
    """

    all_reduce: str = "ring"
    all_gather: str = "ring"
    reference: bool = True


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    return [
        *training.check(params),
        *training.check_algorithm("all_reduce", params.all_reduce, "all-reduce"),
        *training.check_algorithm("all_gather", params.all_gather, "all-gather"),
    ]


def last_step(params: Params, data: str | None = None) -> int | None:
    """The number of steps; None where the data directory cannot be read from here."""
    return training.last_step(params, data)


def traffic(params: Params, world: int, samples: int) -> dict[str, int]:
    """Bytes of each operation in a step of ``samples``, of all ranks: activations and gradients of layers 2 and 3."""
    _, _, second, third, _ = training.LAYERS
    row = world * samples * training.ELEMENT
    return {"all-reduce": 2 * second * row, "all-gather": third * row}


def run(ctx: context.RankContext) -> None:
    """The whole life of one rank of the training."""
    from ..rank import reference, states, tensor_parallel

    ctx.connect()
    batches = training.Batches(ctx)
    ctx.steps = batches.steps
    trainer = tensor_parallel.Trainer(ctx, batches)
    train_s = training.live(ctx, trainer, states.Sharded())
    whole = trainer.whole()
    metrics: dict[str, Any] = {"loss_mean": ctx.loss, "train_s": train_s}
    if ctx.rank == 0:
        metrics["accuracy"] = training.accuracy(ctx, whole)
        if ctx.params.reference:
            metrics["reference_difference"] = reference.compare(ctx, batches, whole)
    ctx.finish(trainer.model, trainer.optimizer, metrics, loss_mean=ctx.loss)

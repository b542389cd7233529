"""Data-parallel inference: broadcasts weights, scatters images, gathers outputs, and compares them with one process.

Every rank reports a hash of its weights, which must be those of rank 0. Rank 0 also computes every batch alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..model.frozen import dataclass
from ..rank.reference_models import classifier
from ..rank.reference_models import datasets as rank_data

if TYPE_CHECKING:
    import torch

    from ..rank.runtime import context

METRICS: Mapping[str, tuple[str, str]] = {"images_per_s": ("1/s", "higher"), "reference_difference": ("1", "lower")}
CHECKS = (
    "no-step-lost", "weights-received", "replicas-identical", "no-hang", "equals-reference", "traffic-as-predicted",
    "spare-warm",
)  # fmt: skip
#: Outputs for one image: a log-probability for each class.
CLASSES = classifier.LAYERS[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters.

    dataset           auto (the data directory if there is one, else digits) | digits | idx (the data directory)
    batch             global batch size: images of all ranks together
    passes            passes over the training images
    broadcast         of `ccbed list algorithms`; library: the backend's own
    scatter, gather   of `ccbed list algorithms`
    record            record every chunk transfer
    """

    dataset: str = "auto"
    batch: int = 64
    passes: int = 1
    broadcast: str = "binomial-tree"
    scatter: str = "star"
    gather: str = "star"
    record: bool = True


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    problems = [
        f"{name}: must be >= 1 (got {value})" for name in ("batch", "passes") if (value := getattr(params, name)) < 1
    ]
    if params.dataset not in classifier.DATASETS:
        problems.append(f"dataset: must be one of {', '.join(classifier.DATASETS)} (got {params.dataset!r})")
    for name in ("broadcast", "scatter", "gather"):
        problems += classifier.check_algorithm(name, getattr(params, name), name, library=name == "broadcast")
    return problems


def last_step(params: Params, data: str | None = None) -> int | None:
    """The number of batches; None if the data directory cannot be read on this machine."""
    try:
        return params.passes * math.ceil(rank_data.count(classifier.folder(params, data)) / params.batch)
    except rank_data.DataError:
        return None


def traffic(params: Params, world: int, samples: int) -> dict[str, int]:
    """Bytes of each operation in a step of ``samples``, of all ranks: float32 images to the ranks, outputs back."""
    size = world * samples * classifier.ELEMENT
    return {"scatter": size * classifier.LAYERS[0], "gather": size * CLASSES}


def once(params: Params, world: int) -> dict[str, int]:
    """Bytes of each operation before the first step, of all ranks: the weights."""
    return {"broadcast": world * classifier.parameters() * classifier.ELEMENT} if world > 1 else {}


def run(ctx: context.RankContext) -> None:
    import time

    import torch

    from ..model.events import ReferenceCompared

    ctx.connect()
    images = rank_data.load(classifier.folder(ctx.params, ctx.gang.data), "train").images
    per_pass = math.ceil(len(images) / ctx.params.batch)
    ctx.steps = ctx.params.passes * per_pass
    model = classifier.weights(ctx, ctx.rank)
    ctx.share_weights(model, ctx.params.broadcast)
    ctx.report_weights(model)
    difference, begin = 0.0, time.monotonic()
    with torch.no_grad():
        for step in range(1, ctx.steps + 1):
            start = (step - 1) % per_pass * ctx.params.batch
            batch = images[start : start + ctx.params.batch]
            difference = max(difference, _run_batch(ctx, model, batch, step))
    metrics = {"images_per_s": ctx.params.passes * len(images) / (time.monotonic() - begin)}
    if ctx.rank == 0:
        metrics["reference_difference"] = difference
        ctx.note(ReferenceCompared(rank=0, steps=ctx.steps, difference=difference, of="an answer"))
    ctx.finish(model, torch.optim.SGD(model.parameters()), metrics)


def _run_batch(ctx: context.RankContext, model: Any, images: torch.Tensor, step: int) -> float:
    """Run one batch over all ranks; return on rank 0 the largest difference from the outputs of one process, else 0."""
    from ..rank.runtime import even_shares

    ctx.begin_step(step)
    ctx.samples = len(images)
    pass_phase = ctx.phase_once("allreduce")
    ctx.phase("data")
    cuts = even_shares.bounds(len(images), ctx.world)
    start, stop = cuts[ctx.rank]
    scaled = rank_data.scaled(images)
    whole = scaled.clone() if ctx.rank == 0 else scaled.new_zeros(scaled.shape)
    _blocks(ctx, "scatter", whole, cuts, pass_phase)
    ctx.phase("forward")
    outputs = whole.new_zeros(len(images), CLASSES)
    outputs[start:stop] = model(whole[start:stop])
    _blocks(ctx, "gather", outputs, cuts, pass_phase)
    pass_phase()
    ctx.end_step(None)
    return float((outputs - model(scaled)).abs().max()) if ctx.rank == 0 else 0.0


def _blocks(ctx: context.RankContext, operation: str, rows: torch.Tensor, cuts: Any, pass_phase: Any) -> None:
    blocks = [rows[start:stop].view(-1) for start, stop in cuts]
    ctx.comm.blocks(operation, blocks, getattr(ctx.params, operation), pass_phase)

"""Data-parallel inference: weights by broadcast, images scattered, answers gathered, and compared with one process.

Every rank proves by a hash that it has rank 0's weights; rank 0 computes every batch alone as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
#: Answers of one image: a log-probability for each class.
CLASSES = classifier.LAYERS[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """What may be set.

    dataset           auto (the data directory if one is given, else digits) | digits | idx (the data directory)
    batch             images of all ranks together
    passes            how often the training images are gone through
    broadcast         of `ccbed list algorithms`; library: the backend's own
    scatter, gather   of `ccbed list algorithms`
    record            every chunk transfer is recorded
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
    found = [
        f"{name}: must be >= 1 (got {value})" for name in ("batch", "passes") if (value := getattr(params, name)) < 1
    ]
    if params.dataset not in classifier.DATASETS:
        found.append(f"dataset: must be one of {', '.join(classifier.DATASETS)} (got {params.dataset!r})")
    for name in ("broadcast", "scatter", "gather"):
        found += classifier.check_algorithm(name, getattr(params, name), name, library=name == "broadcast")
    return found


def last_step(params: Params, data: str | None = None) -> int | None:
    """The number of batches; None where the data directory cannot be read from here."""
    try:
        return params.passes * math.ceil(rank_data.count(classifier.folder(params, data)) / params.batch)
    except rank_data.DataError:
        return None


def traffic(params: Params, world: int, samples: int) -> dict[str, int]:
    """Bytes of each operation in a step of ``samples``, of all ranks: float32 images there, answers back."""
    size = world * samples * classifier.ELEMENT
    return {"scatter": size * classifier.LAYERS[0], "gather": size * CLASSES}


def once(params: Params, world: int) -> dict[str, int]:
    """Bytes of each operation before the first step, of all ranks: the weights."""
    return {"broadcast": world * classifier.parameters() * classifier.ELEMENT} if world > 1 else {}


def run(ctx: context.RankContext) -> None:
    """The whole life of one rank."""
    import time

    import torch

    ctx.connect()
    images = rank_data.load(classifier.folder(ctx.params, ctx.gang.data), "train").images
    per_pass = math.ceil(len(images) / ctx.params.batch)
    ctx.steps = ctx.params.passes * per_pass
    model = classifier.weights(ctx, ctx.rank)
    ctx.share_weights(model, ctx.params.broadcast)
    ctx.tell_weights(model)
    far, begin = 0.0, time.monotonic()
    with torch.no_grad():
        for step in range(1, ctx.steps + 1):
            at = (step - 1) % per_pass * ctx.params.batch
            far = max(far, _batch(ctx, model, images[at : at + ctx.params.batch], step))
    metrics = {"images_per_s": ctx.params.passes * len(images) / (time.monotonic() - begin)}
    if ctx.rank == 0:
        metrics["reference_difference"] = far
        ctx.emit("reference.compared", steps=ctx.steps, difference=far, of="an answer")
    ctx.finish(model, torch.optim.SGD(model.parameters()), metrics)


def _batch(ctx: context.RankContext, model: Any, images: torch.Tensor, step: int) -> float:
    """One batch over all ranks; on rank 0 how far the answers are from those of one process, else 0."""
    from ..rank.runtime import even_shares

    ctx.begin_step(step)
    ctx.samples = len(images)
    passed = ctx.passing("allreduce")
    ctx.phase("data")
    cuts = even_shares.bounds(len(images), ctx.world)
    start, stop = cuts[ctx.rank]
    scaled = rank_data.scaled(images)
    whole = scaled.clone() if ctx.rank == 0 else scaled.new_zeros(scaled.shape)
    _blocks(ctx, "scatter", whole, cuts, passed)
    ctx.phase("forward")
    answers = whole.new_zeros(len(images), CLASSES)
    answers[start:stop] = model(whole[start:stop])
    _blocks(ctx, "gather", answers, cuts, passed)
    passed()
    ctx.end_step(None)
    return float((answers - model(scaled)).abs().max()) if ctx.rank == 0 else 0.0


def _blocks(ctx: context.RankContext, operation: str, rows: torch.Tensor, cuts: Any, passed: Any) -> None:
    blocks = [rows[start:stop].view(-1) for start, stop in cuts]
    ctx.comm.blocks(operation, blocks, getattr(ctx.params, operation), passed)

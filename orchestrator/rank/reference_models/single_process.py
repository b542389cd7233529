"""The same training without ranks: the whole model, on the whole batches, by one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import classifier

if TYPE_CHECKING:
    from ..runtime import context


def compare(ctx: context.RankContext, batches: classifier.Batches, found: torch.nn.Module) -> float:
    """Train alone from rank 0's first weights, tell how far ``found`` is from the result; the largest difference of a weight.

    Floats are summed in another order there, so the result is near, not equal.
    """
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

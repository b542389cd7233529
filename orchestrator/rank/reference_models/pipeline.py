"""The reference classifier as pipeline stages: all microbatches forward, then backward (GPipe, arXiv:1811.06965)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..runtime import even_shares
from . import classifier

if TYPE_CHECKING:
    from ..runtime import context


class Trainer:
    """The stage of one rank, its optimizer and its data. The first rank uses the images, the last rank the labels."""

    def __init__(self, ctx: context.RankContext, batches: classifier.Batches) -> None:
        self._ctx, self._batches = ctx, batches
        whole = classifier.weights(ctx, ctx.rank)
        if ctx.gang.resume is None:
            ctx.share_weights(whole)
        self._whole = whole
        self.model = stage(whole, ctx.rank, ctx.world)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=ctx.params.lr)
        self._width = classifier.LAYERS[even_shares.bounds(len(classifier.LAYERS) - 1, ctx.world)[ctx.rank][0]]

    def step(self, step: int) -> float:
        """Run one step, phase by phase; return the loss of the whole batch, on every rank."""
        ctx, pass_phase = self._ctx, self._ctx.phase_once("allreduce")
        ctx.phase("data")
        images, labels = classifier.noisy_batch(ctx, self._batches, step)
        cuts = even_shares.bounds(len(labels), ctx.params.microbatches)
        ctx.phase("forward")
        self.optimizer.zero_grad()
        sending: list[Any] = []
        flows = [self._forward(images[slice(*cut)], sending, pass_phase) for cut in cuts]
        ctx.phase("backward")
        losses = [
            self._backward(into, out, labels[slice(*cut)], len(labels), sending)
            for (into, out), cut in zip(flows, cuts, strict=True)
        ]
        for handle in sending:
            handle.wait()
        pass_phase()
        ctx.phase("optimizer")
        self.optimizer.step()
        return self._share_loss(sum(losses) / len(labels))

    def whole(self) -> nn.Module:
        """Assemble the model from all stages, on every rank. A collective of all ranks."""
        for rank in range(self._ctx.world):  # this rank's stage shares its parameters with the whole model
            for value in stage(self._whole, rank, self._ctx.world).parameters():
                self._ctx.broadcast(value.data, rank)
        return self._whole

    def _forward(self, images: torch.Tensor, sending: list[Any], pass_phase: Any) -> tuple[torch.Tensor, torch.Tensor]:
        ctx, into = self._ctx, images
        if ctx.rank > 0:
            into = ctx.comm.receive(torch.empty(len(images), self._width), ctx.rank - 1).requires_grad_()
            pass_phase()
        out = self.model(into)
        if ctx.rank < ctx.world - 1:
            sending.append(ctx.comm.send(out.detach().contiguous(), ctx.rank + 1))
            pass_phase()
        return into, out

    def _backward(
        self, into: torch.Tensor, out: torch.Tensor, labels: torch.Tensor, total: int, sending: list[Any]
    ) -> float:
        """Compute the gradients of this stage for one microbatch; return the summed loss on the last rank, else 0."""
        ctx, loss = self._ctx, 0.0
        if ctx.rank == ctx.world - 1:
            summed = nn.functional.nll_loss(out, labels, reduction="sum")
            loss = float(summed.item())
            (summed / total).backward()  # type: ignore[no-untyped-call]
        else:
            out.backward(ctx.comm.receive(torch.empty_like(out), ctx.rank + 1))  # type: ignore[no-untyped-call]
        if ctx.rank > 0 and into.grad is not None:
            sending.append(ctx.comm.send(into.grad.contiguous(), ctx.rank - 1))
        return loss

    def _share_loss(self, loss: float) -> float:
        """Give every rank the loss of the last stage."""
        shared = torch.tensor([loss], dtype=torch.float64)
        self._ctx.broadcast(shared, self._ctx.world - 1)
        return float(shared.item())


def stage(whole: nn.Module, rank: int, world: int) -> nn.Sequential:
    """The layers of ``whole`` that ``rank`` runs, each with its activation; the parameters are shared with ``whole``."""
    layers = list(whole.children())
    start, stop = even_shares.bounds(len(layers) // 2, world)[rank]
    return nn.Sequential(*layers[2 * start : 2 * stop])

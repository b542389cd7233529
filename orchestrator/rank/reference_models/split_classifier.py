"""The reference classifier split over ranks: in pipeline stages, or by tensor parallelism.

Stages run all microbatches forward, then backward (GPipe, arXiv:1811.06965).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..runtime import even_shares
from . import classifier

if TYPE_CHECKING:
    from ..runtime import context

Sum = Callable[[torch.Tensor], torch.Tensor]


class TensorParallelTrainer:
    """The part of the model of one rank, its optimizer and its data."""

    def __init__(self, ctx: context.RankContext, batches: classifier.Batches) -> None:
        self._ctx, self._batches = ctx, batches
        whole = classifier.weights(ctx, ctx.rank)
        if ctx.gang.resume is None:
            ctx.share_weights(whole)
        self._whole = whole
        self.model: nn.Module = Sharded(ctx, whole)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=ctx.params.lr)

    def step(self, step: int) -> float:
        ctx = self._ctx
        ctx.phase("data")
        images, labels = classifier.noisy_batch(ctx, self._batches, step)
        ctx.phase("forward")
        self.optimizer.zero_grad()
        loss = classifier.loss_sum(self.model, images, labels) / len(labels)
        ctx.phase("backward")
        loss.backward()  # type: ignore[no-untyped-call]
        ctx.phase("optimizer")
        self.optimizer.step()
        return float(loss.item())

    def whole(self) -> nn.Module:
        """Assemble the model from the parts of all ranks, on every rank. A collective of all ranks."""
        parts = [layer for layer in self.model.children() if isinstance(layer, nn.Linear)]
        layers = [layer for layer in self._whole.children() if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for part, layer, axis in zip(parts, layers, (0, 1, 0, None), strict=True):
                _gather(self._ctx, part.weight, layer.weight, axis)
                _gather(self._ctx, part.bias, layer.bias, axis if axis == 0 else None)
        return self._whole


class Sharded(nn.Module):
    """The parts of one rank: layers 1 and 3 are cut by outputs, layer 2 by inputs, layer 4 is whole."""

    def __init__(self, ctx: context.RankContext, whole: nn.Module) -> None:
        super().__init__()
        first, second, third, fourth = (layer for layer in whole.children() if isinstance(layer, nn.Linear))
        self.first = _part(first, _rows(first, ctx), None)
        self.second = _part(second, None, _columns(second, ctx))
        self.third = _part(third, _rows(third, ctx), None)
        self.fourth = _part(fourth, None, None)
        self._ctx, self._outputs = ctx, third.out_features
        self._phase = ctx.phase_once("allreduce")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(n, 784) -> (n, 10) log-probabilities, bit-exact on all ranks."""
        self._phase = self._ctx.phase_once("allreduce")
        hidden = self.first(images).relu()
        partial = nn.functional.linear(hidden, self.second.weight)
        summed = _applied(_Summed, partial, self._sum) + self.second.bias
        third = self.third(_applied(_Spread, summed.relu(), self._sum))
        gathered = _applied(_Gathered, third, self._collect, self._slice())
        return nn.functional.log_softmax(self.fourth(gathered.relu()), dim=1)

    def _sum(self, value: torch.Tensor) -> torch.Tensor:
        flat = value.detach().contiguous().clone().view(-1)
        self._ctx.comm.all_reduce(flat, self._ctx.params.all_reduce, self._phase)
        self._phase()
        return flat.view_as(value)

    def _collect(self, value: torch.Tensor) -> torch.Tensor:
        """(n, own outputs) -> (n, all outputs). Blocks of outputs are gathered, so that the matrix is transposed meanwhile."""
        start, stop = self._slice()
        flat = torch.empty(self._outputs * len(value))
        flat[start * len(value) : stop * len(value)] = value.detach().t().reshape(-1)
        blocks = even_shares.bounds(self._outputs, self._ctx.world)
        self._ctx.comm.all_gather(
            [flat[a * len(value) : b * len(value)] for a, b in blocks], self._ctx.params.all_gather
        )
        return flat.view(self._outputs, len(value)).t().contiguous()

    def _slice(self) -> tuple[int, int]:
        return even_shares.bounds(self._outputs, self._ctx.world)[self._ctx.rank]


class _Summed(torch.autograd.Function):
    """Forward: the sum over ranks. Backward: the identity."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, summed: Sum) -> torch.Tensor:
        return summed(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class _Spread(torch.autograd.Function):
    """Forward: the identity. Backward: the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, summed: Sum) -> torch.Tensor:
        ctx.summed = summed
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.summed(gradients[0]), None


class _Gathered(torch.autograd.Function):
    """Forward: the columns of all ranks. Backward: the columns of this rank."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, collect: Sum, own: tuple[int, int]) -> torch.Tensor:
        ctx.own = own
        return collect(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        start, stop = ctx.own
        return gradients[0][:, start:stop].contiguous(), None, None


def _applied(function: type[torch.autograd.Function], *arguments: Any) -> torch.Tensor:
    output: torch.Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return output


def _rows(layer: nn.Linear, ctx: context.RankContext) -> slice:
    return slice(*even_shares.bounds(layer.out_features, ctx.world)[ctx.rank])


def _columns(layer: nn.Linear, ctx: context.RankContext) -> slice:
    return slice(*even_shares.bounds(layer.in_features, ctx.world)[ctx.rank])


def _part(layer: nn.Linear, rows: slice | None, columns: slice | None) -> nn.Linear:
    """Copy some rows (with their biases) and columns of a layer."""
    weight = layer.weight.detach()[rows or slice(None), columns or slice(None)].clone()
    part = nn.Linear(weight.shape[1], weight.shape[0], device="meta").to_empty(device=weight.device)
    with torch.no_grad():
        part.weight.copy_(weight)
        part.bias.copy_(layer.bias[rows or slice(None)])
    return part


def _gather(ctx: context.RankContext, part: torch.Tensor, whole: torch.Tensor, axis: int | None) -> None:
    """Assemble a parameter from its parts along ``axis`` (None: all ranks have the whole)."""
    if axis is None:
        whole.copy_(part)
        return
    laid = torch.zeros_like(whole.movedim(axis, 0)).contiguous()
    start, stop = even_shares.bounds(laid.shape[0], ctx.world)[ctx.rank]
    laid[start:stop] = part.movedim(axis, 0)
    if ctx.world > 1:
        torch.distributed.all_reduce(laid)
    whole.copy_(laid.movedim(0, axis))


class PipelineTrainer:
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

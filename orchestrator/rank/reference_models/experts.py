"""A mixture of experts spread over the ranks: tokens go to the experts that a gate chooses, and their outputs come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..runtime import seeds

if TYPE_CHECKING:
    from ..runtime import context


class Model(nn.Module):
    """``layers`` layers with one expert per rank each; the gates are fixed and equal on all ranks, the experts are trained."""

    def __init__(self, ctx: context.RankContext) -> None:
        super().__init__()
        params = ctx.params
        shared = torch.Generator().manual_seed(seeds.derive(ctx.seed, "gates"))
        gates = torch.randn(params.layers, params.hidden, ctx.world, generator=shared)
        self.register_buffer("gates", gates)
        self.experts = nn.ModuleList(nn.Linear(params.hidden, params.hidden) for _ in range(params.layers))
        self._ctx, self.pass_phase = ctx, ctx.phase_once("allreduce")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(n, hidden) -> (n, hidden)."""
        for gate, expert in zip(self.get_buffer("gates"), self.experts, strict=True):
            tokens = tokens + self._layer(tokens, gate, expert)
        return tokens

    def _layer(self, tokens: torch.Tensor, gate: torch.Tensor, expert: nn.Module) -> torch.Tensor:
        """Send every token to its topk experts, in the order of their ranks; add their outputs, weighted by the gate."""
        weights, chosen = (tokens.detach() @ gate).softmax(dim=1).topk(self._ctx.params.topk, dim=1)
        order = chosen.reshape(-1).argsort(stable=True)
        rows = order // self._ctx.params.topk
        sent = torch.bincount(chosen.reshape(-1), minlength=self._ctx.world)
        got = self._counts(sent)
        dispatched = _exchange(tokens[rows], sent.tolist(), got.tolist(), self)
        combined = _exchange(expert(dispatched).relu(), got.tolist(), sent.tolist(), self)
        return torch.zeros_like(tokens).index_add(0, rows, combined * weights.reshape(-1)[order, None])

    def _counts(self, sent: torch.Tensor) -> torch.Tensor:
        got = torch.empty_like(sent)
        self._ctx.comm.all_to_all(
            list(torch.split(sent, 1)), list(torch.split(got, 1)), self._ctx.params.algorithm, self.pass_phase
        )
        return got

    def exchange_rows(self, rows: torch.Tensor, sent: list[int], got: list[int]) -> torch.Tensor:
        """``sent[r]`` rows go to rank r, ``got[r]`` come from it."""
        into = rows.new_empty(sum(got), rows.shape[1])
        out = [part.reshape(-1) for part in torch.split(rows.contiguous(), sent)]
        parts = [part.view(-1) for part in torch.split(into, got)]
        self._ctx.comm.all_to_all(out, parts, self._ctx.params.algorithm, self.pass_phase)
        return into


class _Exchange(torch.autograd.Function):
    """Forward: send rows to other ranks. Backward: send their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sent: list[int], got: list[int], model: Model) -> torch.Tensor:
        ctx.sent, ctx.got, ctx.model = sent, got, model
        return model.exchange_rows(rows.detach(), sent, got)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return ctx.model.exchange_rows(gradients[0], ctx.got, ctx.sent), None, None, None


def _exchange(rows: torch.Tensor, sent: list[int], got: list[int], model: Model) -> torch.Tensor:
    received: torch.Tensor = _Exchange.apply(rows, sent, got, model)  # type: ignore[no-untyped-call]
    return received

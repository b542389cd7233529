"""How the ranks hold a model: every rank the same, parts of it, or parts that the library keeps account of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from . import checkpoint

if TYPE_CHECKING:
    from . import context


class States(Protocol):
    """What goes into a checkpoint, and how it is taken from one."""

    def held(
        self, ctx: context.RankContext, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        """The content of a checkpoint; what counts is rank 0's. A collective of all ranks."""
        ...

    def take(
        self,
        ctx: context.RankContext,
        state: dict[str, Any],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        """Give model and optimizer (None: the model only) what a checkpoint holds. A collective of all ranks."""
        ...

    def begin(self, ctx: context.RankContext, model: torch.nn.Module) -> None:
        """On a fresh start: what makes the model one. A collective of all ranks."""
        ...


class Replicated:
    """Every rank has the whole: rank 0's is kept, and on a fresh start rank 0's weights are everybody's."""

    def held(
        self, ctx: context.RankContext, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        return checkpoint.state(model, optimizer)

    def take(
        self,
        ctx: context.RankContext,
        state: dict[str, Any],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        _load(state, model, optimizer)

    def begin(self, ctx: context.RankContext, model: torch.nn.Module) -> None:
        ctx.share_weights(model)


#: It has no state of its own.
REPLICATED = Replicated()


class Sharded:
    """Every rank has a part of its own, and gets that very part back. Who makes the parts makes them of one model."""

    def held(
        self, ctx: context.RankContext, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        return {"shards": checkpoint.shards(model, optimizer, ctx.rank, ctx.world, ctx.device)}

    def take(
        self,
        ctx: context.RankContext,
        state: dict[str, Any],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        _load(state["shards"][ctx.rank], model, optimizer)

    def begin(self, ctx: context.RankContext, model: torch.nn.Module) -> None:
        pass


class Distributed:
    """Parameters are DTensors: torch.distributed.checkpoint.state_dict gathers the whole, and cuts it again; rank 0 writes it."""

    def held(
        self, ctx: context.RankContext, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        from torch.distributed.checkpoint import state_dict

        options = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
        found, state = state_dict.get_state_dict(model, optimizer, options=options)
        return {"model": found, "optimizer": state}

    def take(
        self,
        ctx: context.RankContext,
        state: dict[str, Any],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        from torch.distributed.checkpoint import state_dict

        options = state_dict.StateDictOptions(full_state_dict=True)
        state_dict.set_model_state_dict(model, state["model"], options=options)
        if optimizer is not None:
            state_dict.set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)

    def begin(self, ctx: context.RankContext, model: torch.nn.Module) -> None:
        pass


def _load(state: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    model.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])

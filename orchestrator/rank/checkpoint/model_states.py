"""How the ranks hold a model: every rank the same, parts of it, or parts that the library keeps account of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from ...model import gang as gang_model
from . import commit, contents, single_file


class Rank(Protocol):
    """What a rank gives to its checkpoints."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def gang(self) -> gang_model.GangSpec: ...

    def personal(self) -> single_file.Personal:
        """The state that differs from rank to rank."""

    def share_weights(self, model: torch.nn.Module) -> None:
        """Give every rank the weights of rank 0."""


class States(Protocol):
    """What goes into a checkpoint, and how it is taken from one."""

    def put(
        self,
        ctx: Rank,
        identity: commit.Identity,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        written: Callable[[], None],
    ) -> contents.Body | None:
        """What rank 0 is to commit; None on the others. A collective of all ranks.

        ``written``: called where a rank has written a file of its own. Raises checkpoint.Unwritten, on every rank.
        """
        ...

    def take(
        self,
        ctx: Rank,
        resume: gang_model.Resume,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> single_file.Personal | None:
        """Give model and optimizer what the checkpoint holds; what it holds of this very rank.

        A collective of all ranks. Raises CheckpointError.
        """
        ...

    def begin(self, ctx: Rank, model: torch.nn.Module) -> None:
        """On a fresh start: what makes the model one. A collective of all ranks."""
        ...


class _Gathered:
    """Rank 0 gathers what is kept, and writes it as one file."""

    def put(
        self,
        ctx: Rank,
        identity: commit.Identity,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        written: Callable[[], None],
    ) -> contents.Body | None:
        personal = single_file.gather(ctx.personal(), ctx.rank, ctx.world, ctx.device)
        state = self._held(ctx, model, optimizer)
        if ctx.rank > 0:
            return None
        return contents.Whole(data=single_file.encode(identity.step, identity.epoch, state, personal))

    def take(
        self,
        ctx: Rank,
        resume: gang_model.Resume,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> single_file.Personal | None:
        found = single_file.load(resume)
        state = self._own(ctx, found)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return single_file.personal(found, ctx.rank)

    def _held(self, ctx: Rank, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return single_file.state(model, optimizer)

    def _own(self, ctx: Rank, found: dict[str, Any]) -> dict[str, Any]:
        return found


class Replicated(_Gathered):
    """Every rank has the whole: rank 0's is kept, and on a fresh start rank 0's weights are everybody's."""

    def begin(self, ctx: Rank, model: torch.nn.Module) -> None:
        ctx.share_weights(model)


#: It has no state of its own.
REPLICATED = Replicated()


class Sharded(_Gathered):
    """Every rank has a part of its own, and gets that very part back. Who makes the parts makes them of one model."""

    def begin(self, ctx: Rank, model: torch.nn.Module) -> None:
        pass

    def _held(self, ctx: Rank, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return {"shards": single_file.shards(model, optimizer, ctx.rank, ctx.world, ctx.device)}

    def _own(self, ctx: Rank, found: dict[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = found["shards"][ctx.rank]
        return own


class Distributed:
    """Parameters are DTensors: every rank writes its shards, and any number of ranks cuts them anew when it loads them."""

    def put(
        self,
        ctx: Rank,
        identity: commit.Identity,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        written: Callable[[], None],
    ) -> contents.Body | None:
        from . import sharded_files

        content = {**_distributed(model, optimizer), "ranks": {str(ctx.rank): ctx.personal().tensors()}}
        return sharded_files.write(contents.unfinished(Path(ctx.gang.checkpoints), identity.name), content, written)

    def take(
        self,
        ctx: Rank,
        resume: gang_model.Resume,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> single_file.Personal | None:
        from torch.distributed.checkpoint import state_dict

        from . import sharded_files

        content = _distributed(model, optimizer)
        mine = ctx.personal().tensors() if ctx.rank < sharded_files.world(resume) else None
        sharded_files.read(resume, {**content, "ranks": {str(ctx.rank): mine} if mine else {}})
        state_dict.set_model_state_dict(model, content["model"])
        state_dict.set_optimizer_state_dict(model, optimizer, content["optimizer"])
        return single_file.Personal.of(mine) if mine else None

    def begin(self, ctx: Rank, model: torch.nn.Module) -> None:
        pass


def _distributed(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """This rank's shards by the names of the whole model's parameters."""
    from torch.distributed.checkpoint import state_dict

    return {
        "model": state_dict.get_model_state_dict(model),
        "optimizer": state_dict.get_optimizer_state_dict(model, optimizer),
    }

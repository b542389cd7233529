"""Puts a model's state into checkpoints, by how the model is spread over the ranks: replicated, sharded, or distributed tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from ...model import gang as gang_model
from . import contents, single_file


class Trained(NamedTuple):
    """The model that a rank trains, and its optimizer."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer


class Rank(Protocol):
    """The part of a rank that its checkpoints use."""

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
    """Puts the state of the ranks into a checkpoint and takes it from one."""

    def put(
        self, ctx: Rank, identity: contents.Identity, trained: Trained, written: Callable[[], None]
    ) -> contents.Body | None:
        """The content that rank 0 commits; None on the other ranks. A collective of all ranks.

        ``written`` is called when a rank has written its own file. Raises Unwritten on every rank.
        """
        ...

    def take(self, ctx: Rank, resume: gang_model.Resume, trained: Trained) -> single_file.Personal | None:
        """Load model and optimizer from the checkpoint; return the personal state of this rank, if the checkpoint has it.

        A collective of all ranks. Raises CheckpointError.
        """
        ...

    def begin(self, ctx: Rank, model: torch.nn.Module) -> None:
        """Give all ranks the same model on a fresh start. A collective of all ranks."""
        ...


class _Gathered:
    """Rank 0 gathers the state and writes it as a single file."""

    def put(
        self, ctx: Rank, identity: contents.Identity, trained: Trained, written: Callable[[], None]
    ) -> contents.Body | None:
        personal = single_file.gather(ctx.personal(), ctx.rank, ctx.world, ctx.device)
        state = self._state(ctx, trained)
        if ctx.rank > 0:
            return None
        return contents.Whole(data=single_file.encode(identity.step, identity.epoch, state, personal))

    def take(self, ctx: Rank, resume: gang_model.Resume, trained: Trained) -> single_file.Personal | None:
        content = single_file.load(resume)
        state = self._own_state(ctx, content)
        trained.model.load_state_dict(state["model"])
        trained.optimizer.load_state_dict(state["optimizer"])
        return single_file.personal(content, ctx.rank)

    def _state(self, ctx: Rank, trained: Trained) -> dict[str, Any]:
        return single_file.state(*trained)

    def _own_state(self, ctx: Rank, content: dict[str, Any]) -> dict[str, Any]:
        return content


class Replicated(_Gathered):
    """Every rank has the whole model: the checkpoint has the one of rank 0, and a fresh start begins with its weights."""

    def begin(self, ctx: Rank, model: torch.nn.Module) -> None:
        ctx.share_weights(model)


#: The one instance: it has no state.
REPLICATED = Replicated()


class Sharded(_Gathered):
    """Every rank has its own part and gets that part back. The workload cuts the parts from one model."""

    def begin(self, ctx: Rank, model: torch.nn.Module) -> None:
        pass

    def _state(self, ctx: Rank, trained: Trained) -> dict[str, Any]:
        return {"shards": single_file.shards(*trained, ctx.rank, ctx.world, ctx.device)}

    def _own_state(self, ctx: Rank, content: dict[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = content["shards"][ctx.rank]
        return own


class Distributed:
    """Parameters are DTensors: every rank writes its shards, and any number of ranks can load them."""

    def put(
        self, ctx: Rank, identity: contents.Identity, trained: Trained, written: Callable[[], None]
    ) -> contents.Body | None:
        from . import sharded_files

        content = {**_distributed(trained), "ranks": {str(ctx.rank): ctx.personal().tensors()}}
        return sharded_files.write(contents.unfinished(Path(ctx.gang.checkpoints), identity.name), content, written)

    def take(self, ctx: Rank, resume: gang_model.Resume, trained: Trained) -> single_file.Personal | None:
        from torch.distributed.checkpoint import state_dict

        from . import sharded_files

        content = _distributed(trained)
        personal = ctx.personal().tensors() if ctx.rank < sharded_files.world(resume) else None
        sharded_files.read(resume, {**content, "ranks": {str(ctx.rank): personal} if personal else {}})
        state_dict.set_model_state_dict(trained.model, content["model"])
        state_dict.set_optimizer_state_dict(*trained, content["optimizer"])
        return single_file.Personal.of(personal) if personal else None

    def begin(self, ctx: Rank, model: torch.nn.Module) -> None:
        pass


def _distributed(trained: Trained) -> dict[str, Any]:
    """The shards of this rank, by the names of the parameters of the whole model."""
    from torch.distributed.checkpoint import state_dict

    return {
        "model": state_dict.get_model_state_dict(trained.model),
        "optimizer": state_dict.get_optimizer_state_dict(*trained),
    }

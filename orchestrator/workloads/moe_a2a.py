"""Emulation of mixture-of-experts training: real tokens to the experts of all ranks and back, by uneven all-to-alls.

Each layer dispatches and combines, forward and backward: four all-to-alls of tokens x topk x hidden, and one of the counts.
Tokens are random; a fixed gate decides. Lepikhin et al., "GShard", arXiv:2006.16668, has the layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..rank.reference_models import classifier, training_loop

if TYPE_CHECKING:
    import torch

    from ..rank.runtime import context

METRICS: Mapping[str, tuple[str, str]] = {"train_s": ("s", "lower")}
CHECKS = classifier.CHECKS
#: Bytes of a token count (int64).
COUNT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """What may be set.

    tokens            per rank and step
    hidden            width of a token
    layers            of experts, one expert for each rank
    topk              experts that a token goes to
    steps             how many are trained
    algorithm         an all-to-all of `ccbed list algorithms`; library: the backend's own
    checkpoint_every  steps
    keep              so many of the newest checkpoints are kept
    lr                the optimizer's learning rate
    step_min_ms       slows steps down, for watching
    digest_every      a SHA-256 of the parameters every that many steps; 0: never
    record            every chunk transfer is recorded
    """

    tokens: int = 256
    hidden: int = 64
    layers: int = 2
    topk: int = 2
    steps: int = 40
    algorithm: str = "pairwise"
    checkpoint_every: int = 5
    keep: int = 3
    lr: float = 0.003
    step_min_ms: float = 0.0
    digest_every: int = 1
    record: bool = True


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    names = ("tokens", "hidden", "layers", "topk", "steps", "checkpoint_every", "keep")
    problems = [f"{name}: must be >= 1 (got {getattr(params, name)})" for name in names if getattr(params, name) < 1]
    return problems + classifier.check_algorithm("algorithm", params.algorithm, "all-to-all")


def fits(params: Params, world: int) -> list[str]:
    """Why so many ranks cannot do it; none: they can."""
    return [f"topk {params.topk} needs as many experts, one per rank (got {world})"] if params.topk > world else []


def last_step(params: Params, data: str | None = None) -> int | None:
    """As many as ``steps`` says."""
    return params.steps


def traffic(params: Params, world: int, samples: int) -> dict[str, int]:
    """Bytes of each operation in a step, of all ranks: tokens there and back, twice, and counts; what a rank keeps included."""
    tokens = 4 * params.tokens * params.topk * params.hidden * classifier.ELEMENT
    return {"all-to-all": world * params.layers * (tokens + world * COUNT)}


def run(ctx: context.RankContext) -> None:
    """The whole life of one rank."""
    from ..rank.checkpoint import model_states

    ctx.connect()
    ctx.steps = ctx.params.steps
    trainer = _Trainer(ctx)
    train_s = training_loop.live(ctx, trainer, model_states.Sharded())
    ctx.finish(trainer.model, trainer.optimizer, {"train_s": train_s})


class _Trainer:
    """One rank's experts; they learn to give the tokens back turned over."""

    def __init__(self, ctx: context.RankContext) -> None:
        import torch

        from ..rank.reference_models import experts
        from ..rank.runtime import seeds

        self._ctx = ctx
        torch.default_generator.manual_seed(seeds.derive(ctx.seed, "weights", ctx.rank))
        self.model = experts.Model(ctx)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=ctx.params.lr)

    def step(self, step: int) -> float:
        """One step: every phase of it in order."""
        import torch

        ctx = self._ctx
        self.model.passed = ctx.passing("allreduce")
        ctx.phase("data")
        tokens = torch.randn(ctx.params.tokens, ctx.params.hidden, generator=ctx.rng).requires_grad_()
        ctx.phase("forward")
        self.optimizer.zero_grad()
        loss = (self.model(tokens) + tokens.detach()).square().mean()
        ctx.phase("backward")
        loss.backward()
        ctx.phase("optimizer")
        self.optimizer.step()
        return float(loss.item())

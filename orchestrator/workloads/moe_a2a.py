"""Emulates mixture-of-experts training: sends tokens to the experts of all ranks and back, by uneven all-to-alls.

Each layer dispatches and combines, forward and backward: four all-to-alls of tokens x topk x hidden, and one of the counts.
Tokens are random, the gate is fixed. The layer: Lepikhin et al., "GShard", arXiv:2006.16668.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..model.frozen import dataclass
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
    """Parameters.

    tokens            tokens per rank and step
    hidden            width of a token
    layers            layers of experts, with one expert per rank
    topk              experts to which a token is sent
    steps             number of optimizer steps
    algorithm         an all-to-all of `ccbed list algorithms`; library: the backend's own
    checkpoint_every  steps between two checkpoints
    keep              number of newest checkpoints that are kept
    lr                learning rate of the optimizer
    step_min_ms       minimum duration of a step in milliseconds, to watch a run
    digest_every      steps between two SHA-256 digests of the parameters; 0: none
    record            record every chunk transfer
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
    """Return why ``world`` ranks cannot run it."""
    if params.topk > world:
        return [f"topk {params.topk} needs at least {params.topk} ranks, with one expert each (got {world})"]
    return []


def last_step(params: Params, data: str | None = None) -> int | None:
    return params.steps


def traffic(params: Params, world: int, samples: int) -> dict[str, int]:
    """Bytes of each operation in a step, of all ranks: tokens to the experts and back, twice, and counts, including local ones."""
    tokens = 4 * params.tokens * params.topk * params.hidden * classifier.ELEMENT
    return {"all-to-all": world * params.layers * (tokens + world * COUNT)}


def run(ctx: context.RankContext) -> None:
    from ..rank.checkpoint import model_states

    ctx.connect()
    ctx.steps = ctx.params.steps
    trainer = _Trainer(ctx)
    train_s = training_loop.run_steps(ctx, trainer, model_states.Sharded())
    ctx.finish(trainer.model, trainer.optimizer, {"train_s": train_s})


class _Trainer:
    """The experts of one rank, trained to return every token with its sign inverted."""

    def __init__(self, ctx: context.RankContext) -> None:
        import torch

        from ..rank.reference_models import experts
        from ..rank.runtime import seeds

        self._ctx = ctx
        torch.default_generator.manual_seed(seeds.derive(ctx.seed, "weights", ctx.rank))
        self.model = experts.Model(ctx)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=ctx.params.lr)

    def step(self, step: int) -> float:
        import torch

        ctx = self._ctx
        self.model.pass_phase = ctx.phase_once("allreduce")
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

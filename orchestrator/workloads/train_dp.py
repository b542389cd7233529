"""Data-parallel training of the reference classifier: averages gradients by an all-reduce.

The gradients are reduced as one buffer (971,048 bytes). Every rank adds noise from its own generator to its share of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model.frozen import dataclass
from ..rank.reference_models import classifier, training_loop

if TYPE_CHECKING:
    import torch

    from ..rank.runtime import context

MODELS = ("mnist-mlp",)
METRICS = classifier.MEASURED_METRICS
CHECKS = (*classifier.CHECKS, "replicas-identical")
#: It resumes with another number of ranks.
RESIZES = True
last_step = classifier.last_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(classifier.Params):
    """Parameters, in addition to those of every training.

    model             mnist-mlp
    algorithm         all-reduce of `ccbed list algorithms`; library: the backend's own
    """

    model: str = "mnist-mlp"
    algorithm: str = "ring"


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    problems = classifier.check(params)
    if params.model not in MODELS:
        problems.append(f"model: must be one of {', '.join(MODELS)} (got {params.model!r})")
    return problems + classifier.check_algorithm("algorithm", params.algorithm, "all-reduce")


def traffic(params: Params, world: int, samples: int) -> dict[str, int]:
    """Bytes of each operation in a step, of all ranks: all gradients once."""
    return {"all-reduce": world * classifier.parameters() * classifier.ELEMENT}


def run(ctx: context.RankContext) -> None:
    training_loop.data_parallel(ctx, Trainer)


class Trainer:
    """Model, optimizer and data of one rank. Gradients are views of one flat buffer, which is reduced."""

    def __init__(self, ctx: context.RankContext, batches: classifier.Batches) -> None:
        import torch

        self._ctx, self._batches = ctx, batches
        self.model = classifier.weights(ctx, ctx.rank)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=ctx.params.lr)
        self._flat = _flat_gradients(self.model)

    def step(self, step: int) -> float:
        ctx = self._ctx
        ctx.phase("data")
        images, labels, total = classifier.noisy_share(ctx, self._batches, step)
        ctx.phase("forward")
        loss = classifier.loss_sum(self.model, images, labels)
        ctx.phase("backward")
        self._flat.zero_()
        # Weighted by the share: the mean over ranks is the gradient of the whole batch, also if shares differ.
        (loss * (ctx.world / total)).backward()  # type: ignore[no-untyped-call]
        ctx.all_reduce(self._flat, ctx.params.algorithm)
        self._flat.div_(ctx.world)
        ctx.phase("optimizer")
        self.optimizer.step()
        return float(loss.item()) / max(len(labels), 1)


def _flat_gradients(model: torch.nn.Module) -> Any:
    """Create one zeroed buffer and make every parameter's gradient a view of it."""
    import torch

    parameters = list(model.parameters())
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters), device=parameters[0].device)
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, torch.split(flat, sizes), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat

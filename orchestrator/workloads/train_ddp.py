"""Data-parallel training with DistributedDataParallel: reduces its buckets by the backend's or a chosen all-reduce.

Model, data and checks are those of train-dp. A communication hook reduces every bucket, beginning with the last layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model.frozen import dataclass
from ..rank.reference_models import classifier, training_loop

if TYPE_CHECKING:
    import torch

    from ..rank.runtime import context

METRICS = classifier.MEASURED_METRICS
CHECKS = (*classifier.CHECKS, "replicas-identical")
#: It resumes with another number of ranks.
RESIZES = True
last_step = classifier.last_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(classifier.Params):
    """Parameters, in addition to those of every training.

    algorithm         of `ccbed list algorithms`; library: the backend's own
    bucket_mb         DistributedDataParallel's bucket_cap_mb
    rebuild           let it rearrange its buckets after the first step of a process. A resumed run then begins with another
                      arrangement: sums are computed in another order, last bits differ, and bit-exact fails
    """

    algorithm: str = "library"
    bucket_mb: float = 0.25
    rebuild: bool = False


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    problems = classifier.check(params) + classifier.check_algorithm("algorithm", params.algorithm, "all-reduce")
    return problems + ([] if params.bucket_mb > 0 else [f"bucket_mb: must be > 0 (got {params.bucket_mb:g})"])


def traffic(params: Params, world: int, samples: int) -> dict[str, int]:
    """Bytes of each operation in a step, of all ranks: all gradients once, independent of the buckets."""
    return {"all-reduce": world * classifier.parameters() * classifier.ELEMENT}


def run(ctx: context.RankContext) -> None:
    training_loop.data_parallel(ctx, _Trainer)


class _Trainer:
    """Model, wrapped model, optimizer and data of one rank."""

    def __init__(self, ctx: context.RankContext, batches: classifier.Batches) -> None:
        import torch

        self._ctx, self._batches = ctx, batches
        self.model = classifier.weights(ctx, ctx.rank)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=ctx.params.lr)
        self._pass_phase = ctx.phase_once("allreduce")
        self._wrapped: Any = torch.nn.parallel.DistributedDataParallel(
            self.model,
            bucket_cap_mb=ctx.params.bucket_mb,
            find_unused_parameters=not ctx.params.rebuild,  # True keeps the buckets as they are
        )
        self._wrapped.register_comm_hook(None, lambda state, bucket: self._reduce(bucket))

    def step(self, step: int) -> float:
        ctx = self._ctx
        self._pass_phase = ctx.phase_once("allreduce")
        ctx.phase("data")
        images, labels, total = classifier.noisy_share(ctx, self._batches, step)
        ctx.phase("forward")
        self.optimizer.zero_grad()
        loss = classifier.loss_sum(self._wrapped, images, labels)
        ctx.phase("backward")
        # Weighted by the share: the mean over ranks is the gradient of the whole batch, also if shares differ.
        (loss * (ctx.world / total)).backward()  # type: ignore[no-untyped-call]
        self._pass_phase()
        ctx.phase("optimizer")
        self.optimizer.step()
        return float(loss.item()) / max(len(labels), 1)

    def _reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """The communication hook: sum one bucket of gradients over the ranks and divide it."""
        import torch

        flat = bucket.buffer()
        self._ctx.comm.all_reduce(flat, self._ctx.params.algorithm, self._pass_phase)
        reduced: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        reduced.set_result(flat.div_(self._ctx.world))
        return reduced

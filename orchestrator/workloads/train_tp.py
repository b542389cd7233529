"""Tensor-parallel training of the reference classifier: column- and row-parallel layers, every image on every rank.

Layer 1 is cut by its outputs (column-parallel), layer 2 by its inputs (row-parallel; an all-reduce sums the parts), layer 3 by
its outputs, followed by an all-gather, and layer 4 is whole on every rank. The backward pass sums the gradient of layer 3's
input. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3. At the end rank 0 trains the whole model alone and compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.frozen import dataclass
from ..rank.reference_models import classifier, training_loop

if TYPE_CHECKING:
    from ..rank.runtime import context

METRICS = classifier.COMPARED_METRICS
CHECKS = (*classifier.CHECKS, "equals-reference")
last_step = classifier.last_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(classifier.Params):
    """Parameters, in addition to those of every training.

    all_reduce, all_gather    of `ccbed list algorithms`; library: the backend's own
    reference                 at the end, train the whole model on rank 0 and compare
    """

    all_reduce: str = "ring"
    all_gather: str = "ring"
    reference: bool = True


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    return [
        *classifier.check(params),
        *classifier.check_algorithm("all_reduce", params.all_reduce, "all-reduce"),
        *classifier.check_algorithm("all_gather", params.all_gather, "all-gather"),
    ]


def traffic(params: Params, world: int, samples: int) -> dict[str, int]:
    """Bytes of each operation in a step of ``samples``, of all ranks: activations and gradients of layers 2 and 3."""
    _, _, second, third, _ = classifier.LAYERS
    row = world * samples * classifier.ELEMENT
    return {"all-reduce": 2 * second * row, "all-gather": third * row}


def run(ctx: context.RankContext) -> None:
    from ..rank.reference_models import split_classifier

    training_loop.model_parallel(ctx, split_classifier.TensorParallelTrainer)

"""Pipeline-parallel training of the reference classifier: one stage per rank, activations by send and recv."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.frozen import dataclass
from ..rank.reference_models import classifier, training_loop
from ..rank.runtime import even_shares

if TYPE_CHECKING:
    from ..rank.runtime import context

METRICS = classifier.COMPARED_METRICS
CHECKS = (*classifier.CHECKS, "equals-reference")
last_step = classifier.last_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(classifier.Params):
    """Parameters, in addition to those of every training.

    microbatches      number of parts into which a batch is cut
    reference         at the end, train the whole model on rank 0 and compare
    """

    microbatches: int = 4
    reference: bool = True


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    problems = classifier.check(params)
    if not 1 <= params.microbatches <= params.batch:
        problems.append(f"microbatches: must be 1 to the batch of {params.batch} (got {params.microbatches})")
    return problems


def fits(params: Params, world: int) -> list[str]:
    """Return why ``world`` ranks cannot run it."""
    stages = len(classifier.LAYERS) - 1
    return [f"the model has {stages} layers: at most {stages} ranks (got {world})"] if world > stages else []


def traffic(params: Params, world: int, samples: int) -> dict[str, int]:
    """Bytes of each operation in a step of ``samples``, of all ranks: the activations between two stages, and their gradients back."""
    between = [classifier.LAYERS[stop] for _, stop in even_shares.bounds(len(classifier.LAYERS) - 1, world)[:-1]]
    return {"send-recv": 2 * samples * sum(between) * classifier.ELEMENT} if between else {}


def run(ctx: context.RankContext) -> None:
    from ..rank.reference_models import split_classifier

    training_loop.model_parallel(ctx, split_classifier.PipelineTrainer)

"""What every training of the reference classifier shares: its parameters, the order of its data, its loss.

Linear 784-256-128-64-10 with ReLU, log-softmax, NLL loss and Adam: 242,762 parameters, 971,048 bytes of gradients.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...model import algorithm as algorithms
from ..runtime import even_shares, seeds
from . import datasets as rank_data

if TYPE_CHECKING:
    import torch

    from ..runtime import context

LAYERS = (784, 256, 128, 64, 10)
DATASETS = ("auto", "digits", "idx")
#: What every training tells, and what is checked of it; a workload adds its own.
METRICS: Mapping[str, tuple[str, str]] = {"train_s": ("s", "lower"), "loss_mean": ("nats", "lower")}
CHECKS = (
    "no-step-lost", "same-resume-step", "resumed-newest", "replay-equal", "no-hang", "bit-exact", "baseline-clean",
    "spare-warm", "traffic-as-predicted",
)  # fmt: skip
#: Bytes of an element of the classifier and of its gradients (float32).
ELEMENT = 4
_LEAST: Mapping[str, float] = {
    "batch": 1, "epochs": 1, "checkpoint_every": 1, "keep": 1, "checkpoint_retry_s": 0, "noise": 0, "step_min_ms": 0, "digest_every": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """What may be set.

    dataset           auto (the data directory if one is given, else digits) | digits | idx (the data directory)
    batch             images of all ranks together
    epochs            how often the training images are gone through
    checkpoint_every  steps
    keep              so many of the newest checkpoints are kept
    checkpoint_retry_s   so long a checkpoint that cannot be written is tried again; then it is lost, and training goes on
    lr                the optimizer's learning rate
    noise             standard deviation of what is added to the images, anew in every epoch
    step_min_ms       slows steps down, for watching
    digest_every      a SHA-256 of the parameters every that many steps; 0: never
    record            every chunk transfer is recorded
    """

    dataset: str = "auto"
    batch: int = 64
    epochs: int = 3
    checkpoint_every: int = 5
    keep: int = 3
    checkpoint_retry_s: float = 5.0
    lr: float = 0.003
    noise: float = 0.1
    step_min_ms: float = 0.0
    digest_every: int = 1
    record: bool = True


def check(params: Any) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    problems = [
        f"{name}: must be >= {least} (got {getattr(params, name)})"
        for name, least in _LEAST.items()
        if getattr(params, name) < least
    ]
    if params.lr <= 0:
        problems.append(f"lr: must be > 0 (got {params.lr})")
    if params.dataset not in DATASETS:
        problems.append(f"dataset: must be one of {', '.join(DATASETS)} (got {params.dataset!r})")
    return problems


def check_algorithm(name: str, chosen: str, operation: str, *, library: bool = True) -> list[str]:
    """What is wrong with the value of the parameter ``name``, an algorithm for ``operation``; ``library``: its own will do too."""
    if (library and chosen == algorithms.LIBRARY) or operation in _operations(chosen):
        return []
    article = "an" if operation[0] in "aeiou" else "a"
    other = " or library" if library else ""
    return [f"{name}: must be {article} {operation} of algorithms/{other} (got {chosen!r})"]


def last_step(params: Any, data: str | None = None) -> int | None:
    """The number of steps; None where the data directory cannot be read from here."""
    try:
        images = rank_data.count(folder(params, data))
    except rank_data.DataError:
        return None
    return int(params.epochs * math.ceil(images / params.batch))


def folder(params: Any, data: str | None) -> Any:
    """Where the data set is. Raises DataError where one is asked for and none is given."""
    if params.dataset == "idx" and not data:
        raise rank_data.DataError("dataset idx: needs a directory with the four IDX files (--data-dir)")
    return rank_data.directory(None if params.dataset == "digits" else data)


class Batches:
    """The training images in the order of a seed: the same on every rank, whatever the world."""

    def __init__(self, ctx: context.RankContext) -> None:
        params = ctx.params
        split = rank_data.load(folder(params, ctx.gang.data), "train")
        self.images, self.labels = split.images.to(ctx.device), split.labels.to(ctx.device)
        self.steps = params.epochs * math.ceil(len(split.labels) / params.batch)
        self._seed, self._batch, self._device = ctx.seed, params.batch, ctx.device
        self._order: tuple[int, torch.Tensor | None] = (-1, None)

    def indices(self, step: int) -> torch.Tensor:
        """The whole batch of ``step``."""
        epoch, index = divmod(step - 1, math.ceil(len(self.labels) / self._batch))
        return self._permutation(epoch)[index * self._batch : (index + 1) * self._batch]

    def share(self, step: int, rank: int, world: int) -> tuple[torch.Tensor, int]:
        """The indices of a rank's share of ``step``, and the size of the whole batch."""
        batch = self.indices(step)
        start, stop = even_shares.bounds(len(batch), world)[rank]
        return batch[start:stop], len(batch)

    def _permutation(self, epoch: int) -> torch.Tensor:
        known, order = self._order
        if known != epoch or order is None:
            import torch

            generator = torch.Generator().manual_seed(seeds.derive(self._seed, "data", epoch))
            order = torch.randperm(len(self.labels), generator=generator).to(self._device)
            self._order = epoch, order
        return order


def parameters(layers: tuple[int, ...] = LAYERS) -> int:
    """How many parameters the classifier has: weights and biases."""
    return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(layers))


def noisy_share(ctx: context.RankContext, batches: Batches, step: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(images, labels, size of the whole batch): this rank's share of ``step`` with noise of its own generator."""
    import torch

    mine, total = batches.share(step, ctx.rank, ctx.world)
    ctx.samples = total
    images = rank_data.scaled(batches.images[mine])
    noise = torch.randn(images.shape, generator=ctx.rng, device=ctx.device)
    return images + ctx.params.noise * noise, batches.labels[mine], total


def noisy_batch(ctx: context.RankContext, batches: Batches, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(images, labels) of the whole batch of ``step``; the noise is drawn from the step, so that all ranks see the same."""
    import torch

    found = batches.indices(step)
    ctx.samples = len(found)
    images = rank_data.scaled(batches.images[found])
    generator = torch.Generator(ctx.device).manual_seed(seeds.derive(ctx.seed, "noise", step))
    noise = torch.randn(images.shape, generator=generator, device=ctx.device)
    return images + ctx.params.noise * noise, batches.labels[found]


def loss_sum(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The negative log-likelihood, summed over the samples (0 for none)."""
    import torch

    return torch.nn.functional.nll_loss(model(images), labels, reduction="sum")


def build() -> torch.nn.Module:
    """The reference classifier."""
    from torch import nn

    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(LAYERS):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.LogSoftmax(dim=1))


def weights(ctx: context.RankContext, rank: int) -> torch.nn.Module:
    """The classifier as ``rank`` draws it: another one on every rank on purpose, so that sharing rank 0's has to be proved."""
    import torch

    torch.default_generator.manual_seed(seeds.derive(ctx.seed, "weights", rank))
    return build().to(ctx.device)


def _operations(algorithm: str) -> tuple[str, ...]:
    package = __name__.split(".")[0]
    try:
        name, _ = algorithms.parse(algorithm)
        module = importlib.import_module(f"{package}.algorithms.{name.replace('-', '_')}")
        return algorithms.choose(algorithm, module).operations
    except (ImportError, ValueError):
        return ()

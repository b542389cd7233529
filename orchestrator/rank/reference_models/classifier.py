"""The reference classifier: the parameters, batches, loss and weights that all its trainings share.

Linear 784-256-128-64-10 with ReLU, log-softmax, NLL loss and Adam: 242,762 parameters, 971,048 bytes of gradients.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...model import algorithm as algorithms
from ...model.frozen import dataclass
from ..runtime import even_shares, seeds
from . import datasets as rank_data

if TYPE_CHECKING:
    import torch

    from ..runtime import context

LAYERS = (784, 256, 128, 64, 10)
DATASETS = ("auto", "digits", "idx")
#: The metrics and checks of every training; a workload adds its own.
METRICS: Mapping[str, tuple[str, str]] = {"train_s": ("s", "lower"), "loss_mean": ("nats", "lower")}
#: With the accuracy on the test images, and with the difference from a training by one process.
MEASURED_METRICS: Mapping[str, tuple[str, str]] = {**METRICS, "accuracy": ("fraction", "higher")}
COMPARED_METRICS: Mapping[str, tuple[str, str]] = {**MEASURED_METRICS, "reference_difference": ("1", "lower")}
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
    """Parameters of every training.

    dataset           auto (the data directory if there is one, else digits) | digits | idx (the data directory)
    batch             global batch size: images of all ranks together
    epochs            passes over the training images
    checkpoint_every  steps between two checkpoints
    keep              number of newest checkpoints that are kept
    checkpoint_retry_s   seconds for which writing a checkpoint is retried; then it is lost and training continues
    lr                learning rate of the optimizer
    noise             standard deviation of the noise that is added to the images, drawn anew in every epoch
    step_min_ms       minimum duration of a step in milliseconds, to watch a run
    digest_every      steps between two SHA-256 digests of the parameters; 0: none
    record            record every chunk transfer
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
    """Problems with parameter ``name``, an algorithm for ``operation``; ``library``: the backend's own is allowed."""
    if (library and chosen == algorithms.LIBRARY) or operation in _operations(chosen):
        return []
    article = "an" if operation[0] in "aeiou" else "a"
    other = " or library" if library else ""
    return [f"{name}: must be {article} {operation} of algorithms/{other} (got {chosen!r})"]


def last_step(params: Any, data: str | None = None) -> int | None:
    """The number of steps; None if the data directory cannot be read on this machine."""
    try:
        images = rank_data.count(folder(params, data))
    except rank_data.DataError:
        return None
    return int(params.epochs * math.ceil(images / params.batch))


def folder(params: Any, data: str | None) -> Any:
    """The directory of the data set. Raises DataError if one is required and none is given."""
    if params.dataset == "idx" and not data:
        raise rank_data.DataError("dataset idx: needs a directory with the four IDX files (--data-dir)")
    return rank_data.directory(None if params.dataset == "digits" else data)


class Batches:
    """The training images in an order drawn from the seed: the same on every rank, for any world size."""

    def __init__(self, ctx: context.RankContext) -> None:
        params = ctx.params
        split = rank_data.load(folder(params, ctx.gang.data), "train")
        self.images, self.labels = split.images.to(ctx.device), split.labels.to(ctx.device)
        self.steps = params.epochs * math.ceil(len(split.labels) / params.batch)
        self._seed, self._batch, self._device = ctx.seed, params.batch, ctx.device
        self._order: tuple[int, torch.Tensor | None] = (-1, None)

    def indices(self, step: int) -> torch.Tensor:
        epoch, index = divmod(step - 1, math.ceil(len(self.labels) / self._batch))
        return self._permutation(epoch)[index * self._batch : (index + 1) * self._batch]

    def share(self, step: int, rank: int, world: int) -> tuple[torch.Tensor, int]:
        """The indices of a rank's share of ``step``, and the size of the whole batch."""
        batch = self.indices(step)
        start, stop = even_shares.bounds(len(batch), world)[rank]
        return batch[start:stop], len(batch)

    def _permutation(self, epoch: int) -> torch.Tensor:
        cached, order = self._order
        if cached != epoch or order is None:
            import torch

            generator = torch.Generator().manual_seed(seeds.derive(self._seed, "data", epoch))
            order = torch.randperm(len(self.labels), generator=generator).to(self._device)
            self._order = epoch, order
        return order


def parameters(layers: tuple[int, ...] = LAYERS) -> int:
    """The number of parameters of the classifier: weights and biases."""
    return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(layers))


def sample_digest(indices: torch.Tensor) -> str:
    """16 hex digits of a set of samples. The digests of disjoint sets add up modulo 2^64 to that of their union."""
    mixed = (indices + 1) * 0x1E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9
    return f"{int((mixed ^ (mixed >> 32)).sum().item()) % 2**64:016x}"


def noisy_share(ctx: context.RankContext, batches: Batches, step: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(images, labels, size of the whole batch): this rank's share of ``step``, with noise from its own generator.

    In a gang that may shrink the noise belongs to the step, not to the rank: it stays the same for any number of ranks.
    """
    import torch

    indices, total = batches.share(step, ctx.rank, ctx.world)
    ctx.share = sample_digest(indices), sample_digest(batches.indices(step)), len(indices)
    ctx.samples = total
    images = rank_data.scaled(batches.images[indices])
    if ctx.gang.is_elastic:
        start, stop = even_shares.bounds(total, ctx.world)[ctx.rank]
        noise = _step_noise(ctx, step, (total, *images.shape[1:]))[start:stop]
    else:
        noise = torch.randn(images.shape, generator=ctx.rng, device=ctx.device)
    return images + ctx.params.noise * noise, batches.labels[indices], total


def noisy_batch(ctx: context.RankContext, batches: Batches, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(images, labels) of the whole batch of ``step``; the noise depends on the step alone, so that all ranks have the same."""
    indices = batches.indices(step)
    ctx.samples = len(indices)
    images = rank_data.scaled(batches.images[indices])
    return images + ctx.params.noise * _step_noise(ctx, step, tuple(images.shape)), batches.labels[indices]


def _step_noise(ctx: context.RankContext, step: int, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    generator = torch.Generator(ctx.device).manual_seed(seeds.derive(ctx.seed, "noise", step))
    return torch.randn(shape, generator=generator, device=ctx.device)


def loss_sum(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The negative log-likelihood, summed over the samples (0 for none)."""
    import torch

    return torch.nn.functional.nll_loss(model(images), labels, reduction="sum")


def build() -> torch.nn.Module:
    from torch import nn

    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(LAYERS):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.LogSoftmax(dim=1))


def weights(ctx: context.RankContext, rank: int) -> torch.nn.Module:
    """The classifier with weights that ``rank`` draws: they differ by rank, so that sharing those of rank 0 shows."""
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

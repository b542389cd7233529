"""Data-parallel training of the reference classifier on real digits, gradients averaged by an all-reduce.

Linear 784-256-128-64-10 with ReLU, log-softmax, NLL loss and Adam: 242,762 parameters, 971,048 bytes of gradients, which
are reduced as one buffer. Every rank adds noise of its own generator to its share of the batch.
"""

from __future__ import annotations

import importlib
import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..model import algorithm as model

if TYPE_CHECKING:
    import torch

    from ..rank import context
    from ..rank import data as rank_data

LAYERS = (784, 256, 128, 64, 10)
MODELS = ("mnist-mlp",)
DATASETS = ("auto", "digits", "idx")
METRICS: Mapping[str, tuple[str, str]] = {
    "loss_mean": ("nats", "lower"),
    "accuracy": ("fraction", "higher"),
    "train_s": ("s", "lower"),
}
CHECKS = (
    "no-step-lost", "same-resume-step", "resumed-newest", "replicas-identical", "replay-equal", "no-hang",
    "bit-exact", "baseline-clean", "spare-warm",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """What may be set. ``batch`` is global; ``step_min_ms`` slows steps down for watching.

    dataset           auto (the data directory if one is given, else digits) | digits | idx (the data directory)
    algorithm         a file of algorithms/ | library
    digest_every      a SHA-256 of the parameters every that many steps; 0: never
    record            every chunk transfer is recorded
    break_optimizer, break_rng    for the tests of the checkers: that state is not restored
    """

    model: str = "mnist-mlp"
    dataset: str = "auto"
    algorithm: str = "ring"
    batch: int = 64
    epochs: int = 3
    checkpoint_every: int = 5
    keep: int = 3
    lr: float = 0.003
    noise: float = 0.1
    step_min_ms: float = 0.0
    digest_every: int = 1
    record: bool = True
    break_optimizer: bool = False
    break_rng: bool = False


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    problems = [
        f"{name}: must be >= {least} (got {getattr(params, name)})"
        for name, least in _LEAST.items()
        if getattr(params, name) < least
    ]
    if params.lr <= 0:
        problems.append(f"lr: must be > 0 (got {params.lr})")
    problems += [
        f"{name}: must be one of {', '.join(known)} (got {getattr(params, name)!r})"
        for name, known in (("model", MODELS), ("dataset", DATASETS))
        if getattr(params, name) not in known
    ]
    if params.algorithm != "library" and "all-reduce" not in _operations(params.algorithm):
        problems.append(f"algorithm: must be an all-reduce of algorithms/ or library (got {params.algorithm!r})")
    return problems


_LEAST: Mapping[str, float] = {
    "batch": 1, "epochs": 1, "checkpoint_every": 1, "keep": 1, "noise": 0, "step_min_ms": 0, "digest_every": 0,
}  # fmt: skip


def last_step(params: Params, data: str | None = None) -> int | None:
    """The number of steps; None where the data directory cannot be read from here."""
    from ..rank import data as rank_data

    try:
        images = rank_data.count(_folder(params, data))
    except rank_data.DataError:
        return None
    return params.epochs * math.ceil(images / params.batch)


def run(ctx: context.RankContext) -> None:
    """The whole life of one rank of the training."""
    from ..rank import data as rank_data

    params: Params = ctx.params
    ctx.connect()
    split = rank_data.load(_folder(params, ctx.gang.data), "train")
    ctx.steps = params.epochs * math.ceil(len(split.labels) / params.batch)
    trainer = _Trainer(ctx, split)
    begin = time.monotonic()
    for step in range(ctx.restore(trainer.model, trainer.optimizer) + 1, ctx.steps + 1):
        trainer.step(step)
        if step % params.checkpoint_every == 0 or step == ctx.steps:
            ctx.save(step, trainer.model, trainer.optimizer, keep=params.keep)
    train_s = time.monotonic() - begin
    mean = trainer.mean_loss()
    metrics = {"loss_mean": mean, "train_s": train_s}
    if ctx.rank == 0:
        metrics["accuracy"] = trainer.accuracy(rank_data.load(_folder(params, ctx.gang.data), "test"))
    ctx.finish(trainer.model, trainer.optimizer, metrics, loss_mean=mean)


class _Trainer:
    """Model, optimizer and data of one rank. Gradients are views of one flat buffer, which is what travels."""

    def __init__(self, ctx: context.RankContext, split: rank_data.Split) -> None:
        import torch

        from ..rank import seeds

        self._ctx, self._params = ctx, ctx.params
        self._images, self._labels = split.images.to(ctx.device), split.labels.to(ctx.device)
        # Different on every rank on purpose: the broadcast must repair it.
        torch.default_generator.manual_seed(seeds.derive(ctx.seed, "weights", ctx.rank))
        self.model = build().to(ctx.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self._params.lr)
        self._flat = _flat_gradients(self.model)
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0))

    def step(self, step: int) -> None:
        """One step: every phase of it in order."""
        ctx = self._ctx
        ctx.begin_step(step)
        ctx.phase("data")
        images, labels, total = self._batch(step)
        ctx.phase("forward")
        loss = self._loss(images, labels)
        ctx.phase("backward")
        self._flat.zero_()
        # Weighted by the share, so that the mean over ranks is the gradient of the whole batch however it divides.
        (loss * (ctx.world / total)).backward()  # type: ignore[no-untyped-call]
        ctx.all_reduce(self._flat, self._params.algorithm)
        self._flat.div_(ctx.world)
        ctx.phase("optimizer")
        self.optimizer.step()
        self._pause()
        every = self._params.digest_every
        ctx.end_step(loss.item() / max(len(labels), 1), self.model if every and step % every == 0 else None)

    def mean_loss(self) -> float:
        """The loss of the last step over the whole batch."""
        import torch
        import torch.distributed as dist

        mine, total = self._slice(self._ctx.steps)
        weighted = torch.tensor([self._ctx.loss * len(mine) / total], dtype=torch.float64, device=self._ctx.device)
        if self._ctx.world > 1:
            dist.all_reduce(weighted)
        return float(weighted.item())

    def accuracy(self, test: rank_data.Split) -> float:
        """The share of test images that are recognised."""
        import torch

        from ..rank import data

        with torch.no_grad():
            found = self.model(data.scaled(test.images.to(self._ctx.device))).argmax(dim=1).cpu()
        return float((found == test.labels).sum().item()) / len(test.labels)

    def _slice(self, step: int) -> tuple[torch.Tensor, int]:
        """Indices of this rank's share of ``step``, and the size of the whole batch."""
        from ..rank import share

        per_epoch = math.ceil(len(self._labels) / self._params.batch)
        epoch, index = divmod(step - 1, per_epoch)
        batch = self._permutation(epoch)[index * self._params.batch : (index + 1) * self._params.batch]
        start, stop = share.bounds(len(batch), self._ctx.world)[self._ctx.rank]
        return batch[start:stop], len(batch)

    def _permutation(self, epoch: int) -> torch.Tensor:
        """The order of the training images in a data epoch: the same on every rank, whatever the world."""
        if self._order[0] != epoch:
            import torch

            from ..rank import seeds

            generator = torch.Generator().manual_seed(seeds.derive(self._ctx.seed, "data", epoch))
            self._order = epoch, torch.randperm(len(self._labels), generator=generator).to(self._ctx.device)
        return self._order[1]

    def _batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        import torch

        from ..rank import data

        mine, total = self._slice(step)
        images = data.scaled(self._images[mine])
        noise = torch.randn(images.shape, generator=self._ctx.rng, device=self._ctx.device)
        return images + self._params.noise * noise, self._labels[mine], total

    def _loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The sum over this rank's share (0 for an empty one)."""
        import torch

        return torch.nn.functional.nll_loss(self.model(images), labels, reduction="sum")

    def _pause(self) -> None:
        left = self._params.step_min_ms / 1000 - (time.monotonic() - self._ctx.begun)
        if left > 0:
            time.sleep(left)


def build() -> torch.nn.Module:
    """The reference classifier."""
    from torch import nn

    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(LAYERS):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.LogSoftmax(dim=1))


def _flat_gradients(model: torch.nn.Module) -> torch.Tensor:
    """One zeroed buffer of which every parameter's gradient is a view."""
    import torch

    parameters = list(model.parameters())
    flat = torch.zeros(sum(one.numel() for one in parameters), device=parameters[0].device)
    for one, part in zip(parameters, torch.split(flat, [one.numel() for one in parameters]), strict=True):
        one.grad = part.view_as(one)
    return flat


def _folder(params: Params, data: str | None) -> Any:
    from ..rank import data as rank_data

    if params.dataset == "idx" and not data:
        raise rank_data.DataError("dataset idx: needs a directory with the four IDX files (--data-dir)")
    return rank_data.directory(None if params.dataset == "digits" else data)


def _operations(algorithm: str) -> tuple[str, ...]:
    package = __name__.split(".")[0]
    try:
        name, _ = model.parse(algorithm)
        module = importlib.import_module(f"{package}.algorithms.{name.replace('-', '_')}")
        return model.choose(algorithm, module).operations
    except (ImportError, ValueError):
        return ()

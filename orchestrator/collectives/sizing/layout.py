"""Layout of ranks: sizes of the data, tensor, pipeline and expert groups, the ranks of each group, and a rank's share of the model.

Rank = (stage x dp + replica) x tp + shard: tensor-parallel neighbours are adjacent, then data-parallel ranks, then stages:
the order of Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", arXiv:2104.04473. A rank's share is
its pipeline stage, its shard of the matrices, its experts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Literal

from ...model.frozen import dataclass
from .model_description import Layer, Model

Groups = tuple[tuple[int, ...], ...]
STRATEGIES = ("dp", "ddp", "fsdp", "tp", "pp", "ep", "hybrid")
Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """``zero``: 0 no sharding, 1 optimizer state, 2 and gradients, 3 and parameters, over the data-parallel ranks.

    ``buckets``: gradients are sent in the buckets of DistributedDataParallel. ``gathered``: tensor parallelism that gathers
    the inputs of a batch, as in the reference classifier's emulation. ``microbatches``: of a replica's batch.
    """

    strategy: str
    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    zero: int = 0
    buckets: bool = False
    gathered: bool = False
    sequence_parallel: bool = False
    microbatches: int = 1
    recompute: Recompute = "none"

    @property
    def gpus(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def label(self) -> str:
        """``fsdp, ZeRO 3`` or ``hybrid: dp 2 x tp 2 x pp 2``."""
        zero = f", ZeRO {self.zero}" if self.zero else ""
        if self.strategy in ("hybrid", "ep"):
            sizes = [f"{name} {size}" for name, size in (("dp", self.dp), ("tp", self.tp), ("pp", self.pp)) if size > 1]
            experts = f", ep {self.ep} within dp" if self.ep > 1 else ""
            return f"{self.strategy}: {' x '.join(sizes) or 'one GPU'}{experts}{zero}"
        return f"{self.strategy}{zero}"

    def groups(self, axis: str) -> Groups:
        """The concurrent groups of ``axis``: dp, tp, ep (blocks within dp) or expert-dp (the same expert of all blocks)."""
        rows = [self._row(stage, shard) for stage in range(self.pp) for shard in range(self.tp)]
        if axis == "dp":
            return tuple(rows)
        if axis == "tp":
            return tuple(tuple(range(first, first + self.tp)) for first in range(0, self.gpus, self.tp))
        if axis == "ep":
            return tuple(row[first : first + self.ep] for row in rows for first in range(0, self.dp, self.ep))
        return tuple(row[first :: self.ep] for row in rows for first in range(self.ep))

    def pairs(self, stage: int) -> Groups:
        """The pairs of ranks across the boundary between ``stage`` and the next stage."""
        width = self.dp * self.tp
        return tuple((rank, rank + width) for rank in range(stage * width, (stage + 1) * width))

    def _row(self, stage: int, shard: int) -> tuple[int, ...]:
        return tuple((stage * self.dp + replica) * self.tp + shard for replica in range(self.dp))


def arrange(
    strategy: str,
    gpus: int,
    options: Mapping[str, int | None],
    model: Model,
    *,
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
) -> Layout:
    """The layout of a strategy on ``gpus`` ranks. ``options``: the options tp, pp, ep, zero, microbatches where set.

    Raises ValueError with one line per problem.
    """
    problems = [f"--{name}: not with --strategy {strategy}" for name in _foreign(strategy, options)]
    sizes = _sizes(strategy, gpus, options)
    if any(value < 1 for value in (gpus, *sizes.values())):
        raise ValueError("\n".join([*problems, "--gpus, --tp, --pp and --ep: must be >= 1"]))
    if gpus % (sizes["tp"] * sizes["pp"]):
        text = f"--gpus: must be a multiple of tp x pp = {sizes['tp']} x {sizes['pp']} (got {gpus})"
        raise ValueError("\n".join([*problems, text]))
    zero = options.get("zero")
    layout = Layout(
        strategy=strategy,
        dp=gpus // (sizes["tp"] * sizes["pp"]),
        tp=sizes["tp"],
        pp=sizes["pp"],
        ep=sizes["ep"],
        zero=(3 if strategy == "fsdp" else 0) if zero is None else zero,
        buckets=strategy == "ddp",
        gathered=strategy == "tp" and model.shape is None,
        microbatches=options.get("microbatches") or sizes["pp"],
        sequence_parallel=sequence_parallel,
        recompute=recompute,
    )
    problems += _problems(layout, model)
    if problems:
        raise ValueError("\n".join(problems))
    return layout


def _foreign(strategy: str, options: Mapping[str, int | None]) -> list[str]:
    allowed = {
        "dp": (), "ddp": (), "fsdp": ("zero",), "tp": (), "pp": ("microbatches",), "ep": ("ep", "microbatches", "zero"),
        "hybrid": ("tp", "pp", "ep", "zero", "microbatches"),
    }[strategy]  # fmt: skip
    return [name for name, value in options.items() if value is not None and name not in allowed]


def _sizes(strategy: str, gpus: int, options: Mapping[str, int | None]) -> dict[str, int]:
    tp, pp = {"tp": (gpus, 1), "pp": (1, gpus)}.get(strategy, (1, 1))
    if strategy == "hybrid":
        tp, pp = options.get("tp") or 1, options.get("pp") or 1
    ep = options.get("ep") or (gpus if strategy == "ep" else 1)
    return {"tp": tp, "pp": pp, "ep": ep}


def _problems(layout: Layout, model: Model) -> list[str]:
    shape = model.shape
    blocks = sum(layer.block for layer in model.layers)
    problems = []
    if layout.dp % layout.ep:
        problems.append(f"--ep: must divide the data-parallel size {layout.dp} (got {layout.ep})")
    if layout.ep > 1 and (shape is None or not shape.experts):
        problems.append(f"--strategy ep: {model.name} has no experts; --experts N --topk K, or --model mixtral-8x7b")
    elif shape is not None and shape.experts and shape.experts % layout.ep:
        problems.append(f"--ep: must divide the {shape.experts} experts (got {layout.ep})")
    if layout.tp > 1 and shape is not None and shape.heads % layout.tp:
        problems.append(f"--tp: must divide the {shape.heads} heads (got {layout.tp})")
    if layout.tp > 1 and shape is None and (not layout.gathered or model.sample_bytes is None):
        problems.append(
            f"tensor parallelism needs a transformer's figures, which {model.name} does not have; "
            "--model transformer --layers … --hidden …, or --strategy fsdp"
        )
    if layout.pp > blocks:
        problems.append(f"--pp: {model.name} has {blocks} layers for {layout.pp} stages")
    elif layout.pp > 1 and any(layer.output is None for layer in model.layers if layer.block):
        problems.append(f"pipeline stages need the size of what {model.name} passes on: --input SHAPE of one sample")
    if layout.sequence_parallel and (layout.tp == 1 or shape is None):
        problems.append("--sequence-parallel: only with tensor parallelism of a transformer")
    if layout.recompute != "none" and shape is None:
        problems.append(f"--recompute {layout.recompute}: only for transformers")
    return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """Parameters of a rank, before ZeRO. ``expert``: of its experts if they are distributed; ``dense``: all others."""

    dense: int
    expert: int

    @property
    def parameters(self) -> int:
        return self.dense + self.expert


def split_stages(model: Model, pp: int) -> tuple[tuple[Layer, ...], ...]:
    """The layers of each stage: blocks by quotient and remainder; other layers belong to the stage of their neighbour.

    The last of several stages has its own copy of an embedding that the output layer shares.
    """
    blocks = [index for index, layer in enumerate(model.layers) if layer.block]
    quotient, remainder = divmod(len(blocks), pp)
    firsts = [blocks[stage * quotient + min(stage, remainder)] for stage in range(1, pp)]
    edges = [0, *firsts, len(model.layers)]
    layers = model.layers
    if pp > 1 and model.tied_embedding:
        layers = (*layers[:-1], dataclasses.replace(layers[-1], parts=(*layers[-1].parts, model.tied_embedding)))
    return tuple(layers[start:stop] for start, stop in itertools.pairwise(edges))


def share_of_stage(layers: tuple[Layer, ...], layout: Layout) -> RankShare:
    """The share of a rank of this stage. If a tensor does not divide evenly, its largest shard counts.

    If inputs are gathered, every rank has a part of every tensor.
    """
    tp = layout.tp
    dense = expert = 0
    for part in (part for layer in layers for part in layer.parts):
        if part.kind == "expert" and layout.ep > 1:
            expert += math.ceil(part.elements / (layout.ep * tp))
        else:
            whole = part.kind == "whole" and not layout.gathered
            dense += part.elements if whole else math.ceil(part.elements / tp)
    return RankShare(dense=dense, expert=expert)


def largest_share(model: Model, layout: Layout) -> tuple[tuple[Layer, ...], RankShare]:
    """The stage with the most parameters per rank, and the share of its ranks."""
    candidates = [(layers, share_of_stage(layers, layout)) for layers in split_stages(model, layout.pp)]
    return max(candidates, key=lambda candidate: candidate[1].parameters)

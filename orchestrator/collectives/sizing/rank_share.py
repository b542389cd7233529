"""A rank's share of a model: its pipeline stage, its shard of the matrices, its experts."""

from __future__ import annotations

import dataclasses
import itertools
import math

from ...model.frozen import dataclass
from .layout import Layout
from .model_description import Layer, Model


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

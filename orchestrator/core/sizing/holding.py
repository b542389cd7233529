"""What a rank holds of a model: its pipeline stage, its shard of the matrices, its experts."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from .described import Layer, Model
from .layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Parameters of one rank, before ZeRO: ``expert`` are those of its experts where these are spread out, ``dense`` the others."""

    dense: int
    expert: int

    @property
    def parameters(self) -> int:
        return self.dense + self.expert


def stages(model: Model, pp: int) -> tuple[tuple[Layer, ...], ...]:
    """The layers of each stage: blocks by quotient and remainder; what stands before or behind them goes with its neighbour."""
    blocks = [index for index, layer in enumerate(model.layers) if layer.block]
    quotient, remainder = divmod(len(blocks), pp)
    firsts = [blocks[stage * quotient + min(stage, remainder)] for stage in range(1, pp)]
    edges = [0, *firsts, len(model.layers)]
    return tuple(model.layers[start:stop] for start, stop in itertools.pairwise(edges))


def of_stage(layers: tuple[Layer, ...], layout: Layout) -> Held:
    """What a rank of this stage holds. A tensor that does not divide evenly: the largest shard. Where inputs are gathered, each
    rank has its part of every tensor."""
    tp = layout.tp
    dense = expert = 0
    for part in (part for layer in layers for part in layer.parts):
        if part.kind == "expert" and layout.ep > 1:
            expert += math.ceil(part.elements / (layout.ep * tp))
        else:
            whole = part.kind == "whole" and not layout.gathered
            dense += part.elements if whole else math.ceil(part.elements / tp)
    return Held(dense=dense, expert=expert)


def largest(model: Model, layout: Layout) -> tuple[tuple[Layer, ...], Held]:
    """The stage that holds most, and what a rank of it holds."""
    found = [(layers, of_stage(layers, layout)) for layers in stages(model, layout.pp)]
    return max(found, key=lambda one: one[1].parameters)

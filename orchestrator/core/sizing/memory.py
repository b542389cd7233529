"""Memory of one GPU: weights, gradients, optimizer state, activations.

Weights, gradients, state and ZeRO: Rajbhandari et al., arXiv:1910.02054. Activations of a transformer: Korthikanti et al.,
arXiv:2205.05198. Not counted: the device's context, communication buffers, fragmentation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from . import batches, rank_share
from .layout import RECOMPUTE, Layout
from .model_description import Model, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """Bytes per parameter."""

    weights: int
    gradients: int
    state: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """``half``: for a model of 16 bit with a 32-bit copy of the weights in the state; ``full``: for one of 32 bit."""

    name: str
    half: Bytes
    full: Bytes
    source: str

    def for_dtype(self, element: int) -> Bytes:
        """``element``: bytes of a parameter."""
        if element == 2:
            return self.half
        scale = element / 4
        return Bytes(weights=element, gradients=int(self.full.gradients * scale), state=int(self.full.state * scale))

    def gradient_dtype(self, dtype: str) -> str:
        """The type in which gradients are held and travel."""
        return "float32" if dtype in ("bfloat16", "float16") and self.half.gradients == 4 else dtype


def _of(name: str, half: tuple[int, int, int], full: tuple[int, int, int], source: str) -> Optimizer:
    def made(sizes: tuple[int, int, int]) -> Bytes:
        return Bytes(weights=sizes[0], gradients=sizes[1], state=sizes[2])

    return Optimizer(name=name, half=made(half), full=made(full), source=source)


OPTIMIZERS: Mapping[str, Optimizer] = {
    "adam": _of("adam", (2, 2, 12), (4, 4, 8), "arXiv:1910.02054"),
    "adam-fp32-gradients": _of("adam-fp32-gradients", (2, 4, 12), (4, 4, 8), "Megatron-LM, arXiv:2205.05198"),
    "sgd-momentum": _of("sgd-momentum", (2, 2, 8), (4, 4, 4), "weight, gradient, momentum"),
    "sgd": _of("sgd", (2, 2, 4), (4, 4, 0), "weight, gradient"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the fullest GPU. ``activations`` None: not known for this model."""

    parameters: int
    weights: int
    gradients: int
    state: int
    activations: int | None
    per_parameter: Bytes
    source: str

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.state + (self.activations or 0)


def of_rank(model: Model, layout: Layout, optimizer: Optimizer, batch: int | None) -> Memory:
    """The memory of the rank with the largest share. ``batch`` None: without activations."""
    layers, held = rank_share.largest_share(model, layout)
    per_parameter = optimizer.for_dtype(model.element)
    expert_dp = layout.dp // layout.ep

    def bytes_of(size: int, stage: int) -> int:
        sharded = layout.zero >= stage
        dense = held.dense * size / (layout.dp if sharded else 1)
        return math.ceil(dense) + math.ceil(held.expert * size / (expert_dp if sharded else 1))

    active, source = _activations(model, layout, sum(layer.block for layer in layers), batch)
    return Memory(
        parameters=held.parameters, weights=bytes_of(per_parameter.weights, 3), gradients=bytes_of(per_parameter.gradients, 2),
        state=bytes_of(per_parameter.state, 1), activations=active, per_parameter=per_parameter, source=source,
    )  # fmt: skip


def _activations(model: Model, layout: Layout, blocks: int, batch: int | None) -> tuple[int | None, str]:
    if batch is None:
        return None, "no --batch"
    micro = batches.even(batches.even(batch, layout.dp), layout.microbatches)
    #: The first stage starts one microbatch per stage before its first gradient arrives.
    flight = min(layout.pp, layout.microbatches)
    if model.shape is not None:
        per_block, formula = layer_activations(model.shape, layout, micro, model.element)
        ends = _ends(model.shape, layout, micro, flight, model.element)
        return blocks * flight * per_block + ends, formula
    if model.activation_bytes is None:
        return None, "needs --input SHAPE"
    samples = micro * flight
    if layout.gathered:
        samples = batch
    return math.ceil(model.activation_bytes * samples / layout.pp), model.activation_source


def layer_activations(shape: Shape, layout: Layout, micro: int, element: int) -> tuple[int, str]:
    """(bytes that one block keeps for the backward pass of one microbatch, the formula); equations 1 to 5 there."""
    tokens = micro * shape.sequence * shape.hidden
    tp = layout.tp
    square = 5 * shape.heads * shape.sequence / shape.hidden
    scale = element / 2
    if layout.recompute == "full":
        return math.ceil(2 * tokens * scale / (tp if layout.sequence_parallel else 1)), "2 s b h"
    if layout.recompute == "selective":
        square = 0.0
    term = " + 5 a s/h" if square else ""
    if tp == 1:
        return math.ceil(tokens * (34 + square) * scale), f"s b h (34{term})"
    if layout.sequence_parallel:
        return math.ceil(tokens * (34 + square) / tp * scale), f"s b h (34{term}) / t"
    return math.ceil(tokens * (10 + 24 / tp + square / tp) * scale), f"s b h (10 + 24/t{term and ' + 5 a s/(h t)'})"


def _ends(shape: Shape, layout: Layout, micro: int, flight: int, element: int) -> int:
    """Embedding's dropout of each microbatch in flight; without stages the output layer and its 32-bit logits as well."""
    shard = layout.tp if layout.sequence_parallel else 1
    tokens = micro * shape.sequence
    ends = tokens * shape.hidden * flight * element / 2 / shard
    if layout.pp == 1:
        ends += 4 * tokens * (shape.hidden * element / 2 / shard + shape.vocabulary / layout.tp)
    return math.ceil(ends)


def fitting_layouts(
    model: Model, layout: Layout, optimizer: Optimizer, batch: int | None, limit: int
) -> tuple[tuple[Layout, Memory], ...]:
    """At most five layouts on the same number of GPUs that fit into ``limit`` bytes, the simplest first."""
    result = []
    for other in _candidates(model, layout):
        if batch is not None and batch < other.dp * other.microbatches:
            continue
        memory = of_rank(model, other, optimizer, batch)
        if memory.total <= limit:
            result.append((other, memory))
        if len(result) == 5:
            break
    return tuple(result)


def _candidates(model: Model, layout: Layout) -> list[Layout]:
    gpus, shape = layout.gpus, model.shape
    plain = dataclasses.replace(
        layout, dp=gpus, tp=1, pp=1, ep=1, buckets=False, gathered=False, sequence_parallel=False, microbatches=1
    )
    candidates = [dataclasses.replace(plain, strategy="ddp", zero=0, buckets=True)]
    candidates += [dataclasses.replace(plain, strategy="fsdp", zero=zero) for zero in (1, 2, 3)]
    if shape is not None:
        candidates += [
            dataclasses.replace(plain, strategy="hybrid", zero=zero, tp=tp, pp=pp, dp=gpus // (tp * pp), microbatches=pp,
                                sequence_parallel=tp > 1)
            for zero in (0, 1)
            for pp in _powers(gpus)
            for tp in _powers(min(gpus // pp, 8))
            if tp * pp > 1 and shape.heads % tp == 0 and pp <= shape.layers and gpus % (tp * pp) == 0
        ]  # fmt: skip
        harder = RECOMPUTE[RECOMPUTE.index(layout.recompute) + 1 :]
        candidates += [dataclasses.replace(candidate, recompute=more) for more in harder for candidate in candidates]
    return [candidate for candidate in candidates if candidate != layout]


def _powers(maximum: int) -> list[int]:
    return [2**power for power in range(maximum.bit_length()) if 2**power <= maximum]

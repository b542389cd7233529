"""Memory of one GPU: weights, gradients, optimizer state, activations.

Weights, gradients, state and ZeRO: Rajbhandari et al., arXiv:1910.02054. Activations of a transformer by its family: GPT as
Korthikanti et al., arXiv:2205.05198; Llama as Fujii et al., arXiv:2411.06465. Not counted: the device's context, communication
buffers, fragmentation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from ...model.frozen import dataclass
from . import batch_shares
from .layout import RECOMPUTE, Layout, share_of_stage, split_stages
from .model_description import Model, Shape, Style


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """Bytes per parameter."""

    weights: int
    gradients: int
    state: int


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
    """The memory of a rank of the stage that needs most. ``batch`` None: without activations."""
    stages = range(layout.pp)
    return max((_of_stage(model, layout, optimizer, batch, stage) for stage in stages), key=lambda memory: memory.total)


def _of_stage(model: Model, layout: Layout, optimizer: Optimizer, batch: int | None, stage: int) -> Memory:
    layers = split_stages(model, layout.pp)[stage]
    held = share_of_stage(layers, layout)
    per_parameter = optimizer.for_dtype(model.element)
    expert_dp = layout.dp // layout.ep

    def bytes_of(size: int, zero: int) -> int:
        sharded = layout.zero >= zero
        dense = held.dense * size / (layout.dp if sharded else 1)
        return math.ceil(dense) + math.ceil(held.expert * size / (expert_dp if sharded else 1))

    active, source = _activations(model, layout, sum(layer.block for layer in layers), batch, stage)
    return Memory(
        parameters=held.parameters, weights=bytes_of(per_parameter.weights, 3), gradients=bytes_of(per_parameter.gradients, 2),
        state=bytes_of(per_parameter.state, 1), activations=active, per_parameter=per_parameter, source=source,
    )  # fmt: skip


def _activations(model: Model, layout: Layout, blocks: int, batch: int | None, stage: int) -> tuple[int | None, str]:
    """(bytes at the peak, their formula), or (None, the reason why they are not known)."""
    if batch is None:
        return None, "no --batch"
    micro = batch_shares.even(batch_shares.even(batch, layout.dp), layout.microbatches)
    #: A stage starts one microbatch for each stage from it to the last one, before its first gradient arrives.
    flight = min(layout.pp - stage, layout.microbatches)
    if model.shape is None:
        if model.activation_bytes is None:
            return None, "needs --input SHAPE"
        samples = batch if layout.gathered else micro * min(layout.pp, layout.microbatches)
        return math.ceil(model.activation_bytes * samples / layout.pp), model.activation_source
    per_block, formula = layer_activations(model, layout, micro)
    whole_block, _ = layer_activations(model, dataclasses.replace(layout, recompute="none"), micro)
    if per_block is None or whole_block is None:
        return None, formula
    recomputed = whole_block - per_block
    ends = _ends(model, layout, micro, flight, stage)
    return blocks * flight * per_block + recomputed + ends, formula + (
        ", and one block as it is recomputed" if recomputed else ""
    )


def layer_activations(model: Model, layout: Layout, micro: int) -> tuple[int | None, str]:
    """(bytes that one block keeps for the backward pass of one microbatch, the formula for elements of 16 bit).

    None where they are not known, with the reason. Each tensor that a block keeps is counted once, as Korthikanti et al.,
    arXiv:2205.05198, section 4.1, count those of GPT.
    """
    shape, style, element = model.shape, model.style, model.element
    assert shape is not None and style is not None, "only transformers have blocks"
    tokens, tp = micro * shape.sequence, layout.tp
    if shape.experts and tp > 1:
        return None, "not known for experts with tensor parallelism"
    if layout.recompute == "full":
        return math.ceil(tokens * shape.hidden * element / (tp if layout.sequence_parallel else 1)), "2 s b h"
    # Inputs of both norms, of attention and of the feed-forward net; the masks of both dropouts, of a byte per element.
    whole = shape.hidden * (4 * element + 2 * style.dropout)
    keys = math.ceil(shape.kv_heads / tp) * tp / shape.heads
    # Query, key, value, and the output of attention.
    split = shape.hidden * element * (2 + 2 * keys) + _feed_forward(shape, style, element)
    has_matrices = not style.flash and layout.recompute == "none"
    if has_matrices:  # the softmax's output; with dropout its mask, and its output
        split += shape.heads * shape.sequence * (element + style.dropout * (1 + element))
    bytes_per_token = (whole + split) / tp if layout.sequence_parallel else whole + split / tp
    return math.ceil(
        tokens * bytes_per_token
    ), f"{_formula(shape, style, layout, has_matrices)}; {_source(shape, style)}"


def _feed_forward(shape: Shape, style: Style, element: int) -> float:
    """Bytes per token, beside the input: what lies between the matrices.

    Of experts: the copies of the input and the outputs, which the router's weights scale; and its probabilities of 32 bit.
    """
    inner = shape.ffn * element * (4 if style.gated else 2)
    return shape.topk * (2 * shape.hidden * element + inner) + 4 * shape.experts if shape.experts else inner


def _formula(shape: Shape, style: Style, layout: Layout, has_matrices: bool) -> str:
    """The sum in ``layer_activations``, for elements of 16 bit."""
    is_fourfold = shape.ffn == 4 * shape.hidden and not style.gated and not shape.experts
    whole = 10 if style.dropout else 8
    split = 4 + 4 * (shape.kv_heads == shape.heads) + 16 * is_fourfold
    inner = "8 f/h" if style.gated else "4 f/h"
    terms = ["4 k/a"] if shape.kv_heads != shape.heads else []
    terms += [f"{shape.topk} (4 + {inner}) + 4 E/h"] if shape.experts else [] if is_fourfold else [inner]
    terms += [f"{5 if style.dropout else 2} a s/h"] if has_matrices else []
    if layout.tp == 1 or layout.sequence_parallel:
        return f"s b h ({' + '.join([str(whole + split), *terms])})" + (" / t" if layout.tp > 1 else "")
    return f"s b h ({whole} + ({' + '.join([str(split), *terms])}) / t)"


def _source(shape: Shape, style: Style) -> str:
    attention = f"attention {'without' if style.flash else 'with'} matrices"
    routed = ", experts by the tensors that they keep, if tokens are routed evenly" if shape.experts else ""
    return f"{style.source}{routed}; {attention}"


def _ends(model: Model, layout: Layout, micro: int, flight: int, stage: int) -> int:
    """Outside the blocks: on the first stage the embedding's dropout of each microbatch in flight.

    On the last stage the inputs of the last norm and of the output layer, and its logits of 32 bit.
    """
    shape, style = model.shape, model.style
    assert shape is not None and style is not None, "only transformers have blocks"
    shard = layout.tp if layout.sequence_parallel else 1
    tokens = micro * shape.sequence
    dropout = tokens * shape.hidden * flight / shard if style.dropout and stage == 0 else 0.0
    output = tokens * (2 * shape.hidden * model.element / shard + 4 * shape.vocabulary / layout.tp)
    return math.ceil(dropout + (output if stage == layout.pp - 1 else 0.0))


def fitting_layouts(
    model: Model, layout: Layout, optimizer: Optimizer, batch: int | None, limit: int
) -> tuple[tuple[Layout, Memory], ...]:
    """Return at most five layouts on the same number of GPUs that fit into ``limit`` bytes, the simplest first."""
    result = []
    for other in _candidates(model, layout):
        if batch is not None and batch < other.dp * other.microbatches:
            continue
        memory = of_rank(model, other, optimizer, batch)
        is_known = memory.activations is not None or batch is None or model.shape is None
        if is_known and memory.total <= limit:
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
        harder = [
            more
            for more in RECOMPUTE[RECOMPUTE.index(layout.recompute) + 1 :]
            if more == "full" or not _is_flash(model)
        ]
        candidates += [dataclasses.replace(candidate, recompute=more) for more in harder for candidate in candidates]
    return [candidate for candidate in candidates if candidate != layout]


def _is_flash(model: Model) -> bool:
    """Attention keeps no matrices, which selective recomputation would save."""
    return model.style is not None and model.style.flash


def _powers(maximum: int) -> list[int]:
    return [2**power for power in range(maximum.bit_length()) if 2**power <= maximum]

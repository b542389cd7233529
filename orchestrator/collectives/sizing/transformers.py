"""Transformers by their figures: parameters tensor by tensor, and presets with the paper that states them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...model.frozen import dataclass
from .model_description import Layer, Model, Part, Shape, Style

#: Llama's attention does not keep its matrices: Touvron et al., LLaMA, arXiv:2302.13971, section 2.4.
STYLES: Mapping[str, Style] = {
    "gpt": Style(name="gpt", source="Korthikanti et al., arXiv:2205.05198"),
    "llama": Style(
        name="llama", gated=True, bias=False, learned=False, tied=False, dropout=False, flash=True,
        source="Fujii et al., arXiv:2411.06465, equation 12",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A published model."""

    shape: Shape
    style: str
    dtype: str
    source: str


def _gpt(layers: int, hidden: int, heads: int, sequence: int) -> Shape:
    return Shape(
        layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn=4 * hidden, sequence=sequence, vocabulary=50257
    )


#: How attention is computed: with its s x s matrices kept for the backward pass, or in blocks without them (FlashAttention).
ATTENTION = ("matrices", "flash")
_GPT_2 = "Radford et al., Language Models are Unsupervised Multitask Learners (2019)"
_GPT_3 = "Brown et al., Language Models are Few-Shot Learners, arXiv:2005.14165, table 2.1"
_LLAMA_2 = "Touvron et al., Llama 2, arXiv:2307.09288"
_LLAMA_3 = "Grattafiori et al., The Llama 3 Herd of Models, arXiv:2407.21783, table 3"
PRESETS: Mapping[str, Preset] = {
    "gpt2-124m": Preset(
        shape=_gpt(12, 768, 12, 1024), style="gpt", dtype="float32", source=_GPT_2,
    ),
    "gpt2-1.5b": Preset(
        shape=_gpt(48, 1600, 25, 1024), style="gpt", dtype="float32", source=_GPT_2,
    ),
    "gpt3-175b": Preset(
        shape=_gpt(96, 12288, 96, 2048), style="gpt", dtype="bfloat16", source=_GPT_3,
    ),
    "llama-2-7b": Preset(
        shape=Shape(layers=32, hidden=4096, heads=32, kv_heads=32, ffn=11008, sequence=4096, vocabulary=32000),
        style="llama", dtype="bfloat16", source=_LLAMA_2,
    ),
    "llama-3-8b": Preset(
        shape=Shape(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, sequence=8192, vocabulary=128256),
        style="llama", dtype="bfloat16", source=_LLAMA_3,
    ),
    "llama-3-70b": Preset(
        shape=Shape(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, sequence=8192, vocabulary=128256),
        style="llama", dtype="bfloat16", source=_LLAMA_3,
    ),
    "mixtral-8x7b": Preset(
        shape=Shape(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, sequence=32768, vocabulary=32000, experts=8, topk=2),
        style="llama", dtype="bfloat16", source="Jiang et al., Mixtral of Experts, arXiv:2401.04088, table 1",
    ),
}  # fmt: skip


def preset(name: str, dtype: str | None, changes: Mapping[str, int], attention: str | None = None) -> Model:
    """The model of that name; ``changes``: fields of Shape that the user sets otherwise."""
    preset_ = PRESETS[name]
    shape = _changed(preset_.shape, changes)
    source = preset_.source + ("" if shape == preset_.shape else ", changed by options")
    return build(name, shape, style(preset_.style, attention), dtype or preset_.dtype, source)


def style(name: str, attention: str | None) -> Style:
    """The style of that name. ``attention``: one of ATTENTION, or None for the usual one of the family."""
    return STYLES[name] if attention is None else dataclasses.replace(STYLES[name], flash=attention == "flash")


def problems(shape: Shape) -> list[str]:
    problems = [f"--{name.replace('_', '-')}: must be >= 1 (got {getattr(shape, name)})" for name in _COUNTS
             if getattr(shape, name) < 1]  # fmt: skip
    if problems:
        return problems
    if shape.hidden % shape.heads:
        problems.append(f"--heads: must divide --hidden {shape.hidden} (got {shape.heads})")
    if shape.heads % shape.kv_heads:
        problems.append(f"--kv-heads: must divide --heads {shape.heads} (got {shape.kv_heads})")
    if shape.experts and not 1 <= shape.topk <= shape.experts:
        problems.append(f"--topk: must be 1 to {shape.experts}, the number of experts (got {shape.topk})")
    return problems


_COUNTS = ("layers", "hidden", "heads", "kv_heads", "ffn", "sequence", "vocabulary")


def build(name: str, shape: Shape, style: Style, dtype: str, source: str) -> Model:
    """Embedding, ``shape.layers`` blocks, last norm and output layer."""
    output = shape.sequence * shape.hidden
    embedding = [Part("embedding", shape.vocabulary * shape.hidden)]
    embedding += [Part("positions", shape.sequence * shape.hidden, "whole")] if style.learned else []
    head = [*_norm("last norm", shape, style)]
    head += [] if style.tied else [Part("output", shape.vocabulary * shape.hidden)]
    block = (*_attention(shape, style), *_feed_forward(shape, style))
    blocks = tuple(Layer(name=f"block{index + 1}", parts=block, output=output) for index in range(shape.layers))
    first = Layer(name="embedding", parts=tuple(embedding), output=output, block=False)
    last = Layer(name="output", parts=tuple(head), block=False)
    # A sample is a sequence of tokens and their successors, both int64.
    return Model(
        name=name, dtype=dtype, layers=(first, *blocks, last), source=source, shape=shape, style=style,
        tied_embedding=embedding[0] if style.tied else None, sample_bytes=2 * 8 * shape.sequence,
    )  # fmt: skip


def _norm(name: str, shape: Shape, style: Style) -> tuple[Part, ...]:
    weight = Part(f"{name} weight", shape.hidden, "whole")
    return (weight, Part(f"{name} bias", shape.hidden, "whole")) if style.bias else (weight,)


def _linear(name: str, inner: int, outer: int, style: Style, *, row: bool = False) -> tuple[Part, ...]:
    """``row``: cut along its inputs, so its bias is added after the sum over ranks, and every rank holds it."""
    weight = Part(f"{name} weight", inner * outer)
    return (weight, Part(f"{name} bias", outer, "whole" if row else "split")) if style.bias else (weight,)


def _attention(shape: Shape, style: Style) -> tuple[Part, ...]:
    hidden, keys = shape.hidden, shape.hidden // shape.heads * shape.kv_heads
    if style.learned:
        inputs = _linear("qkv", hidden, hidden + 2 * keys, style)
    else:
        widths = (("query", hidden), ("key", keys), ("value", keys))
        inputs = tuple(part for name, width in widths for part in _linear(name, hidden, width, style))
    return (*_norm("norm", shape, style), *inputs, *_linear("projection", hidden, hidden, style, row=True))


def _feed_forward(shape: Shape, style: Style) -> tuple[Part, ...]:
    hidden, ffn = shape.hidden, shape.ffn
    names = ("gate", "up") if style.gated else ("up",)
    inputs = [part for name in names for part in _linear(name, hidden, ffn, style)]
    net = (*inputs, *_linear("down", ffn, hidden, style, row=True))
    norm = _norm("second norm", shape, style)
    if not shape.experts:
        return (*norm, *net)
    experts = tuple(Part(f"experts' {part.name}", part.elements * shape.experts, "expert") for part in net)
    return (*norm, Part("router", shape.experts * hidden, "whole"), *experts)


def _changed(shape: Shape, changes: Mapping[str, int]) -> Shape:
    values: dict[str, Any] = dict(changes)
    return dataclasses.replace(shape, **values)

"""Model descriptions for sizing: layers of parameters in the order of the forward pass, and the outputs between them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Literal

from ...model.frozen import dataclass
from ...rank.exchange import cases

#: Bytes of an element.
DTYPES: Mapping[str, int] = {**cases.DTYPES, "int16": 2, "bool": 1}


@dataclass(frozen=True, slots=True)
class Part:
    """A parameter tensor. ``kind``: split by tensor parallelism, replicated on its ranks (whole), or of an expert."""

    name: str
    elements: int
    kind: Literal["split", "whole", "expert"] = "split"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """``output``: elements per sample behind the layer, which a pipeline stage sends to the next; None: not known.

    ``block``: whether it is a repeated block that is assigned to pipeline stages.
    """

    name: str
    parts: tuple[Part, ...]
    output: int | None = None
    block: bool = True

    @property
    def elements(self) -> int:
        return sum(part.elements for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """A family of transformers. ``gated``: three matrices in the feed-forward net (SwiGLU); ``bias``: of linear layers and norms.

    ``learned``: learned positions; ``tied``: the output layer is the embedding; ``dropout``: behind the embedding, in attention
    and behind both halves of a block; ``flash``: attention does not keep its matrices (FlashAttention). ``source``: of the
    formula of its activations.
    """

    name: str
    gated: bool = False
    bias: bool = True
    learned: bool = True
    tied: bool = True
    dropout: bool = True
    flash: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a transformer; it determines communication and activations. ``experts`` 0: dense; else ``topk`` of them."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    kv_heads: int
    ffn: int
    experts: int = 0
    topk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """``sample_bytes``: input and label of a sample; ``activation_bytes``: the activations of a sample's forward pass.

    Both are None if they are not known; a transformer's activations follow from its ``shape`` and ``style``. ``source``: the
    origin of the description. ``tied_embedding``: the tensor that the first and the last layer share.
    """

    name: str
    dtype: str
    layers: tuple[Layer, ...]
    source: str
    shape: Shape | None = None
    style: Style | None = None
    tied_embedding: Part | None = None
    sample_bytes: int | None = None
    activation_bytes: int | None = None
    activation_source: str = ""

    @property
    def parameters(self) -> int:
        return sum(layer.elements for layer in self.layers)

    @property
    def active_parameters(self) -> int:
        """The parameters that a token uses: of the experts, ``topk``."""
        if self.shape is None or not self.shape.experts:
            return self.parameters
        experts = sum(part.elements for layer in self.layers for part in layer.parts if part.kind == "expert")
        return self.parameters - experts + experts // self.shape.experts * self.shape.topk

    @property
    def element(self) -> int:
        """Bytes of one parameter."""
        return DTYPES[self.dtype]

    @property
    def bytes(self) -> int:
        return self.parameters * self.element

    @property
    def gradients(self) -> tuple[tuple[str, int], ...]:
        """(layer, bytes) in the order of the backward pass: the last layer first."""
        return tuple((layer.name, layer.elements * self.element) for layer in reversed(self.layers) if layer.elements)


def classifier() -> Model:
    """The reference classifier: Linear 784-256-128-64-10 on images of 28 x 28 float32 with an int64 label."""
    widths = (784, 256, 128, 64, 10)
    layers = tuple(
        Layer(
            name=f"fc{index + 1}",
            parts=(Part("weight", before * after), Part("bias", after)),
            output=after,
        )
        for index, (before, after) in enumerate(itertools.pairwise(widths))
    )
    outputs = 2 * sum(widths[1:])  # every linear layer, and the ReLU or log-softmax behind it
    return Model(
        name="mnist-mlp",
        dtype="float32",
        layers=layers,
        source="Linear 784-256-128-64-10, ReLU, log-softmax",
        sample_bytes=784 * 4 + 8,
        activation_bytes=outputs * 4,
        activation_source="outputs of the linear layers, of ReLU and of log-softmax",
    )


def from_torch_module(facts: Mapping[str, Any]) -> Model:
    """Layers are the modules that hold parameters, in order. Raises ValueError for a module that cannot be sized."""
    dtypes = {dtype for _, _, dtype in facts["parameters"]}
    name = facts["name"]
    if not dtypes:
        raise ValueError(f"--model {name}: has no trainable parameter")
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise ValueError(
            f"--model {name}: its parameters have the types {', '.join(sorted(dtypes))}; choose one with --dtype"
        )
    outputs = facts.get("outputs", {})
    parts: dict[str, list[Part]] = {}
    for path, elements, _ in facts["parameters"]:
        owner, _, last = path.rpartition(".")
        parts.setdefault(owner, []).append(Part(last, elements))
    layers = tuple(
        Layer(name=owner or facts["class"], parts=tuple(tensors), output=outputs.get(owner))
        for owner, tensors in parts.items()
    )
    return Model(
        name=name,
        dtype=dtypes.pop(),
        layers=layers,
        source=f"{facts['class']}, parameters summed in order",
        sample_bytes=None,
        activation_bytes=facts.get("activations"),
        activation_source="outputs of the modules, by hooks on the meta device",
    )
